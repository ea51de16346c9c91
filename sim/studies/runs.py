"""What the timing studies share: batches, the plan of a settled loop, one step played out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from arrol.bounds import speedup_bounds
from arrol.controller import PruningController
from arrol.plan import PruningPlan
from arrol.records import FinishReason, Rollout
from arrol.sim.cost import StepTime
from arrol.sim.engine import EngineRun, SimulatedRequest, Slice, simulate
from arrol.sim.intervals import mean_and_half_width
from arrol.sim.phases import LOG_PROB, UPDATE, Phase, PhaseTimes
from arrol.sim.settings import SimSettings
from arrol.sim.workload import WorkloadBatch

Progress = Callable[[float], None]
Floats = NDArray[np.float64]

LOOP_ROLLOUTS = 2_048  #: of one step of the loop, and rows of its controller's buffers
LOOP_STEPS = 5  #: the first is the cold start, the rest turn the buffer over about twice
LOOP_TAIL = 2  #: last steps, over which the keep rate is averaged
LARGEST_BATCH = 8_192  #: rollouts of a batch that is simulated many times
TRAINING_MFU = 0.45  #: share of the data sheet's arithmetic that a forward pass reaches

ROUNDING = 1e-9  #: relative; a remainder below it is none

# Streams of random numbers.
_BATCH, _LOOP = 0, 1


@dataclass(frozen=True, eq=False)
class Batch:
    """One drawn batch: as arrays, and as requests in the same order."""

    rows: WorkloadBatch
    requests: list[SimulatedRequest]

    @property
    def tokens(self) -> int:
        """Tokens that it generates if nothing is pruned."""
        return int(self.rows.lengths_N.sum())


def batches(settings: SimSettings, count: int | None = None) -> Iterator[Batch]:
    """The batches of the first ``count`` seeds, by default of all of them.

    Batch k comes from the same Gaussians whatever lengths and scores are set to, so settings are
    compared on common random numbers.
    """
    workload = settings.workload()
    for seed in range(settings.seeds if count is None else count):
        rows = workload.draw(np.random.default_rng([settings.seed, _BATCH, seed]))
        yield Batch(rows, rows.requests(seed))


def capped(settings: SimSettings) -> SimSettings:
    """The settings, with no more prompts than a study of many runs can take."""
    most = max(1, LARGEST_BATCH // settings.group_size)
    return settings.replace(prompts=min(settings.prompts, most))


def capped_text(settings: SimSettings) -> str:
    """What to say where :func:`capped` took prompts away; else nothing."""
    prompts = capped(settings).prompts
    if prompts == settings.prompts:
        return ""
    return (
        f"\n\nSimulated with {prompts:,} prompts instead of {settings.prompts:,}, to save time. "
        "The last rollouts to end count for a little more in the smaller batch."
    )


def generate(
    settings: SimSettings,
    requests: Sequence[SimulatedRequest],
    plan: PruningPlan | None = None,
    trace: list[Slice] | None = None,
) -> EngineRun:
    """The generation phase of one step at one engine."""
    return simulate(requests, settings.limits(), settings.cost(), plan, trace=trace)


def kept_share(run: EngineRun) -> float:
    """Share of the rollouts that survived."""
    return sum(rollout.survived for rollout in run.rollouts) / len(run.rollouts)


def survivor_tokens(run: EngineRun, prompt_tokens: int = 0) -> int:
    """Tokens that the survivors hold, with ``prompt_tokens`` of prompt each."""
    return sum(rollout.tokens + prompt_tokens for rollout in run.rollouts if rollout.survived)


def phase_times(settings: SimSettings, tokens: float) -> PhaseTimes:
    """Phases after the generation, for a full batch of so many tokens, prompts included.

    A forward pass takes 2 operations a weight and token at ``TRAINING_MFU`` of the accelerator's
    arithmetic: Table 5's 15.76 s for 2.04 M tokens of Qwen3-1.7B on a GH200. The update takes as
    much four times (:mod:`arrol.sim.phases`); what log-prob takes beside it is software and stays.
    """
    rate = TRAINING_MFU * settings.accelerator.flops
    forward = 2.0 * settings.model.parameters * tokens / rate
    update = forward * UPDATE.variable / LOG_PROB.variable
    return PhaseTimes(Phase(LOG_PROB.fixed, forward), Phase(UPDATE.fixed, update))


def kv_reads(trace: Sequence[Slice]) -> int:
    """KV tokens that the decoders of a run read: Σ (prompt + g) over all their steps.

    A stay that begins with g₀ tokens and ends with g₁ prefills one step, which samples token
    g₀ + 1, and decodes from there on: it reads prompt + g for g = g₀ + 1 … g₁ − 1.
    """
    held: dict[int, int] = {}
    reads = 0
    for stay in trace:
        key, prompt = stay.request.key, stay.request.prompt_tokens
        first, last = held.get(key, 0) + 1, stay.tokens - 1
        if last >= first:
            reads += (last - first + 1) * (2 * prompt + first + last) // 2
        held[key] = stay.tokens
    return reads


@dataclass(frozen=True)
class Work:
    """What an engine did, in the four kinds that its time is a sum of (see :class:`StepTime`).

    Attributes:
        steps: each costs t₀ + o.
        decode_steps: of all sequences, each costs t_s.
        matrix_seconds: Σ (m^r + (c·n)^r)^(1/r) over the steps, for the tokens n of each. The
            knee makes it neither steps nor tokens, so it is a kind of its own.
        kv_reads: tokens, each costs kv_read.
    """

    steps: int
    decode_steps: int
    matrix_seconds: float
    kv_reads: int

    @classmethod
    def of(cls, run: EngineRun, trace: Sequence[Slice], cost: StepTime) -> Work:
        """The work of a run of one engine."""
        reads = kv_reads(trace)
        rest = (
            (cost.fixed + cost.offset) * run.steps
            + cost.per_sequence * run.decode_tokens
            + cost.kv_read * reads
        )
        matrix_seconds = run.seconds - rest
        if matrix_seconds < ROUNDING * run.seconds:
            matrix_seconds = 0.0
        return cls(run.steps, run.decode_tokens, matrix_seconds, reads)

    def ratios_to(self, other: Work) -> list[float]:
        """How many times the ``other``'s work this is; kinds that neither has are left out."""
        pairs = (
            (self.steps, other.steps),
            (self.decode_steps, other.decode_steps),
            (self.matrix_seconds, other.matrix_seconds),
            (self.kv_reads, other.kv_reads),
        )
        return [mine / its if its else math.inf for mine, its in pairs if mine or its]


