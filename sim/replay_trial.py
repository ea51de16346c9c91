"""A log replayed under one setting, and what speaks against pruning with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arrol.config import Preset, PruningConfig
from arrol.rollout_log import RolloutLog
from arrol.sim.intervals import mean_and_half_width
from arrol.sim.replay import (
    EQUAL_TIME,
    EQUAL_TOKENS,
    Progress,
    ReplaySettings,
    RuleResult,
    replay,
    scores_of,
)
from arrol.sim.replay_signal import Estimate, Signal, measure_signal
from arrol.survival import detected_keep_ratio

WORTHWHILE = 0.10  #: share of the tokens that pruning must save to be worth its trouble
FEW_GROUPS = 20  #: with fewer no figure means much
FEWEST_KEPT = 2  #: rollouts that κ must leave of a typical group

Floats = NDArray[np.float64]
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
        return interval(self.gains_B(rival))


def try_settings(
    log: RolloutLog, settings: ReplaySettings, presets: Sequence[Preset], progress: Progress
) -> Trial:
    """Replay a log under one setting; ``presets`` must hold the setting's own."""
    results = replay(log, settings, presets, progress)
    return Trial(settings, results, signal_of(log, settings, settings.detect_length))


def meets_keep_ratio(log: RolloutLog, settings: ReplaySettings) -> bool:
    """κ can be met: enough rollouts are decided that their mean survival needn't go below p_min."""
    early = float((log.tokens <= settings.detect_length).mean())
    lowest = settings.config(settings.preset, 0).min_survival
    return early < 1.0 and detected_keep_ratio(settings.keep_ratio, early, 0.0, 1.0) >= lowest


def shortage(log: RolloutLog, trial: Trial) -> str:
    """Why the log is too small to tell whether pruning pays; empty if it isn't."""
    groups, mixed = len(log.sizes), trial.signal.mixed_groups
    if groups < FEW_GROUPS:
        plural = "groups are" if groups > 1 else "group is"
        return f"{groups} {plural} too few to tell; {FEW_GROUPS} or more are wanted."
    if mixed < FEW_GROUPS:
        plural = "group has" if mixed == 1 else "groups have"
        return (
            f"Only {mixed} {plural} both outcomes among the rollouts longer than L_detect = "
            f"{trial.settings.detect_length} tokens; {FEW_GROUPS} or more are wanted to tell."
        )
    return ""


def is_open(log: RolloutLog, trial: Trial) -> bool:
    """All that speaks against pruning is that the log is too small to tell."""
    return objections(log, trial) == (shortage(log, trial),)


def objections(log: RolloutLog, trial: Trial) -> tuple[str, ...]:
    """What speaks against pruning with these settings, one text each; empty if nothing does.

    Of a trial in which random did not run, that rival says nothing.
    """
    few = shortage(log, trial)
    if len(log.sizes) < FEW_GROUPS:
        return (few,)
    if log.outcomes.all() or not log.outcomes.any():
        kind = "right" if log.outcomes.all() else "wrong"
        return (f"Every rollout is {kind}: no group carries a signal, pruned or not.",)
    against_data = tuple(_data_objections(log, trial))
    if log.tokens.max() <= trial.settings.detect_length:
        return against_data
    if few:
        return against_data or (few,)
    return (*against_data, *_signal_objections(trial), *_rival_objections(trial))


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
            f"Too little is saved: {saved:z.1%} of the tokens. Only what comes after L_detect = "
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
    preset, random = trial.settings.preset, Preset.RANDOM
    if preset is not random and random.value in trial.results:
        gain = trial.gain(random.value)
        if not gain.low > 0:
            found.append(
                "It is not shown to balance better than pruning at random: E[ρ̂(1−ρ̂)] differs by "
                f"{signed(gain)}."
            )
    tokens, time = trial.gain(EQUAL_TOKENS), trial.gain(EQUAL_TIME)
    if not tokens.low > 0 and not time.low > 0:
        found.append(
            "It is not shown to balance better than a smaller group from the start, which needs no "
            f"head: E[ρ̂(1−ρ̂)] differs by {signed(tokens)} at equal tokens and by {signed(time)} "
            "at equal time of the training step."
        )
    return found


def signal_of(log: RolloutLog, settings: ReplaySettings, detect_length: int) -> Signal:
    """What the score is worth on the rollouts longer than ``detect_length``."""
    scores_N = scores_of(log, settings, np.random.default_rng([settings.seed, 0]))
    rows = log.tokens > detect_length
    rng = np.random.default_rng([settings.seed, 1])
    return measure_signal(scores_N[rows], log.outcomes[rows], log.groups[rows], rng)


def interval(gains_B: Floats) -> Estimate:
    """The mean with its 95% interval over groups (Student's t)."""
    mean, half = mean_and_half_width(gains_B.tolist())
    return Estimate(mean, mean - half, mean + half)


def signed(gain: Estimate, sign: int = 1) -> str:
    """A difference with its interval; ``sign`` −1 turns it round."""
    low, high = sorted((sign * gain.low, sign * gain.high))
    return f"{sign * gain.value:+z.4f} (95%: {low:+z.4f} to {high:+z.4f})"
