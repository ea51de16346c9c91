"""The rest of a training step: log-probabilities and the update, for the survivors."""

from __future__ import annotations

from dataclasses import dataclass

from arrol.errors import check_range


@dataclass(frozen=True)
class Phase:
    """A phase that takes a + b·f seconds for a share f of the full batch.

    Attributes:
        fixed: a, seconds that no pruning saves.
        variable: b, seconds that the full batch takes beyond that.
    """

    fixed: float
    variable: float

    def __post_init__(self) -> None:
        check_range("phase fixed", self.fixed, low=0.0)
        check_range("phase variable", self.variable, low=0.0)

    def seconds(self, fraction: float) -> float:
        """Time of the phase [s] where ``fraction`` of the batch is left, in [0, 1]."""
        check_range("fraction", fraction, 0.0, 1.0)
        return self.fixed + self.variable * fraction


# Table 5's baseline (Qwen3-1.7B, GRPO) has f = 1: log-prob 18.40 s, update 63.05 s. An update with
# activation checkpointing does the arithmetic of four forward passes (forward, forward again,
# backward at twice that), so a forward pass takes 63.05/4 = 15.76 s, and log-prob 2.64 s beside it.
# That the update has no fixed part is an assumption: one row can't tell.
LOG_PROB = Phase(fixed=2.64, variable=15.76)
UPDATE = Phase(fixed=0.0, variable=63.05)


@dataclass(frozen=True)
class PhaseTimes:
    """Times of the phases of a training step that follow the generation.

    Attributes:
        log_prob: computing the log-probabilities of the kept rollouts under the old policy.
        update: forward, backward and optimizer.
        padded: the trainer fills the batch up to its full size again, so that f is 1 whatever
            was pruned and only the generation gets faster.
    """

    log_prob: Phase = LOG_PROB
    update: Phase = UPDATE
    padded: bool = False

    def trained_fraction(self, fraction: float) -> float:
        """Share of the full batch that goes through the phases when ``fraction`` was kept."""
        check_range("fraction", fraction, 0.0, 1.0)
        return 1.0 if self.padded else fraction

    def log_prob_seconds(self, fraction: float) -> float:
        """Time of the log-prob phase [s]."""
        return self.log_prob.seconds(self.trained_fraction(fraction))

    def update_seconds(self, fraction: float) -> float:
        """Time of the update phase [s]."""
        return self.update.seconds(self.trained_fraction(fraction))

    def step_seconds(self, generation: float, fraction: float) -> float:
        """Time of a training step [s] whose generation took ``generation`` seconds."""
        check_range("generation", generation, low=0.0)
        return generation + self.log_prob_seconds(fraction) + self.update_seconds(fraction)
