"""The table that ``arrol generate`` ends with: what a run gave, and what can't be known of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import arrol.estimators as estimators
from arrol.records import DecisionReason, Detection, FinishReason, Mode, Rollout
from arrol.survival import SurvivalStatus

if TYPE_CHECKING:
    from arrol.adapters.vllm.generate import Run

UNKNOWN = "—"
DECIDED = (DecisionReason.DRAW, DecisionReason.FORCED, DecisionReason.SMALL_GROUP)


@dataclass(frozen=True)
class Line:
    """One figure, its value, and what to know of it."""

    name: str
    value: str
    note: str = ""


def print_run(console: Console, run: Run) -> None:
    """Print a run's table and what went wrong in it; it fits consoles from 60 characters on."""
    config = run.settings.config
    console.rule(
        Text(f"{run.settings.model}, mode {config.mode.value}", style="bold"),
        align="left",
        style="dim",
    )
    for text in warnings_of(run):
        console.print(Text(text, style="yellow"))
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("note")
    for line in lines_of(run):
        table.add_row(Text(line.name), Text(line.value), Text(line.note))
    console.print(table)
    console.print()


def lines_of(run: Run) -> list[Line]:
    """The table's lines."""
    generated = sum(rollout.tokens for rollout in run.rollouts)
    rate = generated / run.seconds if run.seconds > 0 else 0.0
    return [
        _rollouts(run),
        Line("tokens generated", f"{generated:,}", "without prompts"),
        _saved(run, generated),
        Line("wall time", _time(run.seconds), "of the generation, without loading the model"),
        Line("tokens/s", f"{rate:,.0f}"),
        _kept(run),
        _pass_rate(run),
        *_aucs(run),
    ]


def warnings_of(run: Run) -> list[str]:
    """What a user must know before the figures, one sentence each."""
    texts = []
    config = run.settings.config
    if run.plan.mode is not config.mode:
        texts.append(
            f"Nothing was pruned: the AUC of the head’s scores when it was made is below "
            f"{config.guard_auc:g}, which turns mode on into shadow."
        )
    if run.plan.status in (SurvivalStatus.BELOW_MIN, SurvivalStatus.ABOVE_MAX):
        side = "below" if run.plan.status is SurvivalStatus.BELOW_MIN else "above"
        texts.append(
            f"κ = {config.keep_ratio:g} can’t be met: of the rollouts that reach L_detect, a share "
            f"{side} the survival probability’s range, {config.min_survival:g} to "
            f"{config.max_survival:g}, would have to be kept."
        )
    failed = sum(rollout.finish_reason is FinishReason.FAILED for rollout in run.rollouts)
    if failed:
        texts.append(f"{failed:,} rollouts failed; the first says: {run.first_error}")
    if run.undecided:
        texts.append(
            f"{run.undecided:,} rollouts went past L_detect without a decision and were kept: the "
            "engine had lost its plan."
        )
    return texts


def _rollouts(run: Run) -> Line:
    counts = Counter(rollout.finish_reason for rollout in run.rollouts)
    ends = ", ".join(f"{counts[reason]:,} {reason.value}" for reason in FinishReason)
    prompts = "1 prompt" if run.prompts == 1 else f"{run.prompts:,} prompts"
    return Line("rollouts", f"{len(run.rollouts):,}", f"of {prompts}: {ends}")


def _saved(run: Run, generated: int) -> Line:
    name, length = "tokens saved", run.settings.config.detect_length
    if run.plan.mode is Mode.OFF:
        return Line(name, "0", "mode off")
    if not decided(run.rollouts):
        tip = "; arrol replay of the rollouts tells more" if run.learned else ""
        return Line(name, UNKNOWN, _undecided(run) + tip)
    if run.plan.mode is Mode.SHADOW:
        saved = sum(r.tokens - length for r in run.rollouts if r.detection and not r.detection.keep)
        share = saved / max(generated, 1)
        return Line(
            "tokens savable", f"{saved:,}",
            f"{share:.1%} of them: what mode on would have saved, the tokens beyond L_detect = "
            f"{length:,} of those that it would have pruned",
        )  # fmt: skip
    beyond = [r.tokens - length for r in run.rollouts if r.survived and r.tokens > length]
    pruned = sum(rollout.finish_reason is FinishReason.PRUNED for rollout in run.rollouts)
    if not pruned:
        return Line(name, "0", "nothing was pruned")
    if not beyond:
        return Line(name, UNKNOWN, f"no rollout was kept past L_detect = {length:,}")
    mean = float(np.mean(beyond))
    saved = round(pruned * mean)
    return Line(
        name, f"≈ {saved:,}",
        f"{saved / (saved + generated):.1%} of all without pruning. An estimate: {pruned:,} pruned "
        f"× {mean:,.1f}, the mean beyond L_detect = {length:,} of the {len(beyond):,} kept ones "
        "that went past it",
    )  # fmt: skip


