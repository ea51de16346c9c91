"""The timing studies: published figures, closed forms, and small runs of each."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrol.records import Mode
from arrol.sim import paper
from arrol.sim.phases import LOG_PROB, UPDATE
from arrol.sim.settings import SimSettings
from arrol.sim.studies import (
    keep_ratio,
    phases_table,
    priors,
    same_cost,
    sensitivity,
    wall_clock,
)
from arrol.sim.studies.runs import (
    batches,
    capped,
    capped_text,
    generate,
    phase_times,
    settle,
)

SMALL = SimSettings(
    prompts=4, group_size=4, mean_length=300, max_length=1000, detect_length=64, seeds=2
)
FEW_POINTS = (
    priors.PriorPoint(32, 0.3, 256),
    priors.PriorPoint(32, 0.8, 64),
    priors.PriorPoint(2, 0.5, 256),
)


def ignore(share: float) -> None:
    assert 0.0 <= share <= 1.0


# The loop that plans come from.


def test_the_rule_balanced_keeps_kappa_in_its_loop():
    rates = [settle(SimSettings(), repetition).keep_rate for repetition in range(3)]
    assert np.mean(rates) == pytest.approx(0.5, abs=0.01)


def test_the_papers_rule_keeps_less_than_kappa_and_less_the_better_the_score():
    """Its survivors have low posteriors; E[p] = κ over them is less over the others."""
    weak, strong = (
        np.mean([settle(SimSettings(preset="paper", score_auc=auc), r).keep_rate for r in range(3)])
        for auc in (0.6, 0.9)
    )
    assert strong < weak < 0.51
    assert strong < 0.48


def test_scores_that_say_nothing_leave_the_plan_in_shadow():
    assert settle(SimSettings(score_auc=0.5)).plan.mode is Mode.SHADOW


def test_batches_share_their_outcomes_whatever_the_lengths():
    longer = SMALL.replace(mean_length=600)
    for one, other in zip(batches(SMALL), batches(longer), strict=True):
        assert (one.rows.outcomes_N == other.rows.outcomes_N).all()
        assert (one.rows.lengths_N <= other.rows.lengths_N).all()
    assert len({batch.tokens for batch in batches(SMALL)}) == SMALL.seeds


def test_the_default_batch_costs_the_forward_pass_of_table_5():
    tokens = 64 * 16 * 2000
    assert phase_times(SimSettings(), tokens).log_prob.variable == pytest.approx(15.76, rel=0.01)


def test_a_large_batch_is_cut_and_the_text_says_so():
    assert capped_text(SimSettings()) == ""
    large = SimSettings(prompts=10_000)
    assert capped(large).prompts * large.group_size <= 8_192
    assert "10,000" in capped_text(large)


# Table 5.


@pytest.mark.parametrize(
    ("phase", "seconds", "fraction"), [(LOG_PROB, 10.02, 0.468), (UPDATE, 30.26, 0.480)]
)
def test_the_published_pruned_cells_mean_less_than_half_the_batch(phase, seconds, fraction):
    assert phases_table.implied_fraction(phase, seconds) == pytest.approx(fraction, abs=5e-4)


def test_kappa_meets_both_cells_within_six_percent():
    log_prob, update = priors.cell_differences(0.5)
    assert log_prob == pytest.approx((2.64 + 15.76 / 2) / 10.02 - 1)
    assert update == pytest.approx(63.05 / 2 / 30.26 - 1)
    assert 0.0 < update < log_prob < 0.06


@pytest.fixture(scope="module")
def few_points():
    """The studies of Tables 5 and 6 and of the wall-clock, over three set-ups."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(priors, "POINTS", FEW_POINTS)
        patch.setattr(phases_table, "POINTS", FEW_POINTS)
        yield


def test_a_fit_meets_the_published_baseline_on_its_own_seeds(few_points):
    base = priors.paper_settings(SimSettings(seed=3, seeds=2))
    found = priors.fits(base, ignore)
    assert [fit.point for fit in found] == list(FEW_POINTS[:2])  # two prompts are too few
    for fit in found:
        again = [generate(fit.settings, batch.requests).seconds for batch in batches(fit.settings)]
        assert np.mean(again) == pytest.approx(106.82, rel=0.01)
        assert fit.off_S == tuple(again)
        assert 1.0 < fit.speedup < 3.0


def test_table_5_prints_paper_simulated_and_difference(few_points):
    study = phases_table.study(SimSettings(seeds=2), ignore)
    phases, kept, points = (table.frame for table in study.tables)
    assert phases["paper [s]"].tolist() == [72.96] * 3 + [10.02] * 2 + [30.26] * 2
    off = phases["simulated [s]"] / phases["paper [s]"] - 1
    assert np.allclose(phases["difference"], off)
    assert kept["f"][:3].tolist() == pytest.approx([0.5, 0.468, 0.480], abs=5e-4)
    assert len(points) == 2
    assert "2 prompts" in study.tables[2].note
    assert all(check.passed for check in study.checks[1:])  # two points make no band


