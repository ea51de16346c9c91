"""Replay real rollouts under the pruning rules: who would have been pruned, and what it had saved.

A log (:mod:`arrol.rollout_log`) says what every rollout came to without pruning, so each rule's
effect on it is exact. What a rule decides on a group never comes from that group's own labels: the
groups are dealt to :data:`FOLDS` folds, and a real controller that has seen the other folds, all
labels of them, makes the plan for each fold (cross-fitting).

Time is simulated (:mod:`arrol.sim.replay_clock`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from arrol.config import Preset, PruningConfig
from arrol.controller import PruningController
from arrol.groups import SignalLoss, summarize_groups
from arrol.keys import stable_key
from arrol.plan import PruningPlan
from arrol.records import DecisionReason, Detection, FinishReason, Rollout
from arrol.rollout_log import RolloutLog
from arrol.sim.hardware import ACCELERATORS, MODELS, Accelerator, ModelShape
from arrol.sim.parameters import PARAMETERS
from arrol.sim.replay_clock import Clock, Fate

FOLDS = 5
BISECTIONS = 6  #: for the smaller group of equal time: its share is right to 1/64
SCORED_SHARE = 0.5  #: of the rollouts must bring a score; below that scores are assumed

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]
Progress = Callable[[float], None]

_CHECKED = (
    "keep_ratio", "target_ratio", "strength", "detect_length", "max_num_seqs", "score_auc", "seed",
    "seeds",
)  # fmt: skip


@dataclass(frozen=True)
class ReplaySettings:
    """What ``arrol replay`` lets you set; ranges are those of :data:`PARAMETERS`.

    Attributes:
        model, accelerator: what generates, and on what, in the simulated engine.
        preset: the rule that is judged; the other presets stand beside it.
        keep_ratio, target_ratio, strength: κ, ρ and λ.
        detect_length: L_detect in tokens.
        score_auc: AUC of the assumed score, where the log has none.
        max_num_seqs: sequences that the engine runs at once.
        seed: seed of all randomness.
        seeds: repetitions with other folds and draws (and assumed scores).

    Raises:
        ArrolError: a value is out of range.
    """

    model: ModelShape = MODELS["Qwen3-1.7B"]
    accelerator: Accelerator = ACCELERATORS["GH200"]
    preset: Preset = Preset.BALANCED
    keep_ratio: float = 0.5
    target_ratio: float = 0.5
    strength: float = 0.5
    detect_length: int = 512
    score_auc: float = 0.78
    max_num_seqs: int = 256
    seed: int = 0
    seeds: int = 20

    def __post_init__(self) -> None:
        for parameter in PARAMETERS:
            if parameter.name in _CHECKED:
                parameter.check(getattr(self, parameter.name))

    def config(self, preset: Preset, repetition: int) -> PruningConfig:
        """The rule of a preset in one repetition: no cold start, and no guard to stop it.

        The survival bounds widen where κ lies outside their defaults.
        """
        return PruningConfig.preset(
            preset,
            keep_ratio=self.keep_ratio,
            target_ratio=self.target_ratio,
            strength=self.strength,
            detect_length=self.detect_length,
            min_survival=min(PruningConfig.min_survival, self.keep_ratio),
            max_survival=max(PruningConfig.max_survival, self.keep_ratio),
            cold_start_steps=0,
            guard_auc=0.0,
            seed=stable_key("replay", self.seed, repetition),
        )

    def changed(self, **changes: object) -> ReplaySettings:
        """These settings with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Measures:
    """What one rule did in one repetition.

    Attributes:
        keep_rate: share of all rollouts that survive.
        decided_keep_rate: share of those longer than L_detect that survive.
        balance: mean over groups of ρ̂(1 − ρ̂); a group without survivors counts 0.
        pooled_ratio: ρ̂ of all survivors.
        no_signal: share of groups without signal.
        false_prunes: share of the pruned that were right; NaN if none was pruned.
        tokens_saved: share of all generated tokens that is saved.
        generation: simulated time to generate [s].
        step: simulated time of the training step, generation included [s].
    """

    keep_rate: float
    decided_keep_rate: float
    balance: float
    pooled_ratio: float
    no_signal: float
    false_prunes: float
    tokens_saved: float
    generation: float
    step: float


@dataclass(frozen=True)
class RuleResult:
    """One rule over all repetitions.

    Attributes:
        runs: measures of each repetition.
        balances_B: ρ̂(1 − ρ̂) of each group, mean over the repetitions.
        losses: groups without signal by reason, mean over the repetitions.
    """

    runs: tuple[Measures, ...]
    balances_B: Floats
    losses: Mapping[SignalLoss, float]

    def values(self, name: str) -> Floats:
        """One measure in each repetition."""
        return np.array([getattr(run, name) for run in self.runs], dtype=np.float64)

    def mean(self, name: str) -> float:
        """One measure, mean over the repetitions that have it."""
        values = self.values(name)
        known = values[~np.isnan(values)]
        return float(known.mean()) if len(known) else math.nan


