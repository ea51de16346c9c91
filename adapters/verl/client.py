"""verl's client of the rollout servers, which keeps each group of rollouts together."""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.llm_server import LLMServerClient

from arrol.adapters.verl.requests import group_of


class PruningClient(LLMServerClient):
    """Sends all rollouts of a group to the server that got its first.

    A group's decisions are then one sequence, with exact budgets; spread over several engines,
    each would follow its own part. verl's load balancer remembers a server by a request's name, so
    the group serves as the name.
    """

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        group = group_of(extra.get("sampling_params"))
        server: tuple[str, Any] = await super()._acquire_server(group or request_id, **extra)
        return server
