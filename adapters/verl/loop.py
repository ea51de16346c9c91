"""Controller and head along a training run: what they send, what they learn, how they are kept."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from arrol.adapters.verl.checkpoints import FOLDER
from arrol.adapters.verl.rollout_log import write_rollouts
from arrol.adapters.verl.rollouts import Row, as_rollouts, loss_counts
from arrol.adapters.verl.settings import Settings
from arrol.adapters.vllm.pruner import Record, head_text, unpack
from arrol.controller import PruningController
from arrol.errors import ArrolError, check_integer
from arrol.files import write_atomically
from arrol.head_trainer import HeadTrainer
from arrol.plan import PruningPlan
from arrol.records import Mode, Rollout

CONTROLLER = "controller.json"
RUN = "run.json"


class PruningLoop:
    """One run's controller and head.

    Args:
        settings: the user's.

    Attributes:
        controller, head: as named; the head is there from :meth:`start` on.
        plan: the plan in force.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.controller = PruningController(settings.pruning)
        self.head: HeadTrainer | None = None
        self.plan: PruningPlan | None = None
        self._submitted: dict[str, int] = {}
        self._records: dict[int, Record] = {}
        self._tokens = 0

    def start(self, hidden_size: int) -> None:
        """The model is known: make the head that reads its hidden states [hidden_size]."""
        self.head = HeadTrainer(hidden_size, self.settings.head)

    # ---- a step ---------------------------------------------------------------------------------

    def begin(self) -> tuple[str, str]:
        """Plan (JSON) and head (base64; empty before it is first trained) of the next step."""
        assert self.head is not None
        head = self.head.head
        self.plan = self.controller.plan(head.version)
        # A step's prompts come after this, and all of them end within the step.
        self._submitted.clear()
        self._records.clear()
        self._tokens = 0
        return self.plan.to_json(), head_text(head if head.version else None)

    def submitted(self, uids: Sequence[str], group_size: int) -> None:
        """Prompts that go to the engines, with so many rollouts each."""
        self._submitted.update(dict.fromkeys(uids, group_size))

    def take(self, answers: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
        """Take in each server's records and counts."""
        for packed, status in answers:
            self._records.update({record.detection.key: record for record in unpack(packed)})
            self._tokens += status["tokens"]

    def observe(
        self, step: int, sampled: Sequence[Row], left: Sequence[Row], refilled: int
    ) -> dict[str, float]:
        """Learn from a step's rollouts; gives its metrics, named ``arrol/…``.

        Args:
            step: number of the training step.
            sampled: rows of the groups that are trained on, with the outcomes of the survivors.
            left: rows of groups that were filtered by their outcomes, or in surplus.
            refilled: prompts that were asked for beyond the batch.
        """
        assert self.plan is not None
        rows = [*sampled, *left]
        records = list(self._records.values())
        version = None if self.plan.mode is Mode.OFF else self.plan.version
        rollouts, outcomes, leftovers = as_rollouts(
            rows, records, self.plan.detect_length, self._submitted, version
        )
        found = self.controller.observe(rollouts, outcomes)
        self._learn(rollouts, outcomes)
        if self.settings.rollouts is not None:
            write_rollouts(Path(self.settings.rollouts).expanduser(), step, rows, rollouts)
        metrics = {f"arrol/{name}": value for name, value in found.items()}
        metrics |= {f"arrol/{name}": float(v) for name, v in asdict(leftovers).items()}
        reasons = loss_counts(sampled)
        metrics |= {f"arrol/trained_groups_{name}": float(v) for name, v in reasons.items()}
        metrics["arrol/plan_version"] = self.plan.version
        metrics["arrol/enforced"] = float(self.plan.mode is Mode.ON)
        metrics["arrol/cold_start"] = float(self.plan.calibration is None)
        metrics["arrol/refilled_prompts"] = refilled
        metrics["arrol/engine_tokens"] = self._tokens
        metrics["arrol/survivor_tokens"] = sum(row.tokens for row in sampled if not row.pruned)
        metrics["arrol/pruned_tokens"] = sum(row.tokens for row in rows if row.pruned)
        return metrics

    def train_head(self) -> dict[str, float]:
        """One round on what was observed; metrics named ``arrol/head/…``."""
        assert self.head is not None
        return {f"arrol/head/{name}": value for name, value in self.head.train().items()}

    def _learn(self, rollouts: Sequence[Rollout], outcomes: Mapping[int, float | None]) -> None:
        assert self.head is not None
        hidden, right, inclusion, scores = [], [], [], []
        for rollout in rollouts:
            found, outcome = rollout.detection, outcomes.get(rollout.key)
            row = None if found is None else self._records[rollout.key].hidden
            if found is None or outcome is None or row is None:
                continue
            hidden.append(row)
            right.append(outcome)
            inclusion.append(found.inclusion)
            scores.append(found.score)
        if hidden:
            self.head.observe(np.stack(hidden), right, inclusion, scores)

    # ---- checkpoints ----------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str], step: int, prompts: int) -> None:
        """Write ``arrol/`` into a checkpoint's folder: all of it or nothing.

        Args:
            folder: verl's ``global_step_…``.
            step: its number.
            prompts: drawn from the data so far.
        """
        assert self.head is not None
        target = Path(folder) / FOLDER
        unfinished = target.with_name(f".{FOLDER}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        self.controller.save(unfinished / CONTROLLER)
        self.head.save(unfinished)
        note = {"step": step, "prompts": prompts}
        write_atomically(unfinished / RUN, json.dumps(note))
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)

    def load(self, folder: str | os.PathLike[str], step: int) -> int:
        """Continue from what :meth:`save` wrote; gives the prompts drawn so far.

        Raises:
            ArrolError: it is missing, damaged or of another step.
        """
        assert self.head is not None
        source = Path(folder) / FOLDER
        try:
            note = json.loads((source / RUN).read_text(encoding="utf-8"))
            check_integer("step", note["step"], step, step)
            check_integer("prompts", note["prompts"], 0)
        except (KeyError, OSError, RecursionError, TypeError, ValueError) as error:
            raise ArrolError(
                f"{source} can't be read ({error}); allowed is a checkpoint that was saved with "
                "arrol.mode on or shadow, or trainer.resume_mode=disable."
            ) from None
        self.controller.load(source / CONTROLLER)
        self.head.load(source)
        prompts: int = note["prompts"]
        return prompts
