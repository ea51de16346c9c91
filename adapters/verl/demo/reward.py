"""The reward function of the demo, as verl calls it (``reward.custom_reward_function``)."""

from __future__ import annotations

from typing import Any

from arrol.adapters.verl.demo.arithmetic import is_right


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float]:
    """1.0 for the right sum, else 0.0: as ``score`` (the reward) and ``acc`` (the outcome)."""
    right = float(is_right(solution_str, ground_truth))
    return {"score": right, "acc": right}
