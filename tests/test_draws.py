"""Draws: marginals and counts."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from arrol.draws import bernoulli_keep, systematic_keep, systematic_keeps

SURVIVALS = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=16)
# Multiples of 1/64 add up without rounding, so exact statements can be made about them.
EXACT = st.lists(st.integers(0, 64).map(lambda n: n / 64), min_size=1, max_size=16)


def kept(survivals, u):
    spent, keeps = 0.0, []
    for p in survivals:
        keeps.append(systematic_keep(u, spent, p))
        spent += p
    return keeps


@given(SURVIVALS, st.floats(0.0, 1.0, exclude_max=True))
def test_systematic_count_is_the_budget_rounded_down_or_up(survivals, u):
    total = math.fsum(survivals)
    count = sum(kept(survivals, u))
    assert math.floor(total - 1e-9) <= count <= math.ceil(total + 1e-9)


@given(EXACT)
def test_systematic_marginals_are_exactly_p(survivals):
    """Decisions change only where C_i + u crosses an integer, and all C_i are multiples of 1/64:
    so the average over u = (j + ½)/64 is the integral over [0, 1)."""
    keeps = np.array([kept(survivals, (j + 0.5) / 64) for j in range(64)])
    for i, p in enumerate(survivals):
        assert Fraction(int(keeps[:, i].sum()), 64) == Fraction(p)


@given(SURVIVALS, st.floats(0.0, 1.0, exclude_max=True))
def test_arrays_agree_with_single_draws(survivals, u):
    before = np.concatenate([[0.0], np.cumsum(survivals)[:-1]])
    together = systematic_keeps(np.full(len(survivals), u), before, np.array(survivals))
    assert together.tolist() == [
        systematic_keep(u, b, p) for b, p in zip(before.tolist(), survivals, strict=True)
    ]


def test_certain_and_impossible():
    for u in (0.0, 0.25, 1.0 - 2.0**-53):
        assert bernoulli_keep(u, 1.0)
        assert not bernoulli_keep(u, 0.0)
        assert systematic_keep(u, 3.0, 1.0)
        assert not systematic_keep(u, 3.0, 0.0)


def test_bernoulli_share_is_p():
    u = (np.arange(1000) + 0.5) / 1000
    assert sum(bernoulli_keep(x, 0.3) for x in u) == 300
