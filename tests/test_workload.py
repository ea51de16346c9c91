"""The law of simulated rollouts: moments and correlations against what was asked for."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from arrol.errors import ArrolError
from arrol.keys import stable_key
from arrol.records import FinishReason
from arrol.sim.workload import Workload

UNCUT = 10**9
LARGE = Workload(prompts=20_000, group_size=8, max_length=UNCUT)


def drawn(seed=0, **changes):
    return replace(LARGE, **changes).draw(np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("pass_rate", "concentration"), [(0.32, 2.0), (0.7, 0.3), (0.05, 1.0), (0.5, 30.0)]
)
def test_right_answers_of_a_group_follow_the_beta_binomial(pass_rate, concentration):
    batch = drawn(pass_rate=pass_rate, pass_rate_concentration=concentration)
    counts = np.bincount(batch.outcomes_N.reshape(-1, 8).sum(axis=1), minlength=9)
    a, b = pass_rate * concentration, (1 - pass_rate) * concentration
    expected = stats.betabinom.pmf(np.arange(9), 8, a, b) * LARGE.prompts
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    levels = np.linspace(0.1, 0.9, 9)  # not to the ends, where doubles run out
    below = (batch.pass_rates_B[:, None] <= levels).mean(axis=0)
    assert below == pytest.approx(stats.beta(a, b).cdf(levels), abs=0.015)


@pytest.mark.parametrize(("mean", "spread"), [(2000.0, 0.6), (500.0, 1.2), (3000.0, 0.05)])
def test_uncut_lengths_are_log_normal_with_the_mean_asked_for(mean, spread):
    batch = drawn(mean_length=mean, length_spread=spread, length_correlation=0.0)
    lengths_N = batch.lengths_N
    deviation = math.sqrt(math.expm1(spread**2))  # of a log-normal, over its mean
    tolerance = 4 * deviation / math.sqrt(len(lengths_N))
    assert lengths_N.mean() == pytest.approx(mean, rel=tolerance)
    law = stats.lognorm(s=spread, scale=mean * math.exp(-(spread**2) / 2))
    levels = np.quantile(lengths_N, [0.05, 0.25, 0.5, 0.75, 0.95])
    assert law.cdf(levels) == pytest.approx([0.05, 0.25, 0.5, 0.75, 0.95], abs=0.005)


def test_without_spread_every_length_is_the_mean():
    assert set(drawn(length_spread=0.0).lengths_N.tolist()) == {2000}


@pytest.mark.parametrize("correlation", [-0.6, -0.3, 0.0, 0.4])
@pytest.mark.parametrize(("pass_rate", "concentration"), [(0.32, 2.0), (0.32, 0.3), (0.5, 50.0)])
def test_log_length_correlates_with_being_right(correlation, pass_rate, concentration):
    batch = drawn(
        length_correlation=correlation, pass_rate=pass_rate, pass_rate_concentration=concentration
    )
    found = stats.pointbiserialr(batch.outcomes_N, np.log(batch.lengths_N)).statistic
    assert found == pytest.approx(correlation, abs=0.012)


@pytest.mark.parametrize("pass_rate", [0.1, 0.32, 0.5, 0.9])
@pytest.mark.parametrize("concentration", [0.2, 2.0, 1e5])
def test_the_reachable_correlation_is_the_point_biserial_limit(pass_rate, concentration):
    # No Gaussian correlates more with a Bernoulli(m) than φ(Φ⁻¹(m))/√(m(1 − m)).
    limit = stats.norm.pdf(stats.norm.ppf(pass_rate)) / math.sqrt(pass_rate * (1 - pass_rate))
    law = replace(LARGE, pass_rate=pass_rate, pass_rate_concentration=concentration)
    with pytest.raises(ArrolError, match="length_correlation is"):
        replace(law, length_correlation=limit + 0.005)
    replace(law, length_correlation=limit - 0.005)


@pytest.mark.parametrize("prompt_signal", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("auc", [0.35, 0.5, 0.7, 0.85])
def test_the_score_has_the_auc_asked_for(prompt_signal, auc):
    batch = drawn(prompt_signal=prompt_signal, score_auc=auc)
    assert roc_auc_score(batch.outcomes_N, batch.scores_N) == pytest.approx(auc, abs=0.01)
    assert 0.0 <= batch.scores_N.min() <= batch.scores_N.max() <= 1.0


def test_a_score_without_prompt_signal_separates_by_the_closed_form():
    # Two unit Gaussians d apart have AUC Φ(d/√2).
    batch = drawn(prompt_signal=0.0, score_auc=0.78)
    latent_N = np.log(batch.scores_N) - np.log1p(-batch.scores_N)
    right_N, wrong_N = latent_N[batch.outcomes_N == 1], latent_N[batch.outcomes_N == 0]
    gap = math.sqrt(2) * stats.norm.ppf(0.78)
    assert right_N.mean() - wrong_N.mean() == pytest.approx(gap, abs=0.03)
    assert right_N.std() == pytest.approx(1.0, abs=0.02)
    assert wrong_N.std() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("prompt_signal", [0.0, 0.5, 1.0])
def test_the_auc_within_a_prompt_is_the_one_stated(prompt_signal):
    law = replace(LARGE, prompt_signal=prompt_signal)
    batch = law.draw(np.random.default_rng(1))
    outcomes_BG = batch.outcomes_N.reshape(-1, 8).astype(bool)
    scores_BG = batch.scores_N.reshape(-1, 8)
    # Right above wrong, over all pairs within a prompt.
    pairs_BGG = outcomes_BG[:, :, None] & ~outcomes_BG[:, None, :]
    above_BGG = scores_BG[:, :, None] > scores_BG[:, None, :]
    found = above_BGG[pairs_BGG].mean()
    assert found == pytest.approx(law.within_prompt_auc, abs=0.01)
    if prompt_signal == 1.0:
        assert law.within_prompt_auc == 0.5


def test_an_auc_that_the_prompt_alone_cannot_give_is_refused():
    # Where all prompts are alike, knowing the prompt tells nothing.
    with pytest.raises(ArrolError, match=r"score_auc is 0\.78;.*prompt_signal = 1 can tell"):
        replace(LARGE, prompt_signal=1.0, pass_rate_concentration=1e6)
    assert replace(LARGE, prompt_signal=0.0, pass_rate_concentration=1e6).score_auc == 0.78


def test_a_rollout_at_the_limit_is_cut():
    batch = drawn(max_length=1500)
    uncut = drawn()
    over_N = uncut.lengths_N > 1500
    assert 0.3 < over_N.mean() < 0.9
    assert np.array_equal(batch.cut_N, over_N)
    assert np.array_equal(batch.lengths_N, np.minimum(uncut.lengths_N, 1500))
    assert np.array_equal(batch.outcomes_N, uncut.outcomes_N)


laws = st.builds(
    Workload,
    prompts=st.integers(1, 20),
    group_size=st.integers(1, 20),
    prompt_tokens=st.integers(1, 500),
    mean_length=st.floats(1.0, 10_000.0),
    length_spread=st.floats(0.0, 2.0),
    max_length=st.integers(1, 10_000),
    pass_rate=st.floats(0.01, 0.99),
    pass_rate_concentration=st.floats(1e-3, 1e5),
    length_correlation=st.floats(-0.1, 0.1),
    score_auc=st.floats(0.45, 0.95),
    prompt_signal=st.floats(0.0, 0.5),
)


@settings(deadline=None, max_examples=50)
@given(laws, st.integers(0, 2**32), st.integers(0, 1000))
def test_every_draw_is_valid_and_a_pure_function_of_the_seed(law, seed, step):
    batch = law.draw(np.random.default_rng(seed))
    again = law.draw(np.random.default_rng(seed))
    for field in fields(batch):
        assert np.array_equal(getattr(batch, field.name), getattr(again, field.name))
    requests = batch.requests(step)
    assert requests == again.requests(step)
    assert len({request.key for request in requests}) == law.prompts * law.group_size
    assert len({request.group for request in requests}) == law.prompts
    for request in requests:
        assert 1 <= request.length <= law.max_length
        assert 0.0 <= request.score <= 1.0
        cut = request.finish_reason is FinishReason.LENGTH
        assert not cut or request.length == law.max_length
        assert request.group_size == law.group_size
        assert request.prompt_tokens == law.prompt_tokens


def test_requests_carry_the_arrays_under_keys_of_the_step():
    batch = Workload(prompts=3, group_size=2).draw(np.random.default_rng(5))
    requests = batch.requests(step=7)
    assert [r.key for r in requests] == [stable_key(7, b, i) for b in range(3) for i in range(2)]
    assert [r.group for r in requests] == [stable_key(7, b) for b in range(3) for _ in range(2)]
    assert [r.index for r in requests] == [0, 1] * 3
    assert [r.length for r in requests] == batch.lengths_N.tolist()
    assert [r.score for r in requests] == batch.scores_N.tolist()
    assert [r.outcome for r in requests] == batch.outcomes_N.tolist()
    assert {r.key for r in requests}.isdisjoint(r.key for r in batch.requests(step=8))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompts", 0),
        ("group_size", 2.5),
        ("mean_length", 0.5),
        ("length_spread", -0.1),
        ("max_length", 0),
        ("pass_rate", 1.0),
        ("pass_rate_concentration", 0.0),
        ("score_auc", 1.0),
        ("prompt_signal", 1.1),
        ("length_correlation", float("nan")),
    ],
)
def test_an_impossible_value_is_refused_by_name(field, value):
    with pytest.raises(ArrolError, match=f"{field} is {value!r}"):
        replace(LARGE, **{field: value})
