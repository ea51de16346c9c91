"""What the commands share: options that are checked by a parameter's own rules, and the bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from arrol.errors import ArrolError
from arrol.sim.hardware import ACCELERATORS, MODELS, find_accelerator, find_model
from arrol.sim.parameters import Parameter

Command = TypeVar("Command", bound=Callable[..., Any])


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


def model_option(default: str) -> Callable[[Command], Command]:
    """``--model``: a name or sizes."""
    return click.option(
        "--model",
        callback=_look_up(find_model),
        default=default,
        show_default=True,
        metavar="NAME",
        help=f"Model: {', '.join(MODELS)}, or its sizes (layers=…,hidden=…,intermediate=…,"
        "heads=…,kv_heads=…,head_dim=…,vocab=…).",
    )


def accelerator_option(default: str) -> Callable[[Command], Command]:
    """``--accelerator``: a name or figures."""
    return click.option(
        "--accelerator",
        callback=_look_up(find_accelerator),
        default=default,
        show_default=True,
        metavar="NAME",
        help=f"Accelerator: {', '.join(ACCELERATORS)}, or its figures (flops=…,bandwidth=…,"
        "memory=… in FLOP/s, B/s and B).",
    )


def _look_up(find: Callable[[str], Any]) -> Callable[..., Any]:
    """A callback that finds a model or accelerator, and names the flag where it can't."""

    def look_up(ctx: click.Context, param: click.Parameter, value: str) -> Any:
        try:
            return find(value)
        except ArrolError as error:
            raise ArrolError(f"{param.opts[0]}: {error}") from None

    return look_up


class Screen:
    """Prints while it can. What can't be printed must not cost the results.

    Attributes:
        failure: why printing stopped: a full disk, a reader that has gone; None while it works.
    """

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.failure: OSError | SystemExit | None = None

    def show(self, write: Callable[[Console], object]) -> None:
        """Let ``write`` print, unless printing failed before."""
        if self.failure is not None:
            return
        try:
            write(self.console)
        except (OSError, SystemExit) as error:  # rich turns a closed pipe into SystemExit
            self.failure = error

    def close(self) -> None:
        """Raise what stopped the printing, now that the results are safe."""
        if self.failure is not None:
            raise self.failure


class Bar:
    """A progress bar on stderr, if that is a terminal; it leaves nothing behind."""

    def __init__(self, name: str) -> None:
        console = Console(stderr=True)
        columns = (TextColumn(name), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._bars = Progress(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=False,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task("", total=1.0)

    def progress(self, share: float) -> None:
        """Show the share of all work that is done."""
        self._bars.update(self._task, completed=share)

    @contextmanager
    def shown(self) -> Iterator[Callable[[float], None]]:
        """Show it within a block; gives :meth:`progress`."""
        with self._bars:
            yield self.progress

    @contextmanager
    def put_aside(self) -> Iterator[None]:
        """Take it off the terminal within a block that prints there."""
        self._bars.stop()
        try:
            yield
        finally:
            self._bars.start()
