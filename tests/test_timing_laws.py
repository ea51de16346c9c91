"""Laws of the timed engine that the studies rest on: work, its bounds, jumps, conservation."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrol.bounds import speedup_bounds
from arrol.calibration import CalibrationTable, TableKind
from arrol.config import Draw
from arrol.plan import PruningPlan
from arrol.records import FinishReason, Mode
from arrol.sim.cost import StepTime
from arrol.sim.engine import EngineLimits, SimulatedRequest, simulate
from arrol.sim.settings import SimSettings
from arrol.sim.studies import engine_checks
from arrol.sim.studies.runs import Played, Work, batches, kept_share, kv_reads, play
from arrol.survival import random_rule

SMALL = SimSettings(
    prompts=4, group_size=4, mean_length=300, max_length=1000, detect_length=64, seeds=2
)


def ignore(share: float) -> None:
    assert 0.0 <= share <= 1.0


def keep_at_random(share: float, detect_length: int = 8) -> PruningPlan:
    """Every rollout survives with this probability; nested in the share, key by key."""
    return PruningPlan(
        version=1,
        head_version=1,
        mode=Mode.ON,
        detect_length=detect_length,
        seed=0,
        draw=Draw.BERNOULLI,
        rule=random_rule(share, 0.0, 1.0),
        calibration=CalibrationTable(TableKind.STEP, (), (0.5,)),
    )


costs = st.builds(
    StepTime,
    fixed=st.floats(1e-4, 1e-2),
    per_sequence=st.floats(0.0, 1e-4),
    streaming=st.floats(0.0, 1e-2),
    arithmetic=st.floats(0.0, 1e-4),
    knee=st.floats(1.0, 3.0),
    offset=st.floats(0.0, 1e-3),
    kv_read=st.floats(0.0, 1e-6),
)


@st.composite
def request_lists(draw):
    """A few groups of requests, some longer than the detection length."""
    groups = draw(st.integers(1, 4))
    size = draw(st.integers(1, 4))
    prompt = draw(st.integers(1, 20))
    lengths = draw(st.lists(st.integers(1, 60), min_size=groups * size, max_size=groups * size))
    return [
        SimulatedRequest(row, row // size, row % size, size, prompt, length, 0.5)
        for row, length in enumerate(lengths)
    ]


def run_traced(requests, limits, cost, plan=None) -> Played:
    trace = []
    run = simulate(requests, limits, cost, plan, trace=trace)
    return Played(run, Work.of(run, trace, cost))


@given(request_lists(), costs, st.floats(0.0, 1.0))
def test_kv_reads_without_preemption_have_a_closed_form(requests, cost, share):
    limits, trace = EngineLimits(max_num_seqs=3, kv_tokens=100_000), []
    run = simulate(requests, limits, cost, keep_at_random(share), trace=trace)
    expected = 0
    for rollout in run.rollouts:
        sampled = rollout.tokens + (rollout.finish_reason is FinishReason.PRUNED)
        expected += sum(requests[0].prompt_tokens + g for g in range(1, sampled))
    assert kv_reads(trace) == expected


@given(request_lists(), costs, st.floats(0.0, 1.0), st.integers(70, 200))
def test_kv_reads_are_what_an_engine_pays_for_at_unit_price(requests, cost, share, kv_tokens):
    limits, plan, trace = EngineLimits(kv_tokens=kv_tokens), keep_at_random(share), []
    simulate(requests, limits, cost, plan, trace=trace)
    price = StepTime(0.0, 0.0, 0.0, 0.0, 1.0, 0.0, kv_read=1.0)
    assert simulate(requests, limits, price, plan).seconds == kv_reads(trace)


@given(request_lists(), costs, st.floats(0.0, 1.0), st.integers(70, 400), st.integers(1, 20))
def test_the_speedup_lies_between_the_ratios_of_work(requests, cost, share, kv_tokens, slots):
    limits = EngineLimits(max_num_seqs=slots, kv_tokens=kv_tokens)
    off = run_traced(requests, limits, cost)
    on = run_traced(requests, limits, cost, keep_at_random(share))
    ratios = off.work.ratios_to(on.work)
    low, high = speedup_bounds(ratios, [1.0] * len(ratios))
    assert low * (1 - 1e-6) <= off.seconds / on.seconds <= high * (1 + 1e-6)


def test_neither_tokens_nor_kv_reads_bound_the_speedup():
    """One rollout of 4,000 tokens among 200 of 100: pruned at 200, the tail of steps is gone."""
    lengths = [100] * 200 + [4000]
    requests = [
        SimulatedRequest(row, row, 0, 1, 1, length, 0.5) for row, length in enumerate(lengths)
    ]
    limits = EngineLimits(max_num_seqs=1024, kv_tokens=10**6)
    cost = StepTime(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    off = run_traced(requests, limits, cost)
    on = run_traced(requests, limits, cost, keep_at_random(0.0, detect_length=200))
    speedup = off.seconds / on.seconds
    # Every prefill fits into the first step, which samples a first token.
    assert (off.seconds, on.seconds) == (4000, 201)
    tokens = Fraction(sum(lengths), 100 * 200 + 201)
    assert off.run.sampled_tokens / on.run.sampled_tokens == pytest.approx(float(tokens))
    assert speedup > 8 * tokens
    assert speedup > 2 * off.work.kv_reads / on.work.kv_reads
    assert speedup == off.work.ratios_to(on.work)[0]


@given(request_lists(), costs, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_where_all_run_at_once_keeping_fewer_is_never_slower(requests, cost, first, second):
    low, high = sorted((first, second))
    limits = EngineLimits(kv_tokens=100_000)
    fewer, more = (simulate(requests, limits, cost, keep_at_random(s)) for s in (low, high))
    assert kept_share(fewer) <= kept_share(more)
    assert fewer.seconds <= more.seconds * (1 + 1e-12)
    assert more.seconds <= simulate(requests, limits, cost).seconds * (1 + 1e-12)


def test_the_engines_checks_pass():
    study = engine_checks.study(SimSettings(), ignore)
    assert len(study.checks) == 6
    assert [check.name for check in study.checks if not check.passed] == []


def test_the_conservation_check_sees_what_is_lost():
    (batch,) = batches(SMALL, 1)
    run = play(SMALL, batch).run
    assert engine_checks.lost_rollouts(batch, run) == 0
    assert engine_checks.surplus_tokens(batch, run) == 0
    without = replace(run, rollouts=run.rollouts[1:])
    assert engine_checks.lost_rollouts(batch, without) == 1
    assert engine_checks.surplus_tokens(batch, without) == run.rollouts[0].tokens
    twice = replace(run, rollouts=(*run.rollouts, run.rollouts[0]))
    assert engine_checks.lost_rollouts(batch, twice) == 1


@settings(max_examples=10)
@given(st.integers(0, 100), st.sampled_from([1_300, 2_000, None]), st.integers(1, 16))
def test_jumps_and_single_steps_end_at_the_same_times(seed, kv_tokens, slots):
    setting = SMALL.replace(seed=seed, kv_tokens=kv_tokens, max_num_seqs=slots)
    assert engine_checks.jump_difference(setting) <= 1e-9
