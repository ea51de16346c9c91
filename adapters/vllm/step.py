"""One engine step, as both processor shims see it."""

from __future__ import annotations

import logging
from typing import Any

import torch

from arrol.adapters.vllm.pruner import Pruner
from arrol.adapters.vllm.request import PruningArgs
from arrol.adapters.vllm.support import check_config
from arrol.records import Request

_log = logging.getLogger("arrol")

Due = tuple[int, str, PruningArgs]  # row of the logits, vLLM's id of the request, its arguments


class EngineStep:
    """Hidden states of the step's rows, and what becomes of the rows that are due.

    Attributes:
        pruner: the engine's.
        runner: vLLM's model runner, once it is tapped.

    Raises:
        ArrolError: the engine is set to something that pruning can't work with.
    """

    def __init__(self, vllm_config: Any) -> None:
        check_config(vllm_config)
        self.pruner = Pruner()
        self.runner: Any = None
        self._hidden_NH: torch.Tensor | None = None

    def tap(self, runner: Any) -> None:
        """See the hidden states that logits are made of.

        Both runners call ``model.compute_logits`` with the rows to sample, outside of any captured
        graph, just before the processors run; calls for prompts or for warming up come at other
        times and are overwritten.
        """
        if self.runner is runner:
            return
        compute_logits = runner.model.compute_logits

        def tapped(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._hidden_NH = hidden_states
            return compute_logits(hidden_states, *args, **kwargs)

        runner.model.compute_logits = tapped
        self.runner = runner

    def pass_by(self, rows: int) -> None:
        """A step with nothing of ours."""
        self.pruner.tokens += rows
        self._hidden_NH = None

    def decide(self, logits: torch.Tensor, due: list[Due]) -> None:
        """Decide rows and leave the pruned ones their sentinel alone."""
        hidden_NH, self._hidden_NH = self._hidden_NH, None
        self.pruner.tokens += len(logits)
        due = [entry for entry in due if _child(entry[1], entry[2]) is not None]
        if not due or not self.pruner.active:
            return
        if hidden_NH is None or len(hidden_NH) != len(logits):
            raise RuntimeError(
                f"{len(logits)} rows of logits came without their hidden states; this version of "
                "vLLM computes them in a way that the adapter does not know."
            )
        rows = torch.tensor([row for row, _, _ in due], device=hidden_NH.device)
        requests = [request for _, id_, args in due if (request := _child(id_, args))]
        ends = self.pruner.decide(requests, hidden_NH[rows])
        for (row, _, args), end in zip(due, ends, strict=True):
            if end:
                logits[row] = float("-inf")
                logits[row, args.sentinel] = 0.0


def _child(request_id: str, args: PruningArgs) -> Request | None:
    """Which rollout of its request this is: vLLM puts the place before the id where n > 1."""
    if len(args.keys) == 1:
        return args.child(0)
    place = request_id.split("_", 1)[0]
    if place.isdecimal() and int(place) < len(args.keys):
        return args.child(int(place))
    _log.warning("Request %s is none of n = %d: it is kept.", request_id, len(args.keys))
    return None
