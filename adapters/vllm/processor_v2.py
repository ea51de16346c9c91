"""The shim for vLLM's Model Runner V2: its logits processor interface is slot-wise."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor

from arrol.adapters.vllm.request import PruningArgs, check_sampling
from arrol.adapters.vllm.step import EngineStep


class PruningProcessorV2(LogitsProcessor):
    """Ends pruned rollouts by leaving them the sentinel as their only next token."""

    interface = "V2"

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self.step = EngineStep(vllm_config)
        self._states = req_states
        slots = req_states.max_num_reqs
        self._args: list[PruningArgs | None] = [None] * slots
        self._due_at = np.full(slots, -1, dtype=np.int64)  # sequence length at the detection
        self._sentinels = torch.full((slots,), -1, dtype=torch.int64, device=req_states.device)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request that could not be pruned properly."""
        check_sampling(sampling_params)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """A request enters a slot; True if its logits are ours to change."""
        args = PruningArgs.from_extra_args(sampling_params.extra_args)
        self._args[req_idx] = args
        self._due_at[req_idx] = -1
        self._sentinels[req_idx] = -1
        if args is not None:
            self._due_at[req_idx] = self._states.prompt_len.np[req_idx] + args.detect_length
            self._sentinels[req_idx] = args.sentinel
        return args is not None

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Decide the rows that are due; nobody gets the sentinel by chance."""
        self._mask(logits, ctx.expanded_idx_mapping)
        runner = self.step.runner
        if runner is None:  # no plan was ever loaded
            return logits
        slots_N = ctx.idx_mapping_np
        lengths_N = ctx.seq_lens_upper_bound_np[: len(slots_N)]  # exact: nothing is speculated
        whole_N = lengths_N >= self._states.prefill_len.np[slots_N]
        rows = np.flatnonzero((lengths_N == self._due_at[slots_N]) & whole_N).tolist()
        ids = runner.req_states.index_to_req_id
        due = [(row, int(slots_N[row])) for row in rows]
        self.step.decide(logits, [(row, ids[slot], self._known(slot)) for row, slot in due])
        return logits

    def _known(self, slot: int) -> PruningArgs:
        args = self._args[slot]
        assert args is not None
        return args

    def _mask(self, logits: torch.Tensor, slots_N: torch.Tensor) -> None:
        """On the device alone: rows change places every step, and nothing may wait for it."""
        sentinels_N = self._sentinels[slots_N.long()]
        columns_N1 = sentinels_N.clamp_min(0).unsqueeze(1)
        values_N1 = logits.gather(1, columns_N1)
        masked_N1 = values_N1.masked_fill((sentinels_N >= 0).unsqueeze(1), float("-inf"))
        logits.scatter_(1, columns_N1, masked_N1)
