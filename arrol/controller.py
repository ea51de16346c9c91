"""The controller: it keeps what training saw, and makes the next plan from it.

One step of training is::

    plan = controller.plan()          # pure: asking twice gives the same plan
    backend.load_plan(plan)
    rollouts = backend.generate(requests)
    metrics = controller.observe(rollouts, outcomes)
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import arrol.estimators as estimators
from arrol.calibration import CalibrationTable, LabelBuffer, fit_calibration
from arrol.columns import check_column
from arrol.config import PruningConfig, SurvivalKind
from arrol.errors import ArrolError, check_integer
from arrol.files import write_atomically
from arrol.groups import summarize_groups
from arrol.plan import PruningPlan
from arrol.records import DecisionReason, Mode, Rollout
from arrol.seen_scores import SeenScores, is_score, within_group_variance
from arrol.survival import (
    FeedbackRule,
    Rule,
    SurvivalStatus,
    detected_keep_ratio,
    random_rule,
    solve_paper,
    solve_signed,
)

Floats = NDArray[np.float64]

EARLY_WINDOW = 20  #: steps over which the share of early finishers is averaged
GUARD_LABELS = 200  #: labels that the guard wants before it judges the scores
STATE_FORMAT = 1
MAX_COUNT = 2**53  #: a count beyond it is damage


class PruningController:
    """Plans, observes and remembers.

    Attributes:
        config: what the user set.
        steps: training steps observed so far.
        metrics: figures of the last observed step.
    """

    def __init__(self, config: PruningConfig | None = None) -> None:
        self.config = config or PruningConfig()
        self.steps = 0
        self.metrics: dict[str, float] = {}
        self._labels = LabelBuffer(self.config.buffer_rows)
        self._seen = SeenScores(self.config.buffer_rows)
        self._early: deque[tuple[int, int]] = deque(maxlen=EARLY_WINDOW)

    @property
    def in_cold_start(self) -> bool:
        """Nothing is pruned yet: the first ``cold_start_steps``, or no label has come."""
        return self.steps < self.config.cold_start_steps or len(self._labels) == 0

    @property
    def early_share(self) -> float:
        """f: share of rollouts that ended before the detection length, lately."""
        total = sum(all_ for _, all_ in self._early)
        return sum(early for early, _ in self._early) / total if total else 0.0

    @property
    def guard_active(self) -> bool:
        """The scores tell right from wrong too badly to prune by: AUC under ``guard_auc``.

        The AUC is over the label buffer, weighted with 1/p, so that pruning itself does not bend
        it. It is judged from 200 labels on; NaN (one class only) trips nothing.
        """
        if len(self._labels) < GUARD_LABELS:
            return False
        return self._auc() < self.config.guard_auc

    def plan(self, head_version: int = 1) -> PruningPlan:
        """The plan for the next step. It follows from the state alone.

        Args:
            head_version: version of the quality head whose scores the engines will bring;
                0 for none.
        """
        config = self.config
        table = None if self.in_cold_start else self._fit()
        rule, status = self._rule(table)
        shadow = config.mode is Mode.ON and self.guard_active
        return PruningPlan(
            version=self.steps + 1,
            head_version=head_version,
            mode=Mode.SHADOW if shadow else config.mode,
            detect_length=config.detect_length,
            seed=config.seed,
            draw=config.draw,
            rule=rule,
            calibration=table,
            min_survivors=config.min_survivors,
            status=status,
        )

    def observe(
        self, rollouts: Sequence[Rollout], outcomes: Mapping[int, float | bool | None]
    ) -> dict[str, float]:
        """Take in one step's rollouts, before anything is filtered by its label.

        Args:
            rollouts: all that the backend handed back, the pruned and failed ones too.
            outcomes: key → 0 or 1 for rollouts that survived. A rollout without one (or None)
                counts as unverified: its score is seen, no label is learned from it.

        Returns:
            The step's metrics, also kept in ``self.metrics``. Shares: ``keep_rate``,
            ``early_share`` (ended before the detection length), ``forced_share`` (of the decided).
            Counts: ``rollouts``, ``pruned``, ``failed``, ``labels``, ``bad_scores``,
            ``label_buffer``, ``groups_…`` (without signal, by reason). With weights 1/p:
            ``pass_rate``, ``false_prune_rate``, ``brier``, ``calibration_error``,
            ``effective_sample_size``, and ``auc`` over the label buffer. Of the survivors as they
            are: ``pass_rate_survivors``, ``balance`` and ``batch_balance`` (ρ̂(1 − ρ̂) per group
            and pooled). ``guard_active`` is 0 or 1. NaN where there is nothing to average.

        Raises:
            ArrolError: an outcome is neither 0, 1 nor None, or not a survivor's; a key comes
                twice; a detection's numbers are out of range. Nothing is taken in then.
        """
        step = _Step.of(rollouts, outcomes)
        self._early.append((step.early, step.ended))
        self._seen.append(step.scores_N, step.groups_N, self.steps)
        known = step.labelled_N & step.scored_N
        self._labels.append(
            step.scores_N[known], step.outcomes_N[known], step.inclusion_N[known], self.steps + 1
        )
        self.steps += 1
        self.metrics = self._measure(step)
        return self.metrics

    def state_dict(self) -> dict[str, Any]:
        """Everything that plans depend on, as JSON values; floats keep every bit."""
        return {
            "format": STATE_FORMAT,
            "config": self.config.to_dict(),
            "steps": self.steps,
            "labels": self._labels.state_dict(),
            "seen": self._seen.state_dict(),
            "early": [list(counts) for counts in self._early],
            "metrics": {k: None if v != v else v for k, v in self.metrics.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`. The configuration stays this controller's own.

        Raises:
            ArrolError: it is no such state.
        """
        fresh = PruningController(self.config)
        try:
            if type(state["format"]) is not int or state["format"] != STATE_FORMAT:
                raise ArrolError(f"its format is {state['format']!r}; allowed is {STATE_FORMAT}.")
            fresh._labels.load_state_dict(state["labels"])
            fresh._seen.load_state_dict(state["seen"])
            fresh._early.extend(_early_counts(state["early"]))
            check_integer("steps", state["steps"], 0, MAX_COUNT)
            fresh.steps = state["steps"]
            metrics = state["metrics"].items()
            fresh.metrics = {name: np.nan if v is None else float(v) for name, v in metrics}
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            reason = str(error) if isinstance(error, ArrolError) else f"{error!r}."
            raise ArrolError(f"the controller's state is damaged: {reason}") from None
        # Only now, so that a damaged state changes nothing.
        self.__dict__.update(fresh.__dict__)

    def save(self, path: Path | str) -> None:
        """Write the state as JSON, atomically."""
        write_atomically(path, json.dumps(self.state_dict(), allow_nan=False))

    def load(self, path: Path | str) -> None:
        """Continue from a file that :meth:`save` wrote.

        Raises:
            ArrolError: the file is missing or holds no such state.
        """
        try:
            state = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ArrolError(f"{path} can't be read as a controller's state: {error}.") from None
        self.load_state_dict(state)

    def _fit(self) -> CalibrationTable | None:
        labels, config = self._labels, self.config
        # The paper counts labels as they come. Survivors are no fair sample where p depends on
        # more than the score, so the other presets undo the selection with 1/p.
        weighted = config.survival is not SurvivalKind.PAPER
        return fit_calibration(
            labels.scores,
            labels.outcomes,
            1.0 / labels.inclusion if weighted else None,
            config.calibrator,
            config.bins,
            config.smoothing,
        )

    def _rule(self, table: CalibrationTable | None) -> tuple[Rule, SurvivalStatus]:
        config, low, high = self.config, self.config.min_survival, self.config.max_survival
        share = detected_keep_ratio(config.keep_ratio, self.early_share, low, high)
        status = _status(config.keep_ratio, self.early_share, low, high)
        if table is None or len(self._seen) == 0:
            return random_rule(share, low, high), SurvivalStatus.EMPTY
        limits = (config.target_ratio, config.strength, low, high)
        if config.survival is SurvivalKind.RANDOM:
            return random_rule(share, low, high), status
        if config.survival is SurvivalKind.PAPER:
            rule, _ = solve_paper(table.posteriors_of(self._labels.scores), share, *limits)
            return rule, status
        posteriors_N = table.posteriors_of(self._seen.scores)
        if config.survival is SurvivalKind.SIGNED:
            rule, _ = solve_signed(posteriors_N, share, *limits)
            return rule, status
        return self._feedback(posteriors_N), status

    def _feedback(self, posteriors_N: Floats) -> FeedbackRule:
        config = self.config
        variance = within_group_variance(posteriors_N, self._seen.groups)
        steerable = variance > 0.0
        return FeedbackRule(
            keep_ratio=config.keep_ratio,
            early_share=self.early_share,
            target=config.target_ratio,
            strength=config.strength if steerable else 0.0,
            mean=float(posteriors_N.mean()),
            variance=variance if steerable else 1.0,
            low=config.min_survival,
            high=config.max_survival,
            min_survivors=config.min_survivors,
        )

    def _auc(self) -> float:
        labels = self._labels
        return estimators.auc(labels.scores, labels.outcomes, 1.0 / labels.inclusion)

    def _measure(self, step: _Step) -> dict[str, float]:
        known = step.labelled_N
        right_N, seen_N = step.outcomes_N[known], step.inclusion_N[known]
        judged = known & ~np.isnan(step.posteriors_N)
        posteriors_N, outcomes_N = step.posteriors_N[judged], step.outcomes_N[judged]
        survivals_N, inclusion_N = step.survivals_N[judged], step.inclusion_N[judged]
        groups = summarize_groups(step.groups_N, step.outcomes_N, known)
        false_prune_rate = estimators.false_prune_rate(outcomes_N, survivals_N, inclusion_N)
        return {
            "rollouts": float(len(step.keys_N)),
            "pruned": float(step.pruned),
            "failed": float(step.failed),
            "keep_rate": step.survived / max(step.ended, 1),
            "early_share": step.early / max(step.ended, 1),
            "forced_share": step.count(DecisionReason.FORCED) / max(len(step.reasons), 1),
            "bad_scores": float(step.count(DecisionReason.BAD_SCORE)),
            "labels": float(known.sum()),
            "pass_rate": estimators.pass_rate(right_N, seen_N),
            "pass_rate_survivors": estimators.pass_rate(
                step.outcomes_N[known], np.ones(known.sum())
            ),
            "effective_sample_size": estimators.effective_sample_size(
                1.0 / step.inclusion_N[known]
            ),
            "false_prune_rate": false_prune_rate,
            "auc": self._auc(),
            "brier": estimators.brier(posteriors_N, outcomes_N, 1.0 / inclusion_N),
            "calibration_error": estimators.expected_calibration_error(
                posteriors_N, outcomes_N, 1.0 / inclusion_N
            ),
            "balance": groups.expected_balance,
            "batch_balance": groups.batch_balance,
            **{f"groups_{loss.value}": float(n) for loss, n in groups.counts.items()},
            "label_buffer": float(len(self._labels)),
            "guard_active": float(self.guard_active),
        }


