"""From posterior q to survival probability p.

Every rule is a line in q, clipped to [p_min, p_max]:

    p = clip(κ + δ + slope · (q − centre), p_min, p_max)

====================  ==========  =======  ===========================================
rule                  slope       centre   source
====================  ==========  =======  ===========================================
paper                 −λ          ρ        Eq. 2: p = clip(κ + δ + λ(ρ − q))
signed                η           q̄        ours: η = clip(κ(ρ − q̄)/Var(q), −λ, λ)
feedback              η_i         μ̂_i      ours: signed, followed within each group
random                0           0        control: p = κ
====================  ==========  =======  ===========================================

What Eq. 2 does, provably: δ + λρ is one scalar that E[p] = κ fixes, so p does not depend on ρ at
all, and without clipping E[q | kept] − q̄ = Cov(p, q)/κ = −λ Var(q)/κ ≤ 0. Survivors always get
harder, also where the pass rate is already under ρ. The signed slope is the least change that
makes the rule mean what it says: it equals the paper's where η = −λ.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arrol.errors import check_integer, check_range

Floats = NDArray[np.float64]


class SurvivalStatus(StrEnum):
    """Whether a rule can keep the share that was asked for."""

    OK = "ok"
    EMPTY = "empty"  #: no scores yet: p = κ for everybody
    BELOW_MIN = "below_min"  #: κ is at or under p_min: everybody gets p_min
    ABOVE_MAX = "above_max"  #: κ is at or over p_max: everybody gets p_max


@dataclass(frozen=True)
class LineRule:
    """p = clip(base + slope · (q − centre), low, high): paper, signed and random.

    Attributes:
        base: κ + δ.
        slope: change of p for a unit of q; −λ in the paper.
        centre: the q at which p = base.
        low, high: p_min and p_max.
    """

    base: float
    slope: float
    centre: float
    low: float
    high: float

    def __post_init__(self) -> None:
        for name in ("base", "slope", "centre"):
            check_range(name, getattr(self, name))
        _check_bounds(self.low, self.high)

    def survival(self, posterior: float) -> float:
        """p of one posterior."""
        return min(max(self.base + self.slope * (posterior - self.centre), self.low), self.high)

    def survivals(self, posteriors_N: Floats) -> Floats:
        """p of an array [N] of posteriors, equal to :meth:`survival` to the last bit."""
        line_N = self.base + self.slope * (posteriors_N - self.centre)
        return np.minimum(np.maximum(line_N, self.low), self.high)


@dataclass(frozen=True)
class FeedbackRule:
    """The signed slope, with budget and mean followed within each group as it arrives.

    For the i-th rollout (1-based) of a group of G, given those decided before it:

        R_i  = κ'G − Σ_{j<i} p_j                           what is left of the budget
        μ̂_i = (2q̄ + Σ_{j≤i} q_j) / (2 + i)
        η_i  = clip(κ'(ρ − μ̂_i) / Var_within(q), −λ, λ)
        p_i  = R_i / (G − i + 1) + η_i (q_i − μ̂_i),

    clipped to [p_min, p_max] and to what the G − i others, who may get p_min to p_max each, leave
    to it: [R_i − (G − i) p_max, R_i − (G − i) p_min]. So Σp = κ'G exactly, and systematic draws
    keep ⌊κ'G⌋ or ⌈κ'G⌉ of every group. p_i depends on scores alone, never on a draw or a
    decision: that keeps the marginals exact.

    Attributes:
        keep_ratio: κ over all rollouts of a group.
        early_share: f, the share that ends before the detection length and always survives.
        target: ρ.
        strength: λ.
        mean: q̄ of the scores seen so far.
        variance: Var(q) within groups, pooled.
        low, high: p_min and p_max.
        min_survivors: a group's budget is at least this many.
    """

    keep_ratio: float
    early_share: float
    target: float
    strength: float
    mean: float
    variance: float
    low: float
    high: float
    min_survivors: int

    def __post_init__(self) -> None:
        for name in ("keep_ratio", "early_share", "target", "mean"):
            check_range(name, getattr(self, name), 0, 1)
        check_range("strength", self.strength, 0)
        check_range("variance", self.variance, 0, open_low=True)
        check_integer("min_survivors", self.min_survivors, 0)
        _check_bounds(self.low, self.high)

    def share(self, group_size: int) -> float:
        """κ', the share of a group's detected rollouts to keep."""
        ratio = max(self.keep_ratio, self.min_survivors / group_size)
        return detected_keep_ratio(min(ratio, 1.0), self.early_share, self.low, self.high)

    def survival(
        self, posterior: float, share: float, group_size: int, rank: int, spent: float, seen: float
    ) -> float:
        """p_i of one rollout.

        Args:
            posterior: q_i.
            share: κ' = ``self.share(group_size)``.
            group_size: G.
            rank: i − 1, how many of the group came before.
            spent: Σ_{j<i} p_j.
            seen: Σ_{j<i} q_j.
        """
        budget = share * group_size - spent
        others = max(group_size - rank - 1, 0)
        mean = (2.0 * self.mean + seen + posterior) / (3.0 + rank)
        slope = share * (self.target - mean) / self.variance
        slope = min(max(slope, -self.strength), self.strength)
        line = budget / (others + 1.0) + slope * (posterior - mean)
        line = min(max(line, budget - others * self.high), budget - others * self.low)
        return min(max(line, self.low), self.high)

    def survivals(
        self,
        posteriors_N: Floats,
        shares_N: Floats,
        group_sizes_N: NDArray[np.int64],
        ranks_N: Floats,
        spent_N: Floats,
        seen_N: Floats,
    ) -> Floats:
        """:meth:`survival` of rows of N different groups, equal to the last bit."""
        budget_N = shares_N * group_sizes_N - spent_N
        others_N = np.maximum(group_sizes_N - ranks_N - 1, 0)
        mean_N = (2.0 * self.mean + seen_N + posteriors_N) / (3.0 + ranks_N)
        slope_N = shares_N * (self.target - mean_N) / self.variance
        slope_N = np.minimum(np.maximum(slope_N, -self.strength), self.strength)
        line_N: Floats = budget_N / (others_N + 1.0) + slope_N * (posteriors_N - mean_N)
        line_N = np.maximum(line_N, budget_N - others_N * self.high)
        line_N = np.minimum(line_N, budget_N - others_N * self.low)
        return np.minimum(np.maximum(line_N, self.low), self.high)


def _check_bounds(low: float, high: float) -> None:
    check_range("low", low, 0, 1)
    check_range("high", high, low, 1)


Rule = LineRule | FeedbackRule


def rule_to_dict(rule: Rule) -> dict[str, Any]:
    """Plain JSON values of a rule, with its kind."""
    return {"kind": type(rule).__name__, **asdict(rule)}


def rule_from_dict(values: dict[str, Any]) -> Rule:
    """The inverse of :func:`rule_to_dict`."""
    fields = {k: v for k, v in values.items() if k != "kind"}
    rules: dict[str, type[LineRule | FeedbackRule]] = {
        rule.__name__: rule for rule in (LineRule, FeedbackRule)
    }
    return rules[values["kind"]](**fields)


def detected_keep_ratio(keep_ratio: float, early_share: float, low: float, high: float) -> float:
    """κ' = (κ − f)/(1 − f) in [p_min, p_max]: what is left to keep among the detected.

    A share f of rollouts ends before the detection length and always survives, so to keep κ of
    all, κ' of the detected must survive.
    """
    if early_share >= 1.0:
        return high
    return min(max((keep_ratio - early_share) / (1.0 - early_share), low), high)


def random_rule(keep_ratio: float, low: float, high: float) -> LineRule:
    """The control: p = κ whatever the score says."""
    return LineRule(min(max(keep_ratio, low), high), 0.0, 0.0, low, high)


def solve_paper(
    posteriors_N: Floats, keep_ratio: float, target: float, strength: float, low: float, high: float
) -> tuple[LineRule, SurvivalStatus]:
    """Paper Eq. 2: p = clip(κ + δ + λ(ρ − q), p_min, p_max) with δ such that E[p] = κ.

    The paper leaves open over what E is taken; here it is over ``posteriors_N``, the posteriors
    of the labelled buffer.
    """
    return _solve(posteriors_N, keep_ratio, -strength, target, low, high)


def solve_signed(
    posteriors_N: Floats, keep_ratio: float, target: float, strength: float, low: float, high: float
) -> tuple[LineRule, SurvivalStatus]:
    """Ours: slope η = clip(κ(ρ − q̄)/Var(q), −λ, λ) about q̄, and δ such that E[p] = κ.

    Without clipping Cov(p, q)/κ = η Var(q)/κ, so η = κ(ρ − q̄)/Var(q) moves the mean of the
    survivors' posteriors exactly onto ρ; λ bounds how hard it may try.
    """
    mean, variance = (posteriors_N.mean(), posteriors_N.var()) if posteriors_N.size else (0.0, 0.0)
    slope = signed_slope(keep_ratio, target, float(mean), float(variance), strength)
    return _solve(posteriors_N, keep_ratio, slope, float(mean), low, high)


def signed_slope(
    keep_ratio: float, target: float, mean: float, variance: float, strength: float
) -> float:
    """η = clip(κ(ρ − q̄)/Var(q), −λ, λ); 0 where there is no variance to work with."""
    if variance <= 0.0:
        return 0.0
    return min(max(keep_ratio * (target - mean) / variance, -strength), strength)


def _solve(
    posteriors_N: Floats, keep_ratio: float, slope: float, centre: float, low: float, high: float
) -> tuple[LineRule, SurvivalStatus]:
    if posteriors_N.size == 0:
        return random_rule(keep_ratio, low, high), SurvivalStatus.EMPTY
    if keep_ratio <= low or keep_ratio >= high:
        status = SurvivalStatus.BELOW_MIN if keep_ratio <= low else SurvivalStatus.ABOVE_MAX
        return random_rule(keep_ratio, low, high), status
    values_M, counts_M = np.unique(posteriors_N, return_counts=True)
    lines_M = slope * (values_M - centre)
    base = solve_shift(lines_M, counts_M / counts_M.sum(), keep_ratio, low, high)
    return LineRule(base, slope, centre, low, high), SurvivalStatus.OK


def solve_shift(
    lines_M: Floats, weights_M: Floats, keep_ratio: float, low: float, high: float
) -> float:
    """The x with Σ w · clip(x + line, p_min, p_max) = κ, exactly.

    The sum is piecewise linear and non-decreasing in x. Line i starts to rise at p_min − line_i
    and stops at p_max − line_i; between two neighbouring breakpoints the slope is the weight of
    those that are rising. So: sort the breakpoints, add up slopes, interpolate where κ lies.

    Args:
        lines_M: what each distinct posterior adds to p, [M].
        weights_M: their shares, [M], adding up to 1.
        keep_ratio: κ, strictly between ``low`` and ``high``.
    """
    breaks_2M = np.concatenate([low - lines_M, high - lines_M])
    order_2M = np.argsort(breaks_2M, kind="stable")
    breaks_2M = breaks_2M[order_2M]
    slopes_2M = np.cumsum(np.concatenate([weights_M, -weights_M])[order_2M])
    rises = slopes_2M[:-1] * np.diff(breaks_2M)
    means_2M = low + np.concatenate([[0.0], np.cumsum(rises)])
    place = int(np.searchsorted(means_2M, keep_ratio, side="right")) - 1
    place = min(max(place, 0), len(rises) - 1)
    shift = breaks_2M[place] + (keep_ratio - means_2M[place]) / slopes_2M[place]
    # One Newton step on the exact sum takes out what the running sums lost to rounding.
    survivals_M = np.clip(shift + lines_M, low, high)
    return float(shift + (keep_ratio - weights_M @ survivals_M) / slopes_2M[place])
