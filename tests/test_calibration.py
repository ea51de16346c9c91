"""Calibration: the fits against closed forms and a known truth, the tables to the last bit."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from arrol.calibration import (
    SCORE_MARGIN,
    CalibrationTable,
    CalibratorKind,
    LabelBuffer,
    TableKind,
    bins_of,
    fit_calibration,
    platt_parameters,
)
from arrol.errors import ArrolError

unit = st.floats(0.0, 1.0)
weight = st.floats(1.0, 10.0)
rows = st.lists(st.tuples(unit, st.booleans(), weight), min_size=1, max_size=40)
any_score = st.one_of(st.floats(-0.5, 1.5), st.sampled_from([math.nan, math.inf, -math.inf]))
FITTED = [kind for kind in CalibratorKind if kind is not CalibratorKind.AUTO]


def labelled(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a head that separates a little, and outcomes."""
    rng = np.random.default_rng(seed)
    scores = expit(1.5 * rng.standard_normal(count))
    return scores, rng.random(count) < scores


class TestHistogram:
    @given(rows, st.integers(1, 9))
    def test_without_smoothing_it_is_the_share_of_right_ones_in_each_bin(self, rows, bins):
        scores, outcomes, weights = (np.array(column) for column in zip(*rows, strict=True))
        table = fit_calibration(scores, outcomes, weights, CalibratorKind.HISTOGRAM, bins, 0.0)
        everywhere = sum(w for _, y, w in rows if y) / sum(w for *_, w in rows)
        for b in range(bins):
            inside = [(y, w) for s, y, w in rows if min(bins - 1, math.floor(bins * s)) == b]
            right, total = sum(w for y, w in inside if y), sum(w for _, w in inside)
            expected = right / total if inside else everywhere
            assert table.posteriors[b] == pytest.approx(expected, abs=1e-12)

    def test_smoothed_by_hand(self):
        # c+ = (1, 2), c- = (1, 0), α = 1, B = 2: P(b|+) = (2/5, 3/5), P(b|-) = (2/3, 1/3), π = 3/4.
        scores, outcomes = [0.1, 0.2, 0.7, 0.8], [1, 0, 1, 1]
        table = fit_calibration(scores, outcomes, None, CalibratorKind.HISTOGRAM, 2, 1.0)
        first = 0.75 * 2 / 5 / (0.75 * 2 / 5 + 0.25 * 2 / 3)
        second = 0.75 * 3 / 5 / (0.75 * 3 / 5 + 0.25 * 1 / 3)
        assert table.posteriors == pytest.approx((first, second), abs=1e-15)

    def test_smoothing_every_bin_weighs_against_the_rarer_class(self):
        # All scores in one of 128 bins, 100 right and 900 wrong: q is not .1 but
        # .1 · 101/228 / (.1 · 101/228 + .9 · 901/1028), a property of A.4 with α = 1.
        scores, outcomes = np.full(1_000, 0.5), np.arange(1_000) < 100
        table = fit_calibration(scores, outcomes, None, CalibratorKind.HISTOGRAM, 128, 1.0)
        right, wrong = 0.1 * 101 / 228, 0.9 * 901 / 1028
        assert table.posterior(0.5) == pytest.approx(right / (right + wrong), abs=1e-15)
        assert table.posterior(0.5) < 0.06

    def test_a_score_of_one_lies_in_the_last_bin(self):
        assert bins_of(np.array([0.0, 0.499, 0.5, 0.999, 1.0]), 2).tolist() == [0, 0, 1, 1, 1]


class TestLogistic:
    def test_parameters_are_those_of_an_independent_fit(self):
        # Platt's soft targets as weighted copies: each row once right, once wrong.
        scores, outcomes = labelled(300)
        weights = np.random.default_rng(1).uniform(0.5, 2.0, 300)
        right, wrong = weights[outcomes].sum(), weights[~outcomes].sum()
        targets = np.where(outcomes, (right + 1) / (right + 2), 1 / (wrong + 2))
        oracle = LogisticRegression(C=1e12, tol=1e-12, max_iter=10_000).fit(
            np.tile(logit(scores), 2)[:, None],
            np.repeat([1, 0], 300),
            np.concatenate([weights * targets, weights * (1 - targets)]),
        )
        fitted = platt_parameters(scores, outcomes.astype(float), weights)
        assert fitted == pytest.approx((oracle.coef_[0, 0], oracle.intercept_[0]), abs=1e-5)

    @given(st.integers(0, 1_000), st.floats(0.01, 30.0), st.floats(-3.0, 3.0))
    @settings(max_examples=25)
    def test_the_table_follows_the_closed_sigmoid(self, seed, steepness, shift):
        rng = np.random.default_rng(seed)
        scores = expit(2.0 * rng.standard_normal(60))
        outcomes = rng.random(60) < expit(steepness * (logit(scores) - shift))
        slope, intercept = platt_parameters(scores, outcomes.astype(float), np.ones(60))
        table = fit_calibration(scores, outcomes, None, CalibratorKind.LOGISTIC)
        grid = np.concatenate([np.linspace(0, 1, 4001), expit(np.linspace(-15, 15, 4001))])
        closed = expit(slope * logit(np.clip(grid, SCORE_MARGIN, 1 - SCORE_MARGIN)) + intercept)
        assert np.abs(table.posteriors_of(grid) - closed).max() < 1e-4

    def test_a_head_that_ranks_the_wrong_way_round_gives_a_constant(self):
        scores, outcomes = labelled(500)
        table = fit_calibration(1 - scores, outcomes, None, CalibratorKind.LOGISTIC)
        assert len(set(table.posteriors)) == 1
        assert table.posteriors[0] == pytest.approx(outcomes.mean(), abs=0.01)


