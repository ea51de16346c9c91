"""The backend contract's harnesses for real vLLM engines (see ``test_backend_contract``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from vllm import LLM, SamplingParams
from vllm_models import (
    EOS,
    SENTINEL,
    SPICE,
    LookupHead,
    chain_token,
    save_countdown,
)
from vllm_settings import set_in_process

from arrol.adapters.vllm import PruningLLM, RolloutRequest, engine_arguments
from arrol.adapters.vllm.support import EXTENSION
from arrol.adapters.vllm.worker import PruningWorkerExtension
from arrol.keys import stable_key

L_DETECT = 8  # the contract's


@cache
def countdown_model() -> Path:
    """The countdown model, made once a process."""
    return save_countdown(Path(mkdtemp(prefix="arrol-countdown-")))


class LookupExtension(PruningWorkerExtension):
    """The adapter's extension with a head that looks scores up."""

    def _arrol_head(self, data: bytes) -> LookupHead:
        values = json.loads(data)
        table = {int(chain): tuple(entry) for chain, entry in values["scores"].items()}
        return LookupHead(Path(values["folder"]), values["version"], table)


@dataclass
class LookupWeights:
    """What is pushed in place of head weights."""

    folder: Path
    scores: dict[int, tuple[int, float]]
    version: int = 1

    def to_bytes(self) -> bytes:
        """JSON; NaN is written as Python writes it."""
        values = {"folder": str(self.folder), "version": self.version, "scores": self.scores}
        return json.dumps(values).encode()


class LookupBackend(PruningLLM):
    """Pushes the scores of the requests at hand before it generates."""

    def __init__(self, llm: LLM, engine: int, weights: LookupWeights) -> None:
        super().__init__(llm, engine, SENTINEL)
        self.weights = weights

    def generate(self, requests: Sequence[RolloutRequest], progress: Any = None) -> Any:
        """As its base."""
        self.load_head(self.weights)
        return super().generate(requests, progress)


@cache
def countdown_engine(in_process: bool, **arguments: Any) -> LLM:
    """An engine on the countdown model, shared by all tests that want these arguments."""
    set_in_process(in_process)
    given = engine_arguments(
        max_model_len=64, enforce_eager=True, dtype="float32", kv_cache_memory_bytes=2**26, seed=0,
        skip_tokenizer_init=True, **arguments,
    )  # fmt: skip
    assert given["worker_extension_cls"] == EXTENSION
    given["worker_extension_cls"] = "vllm_harness.LookupExtension"
    return LLM(model=str(countdown_model()), **given)


class VllmHarness:
    """A real engine on the countdown model."""

    def __init__(self, name: str, in_process: bool = True, **arguments: Any) -> None:
        self.name = name
        self.in_process = in_process
        self.arguments = arguments
        self.weights = LookupWeights(countdown_model(), {})

    def backend(self, engine: int = 0) -> LookupBackend:
        """The engine's frontend, as new."""
        return LookupBackend(
            countdown_engine(self.in_process, **self.arguments), engine, self.weights
        )

    def requests(
        self, lengths: Sequence[Sequence[int]], scores: Sequence[Sequence[float]] | None = None
    ) -> list[RolloutRequest]:
        """Groups × rollouts of such lengths; each has a chain of the model for itself."""
        sampling = SamplingParams(
            temperature=0.0, max_tokens=40, stop_token_ids=[EOS], detokenize=False
        )
        requests = []
        for group, row in enumerate(lengths):
            for index, length in enumerate(row):
                chain = len(requests)
                score = 0.5 if scores is None else scores[group][index]
                self.weights.scores[chain] = (length - L_DETECT, score)
                prompt = (*[SPICE + group] * (5 + group), chain_token(chain, length))
                key, name = stable_key("prompt", group, index), stable_key("prompt", group)
                requests.append(RolloutRequest(key, name, index, len(row), prompt, sampling))
        return requests


HARNESSES = [
    VllmHarness("vLLM", max_num_seqs=64),
    # 3 at once, chunks of 7 prompt tokens, prefix caching, and KV blocks for two long rollouts.
    VllmHarness(
        "tight vLLM", max_num_seqs=3, max_num_batched_tokens=7, enable_chunked_prefill=True,
        enable_prefix_caching=True, block_size=32, num_gpu_blocks_override=5,
    ),
    VllmHarness("vLLM in its own process", in_process=False, max_num_seqs=16),
]  # fmt: skip
