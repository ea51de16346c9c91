"""Replaying logs: cross-fitting, time, rivals, and when pruning is advised."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from arrol.calibration import CalibrationTable, TableKind
from arrol.config import Draw, Preset, PruningConfig
from arrol.errors import ArrolError
from arrol.plan import PruningPlan
from arrol.records import FinishReason, Mode
from arrol.rollout_files import ProblemList
from arrol.rollout_log import RolloutLog, read_rollouts
from arrol.sim.cost import StepTime, kv_capacity
from arrol.sim.engine import EngineLimits, SimulatedRequest, simulate
from arrol.sim.hardware import ACCELERATORS, MODELS
from arrol.sim.replay import (
    EQUAL_TIME,
    EQUAL_TOKENS,
    FOLDS,
    NO_PRUNING,
    Measures,
    ReplaySettings,
    RuleResult,
    assumed_scores,
    cross_fitted_keeps,
    deal_folds,
    measure,
    replay,
    shadow_rollouts,
    smaller_groups,
)
from arrol.sim.replay_advice import (
    advise,
    analyse,
    choose_detect_length,
    choose_keep_ratio,
    choose_strength,
    detect_lengths,
    flags,
)
from arrol.sim.replay_clock import TIMED_ROLLOUTS, Clock, Fate, timed_rows
from arrol.sim.replay_signal import Estimate, Signal, counted_auc, group_wins, measure_signal
from arrol.sim.replay_trial import Trial, meets_keep_ratio, objections, try_settings
from arrol.survival import random_rule

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
MODEL, ACCELERATOR = MODELS["Qwen3-1.7B"], ACCELERATORS["GH200"]


def log_of(
    groups: Any, tokens: Any, outcomes: Any, scores: Any | None = None, steps: Any | None = None
) -> RolloutLog:
    """A log as the reader would make it."""
    groups = np.asarray(groups, dtype=np.int64)
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    indices = np.empty(len(groups), dtype=np.int64)
    indices[order] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    right = np.asarray(outcomes, dtype=np.bool_)
    nothing = np.full(len(groups), np.nan)
    return RolloutLog(
        groups=groups,
        indices=indices,
        steps=np.zeros(len(groups), dtype=np.int64) if steps is None else np.asarray(steps),
        tokens=np.asarray(tokens, dtype=np.int64),
        prompt_tokens=np.full(len(groups), -1),
        rewards=right.astype(np.float64),
        outcomes=right,
        scores=nothing if scores is None else np.asarray(scores, dtype=np.float64),
        formats={"log": Counter()},
        problems=ProblemList(),
        notes=(),
    )


def random_log(
    count: int, size: int, seed: int = 0, *, pass_rate: float = 0.4, auc: float | None = 0.8
) -> RolloutLog:
    """Rollouts of 100 to 3,000 tokens, each right with the same probability."""
    rng = np.random.default_rng(seed)
    outcomes = rng.random(count * size) < pass_rate
    scores = None if auc is None else assumed_scores(outcomes, auc, rng)
    tokens = rng.integers(100, 3001, count * size)
    return log_of(np.repeat(np.arange(count), size), tokens, outcomes, scores)


def clock_of(log: RolloutLog, max_num_seqs: int = 256) -> Clock:
    return Clock(log, MODEL, ACCELERATOR, max_num_seqs)


def everyone(log: RolloutLog) -> Fate:
    all_N = np.ones(len(log), dtype=np.bool_)
    return Fate(all_N, all_N, log.tokens)


# Measures


def test_measures_of_a_log_counted_by_hand() -> None:
    """Two groups of four, the last two rollouts of the first and one of the second pruned."""
    log = log_of(
        [0, 0, 0, 0, 1, 1, 1, 1], [600, 600, 700, 900, 10, 600, 600, 900], [1, 0, 1, 0, 1, 1, 1, 0]
    )
    survives = np.array([1, 1, 0, 0, 1, 1, 1, 0], dtype=np.bool_)
    fate = Fate(np.ones(8, dtype=np.bool_), survives, np.where(survives, log.tokens, 512))
    found, balances_B, losses = measure(log, ReplaySettings(), fate, clock_of(log))
    assert found.keep_rate == 5 / 8
    assert found.decided_keep_rate == 4 / 7
    assert balances_B.tolist() == [0.25, 0.0]
    assert found.balance == 0.125
    assert found.pooled_ratio == 4 / 5
    assert found.no_signal == 0.5
    assert found.false_prunes == 1 / 3
    assert found.tokens_saved == pytest.approx((188 + 388 + 388) / 4910)
    assert dict(losses) == {"too_few_survivors": 0, "all_right": 1, "all_wrong": 0}


def test_groups_that_start_smaller_are_not_false_prunes() -> None:
    log = log_of([0, 0, 0], [10, 20, 30], [1, 0, 1])
    started = np.array([1, 0, 1], dtype=np.bool_)
    found, _, _ = measure(
        log, ReplaySettings(), Fate(started, started, np.where(started, log.tokens, 0)),
        clock_of(log),
    )  # fmt: skip
    assert np.isnan(found.false_prunes)
    assert found.tokens_saved == pytest.approx(20 / 60)


def test_nothing_is_pruned_where_every_rollout_is_short() -> None:
    log = log_of(np.repeat(np.arange(20), 4), np.full(80, 512), np.tile([1, 0, 0, 1], 20))
    results = replay(log, ReplaySettings(seeds=2))
    unpruned = results[NO_PRUNING].runs[0]
    for preset in Preset:
        run = results[preset.value].runs[0]
        assert (run.keep_rate, run.tokens_saved) == (1.0, 0.0)
        assert (run.balance, run.step) == (unpruned.balance, unpruned.step)


def test_random_pruning_has_its_closed_form() -> None:
    """κ' = (κ − f)/(1 − f) of the decided survive; the others save all beyond L_detect."""
    log, chosen = random_log(100, 8), ReplaySettings(preset=Preset.RANDOM, seeds=8)
    early = float((log.tokens <= 512).mean())
    survival = (0.5 - early) / (1 - early)
    beyond = np.maximum(log.tokens - 512, 0).sum() / log.tokens.sum()
    result = replay(log, chosen, (Preset.RANDOM,))["random"]
    decided = int((log.tokens > 512).sum())
    error = np.sqrt(survival * (1 - survival) / decided / 8)
    # The controller of each fold estimates f from the others, which moves κ' by less than .01.
    assert result.mean("decided_keep_rate") == pytest.approx(survival, abs=4 * error + 0.01)
    assert result.mean("tokens_saved") == pytest.approx((1 - survival) * beyond, abs=0.02)


