"""The studies of ``arrol sim``, in the order in which they run and are reported.

A study is one module with one function ``study(settings, progress) -> Study``. It calls
``progress(share)`` now and then with the share of its work that is done, from 0 to 1. Checks must
hold for every legal setting: a check of a published figure uses ``settings.paper()``. In a table
a column "X ±" is half of X's 95% interval over seeds; it is shown as one with X.
"""

from __future__ import annotations

from collections.abc import Callable

from arrol.sim.results import Study
from arrol.sim.settings import SimSettings
from arrol.sim.studies import (
    balance,
    closed_loop,
    engine_checks,
    keep_ratio,
    phases_table,
    same_cost,
    sensitivity,
    setting,
    wall_clock,
)

StudyFunction = Callable[[SimSettings, Callable[[float], None]], Study]

STUDIES: list[tuple[str, StudyFunction]] = [
    ("setting", setting.study),
    ("phases", phases_table.study),
    ("keep-ratio", keep_ratio.study),
    ("wall-clock", wall_clock.study),
    ("balance", balance.study),
    ("closed-loop", closed_loop.study),
    ("sensitivity", sensitivity.study),
    ("same-cost", same_cost.study),
    ("engine", engine_checks.study),
]
