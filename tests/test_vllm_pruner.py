"""The decision function, its records and their transport, without an engine."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed (the extra head)")

import torch
from hypothesis import given
from hypothesis import strategies as st

from arrol.adapters.vllm.pruner import BLOCK, Pruner, Record, pack, unpack
from arrol.adapters.vllm.request import PruningArgs, check_sampling, group_requests, with_pruning
from arrol.calibration import CalibrationTable, TableKind
from arrol.config import Draw
from arrol.head import QualityHead
from arrol.keys import stable_key
from arrol.plan import PruningPlan
from arrol.records import DecisionReason, Mode, Request
from arrol.survival import FeedbackRule, LineRule

HIDDEN = 12
FEEDBACK = FeedbackRule(
    keep_ratio=0.5, early_share=0.0, target=0.5, strength=0.5, mean=0.5, variance=0.05, low=0.1,
    high=0.9, min_survivors=1,
)  # fmt: skip
RULES = {
    "line": {"rule": LineRule(0.5, -3.0, 0.5, 0.1, 0.9), "draw": Draw.BERNOULLI},
    "feedback": {"rule": FEEDBACK, "draw": Draw.SYSTEMATIC, "min_survivors": 1},
}


def plan_of(kind="line", **changes):
    plan = PruningPlan(
        version=4, head_version=1, mode=Mode.ON, detect_length=8, seed=3, draw=Draw.BERNOULLI,
        rule=RULES["line"]["rule"],
        calibration=CalibrationTable(TableKind.LINEAR, (0.0, 1.0), (0.0, 1.0)),
    )  # fmt: skip
    return replace(plan, **{**RULES[kind], **changes})


def pruner_of(plan, head_version=1):
    pruner = Pruner()
    head = QualityHead(HIDDEN, seed=2)
    head.version = head_version
    pruner.load_head(head)
    pruner.load_plan(plan)
    return pruner


def requests_of(groups, size):
    return [
        Request(stable_key(g, i), stable_key(g), i, size)
        for g in range(groups)
        for i in range(size)
    ]


def hidden_of(rows, seed=0):
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("kind", RULES)
@given(data=st.data())
def test_decisions_are_those_of_the_plan_on_the_heads_scores(kind, data):
    """In whatever steps the rollouts arrive: within a step by index, groups from their start."""
    plan, requests = plan_of(kind), requests_of(4, 5)
    hidden = hidden_of(len(requests))
    order = data.draw(st.permutations(range(len(requests))))
    pruner = pruner_of(plan)
    scores = pruner.head.scores(hidden)
    decider = plan.decider()
    start = 0
    while start < len(order):
        step = order[start : start + data.draw(st.integers(1, 7))]
        start += len(step)
        ends = pruner.decide([requests[i] for i in step], hidden[step])
        by_index = sorted(step, key=lambda i: (requests[i].group, requests[i].index))
        expected = {i: decider.decide_one(requests[i], float(scores[i])) for i in by_index}
        assert ends == [expected[i].pruned for i in step]
    found = [record.detection for record in pruner.take()]
    assert plan.replay(found) == found
    assert pruner.decided == len(requests)
    assert pruner.pruned == sum(d.pruned for d in found)


@given(rows=st.integers(1, 3 * BLOCK), data=st.data())
def test_a_score_does_not_depend_on_the_other_rows(rows, data):
    """To the last bit: or bernoulli decisions would depend on the batch."""
    place = data.draw(st.integers(0, rows - 1))
    pruner = pruner_of(plan_of())
    requests = requests_of(1, rows)
    hidden = hidden_of(rows, seed=rows)
    pruner.decide(requests, hidden)
    together = {r.detection.key: r.detection.score for r in pruner.take()}
    alone = pruner_of(plan_of())
    alone.decide([requests[place]], hidden[place : place + 1])
    (record,) = alone.take()
    assert record.detection.score == together[record.detection.key]


def test_a_preempted_request_is_decided_once_and_alike():
    plan, requests = plan_of("feedback"), requests_of(1, 6)
    hidden = hidden_of(6)
    pruner = pruner_of(plan)
    first = pruner.decide(requests[:3], hidden[:3])
    assert pruner.decide(requests[:3], hidden_of(3, seed=9)) == first  # before it was fetched
    before = {r.detection.key: r.detection for r in pruner.take()}
    assert pruner.decide(requests[:3], hidden[:3]) == first  # and after
    pruner.decide(requests[3:], hidden[3:])
    after = {r.detection.key: r.detection for r in pruner.take()}
    assert {key: after[key] for key in before} == before
    assert sorted(d.rank for d in after.values()) == list(range(6))
    assert pruner.decided == 6


def test_a_new_plan_starts_afresh():
    pruner, requests = pruner_of(plan_of("feedback")), requests_of(1, 4)
    pruner.decide(requests, hidden_of(4))
    pruner.load_plan(plan_of("feedback", version=5))
    pruner.decide(requests, hidden_of(4))
    found = [r.detection for r in pruner.take()]
    assert [d.version for d in found] == [5] * 4
    assert sorted(d.rank for d in found) == [0, 1, 2, 3]


def test_records_are_handed_over_once():
    pruner, requests = pruner_of(plan_of()), requests_of(2, 3)
    pruner.decide(requests, hidden_of(6))
    some = pruner.take([requests[1].key, 12345, requests[4].key])
    assert [r.detection.key for r in some] == [requests[1].key, requests[4].key]
    assert len(pruner.take()) == 4
    assert pruner.take() == []


def test_what_can_not_be_scored_is_kept():
    hidden = hidden_of(4)
    hidden[1, 3] = math.nan
    pruner = pruner_of(plan_of(rule=LineRule(0.0, 0.0, 0.0, 0.0, 0.0)))
    assert pruner.decide(requests_of(1, 4), hidden) == [True, False, True, True]
    reasons = [r.detection.reason for r in pruner.take()]
    assert reasons.count(DecisionReason.BAD_SCORE) == 1


@pytest.mark.parametrize(
    ("head_version", "reason"), [(2, DecisionReason.OLD_HEAD), (None, DecisionReason.NO_HEAD)]
)
def test_a_wrong_head_keeps_all(head_version, reason):
    pruner = pruner_of(plan_of(rule=LineRule(0.0, 0.0, 0.0, 0.0, 0.0)))
    if head_version is None:
        pruner.load_head(None)
    else:
        pruner.head.version = head_version
        pruner.load_head(pruner.head)
    assert pruner.decide(requests_of(1, 3), hidden_of(3)) == [False] * 3
    assert {r.detection.reason for r in pruner.take()} == {reason}


def test_without_a_plan_or_in_mode_off_nothing_is_decided():
    for plan in (None, plan_of(mode=Mode.OFF)):
        pruner = pruner_of(plan)
        assert not pruner.active
        assert pruner.decide(requests_of(1, 3), hidden_of(3)) == [False] * 3
        assert pruner.take() == []


def test_hidden_states_are_kept_only_if_wanted():
    pruner = pruner_of(plan_of())
    pruner.load_plan(plan_of(), keep_hidden=False)
    pruner.decide(requests_of(1, 3), hidden_of(3))
    assert all(record.hidden is None for record in pruner.take())


@given(st.lists(st.booleans(), max_size=12), st.integers(0, 2**32))
def test_packing_keeps_every_bit(flags, seed):
    rng = np.random.default_rng(seed)
    pruner = pruner_of(plan_of("feedback"))
    requests = requests_of(1, max(len(flags), 1))[: len(flags)]
    if requests:
        pruner.decide(requests, hidden_of(len(requests), seed=seed))
    records = [
        Record(r.detection, rng.standard_normal(5).astype(np.float16) if flag else None)
        for r, flag in zip(pruner.take(), flags, strict=True)
    ]
    packed = json.loads(json.dumps(pack(records)))  # as HTTP would carry it
    for old, new in zip(records, unpack(packed), strict=True):
        assert repr(old.detection) == repr(new.detection)
        assert (old.hidden is None) == (new.hidden is None)
        if old.hidden is not None:
            np.testing.assert_array_equal(old.hidden, new.hidden)


class Sampling:
    """The fields of vLLM's ``SamplingParams`` that the adapter reads."""

    def __init__(self, **changes):
        self.extra_args, self.stop_token_ids, self._all_stop_token_ids = None, None, set()
        self.structured_outputs = self.prompt_logprobs = self.thinking_token_budget = None
        self.include_stop_str_in_output, self.min_tokens, self.n, self.seed = False, 0, 1, None
        self.__dict__.update(changes)


