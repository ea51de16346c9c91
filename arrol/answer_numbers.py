r"""Answers that are one rational number: read exactly, as a fraction of two integers.

A decimal means what its digits say: ``0.5`` is 1/2, ``0.333333`` is not 1/3, and ``3.14`` is not π.
Thousands may be set apart by commas or spaces. A number may carry a unit, which is dropped, never
compared, and a word that multiplies it: ``1.8 billion``. ``1011_2`` is 11, written in base 2.

A percentage ``p%`` stands for p and for p/100: problems that ask "what percent" have either as
their answer. So ``25%`` equals ``25``, ``0.25`` and ``1/4``; between two percentages p decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Number:
    """A rational number, as written: 25 for ``25%``."""

    value: Fraction
    percent: bool = False

    def same(self, other: Number) -> bool:
        """Equal, by the rule for percentages."""
        if self.percent == other.percent:
            return self.value == other.value
        share, plain = (self, other) if self.percent else (other, self)
        return plain.value in (share.value, share.value / 100)


_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_FRACTION = r"\\frac\s*\{\s*([+-]?\s*[\d.,]+)\s*\}\s*\{\s*([+-]?\s*[\d.,]+)\s*\}"
_MIXED = re.compile(rf"(\d+)\s*(?:{_FRACTION}|\s(\d+)\s*/\s*(\d+))")
_QUOTIENT = re.compile(rf"({_DECIMAL})\s*/\s*([+-]?{_DECIMAL})|{_FRACTION}")
_POWER_OF_TEN = re.compile(
    rf"({_DECIMAL})\s*(?:\\(?:times|cdot)\s*10\s*\^\s*(?:\{{\s*([+-]?\d{{1,3}})\s*\}}|(\d))"
    r"|[eE]([+-]?\d{1,3}))"
)
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar)\s*\{?(\d+)\}?")
_BASED = re.compile(r"(\d[\dA-Z]*)\s*_\s*\{?\s*(\d\d?)\s*\}?")
_PLAIN = re.compile(_DECIMAL)
_SIGN = re.compile(r"\s*([+-]?)\s*")
_COUNTS = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
# These are units; a longer word is one unless it stands for a number.
_SHORT_UNITS = {
    "cm", "mm", "km", "nm", "kg", "mg", "ms", "hr", "hrs", "min", "ml", "mL", "ft", "in", "yd",
    "mi", "mph", "kmh", "Hz", "Pa", "lb", "lbs", "oz", "cc", "sq", "am", "pm",
}  # fmt: skip
_LETTER = re.compile(r"(?<=\S)\s+[mgshlLNJWVFC](?:/[msh])?(?:\^\s*\{?\d\}?)?$")
_BETWEEN = {"of", "a", "an", "in", "to", "by"}
_NO_UNITS = {
    "half", "halves", "third", "thirds", "fourth", "fourths", "quarter", "quarters", "fifth",
    "fifths", "sixth", "sixths", "seventh", "sevenths", "eighth", "eighths", "ninth",
    "ninths", "tenth", "tenths", "hundredth", "hundredths", "thousandth", "thousandths",
    "dozen", "dozens", "score", "gross", "plus", "minus", "over", "squared", "cubed",
    "factorial", "choose", "infinity", "infty", "alpha", "beta", "gamma", "delta", "theta",
    "lambda", "sigma", "omega", "sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log",
    "exp", "max", "mod", "and", "not",
}  # fmt: skip
_LAST_WORDS = re.compile(
    r"(?<=[\d})\s.])\s*/?\s*((?:[A-Za-z]+\.?(?:\s+|/))*[A-Za-z]+)\.?\s*(?:\^\s*\{?-?\d\}?)?$"
)
_LAST_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}\s*(?:\^\s*\{?\s*-?\d\s*\}?)?\s*$")


def read_number(text: str) -> Number | None:
    """The rational number that ``text`` is as a whole, unit and all; None if it is none."""
    for bare, factor in _without_units(text):
        value = _value(bare.removesuffix("%"))
        if value is not None:
            return Number(value * factor, bare.endswith("%"))
    return None


def without_unit(text: str) -> str:
    r"""``text`` without the ``\text{...}`` or ``%`` at its end, if anything is left."""
    text = text.removesuffix("%").rstrip() or text
    while (found := _LAST_TEXT.search(text)) and text[: found.start()].strip():
        if any(_count(word) or word in _NO_UNITS for word in found.group(1).lower().split()):
            break
        text = text[: found.start()].rstrip().removesuffix("/").rstrip()
    return text


def without_letter(text: str) -> str:
    """``5 m`` without its unit of one letter, which beside ``5m`` is a variable."""
    return _LETTER.sub("", text)


def _without_units(text: str) -> Iterator[tuple[str, int]]:
    """``text``, and without what may be its unit: with what ``million`` multiplies it by."""
    yield text, 1
    bare = without_unit(text) if "\\text" in text else text
    if bare != text:
        yield bare, 1
    spelled = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).strip()
    found = _LAST_WORDS.search(spelled)
    if not found:
        return
    words = re.findall(r"[A-Za-z]+", found.group(1))
    factor = 1
    while words and (count := _count(words[0])):
        factor *= count
        words.pop(0)
    apart = spelled[found.start() : found.start(1)] != ""
    last = len(words) - 1
    if all(_is_unit(word, apart, place == last) for place, word in enumerate(words)):
        yield spelled[: found.start()].rstrip(), factor


def _count(word: str) -> int | None:
    return _COUNTS.get(word.lower().removesuffix("s"))


def _is_unit(word: str, apart: bool, last: bool) -> bool:
    if word in _SHORT_UNITS:
        return True
    if word.lower() in _BETWEEN:
        return apart and not last
    is_word = len(word) >= 3 and re.search("[aeiouAEIOU]", word) is not None
    return apart and is_word and word.lower() not in _NO_UNITS


def _value(text: str) -> Fraction | None:
    """The value of digits, a quotient, a mixed number or a power of ten, with a sign."""
    sign = _SIGN.match(text)
    assert sign is not None
    text = text[sign.end() :].strip()
    value = _unsigned(text)
    return -value if value is not None and sign.group(1) == "-" else value


def _unsigned(text: str) -> Fraction | None:
    if _PLAIN.fullmatch(text):
        return _decimal(text)
    if found := _QUOTIENT.fullmatch(text):
        top, bottom = (found.group(1), found.group(2)) if found.group(1) else found.group(3, 4)
        return _quotient(_decimal(top), _decimal(bottom))
    if found := _MIXED.fullmatch(text):
        top, bottom = found.group(2, 3) if found.group(2) else found.group(4, 5)
        part = _quotient(_decimal(top), _decimal(bottom))
        return None if part is None or not 0 <= part < 1 else int(found.group(1)) + part
    if found := _POWER_OF_TEN.fullmatch(text):
        power = int(found.group(2) or found.group(3) or found.group(4))
        head = _decimal(found.group(1))
        return None if head is None else head * Fraction(10) ** power
    if found := _REPEATING.fullmatch(text):
        whole, fixed, period = found.groups()
        steady = Fraction(int(whole + fixed or "0"), 10 ** len(fixed))
        return steady + Fraction(int(period), 10 ** len(fixed) * (10 ** len(period) - 1))
    if (found := _BASED.fullmatch(text)) and 2 <= int(found.group(2)) <= 36:
        try:
            return Fraction(int(found.group(1), int(found.group(2))))
        except ValueError:  # a digit that the base does not have
            return None
    return None


def _decimal(text: str) -> Fraction | None:
    digits = text.replace(" ", "")
    if not re.fullmatch(rf"[+-]?(?:{_DECIMAL})", digits):
        return None
    return Fraction(digits.replace(",", "").removesuffix("."))


def _quotient(top: Fraction | None, bottom: Fraction | None) -> Fraction | None:
    return None if top is None or not bottom else top / bottom
