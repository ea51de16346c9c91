"""One simulated step as a Chrome trace, for Perfetto or chrome://tracing.

Format: the "Trace Event Format" of the Chromium project (JSON object form). Each engine is a
process; its sequence slots are the threads, numbered from 1, and each stay of a rollout in a slot
is a complete event (``X``). Two counters (``C``) show the running sequences and the KV tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np

from arrol.controller import PruningController
from arrol.files import write_atomically
from arrol.sim.backend import SimulatedBackend
from arrol.sim.engine import EngineRun, Slice, Timeline, simulate
from arrol.sim.settings import SimSettings

MAX_SLICES = 20_000  #: stays that are drawn; beyond it only every k-th slot is
MAX_POINTS = 20_000  #: points of each engine's counters that are drawn

_NAMES = {"stop": "kept", "length": "kept"}  # the other reasons are names already
_COLORS = {"kept": "good", "pruned": "bad", "preempted": "terrible", "failed": "black"}

Event = dict[str, Any]


def chrome_trace(
    run: EngineRun,
    slices: Sequence[Slice],
    max_slices: int = MAX_SLICES,
    max_points: int = MAX_POINTS,
) -> dict[str, Any]:
    """The trace of one batch as JSON values, times in microseconds.

    Args:
        run: what :func:`arrol.sim.engine.simulate` returned; gives the counters.
        slices: what it put into its argument ``trace``; gives the stays.
        max_slices: with more stays than this only every k-th slot is drawn, whole.
        max_points: with more jumps than this only every k-th is a point of the counters.
    """
    placed = [(stay, slot) for engine in run.timelines for stay, slot in _place(slices, engine)]
    every = _spacing([slot for _, slot in placed], max_slices)
    events: list[Event] = []
    for timeline in run.timelines:
        events.append(_name_event("process_name", timeline.engine, 1, f"engine {timeline.engine}"))
        events += _counter_events(timeline, max_points)
    drawn = [(stay, slot) for stay, slot in placed if _is_drawn(slot, every)]
    for engine, slot in sorted({(stay.engine, slot) for stay, slot in drawn}):
        events.append(_name_event("thread_name", engine, slot, f"slot {slot}"))
    events += [_stay_event(stay, slot) for stay, slot in drawn]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"slots drawn": f"one in {every}", "simulated seconds": run.seconds},
    }


def write_trace(path: Path | str, settings: SimSettings) -> None:
    """Simulate one pruned step of ``settings`` and write its trace.

    The plan has learned from one unpruned step that comes before.

    Raises:
        ArrolError: the file can't be written.
    """
    rng = np.random.default_rng(settings.seed)
    workload = settings.workload()
    controller = PruningController(replace(settings.config(), cold_start_steps=1))
    backend = SimulatedBackend(settings.limits(), settings.cost())
    backend.load_plan(controller.plan())
    requests = workload.draw(rng).requests(step=1)
    outcomes = {request.key: request.outcome for request in requests}
    rollouts = backend.generate(requests)
    controller.observe(rollouts, {r.key: outcomes[r.key] for r in rollouts if r.survived})
    stays: list[Slice] = []
    requests = workload.draw(rng).requests(step=2)
    run = simulate(requests, backend.limits, backend.cost, controller.plan(), trace=stays)
    write_atomically(path, json.dumps(chrome_trace(run, stays), allow_nan=False))


def assign_slots(stays: Sequence[Slice]) -> list[int]:
    """The lowest free slot, from 1, when each stay of one engine starts; stay by stay."""
    slots = [0] * len(stays)
    leaving: list[tuple[float, int]] = []
    free: list[int] = []
    for place in sorted(range(len(stays)), key=lambda i: (stays[i].start, stays[i].end)):
        while leaving and leaving[0][0] <= stays[place].start:
            heappush(free, heappop(leaving)[1])
        slots[place] = heappop(free) if free else len(leaving) + 1
        heappush(leaving, (stays[place].end, slots[place]))
    return slots


def _place(slices: Sequence[Slice], timeline: Timeline) -> list[tuple[Slice, int]]:
    """The stays at one engine with their slots."""
    stays = [stay for stay in slices if stay.engine == timeline.engine]
    return list(zip(stays, assign_slots(stays), strict=True))


def _spacing(slots: Sequence[int], max_slices: int) -> int:
    """The least power of two k such that every k-th slot holds at most ``max_slices`` stays.

    One slot is left if none is that small.
    """
    every = 1
    while every < max(slots, default=1) and sum(_is_drawn(s, every) for s in slots) > max_slices:
        every *= 2
    return every


def _is_drawn(slot: int, every: int) -> bool:
    return (slot - 1) % every == 0


def _stay_event(stay: Slice, slot: int) -> Event:
    name = _NAMES.get(stay.reason, stay.reason)
    start = _microseconds(stay.start)
    request = stay.request
    arguments: Event = {
        "group": str(request.group),  # as text: 64 bits are more than a JavaScript number holds
        "index": request.index,
        "tokens": stay.tokens,
        "reason": stay.reason,
        "right": bool(request.outcome),
    }
    if request.score == request.score:
        arguments["score"] = request.score
    return {
        "name": name,
        "cat": "rollout",
        "ph": "X",
        "pid": _pid(stay.engine),
        "tid": slot,
        "ts": start,
        "dur": round(_microseconds(stay.end) - start, 3),
        "cname": _COLORS[name],
        "args": arguments,
    }


def _counter_events(timeline: Timeline, max_points: int) -> list[Event]:
    last = len(timeline.seconds_M) - 1
    points = range(0, last, -(-last // max_points) or 1)
    events: list[Event] = []
    for point in [*points, last]:
        shared = {
            "ph": "C",
            "pid": _pid(timeline.engine),
            "ts": _microseconds(timeline.seconds_M[point]),
        }
        running, stored = int(timeline.running_M[point]), int(timeline.kv_tokens_M[point])
        events.append({"name": "running", "args": {"sequences": running}, **shared})
        events.append({"name": "KV cache", "args": {"tokens": stored}, **shared})
    return events


def _name_event(kind: str, engine: int, slot: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": _pid(engine), "tid": slot, "args": {"name": name}}


def _pid(engine: int) -> int:
    return engine + 1  # process 0 is the idle process to Perfetto


def _microseconds(seconds: float) -> float:
    return round(float(seconds) * 1e6, 3)
