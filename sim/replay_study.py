"""What ``arrol replay`` shows: the analysis of a log as studies with tables and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from arrol.groups import SignalLoss
from arrol.rollout_log import RolloutLog
from arrol.sim.intervals import mean_and_half_width
from arrol.sim.replay import (
    EQUAL_TIME,
    EQUAL_TOKENS,
    FOLDS,
    NO_PRUNING,
    ReplaySettings,
    brings_scores,
)
from arrol.sim.replay_advice import SCAN_SEEDS, Advice, Analysis
from arrol.sim.replay_clock import PROMPT_TOKENS, TIMED_ROLLOUTS
from arrol.sim.replay_figures import (
    detect_figure,
    length_figure,
    rule_order,
    rules_figure,
    score_figure,
)
from arrol.sim.replay_signal import RESAMPLES, Signal
from arrol.sim.replay_trial import FEWEST_KEPT, Trial, meets_keep_ratio
from arrol.sim.results import Study, Table

#: Measures of :class:`arrol.sim.replay.Measures` with their column and format.
COLUMNS = {
    "balance": ("E[ρ̂(1−ρ̂)] per group", ".4f"),
    "no_signal": ("groups without signal", ".3f"),
    "tokens_saved": ("tokens saved", ".3f"),
    "step": ("training step [s]", ".2f"),
    "generation": ("generation [s]", ".2f"),
    "keep_rate": ("keep rate", ".3f"),
    "decided_keep_rate": ("keep rate of the decided", ".3f"),
    "pooled_ratio": ("ρ̂ pooled", ".3f"),
    "false_prunes": ("false-prune rate", ".3f"),
}
SPEEDUPS = {"step": "step speed-up", "generation": "generation speed-up"}
LOSSES = {
    SignalLoss.TOO_FEW_SURVIVORS: "fewer than 2 survivors",
    SignalLoss.ALL_RIGHT: "all right",
    SignalLoss.ALL_WRONG: "all wrong",
}


def studies_of(analysis: Analysis) -> tuple[Study, ...]:
    """The analysis, in the order in which it is told."""
    return (
        _log_study(analysis),
        _rules_study(analysis),
        _scan_study(analysis),
        _advice_study(analysis.advice),
    )


def _log_study(analysis: Analysis) -> Study:
    log, settings = analysis.log, analysis.given.settings
    formats = "; ".join(
        f"{path}: " + ", ".join(f"{count:,} × {kind.value}" for kind, count in found.items())
        for path, found in _few(list(log.formats.items()))
    )
    more = len(log.formats) - 5
    text = f"Records read, by format: {formats}" + (
        f"; and {more} more files." if more > 0 else "."
    )
    tables = [_log_table(log, settings), _signal_table(analysis)]
    if log.problems.counts:
        tables.insert(1, _problem_table(log))
    return Study(
        name="log",
        title="The rollouts",
        text="\n\n".join([text, *log.notes, *log.caveats, *_assumptions(log, settings)]),
        tables=tuple(tables),
        figures=(length_figure(analysis), score_figure(analysis))
        if brings_scores(log)
        else (length_figure(analysis),),
    )


def _few(values: list[Any]) -> list[Any]:
    return values[:5]


def _assumptions(log: RolloutLog, settings: ReplaySettings) -> list[str]:
    found = []
    if not brings_scores(log):
        scored = int(np.isfinite(log.scores).sum())
        few = f"only {scored:,} of {len(log):,} rollouts have a quality score"
        found.append(
            f"ASSUMED: {few if scored else 'the log has no quality scores'}, so scores with an AUC "
            f"of {settings.score_auc:g} (--score-auc), overall as within groups, are drawn in "
            "their place, anew in each repetition."
        )
    if (log.prompt_tokens < 0).any():
        found.append(f"Prompts whose length the log doesn’t say count {PROMPT_TOKENS} tokens.")
    return found


def _log_table(log: RolloutLog, settings: ReplaySettings) -> Table:
    tokens, sizes = log.tokens, log.sizes
    rates = np.bincount(log.groups, log.outcomes) / sizes
    small = sizes < 2
    rows: list[tuple[str, float | int, str]] = [
        ("rollouts", len(log), ""),
        ("groups", len(sizes), ""),
        ("training steps", int(log.steps.max()) + 1, ""),
        ("smallest group", int(sizes.min()), "rollouts"),
        ("median group", float(np.median(sizes)), "rollouts"),
        ("largest group", int(sizes.max()), "rollouts"),
        ("pass rate", float(log.outcomes.mean()), "share"),
        ("mean reward", float(log.rewards.mean()), ""),
        ("mean length", float(tokens.mean()), "tokens"),
        ("median length", float(np.median(tokens)), "tokens"),
        ("90th percentile of length", float(np.quantile(tokens, 0.9)), "tokens"),
        ("longest", int(tokens.max()), "tokens"),
        (
            f"rollouts that end by L_detect = {settings.detect_length}",
            float((tokens <= settings.detect_length).mean()),
            "share",
        ),
        ("groups with fewer than 2 rollouts", float(small.mean()), "share"),
        ("groups that are all right", float(((rates == 1) & ~small).mean()), "share"),
        ("groups that are all wrong", float(((rates == 0) & ~small).mean()), "share"),
    ]
    return Table(
        name="replay_log",
        title="What the log holds",
        frame=_frame(rows, ("figure", "value", "unit")),
    )


def _problem_table(log: RolloutLog) -> Table:
    counts = log.problems.counts
    rows = [
        (kind.value, count, "used" if kind.used else "left out")
        for kind, count in sorted(counts.items())
    ]
    return Table(
        name="replay_problems",
        title="Problems in the log",
        frame=_frame(rows, ("problem", "records", "what is done")),
    )


def _signal_table(analysis: Analysis) -> Table:
    length = analysis.given.settings.detect_length
    signals = {
        "all rollouts": analysis.whole_signal,
        f"longer than L_detect = {length}": analysis.given.signal,
    }
    rows = [
        {
            "rollouts": name,
            "number": signal.rollouts,
            "groups with both outcomes": signal.mixed_groups,
            **_estimate_columns("AUC", signal, "overall"),
            **_estimate_columns("AUC within groups", signal, "within"),
        }
        for name, signal in signals.items()
    ]
    scores = "The log’s scores." if brings_scores(analysis.log) else "Assumed scores, one draw."
    frame = pd.DataFrame(rows)
    return Table(
        name="replay_signal",
        title="How well the quality score tells right from wrong",
        frame=frame,
        formats={name: ".3f" for name in frame.columns if name.startswith("AUC")},
        note=f"{scores} “low” and “high” end the 95% interval: {RESAMPLES} bootstrap resamples of "
        "whole groups. Only pairs within a group can make the group more balanced.",
    )


def _estimate_columns(name: str, signal: Signal, which: str) -> dict[str, float]:
    estimate = getattr(signal, which)
    return {name: estimate.value, f"{name} low": estimate.low, f"{name} high": estimate.high}


def _rules_study(analysis: Analysis) -> Study:
    given, best = analysis.given, analysis.best
    tables = [_rules_table(given, "replay_rules", "Each rule, as given"), _loss_table(given)]
    if best is not given:
        title = "Each rule, with the best settings found"
        tables.append(_rules_table(best, "replay_rules_best", title))
    settings, log = given.settings, analysis.log
    return Study(
        name="rules",
        title="What each rule would have done",
        text=(
            f"Each rule decides the log’s rollouts at L_detect = {settings.detect_length} tokens "
            f"with κ = {settings.keep_ratio:g}, ρ = {settings.target_ratio:g} and λ = "
            f"{settings.strength:g}, {settings.seeds} times with other draws and folds. Its "
            f"calibration never sees the group that it decides on: a group’s decisions come from a "
            f"controller that saw the other folds, of {FOLDS}. κ counts all rollouts, and those "
            "that end by L_detect always survive.\n\n"
            "Two rivals need no score: a smaller group from the start, with as many rollouts as "
            f"cost the tokens, or the time of the training step, of {settings.preset.value}."
            + _floor_text(log, settings)
        ),
        tables=tuple(tables),
        figures=(rules_figure(given),),
    )


def _floor_text(log: RolloutLog, settings: ReplaySettings) -> str:
    """What happens where κ can't be met, as too many rollouts are never decided."""
    early = float((log.tokens <= settings.detect_length).mean())
    if early == 1.0 or meets_keep_ratio(log, settings):
        return ""
    config = settings.config(settings.preset, 0)
    return (
        f"\n\n{early:.0%} of the rollouts end by L_detect, so no rule can prune down to κ: each "
        f"prunes as much as it may, to a survival of p_min = {config.min_survival:g} on average, "
        "and random and paper become the same."
    )


