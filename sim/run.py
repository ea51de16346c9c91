"""Studies at work, on as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure as Canvas

from arrol.errors import ArrolError
from arrol.sim.results import Study
from arrol.sim.settings import SimSettings
from arrol.sim.studies import STUDIES
from arrol.sim.style import figure_png

Progress = Callable[[float], None]

#: Studies that share fitted set-ups: they run one after another in one process.
SHARING = ("phases", "keep-ratio", "wall-clock")
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Finished:
    """A study and its figures, drawn: what draws them can't travel between processes."""

    study: Study
    pngs: dict[str, bytes]


class Ended(BaseException):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_studies(
    names: Sequence[str], settings: SimSettings, jobs: int, progress: Progress
) -> Iterator[Finished]:
    """Run studies and yield them in the order of ``names``, each as soon as its turn comes.

    Args:
        names: of :data:`arrol.sim.studies.STUDIES`.
        settings: what they simulate.
        jobs: processes; with 1 everything runs in this one.
        progress: is told the share of all work that is done.
    """
    chains = _chains(names)
    if min(jobs, len(chains)) <= 1:
        done = [0.0] * len(names)
        for place, name in enumerate(names):
            yield _run(name, settings, _reporter(done, place, progress))
        return
    shares: Any = multiprocessing.Array("d", len(names))
    workers = _pool(min(jobs, len(chains)), (shares, tuple(names)))
    with _ended_by_signals(), workers as pool:
        futures: dict[str, Future[dict[str, Finished]]] = {}
        for chain in chains:
            futures |= dict.fromkeys(chain, pool.submit(_run_chain, chain, settings))
        for name in names:
            while not wait([futures[name]], timeout=POLL_SECONDS).done:
                progress(sum(shares) / len(names))
            yield futures[name].result()[name]


def _chains(names: Sequence[str]) -> list[list[str]]:
    """What runs in one process each, in order of their first studies."""
    chains: dict[str, list[str]] = {}
    for name in names:
        chains.setdefault(SHARING[0] if name in SHARING else name, []).append(name)
    return list(chains.values())


@contextmanager
def _pool(jobs: int, arguments: tuple[Any, ...]) -> Iterator[ProcessPoolExecutor]:
    """Worker processes; whatever ends this one early ends them at once."""
    pool = ProcessPoolExecutor(jobs, initializer=_start_worker, initargs=arguments)
    try:
        yield pool
    except BrokenProcessPool:
        raise ArrolError(
            f"--jobs is {jobs}, and a process was killed, perhaps for want of memory; "
            "allowed are fewer."
        ) from None
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _reporter(shares: Any, place: int, progress: Progress | None = None) -> Progress:
    """What a study calls: it notes its share, and passes on the share of all work."""

    def report(share: float) -> None:
        shares[place] = share
        if progress is not None:
            progress(sum(shares) / len(shares))

    return report


_shares: Any = None  # in a worker: the share of each study that is done, read by the parent
_names: tuple[str, ...] = ()


def _start_worker(shares: Any, names: tuple[str, ...]) -> None:
    global _shares, _names
    _shares, _names = shares, names
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this worker when its parent is gone, killed without a chance to end it."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind this process as Ctrl-C does, with their own exit codes."""

    def end(number: int, frame: object) -> None:
        raise Ended(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    try:
        before = {number: signal.signal(number, end) for number in numbers}
    except ValueError:  # not in the main thread: whoever runs it there handles signals
        yield
        return
    try:
        yield
    except Ended as ended:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.kill(os.getpid(), ended.number)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_chain(chain: list[str], settings: SimSettings) -> dict[str, Finished]:
    return {name: _run(name, settings, _reporter(_shares, _names.index(name))) for name in chain}


def _run(name: str, settings: SimSettings, progress: Progress) -> Finished:
    study = dict(STUDIES)[name](settings, progress)
    progress(1.0)
    pngs = {figure.name: figure_png(figure) for figure in study.figures}
    figures = tuple(replace(figure, draw=_drawn) for figure in study.figures)
    return Finished(replace(study, figures=figures), pngs)


def _drawn(canvas: Canvas) -> None:
    """Stands in for what drew a figure whose PNG is there already."""
