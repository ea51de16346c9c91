"""Estimates from survivors alone: what the pass rate is, how many right ones pruning cost.

Only survivors get an outcome, and who survives depends on the score, so plain means over
survivors are biased. Each survivor's probability p of having been kept is recorded, and a
survivor seen with probability p stands for 1/p rollouts. For any values v

    E[Σ_{i kept} v_i / p_i] = Σ_i v_i    whatever the draws, as long as all p_i > 0

(Horvitz and Thompson, 1952). The rates below are ratios of two such sums (Hájek's form): both
sums are unbiased, the ratio is to first order in 1/N, and it always lies in [0, 1].

In a column, p is :attr:`arrol.records.Detection.inclusion`; 1 for a rollout that could not be
pruned. The paper gives none of these estimates.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from arrol.columns import Floats, as_columns, check_column, check_outcomes
from arrol.errors import check_integer


def horvitz_thompson(values_N: ArrayLike, inclusion_N: ArrayLike) -> float:
    """Σ v/p over the survivors: unbiased for Σ v over all, survivors and pruned.

    Raises:
        ArrolError: a value is not finite, an inclusion probability is not in (0, 1], or lengths
            differ.
    """
    values, inclusion = as_columns(values=values_N, inclusion=inclusion_N)
    check_column("values", values)
    check_column("inclusion", inclusion, 0.0, 1.0, open_low=True)
    return float((values / inclusion).sum())


def pass_rate(outcomes_N: ArrayLike, inclusion_N: ArrayLike) -> float:
    """Share of right ones among all rollouts, Σ(Y/p) / Σ(1/p); NaN without survivors."""
    outcomes, inclusion = as_columns(outcomes=outcomes_N, inclusion=inclusion_N)
    check_outcomes("outcomes", outcomes)
    everyone = horvitz_thompson(np.ones_like(inclusion), inclusion)
    return _ratio(horvitz_thompson(outcomes, inclusion), everyone)


def false_prune_rate(
    outcomes_N: ArrayLike, survival_N: ArrayLike, inclusion_N: ArrayLike | None = None
) -> float:
    """Share of right ones among the pruned, Σ((1−p)/π · Y) / Σ((1−p)/π).

    The pruned are never graded: the survivors that might as well have been pruned speak for them.
    NaN where none could have been.

    Args:
        outcomes_N: 0 or 1.
        survival_N: p, by which the plan would keep the rollout.
        inclusion_N: π, by which its outcome got to be seen: p itself where decisions are carried
            out (the default), 1 in shadow mode, where the answer is about what pruning would do.
    """
    inclusion_N = survival_N if inclusion_N is None else inclusion_N
    outcomes, survival, inclusion = as_columns(
        outcomes=outcomes_N, survival=survival_N, inclusion=inclusion_N
    )
    check_outcomes("outcomes", outcomes)
    check_column("survival", survival, 0.0, 1.0)
    pruned = horvitz_thompson(1.0 - survival, inclusion)
    return _ratio(horvitz_thompson((1.0 - survival) * outcomes, inclusion), pruned)


def auc(scores_N: ArrayLike, outcomes_N: ArrayLike, weights_N: ArrayLike | None = None) -> float:
    """P(score of a right one > score of a wrong one), ties counting ½; NaN with one class only.

    The weighted Mann–Whitney statistic Σ w_i w_j [s_i > s_j] / Σ w_i w_j over pairs of a right i
    and a wrong j. Weights 1/p make it that of all rollouts.
    """
    scores, outcomes, weights = _weighted("scores", scores_N, outcomes_N, weights_N)
    values, places = np.unique(scores, return_inverse=True)
    right = np.bincount(places, weights * outcomes, len(values))
    wrong = np.bincount(places, weights * (1.0 - outcomes), len(values))
    below = np.cumsum(wrong) - wrong
    return _ratio(float(right @ (below + 0.5 * wrong)), float(right.sum() * wrong.sum()))


def brier(
    posteriors_N: ArrayLike, outcomes_N: ArrayLike, weights_N: ArrayLike | None = None
) -> float:
    """Weighted mean of (q − Y)²; NaN without rows."""
    posteriors, outcomes, weights = _weighted("posteriors", posteriors_N, outcomes_N, weights_N)
    return _ratio(float(weights @ (posteriors - outcomes) ** 2), float(weights.sum()))


def expected_calibration_error(
    posteriors_N: ArrayLike,
    outcomes_N: ArrayLike,
    weights_N: ArrayLike | None = None,
    bins: int = 15,
) -> float:
    """Σ_b (W_b/W) |mean of Y − mean of q| over equal bins of q, means weighted; NaN without rows.

    It is biased upwards where bins are thinly filled: compare it at equal numbers of rows only.
    """
    posteriors, outcomes, weights = _weighted("posteriors", posteriors_N, outcomes_N, weights_N)
    check_column("posteriors", posteriors, 0.0, 1.0)
    check_integer("bins", bins, 1)
    places = np.minimum((bins * posteriors).astype(np.int64), bins - 1)
    # |Σ_b w (Y − q)| is W_b times the gap between the bin's two means.
    gaps = np.bincount(places, weights * (outcomes - posteriors), bins)
    return _ratio(float(np.abs(gaps).sum()), float(weights.sum()))


def effective_sample_size(weights_N: ArrayLike) -> float:
    """(Σw)² / Σw²: equally weighted rows that would give a mean as precise (Kish); 0 if none."""
    (weights,) = as_columns(weights=weights_N)
    check_column("weights", weights, 0.0, open_low=True)
    return float(weights.sum() ** 2 / (weights @ weights)) if len(weights) else 0.0


def balance(rates_B: ArrayLike) -> float:
    """Mean of ρ̂(1 − ρ̂), the quantity of the paper's Table 4; NaN rates are left out."""
    (rates,) = as_columns(rates=rates_B)
    known = rates[~np.isnan(rates)]
    check_column("rates", known, 0.0, 1.0)
    return float((known * (1.0 - known)).mean()) if len(known) else math.nan


def _weighted(
    name: str, values_N: ArrayLike, outcomes_N: ArrayLike, weights_N: ArrayLike | None
) -> tuple[Floats, Floats, Floats]:
    weights_N = np.ones(np.shape(values_N)) if weights_N is None else weights_N
    values, outcomes, weights = as_columns(
        **{name: values_N, "outcomes": outcomes_N, "weights": weights_N}
    )
    check_column(name, values)
    check_outcomes("outcomes", outcomes)
    check_column("weights", weights, 0.0, open_low=True)
    return values, outcomes, weights


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else math.nan
