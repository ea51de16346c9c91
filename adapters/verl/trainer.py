"""verl's synchronous trainer with the paper's Algorithm 1 around its steps.

Before a step, plan and head go to every server. When the step's rollouts are there, the engines'
decisions are fetched, pruned rows leave, and the controller and the head learn from the survivors'
outcomes. Log-probs, advantages and updates then see survivors only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils.debug import marked_timer
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.utils.seqlen_balancing import log_seqlen_unbalance
from verl.utils.tensordict_utils import assign_non_tensor_stack

from arrol.adapters.verl.batching import BatchPlan, arrange, largest_divisor, plan_batches
from arrol.adapters.verl.checkpoints import mend_marker, step_folder
from arrol.adapters.verl.client import PruningClient
from arrol.adapters.verl.loop import PruningLoop
from arrol.adapters.verl.replay_buffer import TRAIN, PruningReplayBuffer
from arrol.adapters.verl.rollouts import Row, lone
from arrol.adapters.verl.rows import read_rows
from arrol.adapters.verl.settings import AGENT, Settings
from arrol.errors import ArrolError

MICRO_ROWS = "micro_batch_size_per_gpu"  #: verl's name for the rows of a micro-batch


class PruningTrainer(PPOTrainerSync):
    """Algorithm 1 on verl's loop.

    Args:
        config: verl's configuration with the group ``arrol``.

    Raises:
        ArrolError: a setting that pruning can't work with.
    """

    def __init__(self, config: Any) -> None:
        self.settings = Settings.from_config(config)
        self.loop = PruningLoop(self.settings)
        self._prompts = 0  # drawn from the data so far; they name the groups
        self._plan: BatchPlan | None = None
        super().__init__(config)

    # ---- what verl asks for ---------------------------------------------------------------------

    def _build_replay_buffer(self) -> PruningReplayBuffer:
        sampler, data = self.config.trainer.v1.sampler, self.config.data
        metric = self._resolve_filter_groups_metric()
        refill = bool(sampler.get("sync_refill_failed_groups", False))
        single = metric is not None or refill
        in_flight = 1
        if metric is not None:
            in_flight = self.config.algorithm.filter_groups.get("max_inflight_gen_batches", 1)
        return PruningReplayBuffer(
            read=self._read,
            timer=lambda: marked_timer("arrol_filter", self.timing_raw),
            trainer_mode=self.trainer_mode,
            trainer_config=self.config.trainer.v1.get(self.trainer_mode, {}),
            max_off_policy_threshold=sampler.max_off_policy_threshold,
            max_off_policy_strategy=sampler.max_off_policy_strategy,
            sampler_kwargs=sampler.sampler_kwargs,
            refill_fn=self._add_prompts_to_generate,
            filter_groups_metric=metric,
            sync_refill_failed_groups=refill,
            train_batch_size=data.train_batch_size,
            gen_batch_size=1 if single else (data.get("gen_batch_size") or data.train_batch_size),
            max_inflight_gen_batches=in_flight,
        )

    def get_llm_client(self) -> PruningClient:
        """A client that keeps groups together."""
        client: PruningClient = self.llm_server_manager.get_client(PruningClient)
        return client

    # ---- the loop -------------------------------------------------------------------------------

    def on_init_end(self) -> None:
        """Weights are in the engines: see that they can prune, and go on where a run ended."""
        super().on_init_end()
        seeded = bool(self.config.actor_rollout_ref.rollout.full_determinism)
        sizes = self._ask("arrol_prepare", [
            (number, self.settings.sentinel, seeded) for number in range(len(self._servers))
        ])  # fmt: skip
        self.loop.start(sizes[0])
        if self.global_steps:
            given = self.config.trainer.resume_mode == "resume_path"
            folder = self.config.trainer.resume_from_path if given else self._folder()
            self._prompts = self.loop.load(folder, self.global_steps)

    def on_step_begin(self) -> None:
        """Send plan and head: the engines are awake, with this step's weights."""
        super().on_step_begin()
        with marked_timer("arrol_push", self.timing_raw):
            rollout, data = self.config.actor_rollout_ref.rollout, self.config.data
            requests = data.train_batch_size * rollout.n if len(self._servers) == 1 else 0
            plan, head = self.loop.begin()
            self._ask("arrol_load", [(plan, head, requests)] * len(self._servers))

    def on_sample_end(self) -> None:
        """Fetch the decisions while the engines are awake."""
        with marked_timer("arrol_drain", self.timing_raw):
            self.loop.take(self._ask("arrol_take", [()] * len(self._servers)))
        super().on_sample_end()

    def _compute_reward_colocate(
        self, batch: KVBatchMeta, metrics: dict[str, Any] | None = None
    ) -> KVBatchMeta:
        """As verl's; outcomes are known only now."""
        batch = super()._compute_reward_colocate(batch, metrics)
        if batch.partition_id == TRAIN:
            self.replay_buffer.score(self._read(batch.keys, batch.tags))
        return batch

    def _balance_batch(
        self, batch: KVBatchMeta, metrics: dict[str, Any], *args: Any, **kwargs: Any
    ) -> KVBatchMeta:
        """Learn from the outcomes, then lay the survivors out in mini-batches."""
        buffer: PruningReplayBuffer = self.replay_buffer
        with marked_timer("arrol_observe", self.timing_raw):
            step, left, refilled = self.global_steps, buffer.left, buffer.refilled
            metrics.update(self.loop.observe(step, buffer.sampled, left, refilled))
        with marked_timer("arrol_head", self.timing_raw):
            metrics.update(self.loop.train_head())
        with marked_timer("arrol_layout", self.timing_raw):
            return self._lay_out(batch, metrics)

    def _lay_out(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        actor, dp_size = self.config.actor_rollout_ref.actor, self._dp_size()
        steps = -(-self.config.data.train_batch_size // actor.ppo_mini_batch_size)
        limit = None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu
        self._plan = plan = plan_batches(len(batch), steps, dp_size, limit)
        batch = upsample_batch_to_divisible_size(batch, plan.padded, self.tokenizer.eos_token_id)
        lengths = [tag["seq_len"] for tag in batch.tags]
        padding = [bool(tag.get("is_padding", False)) for tag in batch.tags]
        seed = actor.data_loader_seed + self.global_steps if actor.shuffle else None
        order = arrange(lengths, padding, plan, seed)
        batch.reorder(order)
        share = len(order) // dp_size
        ranks = [list(range(r * share, (r + 1) * share)) for r in range(dp_size)]
        metrics.update(log_seqlen_unbalance(
            seqlen_list=[lengths[i] for i in order], partitions=ranks, prefix="global_seqlen"
        ))  # fmt: skip
        metrics["arrol/optimizer_steps"] = plan.mini_batches * actor.ppo_epochs
        metrics["arrol/padding"] = plan.padding
        return batch

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """As verl's, in micro-batches that the survivors can be cut into."""
        self._set_micro_rows(batch, self._divisor(self.config.actor_rollout_ref.rollout))
        return super()._compute_old_log_prob(batch, metrics)

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """As verl's, in micro-batches that the survivors can be cut into."""
        self._set_micro_rows(batch, self._divisor(self.config.actor_rollout_ref.ref))
        return super()._compute_ref_log_prob(batch, metrics)

    def _divisor(self, config: Any) -> int | None:
        if config.log_prob_use_dynamic_bsz:
            return None
        assert self._plan is not None
        rank_rows = self._plan.padded // self._plan.dp_size
        return largest_divisor(rank_rows, config.log_prob_micro_batch_size_per_gpu)

    def _set_micro_rows(self, batch: KVBatchMeta, rows: int | None) -> None:
        batch.extra_info.pop(MICRO_ROWS, None)
        if rows is not None:
            batch.extra_info[MICRO_ROWS] = rows

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """As verl's, and nothing for groups of which fewer than two survived.

        verl gives such a group the mean 0 and the deviation 1, and so a lone right answer an
        advantage of about 1.
        """
        batch = super()._compute_advantage(batch, metrics)
        alone = lone(self.replay_buffer.sampled)
        keys = [key for key in batch.keys if key.rsplit("_", 2)[0] in alone]
        if keys:
            fields = ["advantages", "returns"]
            found = tq.kv_batch_get(
                keys=keys, partition_id=batch.partition_id, select_fields=fields
            )
            zeros = {name: found[name] * 0.0 for name in fields}
            tq.kv_batch_put(keys=keys, partition_id=batch.partition_id,
                            fields=TensorDict(zeros, batch_size=len(keys)))  # fmt: skip
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """As verl's, with as many mini-batches as configured and the survivors' denominator."""
        assert self._plan is not None
        actor = self.config.actor_rollout_ref.actor
        batch.extra_info.update({
            "calculate_entropy": actor.calculate_entropy or actor.entropy_coeff != 0.0,
            "distillation_use_topk": False,
            "distillation_only": False,
            "global_batch_size": self._plan.rows_per_mini_batch,
            "num_mini_batch": self._plan.mini_batches,
            "epochs": actor.ppo_epochs,
            "seed": actor.data_loader_seed,
            # The layout is ours; see arrange().
            "dataloader_kwargs": {"shuffle": False},
            "temperature": self.config.actor_rollout_ref.rollout.temperature,
        })  # fmt: skip
        self._set_micro_rows(batch, self._plan.micro_rows)
        output = rename_dict(self.actor_rollout_wg.update_actor(batch)["metrics"], "actor/")
        output["perf/mfu/actor"] = output.pop("actor/mfu")
        metrics.update(reduce_metrics(output))
        return batch

    # ---- prompts and checkpoints ----------------------------------------------------------------

    def _fetch_one_gen_batch(self) -> TensorDict:
        """As verl's, with names that a repeated run gives again (verl's are random)."""
        batch = super()._fetch_one_gen_batch()
        agents = set(batch["agent_name"]) if "agent_name" in batch.keys() else set()  # noqa: SIM118
        if not agents <= {AGENT}:
            raise ArrolError(
                f"agent_name of a prompt is {sorted(agents - {AGENT})[0]!r}; allowed where "
                f"rollouts are pruned is {AGENT!r}: a rollout is one answer."
            )
        first, self._prompts = self._prompts, self._prompts + len(batch)
        names = [f"p{number:012d}" for number in range(first, self._prompts)]
        assign_non_tensor_stack(batch, "uid", names)
        return batch

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        self.loop.submitted(list(batch["uid"]), self.config.actor_rollout_ref.rollout.n)
        count: int = super()._submit_batch_to_rollout(batch)
        return count

    def _load_checkpoint(self) -> None:
        """As verl's; ours follows when the engines are there (see :meth:`on_init_end`)."""
        if self.config.trainer.resume_mode == "auto":
            mend_marker(Path(self.config.trainer.default_local_dir))
        super()._load_checkpoint()

    def _save_checkpoint(self) -> None:
        """Ours first: verl names a checkpoint as the latest when all of it is written."""
        self.loop.save(self._folder(), self.global_steps, self._prompts)
        super()._save_checkpoint()

    def _folder(self) -> Path:
        return step_folder(self.config.trainer.default_local_dir, self.global_steps)

    # ---- servers and rows -----------------------------------------------------------------------

    @property
    def _servers(self) -> list[Any]:
        handles: list[Any] = self.llm_server_manager.server_handles
        return handles

    def _ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        calls = zip(self._servers, arguments, strict=True)
        answers: list[Any] = ray.get([getattr(s, method).remote(*given) for s, given in calls])
        return answers

    def _read(self, keys: Sequence[str], tags: Sequence[dict[str, Any]]) -> list[Row]:
        settings = self.settings
        return read_rows(keys, tags, TRAIN, settings.outcome_metric, settings.outcome_threshold)

    def _dp_size(self) -> int:
        group = self.actor_rollout_wg
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        return int(max(group._dispatch_info["actor"])) + 1
