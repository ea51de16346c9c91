"""Advantages on what is left of groups: worked values, a slow loop, and verl's own definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrol.advantages import (
    DAPO_CLIP_HIGH,
    DAPO_CLIP_LOW,
    EPSILON,
    AdvantageKind,
    LossKind,
    advantages,
    loss_weights,
)
from arrol.errors import ArrolError

GRPO, DR_GRPO, DAPO = AdvantageKind.GRPO, AdvantageKind.DR_GRPO, AdvantageKind.DAPO

reward = st.floats(-10, 10).map(lambda value: round(value, 3))
row = st.tuples(reward, st.integers(0, 3), st.booleans(), st.floats(0.02, 1.0))
rows = st.lists(row, min_size=1, max_size=30)


def one_group(rewards, survived=None, kind=DR_GRPO, **options):
    survived = [True] * len(rewards) if survived is None else survived
    return advantages(rewards, [7] * len(rewards), survived, kind, **options)


def slow(rows, kind, cap=None):
    """Group by group, row by row, from the formulas; ``cap`` turns the weights on."""
    result = [0.0] * len(rows)
    for group in {g for _, g, _, _ in rows}:
        members = [i for i, (_, g, kept, _) in enumerate(rows) if g == group and kept]
        if len({rows[i][0] for i in members}) < 2:
            continue
        weights = {i: min(1 / rows[i][3], cap) if cap else 1.0 for i in members}
        total = sum(weights.values())
        mean = sum(weights[i] * rows[i][0] for i in members) / total
        square = sum(weights[i] * (rows[i][0] - mean) ** 2 for i in members) / total
        deviation = math.sqrt(square * len(members) / (len(members) - 1))
        for i in members:
            scale = 1.0 if kind is DR_GRPO else deviation + EPSILON
            result[i] = (rows[i][0] - mean) / scale
    return result


def verl_grpo(scores, groups, by_std=True):
    """``compute_grpo_outcome_advantage`` of verl, one scalar a response, with numpy for torch."""
    means, deviations = {}, {}
    for group in set(groups):
        members = np.array([s for s, g in zip(scores, groups, strict=True) if g == group])
        if len(members) == 1:
            means[group], deviations[group] = 0.0, 1.0
        else:
            means[group], deviations[group] = members.mean(), members.std(ddof=1)
    return [
        (s - means[g]) / (deviations[g] + 1e-6) if by_std else s - means[g]
        for s, g in zip(scores, groups, strict=True)
    ]


class TestWorkedValues:
    def test_a_pruned_rollout_is_not_a_wrong_one(self):
        found = one_group([1, 1, 0, 0], [True, False, True, True])
        np.testing.assert_allclose(found, [2 / 3, 0, -1 / 3, -1 / 3], rtol=1e-15)

    def test_grpo_divides_by_the_deviation_of_the_survivors(self):
        # Survivors 1, 0, 0: mean 1/3, σ² = (4/9 + 1/9 + 1/9)/2 = 1/3.
        found = one_group([1, 1, 0, 0], [True, False, True, True], GRPO)
        sigma = math.sqrt(1 / 3) + 1e-6
        np.testing.assert_allclose(found, np.array([2 / 3, 0, -1 / 3, -1 / 3]) / sigma)

    def test_groups_never_share_a_normalisation(self):
        found = advantages([1.0, 5.0, 3.0], [0, 1, 0], [True, True, True], DR_GRPO)
        assert found.tolist() == [-1.0, 0.0, 1.0]
        found = advantages([1.0, 5.0, 3.0], [0, 1, 0], [True, True, True], GRPO)
        np.testing.assert_allclose(found, [-math.sqrt(0.5), 0, math.sqrt(0.5)], rtol=1e-5)

    def test_weights_give_the_mean_of_all_rollouts(self):
        # Weights 1/p = 4 and 1: r̄ = (4·1 + 1·0)/5.
        found = one_group([1.0, 0.0], inclusion_N=[0.25, 1.0])
        np.testing.assert_allclose(found, [0.2, -0.8])

    def test_weights_are_capped(self):
        found = one_group([1.0, 0.0], inclusion_N=[0.01, 1.0], weight_cap=3.0)
        np.testing.assert_allclose(found, [0.25, -0.75])

    def test_clip_range_of_dapo(self):
        assert (DAPO_CLIP_LOW, DAPO_CLIP_HIGH) == (0.2, 0.28)


class TestExactZeros:
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("kind", [GRPO, DR_GRPO])
    @pytest.mark.parametrize(
        ("rewards", "survived"),
        [
            ([0.35] * 8, [True] * 8),
            ([0.95] * 7 + [0.0], [True] * 7 + [False]),
            ([0.0] + [0.95] * 7, [False] + [True] * 7),
            ([0.1] * 7, [True] * 7),
        ],
    )
    def test_equal_rewards(self, rewards, survived, kind, dtype):
        found = one_group(np.array(rewards, dtype), survived, kind)
        assert found.dtype == dtype
        assert np.all(found == 0.0)

    def test_rounding_would_leave_something(self):
        # The mean of seven times .35 in double precision isn't .35: comparison decides, not σ.
        assert np.full(7, 0.35).mean() != 0.35
        assert np.all(one_group([0.35] * 7, kind=GRPO) == 0.0)

    @pytest.mark.parametrize("kind", AdvantageKind)
    def test_a_lone_survivor(self, kind):
        found = one_group([1.0, 1.0, 0.0], [True, False, False], kind, outcomes_N=[1, 1, 0])
        assert found.tolist() == [0.0, 0.0, 0.0]

    @pytest.mark.parametrize("kind", AdvantageKind)
    def test_nobody_left_and_nobody_there(self, kind):
        found = one_group([1.0, math.nan], [False, False], kind, outcomes_N=[math.nan] * 2)
        assert found.tolist() == [0.0, 0.0]
        assert advantages([], [], [], kind, outcomes_N=[]).shape == (0,)


class TestAgainstASlowLoop:
    @given(rows, st.sampled_from([GRPO, DR_GRPO]), st.sampled_from([None, 1.0, 4.0, 1e9]))
    def test_any_order_of_rows(self, rows, kind, cap):
        rewards, groups, survived, inclusion = zip(*rows, strict=True)
        options = {} if cap is None else {"inclusion_N": inclusion, "weight_cap": cap}
        found = advantages(rewards, groups, survived, kind, **options)
        np.testing.assert_allclose(found, slow(rows, kind, cap), rtol=1e-6, atol=1e-9)

    @given(rows, st.sampled_from([GRPO, DR_GRPO]))
    def test_what_a_pruned_row_holds_is_not_read(self, rows, kind):
        rewards, groups, survived, inclusion = (np.array(c) for c in zip(*rows, strict=True))
        found = advantages(rewards, groups, survived, kind, inclusion_N=inclusion)
        blank_r = np.where(survived, rewards, np.nan)
        blank_p = np.where(survived, inclusion, np.nan)
        again = advantages(blank_r, groups, survived, kind, inclusion_N=blank_p)
        assert again.tobytes() == found.tobytes()
        assert np.all(found[~survived] == 0.0)

    @given(rows)
    def test_advantages_of_a_group_add_up_to_nothing(self, rows):
        rewards, groups, survived, _ = (np.array(c) for c in zip(*rows, strict=True))
        found = advantages(rewards, groups, survived, DR_GRPO)
        for group in set(groups.tolist()):
            assert found[groups == group].sum() == pytest.approx(0.0, abs=1e-9)


class TestAgainstVerl:
    @given(st.lists(st.tuples(st.floats(-3, 3), st.integers(0, 2)), min_size=1, max_size=30))
    def test_the_same_where_a_group_has_two_different_rewards(self, rows):
        rows = [(round(score, 2), group) for score, group in rows]
        scores, groups = zip(*rows, strict=True)
        for kind, by_std in ((GRPO, True), (DR_GRPO, False)):
            found = advantages(scores, groups, [True] * len(rows), kind)
            theirs = verl_grpo(scores, groups, by_std)
            for i, group in enumerate(groups):
                if len({s for s, g in rows if g == group}) > 1:
                    assert found[i] == pytest.approx(theirs[i], rel=1e-9, abs=1e-9)
                else:
                    assert found[i] == 0.0

    def test_verl_rewards_a_lone_survivor_for_being_alone(self):
        assert verl_grpo([1.0], [0]) == pytest.approx([1.0], abs=1e-5)
        assert verl_grpo([1.0], [0], by_std=False) == [1.0]
        assert one_group([1.0], kind=GRPO).tolist() == [0.0]
        assert one_group([1.0], kind=DR_GRPO).tolist() == [0.0]


class TestDapo:
    def test_sampling_reads_the_outcome_and_the_advantage_the_reward(self):
        # Group 0: both wrong, rewards differ by a length penalty. Group 1: mixed, rewards 0.9/-1.
        rewards, groups = np.array([-0.2, 0.9, -0.7, -1.0]), [0, 1, 0, 1]
        outcomes, survived = [0, 1, 0, 0], [True] * 4
        plain = advantages(rewards, groups, survived, GRPO)
        found = advantages(rewards, groups, survived, DAPO, outcomes_N=outcomes)
        assert np.all(plain != 0.0)
        assert found.tolist() == [0.0, plain[1], 0.0, plain[3]]

    def test_a_pruned_rollout_makes_no_group_mixed(self):
        found = one_group(
            [1.0, 0.8, 0.0], [True, True, False], DAPO, outcomes_N=[1, 1, 0]
        )  # the wrong one is gone
        assert found.tolist() == [0.0, 0.0, 0.0]

    def test_it_needs_outcomes(self):
        with pytest.raises(ArrolError, match="outcomes is None"):
            one_group([1.0, 0.0], kind=DAPO)


class TestLossWeights:
    def test_by_hand(self):
        lengths, used = [10, 30, 99, 20], [True, True, False, True]
        token = loss_weights(lengths, used, LossKind.TOKEN_MEAN)
        np.testing.assert_allclose(token, [1 / 60, 1 / 60, 0, 1 / 60])
        sequence = loss_weights(lengths, used, LossKind.SEQUENCE_MEAN)
        np.testing.assert_allclose(sequence, [1 / 30, 1 / 90, 0, 1 / 60])

    @given(
        st.lists(st.tuples(st.integers(1, 9999), st.booleans()), min_size=1, max_size=30),
        st.sampled_from(LossKind),
    )
    def test_all_tokens_together_weigh_one(self, rows, kind):
        lengths, used = (np.array(column) for column in zip(*rows, strict=True))
        weights = loss_weights(lengths, used, kind)
        assert weights @ lengths == pytest.approx(1.0 if used.any() else 0.0)
        assert np.all(weights[~used] == 0.0)

    def test_a_rollout_has_tokens(self):
        with pytest.raises(ArrolError, match=r"lengths of used rows\[1\] is 0.0"):
            loss_weights([5, 0], [True, True], LossKind.TOKEN_MEAN)


class TestRefused:
    @pytest.mark.parametrize(
        ("columns", "options", "named"),
        [
            (([1.0, math.nan], [0, 0], [True, True]), {}, r"rewards of survivors\[1\] is nan"),
            (([1.0], [0, 0], [True]), {}, "groups has 2 rows"),
            (([1.0], [0.5], [True]), {}, "groups has dtype"),
            (([1.0], [0], [True]), {"inclusion_N": [0.0]}, r"inclusion of survivors\[0\] is 0.0"),
            (([1.0], [0], [True]), {"inclusion_N": [1.0], "weight_cap": 0.5}, "weight_cap is 0.5"),
        ],
    )
    def test_wrong_rows_are_named(self, columns, options, named):
        with pytest.raises(ArrolError, match=named):
            advantages(*columns, GRPO, **options)


def test_kinds_may_be_named_and_unknown_ones_are_refused():
    rewards, groups, survived = [1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], [True] * 4
    named = advantages(rewards, groups, survived, "dapo", outcomes_N=[1, 0, 1, 1])
    member = advantages(rewards, groups, survived, AdvantageKind.DAPO, outcomes_N=[1, 0, 1, 1])
    assert named.tolist() == member.tolist()
    with pytest.raises(ArrolError, match="kind is 'ppo'; allowed is one of grpo, dr_grpo, dapo"):
        advantages(rewards, groups, survived, "ppo")
    with pytest.raises(ArrolError, match="kind is 'mean'"):
        loss_weights([1, 2], [True, True], "mean")
