"""One answer out of many rollouts of a prompt: majority, and votes weighted by scores.

Each rollout with an answer votes for it with a weight, and the answer with the largest total wins:

============  ==================  =============================================================
method        weight of a vote    value that it needs
============  ==================  =============================================================
majority      1                   none
confidence    C                   the trace's confidence C ≥ 0 (DeepConf, arXiv 2508.15260)
rank          (r − 1)/(n − 1)     any score; r is its rank among the n that vote (the paper)
naive Bayes   log(q/(1 − q))      q = P(right), calibrated; m different answers stand to vote
              + log(m − 1)
reward model  s                   an outcome reward model's score s ≥ 0
============  ==================  =============================================================

Rank voting depends on the order of the scores alone, ties share the middle of their ranks, and a
single vote has weight 1. Naive Bayes gives the most probable answer if rollouts err independently,
each wrong one as likely as the other; without log(m − 1) (which is 0 for m ≤ 2) an answer loses by
a vote with q < ½ that speaks for it, so bare log-odds are never used. The paper gives only the
ranks; ours are the rules for ties and for what is missing:

* A rollout without an answer does not vote. If none has one, none wins.
* A rollout without the value that a method needs weighs what the others of its group do on
  average; if none has it, this is majority.
* Totals that differ by less than rounding can make are equal. Of equal ones the answer with more
  votes wins, then the one whose shortest spelling has the lowest :func:`arrol.stable_key`: an
  arbitrary choice, but the same everywhere, and unlike length or alphabet it leans to no answers.

So the winner depends on the order of the rollouts in no way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from arrol.columns import Flags, Floats, Integers, check_column
from arrol.errors import ArrolError, as_member
from arrol.keys import stable_key

Same = Callable[[str, str], bool]

NO_ANSWER = -1  #: class of a rollout that does not vote, and winner of a vote without any
Q_EDGE = 1e-6  #: naive Bayes takes q to be at least this far from 0 and 1: no vote is infinite
TIE = 1e-9  #: totals this close, as a share of all weight there is, are equal


class VoteMethod(StrEnum):
    """The methods of the module's table."""

    MAJORITY = "majority"
    CONFIDENCE = "confidence"
    RANK = "rank"
    BAYES = "naive Bayes"
    REWARD = "reward model"


@dataclass(frozen=True)
class AnswerClasses:
    """N rollouts' answers, those that are the same put together.

    Attributes:
        texts: one text a class, its shortest spelling, in the order that ties are broken by.
        classes_N: class of each rollout, a place in ``texts``, or :data:`NO_ANSWER`.
    """

    texts: tuple[str, ...]
    classes_N: Integers


@dataclass(frozen=True, slots=True)
class Vote:
    """What a vote came to.

    Attributes:
        answer: the winner, in its shortest spelling; None if no rollout has an answer.
        weight: total of the winner.
        votes: rollouts that gave it.
        rivals: answers that stood to vote, the winner included.
    """

    answer: str | None
    weight: float
    votes: int
    rivals: int


def vote(
    answers: Sequence[str | None],
    same: Same,
    method: VoteMethod | str = VoteMethod.MAJORITY,
    values_N: ArrayLike | None = None,
) -> Vote:
    """Vote over the rollouts of one prompt.

    Args:
        answers: answer of each rollout; None or blank where there is none.
        same: says whether two spellings mean the same answer (see :func:`merge_answers`).
        method: a :class:`VoteMethod`.
        values_N: the value of each rollout that the method needs; NaN where there is none. Majority
            looks at none.

    Raises:
        ArrolError: a method is unknown, or a value is missing or not allowed.
    """
    method = as_member("method", VoteMethod, method)
    if values_N is None and method is not VoteMethod.MAJORITY:
        raise ArrolError(f"values is None; allowed for {method} is a value for each rollout.")
    merged = merge_answers(answers, same)
    values = np.full(len(answers), np.nan) if values_N is None else np.asarray(values_N, np.float64)
    if values.shape != (len(answers),):
        raise ArrolError(f"values has shape {values.shape}; allowed is ({len(answers)},).")
    check_values(method, values)
    classes_1N = merged.classes_N[None, :]
    totals_1C, counts_1C = tally(classes_1N, vote_weights(method, values[None, :], classes_1N))
    winner = int(winners(totals_1C, counts_1C)[0])
    if winner == NO_ANSWER:
        return Vote(None, 0.0, 0, 0)
    return Vote(
        answer=merged.texts[winner],
        weight=float(totals_1C[0, winner]),
        votes=int(counts_1C[0, winner]),
        rivals=len(merged.texts),
    )


