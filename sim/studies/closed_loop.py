"""The controller in its loop: it learns from survivors only, and the pass rate may drift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from arrol.config import Preset, PruningConfig
from arrol.controller import PruningController
from arrol.sim import paper
from arrol.sim.intervals import mean_and_half_width, with_intervals
from arrol.sim.results import Check, Figure, Study, Table
from arrol.sim.settings import SimSettings
from arrol.sim.studies.runs import Progress, seeds_text
from arrol.sim.studies.survivors import Prior, decide, rollouts_of, workload_of
from arrol.sim.style import BLACK, BLUE, ORANGE
from arrol.sim.workload import Workload

Floats = NDArray[np.float64]

STEPS = 60
GROUPS = 16  #: a step
SEEDS = 3  #: at most; each is a whole training run
SEGMENT = 5  #: steps between two changes of a drifting pass rate
TOLERANCE = 0.01

TRUTH = "pass rate of all rollouts"
WEIGHTED = "1/p-weighted estimate"
PLAIN = "survivors' plain mean"
KEEP_RATE = "keep rate"
BALANCE = "E[ρ̂(1−ρ̂)] per group"
MEASURES = (TRUTH, WEIGHTED, PLAIN, KEEP_RATE, BALANCE)
WEIGHTED_ERROR = f"{WEIGHTED}, error"
PLAIN_ERROR = f"{PLAIN}, error"


@dataclass(frozen=True)
class Course:
    """How the pass rate goes from the first step to the last."""

    name: str
    first: float
    last: float

    def workloads(self) -> list[Workload]:
        """The law of each step; it changes every ``SEGMENT`` steps, after the cold start."""
        segments = (STEPS - paper.COLD_START_STEPS) // SEGMENT
        rates = np.linspace(self.first, self.last, segments + 1)[1:]
        laws = [workload_of(Prior(rate), GROUPS, paper.GROUP_SIZE) for rate in rates]
        start = workload_of(Prior(self.first), GROUPS, paper.GROUP_SIZE)
        return [start] * paper.COLD_START_STEPS + [law for law in laws for _ in range(SEGMENT)]


DRIFT = Course("from .15 to .60", 0.15, 0.60)
COURSES = (Course(".15", 0.15, 0.15), Course(".30", 0.3, 0.3), Course(".70", 0.7, 0.7), DRIFT)
PRESETS = (Preset.PAPER, Preset.BALANCED)

Runs = dict[tuple[Course, Preset], list[dict[str, Floats]]]


def study(settings: SimSettings, progress: Progress) -> Study:
    """Real controllers over whole runs; ``settings`` gives the seeds."""
    runs: Runs = {(course, preset): [] for course in COURSES for preset in PRESETS}
    for place, (course, preset) in enumerate(runs):
        workloads = course.workloads()
        for seed in range(min(settings.seeds, SEEDS)):
            rng = np.random.default_rng([settings.seed, seed, COURSES.index(course)])
            runs[course, preset].append(simulate_run(workloads, preset, rng))
        progress((place + 1) / len(runs))
    return Study(
        name="closed-loop",
        title="The controller in its loop",
        text=(
            f"{STEPS} steps of {GROUPS} groups of {paper.GROUP_SIZE}: the first "
            f"{paper.COLD_START_STEPS} prune nothing, then the controller plans from the labels of "
            "the survivors that it chose itself. Figures are over the steps after the cold start."
        ),
        tables=(_table(runs),),
        figures=(_figure(runs),),
        checks=_checks(runs),
    )


def simulate_run(
    workloads: list[Workload], preset: Preset, rng: np.random.Generator
) -> dict[str, Floats]:
    """One training run; each measure of :data:`MEASURES` for each step."""
    controller = PruningController(PruningConfig.preset(preset))
    columns: dict[str, list[float]] = {name: [] for name in MEASURES}
    for workload in workloads:
        batch = workload.draw(rng)
        decisions = decide(controller.plan(), batch, rng)
        metrics = controller.observe(*rollouts_of(decisions, batch.outcomes_N))
        columns[TRUTH].append(float(batch.outcomes_N.mean()))
        columns[WEIGHTED].append(metrics["pass_rate"])
        columns[PLAIN].append(metrics["pass_rate_survivors"])
        columns[KEEP_RATE].append(metrics["keep_rate"])
        columns[BALANCE].append(metrics["balance"])
    return {name: np.array(values) for name, values in columns.items()}


def _warm_means(run: dict[str, Floats]) -> dict[str, float]:
    """Means over the steps after the cold start; estimates as errors, paired with the truth."""
    means = {name: float(run[name][paper.COLD_START_STEPS :].mean()) for name in MEASURES}
    return {
        TRUTH: means[TRUTH],
        WEIGHTED_ERROR: means[WEIGHTED] - means[TRUTH],
        PLAIN_ERROR: means[PLAIN] - means[TRUTH],
        KEEP_RATE: means[KEEP_RATE],
        BALANCE: means[BALANCE],
    }


def _table(runs: Runs) -> Table:
    rows = [
        {"pass rate": course.name, "rule": preset.value}
        | with_intervals([_warm_means(run) for run in found])
        for (course, preset), found in runs.items()
    ]
    return Table(
        name="closed_loop",
        title="Estimates and keep rate in the loop (κ = .5)",
        frame=pd.DataFrame(rows),
        formats=dict.fromkeys((TRUTH, KEEP_RATE, BALANCE), ".3f")
        | dict.fromkeys((WEIGHTED_ERROR, PLAIN_ERROR), "+.3f"),
        note=(
            "The rule paper solves E[p] = κ over the labelled survivors, balanced over all scores "
            "seen at detection. So paper keeps less than κ once survivors' labels fill its buffer. "
            f"{STEPS} steps are too few for that: at their end half of the labels are still the "
            "unpruned ones of the cold start. After 200 steps at pass rate .30 it keeps about .48, "
            "as in the study phases, whose loop turns its buffer over twice. "
            f"{seeds_text(len(next(iter(runs.values()))))}; this study takes no more than {SEEDS}."
        ),
    )


def _figure(runs: Runs) -> Figure:
    def draw(canvas: Canvas) -> None:
        upper, lower = canvas.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        steps = np.arange(1, STEPS + 1)
        run = _mean_run(runs[DRIFT, Preset.BALANCED])
        for name, colour, style in (
            (TRUTH, BLACK, "-"), (WEIGHTED, BLUE, "--"), (PLAIN, ORANGE, "-"),
        ):  # fmt: skip
            upper.plot(steps, run[name], color=colour, linestyle=style, label=name)
        upper.set(ylabel="pass rate", ylim=(0, 0.8))
        upper.legend(loc="upper left")
        for preset, colour in ((Preset.PAPER, ORANGE), (Preset.BALANCED, BLUE)):
            keep_rates = _mean_run(runs[DRIFT, preset])[KEEP_RATE]
            lower.plot(steps, keep_rates, color=colour, label=preset.value)
        lower.set(ylabel="keep rate", xlabel="training step", ylim=(0.35, 1.05), xlim=(1, STEPS))
        lower.legend(loc="upper right", ncols=2)
        for axes in (upper, lower):
            axes.axvline(paper.COLD_START_STEPS + 0.5, color=BLACK, linewidth=0.8, linestyle=":")
        lower.text(paper.COLD_START_STEPS, 0.42, "cold start ", ha="right")

    return Figure(
        name="closed_loop",
        title="A drifting pass rate is followed, and κ is kept",
        draw=draw,
        note="Means over the runs; the upper panel is the preset balanced.",
    )


def _mean_run(found: list[dict[str, Floats]]) -> dict[str, Floats]:
    return {name: np.mean([run[name] for run in found], axis=0) for name in MEASURES}


def _checks(runs: Runs) -> tuple[Check, ...]:
    ours = [[_warm_means(run) for run in runs[course, Preset.BALANCED]] for course in COURSES]
    keep = max(abs(_mean(means, KEEP_RATE) - paper.KEEP_RATIO) for means in ours)
    error = max(abs(_mean(means, WEIGHTED_ERROR)) for means in ours)
    bound = f"≤ {TOLERANCE}"
    return (
        Check("the loop keeps κ: largest |keep rate − κ|", keep, bound, keep <= TOLERANCE),
        Check("the loop knows the pass rate: largest |error|", error, bound, error <= TOLERANCE),
    )


def _mean(means: list[dict[str, float]], name: str) -> float:
    return mean_and_half_width([found[name] for found in means])[0]
