"""What can be proved about pruning: every function is a closed form, and its test an experiment.

The paper (arXiv 2603.24840) states Lemma 4.1 and Theorem 4.2. Lemma 4.1 as printed, that removing
a rollout whose posterior lies beyond the mean brings the mean nearer to the target, is false:
q = (.9, .3), ρ = .5, remove .9. :func:`removal_moves_towards_target` has the exact condition.

Theorem 4.2 rests on three facts. The paper proves it through Lemmas A.1, A.2 and A.3, whose text
was not available to us, so the three functions :func:`leave_one_out_means`,
:func:`truth_given_posterior` and :func:`hoeffding_tail` stand in for them; which is which is not
verified.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from arrol.columns import Floats, as_columns, check_column
from arrol.errors import ArrolError, check_integer, check_range


def removal_moves_towards_target(posteriors_G: ArrayLike, removed: int, target: float) -> bool:
    """Lemma 4.1 with its exact condition: without q_j the mean is strictly nearer to ρ.

    Removal shifts the mean by −(q_j − μ)/(G − 1). That is towards ρ iff q_j lies on the far side
    of μ, and it does not overshoot to the same distance or further iff

        |q_j − μ| < 2(G − 1)|μ − ρ|.

    Args:
        posteriors_G: of a group of G ≥ 2.
        removed: j.
        target: ρ.
    """
    (posteriors,) = as_columns(posteriors=posteriors_G)
    size = len(posteriors)
    check_integer("group size", size, 2)
    check_integer("removed", removed, 0, size - 1)
    # All times G, so that no division blurs the boundary.
    beyond = size * float(posteriors[removed]) - float(posteriors.sum())
    excess = float(posteriors.sum()) - size * target
    return beyond * excess > 0.0 and abs(beyond) < 2 * (size - 1) * abs(excess)


def leave_one_out_means(values_G: ArrayLike) -> Floats:
    """Mean of the others, for each: μ − (v_j − μ)/(G − 1). Stands in for an appendix lemma."""
    (values,) = as_columns(values=values_G)
    check_integer("group size", len(values), 2)
    mean = values.mean()
    return np.asarray(mean - (values - mean) / (len(values) - 1))


def truth_given_posterior(joint_KM: ArrayLike, truths_M: ArrayLike) -> Floats:
    """E[q* | q] for each of K posteriors, from P(q, q*): what E[Y | q] is where Y ⊥ q | q*.

    q* is a rollout's true probability of being right. If the score tells nothing about the
    outcome beyond q*, then E[Y | q] = E[E[Y | q*] | q] = E[q* | q], and a q calibrated to Y is
    calibrated to q*. Without that independence it fails. Stands in for an appendix lemma.

    Args:
        joint_KM: non-negative masses of (q_k, q*_m), every row positive in sum.
        truths_M: the values of q*.
    """
    joint = np.asarray(joint_KM, dtype=np.float64)
    (truths,) = as_columns(truths=truths_M)
    if joint.ndim != 2 or joint.shape[1] != len(truths):
        raise ArrolError(f"joint has shape {joint.shape}; allowed is (any, {len(truths)}).")
    check_column("joint", joint.ravel(), 0.0)
    check_column("mass of a posterior", joint.sum(axis=1), 0.0, open_low=True)
    return np.asarray(joint @ truths / joint.sum(axis=1))


def hoeffding_tail(group_size: int, deviation: float) -> float:
    """Theorem 4.2's tail 2 exp(−2(G − 1)t²), which may exceed 1.

    Hoeffding's bound on P(|mean − its expectation| ≥ t) of the G − 1 other outcomes, independent
    and of width 1 each. Stands in for an appendix lemma.
    """
    check_integer("group_size", group_size, 2)
    check_range("deviation", deviation, 0.0)
    return 2.0 * math.exp(-2.0 * (group_size - 1) * deviation**2)


def balance_shift(posteriors_N: ArrayLike, survivals_N: ArrayLike) -> float:
    """E[q | kept] − q̄ = Cov(p, q) / E[p]: how far pruning moves the mean posterior.

    E is over rows and draws, and the identity needs nothing but the marginals p.
    """
    posteriors, survivals = as_columns(posteriors=posteriors_N, survivals=survivals_N)
    check_column("survivals", survivals, 0.0, 1.0)
    check_range("mean survival", float(survivals.mean()), 0.0, 1.0, open_low=True)
    covariance = ((survivals - survivals.mean()) * (posteriors - posteriors.mean())).mean()
    return float(covariance / survivals.mean())


def unclipped_paper_shift(posteriors_N: ArrayLike, keep_ratio: float, strength: float) -> float:
    """−λ Var(q) / κ, the shift of the paper's Eq. 2 where no p is clipped.

    It is never positive and does not contain ρ: where q̄ < ρ the rule moves away from ρ.
    """
    (posteriors,) = as_columns(posteriors=posteriors_N)
    check_range("keep_ratio", keep_ratio, 0.0, 1.0, open_low=True)
    check_range("strength", strength, 0.0)
    return float(-strength * posteriors.var() / keep_ratio)


def extreme_survivals(
    posteriors_N: ArrayLike, keep_ratio: float, low: float, high: float
) -> Floats:
    """The p in [p_min, p_max] with mean κ that keep the most of q: bang-bang.

    Everybody gets p_min; what is left of the budget N κ fills the highest q up to p_max, one
    after another. At most one p lies between the bounds. Linear programming can do no better.
    """
    (posteriors,) = as_columns(posteriors=posteriors_N)
    check_range("low", low, 0.0, 1.0)
    check_range("high", high, low, 1.0)
    check_range("keep_ratio", keep_ratio, low, high)
    order = np.argsort(-posteriors, kind="stable")
    budget = len(posteriors) * (keep_ratio - low)
    before = np.arange(len(posteriors)) * (high - low)
    survivals = np.empty(len(posteriors))
    survivals[order] = low + np.clip(budget - before, 0.0, high - low)
    return survivals


def extreme_balance_shift(
    posteriors_N: ArrayLike, keep_ratio: float, low: float, high: float
) -> tuple[float, float]:
    """The lowest and the highest shift that any rule with these bounds can reach."""
    (posteriors,) = as_columns(posteriors=posteriors_N)
    downwards = extreme_survivals(-posteriors, keep_ratio, low, high)
    upwards = extreme_survivals(posteriors, keep_ratio, low, high)
    return balance_shift(posteriors, downwards), balance_shift(posteriors, upwards)


def survivor_distribution(survivals_G: ArrayLike) -> Floats:
    """P(k survive), k = 0 … G, under independent draws: the Poisson-binomial law, float64[G + 1].

    Under systematic draws only ⌊Σp⌋ and ⌈Σp⌉ are possible.
    """
    (survivals,) = as_columns(survivals=survivals_G)
    check_column("survivals", survivals, 0.0, 1.0)
    law = np.ones(1)
    for survival in survivals:
        law = np.convolve(law, [1.0 - survival, survival])
    return law


def token_speedup(lengths_N: ArrayLike, survivals_N: ArrayLike, detect_length: int) -> float:
    """Tokens without pruning over expected tokens with it.

    A rollout longer than L_detect costs p · length + (1 − p) · L_detect tokens in expectation,
    a shorter one always its length. Caution: this bounds the speed-up of generation only where
    time is proportional to tokens; :func:`speedup_bounds` says what holds otherwise.
    """
    lengths, survivals = as_columns(lengths=lengths_N, survivals=survivals_N)
    check_integer("detect_length", detect_length, 1)
    check_column("lengths", lengths, 1.0)
    check_column("survivals", survivals, 0.0, 1.0)
    saved = (1.0 - survivals) * np.maximum(lengths - detect_length, 0.0)
    return float(lengths.sum() / (lengths.sum() - saved.sum()))


def speedup_bounds(work_off_C: ArrayLike, work_on_C: ArrayLike) -> tuple[float, float]:
    """Lowest and highest speed-up of an engine whose time is a sum of C kinds of work.

    time = Σ_c cost_c · work_c with costs ≥ 0, for instance steps, tokens and KV tokens read. Then
    time off / time on is a mediant of the ratios work_off_c / work_on_c, so it lies between the
    least and the greatest of them whatever the costs are. The ratio of tokens alone is no upper
    bound: of rollouts with 100 and 10,000 tokens prune the second at 512, and tokens fall
    16.5-fold, steps 19.5-fold.
    """
    work_off, work_on = as_columns(work_off=work_off_C, work_on=work_on_C)
    check_integer("kinds of work", len(work_off), 1)
    check_column("work_off", work_off, 0.0)
    check_column("work_on", work_on, 0.0, open_low=True)
    ratios = work_off / work_on
    return float(ratios.min()), float(ratios.max())
