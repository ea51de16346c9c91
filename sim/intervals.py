"""Means over independent repetitions, with their 95% intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import t as student

CONFIDENCE = 0.95


def mean_and_half_width(values_S: Sequence[float]) -> tuple[float, float]:
    """Mean of S repetitions and half the width of its 95% interval (Student's t).

    NaN repetitions are left out; the half width is NaN where fewer than two are left.
    """
    values = np.asarray(values_S, dtype=np.float64)
    values = values[~np.isnan(values)]
    if len(values) == 0:
        return float("nan"), float("nan")
    if len(values) == 1:
        return float(values[0]), float("nan")
    quantile = student.ppf(0.5 + CONFIDENCE / 2.0, len(values) - 1)
    return float(values.mean()), float(quantile * values.std(ddof=1) / np.sqrt(len(values)))


def with_intervals(repetitions_S: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean and half width of each measure: columns "X" and "X ±", side by side."""
    columns: dict[str, float] = {}
    for name in repetitions_S[0]:
        mean, half = mean_and_half_width([repetition[name] for repetition in repetitions_S])
        columns[name], columns[f"{name} ±"] = mean, half
    return columns
