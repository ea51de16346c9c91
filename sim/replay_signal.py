"""How well quality scores tell right from wrong, overall and within groups, with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arrol.estimators import auc

RESAMPLES = 400  #: of the bootstrap
LEVELS = (0.025, 0.975)

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95% interval; NaN where it can't be had."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} (95%: {self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Signal:
    """What a score is worth on some rollouts.

    Attributes:
        rollouts: that have a score.
        mixed_groups: groups with a right and a wrong one among them.
        overall: AUC over all pairs of a right and a wrong rollout.
        within: AUC over the pairs within a group. Only these can balance a group.
    """

    rollouts: int
    mixed_groups: int
    overall: Estimate
    within: Estimate


def measure_signal(
    scores_N: Floats, outcomes_N: Flags, groups_N: Integers, rng: np.random.Generator
) -> Signal:
    """Both AUCs with bootstrap intervals; whole groups are resampled. NaN scores are left out."""
    known = np.isfinite(scores_N)
    scores, outcomes = scores_N[known], outcomes_N[known].astype(np.float64)
    ids, groups = np.unique(groups_N[known], return_inverse=True)
    wins_B, pairs_B = group_wins(scores, outcomes, groups, len(ids))
    _, places = np.unique(scores, return_inverse=True)
    draws = _draws(len(ids), rng)
    return Signal(
        rollouts=len(scores),
        mixed_groups=int((pairs_B > 0).sum()),
        overall=_estimate(
            auc(scores, outcomes), [counted_auc(places, outcomes, draw[groups]) for draw in draws]
        ),
        within=_estimate(
            _ratio(wins_B.sum(), pairs_B.sum()),
            [_ratio(draw @ wins_B, draw @ pairs_B) for draw in draws],
        ),
    )


def _draws(groups: int, rng: np.random.Generator) -> Integers:
    """How often each group comes up in each resample, [RESAMPLES, B]."""
    if not groups:
        return np.zeros((0, 0), dtype=np.int64)
    return rng.multinomial(groups, np.full(groups, 1.0 / groups), RESAMPLES)


def counted_auc(places_N: Integers, outcomes_N: Floats, counts_N: Integers) -> float:
    """AUC where each row comes so often, given the ranks of the scores.

    What :func:`arrol.estimators.auc` computes, without its sort: it is called for every resample.
    """
    right = np.bincount(places_N, counts_N * outcomes_N)
    wrong = np.bincount(places_N, counts_N * (1.0 - outcomes_N))
    below = np.cumsum(wrong) - wrong
    return _ratio(float(right @ (below + 0.5 * wrong)), float(right.sum() * wrong.sum()))


def group_wins(
    scores_N: Floats, outcomes_N: Floats, groups_N: Integers, count: int
) -> tuple[Floats, Floats]:
    """For each of ``count`` groups: pairs of a right and a wrong one that the score orders right
    (ties ½), and all such pairs, float64[B] each."""
    wins_B, pairs_B = np.zeros(count), np.zeros(count)
    order_N = np.argsort(groups_N, kind="stable")
    ends_B = np.cumsum(np.bincount(groups_N, minlength=count))
    for group, rows in enumerate(np.split(order_N, ends_B)[:count]):
        right = scores_N[rows[outcomes_N[rows] == 1.0]]
        wrong = scores_N[rows[outcomes_N[rows] == 0.0]]
        gaps = np.sign(np.subtract.outer(right, wrong))
        wins_B[group], pairs_B[group] = (gaps + 1.0).sum() / 2.0, gaps.size
    return wins_B, pairs_B


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else math.nan


def _estimate(value: float, resampled: list[float]) -> Estimate:
    known = [found for found in resampled if not math.isnan(found)]
    if not known:
        return Estimate(value, math.nan, math.nan)
    low, high = np.quantile(known, LEVELS)
    return Estimate(value, float(low), float(high))
