"""Keyed uniform numbers."""

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from arrol.keys import as_keys, splitmix64, stable_key, stream, uniform, uniforms

KEYS = st.integers(0, 2**64 - 1)

# First outputs of Vigna's reference splitmix64.c for seed 1234567, as published with many ports.
REFERENCE = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


def test_splitmix64_gives_the_reference_generators_outputs():
    gamma = 0x9E3779B97F4A7C15
    assert [splitmix64((1234567 + i * gamma) % 2**64) for i in range(5)] == REFERENCE


@given(KEYS, KEYS, st.lists(KEYS, min_size=1, max_size=20))
def test_arrays_and_single_keys_agree_to_the_last_bit(seed, version, keys):
    state = stream(seed, version)
    assert uniforms(state, as_keys(keys)).tolist() == [uniform(state, key) for key in keys]


def test_draws_of_neighbouring_keys_versions_and_seeds_are_uniform_and_uncorrelated():
    keys = np.arange(20_000, dtype=np.uint64)
    draws = {sv: uniforms(stream(*sv), keys) for sv in [(0, 1), (0, 2), (1, 1)]}
    for u in draws.values():
        assert stats.kstest(u, "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.03
    rows = list(draws.values())
    assert max(abs(np.corrcoef(rows)[np.triu_indices(3, 1)])) < 0.03


def test_stable_key_is_the_same_in_another_process():
    code = "from arrol.keys import stable_key; print(stable_key('prompt-7', 3, 'ü'))"
    other = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert int(other.stdout) == stable_key("prompt-7", 3, "ü")


def test_stable_key_tells_differently_cut_tuples_apart():
    tuples = [("ab", "c"), ("a", "bc"), ("abc",), ("1",), (1,), (11,), (1, 1), ("",), ()]
    assert len({stable_key(*parts) for parts in tuples}) == len(tuples)
