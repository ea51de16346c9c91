"""Batched decoding, one step after the other: the slow model that the engine is held to.

It shares no code with ``arrol.sim.scheduler`` and ``arrol.sim.engine``: every quantity is counted
anew in every step, from a plain list of the running jobs. Only requests, limits, the time of a
single step and the decider are the project's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Job:
    request: Any
    g: int = 0  # tokens generated
    todo: int = 0  # prefill tokens still to compute
    own: int = 0  # KV tokens stored, without the prompt
    again: bool = False  # it lost its KV before
    detection: Any = None


@dataclass
class Result:
    """What happened: one entry for each request, by key, and the counts."""

    finished: dict[int, tuple[float, int, str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    states: list[tuple[float, int, int]] = field(default_factory=list)


def step_by_step(requests, limits, cost, decider=None, detect_length=None) -> Result:
    """Play the requests out at one engine; a decider needs a detection length."""
    waiting = [Job(request) for request in requests]
    running: list[Job] = []  # in order of admission
    result = Result()
    while waiting or running:
        preempted = make_room(running, waiting, limits, result)
        prefilled = hand_out_prefill(running, waiting, limits, result, admit=not preempted)
        decoding = [job for job in running if job not in prefilled and not job.todo]
        tokens = sum(prefilled.values())
        if not decoding and not tokens:
            continue  # nothing to compute, so this is no step
        result.states.append((result.seconds, len(running), stored(running)))
        read = sum(job.request.prompt_tokens + job.g for job in decoding)
        result.seconds += cost.step(len(decoding), read, tokens)
        result.counts["steps"] += 1
        for job in decoding:
            job.g += 1
            job.own += 1
            result.counts["decode_tokens"] += 1
        for job in prefilled:
            if job.todo == 0:
                job.g += 1
                result.counts["prefills"] += 1
        end_step(running, decider, detect_length, result)
    return result


def make_room(running, waiting, limits, result) -> bool:
    """Preempt the newest until each decoder's next token has a place."""
    preempted = False
    while stored(running) + decoders(running) > limits.kv_tokens:
        job = running.pop()
        job.own = job.todo = 0
        if not running:
            leave(job, "failed", result)
        else:
            job.again = preempted = True
            waiting.insert(0, job)
            result.counts["preemptions"] += 1
    return preempted


def hand_out_prefill(running, waiting, limits, result, admit) -> dict[Job, int]:
    """Prefill tokens of this step, by job."""
    budget = limits.max_batched_tokens - decoders(running)
    grown = decoders(running)
    given: dict[Job, int] = {}
    for job in running:
        if job.todo and budget > 0:
            budget -= chunk(job, budget, given, result)
    while admit and waiting and budget > 0 and len(running) < limits.max_num_seqs:
        job = waiting[0]
        prompt = job.request.prompt_tokens
        if prompt + max(job.g, 1) > limits.kv_tokens:
            leave(waiting.pop(0), "failed", result)
            continue
        is_shared = any(other.request.group == job.request.group for other in running)
        need = job.g if is_shared else job.g + prompt
        if stored(running) + grown + need > limits.kv_tokens:
            break
        running.append(waiting.pop(0))
        job.own = job.g
        job.todo = max(1, job.g) if is_shared else prompt + job.g
        budget -= chunk(job, budget, given, result)
    return given


def chunk(job, budget, given, result) -> int:
    tokens = min(job.todo, budget)
    job.todo -= tokens
    given[job] = tokens
    result.counts["prefill_tokens"] += tokens
    result.counts["recomputed_tokens"] += tokens * job.again
    return tokens


def end_step(running, decider, detect_length, result) -> None:
    """Decide and end jobs, in order of (group, index)."""
    for job in sorted(running, key=lambda job: (job.request.group, job.request.index)):
        if job.todo:
            continue
        if decider is not None and job.detection is None and job.g == detect_length + 1:
            job.detection = decider.decide_one(job.request, job.request.score)
            if job.detection.enforced and not job.detection.keep:
                job.g -= 1  # the sentinel is dropped
                result.counts["sentinels"] += 1
                running.remove(job)
                leave(job, "pruned", result)
                continue
        if job.g == job.request.length:
            running.remove(job)
            leave(job, job.request.finish_reason.value, result)


def leave(job, reason, result) -> None:
    assert job.request.key not in result.finished
    result.finished[job.request.key] = (result.seconds, job.g, reason, job.detection)


def decoders(running) -> int:
    return sum(job.todo == 0 for job in running)


def stored(running) -> int:
    """KV tokens: each job's own and each running group's prompt once."""
    prompts = {job.request.group: job.request.prompt_tokens for job in running}
    return sum(job.own for job in running) + sum(prompts.values())
