"""Confidence of tokens and traces: double loops, closed forms, and the stream against the whole."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arrol.confidence import (
    ConfidenceStream,
    self_certainty,
    token_confidence,
    top_log_probs,
    trace_confidence,
    window_means,
)
from arrol.errors import ArrolError

confidence = st.floats(0.0, 40.0)
traces = st.lists(confidence, min_size=1, max_size=40)
windows = st.integers(1, 45)


@st.composite
def log_prob_rows(draw: st.DrawFn) -> np.ndarray:
    """[T, V] of distributions, flat and sharp."""
    shape = draw(st.tuples(st.integers(1, 6), st.integers(2, 12)))
    logits = draw(arrays(np.float64, shape, elements=st.floats(-20.0, 20.0)))
    return log_softmax(logits)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


class TestTokens:
    @given(log_prob_rows(), st.data())
    def test_confidence_is_a_double_loop(self, rows, data):
        k = data.draw(st.integers(1, rows.shape[1]))
        expected = []
        for row in rows:
            total = 0.0
            for value in sorted(row, reverse=True)[:k]:
                total += value
            expected.append(-total / k)
        assert token_confidence(rows, k) == pytest.approx(expected, abs=1e-12)

    @given(log_prob_rows())
    def test_self_certainty_is_the_divergence_of_uniform_from_p(self, rows):
        v = rows.shape[1]
        expected = [sum(1 / v * math.log(1 / v / math.exp(x)) for x in row) for row in rows]
        assert self_certainty(rows) == pytest.approx(expected, abs=1e-9)
        assert (self_certainty(rows) >= -1e-12).all()

    @given(log_prob_rows())
    def test_over_the_whole_vocabulary_they_differ_by_log_v(self, rows):
        v = rows.shape[1]
        whole = token_confidence(rows, v) - math.log(v)
        assert self_certainty(rows) == pytest.approx(whole, abs=1e-12)

    @pytest.mark.parametrize("v", [2, 100, 32_000])
    def test_closed_forms(self, v):
        uniform = np.full((1, v), -math.log(v))
        assert token_confidence(uniform, 2)[0] == pytest.approx(math.log(v))
        assert self_certainty(uniform)[0] == pytest.approx(0.0, abs=1e-12)
        # One token with .9, the others share .1 evenly.
        rest = math.log(0.1 / (v - 1))
        peaked = np.full((1, v), rest)
        peaked[0, v // 2] = math.log(0.9)
        assert token_confidence(peaked, 2)[0] == pytest.approx(-(math.log(0.9) + rest) / 2)
        expected = -(math.log(0.9) + (v - 1) * rest) / v - math.log(v)
        assert self_certainty(peaked)[0] == pytest.approx(expected)

    def test_self_certainty_rises_with_sharpness_and_confidence_need_not(self):
        logits = np.random.default_rng(0).normal(size=(1, 50))
        sharper = np.concatenate([log_softmax(logits * scale) for scale in (0.5, 1.0, 2.0, 4.0)])
        assert (np.diff(self_certainty(sharper)) > 0).all()
        assert np.diff(token_confidence(sharper))[0] < 0  # as the module says

    @given(log_prob_rows(), st.data())
    def test_confidence_is_least_where_the_top_k_share_everything(self, rows, data):
        k = data.draw(st.integers(1, rows.shape[1]))
        assert (token_confidence(rows, k) >= math.log(k) - 1e-9).all()
        even = np.concatenate([np.full((1, k), -math.log(k)), np.full((1, 3), -math.inf)], axis=1)
        assert token_confidence(even, k)[0] == pytest.approx(math.log(k), abs=1e-12)

    @given(log_prob_rows())
    def test_rows_one_by_one_give_the_same_bits(self, rows):
        for statistic in (lambda r: token_confidence(r, 2), self_certainty):
            one_by_one = np.concatenate([statistic(row[None]) for row in rows])
            assert statistic(rows).tobytes() == one_by_one.tobytes()

    def test_rows_that_are_worked_on_in_several_blocks(self):
        logits = np.random.default_rng(0).normal(size=(700, 4_000)).astype(np.float32)
        rows = log_softmax(logits)
        for statistic in (token_confidence, self_certainty):
            parts = [statistic(rows[start : start + 77]) for start in range(0, 700, 77)]
            assert np.array_equal(statistic(rows), np.concatenate(parts))

    def test_no_tokens_no_figures(self):
        assert token_confidence(np.empty((0, 5)), 2).shape == (0,)
        assert self_certainty(np.empty((0, 5))).shape == (0,)


class TestServers:
    @given(log_prob_rows(), st.data())
    def test_the_top_k_of_a_row_give_the_same_bits_in_any_order(self, rows, data):
        k = data.draw(st.integers(1, rows.shape[1]))
        more = data.draw(st.integers(k, rows.shape[1]))
        served = -np.sort(-rows, axis=1)[:, :more]
        served = served[:, data.draw(st.permutations(range(more)))]
        assert token_confidence(served, k).tobytes() == token_confidence(rows, k).tobytes()

    @given(log_prob_rows(), st.data())
    def test_from_the_top_k_self_certainty_is_a_lower_bound(self, rows, data):
        v = rows.shape[1]
        k = data.draw(st.integers(1, v - 1))
        served = -np.sort(-rows, axis=1)[:, :k]
        assert (self_certainty(served, v) <= self_certainty(rows) + 1e-9).all()

    @pytest.mark.parametrize("k", [1, 3, 6])
    def test_the_bound_is_exact_where_the_others_are_equally_likely(self, k):
        top = np.log([[0.4, 0.2, 0.15]])
        rows = np.concatenate([top, np.log(np.full((1, 5), 0.05))], axis=1)
        bound = self_certainty(rows[:, :k], 8)[0]
        exact = self_certainty(rows)[0]
        assert bound == pytest.approx(exact) if k >= 3 else bound < exact

    def test_a_top_k_that_seems_to_be_all_there_is_stays_finite(self):
        served = np.array([[0.0, -30.0]], dtype=np.float32)
        # None of the others can be likelier than e^−30.
        expected = 30.0 * 149_999 / 150_000 - math.log(150_000)
        assert self_certainty(served, 150_000)[0] == pytest.approx(expected)

    def test_the_order_of_many_columns_changes_no_bit(self):
        rng = np.random.default_rng(0)
        rows = log_softmax(rng.normal(size=(50, 2_000)) * 3.0)
        shuffled = rows[:, rng.permutation(2_000)]
        for k in (20, 500):
            one, other = token_confidence(rows, k), token_confidence(shuffled, k)
            assert one.tobytes() == other.tobytes()

    def test_lists_with_the_sampled_token_added_are_cut_to_the_largest_k(self):
        lists = [[-0.5, -1.5, -2.5], [-7.0, -0.1, -3.0, -4.0]]
        assert top_log_probs(lists, 3).tolist() == [[-0.5, -1.5, -2.5], [-0.1, -3.0, -4.0]]
        assert top_log_probs([], 3).shape == (0, 3)

    def test_a_list_that_is_too_short_is_named(self):
        with pytest.raises(ArrolError, match=r"log_probs\[1\] has 1 entries; allowed is at least"):
            top_log_probs([[-1.0, -2.0], [-1.0]], 2)


def slow_means(trace: list[float], window: int) -> list[float]:
    width = min(window, len(trace))
    means = []
    for start in range(len(trace) - width + 1):
        means.append(math.fsum(trace[start : start + width]) / width)
    return means


class TestTraces:
    @given(traces, windows)
    def test_windows_are_a_double_loop(self, trace, window):
        assert window_means(trace, window) == pytest.approx(slow_means(trace, window), abs=1e-12)

    @given(traces, windows, st.sampled_from([0.1, 0.25, 0.5, 1.0]))
    def test_the_four_sums(self, trace, window, share):
        means = slow_means(trace, window)
        found = trace_confidence(trace, window, share)
        lowest_first = sorted(means)[: max(1, int(share * len(means)))]
        assert found.tokens == len(trace)
        assert found.mean == pytest.approx(math.fsum(trace) / len(trace), abs=1e-12)
        assert found.tail == pytest.approx(means[-1], abs=1e-12)
        assert found.lowest == pytest.approx(min(means), abs=1e-12)
        assert found.bottom == pytest.approx(np.mean(lowest_first), abs=1e-12)

    def test_by_hand(self):
        found = trace_confidence([4.0, 2.0, 0.0, 6.0], window=2, share=0.7)
        # Windows: 3, 1, 3; the lowest 70% of three windows are two.
        assert (found.mean, found.tail, found.lowest, found.bottom) == (3.0, 3.0, 1.0, 2.0)

    @pytest.mark.parametrize(("share", "count"), [(0.1, 10), (0.29, 29), (0.57, 57), (0.001, 1)])
    def test_a_share_of_100_windows_is_a_whole_number(self, share, count):
        found = trace_confidence(range(100), window=1, share=share)
        assert found.bottom == pytest.approx((count - 1) / 2)

    @given(traces)
    def test_a_trace_no_longer_than_a_window_is_one_window(self, trace):
        found = trace_confidence(trace, window=len(trace) + 3)
        assert found.mean == found.tail == found.lowest == found.bottom

    def test_a_long_trace_loses_no_precision_that_matters(self):
        trace = np.random.default_rng(0).uniform(10.0, 30.0, 300_000)
        means = window_means(trace)
        for start in range(0, len(means), 9_973):
            exact = math.fsum(trace[start : start + 2048]) / 2048
            assert means[start] == pytest.approx(exact, abs=1e-9)


class TestStream:
    @given(traces, windows, st.sampled_from([0.1, 0.5]))
    def test_after_each_token_it_is_the_whole_so_far_to_the_last_bit(self, trace, window, share):
        stream = ConfidenceStream(window)
        for place, value in enumerate(trace):
            group = stream.add(value)
            whole = trace_confidence(trace[: place + 1], window, share)
            assert stream.summary(share) == whole
            assert (group, stream.lowest, len(stream)) == (whole.tail, whole.lowest, place + 1)

    def test_a_low_start_is_forgotten_once_there_is_a_whole_window(self):
        stream = ConfidenceStream(window=2)
        lows = []
        for value in (1.0, 9.0, 9.0):
            stream.add(value)
            lows.append(stream.lowest)
        assert lows == [1.0, 5.0, 5.0]

    def test_nothing_yet(self):
        stream = ConfidenceStream()
        assert stream.lowest == math.inf
        with pytest.raises(ArrolError, match="confidences has 0 tokens"):
            stream.summary()

    @pytest.mark.parametrize("value", [math.nan, math.inf, "1"])
    def test_a_confidence_is_a_number(self, value):
        with pytest.raises(ArrolError, match="confidence is"):
            ConfidenceStream().add(value)


class TestRefusals:
    @pytest.mark.parametrize(
        ("rows", "k", "text"),
        [
            ([[-1.0, -1.0]], 3, "k is 3; allowed is at most 2"),
            ([[-1.0, -1.0]], 0, "k is 0; allowed is an integer"),
            ([-1.0, -1.0], 1, r"log_probs has shape \(2,\)"),
            ([[]], 1, r"log_probs has shape \(1, 0\)"),
            ([[-1.0, -2.0], [2.5, -1.0]], 1, r"log_probs\[1\] has probabilities that sum to 12.55"),
            ([[-0.1, math.nan]], 1, r"log_probs\[0\] has probabilities that sum to nan"),
            ([[-0.1, -math.inf]], 2, r"log_probs\[0\] counts a token of probability 0"),
        ],
    )
    def test_what_can_be_no_log_probs(self, rows, k, text):
        with pytest.raises(ArrolError, match=text):
            token_confidence(rows, k)

    def test_tokens_cut_away_by_top_p_do_not_matter_below_the_top_k(self):
        rows = np.log(np.array([[0.75, 0.25]]))
        cut = np.concatenate([rows, [[-math.inf]]], axis=1)
        assert token_confidence(cut, 2) == token_confidence(rows, 2)

    def test_whole_rows_must_sum_to_1(self):
        with pytest.raises(ArrolError, match=r"that sum to 0\.5; allowed"):
            self_certainty(np.log([[0.25, 0.25]]))
        with pytest.raises(ArrolError, match="vocabulary is 2; allowed is"):
            self_certainty(np.log([[0.25, 0.25]]), 2)

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (([],), "confidences has 0 tokens"),
            (([1.0, math.nan],), r"confidences\[1\] is nan"),
            (([1.0], 0), "window is 0"),
            (([1.0], 2, 0.0), "share is 0.0"),
            (([1.0], 2, 1.1), "share is 1.1"),
        ],
    )
    def test_traces(self, arguments, text):
        with pytest.raises(ArrolError, match=text):
            trace_confidence(*arguments)
