"""How sure a model was of what it wrote, from the log-probabilities of its tokens.

Two figures of a token whose distribution over V tokens is p, in nats:

* token confidence C = −(1/k) Σ_{j in top k} log p_j (DeepConf: Fu et al., "Deep Think with
  Confidence", arXiv 2508.15260). High where p is peaked, as the other k − 1 are unlikely then;
  least, log k, where the top k share everything evenly. A p that is flat over all V has C = log V,
  which is not low: for k < V the figure does not always rise with sharpness.
* self-certainty KL(uniform ‖ p) = −(1/V) Σ_j log(V p_j) (Kang et al., arXiv 2502.18581).

A trace is T tokens. DeepConf averages C over groups, which are all windows of w tokens in a row,
and takes from them the lowest, the mean of the lowest tenth, or the last one (the tail). Its code
rounds to three decimals on the way; nothing is rounded here. Either figure may be fed to the
windows, whole (:func:`trace_confidence`) or token by token (:class:`ConfidenceStream`): both add
up the same sums in the same order, so they agree to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arrol.columns import Floats, as_columns, check_column
from arrol.errors import ArrolError, check_integer, check_range

TOP_K = 20  #: DeepConf's k, and the most that vLLM and most servers return unless told otherwise
WINDOW = 2048  #: DeepConf's group, tokens
SHARE = 0.1  #: DeepConf's share of the lowest groups
MASS_SLACK = 0.05  #: by which rounded probabilities may miss a sum of 1 (bfloat16 log-probs do)
LEAST_REST = 1e-6  #: probability that float32 log-probs of the top k can't tell from none left
_BLOCK = 1 << 20  #: numbers that are worked on at a time: rows over a vocabulary are long


def token_confidence(log_probs_TK: ArrayLike, k: int = TOP_K) -> Floats:
    """C of each token: minus the mean of its k largest log-probabilities. float64[T], nats.

    It takes whole rows [T, V] or what a server returns, [T, K] with K ≥ k in any order, and gives
    the same to the last bit, as long as both come from one distribution. Mind what differs:

    * vLLM adds the sampled token where it is not among the top k. The definition leaves it out, so
      only the k largest count here; DeepConf's own code averages all k + 1.
    * servers take log-probabilities before temperature and top-p, unless told otherwise. After
      top-p most are −∞, and C is then refused rather than infinite.

    Args:
        log_probs_TK: natural logarithms, finite where they are among a row's k largest.
        k: how many of a row count.

    Raises:
        ArrolError: the array is not two-dimensional, has fewer than k columns, or a row can't be
            log-probabilities: NaN, above 0, one of its top k −∞, or probabilities that sum to more
            than 1.
    """
    check_integer("k", k, 1)
    rows = _rows(log_probs_TK)
    if rows.shape[1] < k:
        raise ArrolError(f"k is {k}; allowed is at most {rows.shape[1]}, the columns of log_probs.")

    def confidence(block: Floats, start: int) -> Floats:
        _check_mass(block, start, whole=False)
        # Sorted, so that the order in which a server lists them makes no difference to the sum.
        top = np.sort(np.partition(block, -k, axis=1)[:, -k:], axis=1)
        _check_finite(top, start)
        mean_T: Floats = top.mean(axis=1)
        return -mean_T

    return _by_blocks(rows, confidence)


def self_certainty(log_probs_TK: ArrayLike, vocabulary: int | None = None) -> Floats:
    """KL(uniform ‖ p) of each token, −(1/V) Σ_j log(V p_j). float64[T], nats, at least 0.

    From whole rows it is exact. From the top K of V tokens it is a lower bound: the probability
    that is left is spread evenly over the V − K others, which is where Σ −log p_j is least
    (Jensen), and none of them gets more than the smallest of the top K. So it is exact where the
    others are equally likely. Don't compare figures of different K.

    Args:
        log_probs_TK: rows over all V tokens, or the top K of each.
        vocabulary: V, where the rows hold only the top K < V; None for whole rows.

    Raises:
        ArrolError: as :func:`token_confidence`; whole rows must be finite and sum to 1.
    """
    rows = _rows(log_probs_TK)
    count = rows.shape[1]
    if vocabulary is not None:
        check_integer("vocabulary", vocabulary, count + 1)

    def certainty(block: Floats, start: int) -> Floats:
        mass = _check_mass(block, start, whole=vocabulary is None)
        _check_finite(block, start)
        total: Floats = -block.sum(axis=1)
        if vocabulary is None:
            exact: Floats = total / count - math.log(count)
            return exact
        others = vocabulary - count
        even = np.maximum(1.0 - mass, LEAST_REST) / others
        rest = np.minimum(np.log(even), block.min(axis=1))
        bound: Floats = (total - others * rest) / vocabulary - math.log(vocabulary)
        return bound

    return _by_blocks(rows, certainty)


def top_log_probs(rows: Iterable[Iterable[float]], k: int = TOP_K) -> Floats:
    """The k largest log-probabilities of each token, largest first: float64[T, k].

    For servers' lists, which have k entries for one token and k + 1 for the next.

    Raises:
        ArrolError: a token has fewer than k.
    """
    check_integer("k", k, 1)
    tops = [sorted(map(float, row), reverse=True)[:k] for row in rows]
    for place, top in enumerate(tops):
        if len(top) < k:
            raise ArrolError(f"log_probs[{place}] has {len(top)} entries; allowed is at least {k}.")
    return np.array(tops, dtype=np.float64).reshape(len(tops), k)


@dataclass(frozen=True, slots=True)
class TraceConfidence:
    """One trace's token confidences, summed up in DeepConf's four ways.

    Attributes:
        tokens: T.
        mean: over all tokens.
        tail: over the last window.
        lowest: over the window where it is least.
        bottom: mean over the share of the windows with the lowest means.

    Of a trace no longer than a window, all four are its mean.
    """

    tokens: int
    mean: float
    tail: float
    lowest: float
    bottom: float


def trace_confidence(
    confidences_T: ArrayLike, window: int = WINDOW, share: float = SHARE
) -> TraceConfidence:
    """Sum up a whole trace.

    Args:
        confidences_T: confidence of each token, T ≥ 1.
        window: tokens of a group.
        share: share of the windows that :attr:`TraceConfidence.bottom` averages; at least one.

    Raises:
        ArrolError: the trace is empty or holds a value that is not finite, ``window`` is no
            positive integer, or ``share`` is not in (0, 1].
    """
    return _summary(_running_sums(confidences_T, window), window, share)


def window_means(confidences_T: ArrayLike, window: int = WINDOW) -> Floats:
    """Mean of each window of ``window`` tokens, first to last: float64[T − window + 1].

    A trace shorter than the window is one window. A mean is the difference of two running sums:
    with C around 20 its error is below 1e-9 up to a million tokens.

    Raises:
        ArrolError: as :func:`trace_confidence`.
    """
    return _means(_running_sums(confidences_T, window), window)


class ConfidenceStream:
    """A trace's confidence while it is written, one token after another.

    After every token :meth:`summary` is what :func:`trace_confidence` says of the tokens so far, to
    the last bit. A token takes constant time; its running sum is kept.

    Args:
        window: tokens of a group.
    """

    def __init__(self, window: int = WINDOW) -> None:
        check_integer("window", window, 1)
        self.window = window
        self.lowest = math.inf  #: lowest group so far; infinite before the first token
        self._sums = [0.0]

    def __len__(self) -> int:
        return len(self._sums) - 1

    def add(self, confidence: float) -> float:
        """Take the next token in; the mean of the last window, what DeepConf stops a trace by.

        Raises:
            ArrolError: ``confidence`` is no finite number.
        """
        check_range("confidence", confidence)
        self._sums.append(self._sums[-1] + float(confidence))
        width = min(self.window, len(self))
        group = (self._sums[-1] - self._sums[-1 - width]) / width
        # Up to one window the trace is one group, so an earlier mean is none of its groups.
        self.lowest = min(self.lowest, group) if len(self) > self.window else group
        return group

    def summary(self, share: float = SHARE) -> TraceConfidence:
        """Sum up the tokens so far.

        Raises:
            ArrolError: there is none yet, or ``share`` is not in (0, 1].
        """
        if not len(self):
            raise ArrolError("confidences has 0 tokens; allowed is at least 1.")
        return _summary(np.array(self._sums), self.window, share)


def _running_sums(confidences_T: ArrayLike, window: int) -> Floats:
    """0 and the sums of the first 1, 2, … T confidences."""
    check_integer("window", window, 1)
    (confidences,) = as_columns(confidences=confidences_T)
    check_column("confidences", confidences)
    if not len(confidences):
        raise ArrolError("confidences has 0 tokens; allowed is at least 1.")
    return np.concatenate(([0.0], np.cumsum(confidences)))


def _means(sums: Floats, window: int) -> Floats:
    width = min(window, len(sums) - 1)
    return (sums[width:] - sums[:-width]) / width


def _summary(sums: Floats, window: int, share: float) -> TraceConfidence:
    check_range("share", share, 0.0, 1.0, open_low=True)
    means = _means(sums, window)
    # As much as rounding can take from a product that is a whole number.
    count = max(1, math.floor(share * len(means) + 1e-9))
    tokens = len(sums) - 1
    return TraceConfidence(
        tokens=tokens,
        mean=float(sums[-1] / tokens),
        tail=float(means[-1]),
        lowest=float(means.min()),
        bottom=float(np.partition(means, count - 1)[:count].mean()),
    )


def _rows(log_probs_TK: ArrayLike) -> NDArray[np.floating]:
    rows = np.asarray(log_probs_TK)
    if rows.ndim != 2 or not rows.shape[1]:
        raise ArrolError(
            f"log_probs has shape {rows.shape}; allowed is [tokens, columns] with a column or more."
        )
    if not np.issubdtype(rows.dtype, np.floating):
        rows = rows.astype(np.float64)
    return rows


def _by_blocks(rows: NDArray[np.floating], function: Callable[[Floats, int], Floats]) -> Floats:
    """``function`` of some rows at a time, as float64, and of the first one's number."""
    step = max(1, _BLOCK // rows.shape[1])
    starts = range(0, len(rows), step)
    parts: Sequence[Floats] = [
        function(np.ascontiguousarray(rows[start : start + step], dtype=np.float64), start)
        for start in starts
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def _check_mass(block: Floats, start: int, whole: bool) -> Floats:
    """Probabilities of each row, summed; an error where they are none."""
    with np.errstate(over="ignore"):  # logits in place of log-probs
        mass_T: Floats = np.exp(block).sum(axis=1)
    high = mass_T <= 1.0 + MASS_SLACK  # False for NaN
    wrong = ~(high & (mass_T >= 1.0 - MASS_SLACK)) if whole else ~high
    if wrong.any():
        row = int(np.argmax(wrong))
        total = "1" if whole else "at most 1"
        raise ArrolError(
            f"log_probs[{start + row}] has probabilities that sum to {float(mass_T[row]):.4g}; "
            f"allowed are natural logarithms of probabilities that sum to {total}."
        )
    return mass_T


def _check_finite(block: Floats, start: int) -> None:
    wrong = ~np.isfinite(block).all(axis=1)
    if wrong.any():
        row = start + int(np.argmax(wrong))
        raise ArrolError(
            f"log_probs[{row}] counts a token of probability 0; allowed are finite log-probs, as "
            "they are before top-k or top-p."
        )