def _rules_table(trial: Trial, name: str, title: str) -> Table:
    unpruned = trial.results[NO_PRUNING]
    rows = []
    for rule in rule_order(trial):
        result = trial.results[rule]
        row: dict[str, Any] = {"rule": rule}
        for measure, (column, _) in COLUMNS.items():
            row |= _with_interval(column, result.values(measure).tolist(), rule)
            if measure in SPEEDUPS:
                seconds = result.values(measure)
                faster = unpruned.mean(measure) / np.where(seconds > 0, seconds, np.nan)
                row |= _with_interval(SPEEDUPS[measure], faster.tolist(), rule)
        rows.append(row)
    settings = trial.settings
    formats = dict(COLUMNS.values()) | dict.fromkeys(SPEEDUPS.values(), ".2f")
    return Table(
        name=name,
        title=f"{title}: L_detect = {settings.detect_length}, κ = {settings.keep_ratio:g}, "
        f"λ = {settings.strength:g}",
        frame=pd.DataFrame(rows),
        formats=formats,
        note=(
            f"± is half of the 95% interval of the mean over {settings.seeds} repetitions; the "
            "rollouts are the same in all. A group without survivors counts 0 in E[ρ̂(1−ρ̂)]; n "
            "random survivors have (1 − 1/n) of what the pass rate gives, so fewer mean less. The "
            "false-prune rate is the share of the pruned that were "
            f"right. Times are simulated for {settings.model.name} on one "
            f"{settings.accelerator.name} with {settings.max_num_seqs} sequences at once, step by "
            f"step of the log, from at most {TIMED_ROLLOUTS:,} rollouts; log-prob and update are "
            "Table 5’s, scaled by tokens, parameters and arithmetic."
        ),
    )


