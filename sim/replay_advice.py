"""What a log says about pruning: scans over L_detect, κ and λ, and an honest recommendation.

Pruning is advised only where nothing speaks against it (:func:`objections`). The rivals are pruning
at random and simply a smaller group, which needs no head and no score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from arrol.config import Preset, PruningConfig
from arrol.rollout_log import RolloutLog
from arrol.sim.intervals import mean_and_half_width
from arrol.sim.replay import (
    EQUAL_TIME,
    EQUAL_TOKENS,
    NO_PRUNING,
    Progress,
    ReplaySettings,
    RuleResult,
    brings_scores,
    replay,
    scores_of,
)
from arrol.sim.replay_signal import Estimate, Signal, measure_signal

GRID = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288)
KEEP_RATIOS = (0.25, 0.375, 0.5, 0.625, 0.75)
STRENGTHS = (0.0, 0.25, 0.5, 1.0)
SCAN_SEEDS = 5  #: repetitions of a scan's points, at most
WORTHWHILE = 0.10  #: share of the tokens that pruning must save to be worth its trouble
FEW_GROUPS = 20  #: with fewer no figure means much
FEWEST_KEPT = 2  #: rollouts that κ must leave of a typical group

Floats = NDArray[np.float64]
Value = TypeVar("Value", int, float)
Results = dict[str, RuleResult]


@dataclass(frozen=True)
class Trial:
    """A log replayed under one setting.

    Attributes:
        settings: what was tried.
        results: every rule that ran, by name.
        signal: of the score on the rollouts that are decided.
    """

    settings: ReplaySettings
    results: Results
    signal: Signal

    @property
    def chosen(self) -> RuleResult:
        """The result of the preset that is judged."""
        return self.results[self.settings.preset.value]

    def gains_B(self, rival: str) -> Floats:
        """Balance of each group under the chosen preset, less that under a rival."""
        return self.chosen.balances_B - self.results[rival].balances_B

    def gain(self, rival: str) -> Estimate:
        """The mean of :meth:`gains_B`, with its 95% interval over groups (Student's t)."""
        return _interval(self.gains_B(rival))


@dataclass(frozen=True)
class Advice:
    """The recommendation.

    Attributes:
        prune: something speaks for pruning and nothing against it.
        settings: with which settings; where ``prune`` is False, the best that were found.
        headline: the advice in one sentence.
        reasons: what it rests on, one sentence or two each.
        caveats: what the figures can't know.
    """

    prune: bool
    settings: ReplaySettings
    headline: str
    reasons: tuple[str, ...]
    caveats: tuple[str, ...]


@dataclass(frozen=True)
class Analysis:
    """Everything that ``arrol replay`` reports.

    Attributes:
        log: the rollouts.
        given: the settings that the user gave.
        whole_signal: the score's on all rollouts, decided or not.
        detect_scan, keep_scan, strength_scan: trials of one setting each, in order of its value;
            the second and third are at the L_detect recommended, the third at the κ too.
        best: the recommended settings (``given`` itself, if it is those).
        advice: the recommendation.
    """

    log: RolloutLog
    given: Trial
    whole_signal: Signal
    detect_scan: tuple[Trial, ...]
    keep_scan: tuple[Trial, ...]
    strength_scan: tuple[Trial, ...]
    best: Trial
    advice: Advice


def analyse(log: RolloutLog, settings: ReplaySettings, progress: Progress) -> Analysis:
    """Replay a log under the given settings, scan the settings, and advise."""
    stages = _Stages(progress)
    presets = tuple(Preset)
    given = try_settings(log, settings, presets, stages.next(0.35))
    scan = settings.changed(seeds=min(settings.seeds, SCAN_SEEDS))
    detect_scan = _scan(log, scan, "detect_length", detect_lengths(log, scan), stages.next(0.2))
    scan = scan.changed(detect_length=choose_detect_length(detect_scan, settings))
    keep_scan = _scan(
        log, scan, "keep_ratio", (*KEEP_RATIOS, settings.keep_ratio), stages.next(0.1)
    )
    scan = scan.changed(keep_ratio=choose_keep_ratio(keep_scan, settings, log))
    strengths = (settings.strength,) if settings.preset is Preset.RANDOM else STRENGTHS
    strength_scan = _scan(log, scan, "strength", (*strengths, settings.strength), stages.next(0.1))
    strength = choose_strength(strength_scan, settings)
    chosen = scan.changed(strength=strength, seeds=settings.seeds)
    keep_given = chosen == settings or len(log.sizes) < FEW_GROUPS
    best = given if keep_given else try_settings(log, chosen, presets, stages.next(0.25))
    return Analysis(
        log=log,
        given=given,
        whole_signal=_signal(log, settings, detect_length=0),
        detect_scan=detect_scan,
        keep_scan=keep_scan,
        strength_scan=strength_scan,
        best=best,
        advice=advise(log, given, best),
    )


def advise(log: RolloutLog, given: Trial, best: Trial) -> Advice:
    """The recommendation, from the trial of the given settings and that of the best found."""
    against_given = objections(log, given)
    against_best = against_given if best is given else objections(log, best)
    as_given = () if best is given else tuple(f"As given: {text}" for text in against_given)
    if not against_best:
        kept = "the settings given" if best is given else "other settings than given"
        headline = f"Prune, with {kept}: {flags(best.settings)}."
        reasons = (*_merits(best), *as_given)
    elif best is given:
        headline = f"Don’t prune these rollouts (settings: {flags(best.settings)})."
        reasons = against_best
    else:
        headline = (
            "Don’t prune these rollouts: neither as given nor with the best settings found, "
            f"{flags(best.settings)}."
        )
        reasons = (*as_given, *(f"Best found: {text}" for text in against_best))
    return Advice(not against_best, best.settings, headline, reasons, _caveats(log, given, best))


def objections(log: RolloutLog, trial: Trial) -> tuple[str, ...]:
    """What speaks against pruning with these settings, one text each; empty if nothing does."""
    groups = len(log.sizes)
    if groups < FEW_GROUPS:
        plural = "groups are" if groups > 1 else "group is"
        return (f"{groups} {plural} too few to tell; {FEW_GROUPS} or more are wanted.",)
    if log.outcomes.all() or not log.outcomes.any():
        kind = "right" if log.outcomes.all() else "wrong"
        return (f"Every rollout is {kind}: no group carries a signal, pruned or not.",)
    if log.tokens.max() <= trial.settings.detect_length:
        return tuple(_data_objections(log, trial))
    found = [*_data_objections(log, trial), *_signal_objections(trial)]
    return (*found, *_rival_objections(trial))


def detect_lengths(log: RolloutLog, settings: ReplaySettings) -> tuple[int, ...]:
    """L_detect to try: from a tenth of the mean length to the 95th percentile, and the given."""
    low, high = log.tokens.mean() / 10.0, np.quantile(log.tokens, 0.95)
    inside = {length for length in GRID if low <= length < high}
    return tuple(sorted(inside | {settings.detect_length}))


def choose_detect_length(trials: Sequence[Trial], settings: ReplaySettings) -> int:
    """Of those that save half of what κ can, (1 − κ)/2 of the tokens, the one that gains most.

    The one given stays, or where it saves too little the largest takes its place, as later scores
    know more, unless another gains clearly more on a smaller group of equal time. Where none
    saves enough it is the one that saves most.
    """
    saved = {t.settings.detect_length: t.chosen.mean("tokens_saved") for t in trials}
    enough = [length for length, share in saved.items() if share >= (1 - settings.keep_ratio) / 2]
    if not enough:
        return max(saved, key=lambda length: saved[length])
    gains_B = {t.settings.detect_length: t.gains_B(EQUAL_TIME) for t in trials}
    default = settings.detect_length if settings.detect_length in enough else max(enough)
    return _clearly_best({length: gains_B[length] for length in enough}, default)


def choose_keep_ratio(trials: Sequence[Trial], settings: ReplaySettings, log: RolloutLog) -> float:
    """Of the κ that leave two of a typical group, the one that gains most.

    The one given stays unless another gains clearly more on a smaller group of equal time.
    """
    size, given = float(np.median(log.sizes)), settings.keep_ratio
    gains_B = {
        t.settings.keep_ratio: t.gains_B(EQUAL_TIME)
        for t in trials
        if t.settings.keep_ratio * size >= FEWEST_KEPT
    }
    if not gains_B:
        return given
    return _clearly_best(gains_B, given if given in gains_B else max(gains_B))


def choose_strength(trials: Sequence[Trial], settings: ReplaySettings) -> float:
    """The λ with the best balance; the given one stays unless the best is clearly better."""
    balances_B = {t.settings.strength: t.chosen.balances_B for t in trials}
    return _clearly_best(balances_B, settings.strength)


def _clearly_best(values_B: dict[Value, Floats], default: Value) -> Value:
    """The setting of the highest mean, if it is above the default's by the groups' paired
    differences (95%); else the default."""
    best = max(values_B, key=lambda setting: float(values_B[setting].mean()))
    return best if _interval(values_B[best] - values_B[default]).low > 0 else default


def flags(settings: ReplaySettings) -> str:
    """The recommended settings as a command line has them."""
    return (
        f"--preset {settings.preset.value} --detect-length {settings.detect_length} "
        f"--keep-ratio {settings.keep_ratio:g} --strength {settings.strength:g}"
    )


def _data_objections(log: RolloutLog, trial: Trial) -> list[str]:
    settings, found = trial.settings, []
    size = float(np.median(log.sizes))
    if size * settings.keep_ratio < FEWEST_KEPT:
        found.append(
            f"The groups are too small: κ = {settings.keep_ratio:g} leaves "
            f"{size * settings.keep_ratio:.3g} of a typical group of {size:g}, and a group needs "
            f"{FEWEST_KEPT} survivors to carry any signal."
        )
    saved = trial.chosen.mean("tokens_saved")
    if saved < WORTHWHILE:
        late = float((log.tokens > settings.detect_length).mean())
        found.append(
            f"Too little is saved: {saved:.1%} of the tokens. Only what comes after L_detect = "
            f"{settings.detect_length} tokens can be; {late:.0%} of the rollouts get that far, and "
            f"the median rollout has {np.median(log.tokens):.0f} tokens."
        )
    return found


def _signal_objections(trial: Trial) -> list[str]:
    guard, signal = PruningConfig().guard_auc, trial.signal.overall
    if trial.settings.preset is Preset.RANDOM or signal.low > guard:
        return []
    if math.isnan(signal.value):
        return [
            "The score can’t be judged: of the rollouts longer than L_detect all are right or all "
            "wrong."
        ]
    return [
        f"The score is too weak, or there are too few rollouts to tell: its AUC on the decided "
        f"ones is {signal}, and that interval is not above the guard’s {guard:g}."
    ]


def _rival_objections(trial: Trial) -> list[str]:
    found = []
    if trial.settings.preset is not Preset.RANDOM:
        gain = trial.gain(Preset.RANDOM.value)
        if not gain.low > 0:
            found.append(
                "It is not shown to balance better than pruning at random: E[ρ̂(1−ρ̂)] differs by "
                f"{_signed(gain)}."
            )
    tokens, time = trial.gain(EQUAL_TOKENS), trial.gain(EQUAL_TIME)
    if not tokens.low > 0 and not time.low > 0:
        found.append(
            "It is not shown to balance better than a smaller group from the start, which needs no "
            f"head: E[ρ̂(1−ρ̂)] differs by {_signed(tokens)} at equal tokens and by {_signed(time)} "
            "at equal time of the training step."
        )
    return found


def _merits(trial: Trial) -> tuple[str, ...]:
    chosen, results = trial.chosen, trial.results
    unpruned = results[NO_PRUNING]
    speedup = unpruned.mean("step") / chosen.mean("step")
    tokens, time = trial.gain(EQUAL_TOKENS), trial.gain(EQUAL_TIME)
    merits = [
        f"It saves {chosen.mean('tokens_saved'):.0%} of the tokens and makes the simulated "
        f"training step {speedup:.2f}× faster.",
        f"E[ρ̂(1−ρ̂)] goes from {unpruned.mean('balance'):.3f} to {chosen.mean('balance'):.3f}. A "
        f"smaller group differs from that by {_signed(tokens, -1)} at equal tokens and by "
        f"{_signed(time, -1)} at equal time of the training step.",
    ]
    if trial.settings.preset is not Preset.RANDOM:
        gain = trial.gain(Preset.RANDOM.value)
        merits.append(
            f"Pruning at random would give {results[Preset.RANDOM.value].mean('balance'):.3f}: the "
            f"score earns {_signed(gain)}. Its AUC on the decided rollouts is "
            f"{trial.signal.overall}, within groups {trial.signal.within}."
        )
    return tuple(merits)


def _caveats(log: RolloutLog, given: Trial, best: Trial) -> tuple[str, ...]:
    if brings_scores(log):
        score = (
            "The log’s score counts as if it were there at L_detect. If it was made from whole "
            "rollouts, as an outcome reward model’s is, an early one knows less, and all gains by "
            "the score are too good; the more so, the earlier L_detect."
        )
    else:
        score = (
            f"The log has no quality score. One with an AUC of {given.settings.score_auc:g} is "
            "assumed; what the figures say of balance is true of that score only."
        )
    length = (
        "Rollouts of other lengths than the log’s change the saving; so does training on survivors."
    )
    if best is not given:
        length += " The best settings were picked on the same groups that they are judged by."
    return (score, length)


def try_settings(
    log: RolloutLog, settings: ReplaySettings, presets: Sequence[Preset], progress: Progress
) -> Trial:
    """Replay a log under one setting; ``presets`` must hold the setting's own."""
    results = replay(log, settings, presets, progress)
    return Trial(settings, results, _signal(log, settings, settings.detect_length))


def _scan(
    log: RolloutLog,
    settings: ReplaySettings,
    name: str,
    values: Sequence[float],
    progress: Progress,
) -> tuple[Trial, ...]:
    trials = []
    for place, value in enumerate(sorted(set(values)), 1):
        changed = settings.changed(**{name: value})
        trials.append(try_settings(log, changed, (settings.preset,), lambda share: None))
        progress(place / len(set(values)))
    return tuple(trials)


def _signal(log: RolloutLog, settings: ReplaySettings, detect_length: int) -> Signal:
    scores_N = scores_of(log, settings, np.random.default_rng([settings.seed, 0]))
    rows = log.tokens > detect_length
    rng = np.random.default_rng([settings.seed, 1])
    return measure_signal(scores_N[rows], log.outcomes[rows], log.groups[rows], rng)


def _interval(gains_B: Floats) -> Estimate:
    mean, half = mean_and_half_width(gains_B.tolist())
    return Estimate(mean, mean - half, mean + half)


def _signed(gain: Estimate, sign: int = 1) -> str:
    """A difference with its interval; ``sign`` −1 turns it round."""
    low, high = sorted((sign * gain.low, sign * gain.high))
    return f"{sign * gain.value:+.4f} (95%: {low:+.4f} to {high:+.4f})"


class _Stages:
    """Splits one progress from 0 to 1 into stages."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = 0.0

    def next(self, share: float) -> Callable[[float], None]:
        """The progress of the next stage, which takes ``share`` of the whole."""
        start, self._done = self._done, self._done + share
        return lambda part: self._progress(start + share * part)
