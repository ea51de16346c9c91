"""Which answers are equal: pairs by hand, each for a kind."""

from __future__ import annotations

import pytest

from arrol.answers import Verdict, same_answer, verify

pytest.importorskip("math_verify", reason="the extra 'verify' is not installed")

RIGHT, WRONG = Verdict.RIGHT, Verdict.WRONG

# Right and wrong answers, by hand. Each stands for a kind.
EQUAL = {
    "spelling": [
        ("pi/2", r"\frac{\pi}{2}"),
        (r"\dfrac12", r"\frac{1}{2}"),
        (r"\frac1{2^{99}}", r"\frac{1}{2^{99}}"),
        ("sqrt(2)/2", r"\frac{\sqrt2}{2}"),
        ("2*x**2", "2x^2"),
        ("x^-1", r"\frac{1}{x}"),
        ("(x+1)/(x-1)", r"\frac{x+1}{x-1}"),
        ("2^(n+1)", "2^{n+1}"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        ("√2", r"\sqrt{2}"),
        ("x ≤ 2", r"x \leq 2"),
    ],
    "numbers": [
        ("2(3)", "6"),
        ("(2)(3)", "6"),
        (r"\binom{5}{2}(3)", "30"),
        (r"\frac42\frac12", "1"),
        (r"3\frac12\pi", r"\frac{7\pi}{2}"),
        (r"\log_2 8", "3"),
        ("0.1+0.2", "0.3"),
        (r"\gcd(12,18)", "6"),
        (r"\lfloor 2.7 \rfloor", "2"),
        (r"\int_0^1 x^2\,dx", "1/3"),
        ("2^{3^2}", "512"),
        ("0.5", r"\frac12"),
        ("1,234", "1234"),
        (r"1{,}234{,}567", "1234567"),
        (r"900,\!000,\!000", "900000000"),
        ("12 345", "12345"),
        ("$1,234.50", "1234.5"),
        (".5", "0.50"),
        ("5.", "5"),
        ("+5", "5"),
        ("1e3", "1000"),
        (r"3 \times 10^{5}", "300,000"),
        (r"12\frac{3}{5}", "12.6"),
        ("-2 1/2", "-2.5"),
        (r"0.\overline{3}", "1/3"),
        (r"0.1\overline{6}", "1/6"),
        ("1011_2", "11"),
        ("2^{10}", "1024"),
        (r"\binom{5}{2}", "10"),
        ("0.1x", r"\frac{x}{10}"),
    ],
    "units": [
        (r"\sin 30^\circ", r"\frac12"),
        ("cos(60°)", "0.5"),
        (r"90^\circ - x", "90 - x"),
        ("5 miles per hour", "5"),
        ("18 of the eggs", "18"),
        ("18 dollars", r"\$18"),
        (r"100\text{ square units}", "100"),
        (r"18\text{ cm}^2", "18"),
        ("18 eggs", "18"),
        ("48", r"48^\circ"),
        ("30 degrees", r"30^{\circ}"),
        ("5 m", "5"),
        ("5 m/s", r"5\text{ m/s}"),
        (r"5\pi\text{ cm}", r"5\pi"),
        ("1.8 million", "1800000"),
        (r"1.8\text{ billion dollars}", "1800000000"),
        ("5 m", "5m"),
        ("4 a", "4a"),
    ],
    "percentages": [
        (r"25\%", "25"),
        ("25%", "0.25"),
        ("25 percent", r"\frac14"),
        (r"\frac{3}{4}\%", "0.75%"),
    ],
    "formulas": [
        (r"\sqrt{-4}", "2i"),
        (r"\cos(\pi n)", "(-1)^n"),
        (r"\arcsin x + \arccos x", r"\frac{\pi}{2}"),
        ("2sin(x)cos(x)", r"\sin 2x"),
        (r"x^{3/4}", r"\sqrt[4]{x^3}"),
        ("x_{1}", "x_1"),
        ("theta", r"\theta"),
        (r"e^{2\pi i/3}", r"-\frac12+\frac{\sqrt3}{2}i"),
        (r"\sqrt{1/n}", r"1/\sqrt n"),
        ("(x-1)(x+1)", "x^2-1"),
        (r"|x|", r"\sqrt{x^2}"),
        (r"\ln(x^2)", r"2 \ln |x|"),
        (r"\sin^2 x + \cos^2 x", "1"),
        (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"),
        (r"\sqrt2+\sqrt3-\sqrt{5+2\sqrt6}", "0"),
        (r"2 \cdot 2^n", "2^{n+1}"),
        ("n(n-1)!", "n!"),
        (r"\sum_{k=1}^n k", r"\frac{n(n+1)}{2}"),
        ("2f(x)", "f(x)+f(x)"),
        ("4i+3", "3+4i"),
        (r"\frac1i", "-i"),
        (r"\frac{1}{x+i}", r"\frac{x-i}{x^2+1}"),
        (r"e^{i\pi}", "-1"),
    ],
    "several": [
        ("x = 5, y = 6", "(5, 6)"),
        (r"\{-2, 1+\sqrt5, 1-\sqrt5\}", r"\{1\pm\sqrt5, -2\}"),
        (r"\langle 1, 2\rangle", "(1,2)"),
        ("$5$ and $6$", "6, 5"),
        ("1728 and 1331", "1331 and 1728"),
        (r"\{2, 1\}", "1, 2"),
        (r"\{5\}", "5"),
        ("x=2 or x=-2", r"\pm 2"),
        (r"2-\sqrt3, 2+\sqrt3", r"2 \pm \sqrt{3}"),
        ("100,200,300", "100, 200, 300"),
        ("(1, 0.5)", r"\left(1,\frac12\right)"),
        ("1, 2", "(1,2)"),
        ("(3,4), (1,2)", "(1,2), (3,4)"),
        (r"\begin{pmatrix}1\\0.5\end{pmatrix}", r"\begin{pmatrix} 1 \\ \frac{1}{2} \end{pmatrix}"),
        (r"\emptyset", r"\{\}"),
    ],
    "intervals": [
        ("[1, 2)", r"\left[1,2\right)"),
        (r"(3,\infty) \cup (-\infty,1)", r"(-\infty, 1) \cup (3, \infty)"),
        ("x>2", r"(2,\infty)"),
        (r"1 < x \le 2", "(1, 2]"),
        ("x<1 or x>3", r"(-\infty,1) \cup (3,\infty)"),
        (r"\{x \mid x > 2\}", "(2, infinity)"),
        (r"x \in [0, 1]", "[0,1]"),
        (r"\mathbb{R}", r"(-\infty,\infty)"),
    ],
    "relations": [
        ("(x-1)^2+(y+2)^2=9", "x^2+y^2-2x+4y-4=0"),
        ("a<b<c", "c>b>a"),
        (r"x \ne 0", r"0 \ne x"),
        ("5", "x=5"),
        ("x = 1 + 4 = 5", "5"),
        ("f(x)=x^2", "x^2"),
        (r"\angle ABC = 30^\circ", "30"),
        ("(x,y) = (1,2)", "(1,2)"),
        ("6x+8y+28=0", "3x+4y+14=0"),
        ("3x+2y=6", r"\frac x2 + \frac y3 = 1"),
        ("y = 1/x", "xy = 1"),
        ("2 < x", "x > 2"),
        ("-y > -2x", "y < 2x"),
        (r"4\sqrt2 \approx 5.66", r"4\sqrt{2}"),
    ],
    "words": [
        ("Evelyn", r"\text{Evelyn}"),
        ("no solution", r"\text{No solution}"),
        ("(C)", r"\text{(C)}"),
        ("C", r"\text{C}"),
        (r"\text{18}", "18"),
    ],
}
DIFFERENT = {
    "a part is not the whole": [
        ("5", "2(3)"),
        ("1 2", "12"),
        ("1 2", "2"),
        ("5 dollars and 20 cents", "5.20"),
        ("1728", "1331 and 1728"),
        ("1331 and 1728", "1728"),
        ("1, 2, 3", "1, 2"),
        ("4", r"4\sqrt{2}"),
        (r"4\sqrt{2}", "4"),
        ("2", r"\frac{2}{3}"),
        ("4", "4t"),
        ("4", "4h"),
        ("2", "2 pi"),
        ("3", "3+4i"),
        ("0", "3x+4y+14=0"),
        ("13", "x = 13 + y"),
        ("2 thirds", "2"),
        ("1.8 billion", "1.8"),
        ("6 dozen", "6"),
        ("10+John's age", "10"),
    ],
    "tiny numbers and tiny differences": [
        ("1e400", "1e401"),
        ("10^{1000000}", "10^{1000001}"),
        (r"\frac{1}{10^{400}}", r"\frac{1}{10^{401}}"),
        (r"\frac1{2^{98}}", r"\frac1{2^{99}}"),
        ("10^{-20}", "2 \\cdot 10^{-20}"),
        ("0.0000001", "0.0000002"),
        ("0.0000001", "0"),
        (r"\frac{\pi}{10^{30}}", r"\frac{2\pi}{10^{30}}"),
        (r"10^{-20} x", r"3 \cdot 10^{-20} x"),
        (r"10^{-20} f(x)", r"3 \cdot 10^{-20} f(x)"),
        ("x + 10^{-50}", "x"),
        (r"1 + 10^{-60}", "1"),
        (r"1 + 10^{-300}", "1"),
        (r"x + 10^{-300}", "x"),
        (r"\sqrt{10^{100}+1}", "10^{50}"),
        (r"x + y = 10^{-30}", r"x + y = 2 \cdot 10^{-30}"),
        (r"\{10^{-9}, 1\}", r"\{2 \cdot 10^{-9}, 1\}"),
        (r"(0, 10^{-9})", r"(0, 2 \cdot 10^{-9})"),
    ],
    "rounded": [("0.333333", "1/3"), ("3.14159265358979", r"\pi"), ("1.41421356", r"\sqrt2")],
    "relations": [
        ("|x|<3", r"(-\infty,3)"),
        ("x^2=4", "x=2"),
        ("x=2", "x^2=4"),
        ("1<x<3", "1<x<2"),
        ("x^2+y^2=25", "x^2+y^2=5"),
        ("3x-1y+13=0", "3x+4y+14=0"),
        ("x^2+1=0", "x^2+2=0"),
        ("x=5", "y=5"),
        ("x<2", "x>2"),
        ("x<2", r"x \le 2"),
        ("y>2x", "-y>-2x"),
        ("2x+z=1", "1"),
        ("y=x^2", "y=x^3"),
        ("x=1, y=2", "x=2, y=1"),
    ],
    "formulas": [
        ("-2^2", "4"),
        ("2^{3^2}", "64"),
        (r"\frac12 x", r"\frac{1}{2x}"),
        ("x_1", "x_2"),
        (r"\theta", r"\phi"),
        ("x", r"\sqrt{x^2}"),
        ("r^2", "rR"),
        (r"\pi r^2", r"\pi R^2"),
        ("x^2", "x^3"),
        ("n", r"\sqrt{n}"),
        ("-i", "i"),
        (r"-\infty", r"\infty"),
    ],
    "several": [
        ("(2,1)", "(1,2)"),
        ("[1,2]", "(1,2)"),
        ("[1,2)", "(1,2)"),
        (r"\{1,2\}", "(1,2)"),
        (r"(-\infty,1)", r"(-\infty,1)\cup(3,\infty)"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ],
    "words": [
        ("even", "odd"),
        ("18", "Evelyn"),
        ("Evelyn", "18"),
        (r"4:30 \text{ p.m.}", r"\text{4:30 p.m.}"),
    ],
    "percentages": [("25%", "0.25%"), ("26%", "0.25"), ("2500%", "0.25")],
    "no answer": [("", "18"), ("Let me think.\nThis is", "x+1"), ("18", "x"), (r"\frac{1}{", "18")],
}


def flat(kinds):
    return [pytest.param(*pair, id=f"{kind}: {pair}") for kind in kinds for pair in kinds[kind]]


@pytest.mark.parametrize(("answer", "gold"), flat(EQUAL))
def test_equal(answer, gold):
    assert verify(answer, gold) is RIGHT
    assert verify(gold, answer) is RIGHT
    assert verify(rf"So it is $\boxed{{{answer}}}$.", gold) is RIGHT
    assert verify(f"Well.\n#### {answer}", gold) is RIGHT
    assert same_answer(answer, gold)
    assert verify(answer, answer) is RIGHT


@pytest.mark.parametrize(("answer", "gold"), flat(DIFFERENT))
def test_different(answer, gold):
    assert verify(answer, gold) is WRONG
    assert verify(rf"So it is $\boxed{{{answer}}}$.", gold) is WRONG
    assert not same_answer(answer, gold)
    assert not same_answer(gold, answer)


@pytest.mark.parametrize(
    "prose",
    [
        "The key to solving this problem lies in recognizing that 5 + 4 equals 9",
        "one two three four five six seven eight nine ten " * 20 + "+ 1",
        "a" * 500 + " = (",
        "x " * 300 + "\\frac",
        "{a'|b} " * 100 + "7",
        "1 " * 400 + ",",
        "\\text{a}" * 100 + "_",
    ],
)
def test_prose_is_wrong_and_takes_no_exponential_time(prose: str) -> None:
    """A pattern that backtracks over all ways to split its letters would hang here for ever."""
    assert verify(f"\\boxed{{{prose}}}", "12") is Verdict.WRONG
    assert not same_answer("12", prose)
