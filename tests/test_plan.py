"""Plans: one decision function, whichever way it is asked."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrol.calibration import CalibrationTable, TableKind
from arrol.config import Draw
from arrol.errors import ArrolError
from arrol.keys import stream, uniform
from arrol.plan import PruningPlan
from arrol.records import DecisionReason, Detection, Mode, Request
from arrol.survival import FeedbackRule, LineRule

LINEAR = CalibrationTable(TableKind.LINEAR, (0.05, 0.3, 0.8), (0.02, 0.4, 0.93))
STEP = CalibrationTable(TableKind.STEP, (), (0.1, 0.3, 0.35, 0.9))
FEEDBACK = FeedbackRule(0.5, 0.1, 0.5, 0.5, 0.35, 0.04, 0.1, 0.9, 2)
LINE = LineRule(0.5, -0.5, 0.5, 0.1, 0.9)


def make_plan(rule=FEEDBACK, draw=Draw.SYSTEMATIC, table=LINEAR, survivors=2, **changes):
    values = {"version": 3, "head_version": 5, "mode": Mode.ON, "detect_length": 512, "seed": 7}
    return PruningPlan(
        **{**values, **changes},
        draw=draw,
        rule=rule,
        calibration=table,
        min_survivors=survivors,
    )


PLANS = st.sampled_from(
    [
        make_plan(),
        make_plan(table=STEP),
        make_plan(rule=LINE, survivors=1),
        make_plan(rule=LINE, draw=Draw.BERNOULLI, survivors=0),
        make_plan(rule=FEEDBACK, draw=Draw.BERNOULLI, survivors=0, mode=Mode.SHADOW),
        make_plan(table=None),
    ]
)
SCORES = st.one_of(st.floats(0.0, 1.0), st.sampled_from([math.nan, math.inf, -0.1, 1.5]))


@st.composite
def arrivals(draw):
    """Steps of an engine: in each some rollouts of some groups arrive."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    requests = [
        Request(g * 100 + i, 2**63 + g, i, size)
        for g, size in enumerate(sizes)
        for i in range(size)
    ]
    requests = draw(st.permutations(requests))
    scores = draw(st.lists(SCORES, min_size=len(requests), max_size=len(requests)))
    cuts = sorted(draw(st.lists(st.integers(0, len(requests)), max_size=4)))
    bounds = zip([0, *cuts], [*cuts, len(requests)], strict=True)
    return [list(zip(requests, scores, strict=True))[a:b] for a, b in bounds]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_more_arrivals_than_the_group_size_said_are_decided_alike(size, said, seed):
    scores = np.random.default_rng(seed).random(size)
    for survivors in (0, 2):
        plan = make_plan(survivors=survivors, seed=seed)
        step = [(Request(i, 1, i, said), score) for i, score in enumerate(scores.tolist())]
        decider = plan.decider()
        singles = [decider.decide_one(*arrival) for arrival in step]
        assert all(map(alike, decide_arrays(plan.decider(), step), singles))


def decide_arrays(decider, step):
    decisions = decider.decide(
        [score for _, score in step],
        [request.key for request, _ in step],
        [request.group for request, _ in step],
        [request.index for request, _ in step],
        [request.group_size for request, _ in step],
    )
    return decisions.detections()


def alike(one, other):
    """Equal in every bit; NaN equals NaN."""
    return one.to_dict() == other.to_dict()


@given(PLANS, arrivals())
def test_arrays_and_one_by_one_are_equal_to_the_last_bit(plan, steps):
    singles, arrays = plan.decider(), plan.decider()
    for step in steps:
        by_index = sorted(range(len(step)), key=lambda i: step[i][0].index)
        one_by_one = {i: singles.decide_one(*step[i]) for i in by_index}
        together = decide_arrays(arrays, step)
        assert all(alike(together[i], one_by_one[i]) for i in range(len(step)))


@given(PLANS, arrivals(), st.randoms())
def test_replay_gives_every_decision_again_in_whatever_order_the_records_come(plan, steps, random):
    decider = plan.decider()
    records = [d for step in steps for d in decide_arrays(decider, step)]
    random.shuffle(records)
    assert all(map(alike, plan.replay(records), records))


@given(PLANS, arrivals())
def test_plan_survives_json_to_the_last_bit(plan, steps):
    again = PruningPlan.from_json(plan.to_json())
    assert again == plan
    step = [arrival for part in steps for arrival in part]
    assert all(
        map(alike, decide_arrays(again.decider(), step), decide_arrays(plan.decider(), step))
    )


@given(PLANS, arrivals())
def test_records_survive_json(plan, steps):
    decider = plan.decider()
    for step in steps:
        for record in decide_arrays(decider, step):
            assert alike(Detection.from_dict(record.to_dict()), record)


@given(arrivals())
def test_a_bernoulli_decision_depends_on_its_own_score_and_key_only(steps):
    plan = make_plan(rule=LINE, draw=Draw.BERNOULLI, survivors=0)
    decider = plan.decider()
    for step in steps:
        for (request, score), record in zip(step, decide_arrays(decider, step), strict=True):
            alone = plan.decider(engine=9).decide_one(request, score)
            assert (alone.survival, alone.keep) == (record.survival, record.keep)


@given(arrivals())
def test_survival_depends_on_scores_alone_never_on_draws(steps):
    survivals = []
    for seed in (0, 1, 2):
        decider = make_plan(seed=seed).decider()
        survivals.append([d.survival for step in steps for d in decide_arrays(decider, step)])
    assert survivals[0] == survivals[1] == survivals[2]


