"""What a log says about pruning: scans over L_detect, κ and λ, and an honest recommendation.

Pruning is advised only where nothing speaks against it
(:func:`arrol.sim.replay_trial.objections`). The rivals are pruning
at random and simply a smaller group, which needs no head and no score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from arrol.config import Preset
from arrol.rollout_log import RolloutLog
from arrol.sim.replay import (
    EQUAL_TIME,
    EQUAL_TOKENS,
    NO_PRUNING,
    Progress,
    ReplaySettings,
    brings_scores,
)
from arrol.sim.replay_signal import Signal
from arrol.sim.replay_trial import (
    FEW_GROUPS,
    FEWEST_KEPT,
    Trial,
    interval,
    is_open,
    meets_keep_ratio,
    objections,
    signal_of,
    signed,
    try_settings,
)

GRID = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288)
KEEP_RATIOS = (0.25, 0.375, 0.5, 0.625, 0.75)
STRENGTHS = (0.0, 0.25, 0.5, 1.0)
SCAN_SEEDS = 5  #: repetitions of a scan's points, at most

Floats = NDArray[np.float64]
Value = TypeVar("Value", int, float)


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
    scan = scan.changed(detect_length=choose_detect_length(detect_scan, settings, log))
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
        whole_signal=signal_of(log, settings, detect_length=0),
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
    if against_given and against_best:
        return _advise_against(log, given, best)
    chosen, which = (given, "the settings given") if against_best or best is given else (
        best, "other settings than given"
    )  # fmt: skip
    headline = f"Prune, with {which}{_criterion(chosen)}: {flags(chosen.settings)}."
    as_given = (f"As given: {text}" for text in against_given)
    as_scanned = (f"With {flags(best.settings)}: {text}" for text in against_best)
    reasons = (*_merits(chosen), *as_given, *as_scanned)
    return Advice(True, chosen.settings, headline, reasons, _caveats(log, given, chosen))


def _advise_against(log: RolloutLog, given: Trial, best: Trial) -> Advice:
    """The advice where something speaks against both."""
    trials = (given,) if best is given else (given, best)
    can_t_tell = any(is_open(log, trial) for trial in trials)
    verdict = "Can’t tell whether to prune" if can_t_tell else "Don’t prune"
    reasons: tuple[str, ...] = objections(log, given)
    if best is given:
        headline = f"{verdict} these rollouts (settings: {flags(best.settings)})."
    else:
        headline = (
            f"{verdict} these rollouts: neither as given nor with the best settings found, "
            f"{flags(best.settings)}."
        )
        reasons = (
            *(f"As given: {text}" for text in reasons),
            *(f"Best found: {text}" for text in objections(log, best)),
        )
    return Advice(False, best.settings, headline, reasons, _caveats(log, given, best))


def _criterion(trial: Trial) -> str:
    """By which measure pruning beats a smaller group, where it isn't shown by both."""
    gains = {
        "equal tokens": trial.gain(EQUAL_TOKENS),
        "equal time of the training step": trial.gain(EQUAL_TIME),
    }
    paying = [name for name, gain in gains.items() if gain.low > 0]
    if len(paying) != 1:
        return ""
    (other,) = (name for name in gains if name not in paying)
    rival = "is clearly better" if gains[other].high < 0 else "may be as good"
    return f", which pays at {paying[0]} (at {other} a smaller group {rival})"


def detect_lengths(log: RolloutLog, settings: ReplaySettings) -> tuple[int, ...]:
    """L_detect to try: from a tenth of the mean length to the 95th percentile, and the given."""
    low, high = log.tokens.mean() / 10.0, np.quantile(log.tokens, 0.95)
    inside = {length for length in GRID if low <= length < high}
    return tuple(sorted(inside | {settings.detect_length}))


