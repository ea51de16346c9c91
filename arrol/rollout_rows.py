"""One record of a rollout log, in any of the known formats, as plain rollouts.

========  =============================================  ======================================
format    keys needed                                    what they are
========  =============================================  ======================================
verl      input, output, score                           a row of ``trainer.rollout_data_dir``:
                                                         prompt, response, reward. Also used:
                                                         step, acc, request_id, quality_score.
                                                         A group: same input, same step.
lists     response[], score[]                            a problem with all its rollouts and
                                                         rewards. Also used: pred_score[] (the
                                                         quality score), question, system.
rows      group, reward, and tokens or text              a rollout. ``tokens`` is a count or a
                                                         list of ids. Also used: score (the
                                                         quality score), outcome, step, index,
                                                         prompt_tokens or prompt, finish_reason
                                                         (:mod:`arrol.rollout_left_out`).
========  =============================================  ======================================

Reward and outcome are kept apart. The outcome is ``outcome`` or, in verl's rows, ``acc`` ≥ ½ where
there is one; else the reader makes one of the reward. A key whose value is null counts as absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from arrol.errors import check_range

Row = dict[str, Any]
CountTokens = Callable[[str], int]
Value = TypeVar("Value")

#: Tokens of a character of text. Measured with Qwen's vocabulary on 480 solutions of MATH problems
#: by a Qwen2.5-Math model: .336 over all, between .26 and .42 for nine texts of ten. Short
#: arithmetic has more (.44 on GSM8K solutions: digits are tokens of their own), prose fewer.
TOKENS_PER_CHAR = 0.33

MAX_TOKENS = 10_000_000  #: a longer rollout is taken for a broken value


@dataclass(frozen=True)
class Characters:
    """Estimate tokens from characters: round(characters · tokens_per_char), at least 1 of any text.

    Raises:
        ArrolError: ``tokens_per_char`` is not in (0, 10].
    """

    tokens_per_char: float = TOKENS_PER_CHAR

    def __post_init__(self) -> None:
        check_range("--tokens-per-char", self.tokens_per_char, 0, 10, open_low=True)

    def __call__(self, text: str) -> int:
        return max(round(len(text) * self.tokens_per_char), min(len(text), 1))


class LogFormat(StrEnum):
    """The formats of the module's table."""

    VERL = "verl"
    LISTS = "lists"
    ROWS = "rows"


class ProblemKind(StrEnum):
    """What can be wrong with a log; the value reads well in a table."""

    UNREADABLE_FILE = "file that can't be read"
    EMPTY_FILE = "file without a record"
    REPEATED_FILE = "file named twice"
    BROKEN_LINE = "line that is no JSON object"
    UNKNOWN_FORMAT = "record of no known format"
    BAD_GROUP = "bad group, step or index"
    BAD_REWARD = "bad reward"
    BAD_TOKENS = "bad tokens or text"
    BAD_OUTCOME = "bad outcome"
    BAD_SCORE = "bad quality score"
    EMPTY_GROUP = "group without rollouts"
    UNEQUAL_LISTS = "lists of unequal length"
    DUPLICATE = "duplicate"
    REPEATED = "same text twice"

    @property
    def used(self) -> bool:
        """The record is used all the same (without its score, say)."""
        return self in (ProblemKind.BAD_SCORE, ProblemKind.REPEATED)