def test_the_same_seed_gives_the_same_results() -> None:
    log = random_log(12, 4, auc=None)
    first, again, other = (
        replay(log, ReplaySettings(seeds=2, seed=seed), (Preset.BALANCED,)) for seed in (1, 1, 2)
    )
    assert {name: found.runs for name, found in first.items()} == {
        name: found.runs for name, found in again.items()
    }
    assert first["balanced"].runs != other["balanced"].runs


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"keep_ratio": 0.0}, "--keep-ratio is 0.0"),
        ({"keep_ratio": float("nan")}, "--keep-ratio is nan"),
        ({"strength": -1.0}, "--strength is -1.0"),
        ({"detect_length": 0}, "--detect-length is 0"),
        ({"score_auc": 0.4}, "--score-auc is 0.4"),
        ({"seeds": 1}, "--seeds is 1"),
        ({"target_ratio": 1.5}, "--target-ratio is 1.5"),
        ({"max_num_seqs": 0}, "--max-num-seqs is 0"),
    ],
)
def test_settings_out_of_range_name_the_flag(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ArrolError, match=f"{text}; allowed is "):
        ReplaySettings(**change)


# Cross-fitting


def decisions(log: RolloutLog, preset: Preset, folds: Any) -> Any:
    config = ReplaySettings().config(preset, 0)
    records = shadow_rollouts(log, log.scores, config.detect_length)
    return cross_fitted_keeps(log, records, log.scores, config, folds)


