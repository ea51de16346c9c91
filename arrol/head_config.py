"""What a user sets of the quality head's training; it needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from arrol.errors import check_integer, check_range


@dataclass(frozen=True)
class HeadConfig:
    """Everything that the training of the head depends on. The paper gives none of it.

    Attributes:
        width: units between the head's two layers; None for max(16, H/4).
        learning_rate: AdamW's.
        weight_decay: AdamW's, on the two weight matrices; biases do not decay.
        batch_size: rows of a gradient step, at most.
        epochs: passes over the buffer in each round.
        buffer_rows: newest labelled rows that are trained on.
        max_weight: cap on a row's weight 1/p; 1 turns weighting off.
        seed: of the initial weights and of the order of rows.

    Raises:
        ArrolError: a value is outside its range.
    """

    width: int | None = None
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    batch_size: int = 256
    epochs: int = 2
    buffer_rows: int = 8_192
    max_weight: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.width is not None:
            check_integer("width", self.width, 1, 2**16)
        check_range("learning_rate", self.learning_rate, 0, 1, open_low=True)
        check_range("weight_decay", self.weight_decay, 0, 1)
        check_integer("batch_size", self.batch_size, 1)
        check_integer("epochs", self.epochs, 1)
        check_integer("buffer_rows", self.buffer_rows, 1)
        check_range("max_weight", self.max_weight, 1)
        check_integer("seed", self.seed, 0, 2**63 - 1)
