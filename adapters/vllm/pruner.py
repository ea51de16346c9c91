"""What one engine knows: the plan, the head, and the decisions that nobody has fetched yet.

:meth:`Pruner.decide` is the one decision function. vLLM's two processor interfaces are thin shims
over it, and nothing in here knows vLLM.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from arrol.decider import Decider
from arrol.plan import PruningPlan
from arrol.records import DecisionReason, Detection, Mode, Request

BLOCK = 16  #: rows that the head is always given at once
_NO_HEAD = (DecisionReason.NO_HEAD, DecisionReason.OLD_HEAD)
_log = logging.getLogger("arrol")


class Head(Protocol):
    """A quality head, such as :class:`arrol.head.QualityHead`."""

    version: int

    def scores(self, hidden_NH: torch.Tensor) -> torch.Tensor:
        """Quality scores [N] of hidden states [N, H]; a row of NaN gives NaN."""
        ...


@dataclass(frozen=True, slots=True)
class Record:
    """A decision and what it was made from: [H] float16, or None where it is not kept."""

    detection: Detection
    hidden: NDArray[np.float16] | None


class Pruner:
    """Decides the rollouts of one engine.

    Attributes:
        plan: the plan in force; None before the first, when nothing is decided.
        head: the quality head; None if the engine holds none.
        keep_hidden: keep hidden states for the trainer of the head.
        tokens, decided, pruned: counts since the plan was loaded.
    """

    def __init__(self) -> None:
        self.plan: PruningPlan | None = None
        self.head: Head | None = None
        self.keep_hidden = True
        self.tokens = self.decided = self.pruned = 0
        self._engine = 0
        self._decider: Decider | None = None
        self._records: dict[int, Record] = {}
        # Decisions of this plan that were fetched: a preempted request may come here again.
        self._fetched: dict[int, Detection] = {}
        self._complained = False

    @property
    def active(self) -> bool:
        """Rollouts are scored now."""
        return self.plan is not None and self.plan.mode is not Mode.OFF

    def load_plan(
        self, plan: PruningPlan | None, engine: int = 0, keep_hidden: bool = True
    ) -> None:
        """Put a plan in force from the next step on; groups start afresh.

        Args:
            plan: None to decide nothing.
            engine: this engine's number among those that carry out the plan.
            keep_hidden: keep hidden states too.
        """
        self.plan, self._engine, self.keep_hidden = plan, engine, keep_hidden
        self._decider = None if plan is None else plan.decider(engine, self._head_version)
        self.tokens = self.decided = self.pruned = 0
        self._fetched.clear()

    def load_head(self, head: Head | None) -> None:
        """Score with this head from the next step on; None takes it away."""
        self.head = head
        self._complained = False
        if self._decider is not None:
            self._decider.hold_head(self._head_version)

    def decide(self, requests: Sequence[Request], hidden_NH: torch.Tensor) -> list[bool]:
        """Decide N rollouts that have just reached the detection length, in one engine step.

        Args:
            requests: which ones. One that was decided under this plan before (it was preempted
                before its next token counted) gets the same decision.
            hidden_NH: last hidden state of each one's last token.

        Returns:
            True for each that ends now.
        """
        if self.plan is None or self._decider is None or self.plan.mode is Mode.OFF:
            return [False] * len(requests)
        scores = self._scores(hidden_NH)
        rows_NH = self._rows(hidden_NH)
        # Within a step, order is by place in the group, not by slot (see ``Decider``).
        order = sorted(range(len(requests)), key=lambda i: (requests[i].group, requests[i].index))
        ends = [False] * len(requests)
        for i in order:
            detection = self._known(requests[i].key)
            if detection is None:
                detection = self._decider.decide_one(requests[i], scores[i])
                self.decided += 1
                self.pruned += detection.pruned
                self._complain(detection)
            self._records[detection.key] = Record(
                detection, None if rows_NH is None else rows_NH[i]
            )
            ends[i] = detection.pruned
        return ends

    def take(self, keys: Collection[int] | None = None) -> list[Record]:
        """Hand over records, each once: of these keys, or all."""
        wanted = (
            list(self._records)
            if keys is None
            else [k for k in dict.fromkeys(keys) if k in self._records]
        )
        records = [self._records.pop(key) for key in wanted]
        for record in records:
            if self.plan is not None and record.detection.version == self.plan.version:
                self._fetched[record.detection.key] = record.detection
        return records

    @property
    def _head_version(self) -> int:
        return 0 if self.head is None else self.head.version

    def _known(self, key: int) -> Detection | None:
        assert self.plan is not None
        record = self._records.get(key)
        detection = self._fetched.get(key) if record is None else record.detection
        if detection is None or detection.version != self.plan.version:
            return None
        return detection

    def _scores(self, hidden_NH: torch.Tensor) -> list[float]:
        """Scores in blocks of one shape: a row's must not depend on how many come with it."""
        n = len(hidden_NH)
        if self.head is None:
            return [float("nan")] * n
        filled = -(-n // BLOCK) * BLOCK
        padded = torch.zeros((filled, hidden_NH.shape[1]), dtype=torch.float32,
                             device=hidden_NH.device)  # fmt: skip
        padded[:n] = hidden_NH
        blocks = [self.head.scores(block) for block in torch.split(padded, BLOCK)]
        scores: list[float] = torch.cat(blocks)[:n].double().tolist()
        return scores

    def _rows(self, hidden_NH: torch.Tensor) -> NDArray[np.float16] | None:
        if not self.keep_hidden:
            return None
        # A copy: rows of a wider array would keep it alive, and the runner reuses its buffers.
        rows_NH: NDArray[np.float16] = hidden_NH.detach().to(torch.float16).cpu().numpy().copy()
        return rows_NH

    def _complain(self, detection: Detection) -> None:
        assert self.plan is not None
        planned = self.plan.head_version > 0
        if planned and detection.reason in _NO_HEAD and not self._complained:
            self._complained = True
            _log.warning(
                "Engine %d holds quality head %d, the plan's is %d: every rollout is kept.",
                self._engine, self._head_version, self.plan.head_version,
            )  # fmt: skip


def pack(records: Sequence[Record]) -> dict[str, Any]:
    """Records as text, which passes any of vLLM's transports."""
    wide = [record.hidden for record in records if record.hidden is not None]
    rows: Any = np.stack(wide) if wide else b""
    return {
        "detections": json.dumps([record.detection.to_dict() for record in records]),
        "with_hidden": "".join("01"[record.hidden is not None] for record in records),
        "hidden": base64.b64encode(rows).decode("ascii"),
    }


def filled(answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The one of the workers' packed records that has any: ranks that decide alike send one."""
    return next((a for a in answers if a["detections"] != "[]"), answers[0])


def head_text(head: Any | None) -> str:
    """A quality head as text, the argument of ``arrol_load_head``; empty for none."""
    return "" if head is None else base64.b64encode(head.to_bytes()).decode("ascii")


def unpack(packed: Mapping[str, Any]) -> list[Record]:
    """The inverse of :func:`pack`."""
    detections = [Detection.from_dict(values) for values in json.loads(packed["detections"])]
    flags = [flag == "1" for flag in packed["with_hidden"]]
    flat = np.frombuffer(base64.b64decode(packed["hidden"]), dtype=np.float16)
    rows = iter(flat.reshape(sum(flags), -1) if any(flags) else ())
    return [
        Record(detection, next(rows) if flag else None)
        for detection, flag in zip(detections, flags, strict=True)
    ]