def test_the_same_seed_gives_the_same_bytes(few_points, monkeypatch):
    monkeypatch.setattr(priors, "POINTS", FEW_POINTS[:1])

    def tables(seed):
        priors.fit.cache_clear()
        study = phases_table.study(SimSettings(seed=seed), ignore)
        return [table.frame.to_csv(index=False) for table in study.tables]

    assert tables(1) == tables(1)
    assert tables(1) != tables(2)


# Table 6.


def test_three_published_speedups_are_affine_and_the_fourth_is_not():
    intercept, slope = keep_ratio.published_law()
    times = {row.keep_ratio: intercept + slope * row.keep_ratio for row in paper.TABLE_6}
    for row in paper.TABLE_6:
        if row.keep_ratio != 0.75:
            assert 1 / times[row.keep_ratio] == pytest.approx(row.speedup, rel=0.005)
    assert 1 / times[0.75] == pytest.approx(1.23, abs=0.005)
    assert 1 / times[0.75] / 1.17 > 1.05


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)), min_size=2, max_size=8),
    st.floats(0.0, 1.0),
)
def test_a_line_is_read_as_least_squares_have_it(points, wanted):
    x, y = np.array(points).T
    if np.ptp(x) < 1e-3:
        return
    design = np.column_stack([np.ones_like(x), x])
    intercept, slope = np.linalg.lstsq(design, y, rcond=None)[0]
    expected = intercept + slope * wanted
    assert keep_ratio.read_line(x, y, wanted) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_one_prior_alone_is_read_as_it_stands():
    assert keep_ratio.read_line(np.array([0.7]), np.array([0.4]), 0.6) == 0.4


def test_table_6_falls_with_kappa_to_one(few_points):
    study = keep_ratio.study(SimSettings(seeds=2), ignore)
    frame = study.tables[0].frame
    simulated = frame["simulated ×"].tolist()
    assert simulated == sorted(simulated, reverse=True)
    assert simulated[-1] == 1.0
    assert "accuracy" in study.text
    assert "accuracy" not in " ".join(frame.columns)


# Wall-clock.

times = st.floats(0.1, 1e4)


@given(times, st.floats(0.01, 0.99), st.floats(0.0, 1e6), st.integers(0, 100))
def test_a_run_gains_nothing_in_its_cold_start_and_less_than_a_step_after(off, ratio, more, cold):
    on = ratio * off
    assert wall_clock.speedup_of_run(max(cold, 1), off, on, max(cold, 1)) == pytest.approx(1.0)
    speedup = wall_clock.speedup_of_run(cold + more + 1, off, on, cold)
    assert 1.0 < speedup <= off / on * (1 + 1e-12)
    assert wall_clock.speedup_of_run(math.inf, off, on, cold) == off / on


@given(times, st.floats(0.05, 0.9), st.floats(0.01, 0.99), st.integers(1, 100))
def test_run_length_inverts_the_speedup(off, ratio, share, cold):
    wanted = 1.0 + share * (1.0 / ratio - 1.0)
    steps = wall_clock.run_length(wanted, off, ratio * off, cold)
    assert wall_clock.speedup_of_run(steps, off, ratio * off, cold) == pytest.approx(wanted)


def test_table_5_has_table_1s_speedup_after_some_four_hundred_steps():
    off, on = 106.82 + 18.40 + 63.05, 72.96 + 10.02 + 30.26
    steps = wall_clock.run_length(1.61, off, on)
    assert steps * off / (20 * off + (steps - 20) * on) == pytest.approx(1.61)
    assert 400 < steps < 410
    assert wall_clock.run_length(1.7, off, on) == math.inf


def test_the_cold_start_costs_both_runs_the_same(few_points):
    study = wall_clock.study(SimSettings(seeds=2), ignore)
    hours = study.tables[0].frame.set_index("phase")
    assert hours.loc["total", "off [h]"] == pytest.approx(100 * 188.27 / 3600)
    published = (20 * 188.27 + 80 * 113.24) / 3600
    assert hours.loc["total", "Table 5, pruned [h]"] == pytest.approx(published)
    assert study.tables[2].frame["model"].tolist() == [row.model for row in paper.TABLE_1]


# Sensitivity.


def test_every_sweep_goes_through_the_users_setting():
    base = SMALL.replace(length_spread=0.33, score_auc=0.81)
    for sweep in sensitivity.SWEEPS:
        points = sweep.settings(base)
        assert base in points
        values = [getattr(point, sweep.name) for point in points]
        assert values == sorted(values)
        assert len(points) >= 4