@pytest.mark.parametrize("preset", list(Preset))
def test_a_groups_own_labels_never_reach_its_decisions(preset: Preset) -> None:
    """Turn all labels of one fold round: its decisions stay, to the last one."""
    log = random_log(40, 8)
    folds = deal_folds(log.groups, FOLDS, np.random.default_rng(0))
    before = decisions(log, preset, folds)
    for fold in range(FOLDS):
        turned = log_of(log.groups, log.tokens, log.outcomes ^ (folds == fold), log.scores)
        after = decisions(turned, preset, folds)
        np.testing.assert_array_equal(before[folds == fold], after[folds == fold])


def test_labels_of_other_folds_do_reach_them() -> None:
    log = random_log(40, 8)
    folds = deal_folds(log.groups, FOLDS, np.random.default_rng(0))
    turned = log_of(log.groups, log.tokens, ~log.outcomes, log.scores)
    balanced = Preset.BALANCED
    assert (decisions(log, balanced, folds) != decisions(turned, balanced, folds)).any()


def test_rollouts_without_a_score_or_short_ones_are_kept() -> None:
    log = random_log(40, 8)
    scores = np.where(np.arange(len(log)) % 3 == 0, np.nan, log.scores)
    gaps = log_of(log.groups, log.tokens, log.outcomes, scores)
    folds = deal_folds(log.groups, FOLDS, np.random.default_rng(0))
    keeps = decisions(gaps, Preset.PAPER, folds)
    assert keeps[np.isnan(scores)].all()
    assert keeps[log.tokens <= 512].all()
    assert not keeps.all()


@given(st.integers(1, 60), st.integers(1, 7), st.integers(0, 99))
def test_folds_are_whole_groups_of_equal_number(count: int, size: int, seed: int) -> None:
    folds = deal_folds(np.repeat(np.arange(count), size), FOLDS, np.random.default_rng(seed))
    by_group = folds.reshape(count, size)
    assert (by_group == by_group[:, :1]).all()
    dealt = np.bincount(by_group[:, 0], minlength=FOLDS)
    assert dealt.max() - dealt.min() <= 1


# Assumed scores and what scores are worth


@pytest.mark.parametrize("auc", [0.5, 0.65, 0.78, 0.95])
def test_assumed_scores_have_the_auc_that_was_asked_for(auc: float) -> None:
    rng = np.random.default_rng(0)
    outcomes = rng.random(20_000) < 0.3
    scores = assumed_scores(outcomes, auc, rng)
    # Hanley and McNeil's standard error is below .0045 for 6,000 right and 14,000 wrong ones.
    assert roc_auc_score(outcomes, scores) == pytest.approx(auc, abs=4 * 0.0045)
    assert ((scores > 0) & (scores < 1)).all()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3)), min_size=1))
def test_group_wins_against_all_pairs(rows: list[tuple[int, bool, int]]) -> None:
    scores = np.array([score for score, _, _ in rows], dtype=np.float64)
    outcomes = np.array([right for _, right, _ in rows], dtype=np.float64)
    groups = np.array([group for _, _, group in rows])
    wins, pairs = np.zeros(4), np.zeros(4)
    for a in range(len(rows)):
        for b in range(len(rows)):
            if groups[a] == groups[b] and outcomes[a] == 1 and outcomes[b] == 0:
                pairs[groups[a]] += 1
                wins[groups[a]] += (scores[a] > scores[b]) + (scores[a] == scores[b]) / 2
    found = group_wins(scores, outcomes, groups, 4)
    np.testing.assert_array_equal(found, [wins, pairs])