def test_pruning_arguments_leave_the_users_parameters_alone():
    args = PruningArgs((5, 6), 7, 2, 16, 512, 99)
    given_ = Sampling(stop_token_ids=[3], extra_args={"mine": 1}, n=2)
    changed = with_pruning(given_, args, seed=4)
    assert (given_.stop_token_ids, given_.extra_args) == ([3], {"mine": 1})
    assert (changed.stop_token_ids, changed.seed) == ([3, 99], 4)
    assert changed._all_stop_token_ids == {99}
    assert check_sampling(changed) == args
    assert args.child(1) == Request(6, 7, 3, 16)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"keys": []}', "3", '{"keys": [1], "group": 1, "index": 0, "group_size": 0, '
     '"detect_length": 4, "sentinel": 3}', '{"keys": [-1], "group": 1, "index": 0, '
     '"group_size": 1, "detect_length": 4, "sentinel": 3}'],
)  # fmt: skip
def test_damaged_arguments_are_refused(text):
    with pytest.raises(ValueError, match="arrol is"):
        check_sampling(Sampling(extra_args={"arrol": text}))


def test_requests_without_arguments_are_left_alone():
    assert check_sampling(Sampling(min_tokens=4000, prompt_logprobs=1)) is None


def test_groups_have_keys_of_their_own():
    requests = group_requests(["a", (1, 2)], 3, None, name="step 4")
    assert len({r.key for r in requests}) == 6
    assert [r.index for r in requests] == [0, 1, 2] * 2
    assert requests[3].prompt == (1, 2)
    again = group_requests(["b", "c"], 3, None, name="step 5")
    assert not {r.key for r in requests} & {r.key for r in again}
