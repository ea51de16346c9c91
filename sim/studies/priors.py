"""Set-ups that agree with Table 5's baseline, as far as the paper lets us know it.

The paper gives neither the batch of an engine nor the lengths. So a set-up is a point of a stated
grid, and its mean length is solved such that the simulated baseline generates in Table 5's
106.82 s. Points where no length does are dropped. What pruning then saves is a band, not a fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from arrol.sim import paper
from arrol.sim.hardware import find_accelerator
from arrol.sim.phases import PhaseTimes
from arrol.sim.settings import SimSettings
from arrol.sim.studies.runs import (
    Progress,
    batches,
    generate,
    kept_share,
    settle,
    survivor_tokens,
)

GENERATION, LOG_PROB_ROW, UPDATE_ROW = paper.TABLE_5
BASELINE = GENERATION.grpo_seconds  #: what a point's baseline must take [s]
TOLERANCE = 0.005  #: of it
LEAST_SEEDS = 5  #: with fewer, the longest rollouts of a batch blur every speed-up
CELL_TOLERANCE = 0.06  #: within which a published log-prob or update cell counts as met

START_TOKENS = 80_000.0  #: of one rollout of each prompt, where the search begins
START_SLOPE = 1.3  #: d log seconds / d log length, for the first step of the search
LEAST_SLOPE = 0.2  #: so that a flat stretch does not send the search away
MAX_TRIALS = 12


@dataclass(frozen=True)
class PriorPoint:
    """One set-up; what it doesn't name is as in :class:`SimSettings`.

    Attributes:
        prompts: of 16 rollouts, at one engine.
        length_spread: standard deviation of log length.
        max_num_seqs: sequences that the engine runs at once.
        accelerator: by name.
        length_correlation: of log length with being right.
    """

    prompts: int
    length_spread: float
    max_num_seqs: int
    accelerator: str = "GH200"
    length_correlation: float = -0.3

    def settings(self, base: SimSettings, mean_length: float) -> SimSettings:
        """The settings ``base`` at this point."""
        return base.replace(
            prompts=self.prompts,
            length_spread=self.length_spread,
            max_num_seqs=self.max_num_seqs,
            accelerator=find_accelerator(self.accelerator),
            length_correlation=self.length_correlation,
            mean_length=mean_length,
        )

    @property
    def variant(self) -> str:
        """The accelerator, or what else is varied beside the grid."""
        if self.length_correlation == PriorPoint.length_correlation:
            return self.accelerator
        return f"r = {self.length_correlation:g}"

    def __str__(self) -> str:
        return (
            f"{self.prompts} prompts, spread {self.length_spread:g}, {self.max_num_seqs:,} slots, "
            f"{self.variant}"
        )


#: A grid, and points beside it: smaller batches, more slots, other cards.
POINTS = (
    *(
        PriorPoint(prompts, spread, slots)
        for prompts, spread, slots in product((64, 128), (0.3, 0.5, 0.8), (64, 256))
    ),
    *(PriorPoint(32, spread, 256) for spread in (0.3, 0.5, 0.8)),
    PriorPoint(64, 0.5, 1024),
    PriorPoint(128, 0.3, 1024),
    PriorPoint(2, 0.5, 256),
    PriorPoint(8, 0.8, 256),
    PriorPoint(64, 0.5, 256, accelerator="H100"),
    PriorPoint(64, 0.5, 256, accelerator="A100"),
    PriorPoint(64, 0.5, 256, length_correlation=0.0),
)


@dataclass(frozen=True)
class Fit:
    """A point with its length solved, and S seeds of one step without and with pruning.

    Attributes:
        point: of the grid.
        settings: with the solved mean length.
        tokens: of a full batch, on average.
        cut: share of rollouts that end at the length limit.
        off_S, on_S: generation without and with pruning [s].
        kept_S: share f of the rollouts that survive.
        kept_tokens_S: share of the full batch's tokens that survivors hold.
    """

    point: PriorPoint
    settings: SimSettings
    tokens: float
    cut: float
    off_S: tuple[float, ...]
    on_S: tuple[float, ...]
    kept_S: tuple[float, ...]
    kept_tokens_S: tuple[float, ...]

    @property
    def speedups_S(self) -> list[float]:
        """Generation speed-up of each seed."""
        return [off / on for off, on in zip(self.off_S, self.on_S, strict=True)]

    @property
    def speedup(self) -> float:
        """Its mean."""
        return float(np.mean(self.speedups_S))

    @property
    def kept(self) -> float:
        """Mean share of rollouts kept."""
        return float(np.mean(self.kept_S))

    @property
    def meets_other_rows(self) -> bool:
        """Table 5's log-prob and update cells follow from this point's own f."""
        return all(abs(off) <= CELL_TOLERANCE for off in cell_differences(self.kept))


def cell_differences(fraction: float) -> tuple[float, float]:
    """How far log-prob and update at this f lie from Table 5's pruned cells, relatively."""
    times = PhaseTimes()
    return (
        times.log_prob_seconds(fraction) / LOG_PROB_ROW.arrol_seconds - 1.0,
        times.update_seconds(fraction) / UPDATE_ROW.arrol_seconds - 1.0,
    )


