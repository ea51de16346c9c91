"""What the speed-up depends on: one parameter at a time, from the user's setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from arrol.errors import ArrolError
from arrol.groups import summarize_groups
from arrol.sim.intervals import mean_and_half_width, with_intervals
from arrol.sim.results import Figure, Study, Table
from arrol.sim.settings import SimSettings
from arrol.sim.studies.runs import (
    Batch,
    Played,
    Progress,
    batches,
    bounds,
    capped,
    capped_text,
    kept_share,
    phase_times,
    play,
    seeds_text,
    settle,
    survivor_tokens,
)
from arrol.sim.style import BLACK, BLUE, GREY, ORANGE

GENERATION, STEP, TOKENS, BOUND = "generation ×", "step ×", "tokens ×", "bound ×"
KEPT, RATIO, BALANCE, NO_SIGNAL = "f", "mean ρ̂", "E[ρ̂(1−ρ̂)]", "no signal"

Measures = dict[str, float]


@dataclass(frozen=True)
class Sweep:
    """One parameter and the values that it takes beside the user's own.

    Attributes:
        name: of the field.
        label: for tables and figures.
        values: absolute ones, or multiples of the user's value if ``relative``.
        log: the axis is logarithmic.
    """

    name: str
    label: str
    values: tuple[float, ...]
    relative: bool = False
    log: bool = False

    def settings(self, base: SimSettings) -> list[SimSettings]:
        """The legal ones, the user's own among them, in order of the value."""
        own = getattr(base, self.name)
        wanted = {value * own if self.relative else value for value in self.values} | {own}
        return [s for value in sorted(wanted) if (s := _legal(base, self.name, value))]


SWEEPS = (
    Sweep("prompts", "prompts", (0.125, 0.25, 0.5, 2), relative=True, log=True),
    Sweep("length_spread", "length spread σ", (0.2, 0.4, 0.8, 1.0)),
    Sweep("length_correlation", "length corr. r", (-0.5, -0.15, 0.0, 0.3)),
    Sweep("score_auc", "score AUC", (0.6, 0.7, 0.85, 0.95)),
    Sweep("detect_length", "L_detect", (0.25, 0.5, 2, 4), relative=True, log=True),
)

Points = dict[Sweep, list[tuple[float, list[Measures]]]]


def study(settings: SimSettings, progress: Progress) -> Study:
    """Speed-up and balance around the user's setting, which is the middle of every sweep."""
    base = capped(settings)
    wanted = [(sweep, point) for sweep in SWEEPS for point in sweep.settings(base)]
    known: dict[SimSettings, list[Measures]] = {}
    points: Points = {sweep: [] for sweep in SWEEPS}
    for place, (sweep, point) in enumerate(wanted, start=1):
        if point not in known:
            known[point] = measure(point)
        points[sweep].append((float(getattr(point, sweep.name)), known[point]))
        progress(place / len(wanted))
    return Study(
        name="sensitivity",
        title="What the speed-up depends on",
        text=(
            "Your setting, with one parameter changed at a time. All points of a seed share their "
            "random numbers. Generation is the engine's time, off over on; a step adds log-prob "
            "and update, in proportion to the survivors' tokens." + capped_text(settings)
        ),
        tables=(_speed_table(points), _bound_table(points), _balance_table(points)),
        figures=(_figure(points, base),),
    )


def measure(settings: SimSettings) -> list[Measures]:
    """One step without and with pruning for each seed."""
    plan = settle(settings).plan
    return [
        compare(settings, batch, play(settings, batch), play(settings, batch, plan))
        for batch in batches(settings)
    ]


def compare(settings: SimSettings, batch: Batch, off: Played, on: Played) -> Measures:
    """Speed-ups, their bound, and what is left of the groups."""
    trained_off, trained_on = (
        survivor_tokens(played.run, settings.prompt_tokens) for played in (off, on)
    )
    phases, fraction = phase_times(settings, trained_off), trained_on / max(trained_off, 1)
    rollouts = on.run.rollouts
    outcomes = {request.key: request.outcome for request in batch.requests}
    groups = summarize_groups(
        np.array([rollout.group for rollout in rollouts], dtype=np.uint64),
        [outcomes[rollout.key] for rollout in rollouts],
        [rollout.survived for rollout in rollouts],
    )
    return {
        GENERATION: off.seconds / on.seconds,
        STEP: phases.step_seconds(off.seconds, 1.0) / phases.step_seconds(on.seconds, fraction),
        TOKENS: off.run.sampled_tokens / on.run.sampled_tokens,
        BOUND: bounds(off, on)[1],
        KEPT: kept_share(on.run),
        RATIO: float(groups.right.sum() / max(groups.survivors.sum(), 1)),
        BALANCE: groups.expected_balance,
        NO_SIGNAL: 1.0 - float(groups.has_signal.mean()),
    }


