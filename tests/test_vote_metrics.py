"""pass@k and votes over k by exhaustive enumeration; bootstrap intervals by closed forms."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrol.errors import ArrolError
from arrol.vote_metrics import (
    Bootstrap,
    avg_at_k,
    pass_at_k,
    sizes_up_to,
    subsets,
    vote_at_k,
)
from arrol.voting import VoteMethod, merge_answers

rollouts = st.lists(st.sampled_from(["1", "2", "3", None]), min_size=1, max_size=6)


def at_k(method: VoteMethod, answers: list, right: set[str], values: list, k: int) -> float:
    merged = merge_answers(answers, lambda one, other: one == other)
    right_C = np.array([text in right for text in merged.texts], dtype=bool)
    choices = subsets(len(answers), k, np.random.default_rng(0))
    return vote_at_k(method, merged.classes_N, right_C, np.array(values, float), choices)


def slow_at_k(answers: list, right: set[str], weigh, k: int) -> float:
    """Every k of the rollouts, votes counted in a dictionary, ties shared."""
    total, count = 0.0, 0
    for chosen in itertools.combinations(range(len(answers)), k):
        voting = [place for place in chosen if answers[place] is not None]
        weights = weigh(voting)
        totals: dict[str, float] = {}
        for place, weight in zip(voting, weights, strict=True):
            totals[answers[place]] = totals.get(answers[place], 0.0) + weight
        counts = Counter(answers[place] for place in voting)
        best = [text for text in totals if totals[text] > max(totals.values()) - 1e-9]
        best = [text for text in best if counts[text] == max(counts[other] for other in best)]
        total += sum(text in right for text in best) / len(best) if best else 0.0
        count += 1
    return total / count


class TestPassAtK:
    @pytest.mark.parametrize("n", range(1, 9))
    def test_it_counts_the_choices_with_a_right_one(self, n):
        for right, k in itertools.product(range(n + 1), range(1, n + 1)):
            choices = list(itertools.combinations(range(n), k))
            hits = sum(min(chosen) < right for chosen in choices)  # the first ones are right
            assert pass_at_k(n, right, k) == hits / len(choices)

    def test_it_is_unbiased_for_k_fresh_rollouts(self):
        # E over c ~ Binomial(n, p) must be 1 − (1 − p)^k.
        n, p, k = 9, 0.3, 4
        mean = sum(
            math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1)
        )
        assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)

    def test_large_numbers_stay_exact(self):
        assert pass_at_k(10_000, 1, 5_000) == 0.5
        assert pass_at_k(10_000, 0, 5_000) == 0.0

    @pytest.mark.parametrize(
        ("n", "c", "k", "text"),
        [(0, 0, 1, "rollouts is 0"), (3, 4, 1, "right is 4"), (3, 1, 4, "k is 4"), (3, 1, 0, "k")],
    )
    def test_impossible_counts_are_refused(self, n, c, k, text):
        with pytest.raises(ArrolError, match=text):
            pass_at_k(n, c, k)

    def test_avg_at_k(self):
        for n, right in ((4, 1), (5, 5)):
            for k in range(1, n + 1):
                choices = list(itertools.combinations([1] * right + [0] * (n - right), k))
                assert avg_at_k(n, right) == pytest.approx(np.mean([np.mean(c) for c in choices]))


class TestVoteAtK:
    @given(rollouts, st.sets(st.sampled_from("123")), st.data())
    def test_majority_is_the_mean_over_all_choices(self, answers, right, data):
        k = data.draw(st.integers(1, len(answers)))
        found = at_k(VoteMethod.MAJORITY, answers, right, [math.nan] * len(answers), k)
        assert found == pytest.approx(slow_at_k(answers, right, lambda v: [1.0] * len(v), k))

    @given(rollouts, st.sets(st.sampled_from("123")), st.data())
    def test_ranks_are_those_of_the_chosen(self, answers, right, data):
        k = data.draw(st.integers(1, len(answers)))
        scores = data.draw(
            st.lists(st.integers(0, 5), min_size=len(answers), max_size=len(answers))
        )

        def weigh(voting: list[int]) -> list[float]:
            if len(voting) == 1:
                return [1.0]
            chosen = [scores[place] for place in voting]
            below = [sum(t < s for t in chosen) + (chosen.count(s) - 1) / 2 for s in chosen]
            return [b / (len(voting) - 1) for b in below]

        found = at_k(VoteMethod.RANK, answers, right, scores, k)
        assert found == pytest.approx(slow_at_k(answers, right, weigh, k))

    @given(rollouts, st.sets(st.sampled_from("123")), st.data())
    def test_naive_bayes_counts_the_answers_among_the_chosen(self, answers, right, data):
        k = data.draw(st.integers(1, len(answers)))
        q = data.draw(st.lists(st.floats(0.05, 0.95), min_size=len(answers), max_size=len(answers)))

        def weigh(voting: list[int]) -> list[float]:
            m = len({answers[place] for place in voting})
            return [math.log(q[p] / (1 - q[p])) + math.log(max(m - 1, 1)) for p in voting]

        found = at_k(VoteMethod.BAYES, answers, right, q, k)
        assert found == pytest.approx(slow_at_k(answers, right, weigh, k), abs=1e-9)

    def test_naive_bayes_with_two_answers_of_four(self):
        # Among a, a, b there are two answers: a has 2 log ⅔ < 0, b has 0. With four, as over all
        # the rollouts, each vote would get log 3 more, and a would win.
        answers, q = ["a", "a", "b", "c", "d"], [0.4, 0.4, 0.5, 0.01, 0.01]
        merged = merge_answers(answers, lambda one, other: one == other)
        right_C = np.array([text == "b" for text in merged.texts])
        for chosen, right in (([0, 1, 2], 1.0), ([0, 1, 2, 3, 4], 0.0)):
            found = vote_at_k(
                VoteMethod.BAYES, merged.classes_N, right_C, np.array(q), np.array([chosen])
            )
            assert found == right

    @given(st.lists(st.sampled_from("1234"), min_size=2, max_size=8))
    def test_one_or_two_votes_are_no_better_than_one_rollout(self, answers):
        # Two different answers tie, and shared ties give a half: k = 2 gains nothing on k = 1.
        average = avg_at_k(len(answers), answers.count("1"))
        for k in (1, 2):
            found = at_k(VoteMethod.MAJORITY, answers, {"1"}, [math.nan] * len(answers), k)
            assert found == pytest.approx(average)

    def test_no_vote_is_not_right(self):
        assert at_k(VoteMethod.MAJORITY, [None, None], set(), [math.nan] * 2, 1) == 0.0
        assert at_k(VoteMethod.MAJORITY, [None, "1"], {"1"}, [math.nan] * 2, 1) == 0.5


class TestSubsets:
    @pytest.mark.parametrize(("n", "k"), [(1, 1), (8, 4), (10, 3), (16, 16)])
    def test_few_enough_are_all_there(self, n, k):
        found = subsets(n, k, np.random.default_rng(0))
        assert {tuple(row) for row in found.tolist()} == set(itertools.combinations(range(n), k))
        assert len(found) == math.comb(n, k)

    def test_more_are_drawn_without_repetition_and_evenly(self):
        found = subsets(40, 10, np.random.default_rng(0), limit=20_000)
        assert found.shape == (20_000, 10)
        assert all(len(set(row)) == 10 for row in found[:500].tolist())
        shares = np.bincount(found.ravel(), minlength=40) / 20_000
        # Binomial with p = ¼: five standard errors.
        assert np.abs(shares - 0.25).max() < 5 * math.sqrt(0.25 * 0.75 / 20_000)

    @pytest.mark.parametrize(("n", "k"), [(0, 1), (3, 0), (3, 4)])
    def test_impossible_ones_are_refused(self, n, k):
        with pytest.raises(ArrolError):
            subsets(n, k, np.random.default_rng(0))

    def test_sizes(self):
        assert list(sizes_up_to(1)) == [1]
        assert list(sizes_up_to(8)) == [1, 2, 4, 8]
        assert list(sizes_up_to(12)) == [1, 2, 4, 8, 12]


class TestBootstrap:
    def test_three_problems_by_enumeration(self):
        values = np.array([0.0, 0.5, 1.0])
        means = sorted(np.mean(draw) for draw in itertools.product(values, repeat=3))
        # Of 27 resamples one is all 0 (3.7%): the 2.5% quantile is 0, and by symmetry 1.
        found = Bootstrap(3, 40_000, seed=0).interval(values)
        assert means.count(0.0) == means.count(1.0) == 1
        assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)
        few = Bootstrap(2, 40_000, seed=0).interval([0.0, 1.0])
        assert (few.low, few.high) == (0.0, 1.0)

    def test_many_problems_by_the_normal_law(self):
        values = np.random.default_rng(1).random(2_000)
        found = Bootstrap(2_000, 4_000, seed=0).interval(values)
        half = 1.96 * values.std() / math.sqrt(2_000)
        assert found.half_width == pytest.approx(half, rel=0.05)
        assert found.value == values.mean()

    @given(st.floats(0.0, 1.0), st.integers(2, 9))
    def test_problems_that_agree_leave_no_doubt(self, value, count):
        found = Bootstrap(count, 50, seed=3).interval([value] * count)
        assert (found.low, found.high) == pytest.approx((value, value))

    def test_one_problem_tells_nothing_of_others(self):
        found = Bootstrap(1, 50, seed=0).interval([1.0])
        assert found.value == 1.0
        assert math.isnan(found.low)
        assert math.isnan(found.high)

    def test_paired_differences_see_the_same_resamples(self):
        rng = np.random.default_rng(2)
        base = rng.integers(0, 2, 50).astype(float)
        found = Bootstrap(50, 500, seed=0)
        assert found.interval((base + 0.25) - base).half_width == pytest.approx(0.0, abs=1e-12)
        assert found.interval(base) == Bootstrap(50, 500, seed=0).interval(base)
        assert found.interval(base) != Bootstrap(50, 500, seed=1).interval(base)

    @pytest.mark.parametrize(
        ("arguments", "values", "text"),
        [
            ((0, 50, 0), [], "problems is 0"),
            ((2, 1, 0), [], "draws is 1"),
            ((2, 50, -1), [], "seed is -1"),
            ((2, 50, 0), [1.0], "values has 1 rows; allowed is 2"),
            ((2, 50, 0), [1.0, math.nan], r"values\[1\] is nan"),
        ],
    )
    def test_refusals(self, arguments, values, text):
        with pytest.raises(ArrolError, match=text):
            Bootstrap(*arguments).interval(values)
