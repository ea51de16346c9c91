"""A reward function for mathematics, as verl calls it (``reward.custom_reward_function``).

verl 0.9.1 compares answers as texts, and knows no checker for MinervaMath, OlympiadBench and
AMC'23. This one compares values (:mod:`arrol.answers`), whatever the data source is called.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from arrol.answers import Verdict, Verifier


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float]:
    """Whether a solution ends with the right answer.

    Returns:
        ``score``, the reward: 1 or −1, as DAPO has it, so that its overlong penalty has the weight
        that it has there; ``acc``, the outcome: 1 or 0; ``unverifiable``: 1 where it can't be told,
        which counts as wrong.

    Raises:
        ArrolError: math-verify is not installed (``pip install "arrol[verify]"``).
    """
    verdict = _verifier().verify_all([solution_str], [str(ground_truth)])[0]
    right = verdict is Verdict.RIGHT
    return {
        "score": 1.0 if right else -1.0,
        "acc": float(right),
        "unverifiable": float(verdict is Verdict.UNVERIFIABLE),
    }


@cache
def _verifier() -> Verifier:
    """One for the whole process: verl calls from several threads of each reward worker."""
    return Verifier(workers=1)
