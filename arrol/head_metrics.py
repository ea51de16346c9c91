"""How good quality scores are, seen on survivors."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr

from arrol.columns import Floats
from arrol.estimators import auc, brier, expected_calibration_error


def score_metrics(scores_N: Floats, outcomes_N: Floats, inclusion_N: Floats) -> dict[str, float]:
    """Quality of scores in [0, 1] against outcomes 0 or 1; NaN where it is not defined.

    ``auc`` and ``spearman`` (rank correlation with the outcome) are the survivors' own. With
    weights 1/p, so that they speak of all rollouts: ``auc_weighted``, ``brier``,
    ``calibration_error`` (15 bins) and ``accuracy`` (share where score ≥ ½ says the outcome).
    """
    weights = 1.0 / inclusion_N
    correct = ((scores_N >= 0.5) == (outcomes_N == 1.0)).astype(np.float64)
    return {
        "auc": auc(scores_N, outcomes_N),
        "auc_weighted": auc(scores_N, outcomes_N, weights),
        "accuracy": float(weights @ correct / weights.sum()) if len(weights) else np.nan,
        "brier": brier(scores_N, outcomes_N, weights),
        "calibration_error": expected_calibration_error(scores_N, outcomes_N, weights),
        "spearman": _spearman(scores_N, outcomes_N),
    }


def _spearman(left_N: Floats, right_N: Floats) -> float:
    """Spearman's ρ with midranks; NaN where one side is constant."""
    if len(left_N) == 0 or np.ptp(left_N) == 0.0 or np.ptp(right_N) == 0.0:
        return np.nan
    return float(spearmanr(left_N, right_N).statistic)
