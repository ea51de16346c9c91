"""How good answers are: pass@k, avg@k and the accuracy of a vote over k, with intervals.

Of a problem with n rollouts, k are looked at. Figures are expectations over which k they are:
every k of the n are equally likely.

* pass@k: one of the k is right, 1 − C(n − c, k)/C(n, k) with c of n right (Chen et al., arXiv
  2107.03374): unbiased for k fresh rollouts.
* avg@k: share of the k that are right, c/n at every k.
* maj@k, and the same of every other method of :mod:`arrol.voting`: the vote over the k is right.
  Where answers tie, it counts the share of them that is right. A vote has to pick one, but which it
  picks is chance: with k = 2 or few rollouts, ties alone could make one method beat another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from arrol.columns import Flags, Floats, Integers, as_columns, check_column
from arrol.errors import ArrolError, check_integer
from arrol.voting import VoteMethod, leading, tally, vote_weights

SUBSETS = 256  #: choices of k of n rollouts that are looked at one by one; of more, that many drawn
LEVEL = 0.95  #: of intervals


def pass_at_k(rollouts: int, right: int, k: int) -> float:
    """P(one of k is right) = 1 − C(n − c, k)/C(n, k), from exact integers.

    Raises:
        ArrolError: not 0 ≤ right ≤ rollouts, or not 1 ≤ k ≤ rollouts.
    """
    check_integer("rollouts", rollouts, 1)
    check_integer("right", right, 0, rollouts)
    check_integer("k", k, 1, rollouts)
    possible = math.comb(rollouts, k)
    return (possible - math.comb(rollouts - right, k)) / possible


def avg_at_k(rollouts: int, right: int) -> float:
    """Expected share of right ones among k of the rollouts: c/n, whatever k.

    Raises:
        ArrolError: not 0 ≤ right ≤ rollouts, or no rollout.
    """
    check_integer("rollouts", rollouts, 1)
    check_integer("right", right, 0, rollouts)
    return right / rollouts


def subsets(count: int, k: int, rng: np.random.Generator, limit: int = SUBSETS) -> Integers:
    """Ways to choose k of ``count`` rollouts: int64[S, k].

    All C(n, k) of them if they are no more than ``limit``, else ``limit`` drawn at random, each
    without repetition in itself.

    Raises:
        ArrolError: not 1 ≤ k ≤ count, or ``limit`` is no positive integer.
    """
    check_integer("count", count, 1)
    check_integer("k", k, 1, count)
    check_integer("limit", limit, 1)
    if math.comb(count, k) <= limit:
        return np.array(list(itertools.combinations(range(count), k)), dtype=np.int64)
    return np.argsort(rng.random((limit, count)), axis=1)[:, :k].astype(np.int64)


def vote_at_k(
    method: VoteMethod,
    classes_N: Integers,
    right_C: Flags,
    values_N: Floats,
    choices_SK: Integers,
) -> float:
    """Share of the choices of k rollouts whose vote is right, ties shared: maj@k for majority.

    Answers are put together over all n rollouts, also for those k in which the one that links two
    others is missing; ranks and the number of answers are those of the k.

    Args:
        method: how to vote.
        classes_N: answer of each rollout (see :class:`arrol.voting.AnswerClasses`).
        right_C: whether each answer is right.
        values_N: what the method needs; NaN where unknown.
        choices_SK: which rollouts, from :func:`subsets`.
    """
    classes_SK = classes_N[choices_SK]
    weights_SK = vote_weights(method, values_N[choices_SK], classes_SK)
    leading_SC = leading(*tally(classes_SK, weights_SK))
    right_S = (leading_SC & right_C[: leading_SC.shape[1]]).sum(axis=1)
    return float((right_S / np.maximum(leading_SC.sum(axis=1), 1)).mean())


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over problems and its 95% bootstrap interval; bounds are NaN with one problem."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2.0


class Bootstrap:
    """Intervals of means over B problems: the percentiles of the mean over resampled problems.

    Problems are drawn with replacement; their rollouts are taken as they are. All figures see the
    same resamples, so the interval of a mean difference is that of paired problems, and a figure's
    interval does not depend on which others are asked for.

    Args:
        problems: B.
        draws: resamples.
        seed: of the draws.

    Raises:
        ArrolError: a number is out of range.
    """

    def __init__(self, problems: int, draws: int, seed: int) -> None:
        check_integer("problems", problems, 1)
        check_integer("draws", draws, 2)
        check_integer("seed", seed, 0)
        self.problems = problems
        rng = np.random.default_rng(seed)
        even = np.full(problems, 1.0 / problems)
        self._shares_DB = rng.multinomial(problems, even, size=draws) / problems

    def interval(self, values_B: ArrayLike) -> Interval:
        """Mean of the problems' values and its interval.

        Raises:
            ArrolError: there are not B values, or one is not finite.
        """
        (values,) = as_columns(values=values_B)
        check_column("values", values)
        if len(values) != self.problems:
            raise ArrolError(f"values has {len(values)} rows; allowed is {self.problems}.")
        mean = float(values.mean())
        if self.problems == 1:
            return Interval(mean, math.nan, math.nan)
        edges = [0.5 - LEVEL / 2.0, 0.5 + LEVEL / 2.0]
        low, high = np.quantile(self._shares_DB @ values, edges)
        return Interval(mean, float(low), float(high))


def sizes_up_to(largest: int) -> Sequence[int]:
    """The k to look at: 1, 2, 4, … and ``largest`` itself.

    Raises:
        ArrolError: ``largest`` is no positive integer.
    """
    check_integer("largest", largest, 1)
    return sorted({*(1 << power for power in range(largest.bit_length())), largest})