def merge_answers(answers: Sequence[str | None], same: Same) -> AnswerClasses:
    """Put together the answers that mean the same.

    ``same`` need be neither symmetric nor transitive: a and b are together if a chain of answers
    leads from one to the other in which each two neighbours are the same, asked either way round.
    This closure does not depend on the order of the answers. ``same`` is asked once or twice for
    each pair of different spellings that are not together already.
    """
    stripped = [answer.strip() or None if answer is not None else None for answer in answers]
    known = {text for text in stripped if text is not None}
    spellings = sorted(known, key=lambda text: (len(text), text))
    leader = list(range(len(spellings)))

    def find(place: int) -> int:
        while leader[place] != place:
            place = leader[place]
        return place

    for later, text in enumerate(spellings):
        for earlier in range(later):
            one, other = sorted((find(earlier), find(later)))
            if one != other and (same(spellings[earlier], text) or same(text, spellings[earlier])):
                leader[other] = one  # the first spelling leads, so it names the class
    found = {find(place) for place in range(len(spellings))}
    leaders = sorted(found, key=lambda place: stable_key(spellings[place]))
    number = {place: n for n, place in enumerate(leaders)}
    classes = {text: number[find(place)] for place, text in enumerate(spellings)}
    classes_N = [NO_ANSWER if text is None else classes[text] for text in stripped]
    return AnswerClasses(
        tuple(spellings[place] for place in leaders), np.array(classes_N, dtype=np.int64)
    )


def check_values(method: VoteMethod, values_N: Floats) -> None:
    """Raise :class:`ArrolError` at the first value that the method can't use; NaN is none."""
    low, high = {
        VoteMethod.CONFIDENCE: (0.0, math.inf),
        VoteMethod.BAYES: (0.0, 1.0),
        VoteMethod.REWARD: (0.0, math.inf),
    }.get(method, (-math.inf, math.inf))
    if method is not VoteMethod.MAJORITY:
        check_column("values", np.where(np.isnan(values_N), 0.0, values_N), low, high)


def vote_weights(method: VoteMethod, values_SK: Floats, classes_SK: Integers) -> Floats:
    """Weight of each of K votes in S separate votes, by the module's table: float64[S, K].

    Args:
        method: how to weigh.
        values_SK: what the method needs; NaN where unknown.
        classes_SK: answers, :data:`NO_ANSWER` where a rollout does not vote; its weight is 0.
    """
    votes_SK = classes_SK != NO_ANSWER
    known_SK = votes_SK & ~np.isnan(values_SK)
    match method:
        case VoteMethod.MAJORITY:
            weights_SK: Floats = votes_SK.astype(np.float64)
            return weights_SK
        case VoteMethod.RANK:
            weights_SK = rank_weights(values_SK, known_SK)
        case VoteMethod.BAYES:
            weights_SK = bayes_weights(values_SK, _distinct(classes_SK)[:, None])
        case _:
            weights_SK = values_SK
    return _filled(weights_SK, known_SK, votes_SK)


def rank_weights(scores_SK: Floats, known_SK: Flags) -> Floats:
    """(r − 1)/(n − 1) with r the rank among the n known scores of a row, 1 the lowest.

    Equal scores share the mean of their ranks, so where all are equal each weight is ½: majority.
    A single score weighs 1. Unknown ones get no meaningful weight.
    """
    ranks_SK = rankdata(np.where(known_SK, scores_SK, np.inf), axis=1)
    count_S1 = known_SK.sum(axis=1, keepdims=True)
    weights: Floats = np.where(count_S1 > 1, (ranks_SK - 1.0) / np.maximum(count_S1 - 1, 1), 1.0)
    return weights


