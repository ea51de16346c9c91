"""What shadow mode costs: at most 3% of the wall time of plain vLLM.

    python bench/vllm_overhead.py            # 4 to 6 minutes on two idle cores
    python bench/vllm_overhead.py --model DIR --rounds 11

Three ways to generate the same 32 × 64 tokens with SmolLM2-135M, taken in turn, every other round
backwards, so that whatever drifts hits all alike:

* plain: an engine made without the adapter's arguments, driven by vLLM's own calls;
* off: an engine that has the adapter, with no plan in force;
* shadow: the same engine with a plan in shadow mode: every rollout is scored by a real head,
  decided, recorded with its hidden state and fetched, and nobody is pruned.

Each rollout is decided after 16 of its 64 tokens, many times as often by the token as in training.
Prints medians over the rounds; exits with 1 if shadow's ratio to plain is above the bound.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import smollm2  # before vLLM

from arrol.records import FinishReason, Mode

BOUND = 1.03
SLOTS, GROUP_SIZE, TOKENS, DETECT = 32, 8, 64, 16

Generate = Callable[[], int]


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


def adapted(backend: Any, requests: Sequence[Any], mode: Mode) -> int:
    """Generate with the adapter; the number of tokens."""
    rollouts = backend.generate(requests)
    decided = 0 if mode is Mode.OFF else len(requests)
    assert sum(r.detection is not None and r.hidden is not None for r in rollouts) == decided
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

    def run_plain() -> int:
        bare.reset_prefix_cache()
        return plain(bare, requests)

    def run_adapted(mode: Mode) -> int:
        backend.llm.reset_prefix_cache()
        backend.load_plan(smollm2.make_plan(mode, DETECT))
        return adapted(backend, requests, mode)

    return {
        "plain": run_plain,
        "off": lambda: run_adapted(Mode.OFF),
        "shadow": lambda: run_adapted(Mode.SHADOW),
    }


def measure(arms: dict[str, Generate], rounds: int) -> dict[str, list[float]]:
    """Wall seconds of each way in each round, after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(-1, rounds):
        for name in list(arms)[:: -1 if number % 2 else 1]:
            gc.collect()
            start = time.perf_counter()
            tokens = arms[name]()
            if number >= 0:
                seconds[name].append(time.perf_counter() - start)
            assert tokens == SLOTS * TOKENS
    return seconds


def report(seconds: dict[str, list[float]]) -> bool:
    """Print the table; whether shadow mode meets its bound."""
    print(f"\n{'':>8}  median s   tokens/s   ratio to plain (median, range, of the fastest runs)")
    medians = {}
    for name, values in seconds.items():
        ratios = [value / other for value, other in zip(values, seconds["plain"], strict=True)]
        medians[name] = statistics.median(ratios)
        middle = statistics.median(values)
        fastest = min(values) / min(seconds["plain"])
        print(
            f"{name:>8}  {middle:8.3f}   {SLOTS * TOKENS / middle:8.0f}   {medians[name]:.4f}   "
            f"{smollm2.spread(ratios)}   {fastest:.4f}"
        )
    pairs = [s / o for s, o in zip(seconds["shadow"], seconds["off"], strict=True)]
    print(f"shadow to off: {statistics.median(pairs):.4f} ({smollm2.spread(pairs)})")
    met = medians["shadow"] <= BOUND
    print(
        f"{'ok  ' if met else 'FAIL'} shadow costs {medians['shadow'] - 1:+.1%} over plain vLLM "
        f"(at most {BOUND - 1:.0%})"
    )
    return met


def main() -> int:
    """Measure and report; the exit status."""
    parser = smollm2.parser(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=15, help="of the three ways (default: 15)")
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
