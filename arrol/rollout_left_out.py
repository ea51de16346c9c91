"""Rollouts of a log that say nothing about whole, graded ones: what pruning runs write beside them.

A record that states a ``finish_reason`` tells so: ``pruned`` and ``failed`` rollouts are no whole
ones, and one without a reward could not be graded. They are no broken records.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from arrol.records import FinishReason


class LeftOut(StrEnum):
    """Why a rollout is left out; the value reads well in a sentence."""

    PRUNED = "pruned"
    FAILED = "failed"
    UNGRADED = "not graded"


def left_out(row: Mapping[str, Any]) -> LeftOut | None:
    """Why a record's rollout is left out; None if it is not, or is of no such log."""
    reason = row.get("finish_reason")
    if row.get("group") is None or not isinstance(reason, str):
        return None
    if reason in (FinishReason.PRUNED, FinishReason.FAILED):
        return LeftOut(reason)
    whole = reason in (FinishReason.STOP, FinishReason.LENGTH)
    sized = row.get("tokens") is not None or row.get("text") is not None
    return LeftOut.UNGRADED if whole and sized and row.get("reward") is None else None


def left_out_caveat(counts: Mapping[LeftOut, int]) -> str:
    """What to know of a log with such rollouts; empty without any."""
    stated = [f"{counts[kind]:,} {kind.value}" for kind in LeftOut if counts.get(kind)]
    if not stated:
        return ""
    text = f"Left out: {', '.join(stated)}."
    if counts.get(LeftOut.PRUNED):
        text += (
            " What pruning left is a selection, and figures of it are biased: replay rollouts of "
            "a run that pruned nothing (mode shadow or off)."
        )
    return text
