"""Your setting: one training step with and without pruning, as the flags describe it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from arrol.controller import PruningController
from arrol.groups import summarize_groups
from arrol.plan import PruningPlan
from arrol.records import DecisionReason, FinishReason, Mode
from arrol.sim import paper
from arrol.sim.cells import cell, step_time_text
from arrol.sim.engine import EngineRun, SimulatedRequest, Timeline, simulate
from arrol.sim.intervals import with_intervals
from arrol.sim.results import Check, Figure, Study, Table
from arrol.sim.settings import SimSettings
from arrol.sim.studies.runs import Progress, phase_times, seeds_text
from arrol.sim.style import BLUE, GREY

Measures = dict[str, float]

EARLY = "ended before the detection length"

COLD_START_LABELS = 4_000  #: rollouts that the controller learns from
SIGMAS = 5.0  #: a check's bound on a sum of independent draws


@dataclass(frozen=True)
class Pair:
    """One step's rollouts, generated without (off) and with pruning (on)."""

    requests: list[SimulatedRequest]
    plan: PruningPlan
    off: EngineRun
    on: EngineRun


@dataclass(frozen=True)
class Repetition:
    """What is left of a pair: a value for each seed.

    Attributes:
        times: phase → seconds off, seconds on.
        groups: measure → off, on.
        preemptions: off, on.
        guarded: the plan only watched, as the scores were too bad to prune by.
        lost, misplaced, bare, deviation: what the checks bound.
        timelines: what the engine held, off and on.
    """

    times: dict[str, tuple[float, float]]
    groups: dict[str, tuple[float, float]]
    preemptions: tuple[int, int]
    guarded: bool
    lost: int
    misplaced: int
    bare: int
    deviation: float
    timelines: tuple[Timeline, Timeline]


def study(settings: SimSettings, progress: Progress) -> Study:
    """Times, groups and draws of the setting that the flags describe."""
    found = []
    for seed in range(settings.seeds):
        found.append(_measure(settings, simulate_pair(settings, seed)))
        progress((seed + 1) / settings.seeds)
    return Study(
        name="setting",
        title="Your setting",
        text=_text(settings, found),
        tables=(_time_table(found), _group_table(found)),
        figures=(_timeline(found[0]),),
        checks=_checks(found),
    )