def choose_detect_length(trials: Sequence[Trial], settings: ReplaySettings, log: RolloutLog) -> int:
    """Of those that save half of what κ can, (1 − κ)/2 of the tokens, the one that gains most.

    Left out are those at which κ can't be met and, where any has none, those with objections. The
    one given stays, or where it is left out the largest takes its place, as later scores know
    more, unless another gains clearly more on a smaller group of equal time. Where none saves
    enough it is the one that saves most.
    """
    able = [t for t in trials if meets_keep_ratio(log, t.settings)] or list(trials)
    wanted = (1 - settings.keep_ratio) / 2
    enough = [t for t in able if t.chosen.mean("tokens_saved") >= wanted]
    if not enough:
        return max(able, key=lambda t: t.chosen.mean("tokens_saved")).settings.detect_length
    sound = [t for t in enough if not objections(log, t)] or enough
    gains_B = {t.settings.detect_length: t.gains_B(EQUAL_TIME) for t in sound}
    given = settings.detect_length
    return _clearly_best(gains_B, given if given in gains_B else max(gains_B))


def choose_keep_ratio(trials: Sequence[Trial], settings: ReplaySettings, log: RolloutLog) -> float:
    """Of the κ that can be met and leave two of a typical group, the one that gains most.

    The one given stays unless another gains clearly more on a smaller group of equal time.
    """
    size, given = float(np.median(log.sizes)), settings.keep_ratio
    gains_B = {
        t.settings.keep_ratio: t.gains_B(EQUAL_TIME)
        for t in trials
        if t.settings.keep_ratio * size >= FEWEST_KEPT and meets_keep_ratio(log, t.settings)
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
    return best if interval(values_B[best] - values_B[default]).low > 0 else default


def flags(settings: ReplaySettings) -> str:
    """The recommended settings as a command line has them."""
    strength = f" --strength {settings.strength:g}"  # random has none
    return (
        f"--preset {settings.preset.value} --detect-length {settings.detect_length} "
        f"--keep-ratio {settings.keep_ratio:g}"
        + ("" if settings.preset is Preset.RANDOM else strength)
    )


def _merits(trial: Trial) -> tuple[str, ...]:
    chosen, results = trial.chosen, trial.results
    unpruned = results[NO_PRUNING]
    speedup = unpruned.mean("step") / chosen.mean("step")
    tokens, time = trial.gain(EQUAL_TOKENS), trial.gain(EQUAL_TIME)
    merits = [
        f"It saves {chosen.mean('tokens_saved'):z.0%} of the tokens and makes the simulated "
        f"training step {speedup:.2f}× faster.",
        f"E[ρ̂(1−ρ̂)] goes from {unpruned.mean('balance'):.3f} to {chosen.mean('balance'):.3f}. A "
        f"smaller group differs from that by {signed(tokens, -1)} at equal tokens and by "
        f"{signed(time, -1)} at equal time of the training step.",
    ]
    if trial.settings.preset is not Preset.RANDOM:
        gain = trial.gain(Preset.RANDOM.value)
        merits.append(
            f"Pruning at random would give {results[Preset.RANDOM.value].mean('balance'):.3f}: the "
            f"score earns {signed(gain)}. Its AUC on the decided rollouts is "
            f"{trial.signal.overall}, within groups {trial.signal.within}."
        )
    return tuple(merits)


def _caveats(log: RolloutLog, given: Trial, chosen: Trial) -> tuple[str, ...]:
    found = list(log.caveats)
    if given.settings.preset is not Preset.RANDOM:
        found.append(_score_caveat(log, given.settings))
    found.append(
        "Rollouts of other lengths than the log’s change the saving; so does training on survivors."
    )
    if chosen is not given:
        found.append("The best settings were picked on the same groups that they are judged by.")
    return tuple(found)


def _score_caveat(log: RolloutLog, settings: ReplaySettings) -> str:
    if brings_scores(log):
        return (
            "The log’s score counts as if it were there at L_detect. If it was made from whole "
            "rollouts, as an outcome reward model’s is, an early one knows less, and all gains by "
            "the score are too good; the more so, the earlier L_detect."
        )
    return (
        f"The log has no quality score. One with an AUC of {settings.score_auc:g} is assumed; what "
        "the figures say of balance is true of that score only."
    )


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


class _Stages:
    """Splits one progress from 0 to 1 into stages."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = 0.0

    def next(self, share: float) -> Callable[[float], None]:
        """The progress of the next stage, which takes ``share`` of the whole."""
        start, self._done = self._done, self._done + share
        return lambda part: self._progress(start + share * part)