def test_resampled_auc_is_that_of_the_rows_written_out() -> None:
    rng = np.random.default_rng(0)
    scores, outcomes = rng.integers(0, 9, 200), rng.random(200) < 0.4
    counts = rng.integers(0, 4, 200)
    rows = np.repeat(np.arange(200), counts)
    _, places = np.unique(scores, return_inverse=True)
    expected = roc_auc_score(outcomes[rows], scores[rows])
    assert counted_auc(places, outcomes.astype(float), counts) == pytest.approx(expected, abs=1e-12)


def test_signal_of_gaussian_scores() -> None:
    """Binormal scores at distance d have AUC Φ(d/√2), here overall and within groups alike."""
    log = random_log(500, 8, auc=0.75)
    signal = measure_signal(log.scores, log.outcomes, log.groups, np.random.default_rng(0))
    assert signal.overall.value == pytest.approx(roc_auc_score(log.outcomes, log.scores))
    assert signal.overall.low < 0.75 < signal.overall.high
    assert signal.within.low < 0.75 < signal.within.high
    # The bootstrap's width against Hanley and McNeil's standard error for exponential scores.
    right, wrong, auc = log.outcomes.sum(), (~log.outcomes).sum(), 0.75
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (right - 1) * (q1 - auc**2) + (wrong - 1) * (q2 - auc**2)
    error = np.sqrt(variance / (right * wrong))
    width = 2 * norm.ppf(0.975) * error
    assert signal.overall.high - signal.overall.low == pytest.approx(width, rel=0.2)


def test_a_score_that_knows_the_prompt_alone_is_worth_nothing_within_groups() -> None:
    groups = np.repeat(np.arange(100), 8)
    rng = np.random.default_rng(0)
    rate = rng.random(100)
    outcomes = rng.random(800) < rate[groups]
    signal = measure_signal(rate[groups], outcomes, groups, rng)
    assert signal.overall.low > 0.75
    assert (signal.within.value, signal.within.low, signal.within.high) == (0.5, 0.5, 0.5)


def test_signal_of_nothing_is_nan() -> None:
    empty = measure_signal(
        np.array([]), np.array([], dtype=np.bool_), np.array([], dtype=int), np.random.default_rng()
    )
    assert empty.rollouts == 0
    assert np.isnan([empty.overall.value, empty.within.low]).all()


# The smaller groups


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=20), st.floats(0, 1), st.integers(0, 2**32 - 1)
)
def test_smaller_groups_start_their_share(sizes: list[int], share: float, seed: int) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    started = smaller_groups(groups, share, np.random.default_rng(seed))
    assert abs(started.sum() - share * len(groups)) < 1
    counts = np.bincount(groups, started)
    assert (np.abs(counts - share * np.array(sizes)) < 1 + 1e-9).all()


def test_every_rollout_is_as_likely_to_start() -> None:
    groups = np.repeat(np.arange(5), [1, 2, 3, 4, 5])
    runs = [smaller_groups(groups, 0.4, np.random.default_rng(seed)) for seed in range(4000)]
    error = np.sqrt(0.4 * 0.6 / 4000)
    np.testing.assert_allclose(np.mean(runs, axis=0), 0.4, atol=4.5 * error)


def test_rivals_cost_what_they_should() -> None:
    log = random_log(100, 8)
    results = replay(log, ReplaySettings(seeds=3), (Preset.BALANCED,))
    for chosen, tokens, time in zip(
        results["balanced"].runs, results[EQUAL_TOKENS].runs, results[EQUAL_TIME].runs, strict=True
    ):
        assert tokens.tokens_saved == pytest.approx(chosen.tokens_saved, abs=0.03)
        assert time.step == pytest.approx(chosen.step, rel=0.05)


# Time