def paper_settings(settings: SimSettings) -> SimSettings:
    """The paper's setting and rule, with this run's seed and at least 5 repetitions."""
    return settings.paper().replace(seeds=max(settings.seeds, LEAST_SEEDS))


def fits(base: SimSettings, progress: Progress) -> list[Fit]:
    """All points that can reach the baseline, in the order of ``POINTS``."""
    found = []
    for place, point in enumerate(POINTS, start=1):
        found.append(fit(point, base))
        progress(place / len(POINTS))
    return [entry for entry in found if entry is not None]


def nearest(found: list[Fit]) -> Fit:
    """The point that Table 5 alone speaks for.

    Of those that meet its log-prob and update cells, the one whose generation speed-up is nearest
    to the published one.
    """
    eligible = [entry for entry in found if entry.meets_other_rows] or found
    return min(eligible, key=lambda entry: abs(entry.speedup - GENERATION.speedup))


@lru_cache(maxsize=4 * len(POINTS))
def fit(point: PriorPoint, base: SimSettings) -> Fit | None:
    """Solve the mean length, then prune; None where no length reaches the baseline."""
    solved = solve_mean_length(point, base)
    if solved is None:
        return None
    mean_length, off_S = solved
    settings = point.settings(base, mean_length)
    plan = settle(settings).plan
    on, kept, shares, tokens, cut = [], [], [], [], []
    for batch in batches(settings):
        run = generate(settings, batch.requests, plan)
        on.append(run.seconds)
        kept.append(kept_share(run))
        shares.append(survivor_tokens(run) / batch.tokens)
        tokens.append(batch.tokens)
        cut.append(float(batch.rows.cut_N.mean()))
    return Fit(
        point, settings, float(np.mean(tokens)), float(np.mean(cut)),
        tuple(off_S), tuple(on), tuple(kept), tuple(shares),
    )  # fmt: skip


def solve_mean_length(point: PriorPoint, base: SimSettings) -> tuple[float, list[float]] | None:
    """The mean length at which the baseline takes 106.82 s on average, and each seed's seconds.

    Seconds are close to a power of the length, so the secant runs on logarithms: first on one
    seed, then on all of them. None where even the largest mean length stays below.
    """

    def seconds(mean_length: float, seeds: int) -> list[float]:
        settings = point.settings(base, mean_length)
        drawn = batches(settings, seeds)
        return [generate(settings, batch.requests).seconds for batch in drawn]

    highest = float(base.max_length)
    start = min(highest, START_TOKENS / point.prompts)
    rough, slope, _ = _secant(lambda x: seconds(x, 1), start, START_SLOPE, highest)
    found, _, off_S = _secant(lambda x: seconds(x, base.seeds), rough, slope, highest)
    is_met = abs(float(np.mean(off_S)) / BASELINE - 1.0) <= 2 * TOLERANCE
    return (found, off_S) if is_met else None


def _secant(
    seconds: Callable[[float], list[float]], start: float, slope: float, highest: float
) -> tuple[float, float, list[float]]:
    """Length whose mean seconds meet the baseline, last slope of log over log, and the seconds."""
    length, values_S = start, seconds(start)
    for _ in range(MAX_TRIALS):
        ratio = BASELINE / float(np.mean(values_S))
        following = min(highest, length * ratio ** (1.0 / slope))
        if abs(ratio - 1.0) <= TOLERANCE or following == length:
            break
        next_S = seconds(following)
        rise = math.log(np.mean(next_S) / np.mean(values_S)) / math.log(following / length)
        slope = max(LEAST_SLOPE, rise)
        length, values_S = following, next_S
    return length, slope, values_S
