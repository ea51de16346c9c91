"""What ``arrol vote`` shows: every method's accuracy over k, as a table, a figure and a CSV."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from arrol.columns import Floats
from arrol.keys import stable_key
from arrol.records import FinishReason
from arrol.sim.cells import HALF_WIDTH
from arrol.sim.results import Figure, Study, Table
from arrol.sim.style import BLACK, GREY, PALETTE
from arrol.vote_metrics import (
    SUBSETS,
    Bootstrap,
    Interval,
    avg_at_k,
    pass_at_k,
    sizes_up_to,
    subsets,
    vote_at_k,
)
from arrol.vote_problems import COLUMNS, VoteProblem, VoteProblems
from arrol.voting import NO_ANSWER, VoteMethod

AVG, PASS = "avg@k", "pass@k"  #: rows that are no vote: one rollout picked at random, the best one
SCORED = "scored"  #: column of the share of the votes that have a method's value
GAIN = "on majority"  #: column of what a method gains on majority at the largest k
#: What the keys of :data:`COLUMNS` are.
MEANINGS = {
    "confidence": "the trace's mean confidence in its tokens",
    "score": "a quality score",
    "posterior": "a calibrated P(right)",
    "orm": "a reward model's score",
}


@dataclass(frozen=True)
class Accuracies:
    """Every figure of every problem.

    Attributes:
        sizes: the k that were looked at.
        absent: why a method can't be had, by method.
        values: row name → k → value of each problem. A problem with fewer rollouts than k stands
            there with all that it has.
        bootstrap: gives means their intervals.
    """

    sizes: tuple[int, ...]
    absent: dict[VoteMethod, str]
    values: dict[str, dict[int, Floats]]
    bootstrap: Bootstrap

    @property
    def rows(self) -> list[str]:
        """Names of the rows, in the order in which they are shown."""
        return list(self.values)

    def mean(self, row: str, k: int) -> Interval:
        """Mean over the problems."""
        return self.bootstrap.interval(self.values[row][k])

    def gain(self, row: str, k: int) -> Interval:
        """What a row gains on majority, problem by problem."""
        majority = self.values[VoteMethod.MAJORITY][k]
        return self.bootstrap.interval(self.values[row][k] - majority)


def measure(
    graded: VoteProblems,
    largest: int,
    draws: int,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Accuracies:
    """Vote over every problem with every method, for each k up to ``largest``.

    Args:
        graded: the problems.
        largest: the largest k, at most the largest problem's rollouts.
        draws: bootstrap resamples of the problems.
        seed: of the resamples and of the choices of k rollouts, where not all are looked at.
        progress: called with the share that is done.
    """
    absent = {
        method: f"no rollout that votes has {name}: {MEANINGS[name]}"
        for method, name in COLUMNS.items()
        if graded.share_with(method) == 0.0
    }
    methods = [method for method in VoteMethod if method not in absent]
    sizes = tuple(sizes_up_to(largest))
    count = len(graded.problems)
    names = [*map(str, methods), AVG, PASS]
    values = {name: {k: np.empty(count) for k in sizes} for name in names}
    for place, problem in enumerate(graded.problems):
        for k in sizes:
            figures = _figures(problem, methods, min(k, len(problem)), seed)
            for name, value in figures.items():
                values[name][k][place] = value
        if progress:
            progress((place + 1) / count)
    return Accuracies(sizes, absent, values, Bootstrap(count, draws, seed))


def _figures(
    problem: VoteProblem, methods: Sequence[VoteMethod], k: int, seed: int
) -> dict[str, float]:
    """Every row's figure for k rollouts of one problem."""
    # Keyed by the problem, so that other problems of a file change none of its figures.
    rng = np.random.default_rng([seed, stable_key(problem.name), k])
    choices_SK = subsets(len(problem), k, rng)
    none_N = np.full(len(problem), np.nan)
    figures = {
        str(method): vote_at_k(
            method,
            problem.classes_N,
            problem.right_C,
            problem.values.get(method, none_N),
            choices_SK,
        )
        for method in methods
    }
    right = int(problem.right_N.sum())
    figures[AVG] = avg_at_k(len(problem), right)
    figures[PASS] = pass_at_k(len(problem), right, k)
    return figures


