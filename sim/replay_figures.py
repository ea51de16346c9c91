"""The figures of ``arrol replay``."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

from arrol.config import Preset
from arrol.sim.intervals import mean_and_half_width
from arrol.sim.replay import EQUAL_TIME, EQUAL_TOKENS, NO_PRUNING
from arrol.sim.replay_advice import Analysis
from arrol.sim.replay_trial import Trial
from arrol.sim.results import Figure
from arrol.sim.style import BLUE, GREEN, GREY, ORANGE, PURPLE


def rule_order(trial: Trial) -> list[str]:
    """Names of the rules that ran, as they are shown."""
    order = [NO_PRUNING, *(p.value for p in (Preset.RANDOM, Preset.PAPER, Preset.BALANCED))]
    return [name for name in (*order, EQUAL_TOKENS, EQUAL_TIME) if name in trial.results]


def length_figure(analysis: Analysis) -> Figure:
    """Histogram of the lengths, right and wrong, with L_detect."""
    log = analysis.log
    lengths = {"given": analysis.given.settings.detect_length}
    if analysis.best.settings.detect_length != lengths["given"]:
        lengths["best found"] = analysis.best.settings.detect_length

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        edges = np.linspace(0, np.quantile(log.tokens, 0.995) + 1, 41).tolist()
        parts = [
            np.minimum(log.tokens[log.outcomes == right], edges[-1]) for right in (True, False)
        ]
        axes.hist(parts, edges, stacked=True, color=(BLUE, ORANGE), label=("right", "wrong"))
        for style, (name, length) in zip(("-", "--"), lengths.items(), strict=False):
            label = f"L_detect = {length}, {name}"
            axes.axvline(length, color=GREY, linestyle=style, label=label)
        axes.set(xlabel="generated tokens", ylabel="rollouts")
        axes.legend()

    return Figure(
        "replay_lengths",
        "Lengths of the rollouts",
        draw,
        "Only what stands right of L_detect can be pruned; the last bar holds everything longer.",
    )


def score_figure(analysis: Analysis) -> Figure:
    """Histogram of the quality scores, right and wrong."""
    log = analysis.log
    known = np.isfinite(log.scores)

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        parts = [log.scores[known & (log.outcomes == right)] for right in (True, False)]
        edges = np.linspace(0, 1, 31).tolist()
        axes.hist(parts, edges, stacked=True, color=(BLUE, ORANGE), label=("right", "wrong"))
        axes.set(xlabel="quality score", ylabel="rollouts", xlim=(0, 1))
        axes.legend()

    return Figure("replay_scores", "Quality scores", draw)


def rules_figure(trial: Trial) -> Figure:
    """Balance against speed, a point a rule."""
    colours = {NO_PRUNING: GREY, Preset.RANDOM.value: ORANGE, Preset.PAPER.value: PURPLE}
    colours |= {Preset.BALANCED.value: BLUE, EQUAL_TOKENS: GREEN, EQUAL_TIME: GREEN}
    unpruned = trial.results[NO_PRUNING].mean("step")

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for rule in rule_order(trial):
            result = trial.results[rule]
            faster, x = mean_and_half_width((unpruned / result.values("step")).tolist())
            mean, y = mean_and_half_width(result.values("balance").tolist())
            marker = "s" if rule in (EQUAL_TOKENS, EQUAL_TIME) else "o"
            fill = "white" if rule == EQUAL_TIME else colours[rule]
            axes.errorbar(
                faster, mean, np.nan_to_num(y), np.nan_to_num(x), fmt=marker,
                color=colours[rule], markerfacecolor=fill, label=rule, capsize=2,
            )  # fmt: skip
        axes.set(xlabel="training steps in the time of an unpruned one (simulated)")
        axes.set(ylabel="E[ρ̂(1−ρ̂)] per group")
        axes.legend()

    return Figure(
        "replay_rules",
        "Balance of the groups against speed, as given",
        draw,
        "Up and to the right is better. Bars: 95% intervals over the repetitions.",
    )


def detect_figure(analysis: Analysis) -> Figure:
    """What each L_detect saves, and what it gains on the smaller groups."""
    trials = analysis.detect_scan
    lengths = [trial.settings.detect_length for trial in trials]

    def draw(canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2)
        saved = [trial.chosen.mean("tokens_saved") for trial in trials]
        left.plot(lengths, saved, "o-", color=BLUE)
        left.axhline((1 - analysis.given.settings.keep_ratio) / 2, color=GREY, linestyle="--")
        left.set_ylabel("share of tokens saved")
        for rival, colour in ((EQUAL_TOKENS, GREEN), (EQUAL_TIME, PURPLE)):
            gains = [trial.gain(rival) for trial in trials]
            means = [gain.value for gain in gains]
            half = np.nan_to_num([gain.high - gain.value for gain in gains])
            right.errorbar(lengths, means, half, fmt="o-", color=colour, label=rival, capsize=2)
        right.axhline(0, color=GREY)
        right.set_ylabel("gain in E[ρ̂(1−ρ̂)] on a smaller group")
        right.legend()
        for axes in (left, right):
            axes.set(xlabel="L_detect [tokens]", xscale="log")
            axes.set_xticks(lengths, [str(length) for length in lengths], rotation=45)
            axes.minorticks_off()

    return Figure(
        "replay_detect_length",
        "Detecting earlier or later",
        draw,
        "Dashed: half of what κ can save at most, which an L_detect must reach to be "
        "picked. The score is the same at every L_detect here; a real one grows with it.",
    )