def test_a_pruned_rollout_takes_the_engine_as_long_as_under_a_plan() -> None:
    """The same rollouts through the engine with a plan that prunes half of the long ones."""
    log = random_log(40, 8)
    plan = PruningPlan(
        version=1, head_version=1, mode=Mode.ON, detect_length=512, seed=3, draw=Draw.BERNOULLI,
        rule=random_rule(0.5, 0.1, 0.9), calibration=CalibrationTable(TableKind.STEP, (), (0.5,)),
    )  # fmt: skip
    limits = EngineLimits(64, kv_tokens=kv_capacity(MODEL, ACCELERATOR))
    requests = [
        SimulatedRequest(row, int(log.groups[row]), int(log.indices[row]), 8, 150,
                         int(log.tokens[row]), score=0.5)
        for row in range(len(log))
    ]  # fmt: skip
    run = simulate(requests, limits, StepTime.of(MODEL, ACCELERATOR), plan)
    pruned = {r.key for r in run.rollouts if r.finish_reason is FinishReason.PRUNED}
    survives = np.array([row not in pruned for row in range(len(log))])
    assert 50 < len(pruned) < 250
    fate = Fate(np.ones(len(log), dtype=bool), survives, np.where(survives, log.tokens, 512))
    generation, _ = clock_of(log, 64).seconds(fate)
    assert generation == pytest.approx(run.seconds, rel=1e-9)


def test_phases_after_the_generation_are_table_5s_for_its_batch() -> None:
    """64 prompts × 16 rollouts × 2,000 tokens, Qwen3-1.7B: log-prob 18.40 s, update 63.05 s."""
    log = log_of(np.repeat(np.arange(64), 16), np.full(1024, 2000), np.ones(1024))
    generation, step = clock_of(log).seconds(everyone(log))
    assert step - generation == pytest.approx(18.40 + 63.05, rel=1e-9)
    nobody = np.zeros(1024, dtype=np.bool_)
    generation, step = clock_of(log).seconds(Fate(nobody, nobody, np.zeros(1024, dtype=np.int64)))
    assert generation == 0.0
    assert step == pytest.approx(2.64)


def test_phases_scale_with_the_accelerators_arithmetic() -> None:
    log = log_of(np.repeat(np.arange(64), 16), np.full(1024, 2000), np.ones(1024))
    generation, step = Clock(log, MODEL, ACCELERATORS["A100"], 256).seconds(everyone(log))
    assert step - generation == pytest.approx((18.40 + 63.05) * 990 / 312, rel=1e-9)


def test_steps_are_timed_one_after_another() -> None:
    one = log_of(np.repeat(np.arange(8), 4), np.arange(100, 132), np.ones(32))
    two = log_of(
        np.repeat(np.arange(16), 4), np.tile(np.arange(100, 132), 2), np.ones(64),
        steps=np.repeat([0, 1], 32),
    )  # fmt: skip
    assert clock_of(two).seconds(everyone(two))[0] == pytest.approx(
        2 * clock_of(one).seconds(everyone(one))[0], rel=1e-12
    )


def test_a_long_log_is_timed_from_whole_steps_spread_evenly() -> None:
    steps, groups = np.repeat(np.arange(20), 512), np.repeat(np.arange(20 * 64), 8)
    timed = timed_rows(steps, groups)
    assert sum(map(len, timed)) == TIMED_ROLLOUTS
    assert [int(steps[rows[0]]) for rows in timed] == [0, 6, 12, 19]
    assert all(len(rows) == 512 for rows in timed)


def test_a_huge_step_is_timed_from_its_first_whole_groups() -> None:
    groups = np.repeat(np.arange(2000), 3)
    (rows,) = timed_rows(np.zeros(6000, dtype=int), groups)
    assert TIMED_ROLLOUTS - 3 < len(rows) <= TIMED_ROLLOUTS
    assert len(rows) % 3 == 0
    (one_group,) = timed_rows(np.zeros(6000, dtype=int), np.zeros(6000, dtype=int))
    assert len(one_group) == 6000


def test_a_rollout_that_no_cache_holds_is_refused() -> None:
    log = log_of([0, 0], [10, 2_000_000], [1, 0])
    with pytest.raises(ArrolError, match=r"--accelerator GH200 leaves .* 2,000,150 tokens"):
        clock_of(log)


# Advice


def objections_of(log: RolloutLog, **changes: Any) -> str:
    """What speaks against pruning this log with the defaults."""
    chosen = ReplaySettings(**{"seeds": 3, **changes})
    return "\n".join(objections(log, try_settings(log, chosen, tuple(Preset), lambda share: None)))


