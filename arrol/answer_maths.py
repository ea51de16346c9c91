r"""Whether two formulas are equal: math-verify's parser reads them, values decide.

math-verify itself compares with floats: numbers below its precision are all equal to it, such as
``1/2^{98}`` and ``1/2^{99}``, and it makes R and r one symbol. Here

- decimals become fractions before they are parsed: nothing is rounded;
- two numbers are equal if they agree to ``DIGITS`` significant digits, each computed to that
  precision by itself, and if they are rational, to the last one;
- two functions are equal if they agree so at every point of a fixed set where both have real values
  (:func:`_points`). ``\sqrt{1/n}`` and ``1/\sqrt{n}`` are equal, ``\sqrt{x^2}`` and ``x`` are not.
  Formulas with i are compared where they have values at all. Formulas that differ are told apart
  but for a coincidence at all points at once.
- what has no values (undefined functions, formulas over sets) is left to math-verify.

Nothing here has a time limit: ``9^{9^{9^9}}`` may take for ever (see :mod:`arrol.answer_workers`).
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from arrol.answer_text import closing_braces
from arrol.errors import ArrolError

try:
    import sympy
    from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from math_verify import verify as math_verify
    from sympy.core.function import AppliedUndef
except ImportError as error:
    raise ArrolError(
        f"{error.name or 'math-verify'} can't be imported; answers that are more than a number "
        "need the package's extra 'verify': pip install 'arrol[verify]'."
    ) from None

_WORKED_OUT = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)
DIGITS = 200  # that two equal values share
LEAST_POINTS = 3  # where both have a value, before two functions are taken for one
HUGE_POWER = HUGE_FACTORIAL = 5_000  # what is above stays unevaluated: 2^{10000}, 9999!
POINTS = 12  # values of a variable

# It would warn once that its time limits are off; they work by an alarm, in the main thread only.
logging.getLogger("math_verify.grader").addFilter(lambda record: "imeout" not in str(record.msg))

_SMALL = sympy.Rational(1, 10 ** (DIGITS // 2))
_LEAST = sympy.Rational(1, 10**DIGITS)
_NORMAL = NormalizationConfig(units=False, malformed_operators=False, nits=False, boxed="none")
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_MIXED = re.compile(r"(?<![\w.}^])(\d+)\s*\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_DECIMAL = re.compile(r"(?<![\w.])(\d*)\.(\d+)")
_OPERAND_END = re.compile(r"[)!]|(?<![_^.\d\\])\d+(?!\d)")
_OPERAND = re.compile(r"\s*(?:[({\d]|\\(?:frac|binom|sqrt)(?![a-zA-Z]))")
_OPERATION = re.compile(r"\\(frac|binom|sqrt)\s*(?:\[[^\[\]]*\])?\s*(?=\{)")
_TWO_NUMBERS = re.compile(r"(?<![_^\d.\\])\d+\s+\d")
_COMMAND = re.compile(r"\\[A-Za-z]+(?:\s*\{[A-Za-z ]+\})?")
_PROSE = re.compile(r"[A-Za-z]{5,}|[A-Za-z]{3,}\s+[A-Za-z]{2,}|[A-Za-z]'s(?![A-Za-z])")


class UnreadableError(Exception):
    """math-verify's parser finds no formula in a text."""


@lru_cache(maxsize=4096)
def parse(latex: str) -> Any:
    """The formula as a sympy object.

    Raises:
        UnreadableError: it is no formula.
    """
    if _PROSE.search(_COMMAND.sub(" ", latex)) or _TWO_NUMBERS.search(latex):
        raise UnreadableError(latex)  # or its letters and its numbers would be multiplied
    exact = _with_products(_MIXED.sub(_as_quotient, _DECIMAL.sub(_as_fraction, latex)))
    try:
        # Normalised here, as math-verify does it, but for units: its list of them has t, h and c.
        normal = normalize_latex(exact, _NORMAL)
        found = latex2sympy(normal, normalization_config=None, conversion_config=_CONVERSION)
        found = _with_values(found)
    except MemoryError:
        raise
    except Exception as error:  # the parser's own errors are of many kinds
        raise UnreadableError(latex) from error
    if isinstance(found, sympy.Expr) and not found.free_symbols and _is_undefined(found):
        raise UnreadableError(latex)
    return found


