"""Laws of equality, against fractions computed by Python."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrol.answers import Verdict, verify

pytest.importorskip("math_verify", reason="the extra 'verify' is not installed")

RIGHT, WRONG = Verdict.RIGHT, Verdict.WRONG

PIECES = [*"{}()[]^_,=<|12x.%&", r"\frac", r"\sqrt", r"\pm", r"\\", r"\text", r"\{", " and "]
GRID = [(x, y) for x in range(-9, 10) for y in range(-9, 10)]


def _join(latex, python):
    return lambda *inner: tuple(
        shape.format(*parts)
        for shape, parts in zip((latex, python), zip(*inner, strict=True), strict=True)
    )


class TestLaws:
    integers = st.integers(-(10**9), 10**9)
    rationals = st.builds(Fraction, integers, st.integers(1, 10**6))
    terminating = st.builds(
        lambda n, twos, fives: Fraction(n, 2**twos * 5**fives),
        integers, st.integers(0, 8), st.integers(0, 8),
    )  # fmt: skip
    # A formula as LaTeX and as Python, which computes with fractions.
    formulas = st.recursive(
        st.sampled_from([("x", "x"), ("y", "y"), ("2", "2"), ("7", "7"), ("0.5", "F(1,2)")]),
        lambda inner: st.one_of(
            st.builds(_join("({}+{})", "({}+{})"), inner, inner),
            st.builds(_join("({}-{})", "({}-{})"), inner, inner),
            st.builds(_join("({})({})", "({})*({})"), inner, inner),
            st.builds(_join(r"\frac{{{}}}{{({})^2+1}}", "F({})/(({})**2+1)"), inner, inner),
            st.builds(_join("({})^2", "({})**2"), inner),
        ),
        max_leaves=5,
    )

    # The same with numbers alone, side by side in all ways that mean a product.
    sums = st.recursive(
        st.sampled_from([("2", "2"), ("7", "7"), ("0.5", "F(1,2)"), (r"\frac53", "F(5,3)")]),
        lambda inner: st.one_of(
            st.builds(_join("({}+{})", "({}+{})"), inner, inner),
            st.builds(_join("({}-({}))", "({}-({}))"), inner, inner),
            st.builds(_join("({})({})", "({})*({})"), inner, inner),
            st.builds(_join("2({})", "2*({})"), inner),
            st.builds(_join("({})3", "({})*3"), inner),
            st.builds(_join(r"({}) \cdot ({})", "({})*({})"), inner, inner),
            st.builds(_join(r"\frac{{{}}}{{({})^2+1}}", "F({})/(({})**2+1)"), inner, inner),
            st.builds(_join(r"(\frac{{{}}}3\frac12)", "F({})/6"), inner),
            st.builds(_join(r"\frac{{1}}{{2}}({})", "F(1,2)*({})"), inner),
            st.builds(_join("({})^3", "({})**3"), inner),
            st.builds(_join("-({})", "(-({}))"), inner),
            st.builds(_join("({})/4", "F({})/4"), inner),
            st.builds(_join(r"\sqrt{{({})^2}}", "abs({})"), inner),
        ),
        max_leaves=5,
    )

    @staticmethod
    def decimal(value):
        """All digits of a fraction whose denominator has no other factors than 2 and 5."""
        digits = str(abs(value.numerator) * 10**20 // value.denominator)
        digits = digits.rjust(21, "0")
        return f"{'-' if value < 0 else ''}{digits[:-20]}.{digits[-20:]}"

    @classmethod
    def spellings(cls, value):
        n, d = value.numerator, value.denominator
        sign, n = ("-" if n < 0 else ""), abs(n)
        yield from (f"{sign}{n}/{d}", rf"{sign}\frac{{{n}}}{{{d}}}", rf"\frac{{{sign}{n}}}{{{d}}}")
        yield rf"$\dfrac{{{sign}{3 * n}}}{{{3 * d}}}$"
        yield f"{sign}{n:,}/{d}"
        if d == 1:
            yield from (f"{sign}{n}", f"{sign}{n:,}", f"{sign}{n}.00", f"{sign}{n} apples")
        if n // d and n % d:
            yield rf"{sign}{n // d}\frac{{{n % d}}}{{{d}}}"

    @given(rationals)
    def test_spellings_of_a_rational_are_equal(self, value):
        first, *others = self.spellings(value)
        for other in others:
            assert verify(first, other) is verify(other, first) is RIGHT

    @given(terminating)
    def test_a_terminating_decimal_is_its_fraction(self, value):
        for other in self.spellings(value):
            assert verify(self.decimal(value), other) is RIGHT
            assert verify(other, self.decimal(value)) is RIGHT

    @given(rationals, rationals)
    def test_rationals_are_right_exactly_if_equal(self, one, other):
        expected = RIGHT if one == other else WRONG
        for a, b in zip(self.spellings(one), self.spellings(other), strict=False):
            assert verify(a, b) is verify(b, a) is expected

    @given(rationals, st.integers(10, 300))
    def test_however_near_another_rational_is_wrong(self, value, digits):
        near = value + Fraction(1, 10**digits)
        assert verify(f"{near.numerator}/{near.denominator}", str(value)) is WRONG

    @given(formulas)
    def test_a_formula_equals_itself_written_otherwise(self, formula):
        latex, _ = formula
        assert verify(latex, latex) is RIGHT
        assert verify(rf"\boxed{{{latex} + 0}}", latex) is RIGHT
        assert verify(rf"\frac{{3 \cdot ({latex})}}{{3}}", latex) is RIGHT

    @given(formulas, formulas)
    def test_formulas_are_right_exactly_if_their_values_are(self, one, other):
        # Of such low degrees that functions that agree at all these points are one.
        points = [{"F": Fraction, "x": Fraction(x), "y": Fraction(y)} for x, y in GRID]
        (latex, python), (other_latex, other_python) = one, other
        same = all(eval(python, point) == eval(other_python, point) for point in points)
        assert verify(latex, other_latex) is (RIGHT if same else WRONG)
        assert verify(other_latex, latex) is (RIGHT if same else WRONG)

    @given(sums, st.sampled_from([0, 0, 1, Fraction(-1, 3)]))
    def test_a_sum_of_numbers_is_its_value(self, formula, off):
        latex, python = formula
        value = eval(python, {"F": Fraction}) + off
        assert verify(latex, str(value)) is (RIGHT if off == 0 else WRONG)
        assert verify(str(value), latex) is (RIGHT if off == 0 else WRONG)

    @given(st.lists(integers, min_size=2, max_size=5), st.randoms())
    def test_a_list_has_no_order(self, values, random):
        shuffled = random.sample(values, len(values))
        gold = ", ".join(map(str, values))
        assert verify(", ".join(map(str, shuffled)), gold) is RIGHT
        assert verify(r"\{" + ", ".join(map(str, shuffled)) + r"\}", gold) is RIGHT
        assert verify(" and ".join(map(str, shuffled)), gold) is RIGHT
        assert verify(", ".join(map(str, values[1:])), gold) is WRONG
        assert verify(", ".join(map(str, [values[0] + 1, *values[1:]])), gold) is WRONG

    @given(st.text(max_size=60), st.text(max_size=60))
    def test_any_two_texts_get_a_verdict(self, text, gold):
        assert verify(text, gold) in Verdict

    @given(st.lists(st.sampled_from(PIECES), max_size=12))
    def test_any_broken_latex_gets_a_verdict(self, pieces):
        assert verify("".join(pieces), "x+1") in (RIGHT, WRONG)
