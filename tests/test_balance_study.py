"""The balance study against closed forms: binomial counts, Cov(p, q)/κ, unbiased estimates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import beta as beta_law
from scipy.stats import binom

from arrol.config import Preset
from arrol.sim import paper
from arrol.sim.settings import SimSettings
from arrol.sim.studies import balance, closed_loop, setting
from arrol.sim.studies.survivors import (
    CLOSED_FORM,
    FALSE_PRUNE,
    KEEP_RATE,
    NO_SIGNAL,
    PER_BATCH,
    PER_GROUP,
    RATE_ERROR,
    RATE_SHIFT,
    RATIO,
    SHIFT,
    TOO_FEW,
    UNCLIPPED,
    Measures,
    Prior,
    cold_start,
    decide,
    measure,
    warm_plan,
    workload_of,
)

GROUPS = 10_000


def measured(prior: Prior, preset: Preset, group_size: int, keep_ratio: float) -> Measures:
    rng = np.random.default_rng(11)
    plan = warm_plan(cold_start(prior, rng), preset, keep_ratio=keep_ratio)
    batch = workload_of(prior, GROUPS, group_size).draw(rng)
    return measure(decide(plan, batch, rng), batch.outcomes_N, keep_ratio)


def pass_rates(prior: Prior) -> np.ndarray:
    """20,000 equally probable pass rates of the prior's Beta law."""
    a = prior.pass_rate * prior.concentration
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    return np.asarray(beta_law.ppf(quantiles, a, prior.concentration - a))


@pytest.mark.parametrize("concentration", [2.0, 1e6])
@pytest.mark.parametrize(("group_size", "keep_ratio"), [(8, 0.25), (16, 0.5)])
def test_random_pruning_leaves_binomial_groups(
    concentration: float, group_size: int, keep_ratio: float
) -> None:
    prior = Prior(pass_rate=0.35, concentration=concentration)
    found = measured(prior, Preset.RANDOM, group_size, keep_ratio)
    counts = np.arange(group_size + 1)
    shares = binom.pmf(counts, group_size, keep_ratio)
    too_few = shares[0] + shares[1]
    rates = pass_rates(prior)[:, None]
    one_outcome = (rates**counts + (1.0 - rates) ** counts)[:, 2:] @ shares[2:]
    # Of k independent survivors at pass rate θ: E[ρ̂(1−ρ̂)] = θ(1−θ)(1 − 1/k).
    spread = (rates * (1.0 - rates)).mean()
    balance_of_groups = spread * (1.0 - (shares[1:] / counts[1:]).sum() / (1.0 - shares[0]))
    deviation = 4.0 * 0.5 / math.sqrt(GROUPS)
    assert found[TOO_FEW] == pytest.approx(too_few, abs=deviation)
    assert found[NO_SIGNAL] == pytest.approx(too_few + one_outcome.mean(), abs=deviation)
    assert found[PER_GROUP] == pytest.approx(balance_of_groups, abs=deviation / 4)
    assert found[KEEP_RATE] == pytest.approx(keep_ratio, abs=0.01)
    # Pruning that does not look at scores moves nothing.
    assert found[CLOSED_FORM] == 0.0
    assert found[SHIFT] == pytest.approx(0.0, abs=0.005)
    assert found[FALSE_PRUNE] == pytest.approx(0.35, abs=0.02)
    assert found[RATIO] == pytest.approx(0.35, abs=0.02)
    assert found[PER_BATCH] == pytest.approx(0.35 * 0.65, abs=0.01)


def test_small_groups_lose_their_signal_less_often() -> None:
    # G = 8, κ = .25, pass rates Beta with mean .35 and a + b = 2: .746 with independent draws, and
    # .674 with group feedback and systematic draws that promise no minimum.
    prior = Prior(pass_rate=0.35)
    random = measured(prior, Preset.RANDOM, 8, 0.25)
    assert random[TOO_FEW] == pytest.approx(0.367, abs=0.02)
    assert random[NO_SIGNAL] == pytest.approx(0.746, abs=0.02)
    ours = measured(prior, Preset.BALANCED, 8, 0.25)
    assert ours[TOO_FEW] == 0.0
    assert ours[NO_SIGNAL] == pytest.approx(0.674, abs=0.03)


