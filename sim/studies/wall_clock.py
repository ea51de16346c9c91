"""Wall-clock of a training run by phase, without and with pruning, the cold start counted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from arrol.sim import paper
from arrol.sim.hardware import find_model
from arrol.sim.intervals import mean_and_half_width
from arrol.sim.phases import LOG_PROB, UPDATE, Phase, PhaseTimes
from arrol.sim.results import Figure, Study, Table
from arrol.sim.settings import SimSettings
from arrol.sim.studies.priors import LEAST_SEEDS, Fit, fits, nearest, paper_settings
from arrol.sim.studies.runs import (
    Floats,
    Progress,
    batches,
    generate,
    kept_share,
    seeds_text,
    settle,
)
from arrol.sim.style import BLACK, BLUE, GREEN, GREY, ORANGE

STEPS = 100  #: of the run that is drawn
COLD_START = paper.COLD_START_STEPS
RUN_LENGTHS = (50, 100, 200, 400, 1000)
HOUR = 3600.0
PHASES = tuple(row.phase for row in paper.TABLE_5)
COLOURS = dict(zip(PHASES, (BLUE, GREEN, ORANGE), strict=True))


Phases = tuple[float, ...]  #: seconds of one training step: generation, log-prob, update

PAPER_OFF: Phases = tuple(row.grpo_seconds for row in paper.TABLE_5)
PAPER_ON: Phases = tuple(row.arrol_seconds for row in paper.TABLE_5)


def study(settings: SimSettings, progress: Progress) -> Study:
    """A run of equal steps at each prior of Table 5; ``settings`` gives the seeds."""
    base = paper_settings(settings)
    found = fits(base, lambda share: progress(0.8 * share))
    chosen = nearest(found)
    eligible = [fit for fit in found if fit.meets_other_rows]
    models = []
    for place, row in enumerate(paper.TABLE_1, start=1):
        models.append(_model_row(row, chosen))
        progress(0.8 + 0.2 * place / len(paper.TABLE_1))
    return Study(
        name="wall-clock",
        title="Wall-clock of a training run (Figure 4, Table 1)",
        text=(
            f"A run of equal steps: {COLD_START} of cold start, which prune nothing, then the "
            "paper's rule at κ = .5. Phases are Table 5's, generation that of its priors: the one "
            f"that Table 5 speaks for ({chosen.point}) and the {len(eligible)} that meet its "
            "log-prob and update cells. Rollouts keep their lengths throughout, and nothing is "
            "trained: there is no reward curve to put beside Figure 4's."
        ),
        tables=(_phase_table(chosen, eligible), _speedup_table(chosen, eligible), _models(models)),
        figures=(_figure(chosen, eligible),),
    )


def speedup_of_run(steps: float, off: float, on: float, cold_start: int = COLD_START) -> float:
    """Speed-up of a run of ``steps`` steps, maybe infinite, whose cold start prunes nothing."""
    if math.isinf(steps):
        return off / on
    cold = min(steps, cold_start)
    return steps * off / (cold * off + (steps - cold) * on)


def run_length(speedup: float, off: float, on: float, cold_start: int = COLD_START) -> float:
    """Steps after which a run has this speed-up: c(1 − r)/(1/s − r) with r = on/off.

    Infinite where no run reaches it.
    """
    ratio = on / off
    gap = 1.0 / speedup - ratio
    return cold_start * (1.0 - ratio) / gap if gap > 0.0 else math.inf


def _steps(fit: Fit) -> list[Phases]:
    """A pruned step of each seed; log-prob and update for the rollouts that it kept."""
    times = PhaseTimes()
    return [
        (on, times.log_prob_seconds(kept), times.update_seconds(kept))
        for on, kept in zip(fit.on_S, fit.kept_S, strict=True)
    ]


def _mean_step(fit: Fit) -> Phases:
    return tuple(np.mean(_steps(fit), axis=0).tolist())


def _hours(steps: int, on: Sequence[float], off: Sequence[float]) -> list[float]:
    """Hours of each phase after so many steps."""
    cold = min(steps, COLD_START)
    return [(cold * o + (steps - cold) * p) / HOUR for o, p in zip(off, on, strict=True)]


def _phase_table(chosen: Fit, eligible: Sequence[Fit]) -> Table:
    def with_total(phases: Sequence[float]) -> list[float]:
        return [*phases, sum(phases)]

    off = with_total(_hours(STEPS, PAPER_OFF, PAPER_OFF))
    published = with_total(_hours(STEPS, PAPER_ON, PAPER_OFF))
    seeds = [with_total(_hours(STEPS, s, PAPER_OFF)) for s in _steps(chosen)]
    priors = [with_total(_hours(STEPS, _mean_step(fit), PAPER_OFF)) for fit in eligible]
    rows = []
    for place, phase in enumerate((*PHASES, "total")):
        mean, half = mean_and_half_width([hours[place] for hours in seeds])
        over_priors = [hours[place] for hours in priors]
        rows.append(
            {
                "phase": phase,
                "off [h]": off[place],
                "Table 5, pruned [h]": published[place],
                "simulated [h]": mean,
                "simulated [h] ±": half,
                "difference": mean / published[place] - 1.0,
                "lowest [h]": min(over_priors),
                "highest [h]": max(over_priors),
            }
        )
    numbers = ("off [h]", "Table 5, pruned [h]", "simulated [h]", "lowest [h]", "highest [h]")
    return Table(
        name="wall_clock_phases",
        title=f"Hours after {STEPS} steps, cold start included",
        frame=pd.DataFrame(rows),
        formats=dict.fromkeys(numbers, ".2f") | {"difference": "+.1%"},
        note=(
            f"Table 5, pruned: {COLD_START} steps of its baseline, then its pruned steps. ± is "
            f"half of the 95% interval for one step, {seeds_text(len(chosen.on_S))}; lowest and "
            "highest over the priors."
        ),
    )


def _speedup_table(chosen: Fit, eligible: Sequence[Fit]) -> Table:
    off, rows = sum(PAPER_OFF), []
    for steps in (*RUN_LENGTHS, math.inf):
        priors = [speedup_of_run(steps, off, sum(_mean_step(fit))) for fit in eligible]
        simulated, half = mean_and_half_width(
            [speedup_of_run(steps, off, sum(step)) for step in _steps(chosen)]
        )
        rows.append(
            {
                "steps": "no cold start" if math.isinf(steps) else f"{steps:,}",
                "Table 5 ×": speedup_of_run(steps, off, sum(PAPER_ON)),
                "simulated ×": simulated,
                "simulated × ±": half,
                "lowest ×": min(priors),
                "highest ×": max(priors),
            }
        )
    speedup = paper.TABLE_1[0].speedup
    steps = run_length(speedup, off, sum(PAPER_ON))
    return Table(
        name="wall_clock_speedup",
        title="Speed-up of a run, its cold start counted",
        frame=pd.DataFrame(rows),
        formats=dict.fromkeys(("Table 5 ×", "simulated ×", "lowest ×", "highest ×"), ".2f"),
        note=(
            f"Table 5's own rows make {off / sum(PAPER_ON):.2f}× a step; with {COLD_START} steps "
            f"of cold start counted, a run of {steps:,.0f} steps has Table 1's {speedup}×, a "
            "shorter one less. The paper does not say how long its runs are, nor whether the cold "
            f"start is counted. {seeds_text(len(chosen.on_S))}."
        ),
    )


def _model_row(row: paper.TrainingRow, chosen: Fit) -> dict[str, float | str]:
    """Speed-up of a step for another model in the chosen set-up."""
    settings = chosen.settings.replace(model=find_model(row.model), seeds=LEAST_SEEDS)
    share = settings.model.parameters / chosen.settings.model.parameters
    times = PhaseTimes(
        Phase(LOG_PROB.fixed, LOG_PROB.variable * share),
        Phase(UPDATE.fixed, UPDATE.variable * share),
    )
    plan = settle(settings).plan
    generation, step = [], []
    for batch in batches(settings):
        off = generate(settings, batch.requests).seconds
        run = generate(settings, batch.requests, plan)
        on, kept = run.seconds, kept_share(run)
        generation.append(off / on)
        step.append(times.step_seconds(off, 1.0) / times.step_seconds(on, kept))
    mean, half = mean_and_half_width(step)
    generation_mean, generation_half = mean_and_half_width(generation)
    return {
        "model": row.model,
        "paper ×": row.speedup,
        "simulated ×": mean,
        "simulated × ±": half,
        "difference": mean / row.speedup - 1.0,
        "generation ×": generation_mean,
        "generation × ±": generation_half,
    }


def _models(rows: list[dict[str, float | str]]) -> Table:
    dapo = paper.TABLE_2[0]
    return Table(
        name="table1_speedup",
        title="Table 1's speed-ups: paper and simulated, a step after the cold start",
        frame=pd.DataFrame(rows),
        formats=dict.fromkeys(("paper ×", "simulated ×", "generation ×"), ".2f")
        | {"difference": "+.1%"},
        note=(
            "All models in the set-up chosen for Qwen3-1.7B, with its lengths; log-prob and "
            "update grow with the parameters, and so does their part in the speed-up. Their own "
            "batches and lengths are not known; this is no more than the same set-up with "
            f"another model. {dapo.algorithm}'s {dapo.speedup:.2f}× (Table 2) depends on how many "
            "batches dynamic sampling draws; that is not simulated. Nor is any accuracy. "
            f"{seeds_text(LEAST_SEEDS)}."
        ),
    )


def _figure(chosen: Fit, eligible: Sequence[Fit]) -> Figure:
    def draw(canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
        _draw_course(left, chosen, eligible)
        _draw_bars(right, chosen, eligible)

    return Figure(
        name="wall_clock",
        title=f"{STEPS} training steps without (off) and with pruning (on)",
        draw=draw,
        note=(
            "On: the prior that Table 5 speaks for; band and bar: over the priors that meet its "
            "log-prob and update cells. Rewards are not simulated."
        ),
    )


def _draw_course(axes: Axes, chosen: Fit, eligible: Sequence[Fit]) -> None:
    """Cumulative hours against steps."""
    steps = np.arange(STEPS + 1)
    warm = np.maximum(steps - COLD_START, 0)
    off = steps * sum(PAPER_OFF) / HOUR

    def course(on: float) -> Floats:
        return np.asarray(off - warm * (sum(PAPER_OFF) - on) / HOUR)

    totals = [sum(_mean_step(fit)) for fit in eligible]
    axes.plot(steps, off, color=GREY, label="off")
    axes.fill_between(
        steps, course(min(totals)), course(max(totals)), color=BLUE, alpha=0.18, linewidth=0,
        label="on, over the priors",
    )  # fmt: skip
    axes.plot(steps, course(sum(_mean_step(chosen))), color=BLUE, label="on")
    axes.plot(steps, course(sum(PAPER_ON)), color=BLACK, linewidth=1.0, linestyle="--",
              label="on, by Table 5")  # fmt: skip
    axes.axvline(COLD_START, color=GREY, linewidth=0.8, linestyle=":")
    axes.set(xlabel="training step", ylabel="cumulative time [h]", xlim=(0, STEPS))
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")


def _draw_bars(axes: Axes, chosen: Fit, eligible: Sequence[Fit]) -> None:
    """Hours of each phase at the end."""
    bars = {
        "off": PAPER_OFF,
        "on": _mean_step(chosen),
        "on, by\nTable 5": PAPER_ON,
    }
    bottoms = np.zeros(len(bars))
    for place, phase in enumerate(PHASES):
        hours = [_hours(STEPS, on, PAPER_OFF)[place] for on in bars.values()]
        axes.bar(list(bars), hours, bottom=bottoms, color=COLOURS[phase], width=0.6, label=phase)
        bottoms += hours
    totals = [sum(_hours(STEPS, _mean_step(f), PAPER_OFF)) for f in eligible]
    axes.vlines(1, min(totals), max(totals), color=BLACK, linewidth=1.5)
    axes.set(ylabel=f"time of {STEPS} steps [h]", ylim=(0, 1.35 * bottoms.max()))
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper right")
