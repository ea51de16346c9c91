"""Ragged groups: what pruning leaves of each prompt's rollouts, and whether it can teach anything.

A group is given by the id of each row, in any order. A group-relative advantage needs at least
two survivors, and survivors of one outcome alone cancel out: such groups carry no signal, and
they are counted by reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arrol.columns import Flags, Floats, Integers, check_one_length, check_outcomes
from arrol.errors import ArrolError, check_integer, check_range
from arrol.estimators import balance


class SignalLoss(StrEnum):
    """Why a group carries no signal; the first that applies."""

    TOO_FEW_SURVIVORS = "too_few_survivors"  #: fewer than two
    ALL_RIGHT = "all_right"
    ALL_WRONG = "all_wrong"


@dataclass(frozen=True)
class GroupSummary:
    """What is left of each group; one entry a group, in order of group id.

    Attributes:
        groups: ids, integers [B].
        sizes: rollouts, pruned ones too, int64[B].
        survivors: rollouts that have an outcome, int64[B].
        right: survivors that are right, int64[B].
        losses: why a group carries no signal; None for one that does. Length B.
    """

    groups: NDArray[Any]
    sizes: Integers
    survivors: Integers
    right: Integers
    losses: tuple[SignalLoss | None, ...]

    @property
    def positive_ratio(self) -> Floats:
        """ρ̂, share of right ones among the survivors, float64[B]; NaN without survivors."""
        return np.where(self.survivors > 0, self.right / np.maximum(self.survivors, 1), np.nan)

    @property
    def has_signal(self) -> Flags:
        """bool[B]."""
        return np.array([loss is None for loss in self.losses], dtype=np.bool_)

    @property
    def counts(self) -> Mapping[SignalLoss, int]:
        """Groups without signal, by reason; every reason has an entry."""
        found = Counter(self.losses)
        return {loss: found[loss] for loss in SignalLoss}

    @property
    def expected_balance(self) -> float:
        """Mean of ρ̂(1 − ρ̂) over the groups that have survivors; NaN if none has.

        The paper's Table 4 doesn't say whether its ρ̂ is a group's or a batch's. They differ:
        survivors drawn independently at rate r give r(1 − r)(1 − 1/n) in groups of n.
        """
        return balance(self.positive_ratio)

    @property
    def batch_balance(self) -> float:
        """ρ̂(1 − ρ̂) of all survivors pooled; NaN if there are none."""
        survivors = self.survivors.sum()
        return balance([self.right.sum() / survivors] if survivors else [])


def index_groups(groups_N: ArrayLike) -> tuple[NDArray[Any], Integers]:
    """The distinct ids [B], sorted, and for each row the place of its id among them, int64[N].

    Raises:
        ArrolError: the ids are not integers or not one-dimensional.
    """
    groups = np.asarray(groups_N)
    if groups.size == 0:
        groups = groups.astype(np.int64)
    check_one_length(groups=groups)
    if groups.dtype.kind not in "iu":
        raise ArrolError(f"groups has dtype {groups.dtype}; allowed are integers of up to 64 bits.")
    ids, places = np.unique(groups, return_inverse=True)
    return ids, places.astype(np.int64)


def summarize_groups(
    groups_N: ArrayLike, outcomes_N: ArrayLike, survived_N: ArrayLike
) -> GroupSummary:
    """Sizes, survivors, right ones and signal of each group.

    Args:
        groups_N: id of each row's group, integers.
        outcomes_N: 0 or 1 for a survivor; not read for the others (NaN is fine).
        survived_N: the row has an outcome.

    Raises:
        ArrolError: a survivor's outcome is not 0 or 1, or lengths differ.
    """
    ids, places = index_groups(groups_N)
    survived = np.asarray(survived_N, dtype=np.bool_)
    outcomes = np.asarray(outcomes_N, dtype=np.float64)
    check_one_length(groups=places, outcomes=outcomes, survived=survived)
    outcomes = np.where(survived, outcomes, 0.0)
    check_outcomes("outcomes", outcomes)
    sizes = np.bincount(places, minlength=len(ids))
    survivors = np.bincount(places[survived], minlength=len(ids))
    right = np.bincount(places[outcomes == 1.0], minlength=len(ids))
    pairs = zip(survivors.tolist(), right.tolist(), strict=True)
    return GroupSummary(ids, sizes, survivors, right, tuple(_loss(*pair) for pair in pairs))


def _loss(survivors: int, right: int) -> SignalLoss | None:
    if survivors < 2:
        return SignalLoss.TOO_FEW_SURVIVORS
    return {0: SignalLoss.ALL_WRONG, survivors: SignalLoss.ALL_RIGHT}.get(right)


def signal_mask(groups_N: ArrayLike, outcomes_N: ArrayLike, survived_N: ArrayLike) -> Flags:
    """bool[N]: the row's group carries signal (its pruned rows are marked too)."""
    summary = summarize_groups(groups_N, outcomes_N, survived_N)
    _, places = index_groups(groups_N)
    return summary.has_signal[places]


def counts_from_ratio(ratio: float, total: int) -> int:
    """``ratio`` of ``total`` as a whole number, halves rounded up.

    The ratio is read as the simple fraction it stands for (denominator up to a million), so that
    the float next to .1 is a tenth: ``int(10 * (1 - 0.9))`` is 0, this gives 1.

    Raises:
        ArrolError: the ratio is not in [0, 1] or the total not an integer of at least 0.
    """
    check_range("ratio", ratio, 0.0, 1.0)
    check_integer("total", total, 0)
    share = Fraction(ratio).limit_denominator(1_000_000)
    return math.floor(share * total + Fraction(1, 2))
