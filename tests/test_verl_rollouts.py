"""Rows and records become rollouts, outcomes and verdicts; advantages beside verl's own."""

from __future__ import annotations

import math
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from arrol import AdvantageKind, DecisionReason, Detection, FinishReason, advantages, stable_key
from arrol.adapters.verl.rollouts import (
    Leftovers,
    Row,
    as_rollouts,
    group_key,
    lone,
    loss_counts,
    outcome,
    rollout_key,
    verdicts,
)
from arrol.config import PruningConfig
from arrol.controller import PruningController
from arrol.errors import ArrolError
from arrol.groups import SignalLoss

L = 8  #: detection length
VERSION = 5
FEW, RIGHT, WRONG = SignalLoss.TOO_FEW_SURVIVORS, SignalLoss.ALL_RIGHT, SignalLoss.ALL_WRONG


def row(uid="p1", session=0, finish="stop", tokens=L + 5, right=1.0, reward=None):
    pruned = finish == "pruned"
    right = right if finish in ("stop", "length") else None
    reward = (right or 0.0) if reward is None else reward
    return Row(f"{uid}_{session}_0", uid, session, tokens, pruned, finish, right, reward)


def record(uid="p1", session=0, keep=True, version=VERSION, enforced=True):
    detection = Detection(
        rollout_key(uid, session), group_key(uid), session, 4, 0, 0.5, 0.5, 0.25, keep,
        DecisionReason.DRAW, version, enforced,
    )  # fmt: skip
    return SimpleNamespace(detection=detection, hidden=None)


def joined(rows, records, expected=None, version=VERSION):
    expected = {"p1": len(rows)} if expected is None else expected
    return as_rollouts(rows, records, L, expected, version)