def _kept(run: Run) -> Line:
    found = decided(run.rollouts)
    name = "keep rate"
    if not found:
        return Line(name, UNKNOWN, _undecided(run))
    kept = sum(detection.keep for detection in found)
    would = " would have been" if run.plan.mode is Mode.SHADOW else ""
    early = sum(rollout.survived and rollout.detection is None for rollout in run.rollouts)
    return Line(
        name, f"{(kept + early) / (len(found) + early):.3f}",
        f"κ = {run.settings.config.keep_ratio:g}; {kept:,} of {len(found):,} decided"
        f"{would and ', that' + would + ' kept'}; {early:,} ended before L_detect",
    )  # fmt: skip


def _pass_rate(run: Run) -> Line:
    graded = _graded(run)
    if not graded:
        return Line("pass rate", UNKNOWN, _ungraded(run))
    outcomes_N = [run.outcomes[rollout.key] for rollout in graded]
    rate = estimators.pass_rate(outcomes_N, [inclusion(r) for r in graded])
    survived = sum(rollout.survived for rollout in run.rollouts)
    rest = survived - len(graded)
    note = f"of {len(graded):,} graded{_weighted(run)}"
    return Line("pass rate", f"{rate:.3f}", note + (f"; {rest:,} could not be graded" * bool(rest)))


def _aucs(run: Run) -> list[Line]:
    if run.learned is not None:
        return [
            *([_auc(run)] if run.settings.head is not None else []),
            Line(
                "new head’s AUC", _number(run.learned.held_out_auc),
                "held out: by heads that learned from the other half of the prompts"
                + _weighted(run),
            ),
            Line(
                "… on its own", _number(run.learned.own_auc),
                "optimistic: on the rollouts that it learned from",
            ),
        ]  # fmt: skip
    return [_auc(run)]


def _auc(run: Run) -> Line:
    name = "head’s AUC"
    if run.settings.head is None:
        return Line(name, UNKNOWN, "no head")
    rows = [
        (rollout.detection.score, run.outcomes[rollout.key], inclusion(rollout))
        for rollout in _graded(run)
        if rollout.detection is not None and math.isfinite(rollout.detection.score)
    ]
    if not rows:
        return Line(name, UNKNOWN, _ungraded(run) or "no graded rollout has a score")
    scores_N, outcomes_N, inclusion_N = np.array(rows, dtype=np.float64).T
    right = int(outcomes_N.sum())
    classes = f"{right:,} right and {len(rows) - right:,} wrong"
    value = estimators.auc(scores_N, outcomes_N, 1.0 / inclusion_N)
    if math.isnan(value):
        return Line(name, UNKNOWN, f"needs both: {classes} have a score")
    seen = f"; optimistic: the head learned from {run.learned_before:,} of these prompts"
    note = f"of {classes}{_weighted(run)}{seen if run.learned_before else ''}"
    return Line(name, _number(value), note)


def decided(rollouts: Sequence[Rollout]) -> list[Detection]:
    """Decisions that the rule made; the others kept a rollout for want of a head or a score."""
    found = [rollout.detection for rollout in rollouts if rollout.detection is not None]
    return [detection for detection in found if detection.reason in DECIDED]


def inclusion(rollout: Rollout) -> float:
    """Probability with which a rollout's outcome got to be seen."""
    return 1.0 if rollout.detection is None else rollout.detection.inclusion


def _graded(run: Run) -> list[Rollout]:
    return [rollout for rollout in run.rollouts if rollout.key in run.outcomes]


def _weighted(run: Run) -> str:
    """What is done so that survivors speak of all rollouts."""
    return ", weighted 1/p" if run.plan.mode is Mode.ON else ""


def _undecided(run: Run) -> str:
    """Why the rule decided nothing."""
    if run.plan.mode is Mode.OFF:
        return "mode off"
    if run.settings.head is None:
        return "no head, so nothing was decided"
    return "no rollout with a score reached L_detect"


def _ungraded(run: Run) -> str:
    """Why nothing was graded."""
    if not run.answers:
        return "no prompt has an answer"
    return "" if _graded(run) else "no rollout could be graded"


def _number(value: float) -> str:
    return UNKNOWN if math.isnan(value) else f"{value:.3f}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    if minutes < 1:
        return f"{rest:.1f} s"
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02.0f} s"
