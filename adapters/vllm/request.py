"""What travels with a vLLM request and comes back with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arrol.errors import ArrolError, check_integer
from arrol.keys import stable_key
from arrol.records import FinishReason, Request, Rollout

ARGUMENT = "arrol"  #: its place in ``SamplingParams.extra_args``


@dataclass(frozen=True, slots=True)
class RolloutRequest(Request):
    """One rollout to generate with vLLM.

    Attributes:
        prompt: text, or token ids.
        sampling: vLLM's ``SamplingParams`` with n = 1. Its seed, if set, is the run's: each rollout
            draws from a stream of its own that follows from it and the rollout's key.
        detect_length: L_detect of this rollout [tokens]; None for the plan's.
    """

    prompt: str | tuple[int, ...] = ""
    sampling: Any = None
    detect_length: int | None = None

    def __post_init__(self) -> None:
        """See that the detection length is one.

        Raises:
            ArrolError: it is below 1.
        """
        if self.detect_length is not None:
            check_integer("detect_length", self.detect_length, 1)

    @property
    def vllm_prompt(self) -> Any:
        """The prompt as vLLM's engines take it."""
        if isinstance(self.prompt, str):
            return self.prompt
        return {"prompt_token_ids": list(self.prompt)}


@dataclass(frozen=True, slots=True)
class TokenRollout(Rollout):
    """One finished rollout with its text.

    Attributes:
        text: without a pruned rollout's sentinel.
        token_ids: [tokens] the same as ids.
        logprobs: [tokens] vLLM's log-probs of each position, if asked for.
        hidden: [H] float16, last hidden state of the token at the detection length, which the
            quality head reads; None if the rollout was not decided or the engine does not keep it.
            Rollouts are compared without it.
        stop_reason: vLLM's: the stop string or token; None for EOS and for pruned rollouts.
        error: why a failed rollout failed.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Any, ...] | None = None
    hidden: NDArray[np.float16] | None = field(default=None, compare=False)
    stop_reason: int | str | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class PruningArgs:
    """What an engine must know of a request, sent in ``extra_args[ARGUMENT]``.

    Attributes:
        keys: key of each rollout of the request: n of them.
        group: their group.
        index: place in the group of the first.
        group_size: rollouts of the group at this engine.
        detect_length: L_detect [tokens].
        sentinel: token that ends a pruned rollout.
    """

    keys: tuple[int, ...]
    group: int
    index: int
    group_size: int
    detect_length: int
    sentinel: int

    def child(self, place: int) -> Request:
        """The request's rollout at this place, 0 … n − 1."""
        return Request(self.keys[place], self.group, self.index + place, self.group_size)

    def to_extra_args(self) -> dict[str, str]:
        """As ``extra_args`` and as ``vllm_xargs``, which takes no nested values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {ARGUMENT: json.dumps(values)}

    @classmethod
    def from_extra_args(cls, extra_args: Mapping[str, Any] | None) -> PruningArgs | None:
        """The inverse of :meth:`to_extra_args`; None where the request has none.

        Raises:
            ValueError: they are no such arguments. (vLLM answers the request with it.)
        """
        text = (extra_args or {}).get(ARGUMENT)
        if text is None:
            return None
        try:
            values = json.loads(text)
            args = cls(**{**values, "keys": tuple(values["keys"])})
            for name in ("group", "index", "sentinel"):
                check_integer(name, getattr(args, name), 0)
            for name in ("group_size", "detect_length"):
                check_integer(name, getattr(args, name), 1)
            for key in args.keys:
                check_integer("key", key, 0, 2**64 - 1)
            check_integer("number of keys", len(args.keys), 1)
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(
                f"{ARGUMENT} is {text!r}; allowed is what PruningArgs makes ({error})."
            ) from None
        return args


def check_sampling(params: Any) -> PruningArgs | None:
    """See that a request's sampling parameters leave room for pruning.

    Args:
        params: vLLM's ``SamplingParams``; one without pruning arguments is none of our business.

    Raises:
        ValueError: a setting keeps the sentinel from ending the rollout at once or unseen.
    """
    args = PruningArgs.from_extra_args(params.extra_args)
    if args is None:
        return None
    length, n = args.detect_length, len(args.keys)
    unfit = {
        "structured_outputs": (params.structured_outputs is not None, "None (a grammar)"),
        "prompt_logprobs": (params.prompt_logprobs is not None, "None"),
        "thinking_token_budget": (params.thinking_token_budget is not None, "None"),
        "include_stop_str_in_output": (params.include_stop_str_in_output, "False"),
        "min_tokens": (params.min_tokens > length + 1, f"at most {length + 1}"),
        "n": (params.n not in (1, n), f"the number of keys, {n}"),
        "stop_token_ids": (
            args.sentinel not in (params.stop_token_ids or ()), f"a list with {args.sentinel}"
        ),
    }  # fmt: skip
    for name, (wrong, allowed) in unfit.items():
        if wrong:
            value = getattr(params, name)
            raise ValueError(
                f"{name} is {value!r}; allowed for a rollout that may be pruned is {allowed}."
            )
    return args


def with_pruning(params: Any, args: PruningArgs, seed: int | None = None) -> Any:
    """A copy of ``SamplingParams`` that lets the engine prune.

    Args:
        params: the user's; left as they are.
        args: what the engine must know.
        seed: the copy's; None leaves it.
    """
    changed = copy(params)
    changed.extra_args = {**(params.extra_args or {}), **args.to_extra_args()}
    stops = list(params.stop_token_ids or ())
    changed.stop_token_ids = [*stops, args.sentinel]
    # What vLLM derives from the stop ids when parameters are made.
    changed._all_stop_token_ids = {*params._all_stop_token_ids, args.sentinel}
    if seed is not None:
        changed.seed = seed
    return changed


def rollout_seed(seed: int, key: int) -> int:
    """Seed of one rollout's own stream, in the 63 bits that vLLM takes."""
    return stable_key("sampling", seed, key) >> 1


def group_requests(
    prompts: Sequence[str | Sequence[int]],
    group_size: int,
    sampling: Any,
    name: str | int = 0,
    detect_length: int | None = None,
) -> list[RolloutRequest]:
    """G rollouts for each prompt.

    Args:
        prompts: texts or token ids, one a group.
        group_size: G.
        sampling: ``SamplingParams`` of all.
        name: what tells this batch from others, such as the training step: keys follow from it and
            the prompt's place.
        detect_length: L_detect; None for the plan's.

    Raises:
        ArrolError: ``group_size`` is below 1, or a prompt is empty.
    """
    check_integer("group_size", group_size, 1)
    requests = []
    for place, prompt in enumerate(prompts):
        if not len(prompt):
            raise ArrolError(f"prompt {place} is empty; allowed is at least one token.")
        words = prompt if isinstance(prompt, str) else tuple(prompt)
        group = stable_key(name, place)
        requests += [
            RolloutRequest(
                stable_key(name, place, index), group, index, group_size, words, sampling,
                detect_length,
            )
            for index in range(group_size)
        ]  # fmt: skip
    return requests


FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "repetition": FinishReason.STOP,
}  #: vLLM's words for ends that leave a whole rollout; all others have failed
