"""Real rollout logs in: JSON lines (also gzipped) and Parquet, whatever state they are in.

A log is read record by record (see :mod:`arrol.rollout_rows` for the formats). What can't be used
is named with file and line and counted; the rest goes on. Files are told apart by content, never
by suffix. Groups never span two files or two steps.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from arrol.errors import ArrolError, check_range
from arrol.rollout_files import ProblemList, files_of, records_of
from arrol.rollout_left_out import LeftOut, left_out, left_out_caveat
from arrol.rollout_rows import (
    Characters,
    CountTokens,
    LogFormat,
    ProblemKind,
    Row,
    RowError,
    Sample,
    file_caveat,
    length_caveat,
    outcome_note,
    reward_caveat,
    row_format,
    samples_of,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class RolloutLog:
    """N rollouts in B groups, in order of appearance; every array has one entry a rollout.

    Attributes:
        groups: group of each rollout, 0 … B − 1.
        indices: place in its group, 0-based.
        steps: training step of each rollout, 0-based in order of appearance; a file that states
            no steps is one.
        tokens: generated tokens, at least 1.
        prompt_tokens: tokens of the prompt; −1 where the log doesn't say.
        rewards: any real.
        outcomes: right or not.
        scores: quality score in [0, 1]; NaN where the log has none.
        formats: records of each format, by file.
        problems: what could not be used.
        notes: rules that were applied and that a reader should know, one text each.
        caveats: the same, where such a rule may mislead.
        left_out: rollouts that are no whole, graded ones, by reason; they are in no array.
    """

    groups: Integers
    indices: Integers
    steps: Integers
    tokens: Integers
    prompt_tokens: Integers
    rewards: Floats
    outcomes: NDArray[np.bool_]
    scores: Floats
    formats: dict[str, Counter[LogFormat]]
    problems: ProblemList
    notes: tuple[str, ...]
    caveats: tuple[str, ...] = ()
    left_out: Counter[LeftOut] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def sizes(self) -> Integers:
        """Rollouts of each group."""
        return np.bincount(self.groups).astype(np.int64)

    @property
    def scored_share(self) -> float:
        """Share of rollouts with a quality score."""
        return float(np.isfinite(self.scores).mean())


def tokenizer(name: str) -> CountTokens:
    """Count tokens with a tokenizer of the package transformers, by hub name or local path.

    Raises:
        ArrolError: the package is not installed, or it can't load ``name``.
    """
    try:
        transformers = import_module("transformers")
    except ImportError:
        raise ArrolError(
            f"--tokenizer {name} needs the package transformers, which is not installed; allowed "
            "is to install it (pip install transformers) or to use --tokens-per-char."
        ) from None
    try:
        encode = transformers.AutoTokenizer.from_pretrained(name).encode
    except Exception as error:  # transformers raises whatever its backends raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ArrolError(
            f"--tokenizer is {name!r}; allowed is a tokenizer that transformers loads ({reason})."
        ) from None
    # A lone surrogate is legal in JSON and in str but not in UTF-8, which tokenizers work on.
    return lambda text: len(
        encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False)
    )


def read_rollouts(
    paths: Sequence[str | Path],
    count_tokens: CountTokens | None = None,
    progress: Callable[[float], None] | None = None,
    right_above: float = 0.0,
) -> RolloutLog:
    """Read logs, files or folders of files, into one value.

    Args:
        paths: JSON lines, gzipped or not, or Parquet; a folder stands for the files in it that
            end in one of :data:`SUFFIXES`, in natural order (2.jsonl before 10.jsonl).
        count_tokens: tokens of a text, for records without token counts (default: from
            characters).
        progress: called with the share of files that are read.
        right_above: a rollout whose record states no outcome is right if its reward is above this.

    Raises:
        ArrolError: there is not a single rollout that can be used, or ``right_above`` is no finite
            number.
    """
    check_range("--right-above", right_above, -math.inf, math.inf)
    reader = _Reader(count_tokens or Characters(), right_above)
    files = list(files_of(paths, reader.problems))
    for done, path in enumerate(files):
        reader.read(path)
        if progress:
            progress((done + 1) / len(files))
    return reader.log()


def unit_scores(scores_N: Floats) -> tuple[Floats, str]:
    """Scores of any scale as scores in [0, 1], and the rule in words.

    Scores that all lie in [0, 1] stay as they are. Otherwise each becomes its rank among the n
    scores there are, (rank − ½)/n with mid-ranks for ties: whatever the scale, the order and with
    it every AUC stay the same. Outcomes are not looked at. NaN stays NaN; where all scores are, the
    rule is empty.
    """
    known_N = np.isfinite(scores_N)
    known = scores_N[known_N]
    if not len(known):
        return scores_N, ""
    if known.min() >= 0 and known.max() <= 1:
        return scores_N, "Quality scores are the log's own (all within [0, 1])."
    ranked_N = np.full(len(scores_N), np.nan)
    ranked_N[known_N] = (rankdata(known) - 0.5) / len(known)
    return ranked_N, (
        f"Quality scores are the log's own, which run from {known.min():.4g} to {known.max():.4g}: "
        "outside [0, 1], so each is replaced by its rank, (rank − ½)/n. The order stays."
    )


class _Reader:
    """Collects rollouts, problems and formats over all files."""

    def __init__(self, count_tokens: CountTokens, right_above: float) -> None:
        self.count_tokens = count_tokens
        self.right_above = right_above
        self.problems = ProblemList()
        self.formats: dict[str, Counter[LogFormat]] = {}
        self.left_out: Counter[LeftOut] = Counter()
        self.samples: list[Sample] = []
        self.groups: list[int] = []
        self.steps: list[int] = []
        self._group_ids: dict[tuple[object, ...], int] = {}
        self._step_ids: dict[tuple[object, ...], int] = {}
        self._files: dict[tuple[object, ...], str] = {}
        self._recurring: dict[tuple[object, ...], None] = {}
        self._seen: set[object] = set()

    def read(self, path: Path) -> None:
        """Read one file."""
        name = str(path)
        count = self.problems.counts.total() + self.left_out.total()
        formats: Counter[LogFormat] = Counter()
        self._seen = set()
        for line, record in records_of(path, self.problems):
            try:
                row = parse_record(record)
                reason = left_out(row)
                if reason is not None:
                    self.left_out[reason] += 1
                    continue
                kind = row_format(row)
                formats[kind] += 1
                self._add(name, line, kind, row, record)
            except RowError as error:
                self.problems.add(name, line, error.kind, str(error))
        if formats:
            self.formats[name] = formats
        elif self.problems.counts.total() + self.left_out.total() == count:
            self.problems.add(name, 0, ProblemKind.EMPTY_FILE, "the file is empty")

    def _add(self, path: str, line: int, kind: LogFormat, row: Row, record: bytes | Row) -> None:
        content = record if isinstance(record, bytes) else repr(sorted(record.items())).encode()
        digest = blake2b(content, digest_size=16).digest()
        repeated = digest in self._seen
        self._seen.add(digest)
        if repeated and kind is LogFormat.LISTS:
            raise RowError(ProblemKind.DUPLICATE, "the same record as one before, left out")
        for sample in samples_of(row, kind, self.count_tokens):
            if isinstance(sample, RowError):
                self.problems.add(path, line, sample.kind, str(sample))
                continue
            group = line if kind is LogFormat.LISTS else sample.group
            self._reject_duplicate(sample, group)
            self.samples.append(sample)
            step = self._step_ids.setdefault((path, sample.step), len(self._step_ids))
            self.steps.append(step)
            key = (step, kind, type(group), group)
            self.groups.append(self._group_ids.setdefault(key, len(self._group_ids)))
            if kind is not LogFormat.LISTS:
                name = (sample.step, kind, type(group), group)
                if self._files.setdefault(name, path) != path:
                    self._recurring[name] = None
            has_text = not isinstance(row.get("tokens"), (int, float))
            if repeated and has_text and sample.identity is None:
                text = "the same record as one before; used, as two rollouts may agree"
                self.problems.add(path, line, ProblemKind.REPEATED, text)

    def _reject_duplicate(self, sample: Sample, group: str | int) -> None:
        if sample.identity is None:
            return
        key = (sample.step, type(group), group, sample.identity)
        if key in self._seen:
            text = f"rollout {sample.identity!r} of its group stands here again, left out"
            raise RowError(ProblemKind.DUPLICATE, text)
        self._seen.add(key)

    def log(self) -> RolloutLog:
        """Everything read so far as one value."""
        if not self.samples:
            raise ArrolError(_nothing_usable(self.problems, self.left_out))
        samples = self.samples
        scores_N, score_note = unit_scores(np.array([s.score for s in samples], dtype=np.float64))
        groups_N = np.array(self.groups, dtype=np.int64)
        notes = (score_note, outcome_note(samples, self.right_above))
        caveats = (
            reward_caveat(samples, self.right_above),
            length_caveat(samples, self.count_tokens),
            file_caveat([str(name[-1]) for name in self._recurring]),
            left_out_caveat(self.left_out),
        )
        return RolloutLog(
            groups=groups_N,
            indices=_places(groups_N),
            steps=np.array(self.steps, dtype=np.int64),
            tokens=np.array([s.tokens for s in samples], dtype=np.int64),
            prompt_tokens=np.array(
                [-1 if s.prompt_tokens is None else s.prompt_tokens for s in samples],
                dtype=np.int64,
            ),
            rewards=np.array([s.reward for s in samples], dtype=np.float64),
            outcomes=np.array(
                [s.reward > self.right_above if s.outcome is None else s.outcome for s in samples],
                dtype=np.bool_,
            ),
            scores=scores_N,
            formats=self.formats,
            problems=self.problems,
            notes=tuple(filter(None, notes)),
            caveats=tuple(filter(None, caveats)),
            left_out=self.left_out,
        )


def _nothing_usable(problems: ProblemList, counts: Counter[LeftOut]) -> str:
    found = [str(problem) for problem in problems.first[:1]]
    found += [f"{count:,} {kind.value}" for kind, count in counts.items()]
    first = f" ({'; '.join(found)})" if found else ""
    return f"FILE has no rollout that can be used{first}; see --help for the formats."


def _places(groups_N: Integers) -> Integers:
    """0-based place of each row among the rows of its group."""
    order_N = np.argsort(groups_N, kind="stable")
    starts_N = np.concatenate(([0], np.cumsum(np.bincount(groups_N))))[groups_N[order_N]]
    places_N = np.empty(len(groups_N), dtype=np.int64)
    places_N[order_N] = np.arange(len(groups_N)) - starts_N
    return places_N


def parse_record(record: bytes | Row) -> Row:
    """The object that a line holds; :class:`RowError` if it holds none."""
    if isinstance(record, dict):
        return record
    try:
        row: Any = json.loads(record.decode("utf-8"))
    except UnicodeDecodeError as error:
        text = f"not UTF-8 (byte {error.start + 1} of the line)"
        raise RowError(ProblemKind.BROKEN_LINE, text) from None
    except (ValueError, RecursionError) as error:
        raise RowError(ProblemKind.BROKEN_LINE, f"not JSON: {error}") from None
    if not isinstance(row, dict):
        text = f"a JSON {type(row).__name__}, but every line must be one JSON object"
        raise RowError(ProblemKind.BROKEN_LINE, text)
    return row