class TestIsotonic:
    def test_without_smoothing_it_is_the_least_squares_fit(self):
        scores, outcomes = labelled(400)
        weights = np.random.default_rng(1).uniform(1, 10, 400)
        table = fit_calibration(scores, outcomes, weights, CalibratorKind.ISOTONIC, smoothing=0.0)
        oracle = IsotonicRegression().fit(scores, outcomes, sample_weight=weights)
        np.testing.assert_allclose(table.posteriors_of(scores), oracle.predict(scores), atol=1e-12)

    @pytest.mark.parametrize(("outcome", "expected"), [(0, 1 / 12), (1, 11 / 12)])
    def test_one_class_gives_the_rule_of_succession(self, outcome, expected):
        scores = np.linspace(0.2, 0.8, 10)
        table = fit_calibration(scores, [outcome] * 10, None, CalibratorKind.ISOTONIC)
        assert table.posteriors == pytest.approx([expected] * len(table.posteriors), abs=1e-15)

    @given(rows)
    def test_no_posterior_is_a_certainty(self, rows):
        scores, outcomes, weights = zip(*rows, strict=True)
        table = fit_calibration(scores, outcomes, weights, CalibratorKind.ISOTONIC)
        assert min(table.posteriors) > 0.0
        assert max(table.posteriors) < 1.0


class TestAgainstAKnownTruth:
    """Excess log-loss E[KL(q ‖ q̂)] at q(s) = σ(.8 z − .5 + .5 sin z), z = logit s ~ N(0, 1.5²)."""

    @staticmethod
    def truth(logits: np.ndarray) -> np.ndarray:
        return expit(0.8 * logits - 0.5 + 0.5 * np.sin(logits))

    def excess(self, kind: CalibratorKind, labels: int, repeats: int = 12) -> float:
        grid = 1.5 * np.random.default_rng(99).standard_normal(4_000)
        q, losses = self.truth(grid), []
        for repeat in range(repeats):
            rng = np.random.default_rng((labels, repeat))
            logits = 1.5 * rng.standard_normal(labels)
            outcomes = rng.random(labels) < self.truth(logits)
            guess = fit_calibration(expit(logits), outcomes, None, kind).posteriors_of(expit(grid))
            ratios = q * np.log(q / guess) + (1 - q) * np.log((1 - q) / (1 - guess))
            losses.append(ratios.mean())
        return float(np.mean(losses))

    def test_with_few_labels_the_histogram_is_worst_and_the_sigmoid_best(self):
        for labels in (200, 1_000):
            sigmoid = self.excess(CalibratorKind.LOGISTIC, labels)
            isotonic = self.excess(CalibratorKind.ISOTONIC, labels)
            assert sigmoid < isotonic < self.excess(CalibratorKind.HISTOGRAM, labels)

    def test_with_many_labels_isotonic_overtakes_the_sigmoid_which_is_no_truth(self):
        isotonic = self.excess(CalibratorKind.ISOTONIC, 5_000)
        assert isotonic < self.excess(CalibratorKind.LOGISTIC, 5_000)
        assert isotonic < self.excess(CalibratorKind.HISTOGRAM, 5_000)

    @pytest.mark.parametrize("kind", FITTED)
    def test_labels_help(self, kind):
        few, more, many = (self.excess(kind, labels) for labels in (200, 1_000, 5_000))
        assert few > more > many

    @pytest.mark.parametrize("kind", FITTED)
    def test_weights_undo_a_selection_that_prefers_some_outcomes(self, kind):
        # Right ones are seen with .2, wrong ones with .8; weights 1/p bring the posterior back.
        rng = np.random.default_rng(5)
        outcomes = rng.random(40_000) < 0.5
        seen = rng.random(40_000) < np.where(outcomes, 0.2, 0.8)
        scores, right = rng.random(seen.sum()), outcomes[seen]
        weights = 1.0 / np.where(right, 0.2, 0.8)
        weighted = fit_calibration(scores, right, weights, kind, bins=8).posteriors_of(scores)
        plain = fit_calibration(scores, right, None, kind, bins=8).posteriors_of(scores)
        assert weighted.mean() == pytest.approx(0.5, abs=0.02)
        assert plain.mean() == pytest.approx(0.2, abs=0.02)


