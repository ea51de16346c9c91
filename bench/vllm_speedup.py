"""What pruning saves of the wall time, and whether the simulator knows: within 15%.

    python bench/vllm_speedup.py             # 10 to 15 minutes on two idle cores
    python bench/vllm_speedup.py --model DIR --groups 16 --slots 32 --mean 128 --pairs 5

Groups of 8 rollouts of SmolLM2-135M, whose lengths are drawn from a lognormal distribution (σ = .7
before they are cut to 8 … 3 × mean), are generated in shadow mode and with half of them pruned at a
quarter of the mean length. There are four times as many rollouts as slots. Modes alternate, every
other pair backwards.

The simulator gets the engine's own step times, measured on a grid of batch sizes and contexts in a
pass before each pair, and the same requests, plan, keys and scores; it must prune the very same
rollouts. It predicts both modes, so the ratio of their wall times. Prints measured against fitted
step times and measured against predicted walls; exits with 1 if the ratios differ by more than the
bound, or if the simulator prunes other rollouts than the engine.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import smollm2  # before vLLM
from vllm_steps import Grid, Step, StepLog

from arrol.plan import PruningPlan
from arrol.records import Mode, Rollout
from arrol.sim.cost import StepTime
from arrol.sim.engine import EngineLimits, EngineRun, SimulatedRequest, simulate
from arrol.sim.fit import StepMeasurement, fit_step_time

BOUND = 0.15
GROUP_SIZE, SIGMA, SHORTEST, SPAN = 8, 0.7, 8, 3
MODES = (Mode.SHADOW, Mode.ON)


@dataclass(frozen=True)
class Run:
    """One measured batch."""

    seconds: float
    rollouts: list[Any]
    steps: list[tuple[Step, float]]

    @property
    def tokens(self) -> int:
        """Sampled, sentinels included."""
        return sum(r.tokens + (not r.survived) for r in self.rollouts)


def draw_lengths(count: int, mean: int) -> np.ndarray:
    """Lognormal lengths [tokens] of about this mean."""
    rng = np.random.default_rng(5)
    lengths = rng.lognormal(np.log(mean) - SIGMA**2 / 2, SIGMA, count)
    return np.clip(lengths.round(), SHORTEST, SPAN * mean).astype(int)


def make_requests(tokenizer: Any, groups: int, lengths: np.ndarray) -> list[Any]:
    """Rollouts of exactly such lengths."""
    from vllm import SamplingParams

    from arrol.adapters.vllm import group_requests

    prompts = smollm2.make_prompts(tokenizer, groups)
    requests = group_requests(prompts, GROUP_SIZE, None)
    return [
        replace(
            request,
            sampling=SamplingParams(temperature=1.0, max_tokens=int(length), ignore_eos=True),
        )
        for request, length in zip(requests, lengths, strict=True)
    ]


def run(backend: Any, log: StepLog, requests: Sequence[Any], plan: PruningPlan) -> Run:
    """One batch of the real engine."""
    backend.llm.reset_prefix_cache()
    backend.load_plan(plan)
    gc.collect()
    log.take()
    start = time.perf_counter()
    rollouts = backend.generate(requests)
    seconds = time.perf_counter() - start
    return Run(seconds, rollouts, log.take())


def measure(
    backend: Any,
    grid: Grid,
    requests: Sequence[Any],
    plans: dict[Mode, PruningPlan],
    pairs: int,
) -> dict[Mode, list[Run]]:
    """Both modes in turn, and a pass over the grid before each pair."""
    runs: dict[Mode, list[Run]] = {mode: [] for mode in MODES}
    for pair in range(pairs):
        backend.load_plan(plans[Mode.SHADOW])
        start = time.perf_counter()
        grid.measure()
        seconds = time.perf_counter() - start
        for mode in MODES[:: -1 if pair % 2 else 1]:
            runs[mode].append(run(backend, grid.log, requests, plans[mode]))
        print(
            f"pair {pair + 1}: step times {seconds:.0f} s, shadow "
            f"{runs[Mode.SHADOW][-1].seconds:.2f} s, on {runs[Mode.ON][-1].seconds:.2f} s",
            flush=True,
        )
    return runs


def play(
    requests: Sequence[Any], measured: Run, limits: EngineLimits, cost: StepTime, plan: PruningPlan
) -> EngineRun:
    """The same batch in the simulator, with the scores that the engine saw."""
    scores = {
        r.key: r.detection.score for r in measured.rollouts if r.detection is not None
    }  # one that was not decided needs none
    again = [
        SimulatedRequest(
            q.key, q.group, q.index, q.group_size, len(q.prompt), q.sampling.max_tokens,
            scores.get(q.key, float("nan")),
        )
        for q in requests
    ]  # fmt: skip
    return simulate(again, limits, cost, plan)


def fates(rollouts: Sequence[Rollout]) -> set[tuple[int, int, bool]]:
    """Who got how far, and who survived."""
    return {(r.key, r.tokens, r.survived) for r in rollouts}


def report_steps(points: Sequence[StepMeasurement], cost: StepTime) -> None:
    """Print measured and fitted step times."""
    print("\nstep times [ms]: measured (median), fitted, fitted/measured; tokens/s measured")
    for p in points:
        fitted = cost.step(p.sequences, p.kv_tokens, p.prefill_tokens)
        print(
            f"  n = {p.sequences:2.0f}, K = {p.kv_tokens:6.0f}, prefill {p.prefill_tokens:3.0f}: "
            f"{p.seconds * 1e3:7.2f}  {fitted * 1e3:7.2f}  {fitted / p.seconds:5.3f}  "
            f"{'' if p.prefill_tokens else f'{p.sequences / p.seconds:6.0f}'}"
        )
    errors = [abs(cost.step(p.sequences, p.kv_tokens, p.prefill_tokens) / p.seconds - 1)
              for p in points]  # fmt: skip
    print(
        f"  fit: mean error {statistics.mean(errors):.1%}, worst {max(errors):.1%}; "
        f"[ms] {cost.fixed * 1e3:.2f} + {cost.per_sequence * 1e3:.3f}·n + "
        f"({cost.streaming * 1e3:.2f}^r + ({cost.arithmetic * 1e3:.3f}·tokens)^r)^(1/r) + "
        f"{cost.kv_read * 1e3:.5f}·K, r = {cost.knee:.2f}"
    )


def report_mode(mode: Mode, runs: Sequence[Run], simulated: EngineRun) -> None:
    """Print one mode's figures, measured and simulated."""
    seconds = [run.seconds for run in runs]
    steps = runs[0].steps
    decoders = statistics.mean(step.decoders for step, _ in steps)
    prefill = sum(step.prefill_tokens for step, _ in steps)
    print(
        f"{mode.value:>7}: wall {statistics.median(seconds):.2f} s ({smollm2.spread(seconds)}), "
        f"predicted {simulated.seconds:.2f} s\n"
        f"         measured  {runs[0].tokens:,} tokens, {len(steps):,} steps of "
        f"{decoders:.1f} decoders on average, {prefill:,} prefill tokens\n"
        f"         simulated {simulated.sampled_tokens:,} tokens, {simulated.steps:,} steps of "
        f"{simulated.decode_tokens / simulated.steps:.1f}, {simulated.prefill_tokens:,}"
    )


