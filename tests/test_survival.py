"""Survival rules: Eq. 2, the exact solution for δ, and the signed slope."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq

from arrol.survival import (
    FeedbackRule,
    SurvivalStatus,
    detected_keep_ratio,
    rule_from_dict,
    rule_to_dict,
    solve_paper,
    solve_signed,
)

LOW, HIGH = 0.1, 0.9
UNIT = st.floats(0.0, 1.0)
INSIDE = st.floats(0.11, 0.89)
STRENGTH = st.floats(0.0, 3.0)
POSTERIORS = arrays(np.float64, st.integers(1, 60), elements=UNIT)


@given(POSTERIORS, INSIDE, UNIT, STRENGTH)
def test_mean_survival_is_kappa(q, kappa, rho, strength):
    for solve in (solve_paper, solve_signed):
        rule, status = solve(q, kappa, rho, strength, LOW, HIGH)
        assert status is SurvivalStatus.OK
        assert abs(rule.survivals(q).mean() - kappa) < 1e-12


@given(POSTERIORS, INSIDE, UNIT, UNIT, STRENGTH)
def test_papers_survival_does_not_depend_on_rho(q, kappa, rho, other, strength):
    """δ + λρ is one scalar that E[p] = κ fixes."""
    first, _ = solve_paper(q, kappa, rho, strength, LOW, HIGH)
    second, _ = solve_paper(q, kappa, other, strength, LOW, HIGH)
    np.testing.assert_allclose(first.survivals(q), second.survivals(q), atol=1e-12)


@given(POSTERIORS, INSIDE, UNIT, STRENGTH)
def test_papers_survival_never_rises_with_q(q, kappa, rho, strength):
    rule, _ = solve_paper(q, kappa, rho, strength, LOW, HIGH)
    assert np.all(np.diff(rule.survivals(np.sort(q))) <= 0.0)


@given(POSTERIORS, INSIDE, UNIT, STRENGTH)
def test_shift_agrees_with_a_root_finder(q, kappa, rho, strength):
    """An independent solution of the same equation by bisection."""
    rule, _ = solve_paper(q, kappa, rho, strength, LOW, HIGH)

    def mean_survival(delta):
        return np.clip(kappa + delta + strength * (rho - q), LOW, HIGH).mean() - kappa

    delta = brentq(mean_survival, -5.0, 5.0, xtol=1e-14)
    expected = np.clip(kappa + delta + strength * (rho - q), LOW, HIGH)
    np.testing.assert_allclose(rule.survivals(q), expected, atol=1e-9)


@given(
    arrays(np.float64, st.integers(2, 60), elements=UNIT, unique=True),
    INSIDE,
    st.floats(-0.99, 0.99),
)
def test_unclipped_signed_rule_moves_the_mean_onto_rho(q, kappa, part):
    assume(q.var() > 1e-6)
    # The farthest target that needs no clipping, and a part of the way to it.
    steepest = min(kappa, 1.0 - kappa) / np.abs(q - q.mean()).max()
    rho = q.mean() + part * steepest * q.var() / kappa
    rule, _ = solve_signed(q, kappa, rho, 1e9, 0.0, 1.0)
    p = rule.survivals(q)
    assert abs(p @ q / p.sum() - rho) < 1e-9


@given(POSTERIORS, INSIDE, UNIT, STRENGTH)
def test_signed_slope_points_towards_the_target(q, kappa, rho, strength):
    rule, _ = solve_signed(q, kappa, rho, strength, LOW, HIGH)
    assert abs(rule.slope) <= strength
    assert rule.slope * (rho - q.mean()) >= 0.0


def test_signed_equals_paper_where_the_slope_is_minus_lambda():
    q = np.array([0.7, 0.9, 0.95, 0.8])
    signed, _ = solve_signed(q, 0.5, 0.3, 0.5, LOW, HIGH)
    paper, _ = solve_paper(q, 0.5, 0.3, 0.5, LOW, HIGH)
    assert signed.slope == paper.slope == -0.5
    np.testing.assert_allclose(signed.survivals(q), paper.survivals(q), atol=1e-12)


def test_kappa_outside_the_bounds_puts_everybody_at_the_bound_and_says_so():
    q = np.linspace(0, 1, 11)
    for kappa, expected, wanted in [
        (0.05, LOW, SurvivalStatus.BELOW_MIN),
        (0.1, LOW, SurvivalStatus.BELOW_MIN),
        (0.9, HIGH, SurvivalStatus.ABOVE_MAX),
        (1.0, HIGH, SurvivalStatus.ABOVE_MAX),
    ]:
        rule, status = solve_paper(q, kappa, 0.5, 0.5, LOW, HIGH)
        assert status is wanted
        assert set(rule.survivals(q)) == {expected}


def test_without_scores_p_is_kappa():
    rule, status = solve_paper(np.empty(0), 0.4, 0.5, 0.5, LOW, HIGH)
    assert status is SurvivalStatus.EMPTY
    assert rule.survival(0.99) == 0.4


def test_early_finishers_are_taken_off_the_budget():
    # 100 rollouts, keep 50; 20 end early and survive: of the other 80, keep 30.
    assert abs(detected_keep_ratio(0.5, 0.2, LOW, HIGH) - 30 / 80) < 1e-15
    assert detected_keep_ratio(0.5, 0.7, LOW, HIGH) == LOW
    assert detected_keep_ratio(0.5, 1.0, LOW, HIGH) == HIGH


@given(
    st.lists(UNIT, min_size=1, max_size=16),
    st.floats(LOW, HIGH),
    UNIT,
    UNIT,
    st.floats(0.001, 0.1),
)
def test_feedback_spends_exactly_its_budget(posteriors, kappa, rho, mean, variance):
    """Written once more, slowly, from the formulas."""
    size = len(posteriors)
    rule = FeedbackRule(kappa, 0.0, rho, 0.5, mean, variance, LOW, HIGH, 0)
    survivals = []
    for i, q in enumerate(posteriors, start=1):
        spent, seen = sum(survivals), sum(posteriors[: i - 1])
        p = rule.survival(q, rule.share(size), size, i - 1, spent, seen)
        left = kappa * size - spent
        mu = (2 * mean + sum(posteriors[:i])) / (2 + i)
        eta = min(max(kappa * (rho - mu) / variance, -0.5), 0.5)
        lowest = max(LOW, left - (size - i) * HIGH)
        highest = min(HIGH, left - (size - i) * LOW)
        expected = min(max(left / (size - i + 1) + eta * (q - mu), lowest), highest)
        assert abs(p - expected) < 1e-12
        assert LOW <= p <= HIGH
        survivals.append(p)
    assert abs(sum(survivals) - kappa * size) < 1e-9


def test_feedback_budget_leaves_min_survivors():
    rule = FeedbackRule(0.25, 0.0, 0.5, 0.5, 0.35, 0.04, LOW, HIGH, 2)
    assert rule.share(8) == 0.25
    assert rule.share(4) == 0.5  # two of four
    assert rule.share(2) == HIGH  # both, as far as p_max lets it


@given(POSTERIORS, INSIDE, UNIT, STRENGTH)
def test_rules_survive_json_values(q, kappa, rho, strength):
    line, _ = solve_paper(q, kappa, rho, strength, LOW, HIGH)
    feedback = FeedbackRule(kappa, 0.1, rho, strength, 0.3, 0.02, LOW, HIGH, 2)
    for rule in (line, feedback):
        assert rule_from_dict(rule_to_dict(rule)) == rule
