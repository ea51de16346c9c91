"""Survivors without an engine: a warm controller's plan decides arrays of scores.

The calibration comes from a cold start on other draws than those that are decided. Groups are
decided in order of arrival, which is random: rollouts of a group are exchangeable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arrol import estimators
from arrol.bounds import balance_shift, unclipped_paper_shift
from arrol.config import Preset, PruningConfig
from arrol.controller import PruningController
from arrol.decider import Decisions
from arrol.groups import summarize_groups
from arrol.plan import PruningPlan
from arrol.records import FinishReason, Rollout
from arrol.sim import paper
from arrol.sim.workload import Workload, WorkloadBatch

Measures = dict[str, float]

COLD_START_GROUPS = 640  #: of 16; the paper's 20 steps leave no more than that in the buffer

RATIO = "mean ρ̂"
PER_GROUP = "E[ρ̂(1−ρ̂)] per group"
PER_BATCH = "ρ̂(1−ρ̂) per batch"
TOO_FEW = "groups with < 2 survivors"
NO_SIGNAL = "groups without signal"
KEEP_RATE = "keep rate"
FALSE_PRUNE = "false-prune rate"
SHIFT, CLOSED_FORM, UNCLIPPED = "shift of q", "Cov(p, q)/κ", "−λVar(q)/κ"
RATE_ERROR = "error of the 1/p-weighted pass rate"
RATE_SHIFT = "pass rate of survivors − of all"


@dataclass(frozen=True)
class Prior:
    """What the paper does not pin down: how prompts and scores are spread."""

    pass_rate: float = paper.TABLE_4[0].positive_ratio
    concentration: float = 2.0
    score_auc: float = 0.78


@cache
def workload_of(prior: Prior, groups: int, group_size: int) -> Workload:
    """The law of so many groups under a prior; making one solves for its constants."""
    return Workload(
        prompts=groups,
        group_size=group_size,
        pass_rate=prior.pass_rate,
        pass_rate_concentration=prior.concentration,
        score_auc=prior.score_auc,
    )


def cold_start(prior: Prior, rng: np.random.Generator) -> dict[str, Any]:
    """State of a controller that saw the labels of a cold start under this prior."""
    controller = PruningController(PruningConfig())
    batch = workload_of(prior, COLD_START_GROUPS, paper.GROUP_SIZE).draw(rng)
    decisions = decide(controller.plan(), batch, rng)
    controller.observe(*rollouts_of(decisions, batch.outcomes_N))
    return controller.state_dict()


def warm_plan(state: dict[str, Any], preset: Preset, **overrides: Any) -> PruningPlan:
    """The plan that a preset makes after this cold start."""
    config = PruningConfig.preset(preset, cold_start_steps=1, **overrides)
    controller = PruningController(config)
    controller.load_state_dict(state)
    return controller.plan()


def decide(plan: PruningPlan, batch: WorkloadBatch, rng: np.random.Generator) -> Decisions:
    """Decisions on all rollouts of a batch, under keys that are drawn."""
    rollouts, groups = len(batch.outcomes_N), len(batch.pass_rates_B)
    keys_N = rng.integers(0, 2**64, rollouts, dtype=np.uint64)
    groups_B = rng.integers(0, 2**64, groups, dtype=np.uint64)
    group_size = rollouts // groups
    return plan.decide(
        batch.scores_N, keys_N, groups_B[batch.groups_N], batch.indices_N, group_size
    )


def rollouts_of(
    decisions: Decisions, outcomes_N: NDArray[np.int64]
) -> tuple[list[Rollout], dict[int, float]]:
    """Decisions as rollouts, with the outcomes of those that survive."""
    rollouts, outcomes = [], {}
    for detection, outcome in zip(decisions.detections(), outcomes_N.tolist(), strict=True):
        reason = FinishReason.PRUNED if detection.pruned else FinishReason.STOP
        rollouts.append(
            Rollout(detection.key, detection.group, detection.index, 1, reason, detection)
        )
        if not detection.pruned:
            outcomes[detection.key] = outcome
    return rollouts, outcomes


def measure(decisions: Decisions, outcomes_N: NDArray[np.int64], keep_ratio: float) -> Measures:
    """Everything that the tables report about one set of decisions."""
    kept_N = decisions.keeps_N
    summary = summarize_groups(decisions.groups_N, outcomes_N, kept_N)
    q_N, p_N = decisions.posteriors_N, decisions.survivals_N
    estimate = estimators.pass_rate(outcomes_N[kept_N], p_N[kept_N])
    return {
        RATIO: float(np.nanmean(summary.positive_ratio)),
        PER_GROUP: summary.expected_balance,
        PER_BATCH: summary.batch_balance,
        TOO_FEW: float(np.mean(summary.survivors < 2)),
        NO_SIGNAL: 1.0 - float(summary.has_signal.mean()),
        KEEP_RATE: float(kept_N.mean()),
        FALSE_PRUNE: float(outcomes_N[~kept_N].mean()),
        SHIFT: float(q_N[kept_N].mean() - q_N.mean()),
        CLOSED_FORM: balance_shift(q_N, p_N),
        UNCLIPPED: unclipped_paper_shift(q_N, keep_ratio, paper.STRENGTH),
        RATE_SHIFT: float(outcomes_N[kept_N].mean() - outcomes_N.mean()),
        RATE_ERROR: estimate - float(outcomes_N.mean()),
    }
