"""The labelled hidden states that the quality head is trained on, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from arrol.columns import Floats
from arrol.errors import check_integer

LARGEST_HALF = torch.finfo(torch.float16).max  #: 65504


@dataclass(frozen=True)
class HeadRows:
    """Labelled rollouts in order of arrival.

    Attributes:
        hidden_NH: last hidden state at the detection length, float16[N, H] on the CPU.
        outcomes_N: 0.0 or 1.0, float64[N].
        inclusion_N: p, by which the outcome got to be seen, in (0, 1], float64[N].
        scores_N: quality score by a head that had not seen the outcome, in [0, 1], float64[N].
    """

    hidden_NH: Tensor
    outcomes_N: Floats
    inclusion_N: Floats
    scores_N: Floats

    @classmethod
    def empty(cls, hidden_size: int) -> HeadRows:
        """No rows."""
        none = np.empty(0)
        return cls(torch.empty(0, hidden_size, dtype=torch.float16), none, none, none)

    def __len__(self) -> int:
        return len(self.outcomes_N)

    def last(self, rows: int) -> HeadRows:
        """The newest ``rows``, or all if there are fewer."""
        start = max(len(self) - rows, 0)
        return HeadRows(
            self.hidden_NH[start:],
            self.outcomes_N[start:],
            self.inclusion_N[start:],
            self.scores_N[start:],
        )


class HeadBuffer:
    """A first-in, first-out queue of at most ``capacity`` rows.

    Right and wrong ones share it, so that their ratio stays the rollouts' own. It takes
    ``capacity`` × (2H + 24) bytes (68 MB at 8,192 rows of 4,096 values), twice that while rows are
    added.
    """

    def __init__(self, hidden_size: int, capacity: int) -> None:
        check_integer("capacity", capacity, 1)
        self.capacity = capacity
        self.rows = HeadRows.empty(hidden_size)

    def __len__(self) -> int:
        return len(self.rows)

    def append(self, rows: HeadRows) -> None:
        """Add rows, in order; the oldest beyond ``capacity`` leave."""
        new = rows.last(self.capacity)
        old = self.rows.last(self.capacity - len(new))
        self.rows = HeadRows(
            torch.cat([old.hidden_NH, new.hidden_NH]),
            np.concatenate([old.outcomes_N, new.outcomes_N]),
            np.concatenate([old.inclusion_N, new.inclusion_N]),
            np.concatenate([old.scores_N, new.scores_N]),
        )


def as_half(hidden_NH: Tensor) -> Tensor:
    """Float16 on the CPU; a finite value beyond ±65504, its reach, becomes ±65504."""
    return hidden_NH.detach().clamp(-LARGEST_HALF, LARGEST_HALF).to("cpu", torch.float16)
