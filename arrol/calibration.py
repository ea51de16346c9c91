"""From quality scores to posteriors q = P(Y = 1 | s): the table an engine looks q up in.

The controller keeps the labelled rollouts in one :class:`LabelBuffer`, fits a
:class:`CalibrationTable` to it with :func:`fit_calibration` and sends the table, a plain value,
down with the plan. An engine reads one posterior at a time, a study reads arrays of them; both
ways give the same bits, or a replayed decision could differ from the one that was taken.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import expit, logit

from arrol.columns import Floats, Integers, as_columns, check_column, check_outcomes
from arrol.errors import ArrolError, as_member, check_integer, check_range

AUTO_SWITCH = 1_000  #: labels from which ``auto`` fits isotonic instead of logistic
SCORE_MARGIN = 1e-6  #: the logistic fit sees scores clipped to [margin, 1 − margin]
MAX_SLOPE = 1_000.0  #: of the logistic fit; beyond it the curve is a step
TABULATION_ERROR = 5e-5  #: largest error of a logistic table at the points that are checked


class CalibratorKind(StrEnum):
    """How posteriors are fitted to labelled scores."""

    HISTOGRAM = "histogram"  #: the paper's class histograms (appendix A.4)
    LOGISTIC = "logistic"  #: Platt's sigmoid on the score's logit
    ISOTONIC = "isotonic"  #: the best non-decreasing function
    AUTO = "auto"  #: logistic below ``AUTO_SWITCH`` labels, isotonic from there

    def resolve(self, labels: int) -> CalibratorKind:
        """The kind that is fitted to so many labels."""
        if self is not CalibratorKind.AUTO:
            return self
        return CalibratorKind.LOGISTIC if labels < AUTO_SWITCH else CalibratorKind.ISOTONIC


class TableKind(StrEnum):
    """How a :class:`CalibrationTable` is read."""

    STEP = "step"  #: one posterior for each of B equal bins of [0, 1]
    LINEAR = "linear"  #: straight lines between knots, constant outside


@dataclass(frozen=True)
class CalibrationTable:
    """Posterior as a function of the score.

    Attributes:
        kind: how the numbers are read.
        scores: the knots of a linear table, strictly increasing; empty for a step table.
        posteriors: one for each knot (non-decreasing) or for each of the B bins, in [0, 1].
            A score s lies in bin min(B − 1, ⌊Bs⌋); scores outside [0, 1] count as its ends.

    Raises:
        ArrolError: the numbers are not such a table.
    """

    kind: TableKind
    scores: tuple[float, ...]
    posteriors: tuple[float, ...]
    _columns: tuple[Floats, Floats] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", as_member("kind", TableKind, self.kind))
        (scores,) = as_columns(scores=self.scores)
        (posteriors,) = as_columns(posteriors=self.posteriors)
        _check_table(self.kind, scores, posteriors)
        object.__setattr__(self, "_columns", (scores, posteriors))

    def posterior(self, score: float) -> float:
        """q at one score, in plain Python floats; NaN for a NaN."""
        if score != score:
            return math.nan
        last = len(self.posteriors) - 1
        if self.kind is TableKind.STEP:
            inside = min(max(score, 0.0), 1.0)
            return self.posteriors[min(last, int((last + 1) * inside))]
        right = bisect_right(self.scores, score)
        if right == 0 or right > last:
            return self.posteriors[min(right, last)]
        x0, x1 = self.scores[right - 1], self.scores[right]
        y0, y1 = self.posteriors[right - 1], self.posteriors[right]
        return min(y0 + (score - x0) / (x1 - x0) * (y1 - y0), y1)

    def posteriors_of(self, scores_N: ArrayLike) -> Floats:
        """q at many scores, float64[N]; equal to :meth:`posterior` to the last bit."""
        scores_N = np.asarray(scores_N, dtype=np.float64)
        known = np.where(np.isnan(scores_N), 0.0, scores_N)
        read = self._read_bins if self.kind is TableKind.STEP else self._read_lines
        return np.where(np.isnan(scores_N), np.nan, read(known))

    def _read_bins(self, scores_N: Floats) -> Floats:
        posteriors = self._columns[1]
        bins = len(posteriors)
        return posteriors[bins_of(scores_N, bins)]

    def _read_lines(self, scores_N: Floats) -> Floats:
        knots, posteriors = self._columns
        last = len(knots) - 1
        right = _knots_up_to(scores_N, knots)
        # Beyond either end x0 = x1; the quotient is not read there.
        x0, x1 = knots[np.maximum(right - 1, 0)], knots[np.minimum(right, last)]
        y0, y1 = posteriors[np.maximum(right - 1, 0)], posteriors[np.minimum(right, last)]
        inside = (right > 0) & (right <= last)
        width = np.where(inside, x1 - x0, 1.0)
        offset = np.where(inside, scores_N - x0, 0.0)
        return np.where(inside, np.minimum(y0 + offset / width * (y1 - y0), y1), y1)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; JSON writes a float so that it reads back the same."""
        return {
            "kind": self.kind.value,
            "scores": list(self.scores),
            "posteriors": list(self.posteriors),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CalibrationTable:
        """The inverse of :meth:`to_dict`."""
        return cls(
            kind=TableKind(values["kind"]),
            scores=tuple(float(score) for score in values["scores"]),
            posteriors=tuple(float(posterior) for posterior in values["posteriors"]),
        )


def _knots_up_to(scores_N: Floats, knots: Floats) -> Integers:
    """How many knots are at or below each score.

    That is ``np.searchsorted(knots, scores_N, side="right")``, the other way round: knots are
    looked up among the sorted scores, as there are far fewer of them. It takes a third of the time.
    """
    order_N = np.argsort(scores_N)
    below = np.searchsorted(scores_N[order_N], knots)
    runs = np.diff(np.concatenate([[0], below, [len(scores_N)]]))
    counts_N = np.empty(len(scores_N), dtype=np.int64)
    counts_N[order_N] = np.repeat(np.arange(len(knots) + 1), runs)
    return counts_N


def fit_calibration(
    scores_N: ArrayLike,
    outcomes_N: ArrayLike,
    weights_N: ArrayLike | None = None,
    kind: CalibratorKind = CalibratorKind.AUTO,
    bins: int = 128,
    smoothing: float = 1.0,
) -> CalibrationTable | None:
    """Fit q(s) to labelled scores; None when there are no rows.

    Args:
        scores_N: quality scores in [0, 1].
        outcomes_N: 0 or 1 each. One class alone is fine.
        weights_N: positive, for instance 1/p for a label seen with probability p. Only their
            ratios count: they are scaled to a mean of 1, so that ``smoothing`` and Platt's
            targets weigh against the number of labels.
        kind: the calibrator.
        bins: B of the histogram.
        smoothing: α, rollouts added to each class in each bin (histogram) or at the ends
            (isotonic). The logistic fit has Platt's own smoothing.

    Raises:
        ArrolError: a value is outside its range, or lengths differ.
    """
    weights_N = np.ones(np.shape(scores_N)) if weights_N is None else weights_N
    scores, outcomes, weights = as_columns(scores=scores_N, outcomes=outcomes_N, weights=weights_N)
    check_column("scores", scores, 0.0, 1.0)
    check_outcomes("outcomes", outcomes)
    check_column("weights", weights, 0.0, open_low=True)
    check_integer("bins", bins, 1)
    check_range("smoothing", smoothing, 0.0)
    if len(scores) == 0:
        return None
    weights = weights / weights.mean()
    match kind.resolve(len(scores)):
        case CalibratorKind.HISTOGRAM:
            return _fit_histogram(scores, outcomes, weights, bins, smoothing)
        case CalibratorKind.LOGISTIC:
            return _fit_logistic(scores, outcomes, weights)
        case _:
            return _fit_isotonic(scores, outcomes, weights, smoothing)


def bins_of(scores_N: Floats, bins: int) -> Integers:
    """b(s) = min(B − 1, ⌊Bs⌋) of each score (paper, appendix A.4)."""
    inside = np.clip(scores_N, 0.0, 1.0)
    return np.minimum((bins * inside).astype(np.int64), bins - 1)


def _fit_histogram(
    scores: Floats, outcomes: Floats, weights: Floats, bins: int, smoothing: float
) -> CalibrationTable:
    """Bayes' rule on smoothed class histograms, the paper's appendix A.4:

    P(b | Y=±) = (c±_b + α) / (Σ c± + αB),   q_b = π P(b|1) / (π P(b|1) + (1 − π) P(b|0)).

    The prior π is the share of right ones among the same rows with the same weights, so α = 0
    gives the share of right ones in each bin. A bin about which nothing is known gets π.

    Caution: αB rollouts are added to each class, so with few labels the rarer class is flattened
    more and q in the crowded bins leans against it (10% right, 1,000 labels, all in one of 128
    bins, α = 1: q = .053).
    """
    index = bins_of(scores, bins)
    right: Floats = np.bincount(index, weights * outcomes, bins).astype(np.float64)
    wrong: Floats = np.bincount(index, weights * (1.0 - outcomes), bins).astype(np.float64)
    prior = right.sum() / (right.sum() + wrong.sum())
    joint_right = prior * _class_histogram(right, smoothing)
    joint_wrong = (1.0 - prior) * _class_histogram(wrong, smoothing)
    evidence = joint_right + joint_wrong
    posteriors = np.divide(joint_right, evidence, out=np.full(bins, prior), where=evidence > 0.0)
    return CalibrationTable(TableKind.STEP, (), tuple(posteriors.tolist()))


def _class_histogram(counts: Floats, smoothing: float) -> Floats:
    total = counts.sum() + smoothing * len(counts)
    return (counts + smoothing) / total if total > 0.0 else np.zeros_like(counts)


def _fit_logistic(scores: Floats, outcomes: Floats, weights: Floats) -> CalibrationTable:
    """q = σ(a·logit(s) + b) with 0 ≤ a ≤ ``MAX_SLOPE``, tabulated.

    Maximum likelihood on Platt's (1999) soft targets (N₊ + 1)/(N₊ + 2) and 1/(N₋ + 2).

    Scores are clipped to [``SCORE_MARGIN``, 1 − ``SCORE_MARGIN``]. The bound a ≥ 0 keeps a head
    that ranks the wrong way round from being trusted the wrong way round: it gives a constant.
    """
    slope, intercept = platt_parameters(scores, outcomes, weights)
    reach = float(logit(1.0 - SCORE_MARGIN))
    logits = _dense_knots(lambda z: expit(slope * z + intercept), reach)
    # Rounding must not undo the order where the curve is flat.
    posteriors = np.maximum.accumulate(expit(slope * logits + intercept))
    knots = expit(logits)
    return CalibrationTable(TableKind.LINEAR, tuple(knots.tolist()), tuple(posteriors.tolist()))


def platt_parameters(scores: Floats, outcomes: Floats, weights: Floats) -> tuple[float, float]:
    """Slope a in [0, ``MAX_SLOPE``] and intercept b of Platt's sigmoid on the score's logit."""
    logits = logit(np.clip(scores, SCORE_MARGIN, 1.0 - SCORE_MARGIN))
    right, wrong = _dot(weights, outcomes), _dot(weights, 1.0 - outcomes)
    targets = np.where(outcomes == 1.0, (right + 1.0) / (right + 2.0), 1.0 / (wrong + 2.0))

    def loss(parameters: Floats) -> tuple[float, Floats]:
        margin = parameters[0] * logits + parameters[1]
        log_loss = np.logaddexp(0.0, margin) - targets * margin
        residual = weights * (expit(margin) - targets) / len(logits)
        gradient = np.array([_dot(residual, logits), residual.sum()])
        return _dot(weights, log_loss) / len(logits), gradient

    start = np.array([0.0, logit(_dot(weights, targets) / weights.sum())])
    # The loss is convex; the tolerances are at the edge of what doubles can resolve.
    fit = minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, MAX_SLOPE), (None, None)],
        options={"ftol": 1e-15, "gtol": 1e-10},
    )
    return float(fit.x[0]), float(fit.x[1])


