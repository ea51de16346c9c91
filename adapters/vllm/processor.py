"""The one name that engine arguments give: it becomes the shim for the runner in force."""

from __future__ import annotations

from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor

from arrol.adapters.vllm.processor_v1 import PruningProcessorV1
from arrol.adapters.vllm.request import check_sampling

_bases: tuple[type, ...] = (LogitsProcessor,)
try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as LogitsProcessorV2

    _bases += (LogitsProcessorV2,)
except ImportError:  # vLLM 0.24 and 0.28 run V1 where a processor is given
    pass


class PruningLogitsProcessor(*_bases):  # type: ignore[misc]
    """Passes both runners' checks of its class; an instance is the shim that fits the caller."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        """V1 gives (config, device, pin memory), Model Runner V2 (config, request states)."""
        if len(arguments) + len(keywords) == 3:
            return PruningProcessorV1(*arguments, **keywords)
        from arrol.adapters.vllm.processor_v2 import PruningProcessorV2

        return PruningProcessorV2(*arguments, **keywords)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request that could not be pruned properly."""
        check_sampling(sampling_params)
