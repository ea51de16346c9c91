"""Worker processes that may be lost: a hung or crashed task costs its own result, nothing else.

Three kinds of process. The caller's holds a :class:`Workers`. It starts one *keeper*, a plain
Python process with one thread, which imports the task's module once and forks the *workers* from
itself: a lost worker is replaced in milliseconds. Lines of JSON go through pipes.

- The time limit of a task is the worker's own interval timer, whose signal no Python code
  handles: the kernel ends the process even while it computes inside one C call. So it works
  whichever thread the caller is in, unlike an alarm in the caller's process.
- The caller never forks, and its ``__main__`` is not imported again: threads, CUDA and scripts
  without a main guard are safe.
- A worker's memory is limited too, so that no task can take the machine's.
- The keeper ends all workers, then itself, once the caller is gone, however it ended. Should the
  keeper itself be killed, an idle worker ends at once, a busy one within its limit.

POSIX only.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from arrol.errors import ArrolError, check_integer, check_range

POLL_SECONDS = 1.0  # how often the keeper looks whether its caller is still there
MEMORY_BYTES = 4 << 30  # address space of a worker; beyond it a task raises MemoryError
WAITING = 4  # tasks per worker that lie at the keeper, so that no worker waits for the caller

Task = Callable[..., Any]


class Workers:
    """Runs one function on many arguments in worker processes, each call within a time limit.

    Processes start with the first :meth:`run` and end with :meth:`close` or with this process.
    One :meth:`run` at a time: the caller sees to that.

    Args:
        function: where the function is, ``"module:name"``. It takes and gives back JSON values.
        workers: number of processes.
        seconds: time limit of one call.
        preload: modules to import before any worker is forked.

    Raises:
        ArrolError: a number is out of range, or this is no POSIX system.
    """

    def __init__(
        self, function: str, workers: int, seconds: float, preload: Sequence[str] = ()
    ) -> None:
        check_integer("workers", workers, 1)
        check_range("seconds", seconds, 0.0, open_low=True)
        if not hasattr(os, "fork"):
            raise ArrolError(f"os is {os.name!r}; workers are allowed where processes can fork.")
        self._function = function
        self._workers = workers
        self._seconds = seconds
        self._preload = tuple(preload)
        self._keeper: subprocess.Popen[bytes] | None = None

    def run(self, tasks: Sequence[Sequence[Any]]) -> Iterator[tuple[int, Any]]:
        """Yield (index of the task, result) as results come in; None for a call that was lost.

        Lost is a call that ran into the time limit, raised, or ended its process.
        """
        sent = 0
        owed: set[int] = set()  # sent, no result yet
        try:
            while sent < len(tasks) or owed:
                keeper = self._running()
                while sent < len(tasks) and len(owed) < WAITING * self._workers:
                    owed.add(sent)
                    sent += 1
                    self._send(keeper, sent - 1, tasks[sent - 1])
                for number, result in self._receive(keeper, owed):
                    owed.discard(number)
                    yield number, result
        finally:
            if owed:  # the caller went away in between: nobody wants what is still on its way
                self.close()

    def close(self) -> None:
        """End all processes. A later :meth:`run` starts them again."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        for pipe in (keeper.stdin, keeper.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # it was killed with a task on its way
                    pipe.close()
        keeper.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._keeper is None:
            arguments = [self._function, str(self._workers), str(self._seconds), str(os.getpid())]
            arguments += self._preload
            program = f"import sys; sys.path[:] = {sys.path!r}; "
            program += "from arrol.answer_workers import keep; keep(*sys.argv[1:])"
            self._keeper = subprocess.Popen(
                [sys.executable, "-c", program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self._keeper

    def _send(self, keeper: subprocess.Popen[bytes], number: int, task: Sequence[Any]) -> None:
        assert keeper.stdin is not None
        with suppress(BrokenPipeError):  # the keeper is gone: reading finds out
            keeper.stdin.write(_line([number, *task]))
            keeper.stdin.flush()

    def _receive(self, keeper: subprocess.Popen[bytes], owed: set[int]) -> list[tuple[int, Any]]:
        assert keeper.stdout is not None
        line = keeper.stdout.readline()
        if line.endswith(b"\n"):
            number, result = json.loads(line)
            return [(number, result)]
        self.close()
        if keeper.returncode >= 0:  # it wrote why; no task can do that to it
            raise RuntimeError(
                f"the workers' keeper ended by itself, exit code {keeper.returncode}"
            )
        # It was killed, and its workers with it.
        return [(number, None) for number in sorted(owed)]


@dataclass(slots=True)
class _Worker:
    """A forked worker as its keeper sees it."""

    process: int
    channel: socket.socket
    number: int | None = None  #: the task that it is on
    received: bytearray = field(default_factory=bytearray)


def keep(function: str, workers: str, seconds: str, caller: str, *preload: str) -> None:
    """The keeper's whole life: hand tasks from standard input to workers, and results back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides when to stop
    results = os.dup(1)
    os.dup2(2, 1)  # whatever a task prints is no result
    for module in preload:
        importlib.import_module(module)
    module, name = function.split(":")
    keeper = _Keeper(getattr(importlib.import_module(module), name), float(seconds), results)
    try:
        keeper.serve(int(workers), int(caller))
    finally:
        keeper.end()


class _Keeper:
    def __init__(self, function: Task, seconds: float, results: int) -> None:
        self._function = function
        self._seconds = seconds
        self._results = results
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._tasks: list[list[Any]] = []

    def serve(self, workers: int, caller: int) -> None:
        received = bytearray()
        self._selector.register(0, selectors.EVENT_READ)
        while os.getppid() == caller:
            self._hand_out(workers)
            for key, _ in self._selector.select(POLL_SECONDS):
                if key.data is not None:
                    self._hear(key.data)
                    continue
                data = os.read(0, 1 << 16)
                if not data:
                    return
                received += data
                self._tasks += [json.loads(line) for line in _whole_lines(received)]

    def end(self) -> None:
        for worker in self._workers:
            os.kill(worker.process, signal.SIGKILL)
            os.waitpid(worker.process, 0)

    def _hand_out(self, workers: int) -> None:
        while self._tasks:
            idle = next((worker for worker in self._workers if worker.number is None), None)
            if idle is None and len(self._workers) < workers:
                idle = self._fork()
            if idle is None:
                return
            task = self._tasks.pop(0)
            idle.number = task[0]
            with suppress(OSError):  # it ended while idle: hearing from it finds out
                idle.channel.sendall(_line(task[1:]))

    def _fork(self) -> _Worker:
        ours, theirs = socket.socketpair()
        process = os.fork()
        if process == 0:
            for other in self._workers:  # or they would not see the keeper go
                other.channel.close()
            ours.close()
            os.close(self._results)
            _work(self._function, self._seconds, theirs)
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _hear(self, worker: _Worker) -> None:
        try:
            data = worker.channel.recv(1 << 16)
        except ConnectionError:
            data = b""
        worker.received += data
        for line in _whole_lines(worker.received):
            self._give_back(worker, json.loads(line))
        if not data:
            self._selector.unregister(worker.channel)
            worker.channel.close()
            os.kill(worker.process, signal.SIGKILL)  # it may have lost its channel only
            os.waitpid(worker.process, 0)
            self._workers.remove(worker)
            self._give_back(worker, None)

    def _give_back(self, worker: _Worker, result: Any) -> None:
        if worker.number is not None:
            os.write(self._results, _line([worker.number, result]))
        worker.number = None


def _work(function: Task, seconds: float, channel: socket.socket) -> None:
    """A worker's whole life. It never returns."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, without asking Python
    import resource  # not there on every system, as fork is not

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    try:
        for line in channel.makefile("rb"):
            task = json.loads(line)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                result = function(*task)
            except Exception:
                result = None
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            channel.sendall(_line(result))
    finally:
        os._exit(0)


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _whole_lines(received: bytearray) -> list[bytes]:
    """Take the lines out of ``received`` that have come in whole."""
    *lines, rest = bytes(received).split(b"\n")
    received[:] = rest
    return lines
