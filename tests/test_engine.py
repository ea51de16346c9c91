"""The event-skipping engine against the step-by-step model, closed forms and worked examples."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_by_step import step_by_step

from arrol.calibration import CalibrationTable, TableKind
from arrol.config import Draw
from arrol.errors import ArrolError
from arrol.plan import PruningPlan
from arrol.records import FinishReason, Mode
from arrol.sim.backend import SimulatedBackend
from arrol.sim.cost import StepTime
from arrol.sim.engine import EngineLimits, SimulatedRequest, simulate
from arrol.survival import FeedbackRule, LineRule

COST = StepTime(
    fixed=3e-3,
    per_sequence=5e-6,
    streaming=9e-4,
    arithmetic=5e-6,
    knee=1.24,
    offset=4e-4,
    kv_read=3e-8,
)
ROOMY = EngineLimits(max_num_seqs=256, max_batched_tokens=8192, kv_tokens=1_000_000)


def request(key=0, group=0, index=0, prompt=10, length=5, score=0.5, size=1, **more):
    return SimulatedRequest(
        key=key,
        group=group,
        index=index,
        group_size=size,
        prompt_tokens=prompt,
        length=length,
        score=score,
        **more,
    )


def plan_of(rule, detect_length, mode=Mode.ON, draw=Draw.BERNOULLI, version=1, min_survivors=0):
    table = CalibrationTable(TableKind.LINEAR, (0.0, 1.0), (0.0, 1.0))
    return PruningPlan(
        version=version,
        head_version=1,
        mode=mode,
        detect_length=detect_length,
        seed=7,
        draw=draw,
        rule=rule,
        calibration=table,
        min_survivors=min_survivors,
    )


NOBODY = LineRule(base=0.0, slope=0.0, centre=0.0, low=0.0, high=1.0)  # p = 0
EVERYBODY = LineRule(base=1.0, slope=0.0, centre=0.0, low=0.0, high=1.0)  # p = 1
STEEP = LineRule(base=0.5, slope=-1.0, centre=0.5, low=0.0, high=1.0)
FEEDBACK = FeedbackRule(
    keep_ratio=0.5,
    early_share=0.1,
    target=0.5,
    strength=0.5,
    mean=0.4,
    variance=0.05,
    low=0.1,
    high=0.9,
    min_survivors=2,
)

# ---------------------------------------------------------------- against the step-by-step model


@st.composite
def workloads(draw):
    """Groups of 1 to 5 in any order; prompts and lengths on the scale of the limits below."""
    requests = []
    for group in range(draw(st.integers(1, 6))):
        size, prompt = draw(st.integers(1, 5)), draw(st.integers(1, 25))
        for index in range(size):
            score = draw(st.sampled_from([0.05, 0.3, 0.5, 0.8, 0.95, math.nan]))
            length = draw(st.integers(1, 30))
            reason = draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
            key = 100 * group + index
            requests.append(
                request(key, group, index, prompt, length, score, size, finish_reason=reason)
            )
    return draw(st.permutations(requests))


limits_of_engines = st.builds(
    EngineLimits,
    max_num_seqs=st.integers(1, 9),
    max_batched_tokens=st.integers(1, 40),
    kv_tokens=st.one_of(st.integers(1, 70), st.integers(71, 400)),
)
plans = st.one_of(
    st.none(),
    st.builds(
        plan_of,
        rule=st.sampled_from([NOBODY, EVERYBODY, STEEP]),
        detect_length=st.integers(1, 12),
        mode=st.sampled_from(Mode),
        draw=st.sampled_from(Draw),
    ),
    st.builds(
        plan_of,
        rule=st.just(FEEDBACK),
        detect_length=st.integers(1, 12),
        draw=st.just(Draw.SYSTEMATIC),
        min_survivors=st.just(2),
    ),
)
seconds = st.floats(0.0, 1e-2, allow_subnormal=False)
costs = st.builds(
    StepTime,
    fixed=st.floats(1e-4, 1e-2),
    per_sequence=seconds,
    streaming=seconds,
    arithmetic=seconds,
    knee=st.floats(1.0, 3.0),
    offset=seconds,
    kv_read=seconds,
)


def naive(requests, limits, cost, plan, engine=0):
    if plan is None or plan.mode is Mode.OFF:
        return step_by_step(requests, limits, cost)
    return step_by_step(requests, limits, cost, plan.decider(engine), plan.detect_length)


def assert_same(run, slow):
    """The run of one engine is what the slow model says, rollout by rollout."""
    assert run.seconds == pytest.approx(slow.seconds, rel=1e-9)
    assert sorted(r.key for r in run.rollouts) == sorted(slow.finished)
    for rollout, finish in zip(run.rollouts, run.finish_seconds_N, strict=True):
        slow_finish, tokens, reason, detection = slow.finished[rollout.key]
        assert finish == pytest.approx(slow_finish, rel=1e-9)
        assert (rollout.tokens, rollout.finish_reason.value) == (tokens, reason)
        assert repr(rollout.detection) == repr(detection)  # repr: NaN equals NaN, to the last bit
    for count in (
        "steps",
        "decode_tokens",
        "prefills",
        "prefill_tokens",
        "recomputed_tokens",
        "preemptions",
    ):
        assert getattr(run, count) == slow.counts[count], count


@settings(max_examples=1000, deadline=None)
@given(workloads(), limits_of_engines, costs, plans)
def test_jumps_equal_the_step_by_step_model(requests, limits, cost, plan):
    run = simulate(requests, limits, cost, plan)
    slow = naive(requests, limits, cost, plan)
    assert_same(run, slow)
    tokens = sum(rollout.tokens for rollout in run.rollouts)
    assert tokens + slow.counts["sentinels"] == run.sampled_tokens


@settings(max_examples=100, deadline=None)
@given(workloads(), limits_of_engines, costs, plans, st.integers(1, 4))
def test_several_engines_are_independent_and_get_whole_groups(requests, limits, cost, plan, n):
    run = simulate(requests, limits, cost, plan, engines=n)
    groups = list(dict.fromkeys(r.group for r in requests))
    shares = [[r for r in requests if groups.index(r.group) % n == i] for i in range(n)]
    slow = [naive(share, limits, cost, plan, i) for i, share in enumerate(shares)]
    assert run.engine_seconds == pytest.approx([one.seconds for one in slow], rel=1e-9)
    assert run.seconds == max(run.engine_seconds)
    finished = {key: entry for one in slow for key, entry in one.finished.items()}
    assert sorted(r.key for r in run.rollouts) == sorted(finished)
    for rollout in run.rollouts:
        assert repr(rollout.detection) == repr(finished[rollout.key][3])


@settings(max_examples=100, deadline=None)
@given(workloads(), limits_of_engines, plans, st.integers(1, 20))
def test_a_cap_on_jumps_changes_nothing(requests, limits, plan, max_jump):
    free = simulate(requests, limits, COST, plan)
    capped = simulate(requests, limits, COST, plan, max_jump=max_jump)
    assert repr(capped.rollouts) == repr(free.rollouts)
    assert capped.finish_seconds_N == pytest.approx(free.finish_seconds_N, rel=1e-9)
    assert (capped.steps, capped.preemptions) == (free.steps, free.preemptions)


@settings(max_examples=100, deadline=None)
@given(workloads(), limits_of_engines, plans)
def test_the_timeline_is_what_each_step_holds(requests, limits, plan):
    run = simulate(requests, limits, COST, plan, max_jump=1)
    slow = naive(requests, limits, COST, plan)
    states = [*slow.states, (slow.seconds, 0, 0)]
    times, running, kv_tokens = zip(*states, strict=True)
    timeline = run.timelines[0]
    assert timeline.seconds_M == pytest.approx(times, rel=1e-9)
    assert timeline.running_M.tolist() == list(running)
    assert timeline.kv_tokens_M.tolist() == list(kv_tokens)
    assert max(kv_tokens) <= limits.kv_tokens


# ---------------------------------------------------------------- closed forms


def test_one_request_costs_its_prefill_and_one_step_for_each_further_token():
    run = simulate([request(prompt=100, length=1000)], ROOMY, COST)
    decode = [COST.step(1, 100 + g) for g in range(1, 1000)]
    assert run.seconds == pytest.approx(COST.step(0, 0, 100) + math.fsum(decode), rel=1e-12)
    assert (run.steps, run.decode_tokens, run.prefills, run.prefill_tokens) == (1000, 999, 1, 100)
    assert len(run.timelines[0].seconds_M) == 3  # prefill, one jump over 999 steps, the end


def test_a_group_computes_its_prompt_once():
    group = [request(i, 0, i, prompt=100, length=8, size=4) for i in range(4)]
    run = simulate(group, ROOMY, COST)
    assert run.prefill_tokens == 100 + 3
    first = COST.step(0, 0, 103)
    rest = [COST.step(4, 4 * (100 + g)) for g in range(1, 8)]
    assert run.seconds == pytest.approx(first + math.fsum(rest), rel=1e-12)
    assert run.timelines[0].kv_tokens_M.tolist() == [100, 100, 0]


def test_a_long_prompt_is_prefilled_in_chunks():
    run = simulate([request(prompt=100, length=1)], replace(ROOMY, max_batched_tokens=32), COST)
    chunks = [COST.step(0, 0, tokens) for tokens in (32, 32, 32, 4)]
    assert run.seconds == pytest.approx(math.fsum(chunks), rel=1e-12)


def test_no_requests_take_no_time():
    run = simulate([], ROOMY, COST, engines=2)
    assert (run.rollouts, run.seconds, run.steps) == ((), 0.0, 0)


def test_the_step_that_samples_the_sentinel_is_paid():
    group = [request(i, 0, i, prompt=10, length=100, size=2) for i in range(2)]
    run = simulate(group, ROOMY, COST, plan_of(NOBODY, detect_length=20))
    assert [r.tokens for r in run.rollouts] == [20, 20]
    assert run.sampled_tokens == 2 * 21
    steps = [COST.step(2, 2 * (10 + g)) for g in range(1, 21)]
    assert run.seconds == pytest.approx(COST.step(0, 0, 11) + math.fsum(steps), rel=1e-12)


# ---------------------------------------------------------------- worked examples


def test_the_newest_is_preempted_and_computed_again():
    """Two prompts of 4 in 12 KV tokens, one second a step.

    Step 1 prefills both (8 stored). Steps 2 and 3 store 10, then 12; both have 3 tokens. In step 4
    two more don't fit: B goes, with 3. A decodes alone: steps 4 and 5 give it 4 and 5 tokens and
    it ends at second 5. Step 6 computes B's 4 + 3 tokens again and samples its 4th, step 7 its
    5th.
    """
    second = StepTime(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    a, b = request(1, 1, prompt=4, length=5), request(2, 2, prompt=4, length=5)
    run = simulate([a, b], EngineLimits(kv_tokens=12), second)
    assert [(r.key, r.tokens) for r in run.rollouts] == [(1, 5), (2, 5)]
    assert run.finish_seconds_N.tolist() == [5.0, 7.0]
    assert (run.preemptions, run.recomputed_tokens, run.prefill_tokens) == (1, 7, 15)


def test_a_request_that_outgrows_the_cache_alone_fails_with_what_it_has():
    """Prompt 4 in 10 KV tokens: a decoder with g tokens stores g − 1, so the 7th is the last."""
    run = simulate([request(prompt=4, length=50)], EngineLimits(kv_tokens=10), COST)
    (rollout,) = run.rollouts
    assert (rollout.finish_reason, rollout.tokens) == (FinishReason.FAILED, 7)
    assert run.sampled_tokens == 7


def test_a_request_that_can_never_fit_fails_and_lets_the_next_one_in():
    requests = [request(1, 1, prompt=10), request(2, 2, prompt=9, length=1)]
    run = simulate(requests, EngineLimits(kv_tokens=10), COST)
    assert {r.key: r.finish_reason.value for r in run.rollouts} == {1: "failed", 2: "stop"}
    assert run.finish_seconds_N[0] == 0.0


def test_rollouts_of_one_step_are_decided_in_order_of_group_and_index():
    group = [request(i, 9, i, length=30, size=6) for i in reversed(range(6))]
    run = simulate(group, ROOMY, COST, plan_of(FEEDBACK, 10, draw=Draw.SYSTEMATIC))
    ranks = {r.index: r.detection.rank for r in run.rollouts}
    assert ranks == {i: i for i in range(6)}


@pytest.mark.parametrize(("length", "decided"), [(9, False), (10, False), (11, True), (12, True)])
def test_only_what_goes_on_after_the_detection_length_is_decided(length, decided):
    (rollout,) = simulate([request(length=length)], ROOMY, COST, plan_of(EVERYBODY, 10)).rollouts
    assert (rollout.detection is not None) == decided
    assert rollout.tokens == length


def test_pruning_an_end_at_the_sentinel():
    """length = detect_length + 1: its last token is the sentinel, so pruned it has one less."""
    (rollout,) = simulate([request(length=11)], ROOMY, COST, plan_of(NOBODY, 10)).rollouts
    assert (rollout.tokens, rollout.finish_reason) == (10, FinishReason.PRUNED)


def test_the_clock_of_a_backend_runs_on_from_batch_to_batch():
    second = StepTime(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    backend = SimulatedBackend(ROOMY, second)
    assert (backend.seconds, backend.last_run) == (0.0, None)
    backend.generate([request(length=5)])
    backend.generate([request(length=7)])
    assert (backend.seconds, backend.last_run.seconds) == (12.0, 7.0)


# ---------------------------------------------------------------- mistakes


def test_a_key_that_comes_twice_is_refused():
    with pytest.raises(ArrolError, match="key 3 comes twice"):
        simulate([request(3, 1), request(3, 2)], ROOMY, COST)


def test_prompts_that_differ_within_a_group_are_refused():
    with pytest.raises(ArrolError, match="prompt_tokens is 7 in group 1; allowed is 10"):
        simulate([request(1, 1), request(2, 1, prompt=7)], ROOMY, COST)


@pytest.mark.parametrize("field", ["prompt", "length"])
def test_a_request_without_tokens_is_refused(field):
    with pytest.raises(ArrolError, match=field):
        request(**{field: 0})


@pytest.mark.parametrize("field", ["max_num_seqs", "max_batched_tokens", "kv_tokens"])
def test_limits_below_one_are_refused(field):
    with pytest.raises(ArrolError, match=f"{field} is 0"):
        replace(ROOMY, **{field: 0})


@pytest.mark.parametrize("argument", ["engines", "max_jump"])
def test_arguments_below_one_are_refused(argument):
    with pytest.raises(ArrolError, match=f"{argument} is 0"):
        simulate([], ROOMY, COST, **{argument: 0})