def study_of(
    graded: VoteProblems, found: Accuracies, left_out: Mapping[FinishReason, int]
) -> Study:
    """Tables and figure.

    Args:
        graded: what was voted over.
        found: what came out.
        left_out: rollouts that do not count, by finish reason.
    """
    tables = [_methods_table(graded, found, _note(graded, found, left_out))]
    if found.absent:
        rows = [
            {"method": method, "needs": COLUMNS[method], "which is": MEANINGS[COLUMNS[method]]}
            for method in found.absent
        ]
        title = "Methods that need what no rollout here has"
        tables.append(Table("vote_absent", title, pd.DataFrame(rows)))
    return Study(
        name="vote",
        title="Voting over rollouts",
        text=_text(graded, left_out),
        tables=tuple(tables),
        figures=(_figure(found),),
    )


def results_frame(graded: VoteProblems, found: Accuracies) -> pd.DataFrame:
    """One row for each method and k, to 12 decimals.

    Columns: method, k, problems, full (problems that have k rollouts), accuracy with the bounds of
    its 95% interval, gain on majority over the same rollouts with its bounds, scored (share of the
    votes that have the method's value), absent (why an absent method is).
    """
    rows: list[dict[str, object]] = []
    for name, k in itertools.product(found.rows, found.sizes):
        mean, gain = found.mean(name, k), found.gain(name, k)
        rows.append(
            {
                "method": name, "k": k, "problems": len(graded.problems),
                "full": sum(len(problem) >= k for problem in graded.problems),
                "accuracy": mean.value, "low": mean.low, "high": mean.high,
                "gain": gain.value, "gain_low": gain.low, "gain_high": gain.high,
                "scored": _scored(graded, name), "absent": "",
            }
        )  # fmt: skip
    rows += [{"method": str(method), "absent": why} for method, why in found.absent.items()]
    frame = pd.DataFrame(rows).astype(dict.fromkeys(("k", "problems", "full"), "Int64"))
    numbers = frame.select_dtypes("float").columns
    frame[numbers] = frame[numbers].round(12) + 0.0  # no −0, and none of the last bits' noise
    return frame


def _scored(graded: VoteProblems, name: str) -> float:
    return math.nan if name in (AVG, PASS) else graded.share_with(VoteMethod(name))


def _unscored(graded: VoteProblems, found: Accuracies) -> bool:
    """Some method lacks its value for some vote."""
    return any(_scored(graded, name) < 1.0 for name in found.rows)


def _methods_table(graded: VoteProblems, found: Accuracies, note: str) -> Table:
    shown: dict[str, list[object]] = {"method": list(found.rows)}
    for k in found.sizes:
        means = [found.mean(name, k) for name in found.rows]
        shown[f"k = {k}"] = [100.0 * mean.value for mean in means]
        shown[f"k = {k}{HALF_WIDTH}"] = [100.0 * mean.half_width for mean in means]
    no_vote = (VoteMethod.MAJORITY, AVG, PASS)
    gains = [None if name in no_vote else found.gain(name, found.sizes[-1]) for name in found.rows]
    shown[GAIN] = [100.0 * gain.value if gain else math.nan for gain in gains]
    shown[f"{GAIN}{HALF_WIDTH}"] = [100.0 * gain.half_width if gain else math.nan for gain in gains]
    if _unscored(graded, found):
        shown[SCORED] = [100.0 * _scored(graded, name) for name in found.rows]
    formats = dict.fromkeys(shown, ".1f") | {GAIN: "+.1f", SCORED: ".0f"}
    frame = pd.DataFrame(shown)
    return Table("vote_methods", "Right answers, in %", frame, formats, note)


