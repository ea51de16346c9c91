"""How fast the event-skipping engine is.

    python bench/engine_speed.py            # all three claims, about a minute and a half
    python bench/engine_speed.py fleet      # one of: batch, slow, fleet

* batch: 8,192 rollouts (512 prompts × 16, mean 2,000 tokens) with a balanced plan in ≤ 0.5 s.
* slow: the same batch, unpruned, at least 100 times faster than a SimPy model with one process
  for each request and one event for each token, which is run once, in full, and must agree. The
  ratio with the plan is printed too: pruning saves the slow model tokens, and the 8,000 decisions,
  which both take alike, are a third of the fast one's time.
* fleet: 1,000 engines with 1,000 rollouts each in ≤ 60 s and ≤ 2 GiB.

Prints figures and exits with 1 if a claim fails. CPU seconds stand beside wall seconds, as the
machine may be shared.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from bisect import insort
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np
import simpy

from arrol.config import PruningConfig
from arrol.controller import PruningController
from arrol.decider import Decider
from arrol.plan import PruningPlan
from arrol.sim.cost import StepTime, kv_capacity
from arrol.sim.engine import EngineLimits, EngineRun, SimulatedRequest, simulate
from arrol.sim.hardware import find_accelerator, find_model
from arrol.sim.workload import Workload

MODEL, ACCELERATOR = find_model("Qwen3-1.7B"), find_accelerator("GH200")
COST = StepTime.of(MODEL, ACCELERATOR)
LIMITS = EngineLimits(kv_tokens=kv_capacity(MODEL, ACCELERATOR))
WORKLOAD = Workload(prompts=512, group_size=16, mean_length=2000.0)
FLEET = replace(WORKLOAD, prompts=125, group_size=8)  # one engine's 1,000 rollouts
REPEATS = 7


def warm_plan() -> PruningPlan:
    """A balanced plan that has learned from one unpruned batch."""
    controller = PruningController(PruningConfig.balanced(cold_start_steps=1))
    requests = WORKLOAD.draw(np.random.default_rng(1)).requests(step=1)
    run = simulate(requests, LIMITS, COST, controller.plan())
    controller.observe(run.rollouts, {request.key: request.outcome for request in requests})
    return controller.plan()


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds of one run."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def median_seconds(run: Callable[[], object]) -> tuple[float, float]:
    """Medians over ``REPEATS`` runs."""
    walls, cpus = zip(*(timed(run) for _ in range(REPEATS)), strict=True)
    return statistics.median(walls), statistics.median(cpus)


def report(name: str, holds: bool, text: str) -> bool:
    print(f"{'ok  ' if holds else 'FAIL'} {name}: {text}", flush=True)
    return holds


# ---------------------------------------------------------------- the model to compare with


class TokenByToken:
    """One SimPy process for each request, one event for each of its tokens.

    Right where nothing is preempted and every prefill fits into one step, as in this batch. To be
    a fair opponent it counts KV tokens as they come, not anew in each step.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        requests: Sequence[SimulatedRequest],
        decider: Decider | None,
        detect_length: int,
    ) -> None:
        self.environment = environment
        self.waiting = list(reversed(requests))
        self.decider = decider
        self.detect_length = detect_length
        self.members: dict[int, int] = {}
        self.joining: list[tuple[tuple[int, int], RequestProcess]] = []
        self.running: list[tuple[tuple[int, int], RequestProcess]] = []
        self.read = 0
        self.tokens = 0

    def run(self) -> Generator[simpy.Event, None, None]:
        while self.waiting or self.running:
            prefill_tokens = self._admit()
            decoders = len(self.running)
            yield self.environment.timeout(COST.step(decoders, self.read, prefill_tokens))
            for entry in self.joining:
                insort(self.running, entry)
            self.joining.clear()
            for _, process in self.running:
                process.token.succeed()
            yield self.environment.timeout(0)  # every process has seen its token
            if any(process.done for _, process in self.running):
                self.running = [entry for entry in self.running if not entry[1].done]

    def _admit(self) -> int:
        prefill_tokens = 0
        while self.waiting and len(self.running) + len(self.joining) < LIMITS.max_num_seqs:
            request = self.waiting.pop()
            members = self.members.get(request.group, 0)
            self.members[request.group] = members + 1
            prefill_tokens += 1 if members else request.prompt_tokens
            process = RequestProcess(self, request)
            self.joining.append(((request.group, request.index), process))
        if prefill_tokens + len(self.running) > LIMITS.max_batched_tokens:
            raise RuntimeError("a prefill needs several steps: this model can't follow")
        return prefill_tokens