def test_pruning_is_advised_where_it_pays() -> None:
    """Long rollouts, hard prompts (one in ten right), large groups and a sharp score."""
    log = random_log(90, 16, pass_rate=0.1, auc=0.97)
    given = ReplaySettings(seeds=2, detect_length=256, strength=1.0)
    advice = analyse(log, given, lambda share: None).advice
    assert advice.prune
    assert advice.headline.startswith("Prune, with ")


@pytest.mark.parametrize(
    ("log", "text"),
    [
        (random_log(40, 8, auc=0.5), "The score is too weak"),
        (random_log(12, 8), "12 groups are too few to tell"),
        (random_log(1, 8), "1 group is too few to tell"),
        (random_log(40, 2), "The groups are too small"),
        (random_log(20, 4, pass_rate=1.0), "Every rollout is right"),
        (random_log(20, 4, pass_rate=0.0), "Every rollout is wrong"),
        (log_of(np.repeat(np.arange(30), 8), np.full(240, 20), np.tile([1, 0], 120)), "Too little"),
        # At a pass rate of ½ groups are balanced as they are: fewer rollouts do as well.
        (random_log(60, 8, pass_rate=0.5), "not shown to balance better than a smaller group"),
    ],
    ids=[
        "weak score",
        "few groups",
        "one group",
        "small groups",
        "right",
        "wrong",
        "short",
        "even",
    ],
)
def test_what_speaks_against_pruning(log: RolloutLog, text: str) -> None:
    assert text in objections_of(log)


def paired_trials(log: RolloutLog, **better: Any) -> tuple[Trial, Trial]:
    """Trials with settings that nothing speaks against, and with others."""
    sound = ReplaySettings(seeds=2, detect_length=256, strength=1.0)
    trials = [
        try_settings(log, chosen, tuple(Preset), lambda share: None)
        for chosen in (sound, sound.changed(**better))
    ]
    return trials[0], trials[1]


def test_settings_given_that_nothing_speaks_against_are_advised() -> None:
    """Whatever the scans found: here, an L_detect past the longest rollout."""
    log = random_log(90, 16, pass_rate=0.1, auc=0.97)
    sound, late = paired_trials(log, detect_length=5000)
    assert not objections(log, sound)
    assert objections(log, late)
    advice = advise(log, sound, late)
    assert (advice.prune, advice.settings) == (True, sound.settings)
    assert advice.headline.startswith("Prune, with the settings given")
    assert flags(sound.settings) in advice.headline
    assert any(text.startswith(f"With {flags(late.settings)}: ") for text in advice.reasons)
    turned = advise(log, late, sound)
    assert (turned.prune, turned.settings) == (True, sound.settings)
    assert turned.headline.startswith("Prune, with other settings than given")
    neither = advise(log, late, paired_trials(log, detect_length=6000)[1])
    assert not neither.prune
    assert "neither as given nor" in neither.headline


def test_few_groups_with_both_outcomes_can_t_tell() -> None:
    """100 groups of 8, of which 7 have a right and a wrong rollout among the long ones."""
    outcomes = np.zeros((100, 8))
    outcomes[:7, 4:] = [1, 0, 1, 0]
    outcomes[7:50, :4] = [1, 1, 0, 0]  # these end early
    tokens = np.tile([200] * 2 + [400] * 2 + [2000] * 4, 100)
    log = log_of(np.repeat(np.arange(100), 8), tokens, outcomes.ravel(), outcomes.ravel() / 2)
    trial = try_settings(log, ReplaySettings(seeds=2), tuple(Preset), lambda share: None)
    advice = advise(log, trial, trial)
    assert not advice.prune
    assert advice.headline.startswith("Can’t tell")
    assert len(advice.reasons) == 1
    assert advice.reasons[0].startswith("Only 7 groups have both outcomes")


