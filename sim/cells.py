"""Values as text: what a cell or a step's time says, and how columns fit a width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.cells import cell_len

from arrol.sim.cost import LAYER_OFFSET, StepTime
from arrol.sim.results import Table

HALF_WIDTH = " ±"  #: a column "X ±" holds the half width of X's 95% interval
MISSING = "–"
GAP = 2  #: blanks between two columns
HEADER_WIDTHS = (28, 20, 14, 10, 7)  #: tried in turn until a table fits
TEXT_WIDTH = 44  #: longer texts are wrapped


@dataclass(frozen=True)
class Column:
    """One column, ready to be shown.

    Attributes:
        header: its name.
        cells: one text a row.
        number: it holds figures, so it stands to the right and is never wrapped.
        interval: its figures come with a "±half width".
    """

    header: str
    cells: tuple[str, ...]
    number: bool
    interval: bool = False

    def width(self, header_width: int) -> int:
        """Characters that it takes when its header may be that wide, longer words excepted."""
        cell = max(map(cell_len, self.cells), default=0)
        if not self.number:
            cell = min(cell, TEXT_WIDTH)
        header = max(map(cell_len, self.header_lines(max(header_width, cell))), default=0)
        return max(cell, header)

    def header_lines(self, width: int) -> list[str]:
        """The header in lines of that width; a longer word has a line of its own."""
        lines: list[str] = []
        for word in self.header.split():
            if lines and cell_len(f"{lines[-1]} {word}") <= width:
                lines[-1] = f"{lines[-1]} {word}"
            else:
                lines.append(word)
        return lines


def columns_of(table: Table) -> list[Column]:
    """The columns of a table; a column "X ±" joins the cells of X as "x ±half"."""
    frame = table.frame
    halves = {f"{name}{HALF_WIDTH}" for name in frame.columns}
    return [_column(table, name) for name in frame.columns if name not in halves]


def _column(table: Table, name: str) -> Column:
    frame, spec = table.frame, table.formats.get(name, "")
    values = list(frame[name])
    cells = [cell(value, spec) for value in values]
    interval = f"{name}{HALF_WIDTH}" in frame
    if interval:
        halves = [cell(half, spec.lstrip("+")) for half in frame[f"{name}{HALF_WIDTH}"]]
        cells = [
            text if half == MISSING else f"{text} ±{half}"
            for text, half in zip(cells, halves, strict=True)
        ]
    return Column(str(name), tuple(cells), all(map(_is_number, values)), interval)


def cell(value: Any, spec: str = "") -> str:
    """One value as text; a missing one is a dash."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return MISSING
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)):
        return format(int(value), spec if spec.endswith(("d", ",")) else ",")
    if isinstance(value, (float, np.floating)):
        number = float(value)
        text = format(number, spec or (",.0f" if abs(number) >= 1000.0 else ".4g"))
        rounds_to_0 = np.isfinite(number) and not any(digit in text for digit in "123456789")
        return text.lstrip("+-") if rounds_to_0 else text
    return str(value)


def step_time_text(cost: StepTime) -> str:
    """The time of a decode step, with every constant that it takes to recompute it."""
    return (
        "A decode step with n sequences and K KV tokens takes t₀ + t_s·n + g(n) + kv·K, with "
        f"t₀ = {cost.fixed * 1e3:.4g} ms, t_s = {cost.per_sequence * 1e6:.4g} µs and "
        f"kv = {cost.kv_read * 1e9:.4g} ns. g(n) = (m^r + (c·n)^r)^(1/r) + o is a smooth "
        f"roofline: m = {cost.streaming * 1e3:.4g} ms to stream the weights, "
        f"c = {cost.arithmetic * 1e6:.4g} µs a token to multiply them, r = {cost.knee:g}, and "
        f"o = {cost.offset * 1e3:.4g} ms for the start and tail of the kernels, "
        f"{LAYER_OFFSET * 1e6:.4g} µs a layer."
    )


def _is_number(value: Any) -> bool:
    missing = value is None
    return missing or (isinstance(value, (int, float, np.number)) and not isinstance(value, bool))


def blocks(columns: Sequence[Column], width: int) -> list[tuple[list[Column], int]]:
    """Groups of columns that fit side by side, each with the width its headers may have.

    All columns stay together if some header width allows it. Otherwise they are dealt to several
    groups, and each group starts with the columns that say what a row is.
    """
    for header_width in HEADER_WIDTHS:
        if total_width(columns, header_width) <= width:
            return [(list(columns), header_width)]
    keys = _row_names(columns)
    header_width, parts = HEADER_WIDTHS[2], [list(keys)]
    for column in columns[len(keys) :]:
        is_full = total_width([*parts[-1], column], header_width) > width
        if is_full and len(parts[-1]) > len(keys):
            parts.append(list(keys))
        parts[-1].append(column)
    return [(part, header_width) for part in parts]


def _row_names(columns: Sequence[Column]) -> list[Column]:
    """The leading columns up to the first interval; without one, the leading texts."""
    ends = [place for place, column in enumerate(columns) if column.interval]
    ends = ends or [place for place, column in enumerate(columns) if column.number]
    return list(columns[: max(ends[0] if ends else 0, 1)])


def total_width(columns: Sequence[Column], header_width: int) -> int:
    """Characters of a line of these columns."""
    return sum(column.width(header_width) for column in columns) + GAP * (len(columns) - 1)