def _with_interval(column: str, values: list[float], rule: str) -> dict[str, float]:
    mean, half = mean_and_half_width(values)
    return {column: mean, f"{column} ±": math.nan if rule == NO_PRUNING else half}


def _loss_table(trial: Trial) -> Table:
    rows = [
        {
            "rule": rule,
            **{LOSSES[loss]: count for loss, count in trial.results[rule].losses.items()},
        }
        for rule in rule_order(trial)
    ]
    return Table(
        name="replay_signal_loss",
        title="Groups without signal, by reason, as given",
        frame=pd.DataFrame(rows),
        formats=dict.fromkeys(LOSSES.values(), ".1f"),
        note=f"Mean number of groups, of {len(trial.chosen.balances_B):,}.",
    )


def _scan_study(analysis: Analysis) -> Study:
    best = analysis.best.settings
    scans = {
        "detect_length": ("L_detect", analysis.detect_scan, ""),
        "keep_ratio": ("κ", analysis.keep_scan, f" at L_detect = {_at(analysis.keep_scan)}"),
        "strength": (
            "λ",
            analysis.strength_scan,
            f" at L_detect = {_at(analysis.strength_scan)}, "
            f"κ = {analysis.strength_scan[0].settings.keep_ratio:g}",
        ),
    }
    return Study(
        name="settings",
        title="Other settings",
        text=(
            f"The preset {best.preset.value} with one setting changed at a time, in at most "
            f"{SCAN_SEEDS} repetitions each. A gain is E[ρ̂(1−ρ̂)] per group less that of the "
            "smaller group.\n\n" + _selection_text(analysis)
        ),
        tables=tuple(
            _scan_table(name, f"Other {symbol}{where}", symbol, trials)
            for name, (symbol, trials, where) in scans.items()
        ),
        figures=(detect_figure(analysis),),
    )


def _selection_text(analysis: Analysis) -> str:
    """How the best settings are picked, in words."""
    settings = analysis.given.settings
    return (
        "The best settings are picked one after another. L_detect: of those at which κ can be met "
        f"and that save half of what κ can, {(1 - settings.keep_ratio) / 2:.0%} of the tokens, "
        "if possible one that nothing else speaks against; κ: of those that can "
        f"be met and leave {FEWEST_KEPT} rollouts of a typical group; λ: of all. The value given "
        "stays, or the largest takes its place if the rule excludes it, unless another has a gain "
        "at equal time (λ: a balance) that is clearly higher, by a paired 95% interval over "
        "groups. If no L_detect saves enough, it is the one that saves most."
    )


def _at(trials: Sequence[Trial]) -> int:
    return trials[0].settings.detect_length


def _scan_table(name: str, title: str, symbol: str, trials: Sequence[Trial]) -> Table:
    rows = []
    for trial in trials:
        chosen, unpruned = trial.chosen, trial.results[NO_PRUNING]
        settings = trial.settings
        faster = (unpruned.mean("step") / chosen.values("step")).tolist()
        row: dict[str, Any] = {symbol: getattr(settings, name)}
        for rival, column in ((EQUAL_TOKENS, "equal tokens"), (EQUAL_TIME, "equal time")):
            gain = trial.gain(rival)
            row |= {f"gain, {column}": gain.value, f"gain, {column} ±": gain.high - gain.value}
        row |= {
            "E[ρ̂(1−ρ̂)]": chosen.mean("balance"),
            "groups without signal": chosen.mean("no_signal"),
            "tokens saved": chosen.mean("tokens_saved"),
            **_with_interval("step speed-up", faster, settings.preset.value),
            "keep rate": chosen.mean("keep_rate"),
            "rollouts decided": trial.signal.rollouts,
            "their AUC": trial.signal.overall.value,
        }
        rows.append(row)
    formats = {
        "their AUC": ".3f", "keep rate": ".3f", "tokens saved": ".3f", "step speed-up": ".2f",
        "E[ρ̂(1−ρ̂)]": ".4f", "groups without signal": ".3f",
        "gain, equal tokens": "+.4f", "gain, equal time": "+.4f",
    }  # fmt: skip
    note = (
        "± is half of a 95% interval, of a gain over groups (Student’s t, paired), of the speed-up "
        "over repetitions."
    )
    if name == "detect_length":
        note += (
            " The AUC is that of the log’s score, whenever it was made: an early one knows less."
        )
    return Table(f"replay_{name}", title, pd.DataFrame(rows), formats, note)


def _advice_study(advice: Advice) -> Study:
    lines = [advice.headline, *(f"• {text}" for text in advice.reasons)]
    lines += [f"Caveat: {text}" for text in advice.caveats]
    return Study(name="advice", title="Advice", text="\n\n".join(lines))


def _frame(rows: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> pd.DataFrame:
    """A table whose columns may mix integers and floats."""
    return pd.DataFrame(list(rows), columns=list(columns), dtype=object)
