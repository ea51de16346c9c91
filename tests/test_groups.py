"""Ragged groups: reasons without signal, balance, and whole numbers from ratios."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrol.errors import ArrolError
from arrol.groups import SignalLoss, counts_from_ratio, index_groups, signal_mask, summarize_groups

rows = st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), max_size=40)


def summary_of(**groups: str):
    """Groups in words: ``+`` right, ``-`` wrong, ``x`` pruned; interleaved row by row."""
    longest = max(map(len, groups.values()))
    cells = [
        (number, word[place])
        for place in range(longest)
        for number, word in enumerate(groups.values())
        if place < len(word)
    ]
    ids = [number for number, _ in cells]
    outcomes = [{"+": 1.0, "-": 0.0, "x": math.nan}[cell] for _, cell in cells]
    return summarize_groups(ids, outcomes, [cell != "x" for _, cell in cells])


class TestSummary:
    def test_each_reason(self):
        summary = summary_of(
            mixed="+-x", right="+x+", wrong="---", one="x+x", none="xx", pair="-+", alone="-"
        )
        few = SignalLoss.TOO_FEW_SURVIVORS
        assert summary.losses == (
            None,
            SignalLoss.ALL_RIGHT,
            SignalLoss.ALL_WRONG,
            few,
            few,
            None,
            few,
        )
        assert summary.counts == {few: 3, SignalLoss.ALL_RIGHT: 1, SignalLoss.ALL_WRONG: 1}
        assert summary.sizes.tolist() == [3, 3, 3, 3, 2, 2, 1]
        assert summary.survivors.tolist() == [2, 2, 3, 1, 0, 2, 1]
        expected = [0.5, 1.0, 0.0, 1.0, math.nan, 0.5, 0.0]
        np.testing.assert_array_equal(summary.positive_ratio, expected)

    @given(rows, st.randoms(use_true_random=False))
    @settings(deadline=None)
    def test_it_is_what_a_loop_over_groups_finds_in_any_order_of_rows(self, rows, random):
        random.shuffle(rows)
        columns = zip(*rows, strict=True) if rows else ([], [], [])
        ids, outcomes, survived = (list(column) for column in columns)
        summary = summarize_groups(ids, outcomes, survived)
        mask = signal_mask(ids, outcomes, survived)
        assert summary.groups.tolist() == sorted(set(ids))
        for place, group in enumerate(summary.groups):
            members = [row for row in rows if row[0] == group]
            right = [y for _, y, kept in members if kept]
            assert summary.sizes[place] == len(members)
            assert summary.survivors[place] == len(right)
            assert summary.right[place] == sum(right)
            signal = 0 < sum(right) < len(right)
            assert (summary.losses[place] is None) == signal
            assert {bool(m) for m, row in zip(mask, rows, strict=True) if row[0] == group} == {
                signal
            }

    def test_ids_of_64_bits_stay_apart(self):
        ids, places = index_groups([2**64 - 1, 2**64 - 2, 2**64 - 1])
        assert ids.tolist() == [2**64 - 2, 2**64 - 1]
        assert places.tolist() == [1, 0, 1]

    def test_no_rows(self):
        summary = summarize_groups([], [], [])
        assert summary.losses == ()
        assert math.isnan(summary.expected_balance)
        assert math.isnan(summary.batch_balance)

    @pytest.mark.parametrize(
        ("ids", "outcomes", "survived", "named"),
        [
            ([0.5, 1.0], [0, 1], [True, True], "groups has dtype float64"),
            ([0, 0], [0, math.nan], [True, True], r"outcomes\[1\] is nan"),
            ([0, 0], [0, 0.5], [True, True], r"outcomes\[1\] is 0.5"),
            ([0, 0], [0, 1], [True], "survived has 1 rows"),
        ],
    )
    def test_wrong_rows_are_named(self, ids, outcomes, survived, named):
        with pytest.raises(ArrolError, match=named):
            summarize_groups(ids, outcomes, survived)


class TestBalance:
    def test_by_hand(self):
        summary = summary_of(mixed="+-", right="++", none="xx")
        assert summary.expected_balance == pytest.approx((0.25 + 0.0) / 2)
        assert summary.batch_balance == pytest.approx(3 / 4 * 1 / 4)

    def test_independent_groups_of_eight_fall_short_of_the_published_balance(self):
        # Table 4: E[ρ̂(1−ρ̂)] = .21 at mean .32. Enumerate right counts of Binomial(8, .32): .190.
        rate, size = 0.32, 8
        law = [math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1)]
        words = {f"g{k}": "+" * k + "-" * (size - k) for k in range(size + 1)}
        per_group = sum(
            chance * summary_of(group=word).expected_balance
            for chance, word in zip(law, words.values(), strict=True)
        )
        assert per_group == pytest.approx(rate * (1 - rate) * (1 - 1 / size))
        assert per_group == pytest.approx(0.190, abs=5e-4)
        assert rate * (1 - rate) == pytest.approx(0.2176)  # what a batch can reach

    def test_groups_of_eight_reach_it_only_if_hardly_any_two_differ(self):
        # The most at mean .32 mixes 2 and 3 right of 8, by concavity: .2138. So .21 isn't
        # impossible per group, but independent survivors can't give it.
        share = (0.32 - 2 / 8) / (1 / 8)
        most = (1 - share) * 2 / 8 * 6 / 8 + share * 3 / 8 * 5 / 8
        hundred = ["+++-----"] * round(100 * share) + ["++------"] * round(100 * (1 - share))
        summary = summary_of(**{f"g{place}": word for place, word in enumerate(hundred)})
        assert summary.positive_ratio.mean() == pytest.approx(0.32)
        assert summary.expected_balance == pytest.approx(most)
        assert 0.21 < most < 0.214


class TestCountsFromRatio:
    @pytest.mark.parametrize("hundredths", range(5, 100, 5))
    def test_right_at_every_ratio_and_size(self, hundredths):
        for total in range(2, 65):
            exact = Fraction(hundredths, 100) * total
            expected = math.floor(exact) + (exact - math.floor(exact) >= Fraction(1, 2))
            assert counts_from_ratio(hundredths / 100, total) == expected
            assert counts_from_ratio(1 - (100 - hundredths) / 100, total) == expected

    def test_where_plain_floats_go_wrong(self):
        assert int(10 * (1 - 0.9)) == 0
        assert counts_from_ratio(1 - 0.9, 10) == 1
        assert round(0.5 * 5) == 2
        assert counts_from_ratio(0.5, 5) == 3

    @given(st.fractions(0, 1, max_denominator=1000), st.integers(0, 10_000))
    @settings(deadline=None)
    def test_any_simple_fraction(self, ratio, total):
        assert counts_from_ratio(float(ratio), total) == math.floor(ratio * total + Fraction(1, 2))

    @pytest.mark.parametrize(("ratio", "total"), [(-0.1, 8), (1.1, 8), (math.nan, 8), (0.5, -1)])
    def test_refused(self, ratio, total):
        with pytest.raises(ArrolError, match="allowed"):
            counts_from_ratio(ratio, total)
