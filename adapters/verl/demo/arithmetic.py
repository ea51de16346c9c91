"""The demo's task: additions, written out digit by digit, and which answers are right.

``47+85=`` is answered by ``7+5=12;4+8+1=13;=132``: one part for each column from the right, then
the sum. An early part that went wrong shows, as on real rollouts, before the answer is there.
"""

from __future__ import annotations

import numpy as np


def written_out(first: int, second: int) -> str:
    """The answer to ``first + second``: every column with its carry, then ``=`` and the sum.

    Both numbers have the same count of digits.
    """
    parts = []
    carry = 0
    for digit_1, digit_2 in zip(reversed(str(first)), reversed(str(second)), strict=True):
        total = int(digit_1) + int(digit_2) + carry
        parts.append(f"{digit_1}+{digit_2}{'+1' if carry else ''}={total}")
        carry = total // 10
    return ";".join([*parts, f"={first + second}"])


def question(first: int, second: int) -> str:
    """The user's message: ``47+85=``."""
    return f"{first}+{second}="


def is_right(answer: str, total: str) -> bool:
    """Whether ``answer`` ends in ``;=`` and ``total``; the steps before it are not judged."""
    _, mark, last = answer.strip().rpartition(";=")
    return bool(mark) and last == total


def draw(count: int, seed: int) -> list[tuple[int, int]]:
    """``count`` pairs of two- or three-digit numbers, each kind equally often on average."""
    generator = np.random.default_rng(seed)
    digits_N = generator.integers(2, 4, size=count)
    low_N = 10 ** (digits_N - 1)
    pairs_N2 = generator.integers(low_N[:, None], 10 * low_N[:, None], size=(count, 2))
    return [(int(first), int(second)) for first, second in pairs_N2]
