"""The scores that a plan's budget and slopes are solved over: all seen, the pruned ones' too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arrol.columns import Floats, check_column, check_one_length
from arrol.keys import splitmix64


class SeenScores:
    """The last scores seen at detection, the pruned rollouts' too, with their groups."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.scores: Floats = np.empty(0)
        self.groups: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self.scores)

    def append(self, scores_N: Floats, groups_N: NDArray[np.uint64], step: int) -> None:
        valid = is_score(scores_N)
        # The same prompt in another step is another group.
        groups = groups_N[valid] ^ np.uint64(splitmix64(step))
        self.scores = np.concatenate([self.scores, scores_N[valid]])[-self._capacity :]
        self.groups = np.concatenate([self.groups, groups])[-self._capacity :]

    def state_dict(self) -> dict[str, Any]:
        return {"scores": self.scores.tolist(), "groups": self.groups.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        scores = np.array(state["scores"], dtype=np.float64)
        groups = np.array(state["groups"], dtype=np.uint64)
        check_one_length(scores=scores, groups=groups)
        check_column("seen scores", scores, 0.0, 1.0)
        self.scores, self.groups = scores[-self._capacity :], groups[-self._capacity :]


def is_score(scores_N: Floats) -> NDArray[np.bool_]:
    """bool[N]: a number in [0, 1]."""
    valid: NDArray[np.bool_] = (scores_N >= 0.0) & (scores_N <= 1.0)
    return valid


def within_group_variance(posteriors_N: Floats, groups_N: NDArray[np.uint64]) -> float:
    """Pooled variance of q within groups, Σ(q − mean of its group)² / (N − groups).

    0 where no group has two members.
    """
    _, codes_N, counts_B = np.unique(groups_N, return_inverse=True, return_counts=True)
    freedom = len(posteriors_N) - len(counts_B)
    if freedom <= 0:
        return 0.0
    means_B = np.bincount(codes_N, posteriors_N) / counts_B
    return float(np.sum((posteriors_N - means_B[codes_N]) ** 2) / freedom)
