"""Problems to vote over: rollouts with their answers put together and graded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from arrol.columns import Flags, Floats, Integers
from arrol.voting import NO_ANSWER, AnswerClasses, VoteMethod, logistic_rewards, merge_answers

#: Whether the two answers of each pair mean the same, None where that can't be told. Where one of
#: them is the gold answer, it is the second. Many pairs at once: they may be checked in parallel.
Compare = Callable[[Sequence[tuple[str, str]]], Sequence[bool | None]]

#: The key of a rollout's values that each method reads; majority needs none.
COLUMNS = {
    VoteMethod.CONFIDENCE: "confidence",
    VoteMethod.RANK: "score",
    VoteMethod.BAYES: "posterior",
    VoteMethod.REWARD: "orm",
}


@dataclass(frozen=True, slots=True)
class Voter:
    """One rollout.

    Attributes:
        answer: what it answers; None if nothing can be read from its text.
        label: it is right; None where only a gold answer can tell.
        values: what the methods need, by key; a missing one is left out.
    """

    answer: str | None
    label: bool | None
    values: dict[str, float]


@dataclass
class Ballot:
    """A problem's rollouts as they were read.

    Attributes:
        name: of the problem within its file: step and group, or line.
        gold: the gold answer; None if every voter has a label.
        voters: the rollouts that count.
    """

    name: str
    gold: str | None = None
    voters: list[Voter] = field(default_factory=list)


@dataclass(frozen=True)
class VoteProblem:
    """One problem with its N rollouts and C different answers, ready to vote over.

    Attributes:
        name: of the problem, the same wherever its file is.
        texts: its answers (see :class:`arrol.voting.AnswerClasses`).
        classes_N: which of them each rollout gave; −1 for none.
        right_C: whether each answer is right.
        right_N: whether each rollout is.
        values: for each method that needs values, those of the rollouts; NaN where missing.
    """

    name: str
    texts: tuple[str, ...]
    classes_N: Integers
    right_C: Flags
    right_N: Flags
    values: dict[VoteMethod, Floats]

    def __len__(self) -> int:
        return len(self.classes_N)


@dataclass(frozen=True)
class VoteProblems:
    """All problems, and what there is to know about their grades.

    Attributes:
        problems: in the order of the ballots.
        labelled: rollouts with a label; the others were held against the gold answer.
        contradicted: rollouts whose label is not that of most rollouts with the same answer.
        unverifiable: rollouts whose answer could not be held against the gold one: not right.
        logits: the reward model's scores were taken for logits.
    """

    problems: tuple[VoteProblem, ...]
    labelled: int
    contradicted: int
    unverifiable: int
    logits: bool

    @property
    def rollouts(self) -> int:
        """Rollouts that count."""
        return sum(map(len, self.problems))

    def share_with(self, method: VoteMethod) -> float:
        """Share of the rollouts with an answer that have what the method needs."""
        if method is VoteMethod.MAJORITY:
            return 1.0
        voting = np.concatenate([problem.classes_N != NO_ANSWER for problem in self.problems])
        known = np.concatenate([~np.isnan(problem.values[method]) for problem in self.problems])
        return float(known[voting].mean()) if voting.any() else 0.0


def grade(ballots: Sequence[Ballot], compare: Compare) -> VoteProblems:
    """Put equal answers together and tell which are right.

    An answer is right if more than half of the labels of the rollouts that gave it say so; without
    any label, if it means the same as the gold answer. A rollout is right if its label, or else its
    answer, is.
    """
    alike = _ask(compare, (pair for ballot in ballots for pair in _spelling_pairs(ballot)))

    def same(one: str, other: str) -> bool:
        return alike[_ordered(one, other)] is True

    merged = [merge_answers([v.answer for v in ballot.voters], same) for ballot in ballots]
    verdicts = _ask(compare, _gold_pairs(ballots, merged))
    orm = np.array([v.values.get("orm", math.nan) for ballot in ballots for v in ballot.voters])
    rewards = np.split(logistic_rewards(orm), np.cumsum([len(b.voters) for b in ballots])[:-1])
    problems = tuple(
        _problem(ballot, classes, verdicts, rewards_N)
        for ballot, classes, rewards_N in zip(ballots, merged, rewards, strict=True)
    )
    answered = [
        (voter, problem.texts[place], ballot.gold, bool(problem.right_C[place]))
        for ballot, problem in zip(ballots, problems, strict=True)
        for voter, place in zip(ballot.voters, problem.classes_N, strict=True)
        if place != NO_ANSWER
    ]
    return VoteProblems(
        problems=problems,
        labelled=sum(v.label is not None for ballot in ballots for v in ballot.voters),
        contradicted=sum(v.label not in (None, right) for v, _, _, right in answered),
        unverifiable=sum(
            v.label is None and gold is not None and verdicts[text, gold] is None
            for v, text, gold, _ in answered
        ),
        logits=not np.array_equal(orm, np.concatenate(rewards), equal_nan=True),
    )


def _problem(
    ballot: Ballot,
    merged: AnswerClasses,
    verdicts: dict[tuple[str, str], bool | None],
    rewards_N: Floats,
) -> VoteProblem:
    labels_N = np.array([math.nan if v.label is None else v.label for v in ballot.voters], float)
    right_C = np.zeros(len(merged.texts), dtype=bool)
    for place, text in enumerate(merged.texts):
        labels = labels_N[(merged.classes_N == place) & ~np.isnan(labels_N)]
        if len(labels):
            right_C[place] = 2 * labels.sum() > len(labels)
        elif ballot.gold is not None:
            right_C[place] = verdicts[text, ballot.gold] is True
    # The appended one is what NO_ANSWER, −1, points to.
    by_answer_N = np.append(right_C, False)[merged.classes_N]
    values = {
        method: np.array([v.values.get(key, math.nan) for v in ballot.voters])
        for method, key in COLUMNS.items()
    }
    return VoteProblem(
        name=ballot.name,
        texts=merged.texts,
        classes_N=merged.classes_N,
        right_C=right_C,
        right_N=np.where(np.isnan(labels_N), by_answer_N, labels_N == 1.0),
        values=values | {VoteMethod.REWARD: rewards_N},
    )


def _ask(compare: Compare, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], bool | None]:
    """The answer to each different pair."""
    asked = list(dict.fromkeys(pairs))
    return dict(zip(asked, compare(asked), strict=True)) if asked else {}


def _spelling_pairs(ballot: Ballot) -> Iterator[tuple[str, str]]:
    """Every two different spellings of a problem's answers."""
    spellings = {voter.answer.strip() for voter in ballot.voters if voter.answer is not None}
    return (_ordered(*pair) for pair in itertools.combinations(sorted(spellings - {""}), 2))


def _gold_pairs(
    ballots: Sequence[Ballot], merged: Sequence[AnswerClasses]
) -> Iterator[tuple[str, str]]:
    """Every answer with the gold one, of the problems that are not labelled throughout."""
    for ballot, classes in zip(ballots, merged, strict=True):
        if ballot.gold is not None and any(voter.label is None for voter in ballot.voters):
            yield from ((text, ballot.gold) for text in classes.texts)


def _ordered(one: str, other: str) -> tuple[str, str]:
    """A pair by length, so that both ways to ask are one."""
    return (one, other) if (len(one), one) <= (len(other), other) else (other, one)
