"""Voting: counts, Bayes by enumeration, laws of ranks, and that order never matters."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrol.errors import ArrolError
from arrol.keys import stable_key
from arrol.voting import (
    VoteMethod,
    bayes_weights,
    logistic_rewards,
    merge_answers,
    rank_weights,
    vote,
    vote_weights,
)

answer = st.sampled_from(["1", "2", "3", "10", None, " "])
answers = st.lists(answer, min_size=1, max_size=9)
SCORED = [method for method in VoteMethod if method is not VoteMethod.MAJORITY]
#: Increasing without exception on the integers below, in float64 too.
INCREASING = (lambda s: 3 * s - 7, lambda s: s**3, lambda s: math.exp(s / 10), lambda s: s / 1e6)


def equal(one: str, other: str) -> bool:
    return one == other


def first_by_key(texts: set[str]) -> str:
    return min(texts, key=stable_key)


@st.composite
def ballots(draw: st.DrawFn, values: st.SearchStrategy[float]) -> tuple[list, list]:
    given_answers = draw(answers)
    size = len(given_answers)
    return given_answers, draw(st.lists(values, min_size=size, max_size=size))


class TestMajority:
    @given(answers)
    def test_it_counts(self, given_answers):
        counts = Counter(a for a in given_answers if a is not None and a.strip())
        found = vote(given_answers, equal)
        if not counts:
            assert (found.answer, found.votes, found.rivals) == (None, 0, 0)
            return
        most = max(counts.values())
        tied = {text for text, count in counts.items() if count == most}
        assert found.answer == first_by_key(tied)
        assert (found.weight, found.votes, found.rivals) == (most, most, len(counts))

    def test_no_answer_never_wins_against_one(self):
        assert vote([None, None, "", "  ", "7"], equal).answer == "7"
        assert vote([None, "", " "], equal).answer is None
        assert vote([], equal).answer is None


class TestRank:
    @given(ballots(st.integers(-30, 30)), st.sampled_from(INCREASING))
    def test_an_increasing_map_of_the_scores_changes_nothing(self, ballot, increasing):
        given_answers, scores = ballot
        mapped = [increasing(score) for score in scores]
        assert vote(given_answers, equal, "rank", scores) == vote(
            given_answers, equal, "rank", mapped
        )

    @given(answers, st.floats(-1e3, 1e3))
    def test_where_all_scores_tie_it_is_majority(self, given_answers, score):
        ranked = vote(given_answers, equal, "rank", [score] * len(given_answers))
        assert ranked.answer == vote(given_answers, equal).answer

    def test_by_hand(self):
        weights = rank_weights(np.array([[5.0, 1.0, 1.0, 9.0, 7.0]]), np.ones((1, 5), dtype=bool))
        # Ranks 3, 1.5, 1.5, 5, 4, rescaled by (r − 1)/4.
        assert weights.tolist() == [[0.5, 0.125, 0.125, 1.0, 0.75]]
        assert rank_weights(np.array([[-3.0]]), np.array([[True]])).tolist() == [[1.0]]

    @given(st.lists(st.integers(-5, 5), min_size=2, max_size=12))
    def test_weights_count_who_is_below(self, scores):
        weights = rank_weights(np.array([scores], float), np.ones((1, len(scores)), dtype=bool))[0]
        for score, weight in zip(scores, weights, strict=True):
            below = sum(s < score for s in scores) + (scores.count(score) - 1) / 2
            assert weight == pytest.approx(below / (len(scores) - 1))

    def test_ranks_are_those_of_the_rollouts_that_vote(self):
        # 0 + ½ for a, 1 for b; with the silent ones ranked below, a would get 2/4 + 3/4.
        scores = [3.0, 4.0, 5.0, 1.0, 2.0]
        found = vote(["a", "a", "b", None, None], equal, "rank", scores)
        assert (found.answer, found.weight) == ("b", 1.0)

    def test_totals_that_only_rounding_tells_apart_tie(self):
        assert 0.1 + 0.2 > 0.3
        for one, other in (([0.1, 0.2], [0.3, 0.0]), ([0.3, 0.0], [0.1, 0.2])):
            found = vote(["a", "a", "b", "b"], equal, "confidence", one + other)
            assert found.answer == first_by_key({"a", "b"})
        more_votes = vote(["a", "a", "b"], equal, "confidence", [0.1, 0.2, 0.3 + 1e-15])
        assert more_votes.answer == "a"


class TestNaiveBayes:
    @given(st.data())
    def test_it_is_the_most_probable_answer_by_enumeration(self, data):
        m = data.draw(st.integers(2, 4))
        texts = [str(n) for n in range(m)]
        extra = data.draw(st.lists(st.sampled_from(texts), max_size=4))
        given_answers = data.draw(st.permutations([*texts, *extra]))
        size = len(given_answers)
        q = data.draw(st.lists(st.floats(0.02, 0.98), min_size=size, max_size=size))
        chances = {}
        for right in texts:  # each as likely beforehand; a wrong one of m − 1, evenly
            chances[right] = math.prod(
                p if text == right else (1 - p) / (m - 1)
                for text, p in zip(given_answers, q, strict=True)
            )
        found = vote(given_answers, equal, "naive Bayes", q).answer
        assert chances[found] == pytest.approx(max(chances.values()), rel=1e-6)

    def test_the_scale_of_q_matters_unlike_that_of_ranks(self):
        given_answers, q = ["a", "a", "b"], np.array([0.6, 0.6, 0.8])
        assert vote(given_answers, equal, "naive Bayes", q).answer == "b"
        assert vote(given_answers, equal, "naive Bayes", q**0.1).answer == "a"
        ranks = {vote(given_answers, equal, "rank", s).answer for s in (q, q**0.1)}
        assert len(ranks) == 1

    def test_bare_log_odds_would_count_votes_against_their_answer(self):
        given_answers, q = ["a", "a", "a", "b", "c"], np.array([0.4, 0.4, 0.4, 0.4, 0.3])
        bare = {a: sum(np.log(p / (1 - p)) for t, p in zip(given_answers, q, strict=True) if t == a)
                for a in "abc"}  # fmt: skip
        assert max(bare, key=bare.__getitem__) == "b"
        assert vote(given_answers, equal, "naive Bayes", q).answer == "a"

    def test_weights_by_hand_and_at_the_edges(self):
        q = np.array([0.5, 0.75, 0.0, 1.0])
        weights = bayes_weights(q, 4)
        assert weights[:2] == pytest.approx([math.log(3), math.log(3) + math.log(3)])
        assert np.isfinite(weights).all()
        assert weights[3] - math.log(3) == pytest.approx(-(weights[2] - math.log(3)))
        assert bayes_weights(q, 1) == pytest.approx(bayes_weights(q, 2))


class TestWeights:
    @given(ballots(st.floats(0.0, 1.0)), st.sampled_from(["confidence", "reward model"]))
    def test_scores_add_up(self, ballot, method):
        given_answers, scores = ballot
        totals: dict[str, list[float]] = {}
        for text, score in zip(given_answers, scores, strict=True):
            if text is not None and text.strip():
                totals.setdefault(text, []).append(score)
        found = vote(given_answers, equal, method, scores)
        if not totals:
            assert found.answer is None
            return
        assert found.weight == pytest.approx(math.fsum(totals[found.answer]))
        assert found.weight >= max(map(math.fsum, totals.values())) - 1e-8

    @pytest.mark.parametrize("method", SCORED)
    @given(answers)
    def test_without_any_score_it_is_majority(self, method, given_answers):
        found = vote(given_answers, equal, method, [math.nan] * len(given_answers))
        assert found == vote(given_answers, equal)

    def test_a_missing_score_weighs_the_mean_of_the_others(self):
        found = vote(["a", "b", "c", "c"], equal, "confidence", [2.0, 4.0, math.nan, math.nan])
        assert (found.answer, found.weight) == ("c", 6.0)
        # A rank's mean is ½, so two without a score outweigh the highest rank by their votes alone.
        found = vote(["a", "b", "c", "c"], equal, "rank", [2.0, 4.0, math.nan, math.nan])
        assert (found.answer, found.weight) == ("c", 1.0)

    def test_logits_of_a_reward_model(self):
        scores = np.array([-2.0, 0.0, 800.0, -800.0, math.nan])
        expected = [1 / (1 + math.exp(2)), 0.5, 1.0, 0.0, math.nan]
        assert logistic_rewards(scores) == pytest.approx(expected, nan_ok=True)
        shares = np.array([0.0, 0.4, 1.0, math.nan])
        assert logistic_rewards(shares) is shares


class TestOrder:
    @given(st.data(), st.sampled_from(list(VoteMethod)))
    def test_the_order_of_rollouts_changes_nothing_to_the_last_bit(self, data, method):
        value = st.floats(0.0, 1.0) | st.just(math.nan) | st.sampled_from([0.1, 0.2, 0.3])
        pairs = list(zip(*data.draw(ballots(value)), strict=True))
        shuffled = data.draw(st.permutations(pairs))
        one, other = ([*zip(*rows, strict=True)] for rows in (pairs, shuffled))
        assert vote(one[0], equal, method, one[1]) == vote(other[0], equal, method, other[1])

    def test_nor_does_it_change_the_mean_that_stands_in_for_a_missing_score(self):
        scores = [0.1, 0.2, 0.3]
        assert sum(scores) != sum(reversed(scores))
        classes = np.zeros((1, 4), dtype=np.int64)
        rows = [np.array([[*order, math.nan]]) for order in itertools.permutations(scores)]
        found = {float(vote_weights(VoteMethod.CONFIDENCE, row, classes)[0, 3]) for row in rows}
        assert len(found) == 1

    def test_ties_go_to_votes_then_to_the_key(self):
        found = vote(["a", "b", "b"], equal, "confidence", [2.0, 1.0, 1.0])
        assert (found.answer, found.votes) == ("b", 2)
        winners = {vote(p, equal).answer for p in itertools.permutations(["x", "y", "zz"])}
        assert winners == {first_by_key({"x", "y", "zz"})}


class TestMerging:
    @given(
        st.lists(st.integers(0, 30), max_size=8),
        st.integers(1, 4),
        st.sampled_from([(-1, 1), (0, 1), (-1, 0)]),
        st.data(),
    )
    def test_it_is_the_closure_whatever_the_order(self, numbers, reach, ways, data):
        def near(one: str, other: str) -> bool:  # asked both ways round, or seen one way only
            return ways[0] * reach <= int(other) - int(one) <= ways[1] * reach

        # Components of points on a line: the sorted ones are cut where a gap exceeds the reach.
        component, last = {}, None
        for number in sorted(set(numbers)):
            starts = last is None or number - last > reach
            component[number] = component.get(last, -1) + starts
            last = number
        shuffled = data.draw(st.permutations(numbers))
        for order in (numbers, shuffled):
            found = merge_answers([str(n) for n in order], near)
            for (a, i), (b, j) in itertools.combinations(
                zip(order, found.classes_N, strict=True), 2
            ):
                assert (i == j) == (component[a] == component[b])
        assert found.texts == merge_answers([str(n) for n in numbers], near).texts

    def test_a_class_is_named_by_its_shortest_spelling(self):
        def half(one: str, other: str) -> bool:
            return "7" not in (one, other)

        found = merge_answers(["0.50", "2/4", "0.5", " 0.50 ", None, "7"], half)
        assert set(found.texts) == {"0.5", "7"}  # of equal length the first by code points
        assert found.texts[0] == first_by_key({"0.5", "7"})
        assert (found.classes_N == -1).tolist() == [False] * 4 + [True, False]
        assert len(set(found.classes_N[:4].tolist())) == 1

    def test_equal_texts_are_not_asked_about(self):
        def never(one: str, other: str) -> bool:
            raise AssertionError((one, other))

        assert merge_answers(["3", "3", " 3"], never).texts == ("3",)


class TestRefusals:
    @pytest.mark.parametrize(
        ("method", "values", "text"),
        [
            ("best", [1.0, 1.0], "method is 'best'; allowed is one of majority, confidence, rank"),
            ("rank", None, "values is None; allowed for rank is a value for each rollout"),
            ("rank", [1.0], r"values has shape \(1,\); allowed is \(2,\)"),
            ("rank", [1.0, math.inf], r"values\[1\] is inf"),
            (
                "naive Bayes",
                [1.5, 0.5],
                r"values\[0\] is 1.5; allowed is a number",
            ),
            ("confidence", [1.0, -0.1], r"values\[1\] is -0.1"),
            ("reward model", [1.0, -0.1], r"values\[1\] is -0.1"),
        ],
    )
    def test_a_bad_value_is_named(self, method, values, text):
        with pytest.raises(ArrolError, match=text):
            vote(["a", "b"], equal, method, values)
