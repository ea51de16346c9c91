"""What every way to an engine has in common: plan, sentinel, sampling parameters, rollouts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arrol.adapters.vllm.outputs import finished
from arrol.adapters.vllm.pruner import Record, filled, head_text, unpack
from arrol.adapters.vllm.request import (
    PruningArgs,
    RolloutRequest,
    TokenRollout,
    check_sampling,
    rollout_seed,
    with_pruning,
)
from arrol.errors import ArrolError, check_integer
from arrol.plan import PruningPlan
from arrol.records import Mode

_log = logging.getLogger("arrol")

Ended = tuple[RolloutRequest, Any]  # a request and vLLM's CompletionOutput


@dataclass
class Batch:
    """What is left over from a batch, beside its rollouts.

    Attributes:
        orphans: records of rollouts that had ended when they were decided (a stop string, an
            abort). With systematic draws, ``plan.replay`` wants them too.
        undecided: whole rollouts that went past the detection length without a decision: their
            engine had lost its plan.
        stale: decisions made under another version than that of the plan last loaded: their
            rollouts were under way when it came.
    """

    orphans: list[Record] = field(default_factory=list)
    undecided: int = 0
    stale: int = 0


class Frontend:
    """Plan and head of one engine, and the way from requests to parameters and back to rollouts.

    Args:
        engine: its number, where several carry out one plan.
        sentinel: token that ends pruned rollouts.
        keep_hidden: hand back the hidden states that the head reads.
        seeds_crash: the engine can't do requests with a seed.

    Attributes:
        plan: the plan in force.
        batch: leftovers of the last batch.
    """

    def __init__(
        self, engine: int, sentinel: int, keep_hidden: bool, seeds_crash: bool = False
    ) -> None:
        check_integer("engine", engine, 0)
        check_integer("sentinel", sentinel, 0)
        self.engine = engine
        self.sentinel = sentinel
        self.keep_hidden = keep_hidden
        self.seeds_crash = seeds_crash
        self.plan: PruningPlan | None = None
        self.batch = Batch()
        self._head = ""
        self._head_version: int | None = None

    @property
    def pruning(self) -> bool:
        """Rollouts are decided under the plan in force."""
        return self.plan is not None and self.plan.mode is not Mode.OFF

    def sampling(self, params: Any, requests: Sequence[RolloutRequest]) -> Any:
        """``SamplingParams`` for one request to vLLM that makes these rollouts (n of one group).

        Args:
            params: with n = the number of requests; their seed, if any, is left as it is.
            requests: with consecutive indices.

        Raises:
            ArrolError: a setting that pruning can't work with.
        """
        first = requests[0]
        kind = type(params).__name__
        if kind != "SamplingParams" or params.n != len(requests):
            raise ArrolError(
                f"sampling is {params!r}; allowed is SamplingParams with n = {len(requests)}."
            )
        if not self.pruning:
            return params.clone()
        keys = tuple(request.key for request in requests)
        args = PruningArgs(
            keys, first.group, first.index, first.group_size, self.length(first), self.sentinel
        )
        changed = with_pruning(params, args)
        try:
            check_sampling(changed)
        except ArrolError:
            raise
        except ValueError as error:
            raise ArrolError(str(error)) from None
        return changed

    def length(self, request: RolloutRequest) -> int:
        """L_detect of a request [tokens]."""
        if request.detect_length is not None:
            return request.detect_length
        return 1 if self.plan is None else self.plan.detect_length

    def one(self, request: RolloutRequest) -> Any:
        """``SamplingParams`` for a request of its own, with its own stream of random numbers."""
        changed = self.sampling(request.sampling, [request])
        if request.sampling.seed is not None:
            if self.seeds_crash:
                raise ArrolError(
                    f"seed is {request.sampling.seed}; allowed on a CPU with chunked prefill is "
                    "None, as vLLM crashes there (enable_chunked_prefill=False avoids it)."
                )
            changed.seed = rollout_seed(request.sampling.seed, request.key)
        return changed

    def check_head(self, head: Any | None, hidden_size: int) -> None:
        """See that a head reads this model's hidden states.

        Raises:
            ArrolError: it does not.
        """
        size = getattr(head, "hidden_size", hidden_size)
        if size != hidden_size:
            raise ArrolError(
                f"the head's hidden_size is {size}; allowed is {hidden_size}, the model's."
            )

    def hold(self, head: Any | None) -> str:
        """Remember a head; gives what is sent."""
        self._head = head_text(head)
        self._head_version = None if head is None else head.version
        return self._head

    def plan_arguments(self) -> tuple[str, str, str]:
        """Arguments of ``arrol_load_plan``."""
        text = "" if self.plan is None else self.plan.to_json()
        return text, str(self.engine), "1" if self.keep_hidden else "0"

    def check_status(self, status: Mapping[str, Any]) -> None:
        """See that the engine has the plan that it was sent.

        Raises:
            RuntimeError: it has not.
        """
        wanted = None if self.plan is None else self.plan.version
        if status["plan"] != wanted:
            raise RuntimeError(f"engine {self.engine} has plan {status['plan']}, not {wanted}.")

    def rollouts(self, ended: Iterable[Ended], answers: Sequence[Any]) -> Iterator[TokenRollout]:
        """Rollouts of outputs and of the workers' answers to ``arrol_take``."""
        records = {record.detection.key: record for record in unpack(filled(answers))}
        for request, output in ended:
            record = records.pop(request.key, None)
            rollout, orphan = finished(request, output, record, self.sentinel, self.length(request))
            if orphan is not None:
                self.batch.orphans.append(orphan)
            self._count(rollout, self.length(request))
            yield rollout
        self.batch.orphans += records.values()

    def _count(self, rollout: TokenRollout, length: int) -> None:
        """Count what should not be."""
        found = rollout.detection
        if found is not None and self.plan is not None:
            self.batch.stale += found.version != self.plan.version
        elif self.pruning and rollout.survived and rollout.tokens > length:
            if self.batch.undecided == 0:
                _log.warning("Engine %d has lost its plan: rollouts are kept.", self.engine)
            self.batch.undecided += 1


def check_keys(requests: Sequence[RolloutRequest]) -> None:
    """See that a batch has each key once.

    Raises:
        ArrolError: it has not.
    """
    repeated = len(requests) - len({request.key for request in requests})
    if repeated:
        raise ArrolError(f"{repeated} requests have the key of another; allowed is each key once.")