def with_rivals(tokens: list[float], time: list[float]) -> Trial:
    """A trial that gains so much on the smaller groups."""
    trial = trial_of([0.0] * 40, 0.3, preset=Preset.RANDOM)
    rule = trial.results["balanced"]
    rivals = {EQUAL_TOKENS: tokens, EQUAL_TIME: time}
    results = {"random": rule, NO_PRUNING: rule} | {
        name: RuleResult(rule.runs, -np.array(gains), {}) for name, gains in rivals.items()
    }
    sure = Estimate(0.8, 0.7, 0.9)
    return Trial(trial.settings, results, Signal(300, 40, sure, sure))


@pytest.mark.parametrize(
    ("tokens", "time", "said"),
    [
        ([0.02, 0.03], [0.02, 0.03], "given: --preset"),
        (
            [-0.02, -0.03],
            [0.02, 0.03],
            "which pays at equal time of the training step (at equal tokens a smaller group is "
            "clearly better)",
        ),
        (
            [0.02, 0.03],
            [0.1, -0.08],
            "which pays at equal tokens (at equal time of the training step a smaller group may be "
            "as good)",
        ),
    ],
    ids=["both", "time", "tokens"],
)
def test_the_headline_says_by_which_measure_pruning_pays(
    tokens: list[float], time: list[float], said: str
) -> None:
    trial = with_rivals(tokens * 20, time * 20)
    advice = advise(random_log(40, 8), trial, trial)
    assert advice.prune
    assert said in advice.headline


def test_advice_on_pruning_at_random_names_neither_score_nor_strength() -> None:
    trial = with_rivals([0.02, 0.03] * 20, [0.02, 0.03] * 20)
    advice = advise(random_log(40, 8, auc=None), trial, trial)
    text = " ".join([advice.headline, *advice.reasons, *advice.caveats])
    assert "--preset random" in text
    assert "--strength" not in text
    assert "score" not in text
    assert "AUC" not in text


def test_a_keep_ratio_can_be_met_up_to_the_survival_floor() -> None:
    """κ = ½ where f end early: the others keep (½ − f)/(1 − f), above p_min = 0.1 iff f < 4/9."""
    for early, met in ((0, True), (43, True), (45, False), (60, False), (100, False)):
        tokens = np.where(np.arange(100) < early, 100, 1000)
        log = log_of(np.zeros(100), tokens, np.ones(100))
        assert meets_keep_ratio(log, ReplaySettings()) is met


def test_a_detect_length_at_which_the_keep_ratio_can_t_be_met_is_not_chosen() -> None:
    """Half of the rollouts end between 256 and 512 tokens."""
    log = log_of(np.repeat(np.arange(30), 8), np.tile([400, 3000], 120), np.tile([1, 0], 120))
    trials = [trial_of(NONE, 0.4, detect_length=256), trial_of(CLEAR, 0.3, detect_length=512)]
    assert choose_detect_length(trials, ReplaySettings(), log) == 256
    assert choose_detect_length(trials[1:], ReplaySettings(), log) == 512


def test_a_detect_length_without_objections_comes_first() -> None:
    log, sure = random_log(60, 8), Estimate(0.8, 0.7, 0.9)
    weak, sound = (trial_of(CLEAR, 0.3, detect_length=length) for length in (512, 256))
    sound = Trial(sound.settings, sound.results, Signal(300, 40, sure, sure))
    assert not objections(log, sound)
    assert choose_detect_length([sound, weak], ReplaySettings(), log) == 256


def test_detect_lengths_to_try_lie_within_the_log_and_hold_the_given() -> None:
    log = random_log(50, 8)
    lengths = detect_lengths(log, ReplaySettings(detect_length=5000))
    assert lengths == (192, 256, 384, 512, 768, 1024, 1536, 2048, 5000)


