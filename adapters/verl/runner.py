"""The Ray actor that runs the training, in place of verl's ``TaskRunnerV1``."""

from __future__ import annotations

from collections.abc import Mapping
from pprint import pprint
from typing import Any

import ray
from omegaconf import OmegaConf

from arrol.errors import ArrolError


@ray.remote
class PruningTaskRunner:
    """Builds trainer and agent loops, and trains."""

    def run(self, config: Any) -> None:
        """Train as the configuration says.

        Raises:
            ArrolError: an engine turns out to be set to something that pruning can't work with.
        """
        import transfer_queue as tq
        from verl.utils.logging_utils import configure_verl_logging
        from verl.workers.rollout.replica import RolloutReplicaRegistry

        from arrol.adapters.verl.trainer import PruningTrainer

        configure_verl_logging()
        check_gpus(config, ray.cluster_resources())
        config.transfer_queue.enable = True
        pprint(OmegaConf.to_container(config, resolve=True))
        OmegaConf.resolve(config)
        # Only in this process, which is the one that launches the servers.
        RolloutReplicaRegistry.register("vllm", _replica)
        tq.init(config.transfer_queue)
        trainer, succeeded = None, False
        try:
            trainer = PruningTrainer(config=config)
            trainer.init()
            trainer.fit(_agent_loops(config, trainer))
            succeeded = True
        finally:
            try:
                tracking = getattr(trainer, "logger", None)
                if tracking is not None:
                    tracking.finish(exit_code=0 if succeeded else 1)
            finally:
                tq.close()


def _replica() -> Any:
    from arrol.adapters.verl.server import PruningReplica

    return PruningReplica


def _agent_loops(config: Any, trainer: Any) -> Any:
    from arrol.adapters.verl.agent_loop import PruningAgentLoopManager

    return PruningAgentLoopManager.create(
        config=config,
        llm_client=trainer.get_llm_client(),
        teacher_client=trainer.get_teacher_client(),
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )


def check_gpus(config: Any, resources: Mapping[str, float]) -> None:
    """See that Ray has the GPUs that the run takes, before anything waits for them.

    Raises:
        ArrolError: there are fewer.
    """
    pools = [config.trainer]
    if config.reward.reward_model.enable_resource_pool:
        pools.append(config.reward.reward_model)
    wanted = sum(pool.n_gpus_per_node * pool.nnodes for pool in pools)
    there = int(resources.get("GPU", 0) + resources.get("NPU", 0))
    if there < wanted:
        raise ArrolError(
            f"the run takes {wanted} GPUs (trainer.n_gpus_per_node on each of trainer.nnodes, and "
            f"what reward models have of their own); allowed is at most {there}, which is what Ray "
            "has (demo=cpu trains without any)."
        )
