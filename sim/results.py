"""What a study hands to the report: tables, figures, checks and claims that do not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Table:
    """A table of a study.

    Attributes:
        name: file name without suffix.
        title: one line above it.
        frame: the values as they go into the CSV, full precision.
        formats: column → format spec (``".3f"``), for the terminal and the report.
        note: what a reader must know to read it: sources, uncertainty, what is left out.
    """

    name: str
    title: str
    frame: pd.DataFrame
    formats: dict[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure of a study; ``draw`` fills an empty matplotlib canvas."""

    name: str
    title: str
    draw: Callable[[Canvas], None]
    note: str = ""


@dataclass(frozen=True)
class Check:
    """One validation: a figure, the bound it must meet, and whether it does."""

    name: str
    figure: float
    bound: str
    passed: bool


@dataclass(frozen=True)
class Contradiction:
    """A claim of the paper that the simulation does not reproduce, with the reason."""

    claim: str
    paper: str
    simulated: str
    reason: str


@dataclass(frozen=True)
class Study:
    """The outcome of one study, ready to be printed, written and checked."""

    name: str
    title: str
    text: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    checks: tuple[Check, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