def trial_of(gains: list[float], saved: float, **changes: Any) -> Trial:
    """A trial whose groups gain so much on a smaller group of equal time."""
    run = Measures(0.5, 0.5, 0.1, 0.4, 0.2, 0.3, saved, 1.0, 2.0)
    rule = RuleResult((run,), np.array(gains), {})
    rival = RuleResult((run,), np.zeros(len(gains)), {})
    nothing = Estimate(math.nan, math.nan, math.nan)
    results = {"balanced": rule, EQUAL_TOKENS: rival, EQUAL_TIME: rival}
    return Trial(ReplaySettings(**changes), results, Signal(0, 0, nothing, nothing))


CLEAR, UNCLEAR, NONE = [0.02, 0.03] * 20, [0.1, -0.08] * 20, [0.0, 0.0] * 20


@pytest.mark.parametrize(
    ("scan", "chosen"),
    [
        ({256: (NONE, 0.4), 512: (NONE, 0.3), 768: (UNCLEAR, 0.26)}, 512),
        ({256: (NONE, 0.4), 512: (NONE, 0.3), 768: (CLEAR, 0.26)}, 768),
        ({256: (NONE, 0.4), 512: (NONE, 0.3), 768: (CLEAR, 0.24)}, 512),
        ({128: (NONE, 0.4), 256: (NONE, 0.3), 512: (CLEAR, 0.1)}, 256),
        ({128: (CLEAR, 0.4), 256: (NONE, 0.3), 512: (NONE, 0.1)}, 128),
        ({128: (NONE, 0.2), 256: (NONE, 0.15), 512: (NONE, 0.1)}, 128),
    ],
)
def test_the_detect_length_given_stays_unless_another_is_clearly_better(
    scan: dict[int, tuple[list[float], float]], chosen: int
) -> None:
    """κ = ½ can save half of the tokens at most, so a quarter is enough."""
    trials = [trial_of(*values, detect_length=length) for length, values in scan.items()]
    assert choose_detect_length(trials, ReplaySettings(), random_log(60, 8)) == chosen


@pytest.mark.parametrize(
    ("size", "gains", "chosen"),
    [
        (8, {0.25: NONE, 0.5: NONE, 0.75: UNCLEAR}, 0.5),
        (8, {0.25: CLEAR, 0.5: NONE, 0.75: NONE}, 0.25),
        (4, {0.25: CLEAR, 0.5: NONE, 0.75: NONE}, 0.5),
        (3, {0.25: CLEAR, 0.5: CLEAR, 0.75: NONE}, 0.75),
        (2, {0.25: NONE, 0.5: NONE, 0.75: CLEAR}, 0.5),
    ],
)
def test_the_keep_ratio_leaves_two_of_a_group(
    size: int, gains: dict[float, list[float]], chosen: float
) -> None:
    log = log_of(np.repeat(np.arange(3), size), np.full(3 * size, 1000), np.ones(3 * size))
    trials = [trial_of(values, 0.3, keep_ratio=ratio) for ratio, values in gains.items()]
    assert choose_keep_ratio(trials, ReplaySettings(), log) == chosen


def test_the_strength_given_stays_unless_another_is_clearly_better() -> None:
    given = ReplaySettings()
    for values, chosen in ((CLEAR, 1.0), (UNCLEAR, 0.5)):
        trials = [trial_of(NONE, 0.3, strength=0.5), trial_of(values, 0.3, strength=1.0)]
        assert choose_strength(trials, given) == chosen


def test_real_math_rollouts_are_too_short_to_prune_at_512() -> None:
    path = SHARED / "math_rollouts.jsonl"
    if not path.exists():
        pytest.skip("shared/data/math_rollouts.jsonl is not there")
    log = read_rollouts([path])
    given, scan = ReplaySettings(seeds=2), ReplaySettings(seeds=2, detect_length=192)
    assert "Too little is saved" in objections_of(log, seeds=2)
    trials = [
        try_settings(log, chosen, (Preset.BALANCED,), lambda share: None)
        for chosen in (scan, given)
    ]
    assert choose_detect_length(trials, given, log) == 192
    assert trials[0].chosen.mean("tokens_saved") > 0.2
    assert trials[0].signal.overall.low > PruningConfig().guard_auc
