"""What the frontend can ask of an engine's workers, by ``collective_rpc``."""

from __future__ import annotations

import base64
import json
from typing import Any

from arrol.adapters.vllm.pruner import Pruner, pack
from arrol.adapters.vllm.step import EngineStep
from arrol.errors import ArrolError
from arrol.plan import PruningPlan


class PruningWorkerExtension:
    """Methods that vLLM mixes into its worker (engine argument ``worker_extension_cls``).

    All arguments and results are text, lists and dictionaries, which pass every transport of
    vLLM's, HTTP included. Under a framework with an extension of its own, subclass both.
    """

    model_runner: Any
    rank: int
    parallel_config: Any

    def arrol_load_plan(self, plan: str = "", engine: str = "0", keep_hidden: str = "1") -> Any:
        """Put a plan (JSON; empty for none) in force from the next step on; gives the status."""
        loaded = PruningPlan.from_json(plan) if plan else None
        pruner = self._arrol_pruner()
        pruner.load_plan(loaded, int(engine), keep_hidden == "1")
        return self.arrol_status()

    def arrol_load_head(self, head: str = "") -> Any:
        """Score with a head (safetensors, base64; empty for none) from the next step on."""
        pruner = self._arrol_pruner()
        loaded = self._arrol_head(base64.b64decode(head)) if head else None
        size = self.model_runner.model_config.get_hidden_size()
        found = getattr(loaded, "hidden_size", size)
        if found != size:
            raise ArrolError(f"the head's hidden_size is {found}; allowed is {size}, the model's.")
        pruner.load_head(loaded)
        return self.arrol_status()

    def arrol_status(self) -> dict[str, Any]:
        """What is in force here, and counts since the plan was loaded."""
        step = self._arrol_step()
        pruner = step.pruner
        return {
            "interface": _processor(self.model_runner).interface,
            "plan": None if pruner.plan is None else pruner.plan.version,
            "head": None if pruner.head is None else pruner.head.version,
            "tokens": pruner.tokens,
            "decided": pruner.decided,
            "pruned": pruner.pruned,
        }

    def arrol_take(self, keys: str = "") -> dict[str, Any]:
        """Records of these keys (a JSON list; empty for all), each once."""
        records = self._arrol_pruner().take(json.loads(keys) if keys else None)
        # Ranks that share a layer decide alike; one copy is enough.
        first = self.rank % self.parallel_config.tensor_parallel_size == 0
        return pack(records if first else [])

    def _arrol_head(self, data: bytes) -> Any:
        from arrol.head import QualityHead

        head: Any = QualityHead.from_bytes(data).to(self.model_runner.device)
        return head

    def _arrol_pruner(self) -> Pruner:
        return self._arrol_step().pruner

    def _arrol_step(self) -> EngineStep:
        step: EngineStep = _processor(self.model_runner).step
        step.tap(self.model_runner)
        return step


def _processor(runner: Any) -> Any:
    """The engine's pruning processor, wherever the runner keeps it."""
    if hasattr(runner, "input_batch"):
        found = runner.input_batch.logitsprocs.non_argmax_invariant
    else:
        found = getattr(runner.sampler, "logits_processors", [])
    for processor in found:
        if isinstance(getattr(processor, "step", None), EngineStep):
            return processor
    raise ArrolError(
        "the engine runs without ARRoL's logits processor; allowed is an engine that was made with "
        "the arguments of arrol.adapters.vllm.engine_arguments()."
    )
