"""What shadow mode costs: at most 3% of the wall time of plain vLLM.

    python bench/vllm_overhead.py            # 5 to 7 minutes on two idle cores
    python bench/vllm_overhead.py --model DIR --rounds 11

Three ways to generate the same 32 × 64 tokens with SmolLM2-135M, taken in turn, every other round
backwards, so that whatever drifts hits all alike:

* plain: an engine made without the adapter's arguments, driven by vLLM's own calls;
* loaded: an engine that has the adapter's processor and no plan, driven by vLLM's own calls;
* shadow: that engine driven by the adapter with a plan in shadow mode: every rollout is scored by
  a real head, decided, recorded with its hidden state and fetched, and nobody is pruned.

Each rollout is decided after 16 of its 64 tokens, many times as often by the token as in training.
Ratios are medians over the rounds, with the 95% interval of the median (by ranks). Exits with 1 if
the median ratio of shadow to plain or to loaded is above the bound. Two identical ways differ by
what the interval says, so an interval wider than the bound decides nothing: wait for an idle
machine, or take more rounds.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import smollm2  # before vLLM
from scipy.stats import binom

from arrol.records import FinishReason, Mode

BOUND = 0.03
SLOTS, GROUP_SIZE, TOKENS, DETECT = 32, 8, 64, 16

Generate = Callable[[], int]
Seconds = dict[str, list[tuple[float, float]]]  # (wall, CPU of all threads)


def plain(llm: Any, requests: Sequence[Any]) -> int:
    """Generate with vLLM alone; the number of tokens."""
    engine = llm.llm_engine
    for number, request in enumerate(requests):
        prompt = {"prompt_token_ids": list(request.prompt)}
        engine.add_request(str(number), prompt, request.sampling.clone())
    tokens = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens += len(output.outputs[0].token_ids) if output.finished else 0
    return tokens


def shadow(backend: Any, requests: Sequence[Any]) -> int:
    """Generate with the adapter in shadow mode; the number of tokens."""
    backend.load_plan(smollm2.make_plan(Mode.SHADOW, DETECT))
    rollouts = backend.generate(requests)
    backend.load_plan(None)
    assert all(r.detection is not None and r.hidden is not None for r in rollouts)
    assert all(r.finish_reason is FinishReason.LENGTH for r in rollouts)
    return sum(rollout.tokens for rollout in rollouts)


def make_arms(folder: Any) -> dict[str, Generate]:
    """The three ways; each is one call."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from arrol.adapters.vllm import PruningLLM, group_requests

    longest = smollm2.PROMPT_TOKENS + TOKENS + 1
    bare = smollm2.make_engine(folder, SLOTS, longest, prunes=False)
    backend = PruningLLM(smollm2.make_engine(folder, SLOTS, longest), keep_hidden=True)
    backend.load_head(smollm2.make_head())
    sampling = SamplingParams(
        temperature=1.0, max_tokens=TOKENS, ignore_eos=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip
    prompts = smollm2.make_prompts(bare.get_tokenizer(), SLOTS // GROUP_SIZE)
    requests = group_requests(prompts, GROUP_SIZE, sampling)

    def fresh(llm: Any, way: Callable[[Any, Any], int], owner: Any) -> Generate:
        def generate() -> int:
            llm.reset_prefix_cache()
            return way(owner, requests)

        return generate

    return {
        "plain": fresh(bare, plain, bare),
        "loaded": fresh(backend.llm, plain, backend.llm),
        "shadow": fresh(backend.llm, shadow, backend),
    }


def measure(arms: dict[str, Generate], rounds: int) -> Seconds:
    """Wall and CPU seconds of each way in each round, after one that does not count."""
    seconds: Seconds = {name: [] for name in arms}
    for number in range(-1, rounds):
        for name in list(arms)[:: -1 if number % 2 else 1]:
            gc.collect()
            wall, cpu = time.perf_counter(), time.process_time()
            tokens = arms[name]()
            taken = time.perf_counter() - wall, time.process_time() - cpu
            assert tokens == SLOTS * TOKENS
            if number >= 0:
                seconds[name].append(taken)
    return seconds


def ratios(seconds: Seconds, name: str, other: str, clock: int = 0) -> list[float]:
    """Round by round; clock 0 is wall, 1 is CPU."""
    return [a[clock] / b[clock] for a, b in zip(seconds[name], seconds[other], strict=True)]


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Two of the values that hold the true median with at least 95% (from 6 values on)."""
    cut = max(int(binom.ppf(0.025, len(values), 0.5)), 1)
    return sorted(values)[cut - 1], sorted(values)[-cut]


def report(seconds: Seconds) -> bool:
    """Print the tables; whether shadow mode meets its bound."""
    print("\n         median s   tokens/s   CPU s")
    for name, values in seconds.items():
        wall, cpu = (statistics.median(pair[clock] for pair in values) for clock in (0, 1))
        print(f"{name:>7}  {wall:8.3f}   {SLOTS * TOKENS / wall:8.0f}   {cpu:.3f}")
    print("\n                  wall: median (95% of the median; range)                CPU: median")
    met = True
    for name, other in (("loaded", "plain"), ("shadow", "plain"), ("shadow", "loaded")):
        walls, cpus = (ratios(seconds, name, other, clock) for clock in (0, 1))
        median, (low, high) = statistics.median(walls), median_interval(walls)
        line = (
            f"{name} to {other:>6}: {median:.4f} ({low:.4f} … {high:.4f}; "
            f"{smollm2.spread(walls)})   {statistics.median(cpus):.4f}"
        )
        if name == "shadow":
            met &= median <= 1 + BOUND
            line += f"   {'ok' if median <= 1 + BOUND else 'FAIL'}: at most {1 + BOUND:g}"
        print(line)
    return met


def main() -> int:
    """Measure and report; the exit status."""
    parser = smollm2.parser(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=21, help="of the three ways (default: 21)")
    options = parser.parse_args()
    print(smollm2.machine())
    arms = make_arms(smollm2.model_folder(options.model))
    print(
        f"SmolLM2-135M, bfloat16: {SLOTS} rollouts × {TOKENS} tokens, prompts of "
        f"{smollm2.PROMPT_TOKENS}, decided after {DETECT}; {options.rounds} rounds", flush=True
    )  # fmt: skip
    return 0 if report(measure(arms, options.rounds)) else 1


if __name__ == "__main__":
    sys.exit(main())
