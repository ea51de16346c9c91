"""What must hold of the timed engine, on fixed set-ups whatever the flags say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from arrol.records import FinishReason
from arrol.sim.cells import step_time_text
from arrol.sim.cost import StepTime
from arrol.sim.engine import EngineRun, Slice, simulate
from arrol.sim.intervals import mean_and_half_width
from arrol.sim.results import Check, Study, Table
from arrol.sim.settings import SimSettings
from arrol.sim.studies.runs import (
    Batch,
    Played,
    Progress,
    batches,
    bounds,
    kept_share,
    play,
    seeds_text,
    settle,
)

CENTRE = SimSettings(seeds=3)
SMALL = SimSettings(prompts=4, group_size=8, mean_length=200, max_length=800, detect_length=64)
KEEP_RATIOS = (0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
SETUPS = {
    "64 prompts": CENTRE,
    "8 prompts, 64 slots": CENTRE.replace(prompts=8, max_num_seqs=64),
    "wide spread": CENTRE.replace(length_spread=1.0),
    "KV cache of 60,000": CENTRE.replace(kv_tokens=60_000, max_num_seqs=1024),
}
KEEP_TOLERANCE = 0.01
ROUNDING = 1e-9  #: relative; what sums in another order may differ by

NO_COST = StepTime(0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)


@dataclass(frozen=True)
class Pair:
    """One batch, generated without and with pruning."""

    batch: Batch
    off: Played
    on: Played

    @property
    def speedup(self) -> float:
        """Of the generation."""
        return self.off.seconds / self.on.seconds

    @property
    def token_ratio(self) -> float:
        """Sampled tokens, off over on."""
        return self.off.run.sampled_tokens / self.on.run.sampled_tokens


Pairs = list[Pair]


def study(settings: SimSettings, progress: Progress) -> Study:
    """Checks and the tables behind them; ``settings`` plays no part."""
    by_ratio: dict[float, Pairs] = {}
    for place, ratio in enumerate(KEEP_RATIOS, start=1):
        by_ratio[ratio] = pairs_of(CENTRE.replace(keep_ratio=ratio))
        progress(0.5 * place / len(KEEP_RATIOS))
    by_setup = {name: pairs_of(setup) for name, setup in SETUPS.items()}
    progress(0.9)
    everything = [pair for pairs in (*by_ratio.values(), *by_setup.values()) for pair in pairs]
    checks = (
        _keep_check(by_ratio),
        _jump_check(),
        _conservation_check(everything),
        _work_check(SETUPS["KV cache of 60,000"]),
        _bound_check(everything),
        _monotone_check(by_ratio),
    )
    progress(1.0)
    return Study(
        name="engine",
        title="Checks of the timed engine",
        text=(
            f"{step_time_text(CENTRE.cost())}\n\nSo time is a sum of four kinds of work, each "
            "times a cost: steps, decode steps of sequences, matrix products (Σ of the "
            "roofline, a kind of its own as its knee makes it neither steps nor tokens) and KV "
            "reads. Hence time off / time on lies between the least and the greatest of the four "
            "ratios of work, whatever the costs of steps, sequences and KV reads are. That is a "
            "theorem, and it needs all four: the ratio of tokens alone is no bound, as the table "
            "shows, nor is the greater one of tokens and KV reads, since steps fall by more than "
            "either where one long rollout among many is pruned."
        ),
        tables=(_keep_table(by_ratio), _work_table(by_setup)),
        checks=checks,
    )


def pairs_of(settings: SimSettings) -> Pairs:
    """One pair for each seed; the plan comes from a settled loop."""
    plan = settle(settings).plan
    return [
        Pair(batch, play(settings, batch), play(settings, batch, plan))
        for batch in batches(settings)
    ]


def surplus_tokens(batch: Batch, run: EngineRun) -> int:
    """Sampled tokens that no rollout accounts for: tokens kept and one sentinel a pruned one."""
    pruned = sum(rollout.finish_reason is FinishReason.PRUNED for rollout in run.rollouts)
    accounted = sum(rollout.tokens for rollout in run.rollouts) + pruned
    return run.sampled_tokens - accounted


def lost_rollouts(batch: Batch, run: EngineRun) -> int:
    """Keys that did not come back, and returns too many."""
    submitted = Counter(request.key for request in batch.requests)
    returned = Counter(rollout.key for rollout in run.rollouts)
    return (submitted - returned).total() + (returned - submitted).total()


def jump_difference(settings: SimSettings) -> float:
    """Largest relative difference of an end's time, jumping or step by step; ∞ if ends differ."""
    plan, (batch,) = settle(settings).plan, batches(settings, 1)
    cost, limits = settings.cost(), settings.limits()
    jumping, stepping = (
        simulate(batch.requests, limits, cost, plan, max_jump=jump) for jump in (None, 1)
    )
    if jumping.rollouts != stepping.rollouts:
        return float("inf")
    times = stepping.finish_seconds_N
    return float(np.max(np.abs(jumping.finish_seconds_N - times) / times))


