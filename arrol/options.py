"""Numbers that a command lets its user set: one value for flag, check and help."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from arrol.errors import ArrolError, check_integer, check_range

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Parameter:
    """A number that a user may set.

    Attributes:
        name: of the command's argument; the flag is made from it.
        text: what it is, as the help says it.
        unit: of its value; empty for a pure number.
        low, high: allowed range, closed unless ``open_low`` / ``open_high`` say otherwise.
        integer: only whole numbers are allowed.
        source: where the default comes from, for a report.
    """

    name: str
    text: str
    unit: str
    low: float
    high: float
    integer: bool = False
    open_low: bool = False
    open_high: bool = False
    source: str = ""

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

    def check(self, value: float) -> None:
        """Raise :class:`ArrolError` unless the value is allowed."""
        if self.integer:
            check_integer(self.flag, value, int(self.low), int(self.high))  # type: ignore[arg-type]
        else:
            check_range(
                self.flag, value, self.low, self.high,
                open_low=self.open_low, open_high=self.open_high,
            )  # fmt: skip

    def parse(self, text: str) -> float:
        """The value that a user typed.

        Raises:
            ArrolError: it is not a number, or out of range.
        """
        try:
            value = int(text) if self.integer else float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            kind = "an integer" if self.integer else "a number"
            raise ArrolError(f"{self.flag} is {text!r}; allowed is {kind}, {self.range_text}.")
        self.check(value)
        return value

    @property
    def range_text(self) -> str:
        """The allowed range in words."""
        low = f"above {self.low:,.15g}" if self.open_low else f"{self.low:,.15g}"
        high = f"below {self.high:,.15g}" if self.open_high else f"{self.high:,.15g}"
        return f"{low} to {high}"


def number_option(
    parameter: Parameter, default: float | None, no_default: str = ""
) -> Callable[[Command], Command]:
    """An option that is read and checked by the parameter's own rules.

    Args:
        parameter: its flag, meaning, unit and range.
        default: None for none, described in the help by ``no_default``.
    """

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
        return None if value is None else parameter.parse(value)

    unit = f" {parameter.unit}" if parameter.unit else ""
    return click.option(
        parameter.flag,
        parameter.name,
        callback=read,
        default=None if default is None else str(default),
        show_default=no_default if default is None else True,
        metavar="N" if parameter.integer else "X",
        help=f"{parameter.text[0].upper()}{parameter.text[1:]} ({parameter.range_text}{unit}).",
    )
