"""The prompts of ``arrol generate``: JSON lines, also gzipped, or Parquet; a prompt a row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from arrol.errors import ArrolError
from arrol.files import write_atomically
from arrol.rollout_files import Problem, ProblemList, records_of
from arrol.rollout_log import parse_record
from arrol.rollout_rows import ProblemKind, Row, RowError, group_of, short_text

PROMPT_COLUMNS = ("prompt", "question")  #: where a prompt is looked for, if no column is named
ANSWER_COLUMN = "answer"
LEARNED_FILE = "prompts.json"  #: beside a head: digests of the prompts that it has learned from

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Attributes:
        group: what names it in the rollouts: its line in the file, or its id.
        content: text, or the messages of a chat.
        answer: the gold answer; None if it has none.
    """

    group: str | int
    content: str | tuple[Message, ...]
    answer: str | None = None


@dataclass(frozen=True)
class Columns:
    """Which columns to read.

    Attributes:
        prompt: None for the first of :data:`PROMPT_COLUMNS` that a row has.
        answer: None for :data:`ANSWER_COLUMN`, where there is one.
        id: None for the line's number.
    """

    prompt: str | None = None
    answer: str | None = None
    id: str | None = None


def read_prompts(
    path: Path, columns: Columns | None = None, limit: int | None = None
) -> tuple[list[Prompt], ProblemList]:
    """The prompts of a file, in its order, and what of it can't be used.

    Args:
        path: told by content, not by name.
        columns: default: ``prompt`` or ``question``, ``answer``, and lines for ids.
        limit: stop at so many prompts; None for all.

    Raises:
        ArrolError: no prompt can be used, or an answer column is named that no prompt has.
    """
    columns = columns or Columns()
    problems = ProblemList()
    prompts: list[Prompt] = []
    for prompt in _prompts(path, columns, problems):
        prompts.append(prompt)
        if len(prompts) == limit:
            break
    if not prompts:
        reason = problems.first[0] if problems.first else Problem(
            str(path), 0, ProblemKind.EMPTY_FILE, "the file is empty"
        )  # fmt: skip
        raise ArrolError(f"--prompts has no prompt that can be used ({reason}).")
    if columns.answer is not None and all(prompt.answer is None for prompt in prompts):
        raise ArrolError(
            f"--answer-column is {columns.answer!r}; allowed is a column that a prompt has."
        )
    return prompts, problems


def save_learned(folder: Path, prompts: Sequence[Prompt]) -> None:
    """Note beside a head which prompts it has learned from.

    Raises:
        ArrolError: the folder can't be written to.
    """
    write_atomically(folder / LEARNED_FILE, json.dumps(sorted(map(_digest, prompts))))


def learned_before(folder: Path, prompts: Sequence[Prompt]) -> int:
    """How many of the prompts the head of this folder has learned from; 0 if it does not say.

    Raises:
        ArrolError: the note is there and damaged.
    """
    path = folder / LEARNED_FILE
    try:
        known = set(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, TypeError, RecursionError):
        raise ArrolError(f"--head: {path} can't be read as a list of prompts.") from None
    return sum(_digest(prompt) in known for prompt in prompts)


def _digest(prompt: Prompt) -> str:
    content = json.dumps(prompt.content, sort_keys=True)
    return blake2b(content.encode(), digest_size=16).hexdigest()


def token_ids(
    tokenizer: Any, prompts: Sequence[Prompt], chat: bool | None
) -> list[tuple[int, ...]]:
    """Token ids of each prompt.

    Args:
        tokenizer: a Hugging Face tokenizer.
        prompts: messages always go through the chat template.
        chat: texts do too, as a user's message; None if there is a template.

    Raises:
        ArrolError: a template is needed and there is none, or it refuses a prompt.
    """
    template = bool(getattr(tokenizer, "chat_template", None))
    ids = []
    for prompt in prompts:
        content = prompt.content
        if isinstance(content, str) and not (template if chat is None else chat):
            ids.append(tuple(tokenizer.encode(content)))
            continue
        if not template:
            raise ArrolError(
                f"prompt {prompt.group!r} is a chat, but the model has no chat template; allowed "
                "is text with --no-chat."
            )
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        try:
            text = tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # templates raise what they like
            reason = first_line(error)
            raise ArrolError(
                f"prompt {prompt.group!r} is refused by the model's chat template: {reason}."
            ) from None
        ids.append(tuple(tokenizer.encode(text, add_special_tokens=False)))
    return ids


def first_line(error: Exception) -> str:
    """What an error says, in one line without its full stop."""
    text = str(error)
    if hasattr(error, "errors"):  # pydantic's, whose first line says how many there are
        text = str(error.errors()[0].get("msg", text))
    lines = text.strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".:")


def _prompts(path: Path, columns: Columns, problems: ProblemList) -> Iterator[Prompt]:
    seen: set[tuple[type, str | int]] = set()
    for line, record in records_of(path, problems):
        try:
            prompt = _prompt(parse_record(record), line, columns)
            name = (type(prompt.group), prompt.group)
            if name in seen:
                text = f"{columns.id} {short_text(prompt.group)} stands here again, left out"
                raise RowError(ProblemKind.DUPLICATE, text)
        except RowError as error:
            problems.add(str(path), line, error.kind, str(error))
            continue
        seen.add(name)
        yield prompt


def _prompt(row: Row, line: int, columns: Columns) -> Prompt:
    row = {key: value for key, value in row.items() if value is not None}
    names = PROMPT_COLUMNS if columns.prompt is None else (columns.prompt,)
    name = next((name for name in names if name in row), None)
    if name is None:
        text = f"no {' or '.join(names)} among its keys {short_text(sorted(row))}"
        raise RowError(ProblemKind.UNKNOWN_FORMAT, text)
    group: str | int = line
    if columns.id is not None:
        if columns.id not in row:
            raise RowError(ProblemKind.BAD_GROUP, f"no {columns.id} among its keys")
        group = group_of(row[columns.id])
    return Prompt(group, _content(row[name], name), _answer(row, columns.answer or ANSWER_COLUMN))


def _content(value: Any, name: str) -> str | tuple[Message, ...]:
    if isinstance(value, str):
        if not value.strip():
            raise RowError(ProblemKind.BAD_TOKENS, f"{name} is empty")
        _check_text(value, name)
        return value
    if not isinstance(value, Sequence) or not value or not all(map(_is_message, value)):
        found = short_text(value)
        text = f"{name} {found} is neither a text nor a list of messages with role and content"
        raise RowError(ProblemKind.BAD_TOKENS, text)
    try:
        _check_text(json.dumps(list(value), ensure_ascii=False, allow_nan=False), name)
    except (TypeError, ValueError) as error:
        raise RowError(
            ProblemKind.BAD_TOKENS, f"{name} has a message that is no JSON ({first_line(error)})"
        ) from None
    return tuple(value)


def _check_text(text: str, name: str) -> None:
    """A lone surrogate is legal in JSON, but no tokenizer takes it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        letter = f"U+{ord(text[error.start]):04X}"
        raise RowError(
            ProblemKind.BAD_TOKENS, f"{name} has a lone surrogate ({letter}), which is no text"
        ) from None


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )


def _answer(row: Row, name: str) -> str | None:
    """A gold answer as text; numbers are taken as JSON writes them."""
    value = row.get(name)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    raise RowError(
        ProblemKind.BAD_OUTCOME, f"{name} {short_text(value)} is neither a text nor a number"
    )
