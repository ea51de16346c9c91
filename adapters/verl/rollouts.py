"""From the rows of verl's batch, and the engines' records, to the core's rollouts and outcomes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from arrol.errors import ArrolError, as_member
from arrol.groups import SignalLoss, summarize_groups
from arrol.keys import stable_key
from arrol.records import FinishReason, Rollout

if TYPE_CHECKING:  # it brings torch
    from arrol.adapters.vllm.pruner import Record

PRUNED = "arrol_pruned"  #: a field that the server adds to a rollout's own: bool
FINISH = "arrol_finish"  #: why the rollout ended: a FinishReason
ACCURACY = "acc"  #: where verl's reward functions put whether an answer is right
NO_SURVIVORS = "no_survivors"  #: the part of ``too_few_survivors`` that has none at all
_ENDED = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True)
class Row:
    """What a row of verl's batch says of its rollout.

    Attributes:
        row_key: verl's name for it, ``{uid}_{session}_{part}``.
        uid: verl's name for its prompt.
        session: place in the group, 0-based.
        tokens: of the response, without a pruned one's sentinel.
        pruned: it was ended at the detection length.
        finish: why it ended, as in :class:`arrol.FinishReason`.
        outcome: 1 right, 0 wrong; None if nobody could tell, or it was not asked.
        reward: sum of its token rewards, shaped or not.
    """

    row_key: str
    uid: str
    session: int
    tokens: int
    pruned: bool
    finish: str
    outcome: float | None
    reward: float

    def __post_init__(self) -> None:
        """See that it does not contradict itself.

        Raises:
            ArrolError: ``finish`` is no reason, or says of pruning what ``pruned`` does not.
        """
        finish = as_member(f"finish of row {self.row_key}", FinishReason, self.finish)
        if self.pruned != (finish is FinishReason.PRUNED):
            raise ArrolError(
                f"row {self.row_key} has pruned {self.pruned!r} and finish {self.finish!r}; "
                "allowed is pruned where finish is 'pruned', and only there."
            )

    @property
    def survived(self) -> bool:
        """It has a whole answer: neither pruned nor failed."""
        return self.finish in _ENDED

    @property
    def key(self) -> int:
        """The rollout's 64-bit key."""
        return rollout_key(self.uid, self.session)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Counts of what did not fit when rows met records; all 0 in a sound run.

    Attributes:
        undecided: survivors longer than the detection length without a decision, though a plan
            was in force: the engine has lost it.
        stale: decisions made under another plan than this step's; they are used, as each carries
            the probabilities that it was made with.
        orphans: records that no rollout took, those of rollouts that ended at or before the
            detection length too (their stop was found while the engine went on).
        mismatched: the row says pruned and its record does not, or there is none, or the record
            says pruned and the row does not. Such a record is not used.
        missing: sessions without a row: they count as failed.
    """

    undecided: int = 0
    stale: int = 0
    orphans: int = 0
    mismatched: int = 0
    missing: int = 0


def group_key(uid: str) -> int:
    """64-bit key of a prompt's group."""
    return stable_key("verl", str(uid))


def rollout_key(uid: str, session: int) -> int:
    """64-bit key of one rollout of it."""
    return stable_key("verl", str(uid), int(session))


def outcome(
    reward: float | None,
    reward_extra_info: Mapping[str, Any] | None,
    metric: str | None = None,
    threshold: float = 0.0,
) -> float | None:
    """Whether a survivor is right: 1, or 0, or None where nobody can tell.

    A reward may be shaped (a penalty for length, a bonus for format); the outcome is not.

    Args:
        reward: sum of the row's token rewards; None if it has none.
        reward_extra_info: what the reward function returned beside it.
        metric: which of that says right or wrong; None for ``acc`` where there is one, else for
            the reward itself.
        threshold: what lies above it is right.

    Raises:
        ArrolError: the metric is not there, or is no number.
    """
    info = reward_extra_info or {}
    if metric is not None and metric not in info:
        names = ", ".join(sorted(map(str, info))) or "nothing"
        raise ArrolError(
            f"arrol.outcome.metric is {metric!r}; allowed is what the reward function returns "
            f"beside the reward: {names}."
        )
    name = ACCURACY if metric is None and ACCURACY in info else metric
    value = reward if name is None else info[name]
    if value is None:
        return None
    number = _as_float(name or "reward", value)
    return None if math.isnan(number) else float(number > threshold)


