"""What comes out of the studies: the terminal's tables, the result files and the HTML report."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from arrol.errors import ArrolError
from arrol.files import write_atomically
from arrol.sim.cells import Column, blocks, cell, columns_of
from arrol.sim.page import page
from arrol.sim.results import Check, Contradiction, Study, Table
from arrol.sim.settings import SimSettings

REPORT = "report.html"


def prepare_folder(folder: Path, flag: str = "--out") -> None:
    """Make a folder and see that it can be written to, before any work is done.

    Raises:
        ArrolError: it can't be; the sentence names ``flag``.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise ArrolError(f"{flag} is {str(folder)!r}, which is a file; allowed is a folder.")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        raise ArrolError(
            f"{flag} is {str(folder)!r}; allowed is a folder that can be written to "
            f"({getattr(error, 'strerror', None) or error})."
        ) from None


def write_results(
    studies: Sequence[Study], pngs: Mapping[str, bytes], settings: SimSettings, out: Path
) -> Path:
    """Write a CSV for each table, a PNG for each figure and the report; return its path.

    The CSVs hold full precision and no wall times: the same settings give the same bytes. Each
    file is written to a temporary one and renamed.

    Args:
        studies: in the order in which they are told.
        pngs: name of a figure → its PNG.
        settings: what was simulated.
        out: the folder.

    Raises:
        ArrolError: a file can't be written.
    """
    prepare_folder(out)
    for study in studies:
        for table in study.tables:
            text = table.frame.to_csv(index=False, lineterminator="\n")
            write_atomically(out / f"{table.name}.csv", text)
    for name, png in pngs.items():
        write_atomically(out / f"{name}.png", png)
    write_atomically(out / REPORT, page(studies, settings, pngs))
    return out / REPORT


def print_study(console: Console, study: Study) -> None:
    """Print a study's text and tables; they fit consoles from 60 characters on."""
    console.rule(Text(study.title, style="bold"), align="left", style="dim")
    console.print(Text(study.text))
    for table in study.tables:
        print_table(console, table)
    console.print()


def print_table(console: Console, table: Table) -> None:
    """Print one table, in several parts where it is wider than the console."""
    console.print()
    console.print(Text(table.title, style="bold"))
    for place, (columns, header_width) in enumerate(blocks(columns_of(table), console.width - 1)):
        if place:
            console.print()
        console.print(_grid(columns, header_width))
    if table.note:
        console.print(Text(table.note, style="dim"))


def _grid(columns: Sequence[Column], header_width: int) -> Grid:
    grid = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        width = column.width(header_width)
        grid.add_column(
            Text("\n".join(column.header_lines(width))),
            justify="right" if column.number else "left",
            vertical="top",
            width=width,
            no_wrap=column.number,
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        grid.add_row(*map(Text, row))
    return grid


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """Print each check with its figure, its bound and whether it passed; nothing without any."""
    if not checks:
        return
    console.rule(Text("Checks", style="bold"), align="left", style="dim")
    grid = Grid.grid(padding=(0, 2, 0, 0))
    for check in checks:
        mark = Text("pass", "bold green") if check.passed else Text("FAIL", "bold red")
        figure = Text(f"{cell(check.figure)}, must be {check.bound}", justify="left")
        grid.add_row(mark, Text(check.name), figure)
    console.print(grid)
    passed = sum(check.passed for check in checks)
    console.print(Text(f"{passed} of {len(checks)} checks passed.", style="bold"))
    console.print()


def print_contradictions(console: Console, contradictions: Sequence[Contradiction]) -> None:
    """Print what the simulation does not reproduce, with reasons. None of it is a failed check."""
    if not contradictions:
        return
    console.rule(Text("Does not reproduce", style="bold"), align="left", style="dim")
    for item in contradictions:
        console.print(Text(item.claim, style="bold"))
        text = f"paper: {item.paper}\nsimulated: {item.simulated}\nreason: {item.reason}"
        console.print(Padding(Text(text), (0, 0, 0, 2)))
    console.print()