def _is_undefined(constant: Any) -> bool:
    """Nothing like 1/0 is an answer."""
    try:
        return sympy.N(constant) in (sympy.zoo, sympy.nan)
    except (TypeError, ValueError, ArithmeticError):
        return False


def _with_values(formula: Any) -> Any:
    """The formula with i for the imaginary unit, sums and integrals worked out where possible, and
    a variable for each value of an unknown function."""
    unknown = {one: sympy.Symbol(str(one)) for one in formula.atoms(AppliedUndef)}
    unknown |= {one: sympy.I for one in formula.free_symbols if one.name == "i"}
    formula = _evaluated(formula.xreplace(unknown))
    return formula.doit() if formula.has(*_WORKED_OUT) else formula


def _evaluated(formula: Any) -> Any:
    """The formula with what the parser left to do done, but for numbers beyond any use."""
    if not formula.args or not isinstance(formula, sympy.Expr):
        return formula
    parts = [_evaluated(part) for part in formula.args]
    return (
        formula.func(*parts, evaluate=False) if _is_huge(formula, parts) else formula.func(*parts)
    )


def _is_huge(formula: Any, parts: list[Any]) -> bool:
    if isinstance(formula, sympy.factorial):
        return bool(parts[0].is_Integer and abs(parts[0]) > HUGE_FACTORIAL)
    if not isinstance(formula, sympy.Pow):
        return False
    # A power of a power, as in 9^(9^9) with 9^9 left as it is, may be huge too.
    exponent_is_small = parts[1].is_Rational and abs(parts[1]) < HUGE_POWER
    return not parts[1].free_symbols and parts[0].is_number and not exponent_is_small


def same_formula(one: str, other: str) -> bool:
    """Whether two formulas are equal. What is no formula equals itself only."""
    if one == other:
        return True
    try:
        first, second = parse(one), parse(other)
    except UnreadableError:
        return False
    agree = _agree(first, second)
    if agree is None:
        return bool(math_verify(first, second, timeout_seconds=None))
    return agree


def is_formula(latex: str) -> bool:
    """Whether math-verify's parser reads it."""
    try:
        parse(latex)
    except UnreadableError:
        return False
    return True


def same_zeros(one: Sequence[str], other: Sequence[str], *, signed: bool) -> bool:
    """Whether left − right of two relations differ by a constant factor, a positive one if signed.

    A denominator is multiplied out first, unless the sign counts.
    """
    if not all(is_formula(side) for side in (*one, *other)):
        return False
    differences = []
    for left, right in (one, other):
        sides = parse(left), parse(right)
        if not all(isinstance(side, sympy.Expr) for side in sides):
            return False
        difference = sides[0] - sides[1]
        if not signed:
            difference = sympy.fraction(sympy.together(difference))[0]
        differences.append(difference)
    first, second = differences
    if first.free_symbols != second.free_symbols:
        return False
    ratios: list[Any] = []
    for _, a, b in _values(first, second):
        if not a and not b:
            continue  # both hold here, whatever the factor
        if not a or not b:
            return False
        ratios.append(a / b)
    steady = bool(ratios) and all(_close(ratio, ratios[0]) for ratio in ratios)
    return steady and (not signed or ratios[0].is_positive is True)


def _as_fraction(match: re.Match[str]) -> str:
    whole, part = match.groups()
    return rf"{{\frac{{{int(whole + part)}}}{{{10 ** len(part)}}}}}"


