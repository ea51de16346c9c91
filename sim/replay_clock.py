"""Simulated time of a log's training steps, whatever becomes of its rollouts.

A rollout that is pruned occupies the engine for detect_length + 1 steps, as the token after the
detection length is sampled and dropped; so it is simulated as one of that length. Decisions don't
depend on time, since a group's rollouts are decided in order of their index.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arrol.errors import ArrolError
from arrol.rollout_log import RolloutLog
from arrol.sim.cost import StepTime, kv_capacity
from arrol.sim.engine import EngineLimits, SimulatedRequest, simulate
from arrol.sim.hardware import ACCELERATORS, MODELS, Accelerator, ModelShape
from arrol.sim.phases import PhaseTimes

TIMED_ROLLOUTS = 2048  #: at most so many rollouts are put through the simulated engine
PROMPT_TOKENS = 150  #: of a prompt whose length the log doesn't say
#: Tokens that Table 5's batch is taken to have (64 prompts of 16 rollouts of 2,000 tokens); the
#: phases after the generation are scaled from it, by tokens, parameters and arithmetic.
TABLE_5_TOKENS = 64 * 16 * 2000
TABLE_5_MODEL, TABLE_5_ACCELERATOR = "Qwen3-1.7B", "GH200"

Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Fate:
    """What a rule makes of each of N rollouts.

    Attributes:
        started_N: it is generated at all.
        survives_N: it is generated to its end.
        tokens_N: tokens that it generates.
    """

    started_N: Flags
    survives_N: Flags
    tokens_N: Integers


class Clock:
    """Simulated time of a log's training steps under any fate of its rollouts.

    Raises:
        ArrolError: the longest rollout doesn't fit the accelerator's KV cache.
    """

    def __init__(
        self, log: RolloutLog, model: ModelShape, accelerator: Accelerator, max_num_seqs: int
    ) -> None:
        self._log = log
        self._rows = timed_rows(log.steps, log.groups)
        self._prompts_N = _prompt_tokens(log)
        self._cost = StepTime.of(model, accelerator)
        kv_tokens = kv_capacity(model, accelerator)
        longest = int((log.tokens + self._prompts_N).max())
        if longest > kv_tokens:
            raise ArrolError(
                f"--accelerator {accelerator.name} leaves {kv_tokens:,} KV tokens beside "
                f"--model {model.name}; allowed are accelerators that hold the log's "
                f"longest rollout with its prompt, {longest:,} tokens."
            )
        self._limits = EngineLimits(max_num_seqs, kv_tokens=kv_tokens)
        self._phase_scale = _phase_scale(self._tokens, model, accelerator)

    @property
    def rollouts(self) -> int:
        """Rollouts that are timed; a long log is sampled."""
        return sum(map(len, self._rows))

    @property
    def _tokens(self) -> int:
        """Tokens of the timed rollouts, unpruned."""
        return int(sum(self._log.tokens[rows].sum() for rows in self._rows))

    def seconds(self, fate: Fate) -> tuple[float, float]:
        """Time to generate and of the whole training step [s], summed over the timed steps.

        The phases after the generation take the share of tokens that survivors hold.
        """
        generation = 0.0
        for rows in self._rows:
            requests = self._requests(rows[fate.started_N[rows]], fate)
            if requests:
                generation += simulate(requests, self._limits, self._cost).seconds
        kept = sum(int(self._log.tokens[rows[fate.survives_N[rows]]].sum()) for rows in self._rows)
        rest = PhaseTimes().step_seconds(0.0, kept / self._tokens)
        return generation, generation + self._phase_scale * rest

    def _requests(self, rows: Integers, fate: Fate) -> list[SimulatedRequest]:
        log = self._log
        lengths = fate.tokens_N + (fate.started_N & ~fate.survives_N)  # the dropped token too
        groups = log.groups[rows]
        columns = (
            rows, groups, log.indices[rows], log.sizes[groups],
            self._prompts_N[rows], lengths[rows],
        )  # fmt: skip
        return [
            SimulatedRequest(*values)
            for values in zip(*(column.tolist() for column in columns), strict=True)
        ]


def timed_rows(steps_N: Integers, groups_N: Integers) -> list[Integers]:
    """Rows of the steps that are timed: whole steps, evenly spread, TIMED_ROLLOUTS in all.

    Of a step that is larger than that, whole groups from its start on.
    """
    steps = [np.flatnonzero(steps_N == step) for step in range(int(steps_N.max()) + 1)]
    wanted = max(1, int(TIMED_ROLLOUTS * len(steps) / len(steps_N)))
    spread = np.unique(np.linspace(0, len(steps) - 1, min(wanted, len(steps))).astype(np.int64))
    timed = []
    for step in spread:
        rows = steps[step]
        allowed = groups_N[rows[min(TIMED_ROLLOUTS, len(rows)) - 1]]
        whole = len(rows) <= TIMED_ROLLOUTS
        timed.append(rows if whole else rows[groups_N[rows] < max(allowed, groups_N[rows[0]] + 1)])
    return timed


def _prompt_tokens(log: RolloutLog) -> Integers:
    """Prompt length of each rollout, the same in a group: that of its first, at least 1."""
    first_B = np.zeros(len(log.sizes), dtype=np.int64)
    rows = np.flatnonzero(log.indices == 0)
    first_B[log.groups[rows]] = log.prompt_tokens[rows]
    prompts_N = first_B[log.groups]
    return np.where(prompts_N < 0, PROMPT_TOKENS, np.maximum(prompts_N, 1))


def _phase_scale(tokens: int, model: ModelShape, accelerator: Accelerator) -> float:
    """Arithmetic time of these tokens relative to that of Table 5's batch."""
    table_model, table_accelerator = MODELS[TABLE_5_MODEL], ACCELERATORS[TABLE_5_ACCELERATOR]
    work = tokens * model.parameters / (TABLE_5_TOKENS * table_model.parameters)
    return work * table_accelerator.flops / accelerator.flops