def test_needs_neither_verl_nor_torch():
    code = (
        "import sys; import arrol.adapters.verl.batching, arrol.adapters.verl.rollouts; "
        "print({'torch', 'ray', 'vllm', 'verl'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


class TestRow:
    def test_keys(self):
        assert group_key("p7") == stable_key("verl", "p7")
        assert rollout_key("p7", 3) == row("p7", 3).key == stable_key("verl", "p7", 3)
        # A session that came out of an array or a text is the same session.
        assert rollout_key("p7", np.int64(3)) == rollout_key(np.str_("p7"), "3") == row("p7", 3).key

    @pytest.mark.parametrize("finish", list(FinishReason))
    def test_only_whole_answers_survive(self, finish):
        assert row(finish=finish).survived is (finish in ("stop", "length"))

    @pytest.mark.parametrize(("pruned", "finish"), [(True, "stop"), (False, "pruned")])
    def test_contradiction(self, pruned, finish):
        with pytest.raises(ArrolError, match=r"row p1_0_0 has pruned .* and only there"):
            Row("p1_0_0", "p1", 0, 3, pruned, finish, None, 0.0)

    def test_unknown_reason(self):
        with pytest.raises(ArrolError, match="finish of row p1_0_0 is 'abort'; allowed is one of"):
            Row("p1_0_0", "p1", 0, 3, False, "abort", None, 0.0)


class TestOutcome:
    @pytest.mark.parametrize(
        ("reward", "info", "metric", "threshold", "right"),
        [
            (1.0, {}, None, 0.0, 1.0),
            (0.0, None, None, 0.0, 0.0),
            (-1.0, {}, None, 0.0, 0.0),
            (0.5, {}, None, 0.5, 0.0),  # above, not at
            (0.6, {}, None, 0.5, 1.0),
            # DAPO's overlong penalty has taken the reward below 0; the answer stays right.
            (-0.2, {"acc": True}, None, 0.0, 1.0),
            (0.1, {"acc": False}, None, 0.0, 0.0),
            (0.0, {"acc": 0.0, "exact": np.float32(1.0)}, "exact", 0.0, 1.0),
            (1.0, {"acc": np.bool_(True)}, "acc", 0.0, 1.0),
            (math.nan, {}, None, 0.0, None),
            (None, {}, None, 0.0, None),
            (1.0, {"acc": math.nan}, None, 0.0, None),
            (math.nan, {"acc": 1}, None, 0.0, 1.0),
        ],
    )
    def test_values(self, reward, info, metric, threshold, right):
        assert outcome(reward, info, metric, threshold) == right

    def test_missing_metric(self):
        with pytest.raises(ArrolError, match=r"'exact'; .* the reward: acc, score\.$"):
            outcome(1.0, {"score": 1.0, "acc": True}, "exact")
        with pytest.raises(ArrolError, match=r"the reward: nothing\.$"):
            outcome(1.0, None, "exact")

    @pytest.mark.parametrize("value", ["1", b"1", [1, 2], {}])
    def test_no_number(self, value):
        with pytest.raises(ArrolError, match=r"acc of a rollout is .*; allowed is a number"):
            outcome(1.0, {"acc": value})


class TestAsRollouts:
    def test_each_session_once(self):
        rows = [
            row(session=2, finish="pruned", tokens=L),
            row(session=0, right=1.0),
            row(session=1, finish="length", right=0.0),
            row("p2", 1, finish="failed", tokens=0),
            row("p2", 0, tokens=3, right=None),
        ]
        records = [record(session=s, keep=s < 2) for s in range(3)]
        rollouts, outcomes, leftovers = joined(rows, records, {"p1": 3, "p2": 3})
        assert [(r.group, r.index, r.finish_reason, r.tokens) for r in rollouts] == [
            (group_key("p1"), 0, "stop", L + 5),
            (group_key("p1"), 1, "length", L + 5),
            (group_key("p1"), 2, "pruned", L),
            (group_key("p2"), 0, "stop", 3),
            (group_key("p2"), 1, "failed", 0),
            (group_key("p2"), 2, "failed", 0),
        ]
        assert [r.detection for r in rollouts] == [*(r.detection for r in records), *[None] * 3]
        keys = [rollout_key("p1", 0), rollout_key("p1", 1), rollout_key("p2", 0)]
        assert outcomes == dict(zip(keys, [1.0, 0.0, None], strict=True))
        assert leftovers == Leftovers(missing=1)

    def test_undecided(self):
        rows = [row(session=0, tokens=L), row(session=1, tokens=L + 1)]
        assert joined(rows, [])[2] == Leftovers(undecided=1)
        assert joined(rows, [], version=None)[2] == Leftovers()
        assert joined([row(finish="failed")], [])[2] == Leftovers()

    def test_stale_decisions_count_with_their_own_probabilities(self):
        old = record(version=VERSION - 1)
        rollouts, _, leftovers = joined([row()], [old])
        assert rollouts[0].detection == old.detection
        assert leftovers == Leftovers(stale=1)

    def test_orphans(self):
        rows = [row(session=0, tokens=L), row(session=1)]
        records = [record(session=0), record(session=1), record("gone"), record(session=2)]
        rollouts, _, leftovers = joined(rows, records, {"p1": 3})
        assert [r.detection is None for r in rollouts] == [True, False, True]
        assert leftovers == Leftovers(orphans=3, missing=1)

    @pytest.mark.parametrize("first", [0, 1])
    def test_of_two_records_that_of_this_plan_counts(self, first):
        records = [record(version=VERSION - 1), record()]
        rollouts, _, leftovers = joined([row()], [records[first], records[1 - first]])
        assert rollouts[0].detection == records[1].detection
        assert leftovers == Leftovers(orphans=1)

    @pytest.mark.parametrize("first", [0, 1])
    def test_of_two_records_that_of_the_row_counts(self, first):
        """It ran twice, was pruned the first time, and the plan differs too."""
        records = [record(keep=False), record(version=VERSION - 1)]
        rollouts, _, leftovers = joined([row()], [records[first], records[1 - first]])
        assert rollouts[0].detection == records[1].detection
        assert leftovers == Leftovers(stale=1, orphans=1)

    @pytest.mark.parametrize(
        ("finish", "records"),
        [
            ("pruned", []),
            ("pruned", [record(keep=True)]),
            ("pruned", [record(keep=False, enforced=False)]),
            ("stop", [record(keep=False)]),
        ],
    )
    def test_mismatches(self, finish, records):
        rollouts, _, leftovers = joined([row(finish=finish)], records)
        assert leftovers == Leftovers(mismatched=1)
        assert rollouts[0].detection is None
        assert rollouts[0].finish_reason == finish

    def test_shadow(self):
        shadow = record(keep=False, enforced=False)
        rollouts, _, leftovers = joined([row()], [shadow])
        assert rollouts[0].detection == shadow.detection
        assert leftovers == Leftovers()

    def test_refuses(self):
        with pytest.raises(ArrolError, match="rows p1_0_0 and p1_0_1 are of one session"):
            joined([row(), Row("p1_0_1", "p1", 0, 9, False, "stop", 1.0, 1.0)], [])
        with pytest.raises(ArrolError, match="session 2; allowed are the 2 that"):
            joined([row(session=2)], [], {"p1": 2})
        with pytest.raises(ArrolError, match="session 0; allowed are the 0 that"):
            joined([row("p9")], [], {"p1": 2})


states = st.fixed_dictionaries(
    {
        "finish": st.sampled_from(["stop", "length", "pruned", "failed", "missing"]),
        "tokens": st.integers(0, 2 * L),
        "right": st.sampled_from([0.0, 1.0, None]),
        "records": st.lists(st.tuples(st.booleans(), st.integers(4, 5), st.booleans()), max_size=2),
    }
)


class TestLaws:
    @given(st.lists(st.lists(states, min_size=1, max_size=5), max_size=5), st.integers(0, 2))
    def test_submitted_is_survived_and_pruned_and_failed(self, groups, strays):
        """Whatever comes back: each key once, each record used or counted, and it can be learned"""
        rows, records, missing = [], [record("stray", s) for s in range(strays)], 0
        for number, states_of_group in enumerate(groups):
            for session, state in enumerate(states_of_group):
                place = (f"p{number}", session)
                if state["finish"] == "missing":
                    missing += 1
                else:
                    rows.append(row(*place, state["finish"], state["tokens"], state["right"]))
                records += [record(*place, *values) for values in state["records"]]
        expected = {f"p{n}": len(group) for n, group in enumerate(groups)}
        rollouts, outcomes, leftovers = joined(rows, records, expected)
        assert [(r.group, r.index) for r in rollouts] == [
            (group_key(uid), session) for uid, n in expected.items() for session in range(n)
        ]
        assert len({r.key for r in rollouts}) == len(rollouts) == len(rows) + missing
        assert leftovers.missing == missing
        used = [r for r in rollouts if r.detection is not None]
        assert all(r.detection.key == r.key for r in used)
        assert all(r.detection.pruned == (r.finish_reason == "pruned") for r in used)
        assert len(used) + leftovers.orphans <= len(records)
        if not leftovers.mismatched:
            assert len(used) + leftovers.orphans == len(records)
        assert set(outcomes) == {r.key for r in rollouts if r.survived}
        controller = PruningController(PruningConfig.balanced())
        metrics = controller.observe(rollouts, outcomes)
        assert metrics["rollouts"] == len(rollouts)
        assert metrics["pruned"] == sum(r.finish_reason == "pruned" for r in used)

    @given(st.integers(0, 2 * L), st.booleans(), st.booleans())
    def test_as_the_vllm_adapter_does(self, tokens, keep, has_record):
        """A record of a rollout that ended at or before the detection length is an orphan."""
        pytest.importorskip("torch", reason="the vLLM adapter needs torch")
        from arrol.adapters.vllm.outputs import finished

        assume(keep or (has_record and tokens == L))  # what can happen
        found = record(keep=keep) if has_record else None
        pruned = has_record and not keep
        ids, stop = ([1] * tokens + [99], 99) if pruned else ([1] * tokens, None)
        output = SimpleNamespace(
            token_ids=ids, logprobs=None, stop_reason=stop, finish_reason="stop", text=""
        )
        request = SimpleNamespace(key=rollout_key("p1", 0), group=group_key("p1"), index=0)
        theirs, orphan = finished(request, output, found, 99, L)
        rows = [row(finish="pruned" if pruned else "stop", tokens=tokens)]
        (ours,), _, leftovers = joined(rows, [found] if found else [])
        assert ours.detection == theirs.detection
        assert (ours.key, ours.tokens, ours.finish_reason) == (
            theirs.key, theirs.tokens, theirs.finish_reason,
        )  # fmt: skip
        assert leftovers.orphans == (orphan is not None)


def rows_of(**groups):
    """Groups in words: ``+`` right, ``-`` wrong, ``?`` unverified, ``x`` pruned, ``f`` failed."""
    finish = {"x": "pruned", "f": "failed"}
    right = {"+": 1.0, "-": 0.0}
    return [
        row(uid, session, finish.get(sign, "stop"), right=right.get(sign))
        for uid, signs in groups.items()
        for session, sign in enumerate(signs)
    ]


GROUPS = {
    "mixed": "+x-", "right": "+x+", "wrong": "---", "one": "x+x", "none": "xfx", "unsure": "+??",
    "unsure2": "-?+",
}  # fmt: skip


class TestVerdicts:
    def test_reasons(self):
        assert verdicts(rows_of(**GROUPS), ["gone", "one"]) == {
            "mixed": None,
            "right": RIGHT,
            "wrong": WRONG,
            "one": FEW,
            "none": FEW,
            "unsure": FEW,
            "unsure2": None,
            "gone": FEW,
        }

    def test_counts(self):
        assert loss_counts(rows_of(**GROUPS), ["gone"]) == {
            "too_few_survivors": 4,
            "all_right": 1,
            "all_wrong": 1,
            "no_survivors": 2,
        }
        assert set(loss_counts([]).values()) == {0}

    def test_lone(self):
        assert lone(rows_of(**GROUPS)) == {"one", "none"}

    def test_an_outcome_of_the_pruned_is_not_read(self):
        ghost = Row("p1_2_0", "p1", 2, L, True, "pruned", 1.0, 0.0)
        assert verdicts([*rows_of(p1="--"), ghost]) == {"p1": WRONG}

    def test_the_reward_does_not_decide(self):
        """Wrong answers of different lengths, each with a penalty of its own."""
        rows = [row(session=s, right=0.0, reward=-0.1 * s) for s in range(3)]
        assert verdicts(rows) == {"p1": WRONG}


@pytest.fixture(scope="module")
def grpo():
    """verl's own advantages, one a row: ``grpo(rewards, groups, by_std, dtype)``."""
    pytest.importorskip("verl", reason="verl is not installed")
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    def compute(rewards, groups, by_std=True, dtype=torch.float64):
        # The reward sits on the last of two tokens, as verl's reward loop puts it.
        rewards_N2 = torch.tensor([[0.0, reward] for reward in rewards], dtype=dtype)
        found, _ = compute_grpo_outcome_advantage(
            rewards_N2,
            torch.ones_like(rewards_N2),
            np.array(groups),
            norm_adv_by_std_in_grpo=by_std,
        )
        assert (found[:, 0] == found[:, 1]).all()
        return found[:, 0].numpy()

    return compute


rewards = st.floats(-10, 10).map(lambda value: round(value, 3))
ragged = st.lists(st.lists(rewards, min_size=2, max_size=9), min_size=1, max_size=5)


def flat(groups):
    ids = [number for number, group in enumerate(groups) for _ in group]
    return [value for group in groups for value in group], ids


class TestAdvantages:
    """Of survivors: verl sees no other rows, arrol is told which rows were pruned."""

    @pytest.mark.parametrize(
        ("kind", "by_std"), [(AdvantageKind.GRPO, True), (AdvantageKind.DR_GRPO, False)]
    )
    @given(groups=ragged, pruned=st.lists(st.integers(0, 4), max_size=6))
    def test_same_as_verl_on_ragged_groups(self, grpo, groups, kind, by_std, pruned):
        """Same definition: n − 1 in the deviation, ε = 1e-6 added to it."""
        values, ids = flat(groups)
        theirs = grpo(values, ids, by_std)
        survived = [True] * len(values) + [False] * len(pruned)
        ours = advantages([*values, *[math.nan] * len(pruned)], [*ids, *pruned], survived, kind)
        assert ours[: len(values)] == pytest.approx(theirs, abs=1e-6)
        assert not ours[len(values) :].any()

    @given(
        groups=st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=16), min_size=1)
    )
    def test_same_in_single_precision(self, grpo, groups):
        """As verl computes: outcomes as rewards, float32, whose error in √n is some 1e-7."""
        import torch

        values, ids = flat(groups)
        theirs = grpo(values, ids, dtype=torch.float32)
        ours = advantages(np.float32(values), ids, [True] * len(values), "grpo")
        assert ours == pytest.approx(theirs, abs=4e-6)

    def test_a_lone_survivor(self, grpo):
        """verl: (1 − 0) / (1 + 1e-6), for nothing but being alone. Here: 0."""
        assert grpo([1.0], ["p1"]) == pytest.approx(1 / (1 + 1e-6))
        assert grpo([1.0], ["p1"], by_std=False) == pytest.approx(1.0)
        assert advantages([1.0], [1], [True], "grpo").tolist() == [0.0]
        assert lone(rows_of(p1="x+x")) == {"p1"}

    def test_equal_rewards_in_single_precision(self, grpo):
        """verl leaves the rounding error of the mean over 1e-6; here it is exactly 0."""
        import torch

        values = [0.3] * 7
        theirs = grpo(values, [0] * 7, dtype=torch.float32)
        assert np.abs(theirs).max() <= 7 * 0.3 * 2.0**-24 / 1e-6
        assert not advantages(np.float32(values), [0] * 7, [True] * 7, "grpo").any()