NO_PRUNING = "no pruning"
EQUAL_TOKENS = "smaller, equal tokens"
EQUAL_TIME = "smaller, equal time"

Run = tuple[Measures, Floats, Mapping[SignalLoss, int]]


def replay(
    log: RolloutLog,
    settings: ReplaySettings,
    presets: Sequence[Preset] = tuple(Preset),
    progress: Progress = lambda share: None,
) -> dict[str, RuleResult]:
    """Every rule over all repetitions, by name: no pruning, the presets, two smaller groups.

    A smaller group is the rival that needs no score: fewer rollouts from the start, as many as
    take the tokens, or the time of a training step, that ``settings.preset`` takes (which must be
    among ``presets``).
    """
    clock = Clock(log, settings.model, settings.accelerator, settings.max_num_seqs)
    everyone_N = np.ones(len(log), dtype=np.bool_)
    unpruned = measure(log, settings, Fate(everyone_N, everyone_N, log.tokens), clock)
    runs: dict[str, list[Run]] = {NO_PRUNING: [unpruned] * settings.seeds}
    for repetition in range(settings.seeds):
        rng = np.random.default_rng([settings.seed, repetition])
        for name, keeps_N in _presets_keep(log, settings, presets, repetition, rng).items():
            tokens_N = np.where(keeps_N, log.tokens, settings.detect_length)
            run = measure(log, settings, Fate(everyone_N, keeps_N, tokens_N), clock)
            runs.setdefault(name, []).append(run)
        chosen = runs[settings.preset.value][-1][0]
        smaller = _smaller(log, settings, 1.0 - chosen.tokens_saved, clock, repetition)
        runs.setdefault(EQUAL_TOKENS, []).append(smaller)
        smaller = _smaller_by_time(log, settings, chosen.step, clock, repetition)
        runs.setdefault(EQUAL_TIME, []).append(smaller)
        progress((repetition + 1) / settings.seeds)
    return {name: _result(found) for name, found in runs.items()}


def _presets_keep(
    log: RolloutLog,
    settings: ReplaySettings,
    presets: Sequence[Preset],
    repetition: int,
    rng: np.random.Generator,
) -> dict[str, Flags]:
    """Who survives under each preset."""
    scores_N = scores_of(log, settings, rng)
    folds_N = deal_folds(log.groups, FOLDS, rng)
    records = shadow_rollouts(log, scores_N, settings.detect_length)
    return {
        preset.value: cross_fitted_keeps(
            log, records, scores_N, settings.config(preset, repetition), folds_N
        )
        for preset in presets
    }


def _smaller(
    log: RolloutLog, settings: ReplaySettings, share: float, clock: Clock, repetition: int
) -> Run:
    """The same repetition draws the same luck, so that more of a group includes fewer of it."""
    rng = np.random.default_rng([settings.seed, repetition, 1])
    started_N = smaller_groups(log.groups, share, rng)
    fate = Fate(started_N, started_N, np.where(started_N, log.tokens, 0))
    return measure(log, settings, fate, clock)


def _smaller_by_time(
    log: RolloutLog, settings: ReplaySettings, seconds: float, clock: Clock, repetition: int
) -> Run:
    """The smaller group whose training step takes closest to ``seconds``, by bisection."""
    low, high, found = 0.0, 1.0, []
    for _ in range(BISECTIONS):
        share = (low + high) / 2.0
        run = _smaller(log, settings, share, clock, repetition)
        found.append(run)
        low, high = (share, high) if run[0].step < seconds else (low, share)
    return min(found, key=lambda run: abs(run[0].step - seconds))


def brings_scores(log: RolloutLog) -> bool:
    """The log's own quality scores are used: at least half of the rollouts have one."""
    return log.scored_share >= SCORED_SHARE


def scores_of(log: RolloutLog, settings: ReplaySettings, rng: np.random.Generator) -> Floats:
    """The log's quality scores, or assumed ones of the AUC that is set."""
    if brings_scores(log):
        return log.scores
    return assumed_scores(log.outcomes, settings.score_auc, rng)


def assumed_scores(outcomes_N: Flags, auc: float, rng: np.random.Generator) -> Floats:
    """s = sigmoid(d·(Y − ½) + ε), ε standard Gaussian and d = √2·Φ⁻¹(AUC): binormal scores.

    They tell right from wrong within a group as well as between groups.
    """
    distance = math.sqrt(2.0) * float(ndtri(auc))
    noise_N = rng.standard_normal(len(outcomes_N))
    return np.asarray(expit(distance * (outcomes_N - 0.5) + noise_N))


def deal_folds(groups_N: Integers, count: int, rng: np.random.Generator) -> Integers:
    """Fold of each rollout: whole groups, dealt at random to folds of equal size."""
    groups = int(groups_N.max()) + 1
    folds_B = rng.permutation(np.arange(groups) % count)
    return folds_B[groups_N]


