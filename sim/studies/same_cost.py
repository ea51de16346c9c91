"""Pruning against its plainest rival: a smaller group that costs as much and prunes nothing.

Whoever prunes 16 rollouts to 8 has paid for more than 8. The same tokens, or the same time of a
whole step, would have bought a group of some size in between, all of it with labels. The rivals
here share the prompts and the first rollouts with the pruned batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from arrol import estimators
from arrol.config import Preset
from arrol.errors import ArrolError
from arrol.groups import summarize_groups
from arrol.plan import PruningPlan
from arrol.sim.engine import EngineRun
from arrol.sim.intervals import mean_and_half_width, with_intervals
from arrol.sim.results import Figure, Study, Table
from arrol.sim.settings import SimSettings
from arrol.sim.studies.runs import (
    Batch,
    Progress,
    batches,
    capped,
    capped_text,
    generate,
    phase_times,
    seeds_text,
    settle,
    survivor_tokens,
)
from arrol.sim.style import BLACK, BLUE, ORANGE

PRESETS = (Preset.RANDOM, Preset.PAPER, Preset.BALANCED)
LEAST_SEEDS = 8  #: the differences are small
MAX_TRIALS = 12  #: of the search for a batch of equal time
TIME_TOLERANCE = 0.002  #: of it

SURVIVORS, BALANCE, NO_SIGNAL = "survivors", "E[ρ̂(1−ρ̂)]", "no signal"
SIGNAL, LABELS, TOKENS, SECONDS = "signal", "labels", "tokens [k]", "step [s]"
PRUNED, SAME_TOKENS, SAME_TIME = "pruned", "tokens", "time"
RIVALS = (SAME_TOKENS, SAME_TIME)
OWN_SCENE, DIFFERENCE_TABLE = "your setting", "same_cost_difference"
COLOURS = {SAME_TOKENS: ORANGE, SAME_TIME: BLUE}

Measures = dict[str, float]
Contest = dict[str, Measures]  #: pruned and its two rivals, on one batch


@dataclass(frozen=True)
class Scene:
    """Your setting with some fields changed, where pruning might fare better or worse."""

    name: str
    changes: Mapping[str, float]


SHARP = {"score_auc": 0.9, "prompt_signal": 0.0}
SCENES = (
    Scene("sharp", SHARP),
    Scene("sharp, L_detect 128", {**SHARP, "detect_length": 128}),
    Scene("sharp, κ .25", {**SHARP, "keep_ratio": 0.25}),
    Scene("sharp, pass rate .1", {**SHARP, "pass_rate": 0.1}),
)


@dataclass(frozen=True)
class Entry:
    """Contests of one rule in one scene, one for each seed."""

    scene: str
    preset: Preset
    contests: list[Contest]

    @property
    def label(self) -> str:
        """For a figure's axis."""
        return f"{self.preset.value}, {self.scene}"

    def differences(self, rival: str) -> list[Measures]:
        """Pruned less rival for each seed; the signal relative to the rival's."""
        return [
            {
                SURVIVORS: contest[PRUNED][SURVIVORS] - contest[rival][SURVIVORS],
                BALANCE: contest[PRUNED][BALANCE] - contest[rival][BALANCE],
                NO_SIGNAL: contest[PRUNED][NO_SIGNAL] - contest[rival][NO_SIGNAL],
                SIGNAL: _relative(contest[PRUNED][SIGNAL], contest[rival][SIGNAL]),
            }
            for contest in self.contests
        ]

    def winner(self, rival: str) -> str:
        """Who has more signal; nobody where the 95% interval of the difference holds 0."""
        difference, half = mean_and_half_width([d[SIGNAL] for d in self.differences(rival)])
        if not abs(difference) > half:
            return "neither"
        return "pruning" if difference > 0 else "smaller"


def study(settings: SimSettings, progress: Progress) -> Study:
    """All rules in your setting, then our rule where the score is sharp."""
    base = capped(settings).replace(seeds=max(settings.seeds, LEAST_SEEDS))
    full: list[Measures] = []
    own = {preset: Entry(OWN_SCENE, preset, []) for preset in PRESETS}
    for seed, batch in enumerate(batches(base)):
        field = Field(base, batch)
        full.append(field.measure_first(field.rollouts))
        for preset, entry in own.items():
            plan = settle(base.replace(preset=preset), seed).plan
            entry.contests.append(field.contest(plan))
        progress(0.6 * (seed + 1) / base.seeds)
    entries = [*own.values()]
    for place, scene in enumerate(SCENES, start=1):
        entries += _entries_of(scene, base)
        progress(0.6 + 0.4 * place / len(SCENES))
    differences = _difference_table(entries)
    return Study(
        name="same-cost",
        title="Pruning against a smaller group of the same cost",
        text=_text(differences.frame, settings.preset) + capped_text(settings),
        tables=(_absolute_table(full, own.values()), differences),
        figures=(_figure(entries),),
    )


