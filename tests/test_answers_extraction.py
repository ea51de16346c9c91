"""Where a response's answer is found, and where there is none."""

from __future__ import annotations

import pytest

from arrol.answers import Verdict, extract_answer, verify


class TestExtraction:
    @pytest.mark.parametrize(
        ("text", "answer"),
        [
            (r"So \boxed{5}.", "5"),
            (r"First \boxed{3}, no: \boxed{\frac{1}{2}}. Done", r"\frac{1}{2}"),
            (r"\boxed{\text{a {b} c}}", r"\text{a {b} c}"),
            (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
            (r"\boxed{\boxed{7}}", "7"),
            (r"\fbox{7} #### 8", "7"),
            (r"\boxed{$7$}", "7"),
            (r"\boxed 18 is it", "18"),
            (r"\boxed{5} and, cut off, \boxed{\frac{1}{", "5"),
            (r"\boxed{5} then \boxed{}", "5"),
            ("9 * 2 = 18\n#### 18", "18"),
            ("#### 17\n#### 1,800 \nso", "1,800"),
            ("9 * 2 = $<<9*2=18>>18\nA: 18", "18"),
            ("Q: how many?\nA: 5\nNo.\nA: $6.", "$6"),
            ("The answer is 18.", "18"),
            ("The answer is: $18$. I hope it is correct.", "18"),
            ("The final answer is $x = 5$, since it must be.", "x = 5"),
            ("the answer to the question is therefore 3.5.", "3.5"),
            ("**Answer:** **18**", "18"),
            ("**Final Answer**\n\n18\n", "18"),
            ("The answer is\n\\[\n\\frac{1}{2}\n\\]\nas claimed.", r"\frac{1}{2}"),
            ("The answer is 18 because 9 * 2 = 18.", "18"),
            ("Answer: 5\nThe answer is 6", "6"),
            ("1331 and 1728", "1331 and 1728"),
            ("$x+1$", "x+1"),
            ("  42\n", "42"),
        ],
    )
    def test_the_answer_is_found(self, text, answer):
        assert extract_answer(text) == answer

    @pytest.mark.parametrize(
        "text",
        [
            *["", " \n", "####", "The answer is", "A:", "x\n\\boxed{}", "x" * 3_000],
            *["She has 9 eggs.\nShe sells 18", "9 * 2 = 18\nso she"],
        ],
    )
    def test_there_is_none(self, text):
        assert extract_answer(text) is None

    @pytest.mark.parametrize(
        "piece",
        [
            *["\\boxed{", "\\boxed{}", "{", "}", "answer ", "answer is ", "A: ", " ", ".", "####"],
            *["\n", "\\", "$", "(", "9" * 7, "answer to ", "answers*"],
        ],
    )
    def test_long_repetitions_take_no_long_time(self, piece):
        # A quadratic search would take minutes, and it runs where no time limit is set.
        extract_answer(piece * 300_000)
        assert verify(piece * 300_000 + "\nA: 5", "5") in Verdict