def cross_fitted_keeps(
    log: RolloutLog,
    records: Sequence[Rollout],
    scores_N: Floats,
    config: PruningConfig,
    folds_N: Integers,
) -> Flags:
    """Who survives: each fold decided by the plan of a controller that saw the other folds.

    Rollouts that end by ``config.detect_length`` are never decided, and survive. ``records`` are
    those of :func:`shadow_rollouts` with that length.
    """
    decided_N = log.tokens > config.detect_length
    keeps_N = np.ones(len(log), dtype=np.bool_)
    for fold in np.unique(folds_N[decided_N]):
        training = _latest(np.flatnonzero(folds_N != fold), decided_N, config.buffer_rows)
        plan = _plan([records[row] for row in training], log.outcomes[training], config)
        rows = np.flatnonzero(decided_N & (folds_N == fold))
        keeps_N[rows] = plan.decide(
            scores_N[rows],
            rows.astype(np.uint64),
            log.groups[rows].astype(np.uint64),
            log.indices[rows],
            log.sizes[log.groups[rows]],
        ).keeps_N
    return keeps_N


def _latest(rows_M: Integers, decided_N: Flags, capacity: int) -> Integers:
    """The last rows, as many as hold ``capacity`` decided ones: more would leave the buffer."""
    later = np.cumsum(decided_N[rows_M][::-1])[::-1]
    return rows_M[later <= capacity]


def _plan(records: list[Rollout], outcomes_M: Flags, config: PruningConfig) -> PruningPlan:
    controller = PruningController(config)
    labels = zip(records, outcomes_M.tolist(), strict=True)
    controller.observe(records, {record.key: float(right) for record, right in labels})
    return controller.plan()


def shadow_rollouts(log: RolloutLog, scores_N: Floats, detect_length: int) -> list[Rollout]:
    """The log as a backend hands it back that scores at this length but prunes nothing."""
    sizes_N = log.sizes[log.groups]
    decided_N = log.tokens > detect_length
    columns = (log.groups, log.indices, sizes_N, log.tokens, scores_N, decided_N)
    records = []
    for key, (group, index, size, tokens, score, decided) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        detection = None
        if decided:
            detection = Detection(
                key, group, index, size, index, score, math.nan, 1.0, True,
                DecisionReason.COLD_START, 1, enforced=False,
            )  # fmt: skip
        records.append(Rollout(key, group, index, tokens, FinishReason.STOP, detection))
    return records


def smaller_groups(groups_N: Integers, share: float, rng: np.random.Generator) -> Flags:
    """Who is left when each group of G starts with ``share``·G rollouts, at random.

    Counts are rounded up or down so that they add up to that share of all (one systematic draw).
    """
    sizes_B = np.bincount(groups_N)
    ends_B = np.floor(share * np.cumsum(sizes_B) + rng.random())
    counts_B = np.diff(ends_B, prepend=0.0)
    order_N = np.lexsort((rng.random(len(groups_N)), groups_N))
    starts_B = np.cumsum(sizes_B) - sizes_B
    places_N = np.empty(len(groups_N), dtype=np.int64)
    places_N[order_N] = np.arange(len(groups_N)) - starts_B[groups_N[order_N]]
    started_N: Flags = places_N < counts_B[groups_N]
    return started_N


def measure(log: RolloutLog, settings: ReplaySettings, fate: Fate, clock: Clock) -> Run:
    """Measures, ρ̂(1 − ρ̂) of each group and groups without signal by reason."""
    groups = summarize_groups(log.groups, log.outcomes, fate.survives_N)
    ratio_B = np.nan_to_num(groups.positive_ratio)
    balances_B = ratio_B * (1.0 - ratio_B)
    decided_N = log.tokens > settings.detect_length
    pruned_N = fate.started_N & ~fate.survives_N
    generation, step = clock.seconds(fate)
    measures = Measures(
        keep_rate=float(fate.survives_N.mean()),
        decided_keep_rate=_mean(fate.survives_N[decided_N]),
        balance=float(balances_B.mean()),
        pooled_ratio=_mean(log.outcomes[fate.survives_N]),
        no_signal=1.0 - float(groups.has_signal.mean()),
        false_prunes=_mean(log.outcomes[pruned_N]),
        tokens_saved=1.0 - float(fate.tokens_N.sum() / log.tokens.sum()),
        generation=generation,
        step=step,
    )
    return measures, balances_B, groups.counts


def _mean(flags: Flags) -> float:
    return float(flags.mean()) if len(flags) else math.nan


def _result(runs: Sequence[Run]) -> RuleResult:
    return RuleResult(
        runs=tuple(measures for measures, _, _ in runs),
        balances_B=np.mean([balances_B for _, balances_B, _ in runs], axis=0),
        losses={
            loss: float(np.mean([counts[loss] for _, _, counts in runs])) for loss in SignalLoss
        },
    )