@pytest.mark.parametrize("preset", Preset)
@pytest.mark.parametrize("pass_rate", [0.15, 0.5, 0.7])
def test_survivors_shift_by_the_covariance_and_estimates_stay_unbiased(
    preset: Preset, pass_rate: float
) -> None:
    found = measured(Prior(pass_rate=pass_rate), preset, 16, 0.5)
    assert found[SHIFT] == pytest.approx(found[CLOSED_FORM], abs=0.004)
    assert found[RATE_ERROR] == pytest.approx(0.0, abs=0.006)
    assert found[KEEP_RATE] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("pass_rate", [0.15, 0.32, 0.7])
def test_the_papers_rule_lowers_every_pass_rate_and_ours_goes_to_the_target(
    pass_rate: float,
) -> None:
    prior = Prior(pass_rate=pass_rate)
    paper = measured(prior, Preset.PAPER, 16, 0.5)
    assert paper[SHIFT] < -0.01
    # Clipping at .1 and .9 only weakens −λ Var(q)/κ.
    assert paper[UNCLIPPED] - 0.004 <= paper[SHIFT]
    assert paper[RATE_SHIFT] < 0.0
    ours = measured(prior, Preset.BALANCED, 16, 0.5)
    assert np.sign(ours[SHIFT]) == np.sign(0.5 - pass_rate)
    assert abs(pass_rate + ours[RATE_SHIFT] - 0.5) < abs(pass_rate - 0.5)


def test_no_draws_give_a_group_the_published_balance() -> None:
    # E[ρ̂(1−ρ̂)] = m(1−m) − Var(ρ̂); 8 independent survivors have Var(ρ̂) ≥ m(1−m)/8.
    mean = 0.32
    assert pytest.approx(mean * (1 - mean) * 7 / 8) == balance.BOUND
    assert balance.BOUND < 0.21 < mean * (1 - mean)


