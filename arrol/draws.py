"""From survival probability p to a decision.

``bernoulli`` (paper): keep iff u(request) < p. Rollouts are decided independently, so of n the
number kept has variance Σ p(1 − p).

``systematic`` (ours; Madow, 1949): one u for each group and C_i = p_1 + … + p_i; keep iff an
integer lies in (C_{i−1} + u, C_i + u]. Each rollout still survives with probability exactly p_i,
it is decided at once, and the number kept is ⌊C_n⌋ or ⌈C_n⌉.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def bernoulli_keep(u: float, survival: float) -> bool:
    """Keep iff u < p, with u uniform in [0, 1)."""
    return u < survival


def systematic_keep(u: float, before: float, survival: float) -> bool:
    """Keep iff ⌊C_i + u⌋ > ⌊C_{i−1} + u⌋ with C_{i−1} = ``before`` and C_i = before + p."""
    return math.floor(before + survival + u) > math.floor(before + u)


def systematic_keeps(u_N: Floats, before_N: Floats, survivals_N: Floats) -> NDArray[np.bool_]:
    """:func:`systematic_keep` of rows of N different groups."""
    keeps: NDArray[np.bool_] = np.floor(before_N + survivals_N + u_N) > np.floor(before_N + u_N)
    return keeps
