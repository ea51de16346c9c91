r"""Checking answers: is what a response ends with the problem's answer?

:func:`verify` checks one, :class:`Verifier` many, in worker processes that a hung or crashed check
can't take along. The package math-verify reads formulas (extra ``verify``); plain numbers need
neither it nor a worker.

Three verdicts, as "we can't tell" is not "wrong":

==============  ============================================================================
RIGHT           the answer equals the gold answer
WRONG           it does not; or there is no answer, or none that can be read, to a gold answer
                that can: the task was to give one
UNVERIFIABLE    the gold answer is empty or can't be read and the texts differ, or the check
                ran into the time or memory limit, or crashed
==============  ============================================================================

What equality means (each module says more):

- Numbers are exact (:mod:`arrol.answer_numbers`): ``0.5``, ``1/2`` and ``\frac12`` are equal,
  ``0.333`` and ``1/3`` are not. ``p%`` equals p and p/100. Units, currency and degree signs and
  separators of thousands don't count.
- Formulas are equal if their values are (:mod:`arrol.answer_maths`).
- Bare lists and sets have no order; pairs, points and intervals have, and their brackets count.
- ``x = 5`` equals ``5``; equations are equal up to a constant factor, inequalities up to a
  positive one, and ``x > 2`` equals ``(2, \infty)``.
- Words are equal in any case, ``\text{...}`` or not, as a whole: ``\text{4:30 p.m.}`` is a text,
  ``4:30 \text{ p.m.}`` a ratio with a unit, and they differ.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Self

from arrol.answer_compare import is_readable, same_form
from arrol.answer_forms import Form, Formula, Group, read, read_as_list
from arrol.answer_latex import tidy
from arrol.answer_numbers import Number, read_number, without_letter
from arrol.answer_text import LONGEST, extract_answer
from arrol.answer_workers import Workers
from arrol.errors import ArrolError

__all__ = ["Verdict", "Verifier", "extract_answer", "same_answer", "verify"]

Progress = Callable[[int, int], object]


class Verdict(StrEnum):
    """What a check finds; the module says when."""

    RIGHT = "right"
    WRONG = "wrong"
    UNVERIFIABLE = "unverifiable"


def verify(text: str, gold: str) -> Verdict:
    r"""Check one response against the gold answer, in this process and without a time limit.

    Args:
        text: the response, or only its answer.
        gold: the gold answer, or a solution that ends with it.

    Raises:
        ArrolError: math-verify is needed, as an answer is no plain number, and not installed.

    >>> verify(r"So it is \boxed{\frac{1}{2}}.", "0.5")
    <Verdict.RIGHT: 'right'>
    """
    return check(extract_answer(text), _gold(gold))


def same_answer(one: str, other: str) -> bool:
    r"""Whether two answers are equal, as for voting: ``0.5`` and ``\frac12``.

    What can't be read equals the same text only. In this process and without a time limit. Nearly
    an equivalence: ``25%`` equals ``25`` and ``0.25``, which differ.

    Raises:
        ArrolError: as :func:`verify`.
    """
    return check(_gold(one), _gold(other)) is Verdict.RIGHT


class Verifier:
    """Checks many answers in worker processes, each within a time limit; a context manager.

    Any thread may use it; batches of several threads take turns. Workers start when a batch first
    needs them and end with the context, :meth:`close` or this process.

    Args:
        workers: number of worker processes; None for one per core.
        seconds: time limit of one answer. One that takes longer is UNVERIFIABLE, as is one that
            crashes its worker; others are not touched.

    Raises:
        ArrolError: a number is out of range, or math-verify is not installed.
    """

    def __init__(self, workers: int | None = None, seconds: float = 30.0) -> None:
        if workers is None:
            workers = _cores()
        for package in ("math_verify", "antlr4"):
            if importlib.util.find_spec(package) is None:
                raise ArrolError(
                    f"{package} is not installed; checking answers needs the package's extra "
                    "'verify': pip install 'arrol[verify]'."
                )
        function = f"{__name__}:{check.__name__}"
        self._workers = Workers(function, workers, seconds, preload=["arrol.answer_maths"])
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers. A later batch starts new ones."""
        with self._turn:
            self._workers.close()

    def verify_all(
        self, texts: Sequence[str], golds: Sequence[str], progress: Progress | None = None
    ) -> list[Verdict]:
        """Check each response against its gold answer: verdicts in the order of ``texts``.

        Args:
            texts, golds: as for :func:`verify`, one gold answer per response.
            progress: called with (answers done, answers in all) after each.

        Raises:
            ArrolError: lengths differ, or something is no text.
        """
        _check_texts(texts, golds)
        verdicts: list[Verdict | None] = [None] * len(texts)
        places: dict[tuple[str | None, str | None], list[int]] = {}  # that ask the same
        done = 0

        def give(wanted: list[int], verdict: Verdict) -> None:
            nonlocal done
            for place in wanted:
                verdicts[place] = verdict
                done += 1
                if progress is not None:
                    progress(done, len(texts))

        for place, (text, gold) in enumerate(zip(texts, golds, strict=True)):
            pair = extract_answer(text), _gold(gold)
            verdict = _quick(*pair)
            if verdict is None:
                places.setdefault(pair, []).append(place)
            else:
                give([place], verdict)
        pairs = list(places)
        with self._turn:
            for number, found in self._workers.run(pairs):
                give(places[pairs[number]], Verdict(found or Verdict.UNVERIFIABLE))
        return [verdict for verdict in verdicts if verdict is not None]


