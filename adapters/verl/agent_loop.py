"""verl's agent loop workers, which mark training rollouts and keep pruned ones from the reward."""

from __future__ import annotations

from typing import Any

import ray
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ

from arrol.adapters.verl.requests import marked
from arrol.adapters.verl.rollouts import PRUNED
from arrol.adapters.verl.settings import Settings

# Ray hands out actor classes; the class itself is what can be inherited from.
_Worker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class


class PruningAgentLoopWorker(_Worker):
    """One worker: verl's own, whose training requests carry their place in a group."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rollout = self.config.actor_rollout_ref.rollout
        seed = Settings.from_config(self.config).pruning.seed
        self._seed = seed if rollout.full_determinism else None
        self._group_size = rollout.n

    async def _run_agent_loop(
        self,
        sampling_params: dict[str, Any],
        trajectory: dict[str, Any],
        *,
        uid: str,
        session_id: int,
        **kwargs: Any,
    ) -> Any:
        if not trajectory["validate"]:
            sampling_params = marked(sampling_params, uid, session_id, self._group_size, self._seed)
        return await super()._run_agent_loop(
            sampling_params, trajectory, uid=uid, session_id=session_id, **kwargs
        )

    async def _agent_loop_postprocess(
        self, output: AgentLoopOutput | list[AgentLoopOutput], validate: Any, **kwargs: Any
    ) -> None:
        for one in output if isinstance(output, list) else [output]:
            if one.extra_fields.get(PRUNED):
                # A set reward is left alone: no reward worker sees half a rollout. The row leaves
                # before anything reads this one.
                one.reward_score = 0.0
                one.extra_fields.setdefault("reward_extra_info", {})
        await super()._agent_loop_postprocess(output, validate, **kwargs)


class PruningAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager with the workers above."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(PruningAgentLoopWorker)
