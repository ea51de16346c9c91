"""The values that travel between controller and engine: requests, rollouts, detections."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class Mode(StrEnum):
    """What an engine does with a decision."""

    OFF = "off"  #: no scoring at all
    SHADOW = "shadow"  #: decide and record, prune nothing
    ON = "on"  #: decide, record and prune


class FinishReason(StrEnum):
    """Why a rollout left its engine."""

    STOP = "stop"  #: the model ended it
    LENGTH = "length"  #: it reached the token limit
    PRUNED = "pruned"  #: the plan ended it at the detection length
    FAILED = "failed"  #: the engine could not run it


class DecisionReason(StrEnum):
    """What made a decision. Everything but ``DRAW`` keeps the rollout."""

    DRAW = "draw"  #: the survival draw decided
    FORCED = "forced"  #: kept against the draw, to leave ``min_survivors``
    SMALL_GROUP = "small_group"  #: the group is not larger than ``min_survivors``
    COLD_START = "cold_start"  #: the plan has no calibration yet
    NO_HEAD = "no_head"  #: the engine holds no quality head
    OLD_HEAD = "old_head"  #: the engine's head is not the plan's version
    BAD_SCORE = "bad_score"  #: the score is NaN, infinite or missing


@dataclass(frozen=True, slots=True)
class Request:
    """One rollout to generate.

    Attributes:
        key: 64-bit identity of the rollout, unique within a step (see :func:`arrol.stable_key`).
        group: 64-bit identity of its group (the prompt).
        index: place in its group, 0-based.
        group_size: rollouts of this group that the same engine gets.
    """

    key: int
    group: int
    index: int
    group_size: int


class Detection(NamedTuple):
    """What an engine decided about one rollout at the detection length.

    A named tuple, as engines make one for every rollout: a frozen dataclass takes 5× as long.

    Attributes:
        key, group, index, group_size: as in :class:`Request`.
        rank: how many of the group were decided before it, at its engine.
        score: quality score s in [0, 1]; NaN where none could be had.
        posterior: q = P(Y=1 | s); NaN where the score was not used.
        survival: survival probability p. It depends on scores alone, never on the draw.
        keep: the decision.
        reason: what made it.
        version: the plan's version.
        enforced: the decision was carried out (mode ``on``), not only recorded.
        engine: number of the engine that decided. Each engine follows its own part of a group.
    """

    key: int
    group: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which no record needs
    group_size: int
    rank: int
    score: float
    posterior: float
    survival: float
    keep: bool
    reason: DecisionReason
    version: int
    enforced: bool
    engine: int = 0

    @property
    def inclusion(self) -> float:
        """Probability with which this rollout's outcome gets to be seen."""
        return self.survival if self.enforced else 1.0

    @property
    def pruned(self) -> bool:
        """The rollout was in fact ended here."""
        return self.enforced and not self.keep

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; a NaN score or posterior becomes None."""
        values = self._asdict()
        values["reason"] = self.reason.value
        for name in ("score", "posterior"):
            values[name] = None if math.isnan(values[name]) else values[name]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Detection:
        """The inverse of :meth:`to_dict`."""
        numbers = {
            name: math.nan if values[name] is None else float(values[name])
            for name in ("score", "posterior")
        }
        return cls(**{**values, **numbers, "reason": DecisionReason(values["reason"])})


@dataclass(frozen=True, slots=True)
class Rollout:
    """One finished rollout, as an engine hands it back.

    Attributes:
        key, group, index: as in :class:`Request`.
        tokens: generated tokens, without a pruned rollout's sentinel.
        finish_reason: why it ended.
        detection: the decision about it; None if it ended before the detection length.
    """

    key: int
    group: int
    index: int
    tokens: int
    finish_reason: FinishReason
    detection: Detection | None = None

    @property
    def survived(self) -> bool:
        """It can be given an outcome: neither pruned nor failed."""
        return self.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