class RowError(Exception):
    """A record, or one rollout of it, can't be used."""

    def __init__(self, kind: ProblemKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout of a log.

    Attributes:
        group: what its group has in common, within file and step.
        step: training step, where the record has one.
        identity: what tells it from the other rollouts of its group, where the record has it.
        tokens: generated tokens, at least 1 (the end of the text).
        counted: these were counted from the text, as the record has no count.
        prompt_tokens: tokens of the prompt, where known.
        reward: any real.
        outcome: it is right; None where the record doesn't say.
        score: quality score as it stands in the log; NaN where absent.
    """

    group: str | int
    step: int | None
    identity: str | int | None
    tokens: int
    counted: bool
    prompt_tokens: int | None
    reward: float
    outcome: bool | None
    score: float


_NEEDED: dict[LogFormat, tuple[str, ...]] = {
    LogFormat.VERL: ("input", "output", "score"),
    LogFormat.LISTS: ("response", "score"),
    LogFormat.ROWS: ("group", "reward", "tokens"),
}


def row_format(row: Row) -> LogFormat:
    """The format whose needed keys the record has.

    Raises:
        RowError: none fits; the text names what the nearest format lacks.
    """
    present = {key for key, value in row.items() if value is not None}
    if "text" in present:
        present.add("tokens")
    missing = {kind: [k for k in keys if k not in present] for kind, keys in _NEEDED.items()}
    for kind in (LogFormat.ROWS, LogFormat.VERL, LogFormat.LISTS):
        if not missing[kind]:
            return kind
    share = {kind: len(keys) / len(_NEEDED[kind]) for kind, keys in missing.items()}
    nearest = min(share, key=lambda kind: share[kind])
    if share[nearest] == 1:
        raise RowError(ProblemKind.UNKNOWN_FORMAT, f"no known key among {short_text(sorted(row))}")
    lacks = ", ".join("tokens or text" if k == "tokens" else k for k in missing[nearest])
    raise RowError(ProblemKind.UNKNOWN_FORMAT, f"{lacks} missing (nearest format: {nearest})")


def samples_of(row: Row, kind: LogFormat, count_tokens: CountTokens) -> Iterator[Sample | RowError]:
    """The rollouts of one record, and an error for each one of it that can't be used.

    An error of a kind that is ``used`` stands beside its rollout, not in its place.

    Raises:
        RowError: the whole record can't be used.
    """
    row = {key: value for key, value in row.items() if value is not None}
    if kind is LogFormat.LISTS:
        yield from _lists_samples(row, count_tokens)
        return
    score, error = _score(row.get("score" if kind is LogFormat.ROWS else "quality_score"))
    make = _rows_sample if kind is LogFormat.ROWS else _verl_sample
    yield make(row, score, count_tokens)
    if error:
        yield error


def outcome_note(samples: Sequence[Sample], right_above: float) -> str:
    """How rollouts that state no outcome are judged; empty if all state one."""
    unstated = sum(sample.outcome is None for sample in samples)
    if not unstated:
        return ""
    if unstated == len(samples):
        return f"Right means reward > {right_above:g}, as the log states no outcome."
    return (
        f"Right means reward > {right_above:g} for the {unstated:,} of {len(samples):,} rollouts "
        "that state no outcome."
    )


def reward_caveat(samples: Sequence[Sample], right_above: float) -> str:
    """What to know where rewards that make a rollout right differ; empty if they don't."""
    rewards = {s.reward for s in samples if s.outcome is None and s.reward > right_above}
    if len(rewards) < 2:
        return ""
    return (
        f"Right means reward > {right_above:g}, but the rewards above it take {len(rewards):,} "
        f"values, {min(rewards):.4g} to {max(rewards):.4g}. If a wrong rollout may get one of "
        "them, as for its format or length, set --right-above."
    )


def length_caveat(samples: Sequence[Sample], count_tokens: CountTokens) -> str:
    """How many lengths are no more than estimates; empty if none is."""
    counted = sum(sample.counted for sample in samples)
    if not counted or not isinstance(count_tokens, Characters):
        return ""
    return (
        f"{counted:,} of {len(samples):,} lengths are estimates, characters × "
        f"{count_tokens.tokens_per_char:g}; see --tokens-per-char and --tokenizer."
    )


def file_caveat(names: Sequence[str]) -> str:
    """What to know of groups whose id stands in more than one file, at the same step."""
    if not names:
        return ""
    ids = "1 group id recurs" if len(names) == 1 else f"{len(names):,} group ids recur"
    return (
        f"{ids} in another file at the same step, or without steps ({short_text(names[0])} for "
        "one): groups never span files, so each file has a group of its own. If they are one "
        "group, join the files."
    )


def _verl_sample(row: Row, score: float, count_tokens: CountTokens) -> Sample:
    reward = _reward(row["score"])
    prompt = _text(row["input"], "input")
    accuracy = row.get("acc")
    return Sample(
        group=prompt,
        step=step_of(row),
        identity=_identity(row, "request_id"),
        tokens=_counted(row["output"], "output", count_tokens),
        counted=True,
        prompt_tokens=count_tokens(prompt),
        reward=reward,
        outcome=None if accuracy is None else outcome_of(accuracy, "acc"),
        score=score,
    )


def _rows_sample(row: Row, score: float, count_tokens: CountTokens) -> Sample:
    reward = _reward(row["reward"])
    outcome = row.get("outcome")
    tokens = row.get("tokens")
    counted = _counted(row["text"], "text", count_tokens) if tokens is None else _tokens(tokens)
    return Sample(
        group=group_of(row["group"]),
        step=step_of(row),
        identity=_identity(row, "index"),
        tokens=counted,
        counted=tokens is None,
        prompt_tokens=_prompt_tokens(row, count_tokens),
        reward=reward,
        outcome=None if outcome is None else outcome_of(outcome, "outcome"),
        score=score,
    )


def _lists_samples(row: Row, count_tokens: CountTokens) -> Iterator[Sample | RowError]:
    responses, rewards = list_of(row, "response"), list_of(row, "score")
    scores = list_of(row, "pred_score") if "pred_score" in row else [None] * len(responses)
    if not responses:
        raise RowError(ProblemKind.EMPTY_GROUP, "response is an empty list")
    lengths = {"response": len(responses), "score": len(rewards), "pred_score": len(scores)}
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise RowError(ProblemKind.UNEQUAL_LISTS, text)
    prompt = "\n".join(v for v in (row.get("system"), row.get("question")) if isinstance(v, str))
    prompt_tokens = count_tokens(prompt) if prompt else None
    for place, (response, reward, score) in enumerate(zip(responses, rewards, scores, strict=True)):
        try:
            value = _reward(reward)
            tokens = _counted(response, f"response[{place}]", count_tokens)
        except RowError as error:
            yield error
            continue
        quality, error_or_none = _score(score)
        yield Sample("", None, None, tokens, True, prompt_tokens, value, None, quality)
        if error_or_none:
            yield error_or_none


def number_of(value: Any) -> float:
    """A finite float of a JSON number or boolean; NaN of anything else."""
    if not isinstance(value, (int, float)):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _integer(value: Any, low: int, high: int) -> int | None:
    """The integer that ``value`` is, also as 3.0; None if it is none or outside the range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value) if low <= value <= high else None


def _reward(value: Any) -> float:
    number = number_of(value)
    if math.isnan(number):
        raise RowError(ProblemKind.BAD_REWARD, f"reward {short_text(value)} is no finite number")
    return number


def outcome_of(value: Any, name: str) -> bool:
    """Right or not, of a boolean or a number from 0 to 1; else :class:`RowError`."""
    number = number_of(value)
    if not 0 <= number <= 1:
        text = f"{name} {short_text(value)} is neither a boolean nor a number from 0 to 1"
        raise RowError(ProblemKind.BAD_OUTCOME, text)
    return number >= 0.5


def _score(value: Any) -> tuple[float, RowError | None]:
    """A quality score, also as the one element of nested lists, and what is wrong with it."""
    inner = value
    while isinstance(inner, list) and len(inner) == 1:
        inner = inner[0]
    if inner is None:
        return math.nan, None
    number = number_of(inner)
    if math.isnan(number):
        text = f"quality score {short_text(value)} is no finite number; the rollout is used without"
        return math.nan, RowError(ProblemKind.BAD_SCORE, text)
    return number, None


def _tokens(value: Any) -> int:
    if isinstance(value, list):
        return max(1, len(value))
    count = _integer(value, 0, MAX_TOKENS)
    if count is None:
        text = (
            f"tokens {short_text(value)} is neither a list nor an integer from 0 to {MAX_TOKENS:,}"
        )
        raise RowError(ProblemKind.BAD_TOKENS, text)
    return max(1, count)


def _counted(value: Any, name: str, count_tokens: CountTokens) -> int:
    return max(1, count_tokens(_text(value, name)))


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RowError(ProblemKind.BAD_TOKENS, f"{name} {short_text(value)} is no text")
    return value


def _prompt_tokens(row: Row, count_tokens: CountTokens) -> int | None:
    if "prompt_tokens" in row:
        return _tokens(row["prompt_tokens"])
    return count_tokens(_text(row["prompt"], "prompt")) if "prompt" in row else None


def group_of(value: Any) -> str | int:
    """A group's name: text or a 64-bit integer; else :class:`RowError`."""
    if isinstance(value, str):
        return value
    number = _integer(value, -(2**63), 2**64)
    if number is None:
        raise RowError(
            ProblemKind.BAD_GROUP, f"group {short_text(value)} is no text or 64-bit integer"
        )
    return number


def step_of(row: Row) -> int | None:
    """The record's training step, if it states one; :class:`RowError` if that is none."""
    if "step" not in row:
        return None
    step = _integer(row["step"], 0, 2**63 - 1)
    if step is None:
        text = f"step {short_text(row['step'])} is no integer from 0 to 2^63 − 1"
        raise RowError(ProblemKind.BAD_GROUP, text)
    return step


def _identity(row: Row, name: str) -> str | int | None:
    value = row.get(name)
    if value is None or isinstance(value, (str, int)):
        return value
    raise RowError(ProblemKind.BAD_GROUP, f"{name} {short_text(value)} is no text or integer")


def list_of(row: Row, name: str) -> list[Any]:
    """The record's list of this name; :class:`RowError` if it is no list."""
    value = row[name]
    if not isinstance(value, list):
        raise RowError(ProblemKind.UNEQUAL_LISTS, f"{name} {short_text(value)} is no list")
    return value


def short_text(value: object) -> str:
    """A value as a message quotes it: on one line, not longer than 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = "a huge integer"
    return text if len(text) <= 60 else text[:57] + "…"