def work_difference(settings: SimSettings) -> float:
    """Largest relative difference of a kind of work, counted or bought at a price of one.

    An engine's schedule does not depend on what steps cost. So a run whose only cost is KV reads,
    at one second each, takes as many seconds as there are reads; and so on.
    """
    (batch,) = batches(settings, 1)
    cost, work = settings.cost(), play(settings, batch).work
    prices = (
        (work.steps, replace(NO_COST, fixed=1.0)),
        (work.decode_steps, replace(NO_COST, per_sequence=1.0)),
        (work.kv_reads, replace(NO_COST, kv_read=1.0)),
        (
            work.matrix_seconds,
            replace(NO_COST, streaming=cost.streaming, arithmetic=cost.arithmetic, knee=cost.knee),
        ),
    )
    trace: list[Slice] = []
    bought = [
        simulate(batch.requests, settings.limits(), price, trace=trace).seconds
        for _, price in prices
    ]
    return max(
        abs(seconds / counted - 1.0) for seconds, (counted, _) in zip(bought, prices, strict=True)
    )


def _keep_check(by_ratio: dict[float, Pairs]) -> Check:
    error = max(abs(_mean_kept(by_ratio[ratio]) - ratio) for ratio in KEEP_RATIOS)
    name = f"engine: preset balanced keeps κ, largest error for κ up to {KEEP_RATIOS[-1]}"
    return Check(name, error, f"≤ {KEEP_TOLERANCE}", error <= KEEP_TOLERANCE)


def _mean_kept(pairs: Pairs) -> float:
    return float(np.mean([kept_share(pair.on.run) for pair in pairs]))


def _jump_check() -> Check:
    difference = max(
        jump_difference(SMALL), jump_difference(SMALL.replace(kv_tokens=2_000, max_num_seqs=8))
    )
    name = "engine: jumps against single steps, relative difference of end times"
    return Check(name, difference, f"≤ {ROUNDING:g}", difference <= ROUNDING)


def _conservation_check(everything: Sequence[Pair]) -> Check:
    runs = [(pair.batch, played.run) for pair in everything for played in (pair.off, pair.on)]
    wrong = sum(abs(surplus_tokens(batch, run)) + lost_rollouts(batch, run) for batch, run in runs)
    return Check("engine: rollouts lost and tokens unaccounted for", wrong, "= 0", wrong == 0)


def _work_check(settings: SimSettings) -> Check:
    difference = work_difference(settings)
    name = "engine: work counted against work bought at unit price, relative difference"
    return Check(name, difference, f"≤ {ROUNDING:g}", difference <= ROUNDING)


def _bound_check(everything: Sequence[Pair]) -> Check:
    excess = -np.inf
    for pair in everything:
        low, high = bounds(pair.off, pair.on)
        excess = max(excess, pair.speedup / high - 1.0, low / pair.speedup - 1.0)
    name = "engine: speed-up beyond the ratios of work, relatively"
    return Check(name, float(excess), f"≤ {ROUNDING:g}", excess <= ROUNDING)


def _monotone_check(by_ratio: dict[float, Pairs]) -> Check:
    means = [np.mean([pair.speedup for pair in by_ratio[ratio]]) for ratio in KEEP_RATIOS]
    least = float(-np.max(np.diff(means)))
    return Check("engine: least fall of the speed-up from κ to the next", least, "> 0", least > 0)


def _keep_table(by_ratio: dict[float, Pairs]) -> Table:
    rows = []
    for ratio, pairs in by_ratio.items():
        kept, kept_half = mean_and_half_width([kept_share(pair.on.run) for pair in pairs])
        speedup, half = mean_and_half_width([pair.speedup for pair in pairs])
        rows.append(
            {
                "κ": ratio,
                "kept": kept,
                "kept ±": kept_half,
                "generation ×": speedup,
                "generation × ±": half,
                "bound ×": float(np.mean([bounds(pair.off, pair.on)[1] for pair in pairs])),
            }
        )
    return Table(
        name="engine_keep_ratio",
        title="Kept share and speed-up against κ, preset balanced",
        frame=pd.DataFrame(rows),
        formats={"κ": ".2f", "kept": ".3f", "generation ×": ".2f", "bound ×": ".2f"},
        note=(
            f"{CENTRE.prompts} prompts, defaults, {seeds_text(CENTRE.seeds)}. Kept counts "
            "rollouts that end before the detection length too."
        ),
    )


def _work_table(by_setup: dict[str, Pairs]) -> Table:
    rows = []
    for name, pairs in by_setup.items():
        ratios = np.mean([pair.off.work.ratios_to(pair.on.work) for pair in pairs], axis=0)
        speedup, half = mean_and_half_width([pair.speedup for pair in pairs])
        rows.append(
            {
                "set-up": name,
                "generation ×": speedup,
                "generation × ±": half,
                "tokens ×": float(np.mean([pair.token_ratio for pair in pairs])),
            }
            | dict(
                zip(("steps", "decode steps", "matrices", "KV reads"), ratios.tolist(), strict=True)
            )
        )
    shown = ("generation ×", "tokens ×", "steps", "decode steps", "matrices", "KV reads")
    return Table(
        name="engine_work",
        title="Speed-up between the ratios of work, off over on (κ = .5)",
        frame=pd.DataFrame(rows),
        formats=dict.fromkeys(shown, ".2f"),
        note=(
            "Where the KV cache is small, requests are preempted and redone. "
            f"{seeds_text(CENTRE.seeds)}."
        ),
    )
