"""verl's vLLM server, with an engine that prunes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from arrol.adapters.verl.arrival import Arrivals
from arrol.adapters.verl.requests import entry_of
from arrol.adapters.verl.rollouts import FINISH, PRUNED
from arrol.adapters.vllm.pruner import filled
from arrol.adapters.vllm.request import ARGUMENT, PruningArgs
from arrol.adapters.vllm.support import PROCESSOR, check_engine, end_tokens, seeds_crash
from arrol.errors import ArrolError
from arrol.plan import PruningPlan
from arrol.records import FinishReason, Mode

EXTENSION = "arrol.adapters.verl.extension.PruningColocateWorkerExtension"


class PruningHttpServer(vLLMHttpServer):
    """One server: verl's own, whose engine carries out the plan that it was last sent.

    Requests without a mark (validation) pass as they are. On a marked one the sentinel becomes a
    stop token; it is taken off again with its log-prob, and the output says how the rollout ended.
    """

    _sentinel: int | None = None
    _number = 0
    _plan: PruningPlan | None = None
    _arrivals: Arrivals | None = None

    async def arrol_prepare(self, number: int, sentinel: int | None, seeded: bool) -> int:
        """See that the engine can prune; gives the size of its hidden states.

        Args:
            number: the server's, among those of the run.
            sentinel: token that ends pruned rollouts; None to find one.
            seeded: requests will have seeds.

        Raises:
            ArrolError: it can't; the sentence names the setting.
        """
        config = self.engine.vllm_config
        if seeded and seeds_crash(config):
            raise ArrolError(
                "actor_rollout_ref.rollout.enable_chunked_prefill is True; allowed on a CPU with "
                "full_determinism is False, as vLLM crashes there on requests with a seed."
            )
        self._number = number
        self._sentinel = check_engine(config, lambda: self.model_config.tokenizer, sentinel)
        self._arrivals = Arrivals(self.engine) if seeded else None
        hidden_size: int = config.model_config.get_hidden_size()
        return hidden_size

    async def arrol_load(self, plan: str, head: str, requests: int = 0) -> dict[str, Any]:
        """Put a plan and a head in force; gives the engine's own word on it.

        Args:
            plan: JSON.
            head: safetensors as base64; empty for none.
            requests: how many marked requests will come under this plan; with it a repeatable run
                starts them all at once and in order. 0 where it isn't known.

        Raises:
            RuntimeError: the engine did not take the plan.
        """
        self._plan = PruningPlan.from_json(plan)
        await self.engine.collective_rpc("arrol_load_head", args=(head,))
        statuses: list[dict[str, Any]] = await self.engine.collective_rpc(
            "arrol_load_plan", args=(plan, str(self._number), "1")
        )
        for status in statuses:
            if status["plan"] != self._plan.version:
                raise RuntimeError(f"server {self._number} has plan {status['plan']}, "
                                   f"not {self._plan.version}.")  # fmt: skip
        if self._arrivals is not None:
            self._arrivals.expect(requests)
        return statuses[0]

    async def arrol_take(self) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Records since the last call, and the engine's counts."""
        answers = await self.engine.collective_rpc("arrol_take", args=("",))
        status = (await self.engine.collective_rpc("arrol_status"))[0]
        return filled(answers), status

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        **kwargs: Any,
    ) -> TokenOutput:
        """As verl's; rollouts that carry a mark may be pruned."""
        entry = entry_of(sampling_params)
        if entry is None or self._plan is None or self._sentinel is None:
            return await super().generate(prompt_ids, _plain(sampling_params), request_id, **kwargs)
        args = PruningArgs(**{**entry, "keys": tuple(entry["keys"])},
                           detect_length=self._plan.detect_length,
                           sentinel=self._sentinel)  # fmt: skip
        params = self._parameters(sampling_params, args)
        if self._arrivals is not None:
            await self._arrivals.turn(args.group, args.index)
        try:
            output = await super().generate(prompt_ids, params, request_id, **kwargs)
        finally:
            if self._arrivals is not None:
                self._arrivals.passed()
        return self._finished(output, len(prompt_ids))

    def _parameters(self, sampling: dict[str, Any], args: PruningArgs) -> dict[str, Any]:
        if self._plan is None or self._plan.mode is Mode.OFF:
            return _plain(sampling)
        stops = [*(sampling.get("stop_token_ids") or ()), args.sentinel]
        extra = {**sampling["extra_args"], **args.to_extra_args()}
        return {**sampling, "stop_token_ids": stops, "extra_args": extra}

    def _finished(self, output: TokenOutput, prompt_length: int) -> TokenOutput:
        ids = list(output.token_ids)
        pruned = bool(ids) and ids[-1] == self._sentinel
        if pruned:
            output.token_ids = ids[:-1]
            output.log_probs = output.log_probs and output.log_probs[:-1]
            output.stop_reason = FinishReason.PRUNED.value
        output.extra_fields[PRUNED] = pruned
        output.extra_fields[FINISH] = self._reason(output, pruned, prompt_length).value
        return output

    def _reason(self, output: TokenOutput, pruned: bool, prompt_length: int) -> FinishReason:
        if pruned:
            return FinishReason.PRUNED
        if output.stop_reason != "completed":
            return FinishReason.FAILED
        config, ids = self.config, output.token_ids
        limit = min(config.response_length, config.max_model_len - prompt_length,
                    config.prompt_length + config.response_length - prompt_length)  # fmt: skip
        ended = ids[-1] in end_tokens(self.engine.vllm_config.model_config)
        return FinishReason.LENGTH if len(ids) >= limit and not ended else FinishReason.STOP

    def _get_worker_extension_cls(self) -> str:
        return EXTENSION

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)
        given = engine_kwargs.get("logits_processors") or []
        engine_kwargs["logits_processors"] = [*given, PROCESSOR]


class PruningReplica(vLLMReplica):
    """verl's replica with the servers above; reward models and teachers keep verl's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not (self.is_reward_model or self.is_teacher_model):
            self.server_class = ray.remote(PruningHttpServer)


def _plain(sampling: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters without our mark, which vLLM could not read."""
    if entry_of(sampling) is None:
        return sampling
    extra = {name: v for name, v in sampling["extra_args"].items() if name != ARGUMENT}
    return {**sampling, "extra_args": extra or None}
