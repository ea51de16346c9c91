"""Spearman's ρ and AUCs of scores against outcomes, with intervals over prompts.

All scores see the same resamples of the prompts, so that the difference of two scores has a paired
interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arrol.columns import Flags, Floats, Integers
from arrol.sim.replay_signal import counted_auc, group_wins


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Measures:
    """Spearman's ρ, AUC over all pairs, AUC over the pairs of one prompt."""

    spearman: Estimate
    overall: Estimate
    within: Estimate

    def columns(self) -> dict[str, float]:
        """As columns of a table."""
        return {
            f"{name}{end}": getattr(getattr(self, name), part)
            for name in ("spearman", "overall", "within")
            for end, part in (("", "value"), ("_low", "low"), ("_high", "high"))
        }


@dataclass(frozen=True)
class Draws:
    """The three figures of one score: row 0 is the sample's own, the others a resample's each."""

    values_D3: Floats

    def __sub__(self, other: Draws) -> Draws:
        return Draws(self.values_D3 - other.values_D3)

    def measures(self) -> Measures:
        """Values and 95% percentile intervals; resamples in which a figure is undefined are out."""
        low_3, high_3 = np.nanquantile(self.values_D3[1:], [0.025, 0.975], axis=0)
        rows = zip(self.values_D3[0], low_3, high_3, strict=True)
        return Measures(*(Estimate(*map(float, row)) for row in rows))


class PromptBootstrap:
    """Resamples whole prompts.

    Args:
        prompts_N: number of each rollout's prompt.
        outcomes_N: is it right?
        draws: resamples.
        seed: of the resamples.
    """

    def __init__(self, prompts_N: Integers, outcomes_N: Flags, draws: int, seed: int) -> None:
        ids, self._groups_N = np.unique(prompts_N, return_inverse=True)
        self._outcomes_N = outcomes_N.astype(np.float64)
        self._count = len(ids)
        even = np.full(len(ids), 1.0 / len(ids))
        drawn = np.random.default_rng(seed).multinomial(len(ids), even, draws)
        self._counts_DB = np.concatenate([np.ones((1, len(ids)), dtype=np.int64), drawn])
        right_B = np.bincount(self._groups_N, self._outcomes_N)
        self.mixed = int(((right_B > 0) & (right_B < np.bincount(self._groups_N))).sum())

    def draws(self, scores_N: Floats) -> Draws:
        """The sample's figures, then each resample's."""
        outcomes_N = self._outcomes_N
        wins_B, pairs_B = group_wins(scores_N, outcomes_N, self._groups_N, self._count)
        _, places_N = np.unique(scores_N, return_inverse=True)
        with np.errstate(invalid="ignore"):  # 0/0 where a resample has no pair
            within_D = (self._counts_DB @ wins_B) / (self._counts_DB @ pairs_B)
        rows = []
        for counts_B, within in zip(self._counts_DB, within_D, strict=True):
            counts_N = counts_B[self._groups_N]
            overall = counted_auc(places_N, outcomes_N, counts_N)
            rows.append((counted_spearman(places_N, outcomes_N, counts_N), overall, within))
        return Draws(np.array(rows))


def counted_spearman(places_N: Integers, outcomes_N: Floats, counts_N: Integers) -> float:
    """Spearman's ρ with midranks where each row comes so often, given the ranks of the scores.

    An outcome of 0 or 1 and its midrank are the same but for scale, so this is Pearson's
    correlation of the outcomes with the scores' midranks. NaN where one side is constant.
    """
    totals = np.bincount(places_N, counts_N)
    ranks_N = (np.cumsum(totals) - totals / 2.0)[places_N]
    rows = int(counts_N.sum())
    ranks_N = ranks_N - counts_N @ ranks_N / rows
    gaps_N = outcomes_N - counts_N @ outcomes_N / rows
    spread = float((counts_N @ ranks_N**2) * (counts_N @ gaps_N**2))
    return float((counts_N * ranks_N) @ gaps_N / spread**0.5) if spread > 0 else float("nan")
