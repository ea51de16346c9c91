"""The shim for vLLM's V1 model runner: its logits processor interface is batch-wise."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from arrol.adapters.vllm.request import PruningArgs, check_sampling
from arrol.adapters.vllm.step import EngineStep

_Row = tuple[PruningArgs, list[int]]  # the arguments, and the live list of generated tokens


class PruningProcessorV1(LogitsProcessor):
    """Ends pruned rollouts by leaving them the sentinel as their only next token."""

    interface = "V1"

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.step = EngineStep(vllm_config)
        self._device = device
        self._rows: dict[int, _Row] = {}
        self._mask: tuple[torch.Tensor, torch.Tensor] | None = None

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request that could not be pruned properly."""
        check_sampling(sampling_params)

    def is_argmax_invariant(self) -> bool:
        """The sentinel must win under greedy sampling too."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow requests that enter, leave and move."""
        if process_dict_updates(self._rows, batch_update, self._enter) or batch_update:
            self._mask = None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Decide the rows that are due; nobody gets the sentinel by chance."""
        runner = self.step.runner
        if not self._rows:
            self.step.pass_by(len(logits))
            return logits
        logits[self._masked()] = float("-inf")
        if runner is None:  # no plan was ever loaded
            return logits
        partial = runner.discard_request_mask.np  # rows in the middle of their prompt
        due = [
            (row, args)
            for row, (args, output) in self._rows.items()
            if len(output) == args.detect_length and not partial[row]
        ]
        ids = runner.input_batch.req_ids
        self.step.decide(logits, [(row, ids[row], args) for row, args in due])
        return logits

    @staticmethod
    def _enter(params: Any, prompt: list[int] | None, output: list[int]) -> _Row | None:
        args = PruningArgs.from_extra_args(params.extra_args)
        return None if args is None else (args, output)

    def _masked(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and their sentinels, as an index of the logits."""
        if self._mask is None:
            sentinels = [args.sentinel for args, _ in self._rows.values()]
            self._mask = (
                torch.tensor(list(self._rows), device=self._device),
                torch.tensor(sentinels, device=self._device),
            )
        return self._mask
