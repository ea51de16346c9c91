"""What a user sets: one frozen value with every number that the pruning rule depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from arrol.calibration import CalibratorKind
from arrol.errors import ArrolError, as_member, check_integer, check_range
from arrol.records import Mode


class SurvivalKind(StrEnum):
    """How a posterior becomes a survival probability (see :mod:`arrol.survival`)."""

    PAPER = "paper"  #: Eq. 2 to the letter
    SIGNED = "signed"  #: the same line with a slope that points towards the target
    FEEDBACK = "feedback"  #: signed, with budget and mean followed within each group
    RANDOM = "random"  #: the control: p = κ for everybody


class Draw(StrEnum):
    """How a survival probability becomes a decision (see :mod:`arrol.draws`)."""

    BERNOULLI = "bernoulli"  #: one independent draw for each rollout (paper)
    SYSTEMATIC = "systematic"  #: one draw for each group; the count hardly varies


class Preset(StrEnum):
    """The named configurations."""

    PAPER = "paper"
    BALANCED = "balanced"
    RANDOM = "random"


@dataclass(frozen=True)
class PruningConfig:
    """Everything that the pruning rule depends on. The defaults are the preset ``balanced``.

    Attributes:
        mode: off, shadow (decide and record only) or on.
        survival: rule from posterior to survival probability.
        draw: how survival probabilities become decisions.
        calibrator: how scores become posteriors.
        keep_ratio: κ, the share of rollouts to keep (paper: .5).
        target_ratio: ρ, the positive ratio to steer survivors to (paper: .5).
        strength: λ, the largest slope of p in q (paper: .5).
        detect_length: L_detect in tokens (paper: 512).
        min_survival, max_survival: p_min and p_max. The paper gives none; ours are .1 and .9.
            p_min > 0 is what makes the 1/p-weighted estimates possible.
        min_survivors: rollouts of a group that pruning must leave (0: no such promise, as an
            independent draw can't keep one).
        cold_start_steps: steps before anything is pruned (paper: 20).
        bins: B, bins of the histogram calibrator (paper: 128).
        smoothing: α, pseudo-count of each bin (the paper gives none; ours is 1).
        buffer_rows: rows of the first-in-first-out buffers (the paper gives none; ours is 10,000).
        guard_auc: below this weighted AUC of the scores pruning turns into shadow.
        seed: seed of the draws.

    Raises:
        ArrolError: a value is outside its range.
    """

    mode: Mode = Mode.ON
    survival: SurvivalKind = SurvivalKind.FEEDBACK
    draw: Draw = Draw.SYSTEMATIC
    calibrator: CalibratorKind = CalibratorKind.AUTO
    keep_ratio: float = 0.5
    target_ratio: float = 0.5
    strength: float = 0.5
    detect_length: int = 512
    min_survival: float = 0.1
    max_survival: float = 0.9
    min_survivors: int = 2
    cold_start_steps: int = 20
    bins: int = 128
    smoothing: float = 1.0
    buffer_rows: int = 10_000
    guard_auc: float = 0.55
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            object.__setattr__(self, name, as_member(name, kind, getattr(self, name)))
        check_range("keep_ratio", self.keep_ratio, 0, 1, open_low=True)
        check_range("target_ratio", self.target_ratio, 0, 1)
        check_range("strength", self.strength, 0, 10)
        check_range("min_survival", self.min_survival, 0, 1, open_low=True)
        check_range("max_survival", self.max_survival, self.min_survival, 1)
        check_range("smoothing", self.smoothing, 0)
        check_range("guard_auc", self.guard_auc, 0, 1)
        check_integer("detect_length", self.detect_length, 1)
        check_integer("min_survivors", self.min_survivors, 0)
        check_integer("cold_start_steps", self.cold_start_steps, 0)
        check_integer("bins", self.bins, 1)
        check_integer("buffer_rows", self.buffer_rows, 1)
        check_integer("seed", self.seed, 0, 2**64 - 1)
        if self.draw is Draw.BERNOULLI and self.min_survivors:
            raise ArrolError(
                f"min_survivors is {self.min_survivors} with draw 'bernoulli'; allowed is 0, since "
                "independent draws can't promise a number of survivors (use draw 'systematic')."
            )

    @classmethod
    def paper(cls, **overrides: Any) -> PruningConfig:
        """The paper's rule to the letter: Eq. 2, histogram calibration (A.4), bernoulli draws.

        Caution: p falls with q whatever ρ is, so where the pass rate is under ρ this rule moves
        survivors AWAY from ρ (see :func:`arrol.survival.solve_paper`).
        """
        values = {
            "survival": SurvivalKind.PAPER,
            "draw": Draw.BERNOULLI,
            "calibrator": CalibratorKind.HISTOGRAM,
            "min_survivors": 0,
        }
        return cls(**{**values, **overrides})

    @classmethod
    def balanced(cls, **overrides: Any) -> PruningConfig:
        """The default: signed slope, group feedback, systematic draws, automatic calibrator."""
        return cls(**overrides)

    @classmethod
    def random(cls, **overrides: Any) -> PruningConfig:
        """The control: every rollout survives with probability κ, independently of its score."""
        values = {"survival": SurvivalKind.RANDOM, "draw": Draw.BERNOULLI, "min_survivors": 0}
        return cls(**{**values, **overrides})

    @classmethod
    def preset(cls, preset: Preset | str, **overrides: Any) -> PruningConfig:
        """The configuration that a preset names."""
        build = {Preset.PAPER: cls.paper, Preset.BALANCED: cls.balanced, Preset.RANDOM: cls.random}
        return build[as_member("preset", Preset, preset)](**overrides)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {k: v.value if isinstance(v, StrEnum) else v for k, v in asdict(self).items()}


_KINDS: dict[str, type[StrEnum]] = {
    "mode": Mode,
    "survival": SurvivalKind,
    "draw": Draw,
    "calibrator": CalibratorKind,
}
