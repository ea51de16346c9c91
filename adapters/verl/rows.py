"""Rows of verl's TransferQueue as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transfer_queue as tq

from arrol.adapters.verl.rollouts import FINISH, PRUNED, Row, outcome


def read_rows(
    keys: Sequence[str],
    tags: Sequence[dict[str, Any]],
    partition: str,
    metric: str | None,
    threshold: float,
) -> list[Row]:
    """What the rows of these keys carry, in their order.

    Args:
        keys: ``{uid}_{session}_{part}``.
        tags: verl's, with the length of the response.
        partition: verl's name for where they lie.
        metric, threshold: what makes an outcome (see :func:`outcome`).

    Raises:
        ArrolError: the reward function gives no such metric.
    """
    if not keys:
        return []
    # A colocated reward model scores later: until then there is no reward, and verl's queue leaves
    # out a field that isn't there.
    fields = ["extra_fields", "rm_scores"]
    data = tq.kv_batch_get(keys=list(keys), partition_id=partition, select_fields=fields)
    scores = data.get("rm_scores") if "rm_scores" in data.keys() else [None] * len(keys)  # noqa: SIM118
    rows = []
    for key, tag, extra, score in zip(keys, tags, data["extra_fields"], scores, strict=True):
        note = getattr(extra, "data", extra)
        uid, session, _ = key.rsplit("_", 2)
        pruned = bool(note.get(PRUNED, False))
        reward = float("nan") if score is None else float(score.sum())
        info = note.get("reward_extra_info") or {}
        rows.append(Row(
            row_key=key, uid=uid, session=int(session), tokens=int(tag["response_len"]),
            pruned=pruned, finish=str(note.get(FINISH, "stop")), reward=reward,
            outcome=None if pruned or score is None else outcome(reward, info, metric, threshold),
        ))  # fmt: skip
    return rows
