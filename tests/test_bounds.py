"""The theory, each statement against brute force, exact enumeration or experiment."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from arrol.bounds import (
    balance_shift,
    extreme_balance_shift,
    extreme_survivals,
    hoeffding_tail,
    leave_one_out_means,
    removal_moves_towards_target,
    speedup_bounds,
    survivor_distribution,
    token_speedup,
    truth_given_posterior,
    unclipped_paper_shift,
)
from arrol.errors import ArrolError
from arrol.survival import solve_paper

unit = st.floats(0.0, 1.0)
probability = st.floats(0.05, 1.0)
sixtyfourths = st.integers(0, 64).map(lambda number: number / 64)  # exact in floats
groups = st.lists(sixtyfourths, min_size=2, max_size=12)
pairs = st.lists(st.tuples(unit, probability), min_size=1, max_size=6)


def distances(posteriors, removed, target) -> tuple[Fraction, Fraction]:
    """|mean − ρ| with and without one rollout, exactly."""
    exact = [Fraction(q) for q in posteriors]
    rest = exact[:removed] + exact[removed + 1 :]
    goal = Fraction(target)
    return abs(sum(exact) / len(exact) - goal), abs(sum(rest) / len(rest) - goal)


class TestRemoval:
    """Lemma 4.1."""

    def test_the_printed_form_is_false(self):
        # μ = .6 > ρ = .5 and q_j = .9 > μ, yet without it the mean is .3: from .1 away to .2.
        assert not removal_moves_towards_target([0.9, 0.3], 0, 0.5)
        before, after = distances([0.9, 0.3], 0, 0.5)
        assert float(before) == pytest.approx(0.1)
        assert float(after) == pytest.approx(0.2)

    @given(groups, st.data(), sixtyfourths)
    @settings(max_examples=300)
    def test_the_exact_condition_is_the_truth(self, posteriors, data, target):
        removed = data.draw(st.integers(0, len(posteriors) - 1))
        before, after = distances(posteriors, removed, target)
        assert removal_moves_towards_target(posteriors, removed, target) == (after < before)

    @given(groups, st.data(), sixtyfourths)
    def test_it_is_mirrored_below_the_target(self, posteriors, data, target):
        removed = data.draw(st.integers(0, len(posteriors) - 1))
        mirrored = [1.0 - q for q in posteriors]
        assert removal_moves_towards_target(
            posteriors, removed, target
        ) == removal_moves_towards_target(mirrored, removed, 1.0 - target)

    @pytest.mark.parametrize("size", [2, 3, 5, 9])
    def test_at_the_boundary_the_distance_stays_the_same(self, size):
        # q_j − μ = 2(G − 1)(μ − ρ) exactly: others at 1/4, q_j so that μ − ρ = 1/64.
        others, excess = [Fraction(1, 4)] * (size - 1), Fraction(1, 64)
        removed = Fraction(1, 4) + 2 * excess * size
        mean = (sum(others) + removed) / size
        target = mean - excess
        assert removed - mean == 2 * (size - 1) * (mean - target)
        posteriors = [float(removed), *map(float, others)]
        before, after = distances(posteriors, 0, float(target))
        assert before == after
        assert not removal_moves_towards_target(posteriors, 0, float(target))
        assert removal_moves_towards_target(posteriors, 0, float(target) - 2**-20)
        assert not removal_moves_towards_target(posteriors, 0, float(target) + 2**-20)


class TestTheorem42:
    """Its tail, and the three facts that its proof rests on."""

    def test_leave_one_out_mean(self):
        values = np.array([0.9, 0.3, 0.6])
        np.testing.assert_allclose(leave_one_out_means(values), [0.45, 0.75, 0.6])

    @given(st.lists(st.floats(-5, 5), min_size=2, max_size=20))
    def test_leave_one_out_mean_is_the_mean_of_the_others(self, values):
        direct = [np.mean(values[:j] + values[j + 1 :]) for j in range(len(values))]
        np.testing.assert_allclose(leave_one_out_means(values), direct, atol=1e-12)

    @given(st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), min_size=1, max_size=4))
    def test_outcome_and_truth_have_the_same_mean_given_the_posterior(self, masses):
        # Full joint law of (q, q*, Y) with Y ~ Bernoulli(q*) whatever q is; E[Y | q] by summation.
        joint, truths = np.array(masses, float), np.array([0.1, 0.5, 0.8])
        with_outcome = np.stack([joint * (1 - truths), joint * truths], axis=-1)
        mean_outcome = with_outcome[..., 1].sum(axis=1) / with_outcome.sum(axis=(1, 2))
        np.testing.assert_allclose(truth_given_posterior(joint, truths), mean_outcome)

    def test_without_independence_they_differ(self):
        # q* = ½ for everybody, and q knows the outcome itself: Y = 1 iff q is the high one.
        joint, truths = np.array([[0.5], [0.5]]), np.array([0.5])
        mean_outcome = np.array([0.0, 1.0])
        gaps = truth_given_posterior(joint, truths) - mean_outcome
        np.testing.assert_allclose(gaps, [0.5, -0.5])

    @pytest.mark.parametrize("others", [1, 3, 7, 15, 63])
    @pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
    def test_tail_against_the_exact_law(self, others, spread):
        truths = 0.5 + spread * (np.arange(others) / max(others - 1, 1) - 0.5)
        law, mean = survivor_distribution(truths), truths.mean()
        for deviation in np.linspace(0.01, 1.0, 34):
            far = np.abs(np.arange(others + 1) / others - mean) >= deviation - 1e-12
            assert law[far].sum() <= hoeffding_tail(others + 1, deviation) + 1e-12

    def test_one_fair_coin_allows_nothing_much_sharper(self):
        # It is always ½ away from its mean: without the factor 2 the bound would be false.
        law = survivor_distribution([0.5])
        always = law[np.abs(np.arange(2) - 0.5) >= 0.5].sum()
        assert hoeffding_tail(2, 0.5) == pytest.approx(2 * math.exp(-0.5))
        assert hoeffding_tail(2, 0.5) / 2 < always <= hoeffding_tail(2, 0.5)

    def test_tail_by_experiment(self):
        # Each group draws its own q*; the deviation is from the mean of those.
        rng = np.random.default_rng(0)
        truths = rng.beta(1.0, 2.0, (40_000, 15))
        outcomes = rng.random(truths.shape) < truths
        deviations = np.abs(outcomes.mean(axis=1) - truths.mean(axis=1))
        for deviation in (0.1, 0.2, 0.3):
            assert (deviations >= deviation).mean() <= hoeffding_tail(16, deviation)

    def test_every_group_size_has_others(self):
        with pytest.raises(ArrolError, match="group_size is 1"):
            hoeffding_tail(1, 0.1)


class TestBalanceShift:
    @given(pairs)
    def test_it_is_what_all_keep_patterns_average_to(self, pairs):
        # E[q_i | i kept] for a random i: Σ over patterns of P · Σ_kept q, over Σ of P · |kept|.
        q, p = (np.array(column) for column in zip(*pairs, strict=True))
        kept_q = kept = 0.0
        for pattern in itertools.product([False, True], repeat=len(p)):
            mask = np.array(pattern)
            chance = np.prod(np.where(mask, p, 1 - p))
            kept_q += chance * q[mask].sum()
            kept += chance * mask.sum()
        assert balance_shift(q, p) == pytest.approx(kept_q / kept - q.mean(), abs=1e-9)

    def test_by_experiment(self):
        rng = np.random.default_rng(1)
        q = rng.beta(1.0, 2.0, 400_000)
        p = np.clip(0.3 + 0.6 * q, 0.1, 0.9)
        kept = rng.random(q.size) < p
        assert q[kept].mean() - q.mean() == pytest.approx(balance_shift(q, p), abs=3e-3)
        assert balance_shift(q, p) > 0.05

    @given(st.lists(unit, min_size=1, max_size=20), st.floats(0.4, 0.6), st.floats(0.0, 0.3), unit)
    def test_the_paper_rule_without_clipping_lowers_it_by_a_closed_form(self, q, kappa, lam, rho):
        # |λ(q̄ − q)| ≤ .3 < κ − .05, so nothing is clipped whatever the posteriors are.
        rule, _ = solve_paper(np.array(q), kappa, rho, lam, 0.05, 0.95)
        p = rule.survivals(np.array(q))
        shift = unclipped_paper_shift(q, kappa, lam)
        assert shift <= 0.0
        assert balance_shift(q, p) == pytest.approx(shift, abs=1e-9)

    def test_it_moves_away_from_a_target_above_the_pass_rate(self):
        q = np.array([0.1, 0.2, 0.3, 0.6])
        assert q.mean() < 0.5
        assert unclipped_paper_shift(q, 0.5, 0.5) == pytest.approx(-q.var())
        assert unclipped_paper_shift(q, 0.5, 0.5) < -0.03


class TestExtremeShift:
    limits = st.tuples(st.floats(0.0, 0.4), st.floats(0.6, 1.0), st.floats(0.4, 0.6))

    # Not any floats: the solver takes costs that differ by less than 1e-7 for equal.
    @given(st.lists(sixtyfourths, min_size=1, max_size=10), limits)
    @settings(max_examples=60)
    def test_linear_programming_finds_nothing_beyond_it(self, q, limits):
        low, high, kappa = limits
        q = np.array(q)
        shifts = []
        for sign in (1, -1):
            budget = {"A_eq": np.ones((1, len(q))), "b_eq": [kappa * len(q)]}
            best = linprog(sign * q, **budget, bounds=(low, high))
            assert best.success
            shifts.append(q @ best.x / (kappa * len(q)) - q.mean())
        assert extreme_balance_shift(q, kappa, low, high) == pytest.approx(shifts, abs=1e-8)

    @given(st.lists(unit, min_size=1, max_size=30), limits)
    def test_it_keeps_its_budget_and_its_bounds(self, q, limits):
        low, high, kappa = limits
        p = extreme_survivals(q, kappa, low, high)
        assert p.mean() == pytest.approx(kappa)
        assert p.min() >= low
        assert p.max() <= high + 1e-15
        assert np.sum((p > low + 1e-9) & (p < high - 1e-9)) <= 1

    def test_by_hand(self):
        # Half at .9, half at .1: E[q|kept] = .9 · .8 + .1 · .2 = .74, and .26 the other way.
        found = extreme_balance_shift([0.8, 0.2, 0.8, 0.2], 0.5, 0.1, 0.9)
        assert found == pytest.approx((-0.24, 0.24))

    def test_narrow_bounds_take_three_quarters_of_it(self):
        q = [0.8, 0.2, 0.8, 0.2]
        assert extreme_balance_shift(q, 0.5, 0.4, 0.6) == pytest.approx((-0.06, 0.06))

    def test_the_ratio_lies_between_the_bounds(self):
        with pytest.raises(ArrolError, match=r"keep_ratio is 0.05"):
            extreme_survivals([0.5], 0.05, 0.1, 0.9)


class TestSurvivorDistribution:
    @given(st.lists(unit, max_size=7))
    def test_it_counts_patterns(self, survivals):
        law = [0.0] * (len(survivals) + 1)
        for pattern in itertools.product([False, True], repeat=len(survivals)):
            chances = (p if kept else 1 - p for p, kept in zip(survivals, pattern, strict=True))
            law[sum(pattern)] += math.prod(chances)
        np.testing.assert_allclose(survivor_distribution(survivals), law, atol=1e-12)

    def test_random_quarter_of_eight_leaves_fewer_than_two_in_a_third_of_groups(self):
        law = survivor_distribution([0.25] * 8)
        assert law[:2].sum() == pytest.approx(0.75**8 + 8 * 0.25 * 0.75**7)
        assert law[:2].sum() == pytest.approx(0.367, abs=5e-4)


class TestSpeedup:
    def test_tokens_by_hand(self):
        # 100 stays; 1,000 costs ½ · 1,000 + ½ · 500.
        assert token_speedup([100, 1_000], [0.5, 0.5], 500) == pytest.approx(1_100 / 850)

    @given(st.lists(st.tuples(st.integers(1, 5_000), unit), min_size=1, max_size=6))
    def test_tokens_are_what_all_keep_patterns_average_to(self, rows):
        lengths, survivals = (np.array(column) for column in zip(*rows, strict=True))
        expected = 0.0
        for pattern in itertools.product([False, True], repeat=len(rows)):
            mask = np.array(pattern)
            chance = np.prod(np.where(mask, survivals, 1 - survivals))
            expected += chance * np.where(mask, lengths, np.minimum(lengths, 512)).sum()
        assert token_speedup(lengths, survivals, 512) == pytest.approx(lengths.sum() / expected)

    work = st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9), st.floats(0, 9)), min_size=1)

    @given(work)
    def test_whatever_the_costs_the_speedup_lies_between_the_ratios(self, work):
        off, on, costs = (np.array(column) for column in zip(*work, strict=True))
        costs[0] += 0.1
        low, high = speedup_bounds(off, on)
        assert low * (1 - 1e-12) <= (costs @ off) / (costs @ on) <= high * (1 + 1e-12)

    def test_tokens_alone_bound_nothing(self):
        # 100 and 10,000 tokens side by side; at 512 the second is pruned.
        steps, tokens = 10_000 / 512, token_speedup([100, 10_000], [1.0, 0.0], 512)
        assert tokens == pytest.approx(10_100 / 612)
        assert speedup_bounds([10_000, 10_100], [512, 612]) == pytest.approx((tokens, steps))
        assert steps > tokens