class TestTable:
    @given(st.lists(unit, min_size=1, max_size=20), st.lists(any_score, max_size=30))
    def test_step_table_reads_the_same_one_by_one(self, posteriors, scores):
        self.assert_one_by_one(CalibrationTable(TableKind.STEP, (), tuple(posteriors)), scores)

    @given(
        st.lists(st.tuples(st.floats(-1, 2), unit), min_size=1, max_size=20),
        st.lists(any_score, max_size=30),
    )
    def test_linear_table_reads_the_same_one_by_one(self, knots, scores):
        xs = sorted({x for x, _ in knots})
        ys = sorted(y for _, y in knots)[: len(xs)]
        table = CalibrationTable(TableKind.LINEAR, tuple(xs), tuple(ys))
        self.assert_one_by_one(table, [*scores, *xs, *np.nextafter(xs, 2).tolist()])
        reads = table.posteriors_of(np.sort(np.array([*np.linspace(-1, 2, 200), *xs])))
        assert np.all(np.diff(reads) >= 0)
        assert table.posteriors_of(xs).tolist() == ys

    @staticmethod
    def assert_one_by_one(table: CalibrationTable, scores: list[float]) -> None:
        one_by_one = np.array([table.posterior(score) for score in scores])
        assert one_by_one.tobytes() == table.posteriors_of(np.array(scores)).tobytes()
        known = one_by_one[~np.isnan(one_by_one)]
        assert np.all((known >= 0.0) & (known <= 1.0))

    def test_linear_table_by_hand(self):
        table = CalibrationTable(TableKind.LINEAR, (0.25, 0.75), (0.1, 0.5))
        reads = [table.posterior(score) for score in (0.0, 0.25, 0.5, 0.75, 1.0)]
        assert reads == pytest.approx([0.1, 0.1, 0.3, 0.5, 0.5], abs=1e-15)

    def test_step_table_by_hand(self):
        table = CalibrationTable(TableKind.STEP, (), (0.9, 0.1, 0.4))
        reads = [table.posterior(score) for score in (0.0, 0.33, 0.34, 0.7, 1.0, 2.0, -1.0)]
        assert reads == [0.9, 0.9, 0.1, 0.4, 0.4, 0.4, 0.9]
        assert math.isnan(table.posterior(math.nan))

    @given(rows, st.sampled_from(CalibratorKind))
    @settings(max_examples=50)
    def test_json_gives_every_bit_back(self, rows, kind):
        scores, outcomes, weights = zip(*rows, strict=True)
        table = fit_calibration(scores, outcomes, weights, kind, bins=16)
        again = CalibrationTable.from_dict(json.loads(json.dumps(table.to_dict())))
        assert again == table
        grid = np.linspace(0, 1, 101)
        assert again.posteriors_of(grid).tobytes() == table.posteriors_of(grid).tobytes()

    @pytest.mark.parametrize(
        ("kind", "scores", "posteriors"),
        [
            (TableKind.STEP, (), ()),
            (TableKind.STEP, (), (0.5, 1.5)),
            (TableKind.STEP, (0.5,), (0.5,)),
            (TableKind.LINEAR, (0.1, 0.2), (0.5,)),
            (TableKind.LINEAR, (0.2, 0.2), (0.1, 0.5)),
            (TableKind.LINEAR, (0.1, 0.2), (0.5, 0.1)),
            (TableKind.LINEAR, (0.1, math.nan), (0.1, 0.5)),
        ],
    )
    def test_what_is_no_table_is_refused(self, kind, scores, posteriors):
        with pytest.raises(ArrolError, match="allowed"):
            CalibrationTable(kind, scores, posteriors)


