"""Checked columns: the arrays of equal length, one value a rollout, that the statistics take."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arrol.errors import ArrolError, check_range

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


def as_columns(**named: ArrayLike) -> tuple[Floats, ...]:
    """Each value as float64[N], in the order given.

    Raises:
        ArrolError: one of them is not one-dimensional, or their lengths differ.
    """
    columns = tuple(np.asarray(values, dtype=np.float64) for values in named.values())
    check_one_length(**dict(zip(named, columns, strict=True)))
    return columns


def check_one_length(**named: NDArray[np.generic]) -> None:
    """Raise :class:`ArrolError` unless all are one-dimensional and of one length."""
    first: str | None = None
    for name, column in named.items():
        if column.ndim != 1:
            raise ArrolError(f"{name} has shape {column.shape}; allowed is one dimension.")
        first = first or name
        if len(column) != len(named[first]):
            expected = f"{len(named[first])}, the length of {first}"
            raise ArrolError(f"{name} has {len(column)} rows; allowed is {expected}.")


def check_column(
    name: str,
    column: Floats,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
) -> None:
    """Raise :class:`ArrolError` at the first value that is not finite or not in the range."""
    above = column > low if open_low else column >= low
    wrong = ~(above & (column <= high) & np.isfinite(column))
    if wrong.any():
        row = int(np.argmax(wrong))
        check_range(f"{name}[{row}]", float(column[row]), low, high, open_low=open_low)


def check_outcomes(name: str, column: Floats) -> None:
    """Raise :class:`ArrolError` at the first outcome that is neither 0 nor 1."""
    wrong = (column != 0.0) & (column != 1.0)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ArrolError(f"{name}[{row}] is {float(column[row])!r}; allowed is 0 or 1.")