def _with_products(latex: str) -> str:
    r"""A sign of multiplication between two numbers side by side.

    math-verify's parser takes any two for a mixed number: ``2(3)`` is 5 to it.
    """
    ends = {match.end() for match in _OPERAND_END.finditer(latex)}
    closed = closing_braces(latex)
    for command in _OPERATION.finditer(latex):
        place = command.end()
        for _ in range(1 if command.group(1) == "sqrt" else 2):
            place = closed.get(place, place - 1) + 1
        ends.add(place)
    for place in sorted(ends, reverse=True):
        if _OPERAND.match(latex, place) and (latex[place] != "{" or latex[place - 1] != "}"):
            latex = rf"{latex[:place]} \cdot {latex[place:]}"
    return latex


def _as_quotient(match: re.Match[str]) -> str:
    whole, top, bottom = map(int, match.groups())
    if top >= bottom:
        return match.group()  # a product
    return rf"{{\frac{{{whole * bottom + top}}}{{{bottom}}}}}"


def _agree(first: Any, second: Any) -> bool | None:
    """Whether the values agree at all points; None where there are too few to compare."""
    seen = 0
    for point, a, b in _values(first, second):
        if not _close(a, b):
            return False
        if not seen:
            exact = [formula.subs(point).doit() for formula in (first, second)]
            if all(value.is_Rational for value in exact) and exact[0] != exact[1]:
                return False
        seen += 1
    constants = not first.free_symbols | second.free_symbols
    return True if seen >= (1 if constants else LEAST_POINTS) else None


def _close(a: Any, b: Any) -> bool:
    return bool(abs(a - b) <= max(abs(a), abs(b)) * _LEAST)


def _values(first: Any, second: Any) -> Iterator[tuple[dict[Any, Any], Any, Any]]:
    """The points where both have a value, with their values."""
    if not isinstance(first, sympy.Expr) or not isinstance(second, sympy.Expr):
        return
    symbols = sorted(first.free_symbols | second.free_symbols, key=lambda symbol: symbol.name)
    is_complex = first.has(sympy.I) or second.has(sympy.I)
    for places in _points(len(symbols)):
        point = dict(zip(symbols, places, strict=True))
        one, other = (_value(formula, point, is_complex) for formula in (first, second))
        if one is not None and other is not None:
            yield point, one, other


def _value(formula: Any, places: dict[Any, Any], is_complex: bool) -> Any:
    """A number to more than DIGITS digits; None where the formula has no finite (real) value."""
    try:
        placed = formula.subs(places)
        value = sympy.N(placed, DIGITS + 20, maxn=4 * DIGITS)
        parts: tuple[Any, ...] = value.as_real_imag() if is_complex else (value,)
        if any(abs(part) < _SMALL for part in parts if part):
            again = sympy.N(placed, DIGITS + 60, maxn=5 * DIGITS)
            others = again.as_real_imag() if is_complex else (again,)
            parts = tuple(map(_without_noise, parts, others))
    except (TypeError, ValueError, ArithmeticError):  # such as comparing a complex number
        return None
    if any(not part.is_Rational and not (part.is_Float and part.is_finite) for part in parts):
        return None
    return parts[0] + parts[1] * sympy.I if is_complex else parts[0]


def _without_noise(value: Any, again: Any) -> Any:
    """0 where the digits depend on the precision that they are computed with: all cancelled."""
    steady = abs(value - again) <= abs(value) * _SMALL
    return value if steady else sympy.Integer(0)


def _points(variables: int) -> list[tuple[Any, ...]]:
    """The same points each time: small whole numbers, then fractions of both signs."""
    if not variables:
        return [()]
    rng = random.Random(variables)
    whole = list(zip(*(rng.sample(range(1, 10), 5) for _ in range(variables)), strict=True))
    others = [
        tuple(sympy.Rational(rng.randint(-300, 300), 101) for _ in range(variables))
        for _ in range(POINTS)
    ]
    positive = [tuple(abs(place) for place in point) for point in others[: POINTS // 2]]
    return [*(tuple(map(sympy.Integer, point)) for point in whole), *positive, *others]
