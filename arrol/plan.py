"""The plan: what a controller sends down and every engine carries out, the same everywhere.

A :class:`PruningPlan` is frozen and pure: a decision follows from the plan, the rollout's key and
score and, with systematic draws, from the scores of its group that the same engine saw before.
So every decision can be computed again from its record (:meth:`PruningPlan.replay`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from arrol.calibration import CalibrationTable
from arrol.config import Draw
from arrol.decider import Decider, Decisions
from arrol.errors import ArrolError, check_integer
from arrol.records import DecisionReason, Detection, Mode, Request
from arrol.survival import Rule, SurvivalStatus, rule_from_dict, rule_to_dict

# The head version that an engine must have held to give such a reason.
_HEADS = {DecisionReason.NO_HEAD: 0, DecisionReason.OLD_HEAD: -1}


@dataclass(frozen=True)
class PruningPlan:
    """One version of the pruning rule.

    Attributes:
        version: t, counted up by the controller.
        head_version: version of the quality head that the calibration belongs to; 0 if none.
        mode: what engines do with decisions.
        detect_length: L_detect in tokens.
        seed: seed of the draws.
        draw: bernoulli or systematic.
        rule: from posterior to survival probability.
        calibration: from score to posterior; None in the cold start, when everything is kept.
        min_survivors: rollouts of a group that must be left (systematic draws only).
        status: whether κ could be met by the rule.
    """

    version: int
    head_version: int
    mode: Mode
    detect_length: int
    seed: int
    draw: Draw
    rule: Rule
    calibration: CalibrationTable | None
    min_survivors: int = 0
    status: SurvivalStatus = SurvivalStatus.OK

    def __post_init__(self) -> None:
        check_integer("version", self.version, 0)
        check_integer("head_version", self.head_version, 0)
        check_integer("detect_length", self.detect_length, 1)
        check_integer("seed", self.seed, 0, 2**64 - 1)
        check_integer("min_survivors", self.min_survivors, 0)

    def decider(self, engine: int = 0, head_version: int | None = None) -> Decider:
        """The plan in force at one engine.

        Args:
            engine: number of the engine; each follows its own part of a group.
            head_version: version of the head that the engine holds; 0 for none. Anything but the
                plan's own keeps every rollout.
        """
        return Decider(self, engine, self.head_version if head_version is None else head_version)

    def decide(
        self,
        scores_N: Any,
        keys_N: Any,
        groups_N: Any,
        indices_N: Any | None = None,
        group_size: Any | None = None,
    ) -> Decisions:
        """Decide on N rollouts at once, each group from its start.

        Args:
            scores_N: quality scores in [0, 1]; NaN keeps.
            keys_N, groups_N: 64-bit keys.
            indices_N: order within the group; default: the order of the rows.
            group_size: G, one number or [N]; default: the rows that each group has here.

        Returns:
            The decisions, row by row as given.
        """
        return self.decider().decide(scores_N, keys_N, groups_N, indices_N, group_size)

    def replay(self, detections: Iterable[Detection]) -> list[Detection]:
        """Compute decisions again from their records; equal to the last bit, in the same order.

        Each group's records must be there from its first on, in any order. A record of another
        plan comes back as this plan would have decided.
        """
        given = list(detections)
        deciders = {engine: self.decider(engine) for engine in {d.engine for d in given}}
        again: dict[int, Detection] = {}
        for place in sorted(range(len(given)), key=lambda i: given[i].rank):
            old = given[place]
            decider = deciders[old.engine]
            decider.hold_head(_HEADS.get(old.reason, self.head_version))
            request = Request(old.key, old.group, old.index, old.group_size)
            again[place] = decider.decide_one(request, old.score)
        return [again[place] for place in range(len(given))]

    def to_json(self) -> str:
        """One line of JSON; floats keep every bit."""
        values = {
            "version": self.version,
            "head_version": self.head_version,
            "mode": self.mode.value,
            "detect_length": self.detect_length,
            "seed": self.seed,
            "draw": self.draw.value,
            "rule": rule_to_dict(self.rule),
            "calibration": None if self.calibration is None else self.calibration.to_dict(),
            "min_survivors": self.min_survivors,
            "status": self.status.value,
        }
        return json.dumps(values, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> PruningPlan:
        """The inverse of :meth:`to_json`.

        Raises:
            ArrolError: the text is no plan.
        """
        try:
            values = json.loads(text)
            table = values["calibration"]
            kinds = {
                "mode": Mode(values["mode"]),
                "draw": Draw(values["draw"]),
                "rule": rule_from_dict(values["rule"]),
                "calibration": None if table is None else CalibrationTable.from_dict(table),
                "status": SurvivalStatus(values["status"]),
            }
            return cls(**{**values, **kinds})
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ArrolError(f"the text is no pruning plan: {error!r}.") from None