def bayes_weights(posteriors: Floats, answers: ArrayLike) -> Floats:
    """log(q/(1 − q)) + log(max(m − 1, 1)): what a vote adds to the log-odds of its answer.

    With m answers, of which one is right and equally likely to be any, and each wrong rollout
    equally likely to give any of the m − 1 others, P(answer | votes) ∝ Π over its votes of
    q(m − 1)/(1 − q). q is kept :data:`Q_EDGE` away from 0 and 1.

    Args:
        posteriors: q, calibrated; NaN stays NaN.
        answers: m, different answers that stand to vote; broadcast against q.
    """
    q = np.clip(posteriors, Q_EDGE, 1.0 - Q_EDGE)
    others = np.maximum(np.asarray(answers, dtype=np.float64) - 1.0, 1.0)
    weights: Floats = np.log(q) - np.log1p(-q) + np.log(others)
    return weights


def logistic_rewards(scores_N: Floats) -> Floats:
    """A reward model's scores as weights: themselves if all are in [0, 1], else 1/(1 + e^−s).

    Scores outside [0, 1] are taken for logits, which most reward models give. As they stand, the
    negative ones would make an answer lose by votes for it. NaN stays NaN.
    """
    known = scores_N[~np.isnan(scores_N)]
    if not len(known) or (known.min() >= 0.0 and known.max() <= 1.0):
        return scores_N
    squashed: Floats = 0.5 * (1.0 + np.tanh(0.5 * scores_N))  # overflows nowhere
    return squashed


def tally(classes_SK: Integers, weights_SK: Floats) -> tuple[Floats, Integers]:
    """Total weight and number of votes of each answer in S votes: [S, C] each.

    Weights are added in the order of their size, so that the order of rollouts changes no bit.
    """
    count, answers = len(classes_SK), int(classes_SK.max(initial=NO_ANSWER)) + 1
    order_SK = np.lexsort((weights_SK, classes_SK), axis=-1)
    classes = np.take_along_axis(classes_SK, order_SK, axis=1)
    weights = np.take_along_axis(weights_SK, order_SK, axis=1)
    voting = classes != NO_ANSWER
    cells = (np.arange(count)[:, None] * answers + classes)[voting]
    totals = np.bincount(cells, weights=weights[voting], minlength=count * answers)
    votes = np.bincount(cells, minlength=count * answers)
    shape = (count, answers)
    return totals.reshape(shape).astype(np.float64), votes.reshape(shape).astype(np.int64)


def leading(totals_SC: Floats, votes_SC: Integers) -> Flags:
    """The answers with the largest total of each of S votes, of equal ones those with most votes.

    One answer or several equal ones: bool[S, C], all False where there is no vote.
    """
    standing = votes_SC > 0
    totals = np.where(standing, totals_SC, -np.inf)
    slack = TIE * np.abs(totals_SC).sum(axis=1, keepdims=True)
    best = standing & (totals >= totals.max(axis=1, keepdims=True, initial=-np.inf) - slack)
    votes = np.where(best, votes_SC, 0)
    first: Flags = best & (votes == votes.max(axis=1, keepdims=True, initial=0))
    return first


def winners(totals_SC: Floats, votes_SC: Integers) -> Integers:
    """The answer that wins each of S votes, the first of equal ones; or :data:`NO_ANSWER`."""
    leading_SC = leading(totals_SC, votes_SC)
    first_S = leading_SC.argmax(axis=1) if leading_SC.shape[1] else NO_ANSWER
    return np.where(leading_SC.any(axis=1), first_S, NO_ANSWER)


def _distinct(classes_SK: Integers) -> Integers:
    """Different answers in each row."""
    ordered = np.sort(classes_SK, axis=1)
    first = np.ones(ordered.shape, dtype=bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    count: Integers = (first & (ordered != NO_ANSWER)).sum(axis=1)
    return count


def _filled(weights_SK: Floats, known_SK: Flags, votes_SK: Flags) -> Floats:
    """Known weights; the mean of its row's for a vote without one, 1 if the row has none."""
    known = np.where(known_SK, weights_SK, 0.0)
    count_S1 = known_SK.sum(axis=1, keepdims=True)
    # Sorted for the same reason as in tally: the mean must not depend on the order of rollouts.
    total_S1 = np.sort(known, axis=1).sum(axis=1, keepdims=True)
    mean_S1 = np.where(count_S1 > 0, total_S1 / np.maximum(count_S1, 1), 1.0)
    filled: Floats = np.where(known_SK, known, np.where(votes_SK, mean_S1, 0.0))
    return filled
