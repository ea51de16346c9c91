"""Options and progress bar of ``arrol generate``; they look and speak as those of ``arrol sim``."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from arrol.errors import ArrolError, check_integer, check_range

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Number:
    """A number that a user may set.

    Attributes:
        name: of the command's argument; the flag is made from it.
        text: what it is, as the help says it.
        unit: of its value; empty for a pure number.
        low, high: allowed range, closed at both ends unless ``open_low``.
        integer: only whole numbers are allowed.
        default: None for none, described in the help by ``no_default``.
    """

    name: str
    text: str
    unit: str
    low: float
    high: float
    default: float | None
    integer: bool = False
    open_low: bool = False
    no_default: str = ""

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def range_text(self) -> str:
        """The allowed range in words."""
        low = f"above {self.low:,.15g}" if self.open_low else f"{self.low:,.15g}"
        return f"{low} to {self.high:,.15g}"

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
        if self.integer:
            check_integer(self.flag, int(value), int(self.low), int(self.high))
        else:
            check_range(self.flag, value, self.low, self.high, open_low=self.open_low)
        return value

    def option(self, command: Command) -> Command:
        """The command with this option."""

        def read(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
            return None if value is None else self.parse(value)

        unit = f" {self.unit}" if self.unit else ""
        add = click.option(
            self.flag,
            self.name,
            callback=read,
            default=None if self.default is None else str(self.default),
            show_default=self.no_default if self.default is None else True,
            metavar="N" if self.integer else "X",
            help=f"{self.text[0].upper()}{self.text[1:]} ({self.range_text}{unit}).",
        )
        return add(command)


def number_options(numbers: Sequence[Number]) -> Callable[[Command], Command]:
    """All of them, in this order in the help."""

    def add(command: Command) -> Command:
        for number in reversed(numbers):
            command = number.option(command)
        return command

    return add


def engine_values(pairs: Sequence[str], allowed: Sequence[str]) -> dict[str, Any]:
    """vLLM's engine arguments as a user typed them: KEY=VALUE, the value in JSON or plain text.

    Args:
        pairs: such as ``max_model_len=512``, ``dtype=float32``, ``enforce_eager=true``.
        allowed: names that the installed vLLM knows.

    Raises:
        ArrolError: a pair has no ``=``, its name is not allowed, or it comes twice.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ArrolError(f"--engine is {pair!r}; allowed is KEY=VALUE.")
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ArrolError(f"--engine is {pair!r}; allowed is an engine argument of vLLM{hint}.")
        if name in values:
            raise ArrolError(f"--engine {name} is given twice; allowed is once.")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


class RolloutBar:
    """A progress bar over rollouts on stderr, if that is a terminal; it leaves nothing behind."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        self._bars = Bars(
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("{task.fields[rate]:,.0f} tokens/s"),
            TextColumn("{task.fields[running]:,} running"),
            TextColumn("{task.fields[pruned]:,} pruned"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,
            expand=True,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task("", total=total, rate=0.0, running=0, pruned=0)

    def look(self, progress: Any) -> None:
        """Show an :class:`arrol.adapters.vllm.Progress`."""
        rate = progress.tokens / progress.seconds if progress.seconds > 0 else 0.0
        self._bars.update(
            self._task,
            completed=progress.total - progress.running,
            rate=rate,
            running=progress.running,
            pruned=progress.pruned,
        )

    @contextmanager
    def shown(self) -> Iterator[Callable[[Any], None]]:
        """Show it within a block; gives :meth:`look`."""
        with self._bars:
            yield self.look
