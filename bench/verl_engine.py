"""Decode steps of a vLLM server as verl runs it on the demo's CPU, timed: one JSON line.

bench/verl_step.py starts it as a process of its own. The engine has its core in another process,
as verl's server has, so what the frontend does for a step's outputs goes on beside the next step.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

PROMPT_TOKENS = 10
SHORT, ROUNDS = 8, 3


def engine_arguments(model: str, slots: int, longest: int, batched: int) -> dict[str, Any]:
    """Those that verl gives its engine with the settings of the bench."""
    return {
        "model": model, "dtype": "float32", "max_model_len": longest, "max_num_seqs": slots,
        "max_num_batched_tokens": batched, "enforce_eager": True, "seed": 0,
        "enable_chunked_prefill": False, "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.1, "distributed_executor_backend": "uni",
        "logprobs_mode": "processed_logprobs",
    }  # fmt: skip


async def batch_seconds(engine: Any, count: int, tokens: int) -> float:
    """Wall time of so many rollouts of so many tokens, all at once."""
    from vllm import SamplingParams

    async def one(number: int) -> None:
        params = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, logprobs=0)
        prompt = {"prompt_token_ids": [10 + (number + i) % 90 for i in range(PROMPT_TOKENS)]}
        async for _ in engine.generate(prompt, params, f"{time.perf_counter_ns()}-{number}"):
            pass

    start = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(count)))
    return time.perf_counter() - start


async def measure(arguments: dict[str, Any]) -> list[tuple[int, float, float]]:
    """(n, K, seconds) of a decode step, by batch size and mean context; medians over rounds."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    longest = arguments["max_model_len"] - PROMPT_TOKENS
    slots = arguments["max_num_seqs"]
    batches = sorted({n for n in (1, 4, 8, 16, 32, 48) if n < slots} | {slots})
    marks = (SHORT, SHORT + (longest - SHORT) // 2, longest)
    found: defaultdict[tuple[int, float], list[float]] = defaultdict(list)
    await batch_seconds(engine, slots, SHORT)
    for _ in range(ROUNDS):
        for n in batches:
            walls = [await batch_seconds(engine, n, tokens) for tokens in marks]
            for low, high, wall, next_wall in zip(marks, marks[1:], walls, walls[1:], strict=False):
                context = n * (PROMPT_TOKENS + (low + high) / 2)
                found[n, context].append((next_wall - wall) / (high - low))
    engine.shutdown()
    return [(n, context, median(seconds)) for (n, context), seconds in found.items()]


def main() -> None:
    """Arguments: the demo's folder, the model's, slots, tokens of a sequence and of a step."""
    folder, model, *sizes = sys.argv[1:]
    from arrol.adapters.verl.demo.processes import set_environment

    set_environment(Path(folder))
    print(json.dumps(asyncio.run(measure(engine_arguments(model, *map(int, sizes))))))


if __name__ == "__main__":
    main()