def _entries_of(scene: Scene, base: SimSettings) -> list[Entry]:
    """The rule balanced in this scene; nothing where the scene is not allowed."""
    try:
        settings = base.replace(preset=Preset.BALANCED, **scene.changes)
    except ArrolError:
        return []
    plan = settle(settings).plan
    contests = [Field(settings, batch).contest(plan) for batch in batches(settings)]
    return [Entry(scene.name, Preset.BALANCED, contests)]


class Field:
    """One batch, of which all or some rollouts are generated.

    Rollouts are ranked by their index and then by group, so that the first M of them are groups of
    ⌊M/B⌋ or one more: the same prompts with fewer rollouts each.
    """

    def __init__(self, settings: SimSettings, batch: Batch) -> None:
        rows = batch.rows
        self._settings = settings
        self._batch = batch
        self._order_N = np.lexsort((rows.groups_N, rows.indices_N))
        self._trained = batch.tokens + settings.prompt_tokens * len(batch.requests)
        self._phases = phase_times(settings, self._trained)
        self._outcomes = {request.key: request.outcome for request in batch.requests}

    @property
    def rollouts(self) -> int:
        """N, of the full batch."""
        return len(self._order_N)

    def contest(self, plan: PruningPlan) -> Contest:
        """The batch pruned by this plan, and its rivals of equal tokens and equal time."""
        pruned = self.measure(generate(self._settings, self._batch.requests, plan))
        return {
            PRUNED: pruned,
            SAME_TOKENS: self.measure_first(self.count_for_tokens(1e3 * pruned[TOKENS])),
            SAME_TIME: self.measure_for_time(pruned[SECONDS]),
        }

    def count_for_tokens(self, tokens: float) -> int:
        """M, the first rollouts that come nearest to so many tokens."""
        totals_N = np.cumsum(self._batch.rows.lengths_N[self._order_N])
        return int(np.argmin(np.abs(totals_N - tokens))) + 1

    def measure_for_time(self, seconds: float) -> Measures:
        """The first rollouts whose step comes nearest to so many seconds.

        By regula falsi; each trial takes at least a tenth off the interval that holds it.
        """
        low, high = 0, self.rollouts
        low_seconds, best = self._phases.step_seconds(0.0, 0.0), self.measure_first(high)
        high_seconds = best[SECONDS]
        for _ in range(MAX_TRIALS):
            if high - low <= 1 or abs(best[SECONDS] / seconds - 1.0) <= TIME_TOLERANCE:
                break
            share = (seconds - low_seconds) / (high_seconds - low_seconds)
            middle = low + round(min(max(share, 0.1), 0.9) * (high - low))
            middle = min(max(middle, low + 1), high - 1)
            found = self.measure_first(middle)
            if abs(found[SECONDS] - seconds) < abs(best[SECONDS] - seconds):
                best = found
            if found[SECONDS] < seconds:
                low, low_seconds = middle, found[SECONDS]
            else:
                high, high_seconds = middle, found[SECONDS]
        return best

    def measure_first(self, count: int) -> Measures:
        """The first ``count`` rollouts, unpruned."""
        rows = np.sort(self._order_N[:count]).tolist()
        requests = [self._batch.requests[row] for row in rows]
        return self.measure(generate(self._settings, requests))

    def measure(self, run: EngineRun) -> Measures:
        """Per prompt of the full batch, so that groups without any rollout count as nothing."""
        rollouts, prompts = run.rollouts, len(self._batch.rows.pass_rates_B)
        groups = summarize_groups(
            np.array([rollout.group for rollout in rollouts], dtype=np.uint64),
            [self._outcomes[rollout.key] for rollout in rollouts],
            [rollout.survived for rollout in rollouts],
        )
        survivors_B = np.maximum(groups.survivors, 1)
        signal_B = groups.right * (groups.survivors - groups.right) / survivors_B
        weights = [
            1.0 / (1.0 if rollout.detection is None else rollout.detection.inclusion)
            for rollout in rollouts
            if rollout.survived
        ]
        trained = survivor_tokens(run, self._settings.prompt_tokens)
        return {
            SURVIVORS: float(groups.survivors.sum()) / prompts,
            BALANCE: float((signal_B / survivors_B).sum()) / prompts,
            NO_SIGNAL: 1.0 - float(groups.has_signal.sum()) / prompts,
            SIGNAL: float(signal_B.sum()) / prompts,
            LABELS: estimators.effective_sample_size(weights) / prompts,
            TOKENS: sum(rollout.tokens for rollout in rollouts) / 1e3,
            SECONDS: self._phases.step_seconds(run.seconds, trained / self._trained),
        }


def _relative(value: float, reference: float) -> float:
    return value / reference - 1.0 if reference else np.nan