def _early_counts(pairs: list[list[int]]) -> Iterator[tuple[int, int]]:
    """Early finishers and all rollouts of each step, checked."""
    for early, total in pairs:
        check_integer("rollouts of a step", total, 0, MAX_COUNT)
        check_integer("early finishers", early, 0, total)
        yield early, total


class _Step:
    """One step's rollouts as arrays [N]; NaN where a rollout has no score or no outcome."""

    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        n = len(rollouts)
        self.keys_N = np.fromiter((r.key for r in rollouts), np.uint64, n)
        self.groups_N = np.fromiter((r.group for r in rollouts), np.uint64, n)
        found = [r.detection for r in rollouts]
        self.scores_N = np.fromiter((np.nan if d is None else d.score for d in found), float, n)
        self.posteriors_N = np.fromiter(
            (np.nan if d is None else d.posterior for d in found), float, n
        )
        self.survivals_N = np.fromiter((1.0 if d is None else d.survival for d in found), float, n)
        self.inclusion_N = np.fromiter((1.0 if d is None else d.inclusion for d in found), float, n)
        self.reasons = [d.reason for d in found if d is not None]
        self.outcomes_N = np.full(n, np.nan)
        self.survived = sum(r.survived for r in rollouts)
        self.pruned = sum(d is not None and d.pruned for d in found)
        self.failed = n - self.survived - self.pruned
        self.early = sum(r.survived and r.detection is None for r in rollouts)
        self.ended = self.survived + self.pruned

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], outcomes: Mapping[int, Any]) -> _Step:
        step = cls(rollouts)
        rows = {rollout.key: row for row, rollout in enumerate(rollouts)}
        if len(rows) < len(rollouts):
            raise ArrolError(f"{len(rollouts) - len(rows)} rollouts share a key; allowed is none.")
        check_column("survival", step.survivals_N, 0.0, 1.0)
        check_column("inclusion", step.inclusion_N, 0.0, 1.0, open_low=True)
        known = step.posteriors_N[~np.isnan(step.posteriors_N)]
        check_column("posterior", known, 0.0, 1.0)
        for key, outcome in outcomes.items():
            if outcome is None or outcome != outcome:
                continue
            row = rows.get(key)
            if row is None or not rollouts[row].survived:
                what = "unknown" if row is None else rollouts[row].finish_reason.value
                raise ArrolError(
                    f"rollout {key} has outcome {outcome!r} though it is {what}; allowed is an "
                    "outcome for survivors only."
                )
            if outcome not in (0, 1):
                raise ArrolError(
                    f"the outcome of rollout {key} is {outcome!r}; allowed is 0, 1 or None."
                )
            step.outcomes_N[row] = float(outcome)
        return step

    def count(self, reason: DecisionReason) -> int:
        return self.reasons.count(reason)

    @property
    def labelled_N(self) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = ~np.isnan(self.outcomes_N)
        return known

    @property
    def scored_N(self) -> NDArray[np.bool_]:
        return is_score(self.scores_N)


def _status(keep_ratio: float, early_share: float, low: float, high: float) -> SurvivalStatus:
    """Whether κ' lies strictly inside (p_min, p_max)."""
    share = (keep_ratio - early_share) / (1.0 - early_share) if early_share < 1.0 else 0.0
    if share <= low:
        return SurvivalStatus.BELOW_MIN
    return SurvivalStatus.ABOVE_MAX if share >= high else SurvivalStatus.OK
