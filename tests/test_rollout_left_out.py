"""Logs of runs that pruned: their rollouts that are not whole, or not graded, are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arrol.errors import ArrolError
from arrol.rollout_left_out import LeftOut, left_out
from arrol.rollout_log import read_rollouts
from arrol.rollout_rows import ProblemKind

WHOLE = {"group": 1, "tokens": 20, "reward": 1.0, "score": 0.5, "finish_reason": "stop"}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, None),
        ({"finish_reason": "pruned", "reward": None}, LeftOut.PRUNED),
        ({"finish_reason": "pruned"}, LeftOut.PRUNED),  # whatever a reward function made of it
        ({"finish_reason": "failed", "tokens": 0, "reward": None}, LeftOut.FAILED),
        ({"reward": None}, LeftOut.UNGRADED),
        (
            {"reward": None, "tokens": None, "text": "x", "finish_reason": "length"},
            LeftOut.UNGRADED,
        ),
        # These are broken records, or none of ours: other rules speak of them.
        ({"reward": None, "finish_reason": None}, None),
        ({"reward": None, "finish_reason": "tool_calls"}, None),
        ({"reward": None, "tokens": None}, None),
        ({"finish_reason": "pruned", "group": None}, None),
        ({"finish_reason": ["pruned"]}, None),
    ],
)
def test_what_is_left_out(change: dict[str, Any], wanted: LeftOut | None) -> None:
    assert left_out(WHOLE | change) is wanted


def test_left_out_rollouts_are_counted_and_said_and_are_no_problems(tmp_path: Path) -> None:
    path = write(
        tmp_path / "log.jsonl",
        WHOLE | {"index": 0},
        WHOLE | {"index": 1, "finish_reason": "pruned", "reward": None, "tokens": 8},
        WHOLE | {"index": 2, "reward": None},
        WHOLE | {"index": 3, "finish_reason": "failed", "reward": None, "tokens": 0},
        WHOLE | {"index": 4, "reward": 0.0},
        WHOLE | {"index": 5, "finish_reason": "pruned", "reward": None, "tokens": 8},
    )
    log = read_rollouts([path])
    assert log.rewards.tolist() == [1.0, 0.0]
    assert log.left_out == {LeftOut.PRUNED: 2, LeftOut.UNGRADED: 1, LeftOut.FAILED: 1}
    assert not log.problems.counts
    (caveat,) = [text for text in log.caveats if text.startswith("Left out")]
    assert caveat.startswith("Left out: 2 pruned, 1 failed, 1 not graded. What pruning left is a")


def test_a_log_without_such_rollouts_says_nothing(tmp_path: Path) -> None:
    log = read_rollouts([write(tmp_path / "log.jsonl", WHOLE)])
    assert not log.left_out
    assert not log.caveats


def test_a_log_of_nothing_else_says_why_it_can_not_be_used(tmp_path: Path) -> None:
    pruned = WHOLE | {"finish_reason": "pruned"}
    with pytest.raises(ArrolError, match=r"no rollout that can be used \(2 pruned\)"):
        read_rollouts([write(tmp_path / "log.jsonl", pruned, pruned)])


def test_without_a_finish_reason_a_missing_reward_is_a_problem(tmp_path: Path) -> None:
    row = {key: value for key, value in WHOLE.items() if key not in ("reward", "finish_reason")}
    log = read_rollouts([write(tmp_path / "log.jsonl", WHOLE, row)])
    assert log.problems.counts == {ProblemKind.UNKNOWN_FORMAT: 1}
