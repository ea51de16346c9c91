"""The steps of an in-process vLLM engine: how long each took, and what was in it."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import smollm2  # before vLLM

from arrol.sim.fit import StepMeasurement

STEPS = 6  #: decode steps at each point of the grid, in each pass
REPEATS = 3  #: steps with a prefill at each point, in each pass
PREFILL_TOKENS = 4  #: of a rollout that is timed for its prefill
BATCHES = (1, 2, 4, 8, 16, 24)  #: and the number of slots
PREFILLS = ((0, 1), (0, 4), (8, 1), (16, 2), (24, 1), (24, 4))  #: (decoders, prompts that join)


@dataclass(frozen=True)
class Step:
    """One step, as scheduled.

    Attributes:
        decoders: n.
        kv_tokens: K, that they hold.
        prefill_tokens: computed beside them.
        start: on the clock [s].
    """

    decoders: int
    kv_tokens: int
    prefill_tokens: int
    start: float


class StepLog:
    """Notes every step that the engine schedules; a step lasts until the next one is scheduled.

    So whatever the frontend does between two steps counts for the first of them.
    """

    def __init__(self, llm: Any) -> None:
        self.steps: list[Step] = []
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        schedule = scheduler.schedule

        def noted(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            output = schedule(*args, **kwargs)
            if output.total_num_scheduled_tokens:
                self.steps.append(_step(output, start))
            return output

        scheduler.schedule = noted

    def take(self) -> list[tuple[Step, float]]:
        """Steps since the last call, each with its seconds."""
        ends = [*(step.start for step in self.steps[1:]), time.perf_counter()]
        pairs = [(step, end - step.start) for step, end in zip(self.steps, ends, strict=False)]
        self.steps.clear()
        return pairs


def _step(output: Any, start: float) -> Step:
    cached = output.scheduled_cached_reqs
    decoding = [
        computed + 1
        for computed, generated in zip(
            cached.num_computed_tokens, cached.num_output_tokens, strict=True
        )
        if generated
    ]
    prefill_tokens = output.total_num_scheduled_tokens - len(decoding)
    return Step(len(decoding), sum(decoding), prefill_tokens, start)


class Grid:
    """Measures decode steps over batch sizes and contexts, and steps in which prompts join.

    In several passes with other work between: so what slows the machine down for a while spoils
    a part of each point and not all of some.

    Args:
        backend: a ``PruningLLM`` with a plan in shadow mode: its processor masks sentinels, as in
            the runs to predict, and never decides, as no rollout gets that long.
        log: of its engine.
        contexts: tokens of the prompts.
    """

    def __init__(self, backend: Any, log: StepLog, contexts: Sequence[int]) -> None:
        self.backend, self.log, self.contexts = backend, log, contexts
        self._found: defaultdict[tuple[str, int, int], list[tuple[Step, float]]]
        self._found = defaultdict(list)
        self._rng = np.random.default_rng(3)
        self._count = 0

    def measure(self) -> None:
        """One more pass over all points."""
        slots = self.backend.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
        for context in self.contexts:
            for batch in [*(n for n in BATCHES if n < slots), slots]:
                self._found["decode", batch, context] += self._decode(batch, context)
        for decoders, prompts in PREFILLS:
            if decoders + prompts <= slots:
                self._found["join", decoders, prompts] += self._join(decoders, prompts)

    def points(self) -> list[StepMeasurement]:
        """Medians over all passes."""
        return [
            StepMeasurement(
                steps[0][0].decoders,
                statistics.mean(step.kv_tokens for step, _ in steps),
                statistics.median(seconds for _, seconds in steps),
                steps[0][0].prefill_tokens,
            )
            for steps in self._found.values()
        ]

    def _decode(self, batch: int, context: int) -> list[tuple[Step, float]]:
        """Steps with so many decoders."""
        chunk = self.backend.llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
        waits = -(-batch * (context + 1) // chunk)  # steps until the last one has its prompt
        for _ in range(batch):
            self._add(context, STEPS + waits + 2)
        return [pair for pair in self._run() if pair[0].decoders == batch][:STEPS]

    def _join(self, decoders: int, prompts: int) -> list[tuple[Step, float]]:
        """Steps in which so many prompts join so many decoders."""
        engine = self.backend.llm.llm_engine
        for _ in range(decoders):
            self._add(smollm2.PROMPT_TOKENS, REPEATS * (PREFILL_TOKENS + 1) + 4)
        for _ in range(3 if decoders else 0):
            engine.step()
        self.log.take()
        found: list[tuple[Step, float]] = []
        for _ in range(REPEATS):
            for _ in range(prompts):
                self._add(smollm2.PROMPT_TOKENS, PREFILL_TOKENS)
            for _ in range(PREFILL_TOKENS):
                engine.step()
            found += [pair for pair in self.log.take() if pair[0].prefill_tokens]
        self._run()
        whole = prompts * smollm2.PROMPT_TOKENS
        assert {(s.decoders, s.prefill_tokens) for s, _ in found} == {(decoders, whole)}
        return found

    def _add(self, context: int, tokens: int) -> None:
        """One rollout with a prompt of its own."""
        from vllm import SamplingParams

        from arrol.adapters.vllm import RolloutRequest

        self._count += 1
        prompt = tuple(self._rng.integers(1000, 40000, context).tolist())
        request = RolloutRequest(self._count, self._count, 0, 1, prompt, detect_length=10**6)
        sampling = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True)
        changed = self.backend.sampling(sampling, [request])
        name = f"step-{self._count}"
        self.backend.llm.llm_engine.add_request(name, {"prompt_token_ids": list(prompt)}, changed)

    def _run(self) -> list[tuple[Step, float]]:
        engine = self.backend.llm.llm_engine
        self.log.take()
        while engine.has_unfinished_requests():
            engine.step()
        return self.log.take()