def _legal(base: SimSettings, name: str, value: float) -> SimSettings | None:
    """The settings with one value changed; None where that is not allowed."""
    whole = isinstance(getattr(base, name), int)
    try:
        return base.replace(**{name: max(1, round(value)) if whole else value})
    except ArrolError:
        return None


def _speed_table(points: Points) -> Table:
    shown = (GENERATION, STEP, KEPT)
    return Table(
        name="sensitivity_speedup",
        title="Speed-up of generation and of a whole step",
        frame=pd.DataFrame(_rows(points, SWEEPS, shown)),
        formats={GENERATION: ".2f", STEP: ".2f", KEPT: ".3f"},
        note=(
            f"Mean ± half of the 95% interval, {_seeds_text(points)}. r: correlation of log length "
            "with being right; f: share of rollouts kept. Rollouts that end before L_detect "
            "always survive and use up κ, so a late detection prunes more of the long ones, until "
            "κ can't be met."
        ),
    )


def _bound_table(points: Points) -> Table:
    return Table(
        name="sensitivity_bounds",
        title="Generation against what bounds it",
        frame=pd.DataFrame(_rows(points, SWEEPS, (GENERATION, TOKENS, BOUND))),
        formats=dict.fromkeys((GENERATION, TOKENS, BOUND), ".2f"),
        note=(
            "tokens: sampled tokens, off over on, which would be the speed-up if time were "
            "proportional to tokens; it is no bound. bound: the largest ratio of a kind of work "
            "(steps, sequences' decode steps, matrix products, KV reads), which no cost of these "
            f"lets the speed-up exceed; {_seeds_text(points)}."
        ),
    )


def _balance_table(points: Points) -> Table:
    sweeps = [sweep for sweep in SWEEPS if sweep.name == "score_auc"]
    shown = (KEPT, RATIO, BALANCE, NO_SIGNAL)
    return Table(
        name="sensitivity_balance",
        title="What the score's quality does to the groups",
        frame=pd.DataFrame(_rows(points, sweeps, shown)),
        formats=dict.fromkeys(shown, ".3f"),
        note=(
            "Over survivors; ρ̂ pooled, ρ̂(1−ρ̂) per group; no signal: share of groups with fewer "
            "than two survivors or a single outcome. Below an AUC of .55 the guard stops pruning. "
            f"{_seeds_text(points)}."
        ),
    )


def _seeds_text(points: Points) -> str:
    (_, measures), *_ = next(iter(points.values()))
    return seeds_text(len(measures))


def _rows(
    points: Points, sweeps: Sequence[Sweep], shown: Sequence[str]
) -> list[dict[str, float | str]]:
    rows: list[dict[str, float | str]] = []
    for sweep in sweeps:
        for value, measures in points[sweep]:
            means = with_intervals([{name: found[name] for name in shown} for found in measures])
            rows.append({"varied": sweep.label, "value": value, **means})
    return rows


def _figure(points: Points, base: SimSettings) -> Figure:
    def draw(canvas: Canvas) -> None:
        canvas.set_size_inches(7.4, 5.0)
        panels = canvas.subplots(2, 3, sharey=True).ravel()
        for axes, sweep in zip(panels, SWEEPS, strict=False):
            _draw_sweep(axes, sweep, points[sweep], float(getattr(base, sweep.name)))
        for axes in panels[::3]:
            axes.set_ylabel("speed-up")
        panels[-1].axis("off")
        handles, labels = panels[0].get_legend_handles_labels()
        panels[-1].legend(handles, labels, loc="center")

    return Figure(
        name="sensitivity",
        title="Speed-up against one parameter at a time",
        draw=draw,
        note="Bars: 95% intervals over seeds. The vertical line is your setting.",
    )


def _draw_sweep(
    axes: Axes, sweep: Sweep, found: list[tuple[float, list[Measures]]], own: float
) -> None:
    values = [value for value, _ in found]
    lines = (
        (GENERATION, "generation", BLUE, "-", "o"),
        (STEP, "whole step", ORANGE, "-", "s"),
        (TOKENS, "if time were tokens", BLACK, ":", ""),
        (BOUND, "bound on generation", GREY, "--", ""),
    )
    for name, label, colour, style, marker in lines:
        pairs = [mean_and_half_width([m[name] for m in measures]) for _, measures in found]
        halves = [0.0 if math.isnan(half) or not marker else half for _, half in pairs]
        axes.errorbar(
            values, [mean for mean, _ in pairs], yerr=halves, color=colour, linestyle=style,
            marker=marker, markersize=4, linewidth=1.4, label=label,
        )  # fmt: skip
    axes.axvline(own, color=GREY, linewidth=1.2, zorder=1)
    axes.set_xlabel(sweep.label)
    if sweep.log:
        axes.set_xscale("log", base=2)
        axes.set_xticks(values, [f"{value:,.0f}" for value in values])
        axes.minorticks_off()