@dataclass(frozen=True, eq=False)
class Played:
    """A run and the work in it."""

    run: EngineRun
    work: Work

    @property
    def seconds(self) -> float:
        """Of the generation."""
        return self.run.seconds


def play(settings: SimSettings, batch: Batch, plan: PruningPlan | None = None) -> Played:
    """The generation phase of one step at one engine, with its work counted."""
    trace: list[Slice] = []
    run = generate(settings, batch.requests, plan, trace)
    return Played(run, Work.of(run, trace, settings.cost()))


def bounds(off: Played, on: Played) -> tuple[float, float]:
    """Least and greatest ratio of work: no cost of any kind of work lets the speed-up leave them.

    Time is a sum of cost × work with costs ≥ 0, so time off / time on is a mediant of the ratios.
    """
    work_off, work_on = off.work.ratios_to(on.work), [1.0]
    return speedup_bounds(work_off, work_on * len(work_off))


@dataclass(frozen=True)
class Settled:
    """A controller's loop after its cold start.

    Attributes:
        plan: its next plan.
        keep_rate: share of rollouts kept lately. It may differ from κ: Eq. 2 takes E[p] over the
            labelled buffer, which holds survivors, whose posteriors are lower than the others'.
    """

    plan: PruningPlan
    keep_rate: float


def settle(settings: SimSettings, repetition: int = 0) -> Settled:
    """Run the controller in its own loop until its buffers hold what it selected itself.

    The loop needs no engine: rollouts are decided group by group, on draws of their own. Its
    buffers are smaller than a training's, in proportion to its length.
    """
    config = replace(settings.config(), cold_start_steps=1, buffer_rows=LOOP_ROLLOUTS)
    controller = PruningController(config)
    prompts = math.ceil(LOOP_ROLLOUTS / settings.group_size)
    workload = replace(settings.workload(), prompts=prompts)
    rng = np.random.default_rng([settings.seed, _LOOP, repetition])
    rates = []
    for _ in range(LOOP_STEPS):
        rollouts, outcomes = _decided(controller.plan(), workload.draw(rng), rng)
        rates.append(controller.observe(rollouts, outcomes)["keep_rate"])
    return Settled(controller.plan(), float(np.mean(rates[-LOOP_TAIL:])))


def _decided(
    plan: PruningPlan, rows: WorkloadBatch, rng: np.random.Generator
) -> tuple[list[Rollout], dict[int, float]]:
    """All rollouts of a batch, decided where they are long enough, and the survivors' outcomes."""
    lengths_N, groups = rows.lengths_N, len(rows.pass_rates_B)
    keys_N = rng.integers(0, 2**64, len(lengths_N), dtype=np.uint64)
    groups_N = rng.integers(0, 2**64, groups, dtype=np.uint64)[rows.groups_N]
    late_N = lengths_N > plan.detect_length
    decisions = plan.decide(
        rows.scores_N[late_N],
        keys_N[late_N],
        groups_N[late_N],
        rows.indices_N[late_N],
        rows.group_size,
    )
    detections = {detection.key: detection for detection in decisions.detections()}
    rollouts, outcomes = [], {}
    columns = (keys_N, groups_N, rows.indices_N, lengths_N, rows.outcomes_N)
    for key, group, index, length, outcome in zip(*(c.tolist() for c in columns), strict=True):
        detection = detections.get(key)
        pruned = detection is not None and detection.pruned
        reason = FinishReason.PRUNED if pruned else FinishReason.STOP
        tokens = plan.detect_length if pruned else length
        rollouts.append(Rollout(key, group, index, tokens, reason, detection))
        if not pruned:
            outcomes[key] = float(outcome)
    return rollouts, outcomes


def seeds_text(seeds: int) -> str:
    """How many repetitions a table's means are over; for its note."""
    return f"n = {seeds:,} seeds"


def interval_text(values_S: Sequence[float], spec: str = ".2f") -> str:
    """“mean ± half width” of the 95% interval over S repetitions."""
    mean, half = mean_and_half_width(values_S)
    return f"{mean:{spec}}" if math.isnan(half) else f"{mean:{spec}} ± {half:{spec}}"
