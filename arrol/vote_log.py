"""Rollouts that can vote: answers, labels and scores, read from files of whole texts.

========  ==================================  ==================================================
format    keys needed                         what they are
========  ==================================  ==================================================
lists     response[], and score[] or answer   a problem with all its rollouts; score[] is the
                                              label (right if above 0), answer the gold answer.
                                              Also used: pred_score[], a reward model's score,
                                              which stands in for the quality score too.
rows      group, text, and outcome or answer  a rollout. Also used: score (the quality score),
                                              posterior (q; both also within detection),
                                              confidence (of the trace), orm (a reward
                                              model's score), index, step, finish_reason.
========  ==================================  ==================================================

A rollout that was pruned or failed does not count. A label, where there is one, says what is right;
only without any is an answer held against the gold one. A key whose value is null counts as absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arrol.errors import ArrolError
from arrol.records import FinishReason
from arrol.rollout_files import ProblemList, files_of, records_of
from arrol.rollout_log import parse_record
from arrol.rollout_rows import (
    ProblemKind,
    Row,
    RowError,
    group_of,
    list_of,
    number_of,
    outcome_of,
    short_text,
    step_of,
)
from arrol.vote_problems import COLUMNS, Ballot, Voter

_RANGES = {"confidence": (0.0, math.inf), "posterior": (0.0, 1.0)}
_NOT_COUNTED = (FinishReason.PRUNED, FinishReason.FAILED)


@dataclass(frozen=True)
class VoteLog:
    """All rollouts of some files.

    Attributes:
        ballots: by problem, in order of appearance; each has a voter or more.
        left_out: rollouts that don't count, by finish reason.
        errors: what could not be used.
    """

    ballots: tuple[Ballot, ...]
    left_out: dict[FinishReason, int]
    errors: ProblemList


def read_voters(
    paths: Sequence[str | Path],
    extract: Callable[[str], str | None],
    progress: Callable[[float], None] | None = None,
) -> VoteLog:
    """Read files, or folders of files.

    Args:
        paths: JSON lines, gzipped or not, or Parquet.
        extract: the answer in a text, or None.
        progress: called with the share of files that are read.

    Raises:
        ArrolError: no rollout can be used.
    """
    reader = _Reader(extract)
    files = list(files_of(paths, reader.errors))
    for done, path in enumerate(files):
        reader.read(path)
        if progress:
            progress((done + 1) / len(files))
    return reader.log()


class _Reader:
    """Collects voters by group, over all files."""

    def __init__(self, extract: Callable[[str], str | None]) -> None:
        self.extract = extract
        self.errors = ProblemList()
        self.ballots: dict[tuple[object, ...], Ballot] = {}
        self.left_out = dict.fromkeys(_NOT_COUNTED, 0)
        self._seen: set[tuple[object, object]] = set()

    def read(self, path: Path) -> None:
        """Read one file."""
        records, errors = 0, self.errors.counts.total()
        for line, record in records_of(path, self.errors):
            records += 1
            try:
                self._add(str(path), line, parse_record(record))
            except RowError as error:
                self.errors.add(str(path), line, error.kind, str(error))
        if not records and self.errors.counts.total() == errors:
            self.errors.add(str(path), 0, ProblemKind.EMPTY_FILE, "the file is empty")

    def _add(self, path: str, line: int, record: Row) -> None:
        row = {key: value for key, value in record.items() if value is not None}
        if "response" in row:
            self._add_list(path, line, row)
        elif "group" in row:
            self._add_row(path, line, row)
        else:
            text = f"neither response nor group among its keys {short_text(sorted(row))}"
            raise RowError(ProblemKind.UNKNOWN_FORMAT, text)

    def _add_list(self, path: str, line: int, row: Row) -> None:
        responses = list_of(row, "response")
        if not responses:
            raise RowError(ProblemKind.EMPTY_GROUP, "response is an empty list")
        gold = _gold(row)
        if gold is None and "score" not in row:
            raise RowError(ProblemKind.BAD_OUTCOME, "neither score nor answer: nothing to grade by")
        nothing = [None] * len(responses)
        labels = list_of(row, "score") if "score" in row else nothing
        scores = list_of(row, "pred_score") if "pred_score" in row else nothing
        lengths = {"response": len(responses), "score": len(labels), "pred_score": len(scores)}
        if len(set(lengths.values())) > 1:
            text = ", ".join(f"{length} {name}" for name, length in lengths.items())
            raise RowError(ProblemKind.UNEQUAL_LISTS, text)
        ballot = Ballot(str(line), gold)
        for place, (response, label, score) in enumerate(
            zip(responses, labels, scores, strict=True)
        ):
            try:
                right = _label(label, f"score[{place}]", gold is not None)
                answer = self._answer(response, f"response[{place}]")
                values = self._values(path, line, {"score": score})
            except RowError as error:
                self.errors.add(path, line, error.kind, str(error))
                continue
            if "score" in values:
                values["orm"] = values["score"]
            ballot.voters.append(Voter(answer, right, values))
        self.ballots[path, line] = ballot

    def _add_row(self, path: str, line: int, row: Row) -> None:
        reason = row.get("finish_reason")
        if reason in _NOT_COUNTED:
            self.left_out[FinishReason(reason)] += 1
            return
        gold = _gold(row)
        if gold is None and "outcome" not in row:
            text = "neither outcome nor answer: nothing to grade by"
            raise RowError(ProblemKind.BAD_OUTCOME, text)
        right = outcome_of(row["outcome"], "outcome") if "outcome" in row else None
        answer = self._answer(row.get("text"), "text")
        step, group = step_of(row), group_of(row["group"])
        key = (path, step, type(group), group)
        ballot = self.ballots.setdefault(key, Ballot(f"{step}:{group!r}", gold))
        if gold is not None and ballot.gold not in (None, gold):
            text = f"answer {short_text(gold)} is not that of its group, {short_text(ballot.gold)}"
            raise RowError(ProblemKind.BAD_OUTCOME, text)
        index = row.get("index")
        if isinstance(index, (str, int)):
            if (key, index) in self._seen:
                text = f"rollout {index!r} of its group stands here again, left out"
                raise RowError(ProblemKind.DUPLICATE, text)
            self._seen.add((key, index))
        ballot.gold = ballot.gold or gold
        detection = row.get("detection")
        values = {name: row.get(name) for name in COLUMNS.values()}
        if isinstance(detection, dict):
            for name in ("score", "posterior"):
                values[name] = detection.get(name) if values[name] is None else values[name]
        ballot.voters.append(Voter(answer, right, self._values(path, line, values)))

    def _answer(self, text: Any, name: str) -> str | None:
        if not isinstance(text, str):
            raise RowError(ProblemKind.BAD_TOKENS, f"{name} {short_text(text)} is no text")
        answer = self.extract(text)
        return answer.strip() or None if answer is not None else None

    def _values(self, path: str, line: int, given: Row) -> dict[str, float]:
        """The values there are; a bad one is named, and the rollout used without it."""
        values: dict[str, float] = {}
        for name, value in given.items():
            inner = value
            while isinstance(inner, list) and len(inner) == 1:
                inner = inner[0]
            if inner is None:
                continue
            low, high = _RANGES.get(name, (-math.inf, math.inf))
            number = number_of(inner)
            if low <= number <= high:
                values[name] = number
            else:
                text = f"{name} {short_text(value)} is not allowed; the rollout is used without"
                self.errors.add(path, line, ProblemKind.BAD_SCORE, text)
        return values

    def log(self) -> VoteLog:
        """Everything read so far."""
        ballots = tuple(ballot for ballot in self.ballots.values() if ballot.voters)
        if not ballots:
            first = f" ({self.errors.first[0]})" if self.errors.first else ""
            raise ArrolError(
                f"FILE has no rollout that can vote{first}; see --help for the formats."
            )
        left_out = {reason: count for reason, count in self.left_out.items() if count}
        return VoteLog(ballots, left_out, self.errors)


def _gold(row: Row) -> str | None:
    gold = row.get("answer")
    if gold is None or isinstance(gold, str):
        return gold.strip() or None if gold is not None else None
    if isinstance(gold, (int, float)) and not isinstance(gold, bool):
        return str(gold)
    raise RowError(ProblemKind.BAD_OUTCOME, f"answer {short_text(gold)} is no text or number")


def _label(value: Any, name: str, optional: bool) -> bool | None:
    """Right is what is above 0; None where there is no label and none is needed."""
    if value is None and optional:
        return None
    number = number_of(value)
    if math.isnan(number):
        raise RowError(ProblemKind.BAD_OUTCOME, f"{name} {short_text(value)} is no label or number")
    return number > 0.0