def _note(graded: VoteProblems, found: Accuracies, left_out: Mapping[FinishReason, int]) -> str:
    sizes = [len(problem) for problem in graded.problems]
    sampled = any(math.comb(n, k) > SUBSETS for k in found.sizes for n in sizes if n >= k)
    choices = "all ways to choose them"
    if sampled:
        choices += f", or {SUBSETS} of more"
    parts = [
        f"k: rollouts of a problem that are looked at, the mean over {choices}. Of answers that "
        "tie, the share that is right counts.",
        "±: half of a 95% bootstrap interval over problems.",
        f"{GAIN}: at k = {found.sizes[-1]}, problem by problem.",
        "avg@k: one rollout picked at random. pass@k: any of the k is right, which no vote knows.",
    ]
    if _unscored(graded, found):
        parts.append(
            f"{SCORED}: share of the votes that have the method's score; the others weigh what "
            "those do on average."
        )
    short = {k: sum(n < k for n in sizes) for k in found.sizes}
    if any(short.values()):
        few = ", ".join(f"{n:,} at k = {k}" for k, n in short.items() if n)
        parts.append(f"Problems with fewer than k rollouts stand with all they have: {few}.")
    if left_out:
        parts.append("avg@k and pass@k are those of the rollouts that count.")
    if graded.logits:
        parts.append("reward model: its scores lie outside [0, 1], so weights are 1/(1 + e^−s).")
    return " ".join(parts)


def _text(graded: VoteProblems, left_out: Mapping[FinishReason, int]) -> str:
    sizes = sorted({len(problem) for problem in graded.problems})
    each = _count(sizes[-1], "rollout")
    if len(sizes) > 1:
        each = f"{sizes[0]:,} to {each}"
    silent = sum(int((p.classes_N == NO_ANSWER).sum()) for p in graded.problems)
    answers = np.mean([len(problem.texts) for problem in graded.problems])
    parts = [
        f"{_count(len(graded.problems), 'problem')} with {each} each, "
        f"{graded.rollouts:,} in all; {answers:.2f} different answers a problem."
    ]
    if silent:
        parts.append(f"No answer could be read from {silent:,}, which do not vote.")
    if left_out:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in left_out.items())
        parts.append(f"Not counted: {reasons}.")
    parts.append(_grading(graded))
    return " ".join(parts)


def _grading(graded: VoteProblems) -> str:
    """What tells the right answers."""
    text = f"{graded.labelled:,} are graded by their labels, the others by the gold answer."
    if graded.labelled == graded.rollouts:
        text = "All are graded by their labels."
    elif not graded.labelled:
        text = "All are graded by the gold answer."
    if graded.contradicted:
        text += (
            f" Of the labels, {graded.contradicted:,} say otherwise than most of those with the "
            "same answer, which decide whether a vote is right."
        )
    if graded.unverifiable:
        text += (
            f" Of the answers, {graded.unverifiable:,} could not be held against the gold one and "
            "are not right."
        )
    return text


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _figure(found: Accuracies) -> Figure:
    title = f"Right answers over k, {_count(found.bootstrap.problems, 'problem')}"

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        places = np.arange(len(found.sizes))
        for name, colour in _colours(found).items():
            intervals = [found.mean(name, k) for k in found.sizes]
            means = [100.0 * interval.value for interval in intervals]
            is_vote = name not in (AVG, PASS)
            style = "o-" if is_vote else "--"
            axes.plot(places, means, style, color=colour, label=name, zorder=3 if is_vote else 2)
            if name == VoteMethod.MAJORITY:
                low = [100.0 * interval.low for interval in intervals]
                high = [100.0 * interval.high for interval in intervals]
                label = "majority, 95% interval"
                axes.fill_between(
                    places, low, high, color=colour, alpha=0.1, linewidth=0, label=label
                )
        axes.set_xticks(places, [str(k) for k in found.sizes])
        axes.set(xlabel="k, rollouts of a problem", ylabel="right answers [%]", title=title)
        canvas.legend(loc="outside right upper")

    return Figure("vote", title, draw)


def _colours(found: Accuracies) -> dict[str, str]:
    """A colour for each row; a method keeps its own, whichever others there are."""
    colours = {method.value: PALETTE[place] for place, method in enumerate(VoteMethod)}
    colours |= {AVG: GREY, PASS: BLACK}
    return {name: colours[name] for name in found.rows}