def check(answer: str | None, gold: str | None) -> Verdict:
    """Compare an answer with the gold answer, both already extracted; what a worker does.

    Raises:
        ArrolError: as :func:`verify`.
    """
    try:
        return _quick(answer, gold) or _thorough(answer, gold or "")
    except RecursionError:  # brackets in brackets, hundreds deep
        return Verdict.UNVERIFIABLE


def _gold(text: str) -> str | None:
    """The answer that a gold text ends with, or all of it."""
    return extract_answer(text) or text.strip()[: LONGEST + 1] or None


def _quick(answer: str | None, gold: str | None) -> Verdict | None:
    """The verdict where it needs no formula: equal texts, numbers, nothing to compare."""
    if gold is None or len(gold) > LONGEST:
        return Verdict.UNVERIFIABLE
    if answer == gold:
        return Verdict.RIGHT
    gold_number = read_number(tidy(gold))
    if gold_number is None:
        return None
    if answer is None:
        return Verdict.WRONG
    number = read_number(tidy(answer))
    return None if number is None else _verdict(number.same(gold_number))


def _thorough(answer: str | None, gold: str) -> Verdict:
    gold_form = read(gold)
    if answer is not None and any(same_form(*pair) for pair in _readings(answer, gold)):
        return Verdict.RIGHT
    return Verdict.WRONG if is_readable(gold_form) else Verdict.UNVERIFIABLE


def _readings(answer: str, gold: str) -> Iterator[tuple[Form, Form]]:
    """Both forms; then what depends on the other one: 1,234 beside a list, 5 m beside a number."""
    one, other = read(answer), read(gold)
    yield one, other
    for text, form, beside in ((answer, one, other), (gold, other, one)):
        if isinstance(form, Formula) and isinstance(beside, Number):
            yield read(without_letter(text)), beside
        if isinstance(form, Number) and isinstance(beside, Group):
            listed = read_as_list(text)
            if listed is not None:
                yield listed, beside


def _verdict(right: bool) -> Verdict:
    return Verdict.RIGHT if right else Verdict.WRONG


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))  # those that this process may use
    return os.cpu_count() or 1


def _check_texts(texts: Sequence[str], golds: Sequence[str]) -> None:
    if len(texts) != len(golds):
        raise ArrolError(f"golds are {len(golds)}; allowed are {len(texts)}, one for each text.")
    for name, values in (("texts", texts), ("golds", golds)):
        for place, value in enumerate(values):
            if not isinstance(value, str):
                raise ArrolError(f"{name}[{place}] is {value!r}; allowed is a text.")
