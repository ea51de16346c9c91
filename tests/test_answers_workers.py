"""Worker processes: what is lost, what goes on, and that nothing is left running."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from arrol.answer_workers import Workers
from arrol.errors import ArrolError

# ------------------------------------------------------------- what the workers below run


def double(value):
    return 2 * value


def act(what, value=None):
    """Do what a check must never do, on request."""
    if what == "exit":
        os._exit(3)
    if what == "quit":
        sys.exit(0)
    if what == "segfault":
        ctypes.string_at(0)
    if what == "raise":
        raise ValueError(value)
    if what == "sleep":
        time.sleep(1_000)
    if what == "compute":
        return len(str(9 ** (9**9)))  # one call of C code, which holds the interpreter's lock
    if what == "eat":
        return len(bytearray(1 << 40))
    if what == "print":
        print("[0, 1]", flush=True)
    if what == "kill keeper":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1_000)
    return os.getpid() if what == "pid" else value


HERE = f"{__name__}:"


@pytest.fixture
def workers():
    made = []

    def make(function, count=2, seconds=60.0):
        made.append(Workers(HERE + function, count, seconds))
        return made[-1]

    yield make
    for one in made:
        one.close()


def alive(process):
    """It runs: a process that ended but was not waited for does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(processes):
    while any(alive(process) for process in processes):
        time.sleep(0.02)
    return True


# ----------------------------------------------------------------------------- the tests


def test_every_task_gets_its_own_result(workers):
    assert dict(workers("double").run([[n] for n in range(500)])) == {n: 2 * n for n in range(500)}


def test_a_batch_after_a_batch(workers):
    pool = workers("double")
    for size in (0, 1, 7):
        assert sorted(pool.run([[n] for n in range(size)])) == [(n, 2 * n) for n in range(size)]


def test_long_and_odd_values_pass_through(workers):
    values = ["x" * 3_000_000, "a\nb\r\n\x00", "π \ud800 🦆", "", None, 1.5, ["[0, 1]\n"]]
    found = dict(workers("act").run([["echo", value] for value in values]))
    assert [found[n] for n in range(len(values))] == values


@pytest.mark.parametrize("what", ["exit", "quit", "segfault", "raise", "eat"])
def test_a_crash_costs_its_own_result_only(workers, what):
    tasks = [["echo", n] for n in range(40)]
    for place in (0, 1, 20, 39):
        tasks[place] = [what, place]
    found = dict(workers("act").run(tasks))
    assert found == {n: None if tasks[n][0] == what else n for n in range(40)}


@pytest.mark.parametrize("what", ["sleep", "compute"])
def test_a_hang_costs_its_own_result_only(workers, what):
    tasks = [["echo", n] for n in range(40)]
    tasks[3] = tasks[21] = [what]
    found = dict(workers("act", seconds=1.0).run(tasks))
    assert found == {n: None if n in (3, 21) else n for n in range(40)}


def test_what_a_task_prints_is_no_result(workers):
    found = dict(workers("act").run([["print", n] for n in range(10)]))
    assert found == {n: n for n in range(10)}


def test_the_number_of_workers_is_kept_to(workers):
    found = dict(workers("act", count=3).run([["pid"] for _ in range(60)]))
    assert 1 <= len(set(found.values())) <= 3
    assert os.getpid() not in found.values()


def test_a_killed_keeper_costs_what_was_on_its_way(workers):
    pool = workers("act", count=1)
    found = dict(pool.run([["kill keeper"], *[["echo", n] for n in range(1, 50)]]))
    assert found[0] is None
    assert found[49] == 49
    assert all(found[n] in (n, None) for n in range(1, 50))


def test_closing_ends_all_processes_even_busy_ones(workers):
    pool = workers("act")
    results = pool.run([["pid"], ["pid"], ["sleep"], ["sleep"]])
    seen = [next(results)[1], next(results)[1]]
    results.close()
    assert gone(seen)
    assert dict(pool.run([["echo", 5]])) == {0: 5}


def test_threads_may_use_them_and_end(workers):
    pool, found = workers("double"), []

    def batch():
        found.append(dict(pool.run([[n] for n in range(20)])))

    for _ in range(3):  # processes outlive the thread that started them
        thread = threading.Thread(target=batch)
        thread.start()
        thread.join()
    assert found == [{n: 2 * n for n in range(20)}] * 3


PARENT = """
import sys
sys.path[:] = {path!r}
from arrol.answer_workers import Workers
pool = Workers("{here}act", 2, 600.0)
results = pool.run([["pid"], ["pid"], {task}, {task}])
print(next(results)[1], next(results)[1], flush=True)
next(results)
"""


@pytest.mark.parametrize("task", [["sleep"], ["compute"]])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(task, number):
    program = PARENT.format(path=sys.path, here=HERE, task=task)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        seen = [int(word) for word in parent.stdout.readline().split()]
        assert all(alive(process) for process in seen)
        parent.send_signal(number)
    assert gone(seen)


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ArrolError, match="workers is 0; allowed is an integer of at least 1"):
        Workers(HERE + "double", 0, 1.0)
    with pytest.raises(ArrolError, match=r"seconds is 0\.0; allowed is a number above 0"):
        Workers(HERE + "double", 1, 0.0)


def test_a_function_that_is_not_there_is_no_lost_task(capfd):
    pool = Workers(HERE + "missing", 1, 1.0)
    with pytest.raises(RuntimeError, match="ended by itself, exit code 1"):
        list(pool.run([[1]]))
    assert "missing" in capfd.readouterr().err
