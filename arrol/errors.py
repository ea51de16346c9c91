"""The one exception that a user's mistake raises, and the checks that raise it."""

from __future__ import annotations

import math
from enum import StrEnum
from numbers import Integral, Real
from typing import TypeVar

Member = TypeVar("Member", bound=StrEnum)


class ArrolError(ValueError):
    """A user's mistake: one sentence that names the thing, its value and what is allowed.

    The command line prints the sentence and exits with code 2, without a traceback.
    """


def check_range(
    name: str,
    value: float,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Raise :class:`ArrolError` unless ``value`` is a finite number inside the range.

    The range is closed at both ends unless ``open_low`` / ``open_high`` say otherwise.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    inside = (
        is_number
        and _is_finite(value)
        and (value > low if open_low else value >= low)
        and (value < high if open_high else value <= high)
    )
    if not inside:
        allowed = _range_text(low, high, open_low, open_high)
        raise ArrolError(f"{name} is {value!r}; allowed is a number {allowed}.")


def check_integer(name: str, value: int, low: int, high: int | None = None) -> None:
    """Raise :class:`ArrolError` unless ``value`` is an integer in [low, high]."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or value < low or (high is not None and value > high):
        allowed = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ArrolError(f"{name} is {value!r}; allowed is an integer {allowed}.")


def as_member(name: str, kind: type[Member], value: object) -> Member:
    """The member of a StrEnum that ``value`` names, or is; :class:`ArrolError` if none."""
    for member in kind:
        if value == member:
            return member
    allowed = ", ".join(member.value for member in kind)
    raise ArrolError(f"{name} is {value!r}; allowed is one of {allowed}.")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond any float
        return False


def _range_text(low: float, high: float, open_low: bool, open_high: bool) -> str:
    lower = f"above {low:g}" if open_low else f"of at least {low:g}"
    upper = f"below {high:g}" if open_high else f"at most {high:g}"
    if math.isinf(high):
        return lower
    if math.isinf(low):
        return upper
    return f"{lower} and {upper}"