def verdict(differences: pd.DataFrame, preset: Preset) -> str:
    """Whether your setting has more signal pruned, or as a smaller group, from the table."""
    mine = (differences["scene"] == OWN_SCENE) & (differences["rule"] == preset.value)
    rows = differences[mine].set_index("at same")
    gains = dict(zip(rows.index, zip(rows[SIGNAL], rows[f"{SIGNAL} ±"], strict=True), strict=True))
    parts = [
        f"{_gain_text(*gains[rival])} at the same {cost}"
        for rival, cost in ((SAME_TOKENS, "generated tokens"), (SAME_TIME, "time of a step"))
    ]
    winners = set(rows["more signal"])
    advice = ""
    if winners == {"smaller"}:
        advice = " So fewer rollouts a prompt, none of them pruned, are the better use of the cost."
    elif winners == {"pruning"}:
        advice = " So pruning is the better use of the cost."
    elif winners == {"smaller", "neither"}:
        advice = " So pruning is ahead on neither count."
    return (
        f"Your setting, pruned by the rule {preset.value}, against a smaller group without "
        f"pruning has {' and '.join(parts)}.{advice}"
    )


def _gain_text(difference: float, half: float) -> str:
    if np.isnan(difference):
        return "no signal to compare"
    if not abs(difference) > half:
        return f"as much signal within the noise ({difference:+.1%} ± {half:.1%})"
    return f"{abs(difference):.1%} ± {half:.1%} {'more' if difference > 0 else 'less'} signal"


def _text(differences: pd.DataFrame, preset: Preset) -> str:
    return (
        f"{verdict(differences, preset)}\n\nPruning pays for rollouts that are thrown away. The "
        "rival spends the same on a smaller group of which it throws nothing away: the same "
        "generated tokens, or the same simulated time of the whole step, training included. "
        "Signal is Σ(Y − ρ̂)² over a prompt's survivors, the squared length of its advantages. "
        "What a gradient step makes of its signal is not simulated."
    )


def _absolute_table(full: list[Measures], entries: Iterable[Entry]) -> Table:
    rows = [{"rule": "none", "batch": "full"} | with_intervals(full)]
    for entry in entries:
        for name in (PRUNED, *RIVALS):
            measures = [contest[name] for contest in entry.contests]
            rows.append({"rule": entry.preset.value, "batch": name} | with_intervals(measures))
    return Table(
        name="same_cost",
        title="What a step of your setting yields and costs",
        frame=pd.DataFrame(rows),
        formats={SURVIVORS: ".2f", BALANCE: ".4f", NO_SIGNAL: ".3f", SIGNAL: ".3f"}
        | {LABELS: ".2f", TOKENS: ",.0f", SECONDS: ".1f"},
        note=(
            f"Mean ± half of the 95% interval, {seeds_text(len(full))}; per prompt: survivors; "
            "ρ̂(1−ρ̂), 0 for a group without survivors; share of prompts without signal; signal; "
            "labels, the effective number (Σ1/p)²/Σ(1/p²). Batch tokens, time: the smaller "
            "unpruned group that costs as many tokens, or as much time, as the pruned one above it."
        ),
    )


def _difference_table(entries: list[Entry]) -> Table:
    rows = [
        {"scene": entry.scene, "rule": entry.preset.value, "at same": rival}
        | with_intervals([{k: d[k] for k in (BALANCE, SIGNAL)} for d in entry.differences(rival)])
        | {"more signal": entry.winner(rival)}
        for rival in RIVALS
        for entry in entries
    ]
    return Table(
        name=DIFFERENCE_TABLE,
        title="Pruned less smaller group, paired over seeds",
        frame=pd.DataFrame(rows),
        formats={BALANCE: "+.4f", SIGNAL: "+.1%"},
        note=(
            "Positive: pruning is better. Signal is relative to the rival's. Sharp: a score of AUC "
            ".9, none of it known from the prompt. Smaller: the smaller group has more signal; "
            "neither: the 95% interval of the difference holds 0. "
            f"{seeds_text(len(entries[0].contests))}."
        ),
    )


def _figure(entries: list[Entry]) -> Figure:
    def draw(canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2, sharey=True)
        panels = ((left, SIGNAL, 100.0), (right, BALANCE, 1.0))
        for axes, name, scale in panels:
            for rival, shift in zip(RIVALS, (-0.14, 0.14), strict=True):
                for place, entry in enumerate(entries):
                    values = [scale * d[name] for d in entry.differences(rival)]
                    mean, half = mean_and_half_width(values)
                    axes.errorbar(
                        mean, place + shift, xerr=half, color=COLOURS[rival], marker="o",
                        label=f"at the same {rival}" if place == 0 else None,
                    )  # fmt: skip
            axes.axvline(0.0, color=BLACK, linewidth=1.0)
        left.set_yticks(range(len(entries)), [entry.label for entry in entries])
        left.invert_yaxis()
        left.set_xlabel("signal, pruned against smaller group [%]")
        right.set_xlabel("E[ρ̂(1−ρ̂)], difference")
        handles, labels = right.get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside upper right", ncols=2)

    return Figure(
        name="same_cost",
        title="Pruning against a smaller group of the same cost",
        draw=draw,
        note="Right of 0: pruning is better. Bars: 95% intervals over seeds, same prompts.",
    )