def _dot(left: Floats, right: Floats) -> float:
    """Not by BLAS: at some thousand rows its threads cost more than they bring."""
    return float((left * right).sum())


def _dense_knots(curve: Callable[[Floats], Floats], reach: float) -> Floats:
    """Logits in [−reach, reach] between which straight lines (in the score) follow ``curve``."""
    knots = np.linspace(-reach, reach, 65)
    while True:
        # Three points a gap: a curve that crosses its chord in the middle is caught beside it.
        points = [knots[:-1] + part * np.diff(knots) for part in (0.25, 0.5, 0.75)]
        chords = [np.interp(expit(z), expit(knots), curve(knots)) for z in points]
        errors = [np.abs(chord - curve(z)) for chord, z in zip(chords, points, strict=True)]
        coarse = np.max(errors, axis=0) > TABULATION_ERROR
        if not coarse.any():
            return knots
        knots = np.sort(np.concatenate([knots, points[1][coarse]]))


def _fit_isotonic(
    scores: Floats, outcomes: Floats, weights: Floats, smoothing: float
) -> CalibrationTable:
    """The non-decreasing function closest to the outcomes in weighted squares (scikit-learn's).

    α right rollouts at score 0 and α wrong ones at score 1 are added, the least favourable
    places, so that no posterior is exactly 0 or 1: the lowest block of n wrong ones gets
    α/(n + α), and a single class gets Laplace's rule of succession.
    """
    # Half a second to import, and only a controller fits: an engine need not pay for it.
    from sklearn.isotonic import IsotonicRegression

    if smoothing > 0.0:
        scores = np.concatenate([scores, [0.0, 1.0]])
        outcomes = np.concatenate([outcomes, [1.0, 0.0]])
        weights = np.concatenate([weights, [smoothing, smoothing]])
    fit = IsotonicRegression(y_min=0.0, y_max=1.0).fit(scores, outcomes, sample_weight=weights)
    knots, posteriors = fit.X_thresholds_.tolist(), fit.y_thresholds_.tolist()
    return CalibrationTable(TableKind.LINEAR, tuple(knots), tuple(posteriors))