def simulate_pair(settings: SimSettings, seed: int) -> Pair:
    """A step after the cold start, without and with pruning.

    The controller learns from steps of the same law that come before it, simulated too: which
    rollouts end before the detection length is part of what it has to know.
    """
    rng = np.random.default_rng([settings.seed, seed])
    workload, limits, cost = settings.workload(), settings.limits(), settings.cost()
    labels_of_step = settings.prompts * settings.group_size
    steps = min(-(-COLD_START_LABELS // labels_of_step), paper.COLD_START_STEPS)
    controller = PruningController(settings.config(cold_start_steps=steps))
    for step in range(steps):
        requests = workload.draw(rng).requests(step)
        run = simulate(requests, limits, cost, controller.plan())
        controller.observe(run.rollouts, {r.key: r.outcome for r in requests})
    plan = controller.plan()
    requests = workload.draw(rng).requests(steps)
    off = simulate(requests, limits, cost)
    return Pair(requests, plan, off, simulate(requests, limits, cost, plan))


def _measure(settings: SimSettings, pair: Pair) -> Repetition:
    off, on = _group_measures(pair, pair.off), _group_measures(pair, pair.on)
    return Repetition(
        times=_times(settings, pair),
        groups={name: (off[name], on[name]) for name in off},
        preemptions=(pair.off.preemptions, pair.on.preemptions),
        guarded=pair.plan.mode is Mode.SHADOW,
        lost=_lost(pair, pair.off) + _lost(pair, pair.on),
        misplaced=_misplaced(pair),
        bare=_bare_groups(pair),
        deviation=_draw_deviation(pair.on),
        timelines=(pair.off.timelines[0], pair.on.timelines[0]),
    )


def _times(settings: SimSettings, pair: Pair) -> dict[str, tuple[float, float]]:
    prompts = {request.key: request.prompt_tokens for request in pair.requests}
    trained_off, trained_on = (
        sum(rollout.tokens + prompts[rollout.key] for rollout in run.rollouts if rollout.survived)
        for run in (pair.off, pair.on)
    )
    phases, fraction = phase_times(settings, trained_off), trained_on / trained_off
    off, on = pair.off.seconds, pair.on.seconds
    return {
        "generation": (off, on),
        "log-prob": (phases.log_prob_seconds(1.0), phases.log_prob_seconds(fraction)),
        "update": (phases.update_seconds(1.0), phases.update_seconds(fraction)),
        "step": (phases.step_seconds(off, 1.0), phases.step_seconds(on, fraction)),
    }


def _time_table(found: list[Repetition]) -> Table:
    rows = []
    for phase in found[0].times:
        pairs = [repetition.times[phase] for repetition in found]
        # Where every rollout was pruned nothing is trained, and a speed-up means nothing.
        seconds = [
            {"off [s]": off, "on [s]": on, "speed-up": off / on if on else math.nan}
            for off, on in pairs
        ]
        rows.append({"phase": phase} | with_intervals(seconds))
    return Table(
        name="setting_times",
        title="One training step without (off) and with pruning (on)",
        frame=pd.DataFrame(rows),
        formats=dict.fromkeys(("off [s]", "on [s]", "speed-up"), ".2f"),
        note=(
            "The speed-up is over the same groups unpruned. Whether a smaller group that costs as "
            "much and prunes nothing does better is what the study same-cost tells. Mean ± half of "
            f"the 95% interval, {seeds_text(len(found))}. Log-prob and update follow the "
            "survivors' tokens; their full times are 2 FLOP a weight and token at 45% of the "
            "peak, four times that for an update, and a fixed 2.64 s of log-prob (Table 5)."
        ),
    )


def _group_table(found: list[Repetition]) -> Table:
    rows = []
    for name in found[0].groups:
        pairs = [repetition.groups[name] for repetition in found]
        row = with_intervals([{"off": off, "on": on} for off, on in pairs])
        rows.append({"of rollouts or groups": name} | row)
    return Table(
        name="setting_groups",
        title="What pruning leaves of the groups",
        frame=pd.DataFrame(rows),
        formats={"off": ".3f", "on": ".3f"},
        note=(
            "Shares; off: nothing is pruned. ρ̂ is the share of right answers among survivors; "
            f"ρ̂(1−ρ̂) is at most .25, and 0 without signal; {seeds_text(len(found))}."
        ),
    )


def _group_measures(pair: Pair, run: EngineRun) -> Measures:
    outcomes = {request.key: request.outcome for request in pair.requests}
    rollouts = run.rollouts
    outcomes_N = np.array([outcomes[r.key] for r in rollouts])
    pruned_N = np.array([r.finish_reason is FinishReason.PRUNED for r in rollouts])
    summary = summarize_groups(
        np.array([r.group for r in rollouts], dtype=np.uint64),
        outcomes_N,
        np.array([r.survived for r in rollouts]),
    )
    early = [r.length <= pair.plan.detect_length for r in pair.requests]
    return {
        "kept": float(summary.survivors.sum() / len(rollouts)),
        EARLY: float(np.mean(early)),
        "right among survivors, ρ̂": float(summary.right.sum() / max(summary.survivors.sum(), 1)),
        "right among the pruned": float(outcomes_N[pruned_N].mean()) if pruned_N.any() else np.nan,
        "E[ρ̂(1−ρ̂)] per group": summary.expected_balance,
        "ρ̂(1−ρ̂) per batch": summary.batch_balance,
        "groups with < 2 survivors": float(np.mean(summary.survivors < 2)),
        "groups without signal": 1.0 - float(summary.has_signal.mean()),
    }


def _text(settings: SimSettings, found: list[Repetition]) -> str:
    limits = settings.limits()
    prompts = "1 prompt" if settings.prompts == 1 else f"{settings.prompts:,} prompts"
    off, on = np.mean([repetition.preemptions for repetition in found], axis=0)
    text = (
        f"{prompts} × {settings.group_size:,} rollouts of {settings.model.name} "
        f"on one {settings.accelerator.name}, at most {limits.max_num_seqs:,} at once in "
        f"{limits.kv_tokens:,} KV tokens; mean length {cell(settings.mean_length)} tokens, "
        f"pass rate {settings.pass_rate:g}, AUC of the score {settings.score_auc:g}. Rule "
        f"{settings.preset.value}: keep {settings.keep_ratio:g} of the rollouts, decided at "
        f"{settings.detect_length:,} tokens. Preemptions a step: {off:,.0f} off, {on:,.0f} on."
    )
    remarks = (
        step_time_text(settings.cost()),
        _idle_text(settings, found),
        _preemption_text(settings, off, on),
    )
    return "\n\n".join([text, *filter(None, remarks)])


def _idle_text(settings: SimSettings, found: list[Repetition]) -> str:
    """Why nothing, or less, is pruned; nothing where all is well."""
    least = settings.config().min_survivors
    if settings.group_size <= least:
        return (
            f"Nothing is pruned: a group has {settings.group_size} rollouts, and pruning leaves at "
            f"least {least} of each."
        )
    early = float(np.mean([repetition.groups[EARLY][0] for repetition in found]))
    if early == 1.0:
        return f"Nothing is pruned: no rollout is longer than {settings.detect_length:,} tokens."
    guarded = sum(repetition.guarded for repetition in found)
    if guarded:
        return (
            f"In {guarded} of {len(found)} repetitions the guard held pruning back: the AUC of "
            "the scores is below .55, too little to prune by."
        )
    if early > settings.keep_ratio:
        return (
            f"{early:.1%} of the rollouts end by {settings.detect_length:,} tokens. They are "
            "always kept, so more than the keep ratio is."
        )
    return ""


def _preemption_text(settings: SimSettings, off: float, on: float) -> str:
    """A hint where the unpruned engine takes on far more than its KV cache holds."""
    limits = settings.limits()
    fitting = max(1, int(limits.kv_tokens // (settings.prompt_tokens + settings.mean_length)))
    if off <= settings.prompts * settings.group_size or fitting >= limits.max_num_seqs:
        return ""
    avoided = "; part of the speed-up is avoided preemption" if on < off else ""
    return (
        "Without pruning a rollout is preempted more than once on average, as the KV cache holds "
        f"about {fitting:,} sequences of mean length{avoided}. Try --max-num-seqs {fitting} to see "
        "the speed-up without it; it is not always the faster setting."
    )


def _timeline(repetition: Repetition) -> Figure:
    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        looks = ((GREY, "off"), (BLUE, "on"))
        for timeline, (colour, label) in zip(repetition.timelines, looks, strict=True):
            axes.step(
                timeline.seconds_M, timeline.running_M, where="post", color=colour,
                label=f"{label}: {timeline.seconds_M[-1]:.1f} s",
            )  # fmt: skip
        axes.set(xlabel="time since the step began [s]", ylabel="sequences that run")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.legend(loc="best")

    return Figure(
        name="setting_timeline",
        title="Generation of one step, without (off) and with pruning (on)",
        draw=draw,
        note="The first repetition. The long tail is what the last long rollouts take.",
    )


def _checks(found: list[Repetition]) -> tuple[Check, ...]:
    """Laws that hold whatever the flags say."""
    lost = sum(repetition.lost for repetition in found)
    misplaced = sum(repetition.misplaced for repetition in found)
    bare = sum(repetition.bare for repetition in found)
    deviation = max(repetition.deviation for repetition in found)
    return (
        Check("your setting: rollouts lost or doubled", lost, "= 0", lost == 0),
        Check("your setting: pruned elsewhere than at L_detect", misplaced, "= 0", misplaced == 0),
        Check("your setting: groups pruned below min_survivors", bare, "= 0", bare == 0),
        Check(
            "your setting: kept by draw − Σp, in standard deviations",
            deviation, f"≤ {SIGMAS:g}", deviation <= SIGMAS,
        ),
    )  # fmt: skip


def _lost(pair: Pair, run: EngineRun) -> int:
    """Keys that came back never, or again."""
    returned = Counter(rollout.key for rollout in run.rollouts)
    submitted = {request.key for request in pair.requests}
    return sum(returned[key] != 1 for key in submitted | returned.keys())


def _misplaced(pair: Pair) -> int:
    """Pruned rollouts that did not end at exactly the detection length."""
    return sum(
        rollout.finish_reason is FinishReason.PRUNED and rollout.tokens != pair.plan.detect_length
        for rollout in pair.on.rollouts
    )


def _bare_groups(pair: Pair) -> int:
    """Groups that pruning, not failure, left with fewer than the plan's minimum."""
    left = Counter(r.group for r in pair.on.rollouts if r.finish_reason is not FinishReason.PRUNED)
    sizes = Counter(request.group for request in pair.requests)
    return sum(left[group] < min(pair.plan.min_survivors, size) for group, size in sizes.items())


def _draw_deviation(run: EngineRun) -> float:
    """|kept − Σp| over √Σp(1 − p), for what the draws alone decided.

    Independent draws have that variance and systematic ones less.
    """
    drawn = [
        rollout.detection
        for rollout in run.rollouts
        if rollout.detection is not None
        and rollout.detection.reason in (DecisionReason.DRAW, DecisionReason.FORCED)
    ]
    kept = sum(d.keep and d.reason is DecisionReason.DRAW for d in drawn)
    variance = sum(d.survival * (1.0 - d.survival) for d in drawn)
    difference = abs(kept - sum(d.survival for d in drawn))
    return difference / math.sqrt(variance) if variance > 0.0 else 0.0
