"""The files behind a log reader's arguments: their records, and what is wrong with them."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from arrol.rollout_rows import ProblemKind, Row

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")  #: what a folder is read for
KEPT_PROBLEMS = 1000  #: problems whose text is kept; beyond that they are only counted


@dataclass(frozen=True)
class Problem:
    """Something in a log that can't be used as it stands.

    Attributes:
        path: the file.
        line: line of a text file or row of a Parquet file, 1-based; 0 for the file itself.
        kind: what is wrong.
        text: the same in words, with the value.
    """

    path: str
    line: int
    kind: ProblemKind
    text: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.text}"


@dataclass
class ProblemList:
    """Problems by kind: all are counted, the first :data:`KEPT_PROBLEMS` are kept."""

    counts: Counter[ProblemKind] = field(default_factory=Counter)
    first: list[Problem] = field(default_factory=list)

    def add(self, path: str, line: int, kind: ProblemKind, text: str) -> None:
        """Count a problem."""
        self.counts[kind] += 1
        if len(self.first) < KEPT_PROBLEMS:
            self.first.append(Problem(path, line, kind, text))


def files_of(paths: Sequence[str | Path], problems: ProblemList) -> Iterator[Path]:
    """Files behind ``paths``, folders opened, each once."""
    seen: set[Path] = set()
    for path in map(Path, paths):
        try:
            inside = _inside(path) if path.is_dir() else [path]
            places = [file.resolve() for file in inside]
        except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
            problems.add(str(path), 0, ProblemKind.UNREADABLE_FILE, _reason(error))
            continue
        if not inside:
            text = f"the folder holds no file that ends in {', '.join(SUFFIXES)}"
            problems.add(str(path), 0, ProblemKind.UNREADABLE_FILE, text)
        for file, place in zip(inside, places, strict=True):
            if place in seen:
                text = "the file is named twice; it is read once"
                problems.add(str(file), 0, ProblemKind.REPEATED_FILE, text)
                continue
            seen.add(place)
            yield file


def _inside(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if path.name.lower().endswith(SUFFIXES)]
    return sorted((path for path in found if path.is_file()), key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def records_of(path: Path, problems: ProblemList) -> Iterator[tuple[int, bytes | Row]]:
    """Lines of a text file or rows of a Parquet file, numbered from 1.

    The file is opened once and read forwards, so that a pipe will do. What can't be read is noted
    in ``problems``, and what came before it stands.
    """
    line = 0
    try:
        with path.open("rb") as file:
            head = file.peek(4096)
            parquet = head.startswith(b"PAR1")
            for line, record in _parquet_rows(file) if parquet else _lines(file, head):
                yield line, record
    except (OSError, EOFError, zlib.error, pa.ArrowException, ValueError, OverflowError) as error:
        problems.add(str(path), line, ProblemKind.UNREADABLE_FILE, _reason(error))


def _reason(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else None
    first_line = str(error).strip().split("\n", 1)[0]
    return f"can't be read: {reason or first_line or type(error).__name__}"


def _lines(file: io.BufferedReader, head: bytes) -> Iterator[tuple[int, bytes]]:
    """Lines without their end. Only LF ends a line: U+2028 and its like may stand in strings."""
    gzipped = head.startswith(b"\x1f\x8b")
    if not gzipped and b"\0" in head:
        raise ValueError("it holds zero bytes, so it is neither UTF-8 text, gzip nor Parquet")
    with gzip.GzipFile(fileobj=file) if gzipped else file as lines:
        for number, line in enumerate(lines, 1):
            content = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if content.strip():
                yield number, content.strip(b"\r\n")


def _parquet_rows(file: io.BufferedReader) -> Iterator[tuple[int, Row]]:
    number = 0
    # Parquet is read from its end, so a pipe has to be held in memory.
    source = file if file.seekable() else io.BytesIO(file.read())
    with pq.ParquetFile(source) as table:
        for batch in table.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield number, row
