"""What a model says of the first L tokens of a rollout: hidden state, confidence, seconds.

Rollouts come out of a real vLLM engine in shadow mode. The adapter hands back one hidden state of a
rollout, at the plan's detection length; those at the other lengths come from one forward pass of
transformers over prompt and tokens, and must agree with it there.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import smollm2  # before vLLM
from arithmetic import Problem

from arrol.answers import Verdict, Verifier
from arrol.columns import Flags, Floats, Integers
from arrol.confidence import TOP_K, token_confidence, top_log_probs
from arrol.records import FinishReason, Mode

SLOTS = 32  #: sequences that run at once
LONGEST = 1024  #: tokens of a prompt and its rollout
EXACT = 16  #: prompts that transformers reads in float32, too


@dataclass(frozen=True)
class Rollouts:
    """N rollouts, sorted by prompt.

    Attributes:
        prompts_N: number of each one's prompt.
        outcomes_N: is the answer right?
        lengths_N: tokens.
        capped: share that the token limit ended.
        confidences: of each, the token confidences of the first L tokens, L the largest length.
        hidden: L → float32[N, H] transformers' hidden states of token number L; NaN where it ended.
        engine_NH: the adapter's own, at the plan's detection length; NaN where it decided nothing.
        exact_NH: transformers' at the plan's detection length in float32, of the first prompts.
        seconds: L → median time from a rollout's first step to the end of its step number L.
        wall: seconds of the whole generation.
    """

    prompts_N: Integers
    outcomes_N: Flags
    lengths_N: Integers
    capped: float
    confidences: list[Floats]
    hidden: dict[int, Floats]
    engine_NH: Floats
    exact_NH: Floats
    seconds: dict[int, float]
    wall: float

    def decidable(self, length: int) -> Flags:
        """Those that go on behind token number L, which pruning at L would decide on."""
        return self.lengths_N > length


class Clock:
    """When each request of an in-process engine had its steps, by the scheduler's own plan.

    Prompts go in at once, so that a request's step number L samples its token number L.
    """

    def __init__(self, llm: Any) -> None:
        self._starts: list[float] = []
        self._steps: dict[str, list[int]] = defaultdict(list)
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        schedule = scheduler.schedule

        def noted(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            output = schedule(*args, **kwargs)
            for name in output.num_scheduled_tokens:
                self._steps[name].append(len(self._starts))
            self._starts.append(start)
            return output

        scheduler.schedule = noted

    def seconds_to(self, length: int) -> float:
        """Median over the requests that had as many steps and one more, after which time is up."""
        times = [
            self._starts[steps[length]] - self._starts[steps[0]]
            for steps in self._steps.values()
            if len(steps) > length
        ]
        return statistics.median(times) if times else float("nan")


def collect(
    folder: Path, problems: Sequence[Problem], group_size: int, tokens: int,
    lengths: Sequence[int], detect_length: int, seed: int,
) -> Rollouts:  # fmt: skip
    """Generate, grade, and look into every rollout's prefixes.

    Args:
        folder: the converted model.
        problems: one a group.
        group_size: G.
        tokens: limit of a rollout.
        lengths: L at which to look.
        detect_length: the plan's, one of ``lengths``.
        seed: of the sampling.
    """
    from vllm import SamplingParams

    from arrol.adapters.vllm import PruningLLM, group_requests

    engine = smollm2.make_engine(folder, SLOTS, LONGEST)
    backend, clock = PruningLLM(engine), Clock(engine)
    backend.load_head(smollm2.make_head())  # untrained: shadow mode only wants one
    backend.load_plan(smollm2.make_plan(Mode.SHADOW, detect_length))
    tokenizer = engine.get_tokenizer()
    prompts = [tuple(tokenizer(problem.prompt)["input_ids"]) for problem in problems]
    sampling = SamplingParams(
        temperature=1.0, max_tokens=tokens, seed=seed, stop=["\n"], logprobs=TOP_K
    )
    requests = group_requests(prompts, group_size, sampling)
    most = max(lengths)
    found, confidences = {}, {}
    start = time.perf_counter()
    for rollout in backend.stream(requests):
        confidences[rollout.key] = _confidence((rollout.logprobs or ())[:most])
        found[rollout.key] = replace(rollout, logprobs=None)  # an object for each number
    wall = time.perf_counter() - start
    print(f"Generated in {wall:.0f} s; now their hidden states.", flush=True)
    rollouts = [found[request.key] for request in requests]
    refused = [r.error for r in rollouts if r.finish_reason is FinishReason.FAILED]
    if refused:
        raise SystemExit(f"{len(refused)} rollouts failed; the first: {refused[0]}")
    golds = [problem.gold for problem in problems for _ in range(group_size)]
    with Verifier() as verifier:
        verdicts = verifier.verify_all([rollout.text for rollout in rollouts], golds)
    return Rollouts(
        prompts_N=np.repeat(np.arange(len(problems)), group_size),
        outcomes_N=np.array([verdict is Verdict.RIGHT for verdict in verdicts]),
        lengths_N=np.array([rollout.tokens for rollout in rollouts]),
        capped=statistics.mean(r.finish_reason is FinishReason.LENGTH for r in rollouts),
        confidences=[confidences[request.key] for request in requests],
        hidden=_hidden(folder, prompts, rollouts, group_size, lengths),
        engine_NH=np.array([_row(rollout.hidden) for rollout in rollouts]),
        exact_NH=_hidden(folder, prompts[:EXACT], rollouts, group_size, [detect_length], "float32")[
            detect_length
        ],
        seconds={length: clock.seconds_to(length) for length in lengths},
        wall=wall,
    )


def _confidence(logprobs: Sequence[Any]) -> Floats:
    """DeepConf's C of each token, from vLLM's log-probs before temperature."""
    rows = ([entry.logprob for entry in position.values()] for position in logprobs)
    return token_confidence(top_log_probs(rows))


def _row(hidden: Any) -> Floats:
    return np.full(smollm2.HIDDEN, np.nan) if hidden is None else hidden.astype(np.float64)


def _hidden(
    folder: Path, prompts: Sequence[tuple[int, ...]], rollouts: Sequence[Any], group_size: int,
    lengths: Sequence[int], dtype: str = "bfloat16",
) -> dict[int, Floats]:  # fmt: skip
    """Last hidden states by transformers, NaN for rollouts of no prompt; a prompt is read once."""
    import torch
    from transformers import AutoModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    most = max(lengths)
    found = {length: np.full((len(rollouts), smollm2.HIDDEN), np.nan) for length in lengths}
    for place, prompt in enumerate(prompts):
        rows = slice(place * group_size, (place + 1) * group_size)
        # Padding stands behind the tokens, where a causal model does not look.
        taken = [rollout.token_ids[:most] for rollout in rollouts[rows]]
        padded = torch.tensor([[*ids, *[0] * (most - len(ids))] for ids in taken])
        with torch.inference_mode():
            cache = model(torch.tensor([prompt]), use_cache=True).past_key_values
            cache.batch_repeat_interleave(len(taken))
            states = model(padded, past_key_values=cache).last_hidden_state.float().numpy()
        for length in lengths:
            there = np.array([len(ids) >= length for ids in taken])
            found[length][rows][there] = states[there, length - 1]
    return found