class TestFit:
    def test_no_rows_no_table(self):
        assert fit_calibration([], []) is None

    def test_auto_changes_at_a_thousand_labels(self):
        for labels, kind in ((999, CalibratorKind.LOGISTIC), (1_000, CalibratorKind.ISOTONIC)):
            scores, outcomes = labelled(labels)
            chosen = fit_calibration(scores, outcomes, None, kind)
            assert fit_calibration(scores, outcomes, None, CalibratorKind.AUTO) == chosen

    @given(rows, st.sampled_from(FITTED))
    @settings(max_examples=50)
    def test_only_ratios_of_weights_count(self, rows, kind):
        scores, outcomes, weights = (np.array(column) for column in zip(*rows, strict=True))
        table = fit_calibration(scores, outcomes, weights, kind, bins=8)
        doubled = fit_calibration(scores, outcomes, 2.0 * weights, kind, bins=8)
        assert doubled == table

    @pytest.mark.parametrize(
        ("scores", "outcomes", "weights", "named"),
        [
            ([0.5, 1.5], [0, 1], None, r"scores\[1\] is 1.5"),
            ([math.nan], [0], None, r"scores\[0\] is nan"),
            ([0.5], [0.7], None, r"outcomes\[0\] is 0.7"),
            ([0.5], [1], [0.0], r"weights\[0\] is 0.0"),
            ([0.5, 0.5], [1], None, "outcomes has 1 rows"),
            ([[0.5]], [[1]], None, "scores has shape"),
        ],
    )
    def test_wrong_rows_are_named(self, scores, outcomes, weights, named):
        with pytest.raises(ArrolError, match=named):
            fit_calibration(scores, outcomes, weights)


class TestLabelBuffer:
    def test_the_oldest_leave_whatever_their_class(self):
        buffer = LabelBuffer(3)
        buffer.append([0.1, 0.2], [1, 0], [0.5, 1.0], 1)
        buffer.append([0.3, 0.4], [1, 1], [0.9, 0.8], 2)
        assert len(buffer) == 3
        assert buffer.scores.tolist() == [0.2, 0.3, 0.4]
        assert buffer.outcomes.tolist() == [0, 1, 1]
        assert buffer.inclusion.tolist() == [1.0, 0.9, 0.8]
        assert buffer.versions.tolist() == [1, 2, 2]

    @given(st.lists(st.lists(st.tuples(unit, st.booleans()), max_size=8), max_size=8))
    def test_it_holds_the_tail_of_all_that_came(self, batches):
        buffer, everything = LabelBuffer(5), []
        for version, batch in enumerate(batches):
            scores, outcomes = [s for s, _ in batch], [y for _, y in batch]
            buffer.append(scores, outcomes, np.ones(len(batch)), version)
            everything += [(s, y, version) for s, y in batch]
        held = zip(buffer.scores, buffer.outcomes, buffer.versions, strict=True)
        assert list(held) == everything[-5:]

    def test_a_joint_queue_knows_the_pass_rate_and_two_capped_ones_forget_it(self):
        outcomes = np.random.default_rng(0).random(20_000) < 0.1
        joint = LabelBuffer(2_000)
        joint.append(np.full(20_000, 0.5), outcomes, np.ones(20_000), 0)
        right, wrong = np.flatnonzero(outcomes)[-1_000:], np.flatnonzero(~outcomes)[-1_000:]
        assert joint.outcomes.mean() == pytest.approx(0.1, abs=0.02)
        assert len(right) / (len(right) + len(wrong)) == 0.5

        # The error is that of every posterior: a score that knows nothing gets π.
        def posterior(labels: np.ndarray) -> float:
            scores = np.full(len(labels), 0.5)
            return fit_calibration(scores, labels, None, CalibratorKind.ISOTONIC).posterior(0.5)

        assert posterior(joint.outcomes) == pytest.approx(0.1, abs=0.02)
        assert posterior(outcomes[np.concatenate([right, wrong])]) == pytest.approx(0.5)

    @given(st.lists(st.tuples(unit, st.booleans(), st.floats(0.01, 1.0)), max_size=20))
    def test_json_gives_every_bit_back(self, rows):
        buffer = LabelBuffer(10)
        for version, (score, outcome, inclusion) in enumerate(rows):
            buffer.append([score], [outcome], [inclusion], version)
        again = LabelBuffer(10)
        again.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
        for name in ("scores", "outcomes", "inclusion", "versions"):
            assert getattr(again, name).tobytes() == getattr(buffer, name).tobytes()
            assert getattr(again, name).dtype == getattr(buffer, name).dtype

    def test_a_smaller_buffer_takes_the_newest_rows(self):
        buffer, smaller = LabelBuffer(9), LabelBuffer(2)
        buffer.append(np.arange(9) / 10, np.zeros(9), np.ones(9), 4)
        smaller.load_state_dict(buffer.state_dict())
        assert smaller.scores.tolist() == [0.7, 0.8]
        assert smaller.capacity == 2

    def test_a_wrong_row_is_named_and_nothing_is_added(self):
        buffer = LabelBuffer(4)
        with pytest.raises(ArrolError, match=r"inclusion\[1\] is 0.0"):
            buffer.append([0.1, 0.2], [1, 0], [0.5, 0.0], 1)
        assert len(buffer) == 0
