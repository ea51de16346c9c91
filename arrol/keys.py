"""Keyed uniform numbers: a pure function of (seed, plan version, key).

The draw of a rollout must be the same on every rank, in every batch order and after a restart,
so no generator state is kept. The mixer is SplitMix64 (Steele, Lea, Flood, 2014), applied once
for each of the three inputs; it works alike on Python integers and on whole uint64 arrays.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_FACTOR_1 = 0xBF58476D1CE4E5B9
_FACTOR_2 = 0x94D049BB133111EB
_UNIT = 2.0**-53


def stable_key(*parts: str | int) -> int:
    """A 64-bit key for a tuple of strings and integers, the same in every process.

    ``stable_key("prompt-7", 3)`` names rollout 3 of a prompt; BLAKE2b over the parts with their
    types and lengths, so that no two different tuples are spelled alike.
    """
    digest = blake2b(digest_size=8)
    for part in parts:
        text = str(part).encode("utf-8", "surrogatepass")
        kind = b"i" if isinstance(part, int) else b"s"
        digest.update(kind + len(text).to_bytes(8, "big") + text)
    return int.from_bytes(digest.digest(), "big")


def splitmix64(state: int) -> int:
    """SplitMix64's output for the state ``state`` (which the generator adds γ to first)."""
    z = (state + _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * _FACTOR_1) & _MASK
    z = ((z ^ (z >> 27)) * _FACTOR_2) & _MASK
    return z ^ (z >> 31)


def stream(seed: int, version: int) -> int:
    """The 64-bit state that the draws of one plan version start from."""
    return splitmix64(splitmix64(seed & _MASK) ^ (version & _MASK))


def uniform(state: int, key: int) -> float:
    """u(key) in [0, 1), 53 bits: the draw of one rollout (bernoulli) or group (systematic).

    Args:
        state: ``stream(seed, version)``.
        key: a 64-bit key.
    """
    return (splitmix64(state ^ (key & _MASK)) >> 11) * _UNIT


def uniforms(state: int, keys_N: NDArray[np.uint64]) -> NDArray[np.float64]:
    """:func:`uniform` of every key of an array [N], equal to the last bit."""
    z = np.asarray(keys_N, dtype=np.uint64) ^ np.uint64(state)
    z = z + np.uint64(_GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FACTOR_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_FACTOR_2)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * _UNIT


def as_keys(values: Any) -> NDArray[np.uint64]:
    """An array of 64-bit keys from integers (negative ones wrap) or from a uint64 array."""
    if isinstance(values, np.ndarray) and values.dtype == np.uint64:
        return values
    return np.fromiter((int(v) & _MASK for v in values), dtype=np.uint64, count=len(values))
