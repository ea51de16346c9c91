"""What every backend promises, stated over all of them (see ``arrol.backend.Backend``).

To add a backend, write a harness with its name, ``backend`` and ``requests``, and put it into
``HARNESSES``; no test changes.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrol.backend import Backend
from arrol.calibration import CalibrationTable, TableKind
from arrol.config import Draw
from arrol.keys import stable_key
from arrol.plan import PruningPlan
from arrol.records import DecisionReason, FinishReason, Mode, Request
from arrol.sim.backend import SimulatedBackend
from arrol.sim.cost import StepTime
from arrol.sim.engine import EngineLimits, SimulatedRequest
from arrol.survival import FeedbackRule, LineRule

L_DETECT = 8


class Harness(Protocol):
    """How the tests get a backend and make it generate what they want."""

    name: str

    def backend(self, engine: int = 0) -> Backend[Any]:
        """A fresh backend; ``engine`` numbers it where several carry out one plan."""
        ...

    def requests(
        self, lengths: Sequence[Sequence[int]], scores: Sequence[Sequence[float]] | None = None
    ) -> list[Request]:
        """Groups × rollouts that generate so many tokens unpruned and get such scores (.5)."""
        ...


@dataclass(frozen=True)
class SimulatedHarness:
    """Simulated engines; the tight ones preempt and prefill in chunks."""

    name: str
    limits: EngineLimits
    engines: int = 1

    def backend(self, engine: int = 0) -> SimulatedBackend:
        cost = StepTime(3e-3, 5e-6, 9e-4, 5e-6, 1.24, 4e-4, 3e-8)
        return SimulatedBackend(self.limits, cost, self.engines, engine * self.engines)

    def requests(
        self, lengths: Sequence[Sequence[int]], scores: Sequence[Sequence[float]] | None = None
    ) -> list[SimulatedRequest]:
        return [
            SimulatedRequest(
                key=stable_key("prompt", group, index),
                group=stable_key("prompt", group),
                index=index,
                group_size=len(row),
                prompt_tokens=5 + group,
                length=length,
                score=0.5 if scores is None else scores[group][index],
            )
            for group, row in enumerate(lengths)
            for index, length in enumerate(row)
        ]


HARNESSES: list[Harness] = [
    SimulatedHarness("one engine", EngineLimits(kv_tokens=100_000)),
    SimulatedHarness("three engines", EngineLimits(kv_tokens=100_000), engines=3),
    SimulatedHarness("tight engine", EngineLimits(3, 7, kv_tokens=60)),
]
if importlib.util.find_spec("vllm"):
    from vllm_harness import HARNESSES as VLLM_HARNESSES

    HARNESSES += VLLM_HARNESSES


@pytest.fixture(params=HARNESSES, ids=lambda harness: harness.name, scope="module")
def harness(request) -> Harness:
    return request.param


def plan_of(**changes) -> PruningPlan:
    """Independent draws with p = 1/2 whatever the score, in mode on."""
    plan = PruningPlan(
        version=3,
        head_version=1,
        mode=Mode.ON,
        detect_length=L_DETECT,
        seed=11,
        draw=Draw.BERNOULLI,
        rule=LineRule(base=0.5, slope=0.0, centre=0.0, low=0.1, high=0.9),
        calibration=CalibrationTable(TableKind.LINEAR, (0.0, 1.0), (0.0, 1.0)),
    )
    return replace(plan, **changes)


PRUNE_ALL = LineRule(base=0.0, slope=0.0, centre=0.0, low=0.0, high=0.0)
FEEDBACK = FeedbackRule(
    keep_ratio=0.5,
    early_share=0.0,
    target=0.5,
    strength=0.5,
    mean=0.4,
    variance=0.05,
    low=0.1,
    high=0.9,
    min_survivors=2,
)
BALANCED = {"rule": FEEDBACK, "draw": Draw.SYSTEMATIC, "min_survivors": 2}

lengths = st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=8), min_size=1, max_size=6)
scores = st.one_of(st.floats(0.0, 1.0), st.just(math.nan))
plans = st.builds(
    lambda mode, rule: plan_of(mode=mode, **rule),
    st.sampled_from(Mode),
    st.sampled_from([{}, BALANCED, {"rule": PRUNE_ALL}, {"calibration": None}]),
)


@st.composite
def batches(draw):
    rows = draw(lengths)
    return rows, [[draw(scores) for _ in row] for row in rows]


def generate(backend, requests, plan=None):
    """The rollouts by key, after checking that each key came back once."""
    if plan is not None:
        backend.load_plan(plan)
    rollouts = backend.generate(requests)
    assert Counter(r.key for r in rollouts) == Counter(r.key for r in requests)
    return {rollout.key: rollout for rollout in rollouts}


def test_it_is_a_backend(harness):
    assert isinstance(harness.backend(), Backend)


@settings(max_examples=60, deadline=None)
@given(batch=batches(), plan=st.one_of(st.none(), plans))
def test_the_whole_contract(harness, batch, plan):
    """Every clause at once, over ragged groups, missing scores and all modes."""
    rows, row_scores = batch
    requests = harness.requests(rows, row_scores)
    rollouts = generate(harness.backend(), requests, plan)
    wanted = [length for row in rows for length in row]
    for request, length in zip(requests, wanted, strict=True):
        rollout = rollouts[request.key]
        assert (rollout.group, rollout.index) == (request.group, request.index)
        decides = plan is not None and plan.mode is not Mode.OFF and length > L_DETECT
        assert (rollout.detection is not None) == decides
        if decides and plan.mode is Mode.ON and not rollout.detection.keep:
            assert (rollout.finish_reason, rollout.tokens) == (FinishReason.PRUNED, L_DETECT)
        else:
            assert (rollout.finish_reason, rollout.tokens) == (FinishReason.STOP, length)
    detections = [r.detection for r in rollouts.values() if r.detection]
    assert all(d.version == plan.version for d in detections)
    assert all(d.enforced == (plan.mode is Mode.ON) for d in detections)
    if detections:
        assert repr(plan.replay(detections)) == repr(detections)  # repr: NaN equals NaN


def test_nothing_is_scored_without_a_plan(harness):
    rollouts = generate(harness.backend(), harness.requests([[20] * 4]))
    assert all(r.detection is None and r.tokens == 20 for r in rollouts.values())


def test_nothing_is_scored_in_mode_off(harness):
    plan = plan_of(mode=Mode.OFF, rule=PRUNE_ALL)
    rollouts = generate(harness.backend(), harness.requests([[20] * 4]), plan)
    assert all(r.detection is None and r.tokens == 20 for r in rollouts.values())


def test_shadow_decides_as_on_does_but_prunes_nothing(harness):
    """Independent draws depend on the key alone, so the decisions must be the same."""
    requests = harness.requests([[20] * 8] * 4)
    on = generate(harness.backend(), requests, plan_of())
    shadow = generate(harness.backend(), requests, plan_of(mode=Mode.SHADOW))
    keeps = [rollout.detection.keep for rollout in on.values()]
    assert 0 < sum(keeps) < len(keeps)
    for key, rollout in shadow.items():
        assert rollout.tokens == 20
        assert rollout.detection == on[key].detection._replace(rank=rollout.detection.rank,
                                            enforced=False)  # fmt: skip


@pytest.mark.parametrize("length", [1, L_DETECT - 1, L_DETECT])
def test_what_ends_by_the_detection_length_is_not_decided(harness, length):
    rollouts = generate(harness.backend(), harness.requests([[length]]), plan_of(rule=PRUNE_ALL))
    (rollout,) = rollouts.values()
    assert (rollout.detection, rollout.tokens) == (None, length)


@pytest.mark.parametrize("length", [L_DETECT + 1, L_DETECT + 2, 25])
def test_what_goes_on_is_pruned_at_exactly_the_detection_length(harness, length):
    rollouts = generate(harness.backend(), harness.requests([[length]]), plan_of(rule=PRUNE_ALL))
    (rollout,) = rollouts.values()
    assert (rollout.finish_reason, rollout.tokens) == (FinishReason.PRUNED, L_DETECT)
    assert rollout.detection.pruned


def test_a_kept_rollout_that_ends_just_after_the_detection_carries_it(harness):
    keep_all = LineRule(base=1.0, slope=0.0, centre=0.0, low=1.0, high=1.0)
    requests = harness.requests([[L_DETECT + 1]])
    (rollout,) = generate(harness.backend(), requests, plan_of(rule=keep_all)).values()
    assert (rollout.finish_reason, rollout.tokens) == (FinishReason.STOP, L_DETECT + 1)
    assert rollout.detection.keep


def test_a_rollout_without_a_score_is_kept(harness):
    requests = harness.requests([[20, 20]], [[math.nan, 0.5]])
    rollouts = generate(harness.backend(), requests, plan_of(rule=PRUNE_ALL))
    lost, scored = (rollouts[request.key] for request in requests)
    assert (lost.tokens, lost.detection.reason) == (20, DecisionReason.BAD_SCORE)
    assert (lost.detection.survival, lost.detection.keep) == (1.0, True)
    assert scored.finish_reason is FinishReason.PRUNED


def test_the_cold_start_keeps_everything_and_records_the_scores(harness):
    requests = harness.requests([[20] * 4], [[0.1, 0.2, 0.3, 0.4]])
    plan = plan_of(rule=PRUNE_ALL, calibration=None)
    rollouts = generate(harness.backend(), requests, plan)
    detections = [rollouts[request.key].detection for request in requests]
    assert [d.score for d in detections] == [0.1, 0.2, 0.3, 0.4]
    assert {(d.keep, d.reason) for d in detections} == {(True, DecisionReason.COLD_START)}


def test_the_plan_last_loaded_is_in_force(harness):
    backend, requests = harness.backend(), harness.requests([[20] * 4])
    for version, mode in ((1, Mode.ON), (2, Mode.SHADOW), (3, Mode.ON)):
        plan = plan_of(version=version, mode=mode, rule=PRUNE_ALL)
        rollouts = generate(backend, requests, plan)
        assert {r.detection.version for r in rollouts.values()} == {version}
        tokens = L_DETECT if mode is Mode.ON else 20
        assert {r.tokens for r in rollouts.values()} == {tokens}


def test_equal_requests_under_an_equal_plan_are_decided_equally(harness):
    requests = harness.requests([[20] * 8] * 4, [[i / 8 for i in range(8)]] * 4)
    plan = plan_of(**BALANCED)
    backend = harness.backend()
    again = PruningPlan.from_json(plan.to_json())
    assert generate(backend, requests, plan) == generate(backend, requests, again)


@settings(max_examples=40, deadline=None)
@given(rows=lengths, data=st.data())
def test_a_group_keeps_its_promised_survivors(harness, rows, data):
    row_scores = [[data.draw(scores) for _ in row] for row in rows]
    requests = harness.requests(rows, row_scores)
    rollouts = generate(harness.backend(), requests, plan_of(**BALANCED))
    survivors = Counter(r.group for r in rollouts.values() if r.survived)
    sizes = Counter(request.group for request in requests)
    assert all(survivors[group] >= min(2, size) for group, size in sizes.items())


def test_a_group_spread_over_engines_is_followed_at_each(harness):
    """Each backend gets half of every group, and keeps Σp of it, rounded down or up."""
    spread = {"rule": replace(FEEDBACK, min_survivors=0), "draw": Draw.SYSTEMATIC}
    plan = plan_of(**spread)
    row = [i / 16 for i in range(16)]
    whole = harness.requests([[20] * 16] * 10, [row] * 10)
    halves = [[replace(r, group_size=8) for r in whole if r.index % 2 == i] for i in range(2)]
    detections = []
    for engine, half in enumerate(halves):
        found = [r.detection for r in generate(harness.backend(engine), half, plan).values()]
        for group in {request.group for request in half}:
            members = [d for d in found if d.group == group]
            assert sorted(d.rank for d in members) == list(range(8))
            budget = sum(d.survival for d in members)
            assert abs(sum(d.keep for d in members) - budget) < 1.0
        detections += found
    assert repr(plan.replay(detections)) == repr(detections)