def _check_table(kind: TableKind, scores: Floats, posteriors: Floats) -> None:
    if len(posteriors) == 0:
        raise ArrolError("posteriors has 0 entries; allowed is at least one.")
    check_column("posteriors", posteriors, 0.0, 1.0)
    if len(scores) != (0 if kind is TableKind.STEP else len(posteriors)):
        raise ArrolError(
            f"scores has {len(scores)} entries beside {len(posteriors)} posteriors; "
            "allowed is none in a step table and as many in a linear one."
        )
    check_column("scores", scores)
    if kind is TableKind.LINEAR and not (
        np.all(np.diff(scores) > 0.0) and np.all(np.diff(posteriors) >= 0.0)
    ):
        raise ArrolError(
            "the knots of a linear table are out of order; "
            "allowed are increasing scores with non-decreasing posteriors."
        )


class LabelBuffer:
    """The last ``capacity`` labelled rollouts: one joint first-in, first-out queue.

    Right and wrong ones share it. Two queues, one a class and each capped for itself, both fill
    up in a long run, and the prior drifts to ½ whatever the pass rate is.

    Attributes (arrays in order of arrival):
        scores: quality scores, float64[N].
        outcomes: 0.0 or 1.0, float64[N].
        inclusion: probability with which the label got to be seen, float64[N].
        versions: the plan's version, int64[N].
    """

    def __init__(self, capacity: int) -> None:
        check_integer("capacity", capacity, 1)
        self.capacity = capacity
        self.scores: Floats = np.empty(0)
        self.outcomes: Floats = np.empty(0)
        self.inclusion: Floats = np.empty(0)
        self.versions: Integers = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.scores)

    def append(
        self,
        scores_N: ArrayLike,
        outcomes_N: ArrayLike,
        inclusion_N: ArrayLike,
        version: int | Integers,
    ) -> None:
        """Add rows, in order; the oldest beyond ``capacity`` leave.

        Raises:
            ArrolError: a score or an inclusion probability is outside its range, an outcome is
                not 0 or 1, or lengths differ. Nothing is added then.
        """
        scores, outcomes, inclusion = as_columns(
            scores=scores_N, outcomes=outcomes_N, inclusion=inclusion_N
        )
        check_column("scores", scores, 0.0, 1.0)
        check_outcomes("outcomes", outcomes)
        check_column("inclusion", inclusion, 0.0, 1.0, open_low=True)
        versions = np.broadcast_to(np.asarray(version, dtype=np.int64), scores.shape)
        kept = slice(-self.capacity, None)
        self.scores = np.concatenate([self.scores, scores])[kept]
        self.outcomes = np.concatenate([self.outcomes, outcomes])[kept]
        self.inclusion = np.concatenate([self.inclusion, inclusion])[kept]
        self.versions = np.concatenate([self.versions, versions])[kept]

    def state_dict(self) -> dict[str, Any]:
        """The rows as JSON lists; :meth:`load_state_dict` restores them to the last bit."""
        return {
            "scores": self.scores.tolist(),
            "outcomes": self.outcomes.tolist(),
            "inclusion": self.inclusion.tolist(),
            "versions": self.versions.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all rows by those of ``state``; the newest ``capacity`` of them stay."""
        fresh = LabelBuffer(self.capacity)
        versions = np.asarray(state["versions"], dtype=np.int64)
        fresh.append(state["scores"], state["outcomes"], state["inclusion"], versions)
        self.__dict__.update(fresh.__dict__)
