"""Log-prob and update phases against the published step times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrol.errors import ArrolError
from arrol.sim.phases import LOG_PROB, UPDATE, Phase, PhaseTimes

# arXiv 2603.24840, Table 5, seconds.
BASELINE = {"generation": 106.82, "log_prob": 18.40, "update": 63.05}
PRUNED = {"log_prob": 10.02, "update": 30.26}

fractions = st.floats(0.0, 1.0)


def test_the_baseline_is_met_where_nothing_is_pruned():
    times = PhaseTimes()
    assert times.log_prob_seconds(1.0) == pytest.approx(BASELINE["log_prob"], abs=0.005)
    assert times.update_seconds(1.0) == pytest.approx(BASELINE["update"], abs=0.005)
    total = sum(BASELINE.values())
    assert times.step_seconds(BASELINE["generation"], 1.0) == pytest.approx(total, abs=0.01)


def test_an_update_is_four_forward_passes():
    assert UPDATE.variable / LOG_PROB.variable == pytest.approx(4.0, abs=0.001)


def test_half_the_batch_is_within_six_percent_of_the_published_pruned_step():
    times = PhaseTimes()
    assert times.log_prob_seconds(0.5) == pytest.approx(PRUNED["log_prob"], rel=0.06)
    assert times.update_seconds(0.5) == pytest.approx(PRUNED["update"], rel=0.06)


def test_the_published_pruned_step_implies_one_fraction_for_both_phases():
    by_log_prob = (PRUNED["log_prob"] - LOG_PROB.fixed) / LOG_PROB.variable
    by_update = (PRUNED["update"] - UPDATE.fixed) / UPDATE.variable
    assert by_log_prob == pytest.approx(by_update, abs=0.015)


@given(fractions, st.floats(0.0, 1e4))
def test_padding_saves_nothing_after_the_generation(fraction, generation):
    padded = PhaseTimes(padded=True)
    assert padded.step_seconds(generation, fraction) == padded.step_seconds(generation, 1.0)


@given(fractions, fractions)
def test_less_is_never_slower(first, second):
    low, high = sorted((first, second))
    times = PhaseTimes()
    assert times.step_seconds(1.0, low) <= times.step_seconds(1.0, high)


def test_a_phase_is_a_line():
    phase = Phase(fixed=2.0, variable=4.0)
    assert [phase.seconds(f) for f in (0.0, 0.25, 1.0)] == [2.0, 3.0, 6.0]
    with pytest.raises(ArrolError, match="phase variable is -"):
        Phase(2.0, -1.0)


@pytest.mark.parametrize("fraction", [-0.01, 1.01, float("nan")])
def test_a_fraction_outside_the_unit_interval_is_refused(fraction):
    with pytest.raises(ArrolError, match="fraction is"):
        PhaseTimes(padded=True).log_prob_seconds(fraction)
