"""Estimates from survivors: exact expectations by enumeration, statistics by slow loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrol.errors import ArrolError
from arrol.estimators import (
    auc,
    balance,
    brier,
    effective_sample_size,
    expected_calibration_error,
    false_prune_rate,
    horvitz_thompson,
    pass_rate,
)

unit = st.floats(0.0, 1.0)
probability = st.floats(0.05, 1.0)
rollouts = st.lists(st.tuples(st.booleans(), probability), min_size=1, max_size=6)
graded = st.lists(
    st.tuples(st.sampled_from([0.0, 0.2, 0.2, 0.5, 0.9, 1.0]), st.booleans(), st.floats(0.5, 9.0)),
    min_size=1,
    max_size=25,
)


def expectation(survivals: tuple[float, ...], statistic) -> float:
    """Σ over all 2^n keep patterns of P(pattern) · statistic(kept rows), independent draws."""
    total = 0.0
    for pattern in itertools.product([False, True], repeat=len(survivals)):
        chances = (p if kept else 1 - p for p, kept in zip(survivals, pattern, strict=True))
        total += math.prod(chances) * statistic(np.array(pattern))
    return total


class TestUnbiased:
    @given(rollouts)
    def test_the_sum_over_survivors_is_exactly_unbiased(self, rollouts):
        right, survivals = zip(*rollouts, strict=True)
        y, p = np.array(right, float), np.array(survivals)
        mean = expectation(survivals, lambda kept: horvitz_thompson(y[kept], p[kept]))
        assert mean == pytest.approx(sum(right), abs=1e-9)

    @given(rollouts)
    def test_the_number_of_right_ones_pruned_is_exactly_unbiased(self, rollouts):
        right, survivals = zip(*rollouts, strict=True)
        y, p = np.array(right, float), np.array(survivals)
        estimated = expectation(
            survivals, lambda kept: horvitz_thompson(((1 - p) * y)[kept], p[kept])
        )
        assert estimated == pytest.approx(expectation(survivals, lambda kept: y[~kept].sum()))

    def test_systematic_draws_are_unbiased_too(self):
        # Madow's draw over every u on a grid that hits all cases: C = .3, .8, 1.5.
        y, p = np.array([1.0, 0.0, 1.0]), np.array([0.3, 0.5, 0.7])
        ends = np.concatenate([[0.0], np.cumsum(p)])
        kepts = [np.diff(np.floor(ends + u)) > 0 for u in (np.arange(1_000) + 0.5) / 1_000]
        sums = [horvitz_thompson(y[kept], p[kept]) for kept in kepts]
        assert np.mean(sums) == pytest.approx(2.0, abs=1e-9)

    @pytest.mark.parametrize("seed", range(3))
    def test_rates_are_right_in_a_large_sample_and_plain_means_are_not(self, seed):
        rng = np.random.default_rng(seed)
        truth = rng.beta(1.0, 2.0, 200_000)
        right = rng.random(200_000) < truth
        survival = np.clip(0.9 - 0.8 * truth, 0.1, 0.9)  # right ones are pruned more often
        kept = rng.random(200_000) < survival
        assert pass_rate(right[kept], survival[kept]) == pytest.approx(right.mean(), abs=0.01)
        false_prunes = false_prune_rate(right[kept], survival[kept])
        assert false_prunes == pytest.approx(right[~kept].mean(), abs=0.01)
        assert abs(right[kept].mean() - right.mean()) > 0.05

    def test_in_shadow_mode_everybody_is_graded(self):
        # Pruning would take (1−p) of each: .2 · 1 + .4 · 0 + .6 · 1 of 1.2 are right.
        rate = false_prune_rate([1, 0, 1], [0.8, 0.6, 0.4], [1.0, 1.0, 1.0])
        assert rate == pytest.approx(0.8 / 1.2)

    def test_by_hand(self):
        # Weights 1/p: 2, 4, 1; (1−p)/p: 1, 3, 0.
        assert pass_rate([1, 0, 1], [0.5, 0.25, 1.0]) == pytest.approx(3 / 7)
        assert false_prune_rate([1, 0, 1], [0.5, 0.25, 1.0]) == pytest.approx(1 / 4)

    @given(rollouts)
    def test_rates_are_rates(self, rollouts):
        right, survivals = zip(*rollouts, strict=True)
        assert 0.0 <= pass_rate(right, survivals) <= 1.0 + 1e-12
        rate = false_prune_rate(right, survivals)
        assert math.isnan(rate) == all(p == 1.0 for p in survivals)
        assert math.isnan(rate) or 0.0 <= rate <= 1.0 + 1e-12

    def test_nothing_seen_nothing_known(self):
        assert math.isnan(pass_rate([], []))
        assert math.isnan(false_prune_rate([], []))

    @pytest.mark.parametrize("estimate", [pass_rate, false_prune_rate])
    def test_what_could_never_be_seen_is_refused(self, estimate):
        with pytest.raises(ArrolError, match=r"inclusion\[1\] is 0.0"):
            estimate([1, 0], [0.5, 0.0])


class TestAuc:
    @given(graded)
    def test_it_counts_pairs(self, graded):
        scores, right, weights = zip(*graded, strict=True)
        won = pairs = 0.0
        for (s, y, w), (t, z, v) in itertools.product(graded, repeat=2):
            if y and not z:
                won += w * v * (1.0 if s > t else 0.5 if s == t else 0.0)
                pairs += w * v
        expected = won / pairs if pairs else math.nan
        assert auc(scores, right, weights) == pytest.approx(expected, nan_ok=True)

    def test_by_hand(self):
        assert auc([0.9, 0.1], [1, 0]) == 1.0
        assert auc([0.9, 0.1], [0, 1]) == 0.0
        assert auc([0.5, 0.5, 0.5], [1, 0, 1]) == 0.5
        assert math.isnan(auc([0.5, 0.6], [1, 1]))

    def test_weights_bring_back_the_auc_of_all_rollouts(self):
        rng = np.random.default_rng(0)
        scores = rng.random(100_000)
        right = rng.random(100_000) < scores
        survival = np.where(np.abs(scores - 0.5) < 0.3, 0.9, 0.1)
        kept = rng.random(100_000) < survival
        everyone = 5 / 6  # s ~ U(0,1), P(Y|s) = s: densities 2s and 2(1−s)
        weighted = auc(scores[kept], right[kept], 1 / survival[kept])
        assert auc(scores, right) == pytest.approx(everyone, abs=0.01)
        assert weighted == pytest.approx(everyone, abs=0.015)
        assert auc(scores[kept], right[kept]) < everyone - 0.05


class TestCalibrationErrors:
    @given(graded, st.integers(1, 20))
    def test_ece_is_the_weighted_gap_over_bins(self, graded, bins):
        posteriors, right, weights = zip(*graded, strict=True)
        expected, total = 0.0, sum(weights)
        for b in range(bins):
            rows = [(q, y, w) for q, y, w in graded if min(bins - 1, int(bins * q)) == b]
            inside = sum(w for *_, w in rows)
            if rows:
                accuracy = sum(w * y for _, y, w in rows) / inside
                confidence = sum(w * q for q, _, w in rows) / inside
                expected += inside / total * abs(accuracy - confidence)
        found = expected_calibration_error(posteriors, right, weights, bins)
        assert found == pytest.approx(expected, abs=1e-12)

    @given(graded)
    def test_brier_is_the_weighted_mean_square(self, graded):
        posteriors, right, weights = zip(*graded, strict=True)
        expected = sum(w * (q - y) ** 2 for q, y, w in graded) / sum(weights)
        assert brier(posteriors, right, weights) == pytest.approx(expected)

    def test_by_hand(self):
        # Two bins: (.2: 0, 1) → gap .3 on half the rows; (.9: 1, 1) → gap .1 on the other half.
        posteriors, right = [0.2, 0.2, 0.9, 0.9], [0, 1, 1, 1]
        assert expected_calibration_error(posteriors, right, bins=2) == pytest.approx(0.2)
        assert brier(posteriors, right) == pytest.approx((0.04 + 0.64 + 0.01 + 0.01) / 4)
        assert math.isnan(brier([], []))
        assert math.isnan(expected_calibration_error([], []))

    def test_an_outcome_is_right_or_wrong(self):
        with pytest.raises(ArrolError, match=r"outcomes\[0\] is 0.5"):
            brier([0.5], [0.5])


class TestEffectiveSampleSize:
    @given(st.integers(1, 50), st.floats(0.1, 100.0))
    def test_equal_weights_count_in_full(self, count, weight):
        assert effective_sample_size([weight] * count) == pytest.approx(count)

    @given(st.integers(1, 20), st.integers(1, 20), st.floats(1.0, 20.0))
    def test_two_weights(self, ones, heavy, ratio):
        expected = (ones + heavy * ratio) ** 2 / (ones + heavy * ratio**2)
        assert effective_sample_size([1.0] * ones + [ratio] * heavy) == pytest.approx(expected)

    @given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=20))
    def test_never_more_than_rows_never_less_than_one(self, weights):
        assert 1.0 - 1e-9 <= effective_sample_size(weights) <= len(weights) + 1e-9

    def test_it_is_what_the_variance_of_a_weighted_mean_says(self):
        # Var(Σwx/Σw) = σ² Σw²/(Σw)²: 4 rows with weights 1, 1, 1, 3 are worth 36/12 = 3.
        rng = np.random.default_rng(0)
        weights = np.array([1.0, 1.0, 1.0, 3.0])
        means = rng.standard_normal((200_000, 4)) @ weights / weights.sum()
        assert effective_sample_size(weights) == pytest.approx(3.0)
        assert 1 / means.var() == pytest.approx(3.0, rel=0.02)

    def test_no_rows(self):
        assert effective_sample_size([]) == 0.0


class TestBalance:
    def test_unknown_rates_are_left_out(self):
        assert balance([0.5, math.nan, 1.0]) == pytest.approx(0.125)
        assert math.isnan(balance([math.nan]))

    @given(st.lists(unit, min_size=1, max_size=10))
    def test_it_is_the_mean_balance_less_the_spread_of_rates(self, rates):
        # E[ρ̂(1 − ρ̂)] = m(1 − m) − Var(ρ̂)
        mean = np.mean(rates)
        assert balance(rates) == pytest.approx(mean * (1 - mean) - np.var(rates), abs=1e-12)