@given(st.integers(3, 24), st.integers(0, 2**32), st.floats(0.15, 0.85))
def test_systematic_group_keeps_its_budget_rounded(size, seed, kappa):
    rule = FeedbackRule(kappa, 0.0, 0.5, 0.5, 0.35, 0.04, 0.1, 0.9, 0)
    scores = np.random.default_rng(seed).random(size)
    decisions = make_plan(rule=rule, survivors=0, seed=seed).decide(scores, range(size), [1] * size)
    count = decisions.keeps_N.sum()
    assert math.floor(kappa * size - 1e-9) <= count <= math.ceil(kappa * size + 1e-9)


@given(st.integers(1, 12), st.integers(0, 8), st.integers(0, 2**32))
def test_never_fewer_than_min_survivors(size, survivors, seed):
    rule = FeedbackRule(0.1, 0.0, 0.5, 0.5, 0.35, 0.04, 0.05, 0.5, survivors)
    scores = np.random.default_rng(seed).random(size)
    plan = make_plan(rule=rule, survivors=survivors, seed=seed)
    decisions = plan.decide(scores, range(size), [1] * size)
    assert decisions.keeps_N.sum() >= min(survivors, size)
    # What was kept against the draw says so, and keeps the rule's own p.
    for record in decisions.detections():
        if record.reason is DecisionReason.FORCED:
            assert record.keep
            assert record.survival <= 0.5


def test_group_spread_over_engines_is_within_one_of_its_budget_at_each():
    rule = FeedbackRule(0.5, 0.0, 0.5, 0.5, 0.35, 0.04, 0.1, 0.9, 0)
    scores = np.random.default_rng(0).random(200 * 16)
    for seed in range(3):
        plan = make_plan(rule=rule, survivors=0, seed=seed)
        for engine in (0, 1):
            rows = slice(engine * 8, engine * 8 + 8)
            for g in range(200):
                group = scores[g * 16 : g * 16 + 16][rows]
                decider = plan.decider(engine)
                part = decider.decide(group, range(8), [g] * 8, None, 8)
                assert abs(part.keeps_N.sum() - part.survivals_N.sum()) < 1.0


def test_engines_of_a_spread_group_draw_independently():
    plan = make_plan()
    draws = [uniform(stream(stream(plan.seed, plan.version), engine), 77) for engine in range(4)]
    assert len(set(draws)) == 4


@pytest.mark.parametrize(
    ("plan", "head", "score", "reason"),
    [
        (make_plan(), 0, 0.5, DecisionReason.NO_HEAD),
        (make_plan(), 4, 0.5, DecisionReason.OLD_HEAD),
        (make_plan(table=None), None, 0.5, DecisionReason.COLD_START),
        (make_plan(), None, math.nan, DecisionReason.BAD_SCORE),
        (make_plan(), None, None, DecisionReason.BAD_SCORE),
        (make_plan(survivors=8), None, 0.5, DecisionReason.SMALL_GROUP),
    ],
)
def test_whatever_is_missing_keeps_and_says_why(plan, head, score, reason):
    decider = plan.decider(head_version=head)
    records = [decider.decide_one(Request(i, 1, i, 8), score) for i in range(8)]
    assert all(d.keep and d.survival == 1.0 and d.reason is reason for d in records)
    assert all(map(alike, plan.replay(records), records))


def test_head_that_arrives_late_is_used_from_then_on():
    plan = make_plan()
    decider = plan.decider(head_version=0)
    first = decider.decide_one(Request(1, 1, 0, 8), 0.5)
    decider.hold_head(5)
    second = decider.decide_one(Request(2, 1, 1, 8), 0.5)
    assert (first.reason, second.reason) == (DecisionReason.NO_HEAD, DecisionReason.DRAW)
    assert all(map(alike, plan.replay([first, second]), [first, second]))


def test_shadow_records_without_enforcing():
    scores = np.linspace(0, 1, 16)
    on = make_plan().decide(scores, range(16), [1] * 16)
    shadow = make_plan(mode=Mode.SHADOW).decide(scores, range(16), [1] * 16)
    assert on.keeps_N.tolist() == shadow.keeps_N.tolist()
    assert any(d.pruned for d in on.detections())
    assert not any(d.pruned for d in shadow.detections())
    assert set(shadow.inclusion_N) == {1.0}


def test_no_rollouts_no_decisions():
    assert len(make_plan().decide([], [], [])) == 0


def damaged_plans():
    good = make_plan().to_json()
    yield from (good[:cut] for cut in range(0, len(good) - 1, 41))
    yield from ("[]", "3", "null", good.replace("FeedbackRule", "Rule"), good[:-1] + ', "x": 1}')
    for name, wrong in [("version", '"v"'), ("mode", '"o"'), ("seed", "-1"), ("rule", "{}")]:
        values = json.loads(good)
        values[name] = json.loads(wrong)
        yield json.dumps(values)


@pytest.mark.parametrize("text", list(damaged_plans()))
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(ArrolError):
        PruningPlan.from_json(text)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (([0.5], [1, 2], [1, 1]), "keys has 2 rows"),
        (([0.5, 0.5], [1, 2], [1]), "groups has 1 rows"),
        (([0.5], [1], [1], [0, 1]), "indices has 2 rows"),
        (([0.5], [1], [1], [0], 0), "group_size is 0"),
        (([[0.5]], [1], [1]), "scores has shape"),
    ],
)
def test_columns_that_do_not_fit_are_named(columns, named):
    with pytest.raises(ArrolError, match=named):
        make_plan().decide(*columns)


def test_group_size_below_one_is_refused_one_by_one_too():
    with pytest.raises(ArrolError, match="group_size is 0; allowed is an integer of at least 1"):
        make_plan().decider().decide_one(Request(1, 1, 0, 0), 0.5)
