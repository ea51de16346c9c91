"""What commands show: output that may stop, a progress bar, the problems of a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from arrol.rollout_files import ProblemList


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


def print_problems(console: Console, problems: ProblemList, show: int, what: str = "log") -> None:
    """Print the first problems, each on its own line, and how many there are."""
    total = problems.counts.total()
    if not total:
        return
    plural = "problems" if total > 1 else "problem"
    console.print(Text(f"{total:,} {plural} in the {what}", style="bold yellow"))
    for problem in problems.first[:show]:
        console.print(Text(f"  {problem}"), soft_wrap=True)
    if total > show:
        console.print(Text(f"  … and {total - min(show, total):,} more.", style="dim"))
    console.print()
