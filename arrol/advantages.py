"""Group-relative advantages on what pruning left of each group.

A pruned rollout is not a wrong one: it enters no mean, no standard deviation and no count, and
its advantage is 0. With n survivors of rewards r in a group, mean r̄ and standard deviation σ:

    GRPO       A_i = (r_i − r̄) / (σ + ε)       σ with n − 1, as verl's ``torch.std`` has it
    Dr. GRPO   A_i = r_i − r̄
    DAPO       GRPO's, and 0 throughout a group whose survivors share one OUTCOME

Reward and outcome are two columns: a reward may be any real (a format bonus, a length penalty),
the outcome says right or wrong. DAPO's dynamic sampling reads the outcome, or a group of eight
wrong answers of different lengths would pass for one that teaches what is right.

Where verl differs: in a group of one it sets r̄ = 0 and σ = 1, so that a lone right survivor
gets an advantage of 1 for having been left alone. Here it is 0, as is every advantage in a group
of equal rewards, exactly, in float32 too (verl leaves the rounding error of r̄ over ε = 1e-6).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arrol.columns import Flags, Floats, Integers, check_column, check_one_length
from arrol.errors import ArrolError, as_member, check_range
from arrol.groups import index_groups, signal_mask

EPSILON = 1e-6  #: added to the standard deviation, as in verl
DAPO_CLIP_LOW = 0.2  #: ε_low of DAPO's clip range [1 − ε_low, 1 + ε_high]
DAPO_CLIP_HIGH = 0.28  #: ε_high


class AdvantageKind(StrEnum):
    """Which group-relative advantage."""

    GRPO = "grpo"
    DR_GRPO = "dr_grpo"
    DAPO = "dapo"


class LossKind(StrEnum):
    """How the losses of single tokens become one loss."""

    TOKEN_MEAN = "token_mean"  #: every token counts the same (DAPO)
    SEQUENCE_MEAN = "sequence_mean"  #: every rollout counts the same (GRPO)


def advantages(
    rewards_N: ArrayLike,
    groups_N: ArrayLike,
    survived_N: ArrayLike,
    kind: AdvantageKind | str,
    *,
    outcomes_N: ArrayLike | None = None,
    inclusion_N: ArrayLike | None = None,
    weight_cap: float = 10.0,
) -> NDArray[Any]:
    """One advantage a row, in the floating type of ``rewards_N`` (float64 for integers).

    Args:
        rewards_N: any finite reals; those of the pruned are not read.
        groups_N: id of each row's group, integers, in any order of rows.
        survived_N: false for a pruned row.
        kind: which advantage.
        outcomes_N: 0 or 1 for each survivor; DAPO needs them, the others don't read them.
        inclusion_N: if given, r̄ and σ are those of all rollouts as estimated from the survivors
            (Hájek's form): weights min(1/p, ``weight_cap``), self-normalised in each group. The
            n/(n − 1) of σ stays. Those of the pruned are not read.
        weight_cap: largest weight, at least 1.

    Raises:
        ArrolError: a value is outside its range, lengths differ, or DAPO has no outcomes.
    """
    kind = as_member("kind", AdvantageKind, kind)
    rewards = _as_real(rewards_N)
    ids, places = index_groups(groups_N)
    survived = np.asarray(survived_N, dtype=np.bool_)
    check_one_length(rewards=rewards, groups=places, survived=survived)
    # Survivors only, in double precision: S rows in len(ids) groups.
    rewards_S, places_S = rewards[survived].astype(np.float64), places[survived]
    check_column("rewards of survivors", rewards_S)
    weights_S = _weights(inclusion_N, survived, weight_cap)
    mean_S, deviation_S = _moments(rewards_S, places_S, weights_S, len(ids))
    advantages_S = rewards_S - mean_S
    if kind is not AdvantageKind.DR_GRPO:
        advantages_S = advantages_S / (deviation_S + EPSILON)
    advantages_S[_all_equal(rewards_S, places_S, len(ids))] = 0.0
    result = np.zeros_like(rewards)
    result[survived] = advantages_S
    if kind is AdvantageKind.DAPO:
        if outcomes_N is None:
            raise ArrolError("outcomes is None; allowed with kind 'dapo' is one 0 or 1 a row.")
        result[~signal_mask(groups_N, outcomes_N, survived)] = 0.0
    return result


def loss_weights(lengths_N: ArrayLike, used_N: ArrayLike, kind: LossKind | str) -> Floats:
    """Weight of each token of a row in the loss, float64[N]; over all tokens they add up to 1.

    Args:
        lengths_N: tokens of each row, at least 1 where used.
        used_N: rows that train: survivors, and with DAPO only those of groups with signal
            (:func:`arrol.groups.signal_mask`), whose tokens alone make up the mean.
        kind: token mean 1/Σ length, or sequence mean 1/(rows · length).
    """
    kind = as_member("kind", LossKind, kind)
    lengths = np.asarray(lengths_N, dtype=np.float64)
    used = np.asarray(used_N, dtype=np.bool_)
    check_one_length(lengths=lengths, used=used)
    used_S = lengths[used]
    check_column("lengths of used rows", used_S, 1.0)
    weights = np.zeros(len(lengths))
    if len(used_S):
        total = used_S.sum() if kind is LossKind.TOKEN_MEAN else len(used_S) * used_S
        weights[used] = 1.0 / total
    return weights


def _as_real(rewards_N: ArrayLike) -> NDArray[Any]:
    rewards = np.asarray(rewards_N)
    return rewards if rewards.dtype.kind == "f" else rewards.astype(np.float64)


def _weights(inclusion_N: ArrayLike | None, survived: Flags, weight_cap: float) -> Floats:
    if inclusion_N is None:
        return np.ones(int(survived.sum()))
    inclusion = np.asarray(inclusion_N, dtype=np.float64)
    check_one_length(survived=survived, inclusion=inclusion)
    check_range("weight_cap", weight_cap, 1.0)
    inclusion_S = inclusion[survived]
    check_column("inclusion of survivors", inclusion_S, 0.0, 1.0, open_low=True)
    return np.minimum(1.0 / inclusion_S, weight_cap)


def _moments(
    rewards_S: Floats, places_S: Integers, weights_S: Floats, groups: int
) -> tuple[Floats, Floats]:
    """For each survivor the weighted mean and standard deviation (n − 1) of its group."""

    def of_group(values_S: Floats) -> Floats:
        return np.bincount(places_S, values_S, groups)[places_S].astype(np.float64)

    total_S = of_group(weights_S)
    mean_S = of_group(weights_S * rewards_S) / total_S
    variance_S = of_group(weights_S * (rewards_S - mean_S) ** 2) / total_S
    count_S = of_group(np.ones_like(weights_S))
    return mean_S, np.sqrt(variance_S * count_S / np.maximum(count_S - 1.0, 1.0))


def _all_equal(rewards_S: Floats, places_S: Integers, groups: int) -> Flags:
    """The survivor's group has one reward only: told by comparison, not by a small deviation."""
    low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low, places_S, rewards_S)
    np.maximum.at(high, places_S, rewards_S)
    same: Flags = (low == high)[places_S]
    return same