class RequestProcess:
    """One request: it waits for its tokens, is decided, and leaves."""

    def __init__(self, engine: TokenByToken, request: SimulatedRequest) -> None:
        self.engine = engine
        self.request = request
        self.token = engine.environment.event()
        self.done = False
        engine.environment.process(self.run())

    def run(self) -> Generator[simpy.Event, None, None]:
        engine, request = self.engine, self.request
        environment, detect_length = engine.environment, engine.detect_length
        length = request.length
        generated = 0
        while True:
            yield self.token
            self.token = environment.event()
            generated += 1
            engine.tokens += 1
            engine.read += request.prompt_tokens + 1 if generated == 1 else 1
            if (
                engine.decider is not None
                and generated == detect_length + 1
                and engine.decider.decide_one(request, request.score).pruned
            ):
                break
            if generated == length:
                break
        engine.read -= request.prompt_tokens + generated
        engine.members[request.group] -= 1
        self.done = True


def run_slow(requests: Sequence[SimulatedRequest], plan: PruningPlan | None) -> TokenByToken:
    environment = simpy.Environment()
    decider = None if plan is None else plan.decider()
    detect_length = 0 if plan is None else plan.detect_length
    engine = TokenByToken(environment, requests, decider, detect_length)
    environment.process(engine.run())
    environment.run()
    return engine


# ---------------------------------------------------------------- the claims


def batch() -> bool:
    plan, requests = warm_plan(), WORKLOAD.draw(np.random.default_rng(2)).requests(step=2)
    wall, cpu = median_seconds(lambda: simulate(requests, LIMITS, COST, plan))
    run = simulate(requests, LIMITS, COST, plan)
    jumps = len(run.timelines[0].seconds_M) - 1
    text = (
        f"{len(requests):,} rollouts, {run.sampled_tokens:,} tokens, {run.steps:,} steps in "
        f"{jumps:,} jumps: {wall:.3f} s wall, {cpu:.3f} s CPU (medians of {REPEATS}; ≤ 0.5 s)"
    )
    return report("batch", wall <= 0.5, text)


def slow() -> bool:
    plan, requests = warm_plan(), WORKLOAD.draw(np.random.default_rng(2)).requests(step=2)
    pruned_agrees, _ = _race("agreement, pruned", requests, plan)
    agrees, ratio = _race("agreement, unpruned", requests, None)
    return report("slow", pruned_agrees and agrees and ratio >= 100, f"{ratio:,.0f}× (≥ 100×)")


def _race(
    name: str, requests: Sequence[SimulatedRequest], plan: PruningPlan | None
) -> tuple[bool, float]:
    """Whether both models agree, and the ratio of their CPU seconds."""
    wall, cpu = median_seconds(lambda: simulate(requests, LIMITS, COST, plan))
    run = simulate(requests, LIMITS, COST, plan)
    opponent: list[TokenByToken] = []
    slow_wall, slow_cpu = timed(lambda: opponent.append(run_slow(requests, plan)))
    difference = opponent[0].environment.now / run.seconds - 1.0
    agrees = abs(difference) <= 1e-9 and opponent[0].tokens == run.sampled_tokens
    text = (
        f"{slow_cpu:.1f} s token by token, {cpu:.4f} s with jumps: {slow_cpu / cpu:,.0f}× "
        f"(CPU; wall {slow_wall / wall:,.0f}×); makespan {run.seconds:.3f} s, relative difference "
        f"{difference:.0e}; {opponent[0].tokens:,} and {run.sampled_tokens:,} tokens"
    )
    report(name, agrees, text)
    return agrees, slow_cpu / cpu


def fleet() -> bool:
    plan = warm_plan()
    runs: list[EngineRun] = []
    wall, cpu = timed(
        lambda: runs.append(simulate(_fleet_requests(), LIMITS, COST, plan, engines=1000))
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    text = (
        f"{len(runs[0].engine_seconds):,} engines, {len(runs[0].rollouts):,} rollouts, "
        f"{runs[0].sampled_tokens:,} tokens, workload included: {wall:.1f} s wall, {cpu:.1f} s CPU "
        f"(≤ 60 s), peak {peak:.2f} GiB (≤ 2 GiB)"
    )
    return report("fleet", wall <= 60.0 and peak <= 2.0, text)


def _fleet_requests() -> Iterator[SimulatedRequest]:
    """A million rollouts, drawn a thousand at a time."""
    rng = np.random.default_rng(3)
    for step in range(1000):
        yield from FLEET.draw(rng).requests(step)


CLAIMS = {"batch": batch, "slow": slow, "fleet": fleet}

if __name__ == "__main__":
    chosen = sys.argv[1:] or list(CLAIMS)
    sys.exit(0 if min([CLAIMS[name]() for name in chosen]) else 1)