def test_the_study_checks_itself_and_says_what_does_not_reproduce(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(balance, "PRIORS", balance.PRIORS[:2])
    shares: list[float] = []
    study = balance.study(SimSettings(seeds=2), shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert [check.name for check in study.checks if not check.passed] == []
    assert len(study.checks) == 4
    tables = {table.name: table.frame for table in study.tables}
    published = tables["table4_balance"].iloc[0]
    assert (published[RATIO], published[PER_GROUP]) == (0.32, 0.21)
    assert len(tables["table4_balance"]) == 1 + 2 * 3
    claims = [item.claim for item in study.contradictions]
    assert any("ρ = .5" in claim for claim in claims)
    assert any("0.21" in claim for claim in claims)


@pytest.mark.parametrize("pass_rate", [0.15, 0.7])
def test_the_loop_keeps_its_ratio_and_knows_the_pass_rate(pass_rate: float) -> None:
    course = closed_loop.Course("steady", pass_rate, pass_rate)
    workloads = course.workloads()
    assert len(workloads) == 60
    run = closed_loop.simulate_run(workloads, Preset.BALANCED, np.random.default_rng(3))
    assert np.all(run[closed_loop.KEEP_RATE][:20] == 1.0)
    warm = {name: values[20:].mean() for name, values in run.items()}
    assert warm[closed_loop.KEEP_RATE] == pytest.approx(0.5, abs=0.01)
    assert warm[closed_loop.WEIGHTED] == pytest.approx(warm[closed_loop.TRUTH], abs=0.015)


def test_a_drifting_course_goes_from_first_to_last() -> None:
    rates = [workload.pass_rate for workload in closed_loop.DRIFT.workloads()]
    assert rates[:20] == [0.15] * 20
    assert rates[-1] == pytest.approx(0.6)
    assert rates == sorted(rates)


legal_settings = st.builds(
    SimSettings,
    prompts=st.integers(1, 12),
    group_size=st.integers(2, 20),
    keep_ratio=st.floats(0.01, 1.0),
    target_ratio=st.floats(0.0, 1.0),
    strength=st.floats(0.0, 10.0),
    detect_length=st.integers(1, 600),
    max_num_seqs=st.integers(1, 64),
    kv_tokens=st.none() | st.integers(1000, 10_000),
    mean_length=st.floats(1.0, 700.0),
    length_spread=st.floats(0.0, 1.5),
    max_length=st.integers(701, 900),
    prompt_tokens=st.integers(1, 99),
    pass_rate=st.floats(0.05, 0.95),
    pass_rate_concentration=st.floats(0.1, 100.0),
    length_correlation=st.floats(-0.3, 0.3),
    score_auc=st.floats(0.5, 0.7),
    prompt_signal=st.floats(0.0, 0.5),
    preset=st.sampled_from(Preset),
    seed=st.integers(0, 99),
    seeds=st.just(2),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(legal_settings)
def test_no_legal_setting_fails_a_check(legal: SimSettings) -> None:
    study = setting.study(legal, lambda share: None)
    assert [check for check in study.checks if not check.passed] == []


def test_a_setting_without_pruning_runs_no_faster() -> None:
    shares: list[float] = []
    base = SimSettings(prompts=8, group_size=4, seeds=2, mean_length=300.0, max_length=600)
    # Nobody reaches the detection length.
    study = setting.study(base.replace(detect_length=599), shares.append)
    times = study.tables[0].frame.set_index("phase")
    assert times.loc["generation", "speed-up"] == pytest.approx(1.0, abs=0.02)
    assert shares[-1] == 1.0


def test_the_setting_counts_its_own_rollouts() -> None:
    base = SimSettings(prompts=8, group_size=4, seeds=2, mean_length=900.0, length_spread=0.0)
    pair = setting.simulate_pair(base, 0)
    # Every rollout has 900 tokens and is decided, so half of them end at 512 (± 1 a group).
    kept = [rollout for rollout in pair.on.rollouts if rollout.survived]
    assert 8 <= len(kept) <= 24
    assert {rollout.tokens for rollout in kept} == {900}
    assert {rollout.tokens for rollout in pair.on.rollouts if not rollout.survived} == {512}
    groups = (
        setting.study(base, lambda share: None).tables[1].frame.set_index("of rollouts or groups")
    )
    assert groups.loc["kept", "off"] == 1.0
    assert groups.loc["ended before the detection length", "on"] == 0.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"group_size": 2}, "a group has 2 rollouts"),
        ({"detect_length": 700, "length_spread": 0.0}, "no rollout is longer than 700 tokens"),
        ({"detect_length": 690, "length_spread": 0.2}, "more than the keep ratio"),
        ({"score_auc": 0.5}, "the guard held pruning back"),
        ({"kv_tokens": 3_000}, "holds about 4 sequences of mean length"),
        ({"prompts": 1}, "1 prompt × 16 rollouts"),
    ],
)
def test_a_setting_in_which_something_is_amiss_says_what(
    changes: dict[str, object], said: str
) -> None:
    base = SimSettings(prompts=8, mean_length=600.0, max_length=2_000, seeds=2)
    study = setting.study(base.replace(**changes), lambda share: None)
    assert said in study.text


def test_a_setting_in_which_nothing_is_amiss_says_no_more() -> None:
    base = SimSettings(prompts=8, mean_length=900.0, length_spread=0.2, max_length=2_000, seeds=2)
    study = setting.study(base, lambda share: None)
    assert study.text.count("\n\n") == 1  # the setting and its step time
    assert all("n = 2 seeds" in table.note for table in study.tables)


def test_a_longer_loop_of_the_papers_rule_keeps_what_the_note_says() -> None:
    law = workload_of(Prior(0.3), closed_loop.GROUPS, paper.GROUP_SIZE)
    run = closed_loop.simulate_run([law] * 260, Preset.PAPER, np.random.default_rng(0))
    rates = run[closed_loop.KEEP_RATE]
    assert rates[200:].mean() == pytest.approx(0.48, abs=0.01)
    assert rates[200:].mean() < rates[paper.COLD_START_STEPS : closed_loop.STEPS].mean()


def test_a_step_whose_rollouts_are_all_pruned_has_no_speed_up_of_training() -> None:
    base = SimSettings(
        preset=Preset.PAPER, prompts=1, group_size=2, keep_ratio=0.01, detect_length=1,
        mean_length=50.0, max_length=99, seeds=3,
    )  # fmt: skip
    times = setting.study(base, lambda share: None).tables[0].frame.set_index("phase")
    speedups = dict(zip(times.index, times["speed-up"], strict=True))
    assert times.loc["update", "on [s]"] == 0.0
    assert math.isnan(speedups["update"])
    assert speedups["step"] > 1.0
