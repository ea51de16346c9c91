"""What bench/verl_step.py puts into verl's processes, by ``VERL_USE_EXTERNAL_MODULES``.

* A reward.
* A quicker poll: verl's replay buffer looks every 2 s whether the rollouts are there, so a step's
  generation would be measured in steps of 2 s. There is no setting for it.
"""

from __future__ import annotations

import zlib
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL = 0.05  #: seconds between two looks


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **kwargs: Any
) -> dict[str, float]:
    """1 for every other text, as ``score`` and as ``acc``: most groups have some of each."""
    right = float(zlib.crc32(solution_str.encode()) & 1)
    return {"score": right, "acc": right}


def _poll_often() -> None:
    start = ReplayBuffer.__init__

    def quick(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("poll_interval", POLL)
        start(self, *args, **kwargs)

    ReplayBuffer.__init__ = quick


_poll_often()
