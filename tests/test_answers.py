"""Verdicts, and checking many answers in worker processes."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from arrol.answers import Verdict, Verifier, verify
from arrol.errors import ArrolError

pytest.importorskip("math_verify", reason="the extra 'verify' is not installed")

RIGHT, WRONG, UNVERIFIABLE = Verdict.RIGHT, Verdict.WRONG, Verdict.UNVERIFIABLE


@pytest.mark.parametrize("gold", ["", " \n", r"\frac{{{", "1/0", "x" * 3_000, "10+John's age"])
def test_a_gold_answer_that_is_none_makes_no_answer_wrong(gold):
    assert verify("18", gold) is UNVERIFIABLE
    assert verify("", gold) is UNVERIFIABLE


def test_what_cannot_be_read_equals_itself():
    assert verify(r"\boxed{10+John's  age}", "10+John's age") is RIGHT


def test_the_last_box_counts():
    assert verify(r"\boxed{4}, or rather \boxed{5}", "5") is RIGHT
    assert verify(r"\boxed{5}, or rather \boxed{4}", "5") is WRONG


def test_a_gold_solution_ends_with_its_answer():
    for end in ("#### 1,800", r"\boxed{1800}", "A: 1800", "The answer is 1800."):
        assert verify("1800", f"600 * 3 = 1800, as 2 * 900.\n{end}") is RIGHT


@pytest.mark.parametrize("answer", ["(" * 900 + "1" + ")" * 900, r"\frac" * 600, "{" * 500])
def test_nesting_has_no_end(answer):
    assert verify(answer, "5") in (WRONG, UNVERIFIABLE)


class TestVerifier:
    def test_verdicts_keep_their_order_and_progress_counts(self):
        texts = ["x+1", "2", r"\boxed{1+x}", "x", "no idea", "y"] * 5
        golds = ["1+x", "2", "x+1", "x+1", "x+1", r"\frac{{{"] * 5
        seen = []
        with Verifier(workers=2) as verifier:
            found = verifier.verify_all(texts, golds, lambda *counts: seen.append(counts))
            assert verifier.verify_all([], []) == []
        assert found == [RIGHT, RIGHT, RIGHT, WRONG, WRONG, UNVERIFIABLE] * 5
        assert seen == [(n, 30) for n in range(1, 31)]

    def test_a_check_without_end_is_unverifiable_and_others_go_on(self):
        texts = ["9^{9^{9^9}}", "x+1", "9^{9^{9^9}}", "x"]
        golds = ["7x", "1+x", "5", "2x"]
        with Verifier(workers=2, seconds=2.0) as verifier:
            found = verifier.verify_all(texts, golds)
        assert found == [UNVERIFIABLE, RIGHT, UNVERIFIABLE, WRONG]

    def test_several_threads_share_one(self):
        found = {}
        with Verifier(workers=2) as verifier:

            def batch(name):
                texts = [f"x+{n}" for n in range(20)]
                found[name] = verifier.verify_all(texts, [f"{name}+x"] * 20)

            threads = [threading.Thread(target=batch, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for name, verdicts in found.items():
            assert verdicts == [RIGHT if n == name else WRONG for n in range(20)]

    def test_a_batch_goes_on_after_one_that_was_given_up(self):
        def give_up(done, total):
            raise KeyboardInterrupt

        with Verifier(workers=1) as verifier:
            with pytest.raises(KeyboardInterrupt):
                verifier.verify_all(["x+1"] * 3, ["1+x", "2+x", "3+x"], give_up)
            assert verifier.verify_all(["x+5"], ["5+x"]) == [RIGHT]

    def test_mistakes_are_refused(self):
        with Verifier(workers=1) as verifier:
            with pytest.raises(ArrolError, match="golds are 1; allowed are 2, one for each text"):
                verifier.verify_all(["1", "2"], ["1"])
            with pytest.raises(ArrolError, match=r"texts\[1\] is None; allowed is a text"):
                verifier.verify_all(["1", None], ["1", "2"])
        with pytest.raises(ArrolError, match="workers is 0"):
            Verifier(workers=0)


MISSING = """
import sys
sys.modules["math_verify"] = None
from arrol.answers import Verifier, verify
from arrol.errors import ArrolError
assert verify("A: 18.0", "18") == "right"
for call in (Verifier, lambda: verify("x+1", "1+x")):
    try:
        call()
    except ArrolError as error:
        print(error)
"""


def test_without_math_verify_the_extra_is_named():
    found = subprocess.run(
        [sys.executable, "-c", MISSING], capture_output=True, text=True, check=True
    )
    assert found.stdout.count("pip install 'arrol[verify]'") == 2


def test_importing_needs_no_sympy():
    program = "import arrol.answers, sys; assert 'sympy' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
