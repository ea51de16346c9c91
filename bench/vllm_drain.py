"""Draining 8,192 records with hidden states of 2,048: under 1 s, and under 200 MB at the engine.

    python bench/vllm_drain.py               # 1 minute

A batch's records, 64 to a step as they arise, are decided by a real quality head, kept with their
hidden states in float16 (33.6 MB), and fetched all at once: taken, packed as text, unpacked.

* here: all of it in this process, no transport; memory as Python and NumPy count it;
* engine: by collective_rpc out of a real vLLM engine process, which runs a tiny model and whose
  records come from the same code; memory is the growth of that process's resident set, and its
  peak is Linux's. So the copies that the transport makes count too.

Memory is what the engine holds at rest, and at the peak of a drain, which the bound is on. Times
are medians of 5. Exits with 1 if a bound is missed.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"

import smollm2  # before vLLM
import torch

from arrol.adapters.vllm import Pruner
from arrol.adapters.vllm.pruner import pack, unpack
from arrol.adapters.vllm.worker import PruningWorkerExtension
from arrol.head import QualityHead
from arrol.records import Mode, Request

RECORDS, HIDDEN, ROWS, GROUP_SIZE = 8192, 2048, 64, 16
REPEATS, BOUND_S, BOUND_MB = 5, 1.0, 200.0

# The engine process finds the extension below.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])


def prepare(pruner: Pruner) -> None:
    """A plan and a head of the hidden size."""
    head = QualityHead(HIDDEN)
    head.version = 1
    pruner.load_head(head)
    pruner.load_plan(smollm2.make_plan(Mode.ON, 512))


def fill(pruner: Pruner, seed: int) -> None:
    """Decide RECORDS rollouts, ROWS in a step."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, RECORDS, ROWS):
        requests = [
            Request(seed * RECORDS + i, i // GROUP_SIZE, i % GROUP_SIZE, GROUP_SIZE)
            for i in range(start, start + ROWS)
        ]
        pruner.decide(requests, torch.randn(ROWS, HIDDEN, generator=generator).bfloat16())


def memory(name: str) -> float:
    """This process's VmRSS or VmHWM, the peak since it was last cleared [MB]."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


class FillingExtension(PruningWorkerExtension):
    """The adapter's extension in an engine whose model is never run."""

    def bench_prepare(self) -> dict[str, float]:
        """Plan and head."""
        prepare(self._arrol_pruner())
        return {"resident": memory("VmRSS")}

    def bench_fill(self, seed: str) -> dict[str, float]:
        """A batch's records; the peak counts from here on."""
        fill(self._arrol_pruner(), int(seed))
        Path("/proc/self/clear_refs").write_text("5")
        return {"resident": memory("VmRSS")}

    def bench_peak(self) -> dict[str, float]:
        """The largest resident set since."""
        return {"peak": memory("VmHWM")}


def check(records: list[Any]) -> None:
    """All records came, with their hidden states."""
    assert len({record.detection.key for record in records}) == RECORDS
    assert all(r.hidden is not None and r.hidden.shape == (HIDDEN,) for r in records)


def drain_here() -> tuple[list[float], float, float]:
    """Seconds of each drain, and MB held and at the peak."""
    pruner = Pruner()
    prepare(pruner)
    seconds = []
    for seed in range(REPEATS):
        fill(pruner, seed)
        start = time.perf_counter()
        records = unpack(pack(pruner.take()))
        seconds.append(time.perf_counter() - start)
        check(records)
    del records
    prepare(pruner)
    tracemalloc.start()
    fill(pruner, REPEATS)
    held = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.reset_peak()
    pack(pruner.take())
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return seconds, held, peak


def make_engine(folder: Path) -> Any:
    """An engine process on a tiny model, with the extension above."""
    from vllm import LLM
    from vllm_models import save_random_qwen3

    from arrol.adapters.vllm import engine_arguments

    given = engine_arguments(
        max_model_len=64, max_num_seqs=4, enforce_eager=True, kv_cache_memory_bytes=2**24, seed=0,
        dtype="float32",
    )  # fmt: skip
    given["worker_extension_cls"] = "vllm_drain.FillingExtension"
    return LLM(model=str(save_random_qwen3(folder)), **given)


def drain_engine(llm: Any) -> tuple[list[float], float, float]:
    """Seconds of each drain by the adapter's own call, and the largest MB held and at the peak."""

    def call(method: str, *arguments: str) -> Any:
        return llm.collective_rpc(method, args=arguments)[0]

    empty = call("bench_prepare")["resident"]
    seconds, held, peaks = [], [], []
    for seed in range(REPEATS):
        filled = call("bench_fill", str(seed))
        start = time.perf_counter()
        records = unpack(call("arrol_take", ""))
        seconds.append(time.perf_counter() - start)
        check(records)
        del records
        held.append(filled["resident"] - empty)
        peaks.append(call("bench_peak")["peak"] - empty)
    return seconds, max(held), max(peaks)


def report(name: str, seconds: list[float], held: float, peak: float) -> bool:
    """Print one line; whether its bounds are met."""
    middle = statistics.median(seconds)
    met = middle <= BOUND_S and peak <= BOUND_MB
    print(
        f"{'ok  ' if met else 'FAIL'} {name:>6}: drain {middle:.3f} s ({smollm2.spread(seconds)}; "
        f"≤ {BOUND_S:g} s), holds {held:.1f} MB, {peak:.1f} MB at the peak (≤ {BOUND_MB:g} MB)",
        flush=True,
    )
    return met


def main() -> int:
    """Measure and report; the exit status."""
    print(smollm2.machine())
    print(
        f"{RECORDS:,} records with {HIDDEN:,} hidden values, decided {ROWS} in a step", flush=True
    )
    met = report("here", *drain_here())
    with tempfile.TemporaryDirectory() as folder:
        met &= report("engine", *drain_engine(make_engine(Path(folder))))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