def report(runs: dict[Mode, list[Run]], simulated: dict[Mode, EngineRun]) -> bool:
    """Print the comparison; whether the prediction is within its bound."""
    for mode in MODES:
        report_mode(mode, runs[mode], simulated[mode])
    pairs = [
        on.seconds / shadow.seconds
        for on, shadow in zip(runs[Mode.ON], runs[Mode.SHADOW], strict=True)
    ]
    measured = statistics.median(pairs)
    predicted = simulated[Mode.ON].seconds / simulated[Mode.SHADOW].seconds
    tokens = runs[Mode.ON][0].tokens / runs[Mode.SHADOW][0].tokens
    same = {
        mode: all(fates(run.rollouts) == fates(simulated[mode].rollouts) for run in runs[mode])
        for mode in MODES
    }
    pruned = sum(not r.survived for r in runs[Mode.ON][0].rollouts)
    print(
        f"{pruned} of {len(runs[Mode.ON][0].rollouts)} rollouts pruned; the simulator "
        f"{'prunes the same' if all(same.values()) else 'DIFFERS'}\n"
        f"on/shadow: tokens {tokens:.3f}, wall measured {measured:.3f} "
        f"({smollm2.spread(pairs)}), predicted {predicted:.3f}"
    )
    difference = measured / predicted - 1
    met = abs(difference) <= BOUND and all(same.values())
    print(
        f"{'ok  ' if met else 'FAIL'} the measured ratio is {difference:+.1%} off the predicted "
        f"(at most {BOUND:.0%})"
    )
    return met


