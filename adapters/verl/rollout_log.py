"""Every rollout of a run on disk, the pruned ones too, as ``arrol replay`` reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arrol.adapters.verl.rollouts import Row
from arrol.files import write_atomically
from arrol.records import Rollout


def write_rollouts(
    folder: Path, step: int, rows: Sequence[Row], rollouts: Sequence[Rollout]
) -> None:
    """Write one step's rollouts to ``{step}.jsonl``, whole or not at all.

    A step that is repeated after a resume replaces its file.

    Args:
        folder: made if it is missing.
        step: number of the training step.
        rows: what verl's rows carry.
        rollouts: of the same step, those without a row too.

    Raises:
        ArrolError: the file can't be written.
    """
    by_key = {row.key: row for row in rows}
    lines = [json.dumps(_values(step, by_key.get(r.key), r)) + "\n" for r in rollouts]
    write_atomically(folder / f"{step}.jsonl", "".join(lines))


def _values(step: int, row: Row | None, rollout: Rollout) -> dict[str, Any]:
    """What is unknown is left out."""
    found = rollout.detection
    values: Mapping[str, Any] = {
        "group": f"{rollout.group:016x}" if row is None else row.uid,
        "index": rollout.index,
        "step": step,
        "tokens": rollout.tokens,
        "finish_reason": rollout.finish_reason.value,
        "reward": None if row is None or row.pruned or math.isnan(row.reward) else row.reward,
        "outcome": None if row is None or row.outcome is None else bool(row.outcome),
        "score": None if found is None or math.isnan(found.score) else found.score,
        "detection": None if found is None else found.to_dict(),
    }
    return {name: value for name, value in values.items() if value is not None}
