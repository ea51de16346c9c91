"""The head trainer's state as tensors and a note of JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from arrol.columns import Floats, check_column, check_outcomes
from arrol.errors import check_integer
from arrol.head import LARGEST_VERSION, QualityHead
from arrol.head_buffer import HeadRows
from arrol.head_files import check_tensor

STATE_FORMAT = 1
MOMENTS = ("exp_avg", "exp_avg_sq")  #: AdamW's running means, one of each for each parameter
COLUMNS = ("outcomes_N", "inclusion_N", "scores_N")


def snapshot(
    head: QualityHead, optimizer: torch.optim.Optimizer, rows: HeadRows
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Copies of the weights, the optimizer's moments and the rows, and what is no tensor."""
    tensors = {f"head.{name}": value for name, value in head.state_dict().items()}
    steps = 0
    for name, parameter in head.named_parameters():
        moments = optimizer.state.get(parameter, {})
        steps = int(moments.get("step", 0))
        tensors |= {f"{key}.{name}": moments[key] for key in MOMENTS if key in moments}
    tensors = {name: value.detach().cpu().clone() for name, value in tensors.items()}
    tensors["rows.hidden_NH"] = rows.hidden_NH.clone()
    tensors |= {f"rows.{name}": torch.from_numpy(getattr(rows, name).copy()) for name in COLUMNS}
    return tensors, {"format": STATE_FORMAT, "version": head.version, "steps": steps}


def restore(
    head: QualityHead,
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    note: Mapping[str, Any],
) -> HeadRows:
    """Put a snapshot back into a new head and optimizer; its rows.

    Raises:
        ArrolError: a tensor is missing, of another shape or type, or holds a value that is not
            allowed.
    """
    check_integer("its format", note["format"], STATE_FORMAT, STATE_FORMAT)
    check_integer("the head's version", note["version"], 0, LARGEST_VERSION)
    check_integer("the optimizer's steps", note["steps"], 0, 2**24)  # AdamW counts in float32
    weights = {
        name: _like(tensors, f"head.{name}", value) for name, value in head.state_dict().items()
    }
    head.load_state_dict(weights)
    head.version = note["version"]
    if note["steps"]:
        for name, parameter in head.named_parameters():
            moments = {key: _like(tensors, f"{key}.{name}", parameter) for key in MOMENTS}
            on_device = {key: value.to(parameter.device) for key, value in moments.items()}
            step = torch.tensor(note["steps"], dtype=torch.float32)
            optimizer.state[parameter] = {"step": step, **on_device}
    return _rows(head.hidden_size, tensors)


def _like(tensors: Mapping[str, Tensor], name: str, value: Tensor) -> Tensor:
    return check_tensor(name, tensors.get(name), tuple(value.shape), value.dtype).clone()


def _rows(hidden_size: int, tensors: Mapping[str, Tensor]) -> HeadRows:
    count = len(tensors["rows.outcomes_N"])
    hidden = check_tensor(
        "rows.hidden_NH", tensors.get("rows.hidden_NH"), (count, hidden_size), torch.float16
    )
    outcomes, inclusion, scores = (_column(tensors, name, count) for name in COLUMNS)
    check_outcomes("rows.outcomes_N", outcomes)
    check_column("rows.inclusion_N", inclusion, 0.0, 1.0, open_low=True)
    check_column("rows.scores_N", scores, 0.0, 1.0)
    return HeadRows(hidden, outcomes, inclusion, scores)


def _column(tensors: Mapping[str, Tensor], name: str, count: int) -> Floats:
    name = f"rows.{name}"
    column: Floats = check_tensor(name, tensors.get(name), (count,), torch.float64).numpy().copy()
    return column