def test_values_that_are_not_allowed_are_left_out():
    (sweep,) = (sweep for sweep in sensitivity.SWEEPS if sweep.name == "detect_length")
    lengths = [p.detect_length for p in sweep.settings(SMALL.replace(detect_length=600))]
    assert lengths == [150, 300, 600]  # 1,200 is beyond the longest rollout


def test_sensitivity_runs_at_a_small_size():
    study = sensitivity.study(SMALL, ignore)
    speeds, work, balance = (table.frame for table in study.tables)
    assert (speeds["step ×"] > 0.9).all()
    assert (work["generation ×"] <= work["bound ×"] * (1 + 1e-9)).all()
    assert balance["E[ρ̂(1−ρ̂)]"].between(0.0, 0.25).all()


# Same cost.


@pytest.fixture(scope="module")
def field():
    settings = SMALL.replace(prompts=16, group_size=8)
    return same_cost.Field(settings, next(batches(settings, 1)))


def test_the_first_rollouts_are_groups_of_nearly_one_size(field):
    measures = field.measure_first(3 * 16 + 5)
    assert measures[same_cost.SURVIVORS] == pytest.approx(3 + 5 / 16)
    assert measures[same_cost.LABELS] == pytest.approx(3 + 5 / 16)  # all of them with p = 1


def test_equal_tokens_are_the_nearest_there_are(field):
    counts = range(1, field.rollouts + 1)
    tokens = [1e3 * field.measure_first(count)[same_cost.TOKENS] for count in counts]
    for wanted in (0.0, 5_000.0, 17_777.0, 1e9):
        nearest = min(counts, key=lambda count: abs(tokens[count - 1] - wanted))
        assert field.count_for_tokens(wanted) == nearest


def test_equal_time_is_about_the_nearest_there_is(field):
    """Where one more rollout is the longest yet, the time jumps: no batch costs just as much."""
    seconds = [
        field.measure_first(count)[same_cost.SECONDS] for count in range(1, field.rollouts + 1)
    ]
    for wanted in (0.5 * seconds[-1], 0.63 * seconds[-1], 0.8 * seconds[-1], seconds[-1]):
        least = min(abs(found - wanted) for found in seconds)
        found = field.measure_for_time(wanted)[same_cost.SECONDS]
        assert abs(found - wanted) <= least + 0.005 * wanted


def test_unpruned_groups_have_the_balance_of_independent_draws():
    """E[ρ̂(1 − ρ̂)] = E[θ(1 − θ)](1 − 1/n), and E[θ(1 − θ)] = ab/((a + b)(a + b + 1)) for a Beta."""
    settings = SimSettings(
        prompts=2000, group_size=8, mean_length=5, max_length=20, detect_length=10, seeds=2
    )
    a, b = 0.32 * 2, 0.68 * 2
    field = same_cost.Field(settings, next(batches(settings, 1)))
    for size in (2, 5, 8):
        measures = field.measure_first(2000 * size)
        expected = a * b / ((a + b) * (a + b + 1)) * (1 - 1 / size)
        assert measures[same_cost.BALANCE] == pytest.approx(expected, abs=0.01)
        assert measures[same_cost.SIGNAL] == pytest.approx(size * measures[same_cost.BALANCE])


def test_who_wins_is_told_from_the_interval():
    def entry(*gains):
        rival = dict.fromkeys((same_cost.SURVIVORS, same_cost.BALANCE, same_cost.NO_SIGNAL), 1.0)
        rival[same_cost.SIGNAL] = 1.0
        contests = [
            {same_cost.PRUNED: rival | {same_cost.SIGNAL: 1.0 + gain}, same_cost.SAME_TIME: rival}
            for gain in gains
        ]
        return same_cost.Entry("scene", same_cost.Preset.RANDOM, contests)

    assert entry(0.2, 0.21, 0.19).winner(same_cost.SAME_TIME) == "pruning"
    assert entry(-0.2, -0.21, -0.19).winner(same_cost.SAME_TIME) == "smaller"
    assert entry(-0.2, 0.3, 0.1).winner(same_cost.SAME_TIME) == "neither"


def test_same_cost_runs_at_a_small_size(monkeypatch):
    monkeypatch.setattr(same_cost, "LEAST_SEEDS", 2)
    monkeypatch.setattr(same_cost, "SCENES", same_cost.SCENES[:1])
    study = same_cost.study(SMALL.replace(prompts=16), ignore)
    absolute, differences = (table.frame for table in study.tables)
    tokens = absolute.set_index(["rule", "batch"])["tokens [k]"]
    for rule in ("random", "paper", "balanced"):
        assert tokens[rule, "tokens"] == pytest.approx(tokens[rule, "pruned"], rel=0.02)
    assert set(differences["more signal"]) <= {"smaller", "pruning", "neither"}
    assert len(differences) == 8
