"""Engine arguments and progress bar of ``arrol generate``."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from arrol.errors import ArrolError


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
        except (ValueError, RecursionError):
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
