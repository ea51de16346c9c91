"""The reward function for mathematics: what verl gets to see of a verdict."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from arrol.adapters.verl.math_reward import compute_score

RIGHT = {"score": 1.0, "acc": 1.0, "unverifiable": 0.0}
WRONG = {"score": -1.0, "acc": 0.0, "unverifiable": 0.0}


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("3 + 4 is 7.\nAnswer: 7", "7", RIGHT),  # the line that DAPO-Math-17k asks for
        (r"So the answer is $\boxed{34}$.", "34", RIGHT),
        (r"Hence \boxed{0.5}.", r"\frac{1}{2}", RIGHT),
        ("Answer: 8", "7", WRONG),
        ("I don't know", "7", WRONG),
        ("Answer: 7", "", {**WRONG, "unverifiable": 1.0}),
    ],
)
def test_a_verdict_as_verl_reads_it(text, gold, expected):
    assert compute_score("any", text, gold, extra_info={"index": 3}) == expected


def test_formulas_are_compared_by_value():
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    assert compute_score("minerva", r"\boxed{(x+1)^2}", "x^2+2x+1") == RIGHT
    assert compute_score("minerva", r"\boxed{(x+1)^2}", "x^2+1") == WRONG


def test_threads_get_their_own_verdicts():
    golds = [str(i) for i in range(64)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: compute_score("any", "Answer: 7", golds[i]), range(64)))
    assert [i for i, score in enumerate(found) if score == RIGHT] == [7]
