"""A quality head and a controller's state out of one run: how ``--save-head`` learns.

The head is trained on all graded rollouts. Its scores on them would flatter it, and a calibration
made of them would be too sure. So two more heads are trained, each on one half of the prompts, and
each scores the other half: these held-out scores give the AUC and feed the controller, as in
scikit-learn's ``CalibratedClassifierCV(ensemble=False)``. The paper trains during RL, where scores
come before outcomes, and needs no such split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from arrol.adapters.vllm.generate import CONTROLLER_FILE
from arrol.columns import Floats
from arrol.config import PruningConfig
from arrol.controller import PruningController
from arrol.errors import ArrolError
from arrol.estimators import auc
from arrol.head import QualityHead
from arrol.head_config import HeadConfig
from arrol.head_trainer import HeadTrainer
from arrol.records import Rollout

BATCH_SIZE = 64
STEPS = 150  #: gradient steps that a head gets at least, but no more than MAX_EPOCHS passes
MAX_EPOCHS = 100

Hidden = NDArray[np.float16]


@dataclass(frozen=True)
class FirstHead:
    """What one run gave.

    Attributes:
        head: trained on all graded rollouts.
        controller: has seen the run, with held-out scores.
        scores: key → score: held out for graded rollouts, the head's own for others.
        held_out_auc: of the held-out scores, weighted 1/p.
        own_auc: of the head's scores on the rollouts it was trained on: too good.
    """

    head: QualityHead
    controller: PruningController
    scores: dict[int, float]
    held_out_auc: float
    own_auc: float

    def save(self, folder: Path) -> None:
        """Write the controller's state, then the head.

        Raises:
            ArrolError: the folder can't be written to.
        """
        self.controller.save(folder / CONTROLLER_FILE)
        self.head.save(folder)


def learn(
    rollouts: Sequence[Rollout],
    outcomes: Mapping[int, bool],
    hidden: Mapping[int, Hidden],
    config: PruningConfig,
) -> FirstHead:
    """Train a head on a run's rollouts and let a controller observe them.

    Args:
        rollouts: all of the run.
        outcomes: key → right or not, of those that could be graded.
        hidden: key → hidden state at the detection length, of those that got there.
        config: of the controller.

    Raises:
        ArrolError: right and wrong ones are too few, or in too few prompts, to split.
    """
    graded = [r for r in rollouts if r.key in outcomes and r.key in hidden]
    right_N = np.array([outcomes[r.key] for r in graded], dtype=np.float64)
    inclusion_N = np.array([r.detection.inclusion for r in graded if r.detection], dtype=np.float64)
    groups_N = np.array([r.group for r in graded], dtype=np.uint64)
    halves_N = split(groups_N, right_N)
    for half in (0, 1):
        if len(set(right_N[halves_N == half])) < 2:
            right = int(right_N.sum())
            raise ArrolError(
                f"--save-head has {right:,} right and {len(graded) - right:,} wrong rollouts to "
                f"learn from, of those that reached L_detect = {config.detect_length}; allowed are "
                "right and wrong ones in two prompts or more each (more or other prompts, or a "
                "smaller --detect-length)."
            )
    rows_NH = torch.from_numpy(np.stack([hidden[r.key] for r in graded]))
    head = _train(rows_NH, right_N, inclusion_N, config.seed)
    held_out_N = np.empty(len(graded))
    for half in (0, 1):
        other, mine = halves_N != half, halves_N == half
        sibling = _train(rows_NH[other], right_N[other], inclusion_N[other], config.seed)
        held_out_N[mine] = sibling.scores(rows_NH[mine].float()).numpy()
    own_N = head.scores(rows_NH.float()).numpy()
    scores = dict(zip((r.key for r in graded), held_out_N.tolist(), strict=True))
    scores |= _scores_of_others(head, hidden, scores)
    known = np.isfinite(held_out_N)
    return FirstHead(
        head=head,
        controller=_observed(rollouts, outcomes, scores, config),
        scores={key: score for key, score in scores.items() if math.isfinite(score)},
        held_out_auc=auc(held_out_N[known], right_N[known], 1.0 / inclusion_N[known]),
        own_auc=auc(own_N[known], right_N[known], 1.0 / inclusion_N[known]),
    )


def split(groups_N: NDArray[np.uint64], right_N: Floats) -> NDArray[np.int64]:
    """Two halves of the groups, 0 and 1 for each row, with about as many right ones in both.

    Groups in the order of their right ones go to the two halves in turns: 0 1 1 0 0 1 1 0 …
    """
    _, codes_N = np.unique(groups_N, return_inverse=True)
    right_B = np.bincount(codes_N, right_N)
    halves_B = np.empty(len(right_B), dtype=np.int64)
    halves_B[np.argsort(-right_B, kind="stable")] = (np.arange(len(right_B)) + 1) // 2 % 2
    halves_N: NDArray[np.int64] = halves_B[codes_N]
    return halves_N


def _train(rows_NH: torch.Tensor, right_N: Floats, inclusion_N: Floats, seed: int) -> QualityHead:
    batches = math.ceil(len(rows_NH) / BATCH_SIZE)
    epochs = min(max(math.ceil(STEPS / batches), 1), MAX_EPOCHS)
    config = HeadConfig(
        batch_size=BATCH_SIZE, epochs=epochs, buffer_rows=len(rows_NH), seed=seed % 2**63
    )
    trainer = HeadTrainer(rows_NH.shape[1], config)
    trainer.observe(rows_NH, right_N, inclusion_N)
    trainer.train()
    return trainer.head


def _scores_of_others(
    head: QualityHead, hidden: Mapping[int, Hidden], scores: Mapping[int, float]
) -> dict[int, float]:
    """The head's scores of rollouts whose outcome it has not seen."""
    keys = [key for key in hidden if key not in scores]
    if not keys:
        return {}
    rows_NH = torch.from_numpy(np.stack([hidden[key] for key in keys])).float()
    return dict(zip(keys, head.scores(rows_NH).tolist(), strict=True))


def _observed(
    rollouts: Sequence[Rollout],
    outcomes: Mapping[int, bool],
    scores: Mapping[int, float],
    config: PruningConfig,
) -> PruningController:
    """A controller that has seen the run as if these scores had come from the engine."""
    controller = PruningController(config)
    seen = []
    for rollout in rollouts:
        detection = rollout.detection
        if detection is not None:
            score = scores.get(rollout.key, math.nan)
            # The posterior belongs to another head, if there was one.
            detection = detection._replace(score=score, posterior=math.nan)
        seen.append(replace(rollout, detection=detection))
    controller.observe(seen, outcomes)
    return controller
