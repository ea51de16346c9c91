"""Training of the quality head, at the frontend, from the hidden states that engines hand back.

The paper trains the head inside the actor's update. Its input is detached there, so the gradient
is the same here, and the actor's graph needs no change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from arrol.columns import Floats, Integers, as_columns, check_column, check_outcomes
from arrol.errors import ArrolError, check_integer
from arrol.files import write_atomically
from arrol.head import QualityHead
from arrol.head_buffer import HeadBuffer, HeadRows, as_half
from arrol.head_config import HeadConfig
from arrol.head_files import pack, read_file, unpack
from arrol.head_metrics import score_metrics
from arrol.head_state import restore, snapshot
from arrol.seen_scores import is_score

STATE_FILE = "head_trainer.safetensors"


class HeadTrainer:
    """Keeps labelled hidden states and trains a :class:`QualityHead` on them, round by round.

    A round minimises Σ w·BCE / Σ w over the buffer, w = min(1/p, ``max_weight``): without the cap
    that is the loss over all rollouts, not only over the survivors.

    Classes are never reweighted, however rare one is: a class weight moves every score, and anew
    with each round's shares, while the calibration keeps scores of many rounds side by side. So a
    score stays an estimate of P(Y = 1). What a rare class needs instead: the logit's bias starts
    at the buffer's log-odds, and each minibatch holds the classes in the buffer's own ratio, to
    within one row. A buffer with one class only is not trained on, as there is nothing to tell
    apart: weights and version stay, and engines with version 0 keep everything.

    Attributes:
        head: the head as trained so far, on ``device``.
        config: as given; the defaults if None.
        device: where the head is trained. The buffer stays on the CPU.

    Under one seed the same calls give the same head, whatever the global random states. Bit for
    bit that holds on one machine with one number of torch threads.

    Raises:
        ArrolError: ``hidden_size`` is no integer of at least 1.
    """

    def __init__(
        self,
        hidden_size: int,
        config: HeadConfig | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config or HeadConfig()
        self.device = torch.device(device)
        self.head = QualityHead(hidden_size, self.config.width, self.config.seed).to(self.device)
        self._optimizer = _optimizer(self.head, self.config)
        self._buffer = HeadBuffer(hidden_size, self.config.buffer_rows)
        self._rng = np.random.default_rng(self.config.seed)
        self._new_rows = 0
        self._skipped_rows = 0

    def observe(
        self,
        hidden_NH: Tensor | ArrayLike,
        outcomes_N: ArrayLike,
        inclusion_N: ArrayLike | None = None,
        scores_N: ArrayLike | None = None,
    ) -> None:
        """Take in labelled rollouts; the oldest beyond ``buffer_rows`` leave.

        A row whose hidden state has a NaN or an infinite value is skipped and counted.

        Args:
            hidden_NH: last hidden states at the detection length, any floating type and device; a
                numpy array will do.
            outcomes_N: 0 or 1.
            inclusion_N: p, by which each outcome got to be seen
                (:attr:`arrol.records.Detection.inclusion`); 1 if None.
            scores_N: the engine's scores at the detection length, for the metrics. A row
                without one (None, or outside [0, 1], or NaN) is scored here and now, by a head
                that has not seen its outcome either.

        Raises:
            ArrolError: a shape or a value is not allowed. Nothing is taken in then.
        """
        rows_NH = torch.as_tensor(hidden_NH)
        own_N = self.head.scores(rows_NH.to(self.device)).cpu().numpy()
        inclusion_N = np.ones(len(own_N)) if inclusion_N is None else inclusion_N
        given_N = own_N if scores_N is None else scores_N
        _, outcomes, inclusion, given = as_columns(
            hidden=own_N, outcomes=outcomes_N, inclusion=inclusion_N, scores=given_N
        )
        check_outcomes("outcomes", outcomes)
        check_column("inclusion", inclusion, 0.0, 1.0, open_low=True)
        scores = np.where(is_score(given), given, own_N)
        known = ~np.isnan(own_N)
        hidden = as_half(rows_NH[torch.from_numpy(known).to(rows_NH.device)])
        self._buffer.append(HeadRows(hidden, outcomes[known], inclusion[known], scores[known]))
        self._new_rows = min(self._new_rows + int(known.sum()), self.config.buffer_rows)
        self._skipped_rows += int((~known).sum())

    def train(self) -> dict[str, float]:
        """One round over the buffer; its metrics.

        Returns:
            Of the rows observed since the last round, by the scores they came with, which were
            made before the head saw their outcomes: see :func:`arrol.head_metrics.score_metrics`.
            ``loss``: mean over the round's gradient steps, each before its step, NaN without
            any. Counts: ``rows`` and ``skipped_rows`` since the last round, ``buffer_rows``,
            ``version`` (of the head after the round).
        """
        rows = self._buffer.rows
        new = rows.last(self._new_rows)
        metrics = score_metrics(new.scores_N, new.outcomes_N, new.inclusion_N)
        metrics["loss"] = self._round(rows) if len(set(rows.outcomes_N)) == 2 else np.nan
        metrics["rows"] = float(self._new_rows)
        metrics["skipped_rows"] = float(self._skipped_rows)
        metrics["buffer_rows"] = float(len(rows))
        metrics["version"] = float(self.head.version)
        self._new_rows = self._skipped_rows = 0
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, rows, random state: ``tensors``, and a ``note`` of JSON values.

        The tensors are copies.
        """
        tensors, note = snapshot(self.head, self._optimizer, self._buffer.rows)
        note["random"] = self._rng.bit_generator.state
        note["new_rows"] = self._new_rows
        note["skipped_rows"] = self._skipped_rows
        return {"tensors": tensors, "note": note}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`, bit for bit if the configuration is the same.

        The configuration and the device stay this trainer's own; ``head`` is a new object.

        Raises:
            ArrolError: it is no such state, or its head has another shape. Nothing changes then.
        """
        fresh = HeadTrainer(self.head.hidden_size, self.config, self.device)
        try:
            note = state["note"]
            fresh._buffer.append(restore(fresh.head, fresh._optimizer, state["tensors"], note))
            fresh._rng.bit_generator.state = note["random"]
            for name in ("new_rows", "skipped_rows"):
                check_integer(name, note[name], 0)
            fresh._new_rows = min(note["new_rows"], len(fresh._buffer))
            fresh._skipped_rows = note["skipped_rows"]
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            reason = str(error) if isinstance(error, ArrolError) else f"{error!r}."
            raise ArrolError(f"the head trainer's state is damaged: {reason}") from None
        self.__dict__.update(fresh.__dict__)

    def save(self, folder: Path | str) -> None:
        """Write the state as one file, ``head_trainer.safetensors``, atomically.

        Raises:
            ArrolError: it can't be written.
        """
        write_atomically(Path(folder) / STATE_FILE, pack(**self.state_dict()))

    def load(self, folder: Path | str) -> None:
        """Continue from what :meth:`save` wrote.

        Raises:
            ArrolError: the file is missing or damaged, or as in :meth:`load_state_dict`.
        """
        path = Path(folder) / STATE_FILE
        tensors, note = unpack(read_file(path), str(path))
        self.load_state_dict({"tensors": tensors, "note": note})

    def _round(self, rows: HeadRows) -> float:
        weights_N = row_weights(rows.inclusion_N, self.config.max_weight)
        if self.head.version == 0:
            self._start_at_log_odds(rows.outcomes_N, weights_N)
        batches = -(-len(rows) // self.config.batch_size)
        total = 0.0
        for _ in range(self.config.epochs):
            order = stratified_order(rows.outcomes_N, self._rng)
            for batch in np.array_split(order, batches):
                total += self._step(rows, weights_N, batch) * len(batch)
        self.head.version += 1
        return total / (self.config.epochs * len(rows))

    def _step(self, rows: HeadRows, weights_N: Floats, batch: Integers) -> float:
        self._optimizer.zero_grad()
        hidden = rows.hidden_NH[torch.from_numpy(batch)].to(self.device)
        outcomes = torch.from_numpy(rows.outcomes_N[batch]).to(self.device, torch.float32)
        weights = torch.from_numpy(weights_N[batch]).to(self.device, torch.float32)
        with torch.enable_grad():  # the caller may have turned it off
            loss = binary_cross_entropy_with_logits(self.head(hidden), outcomes, weights)
            torch.autograd.backward(loss)
        self._optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def _start_at_log_odds(self, outcomes_N: Floats, weights_N: Floats) -> None:
        right, wrong = weights_N @ outcomes_N, weights_N @ (1.0 - outcomes_N)
        self.head.logit_layer.bias.fill_(float(np.log(right / wrong)))


def row_weights(inclusion_N: Floats, max_weight: float) -> Floats:
    """min(1/p, ``max_weight``), scaled to a mean of 1: the loss is Σ w·BCE / Σ w over all rows."""
    weights: Floats = np.minimum(1.0 / inclusion_N, max_weight)
    return weights / float(weights.mean())


def stratified_order(outcomes_N: Floats, rng: np.random.Generator) -> Integers:
    """A random order in which the classes stay mixed.

    Each class, shuffled, is spread evenly over the whole, from an offset of its own. So every run
    of n rows holds its share of right ones to within one row.
    """
    classes = [rng.permutation(np.flatnonzero(outcomes_N == value)) for value in (0.0, 1.0)]
    places = [(np.arange(len(rows)) + rng.random()) / max(len(rows), 1) for rows in classes]
    order: Integers = np.concatenate(classes)[np.argsort(np.concatenate(places), kind="stable")]
    return order


def _optimizer(head: QualityHead, config: HeadConfig) -> torch.optim.AdamW:
    layers = (head.hidden_layer, head.logit_layer)
    groups = [
        {"params": [layer.weight for layer in layers], "weight_decay": config.weight_decay},
        {"params": [layer.bias for layer in layers], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, foreach=False)