def explain(runs: dict[Mode, list[Run]], points: Sequence[StepMeasurement]) -> None:
    """Print how tokens turned into time: fewer steps, cheaper steps, or neither."""
    shadow_steps, on_steps = (len(runs[mode][0].steps) for mode in MODES)
    shadow, on = (statistics.median(run.seconds for run in runs[mode]) for mode in MODES)
    most = max(p.sequences for p in points)
    many, one = (
        statistics.median(p.seconds for p in points if p.sequences == n and not p.prefill_tokens)
        for n in (most, 1)
    )
    print(
        f"Why: on takes {on_steps / shadow_steps:.3f} of shadow's steps, and one of them "
        f"{on / on_steps / (shadow / shadow_steps):.3f} of the time of one of shadow's. A decode "
        f"step with {most:.0f} sequences takes {many / one:.2f} times as long as with "
        "one: the closer to 1, the more is left to freed slots that waiting rollouts fill."
    )


def main() -> int:
    """Measure, predict and report; the exit status."""
    parser = smollm2.parser(__doc__ or "")
    parser.add_argument("--groups", type=int, default=16, help=f"of {GROUP_SIZE} (default: 16)")
    parser.add_argument("--slots", type=int, default=32, help="sequences at once (default: 32)")
    parser.add_argument("--mean", type=int, default=128, help="tokens of a rollout (default: 128)")
    parser.add_argument("--pairs", type=int, default=5, help="of runs (default: 5)")
    options = parser.parse_args()
    print(smollm2.machine())
    from arrol.adapters.vllm import PruningLLM

    longest = smollm2.PROMPT_TOKENS + SPAN * options.mean + 32
    folder = smollm2.model_folder(options.model)
    backend = PruningLLM(smollm2.make_engine(folder, options.slots, longest))
    backend.load_head(smollm2.make_head())

    lengths = draw_lengths(options.groups * GROUP_SIZE, options.mean)
    requests = make_requests(backend.llm.get_tokenizer(), options.groups, lengths)
    detect_length = round(lengths.mean() / 4)
    plans = {mode: smollm2.make_plan(mode, detect_length) for mode in MODES}
    config = backend.llm.llm_engine.vllm_config
    limits = EngineLimits(
        options.slots,
        config.scheduler_config.max_num_batched_tokens,
        kv_tokens=config.cache_config.num_gpu_blocks * config.cache_config.block_size,
    )
    print(
        f"SmolLM2-135M, bfloat16: {len(requests)} rollouts of {lengths.min()} to {lengths.max()} "
        f"tokens (mean {lengths.mean():.1f}), {options.slots} slots, prompts of "
        f"{smollm2.PROMPT_TOKENS}, κ = .5 at L_detect = {detect_length}; KV blocks of "
        f"{config.cache_config.block_size}, asynchronous scheduling "
        f"{config.scheduler_config.async_scheduling}", flush=True
    )  # fmt: skip
    contexts = [smollm2.PROMPT_TOKENS + part * options.mean for part in (0, 1, SPAN - 1)]
    grid = Grid(backend, StepLog(backend.llm), contexts)
    runs = measure(backend, grid, requests, plans, options.pairs)
    points = grid.points()
    cost = fit_step_time(points)
    report_steps(points, cost)
    simulated = {mode: play(requests, runs[mode][0], limits, cost, plans[mode]) for mode in MODES}
    print()
    met = report(runs, simulated)
    explain(runs, points)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
