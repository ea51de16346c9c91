"""Pruning inside real, unmodified vLLM: a logits processor, a worker extension, and a frontend.

::

    from vllm import LLM, SamplingParams
    from arrol.adapters.vllm import PruningLLM, engine_arguments, group_requests

    backend = PruningLLM(LLM(model="Qwen/Qwen3-1.7B", **engine_arguments()))
    backend.load_head(head)                      # arrol.head.QualityHead
    backend.load_plan(controller.plan(head.version))
    requests = group_requests(prompts, 16, SamplingParams(max_tokens=8192), name=step)
    rollouts = backend.generate(requests)        # TokenRollout: text, tokens, Detection, hidden

At the step that would sample a rollout's token number L_detect + 1, the processor reads the last
hidden state that the logits are made of, and leaves a pruned rollout one token to sample: a
sentinel that stops it. Its slot and KV blocks are free at once. The sentinel never reaches text,
tokens or log-probs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arrol.adapters.vllm.async_llm import PruningAsyncLLM
    from arrol.adapters.vllm.engines import PruningEngines
    from arrol.adapters.vllm.frontend import Batch
    from arrol.adapters.vllm.llm import Progress, PruningLLM
    from arrol.adapters.vllm.pruner import Pruner, Record
    from arrol.adapters.vllm.request import (
        PruningArgs,
        RolloutRequest,
        TokenRollout,
        group_requests,
        with_pruning,
    )
    from arrol.adapters.vllm.server import PruningServer
    from arrol.adapters.vllm.support import engine_arguments, find_sentinel, vllm_version

_HOMES = {
    "Batch": "frontend",
    "Progress": "llm",
    "Pruner": "pruner",
    "PruningArgs": "request",
    "PruningAsyncLLM": "async_llm",
    "PruningEngines": "engines",
    "PruningLLM": "llm",
    "PruningServer": "server",
    "Record": "pruner",
    "RolloutRequest": "request",
    "TokenRollout": "request",
    "engine_arguments": "support",
    "find_sentinel": "support",
    "group_requests": "request",
    "vllm_version": "support",
    "with_pruning": "request",
}

__all__ = [
    "Batch",
    "Progress",
    "Pruner",
    "PruningArgs",
    "PruningAsyncLLM",
    "PruningEngines",
    "PruningLLM",
    "PruningServer",
    "Record",
    "RolloutRequest",
    "TokenRollout",
    "engine_arguments",
    "find_sentinel",
    "group_requests",
    "vllm_version",
    "with_pruning",
]


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for: the command line must not import torch to print a help."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
