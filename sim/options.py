"""Options of the simulator's commands: models and accelerators, by name or by their figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from arrol.errors import ArrolError
from arrol.sim.hardware import ACCELERATORS, MODELS, find_accelerator, find_model

Command = TypeVar("Command", bound=Callable[..., Any])


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