def as_rollouts(
    rows: Sequence[Row],
    records: Iterable[Record],
    detect_length: int,
    expected: Mapping[str, int],
    version: int | None = None,
) -> tuple[list[Rollout], dict[int, float | None], Leftovers]:
    """One rollout for each session that was asked for: ended, pruned or failed.

    Args:
        rows: the step's, in any order; one a session.
        records: what the engines decided, in any order. Where a rollout has several (it ran twice)
            the one that fits its row and this plan counts, the others are orphans.
        detect_length: L_detect [tokens].
        expected: sessions that each prompt was given, by uid.
        version: of the plan in force; None where nothing was to be decided.

    Returns:
        The rollouts, in order of ``expected``; outcomes of the survivors by rollout key; and what
        did not fit. A record is treated as :func:`arrol.adapters.vllm.outputs.finished` does.

    Raises:
        ArrolError: a session has two rows, or a row was not asked for.
    """
    by_session = _by_session(rows, expected)
    by_key: dict[int, list[Record]] = {}
    for record in records:
        by_key.setdefault(record.detection.key, []).append(record)
    total = sum(map(len, by_key.values()))
    counts: Counter[str] = Counter()
    rollouts: list[Rollout] = []
    outcomes: dict[int, float | None] = {}
    for uid, sessions in expected.items():
        for session in range(sessions):
            row = by_session.get((uid, session))
            found = by_key.get(rollout_key(uid, session), [])
            rollout = _rollout(uid, session, row, found, detect_length, version, counts)
            rollouts.append(rollout)
            if row is not None and row.survived:
                outcomes[rollout.key] = row.outcome
    used = sum(rollout.detection is not None for rollout in rollouts)
    # A record that contradicts its row is counted as that, not as an orphan too.
    orphans = total - used - counts.pop("contradicting", 0)
    return rollouts, outcomes, Leftovers(orphans=orphans, **counts)


def verdicts(rows: Sequence[Row], uids: Iterable[str] = ()) -> dict[str, SignalLoss | None]:
    """Why each prompt's group carries no signal; None for one that does.

    Outcomes decide, not rewards. A survivor without an outcome counts as none here, as it does in
    the controller's figures.

    Args:
        rows: of whole groups, the pruned ones too.
        uids: further prompts, which may have no row left.
    """
    names = list(dict.fromkeys([*(row.uid for row in rows), *uids]))
    places = {uid: place for place, uid in enumerate(names)}
    known = [row for row in rows if row.survived and row.outcome is not None]
    # One row that did not survive for each name, so that every name has a group.
    groups = [*range(len(names)), *(places[row.uid] for row in known)]
    outcomes = [*[math.nan] * len(names), *(row.outcome for row in known)]
    survived = np.arange(len(groups)) >= len(names)
    summary = summarize_groups(groups, np.array(outcomes, dtype=np.float64), survived)
    return dict(zip(names, summary.losses, strict=True))


def loss_counts(rows: Sequence[Row], uids: Iterable[str] = ()) -> dict[str, int]:
    """Groups without signal by reason; ``no_survivors`` is part of ``too_few_survivors``.

    Arguments are those of :func:`verdicts`.
    """
    losses = verdicts(rows, uids)
    found = Counter(losses.values())
    survived = {row.uid for row in rows if row.survived}
    counts = {loss.value: found[loss] for loss in SignalLoss}
    return {**counts, NO_SURVIVORS: sum(uid not in survived for uid in losses)}


def lone(rows: Sequence[Row]) -> frozenset[str]:
    """Prompts with fewer than two survivors, whose advantages must be 0.

    verl takes 0 for the mean and 1 for the deviation of a group of one: its only survivor would
    get its whole reward as advantage, for having been left alone.
    """
    survivors = Counter(row.uid for row in rows if row.survived)
    return frozenset(row.uid for row in rows if survivors[row.uid] < 2)


def _as_float(name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise ArrolError(
            f"{name} of a rollout is {value!r}; allowed is a number or true or false."
        ) from None


def _by_session(rows: Sequence[Row], expected: Mapping[str, int]) -> dict[tuple[str, int], Row]:
    found: dict[tuple[str, int], Row] = {}
    for row in rows:
        sessions = expected.get(row.uid, 0)
        if not 0 <= row.session < sessions:
            raise ArrolError(
                f"row {row.row_key} is of session {row.session}; allowed are the {sessions} that "
                "its prompt was given."
            )
        first = found.setdefault((row.uid, row.session), row)
        if first is not row:
            raise ArrolError(
                f"rows {first.row_key} and {row.row_key} are of one session; allowed is one row "
                "for each, so an agent loop with one output."
            )
    return found


def _rollout(
    uid: str,
    session: int,
    row: Row | None,
    records: Sequence[Record],
    detect_length: int,
    version: int | None,
    counts: Counter[str],
) -> Rollout:
    key, group = rollout_key(uid, session), group_key(uid)
    if row is None:
        counts["missing"] += 1
        return Rollout(key, group, session, 0, FinishReason.FAILED)
    record = None
    if row.pruned or row.tokens > detect_length:
        fitting = [r for r in records if r.detection.pruned == row.pruned]
        # One of this plan if there is one.
        record = max(fitting, key=lambda r: r.detection.version == version, default=None)
        if record is None and (row.pruned or records):
            counts["mismatched"] += 1
            counts["contradicting"] += len(records)
        elif record is None and row.survived and version is not None:
            counts["undecided"] += 1
    if record is not None:
        counts["stale"] += record.detection.version != version
    detection = None if record is None else record.detection
    return Rollout(key, group, session, row.tokens, FinishReason(row.finish), detection)
