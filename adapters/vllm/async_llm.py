"""Pruning inside a vLLM ``AsyncLLM``, as servers use it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from arrol.adapters.vllm.frontend import Frontend, check_keys
from arrol.adapters.vllm.outputs import failed
from arrol.adapters.vllm.request import RolloutRequest, TokenRollout
from arrol.adapters.vllm.support import check_engine, seeds_crash
from arrol.plan import PruningPlan


class PruningAsyncLLM(Frontend):
    """A vLLM ``AsyncLLM`` that carries out pruning plans.

    Rollouts may be asked for at any time; a plan starts all groups afresh when it is loaded, so a
    key may come once under one plan. Groups that are under way then are decided by both plans,
    each rollout by the one in force at its detection length.

    Args:
        llm: made from ``AsyncEngineArgs(**engine_arguments(…))``.
        engine: its number, where several carry out one plan.
        sentinel: token that ends pruned rollouts.
        keep_hidden: hand back the hidden states that the head reads.

    Raises:
        ArrolError: as :class:`PruningLLM`.
    """

    def __init__(
        self, llm: Any, engine: int = 0, sentinel: int | None = None, keep_hidden: bool = True
    ) -> None:
        config = llm.vllm_config
        sentinel = check_engine(config, llm.get_tokenizer, sentinel)
        super().__init__(engine, sentinel, keep_hidden, seeds_crash(config))
        self.llm = llm
        self._names = 0

    async def load_plan(self, plan: PruningPlan) -> None:
        """Put ``plan`` in force for every rollout decided from now on."""
        self.plan = plan
        for status in await self._call("arrol_load_plan", *self.plan_arguments()):
            self.check_status(status)

    async def load_head(self, head: Any | None) -> None:
        """Score with this :class:`arrol.head.QualityHead` from now on; None takes it away."""
        self.check_head(head, self.llm.vllm_config.model_config.get_hidden_size())
        await self._call("arrol_load_head", self.hold(head))

    async def status(self) -> dict[str, Any]:
        """The engine's own word on what is in force, and its counts."""
        status: dict[str, Any] = (await self._call("arrol_status"))[0]
        return status

    async def rollout(self, request: RolloutRequest) -> TokenRollout:
        """Generate one rollout. Cancelling the call aborts it in the engine.

        Raises:
            ArrolError: sampling parameters that pruning can't work with.
        """
        params = self.one(request)
        self._names += 1
        name = f"arrol-{self._names}"
        last = None
        try:
            async for output in self.llm.generate(request.vllm_prompt, params, name):
                last = output
            assert last is not None
            answers = await self._call("arrol_take", json.dumps([request.key]))
        except Exception as error:  # of the engine: a refused prompt, a dead process
            return failed(request, str(error) or type(error).__name__)
        (rollout,) = self.rollouts([(request, last.outputs[0])], answers)
        return rollout

    async def generate(self, requests: Sequence[RolloutRequest]) -> list[TokenRollout]:
        """Generate all requests at once; rollouts in the order of the requests.

        Raises:
            ArrolError: a key comes twice, or as :meth:`rollout`.
        """
        check_keys(requests)
        return list(await asyncio.gather(*(self.rollout(request) for request in requests)))

    async def _call(self, method: str, *arguments: str) -> Any:
        return await self.llm.collective_rpc(method, args=arguments)
