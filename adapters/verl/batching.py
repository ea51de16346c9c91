"""Which survivor goes to which rank and mini-batch, and what the loss is divided by.

verl pads a ragged batch back to a multiple of the full mini-batch, so that pruning saves its
trainer no work. Here the number of mini-batches stays, and they get smaller. verl cuts a batch
into one stretch a data-parallel rank, and each rank's stretch into mini-batches; a *cell* is what
one rank has of one mini-batch, and all cells must be equally large. Padding fills them up: less
than one row a cell where verl splits by tokens, and none of it carries loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arrol.errors import ArrolError, check_integer


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How many rows there are, and what they are divided into.

    Attributes:
        rows: survivors.
        mini_batches: optimizer steps of one pass; never more than there are rows.
        dp_size: data-parallel ranks.
        padded: rows with the padding.
        micro_rows: rows of a micro-batch, to be sent as ``micro_batch_size_per_gpu``; None where
            verl splits by tokens.
    """

    rows: int
    mini_batches: int
    dp_size: int
    padded: int
    micro_rows: int | None = None

    @property
    def padding(self) -> int:
        """Padding rows."""
        return self.padded - self.rows

    @property
    def cell_rows(self) -> int:
        """Rows, padding too, that one rank has of one mini-batch."""
        return self.padded // (self.dp_size * self.mini_batches)

    @property
    def rows_per_mini_batch(self) -> float:
        """Survivors of a mini-batch, on average: what verl must get as ``global_batch_size``.

        With FSDP, verl's ``agg_loss`` gives for each micro-batch, of a batch of R survivors in M
        mini-batches on W ranks::

            token-mean               Σ loss · W / batch_num_tokens
            seq-mean-token-sum       Σ_rows (Σ loss) · W / global_batch_size
            seq-mean-token-sum-norm  the same, / loss_scale_factor
            seq-mean-token-mean      Σ_rows (Σ loss / tokens) · W / global_batch_size

        and adds them up; the W goes when gradients are averaged over ranks. ``batch_num_tokens``
        is the engine's own count of the mini-batch's loss mask over all ranks: padding has a mask
        of zeros, so it is right as it is. ``global_batch_size`` is one number for all mini-batches,
        and verl sends the configured size. With that, pruning half of the rows would halve the
        loss and the gradient. With R / M, which verl only divides by, every survivor weighs M / R
        in whichever mini-batch it is: the sum over the step's M losses is M times the mean over
        its survivors, and where nothing is pruned the number is the configured one. A mini-batch's
        own count (they differ by one row) would give rows of the smaller mini-batches more weight.
        Survivors whose advantage is 0 count too, as they do in verl.

        A ``loss_scale_factor`` of None stands for the longest response of the micro-batch, so
        seq-mean-token-sum-norm depends on how verl splits unless that is set.
        """
        return self.rows / self.mini_batches


def plan_batches(
    rows: int, mini_batches: int, dp_size: int, micro_limit: int | None = None
) -> BatchPlan:
    """The smallest batch that holds the survivors and splits evenly.

    Args:
        rows: survivors, at least 1: without any there is nothing to train on.
        mini_batches: what the user configured; fewer rows than that give as many as there are rows.
        dp_size: data-parallel ranks.
        micro_limit: most rows of a micro-batch, verl's ``ppo_micro_batch_size_per_gpu``; None
            where ``use_dynamic_bsz`` splits by tokens. verl wants cells to be multiples of a fixed
            size, so that with 4 a cell of 5 rows would be padded to 8: two micro-batches of 3 take
            one row of padding. It never takes more micro-batches than the limit itself would.

    Raises:
        ArrolError: a number is below 1.
    """
    check_integer("rows", rows, 1)
    check_integer("mini_batches", mini_batches, 1)
    check_integer("dp_size", dp_size, 1)
    mini_batches = min(mini_batches, rows)
    cells = dp_size * mini_batches
    cell_rows = -(-rows // cells)
    if micro_limit is None:
        return BatchPlan(rows, mini_batches, dp_size, cells * cell_rows)
    check_integer("micro_limit", micro_limit, 1)
    micro_batches = -(-cell_rows // micro_limit)
    micro_rows = -(-cell_rows // micro_batches)
    return BatchPlan(rows, mini_batches, dp_size, cells * micro_batches * micro_rows, micro_rows)


def arrange(
    lengths_N: Sequence[int], padding_N: Sequence[bool], plan: BatchPlan, seed: int | None = None
) -> list[int]:
    """Order of the padded batch's N rows: rank by rank, and mini-batch by mini-batch in each.

    verl must not shuffle it (``dataloader_kwargs`` with shuffle False): hand the seed here. With
    several epochs all have these mini-batches, where verl would draw new ones.

    Which mini-batch a survivor goes to depends on the order of rows (or on the seed), never on its
    length. The rows of one mini-batch are balanced over the ranks: from the longest down, each
    round of ``dp_size`` rows gives every rank one, the longest to the rank that has least so far.
    So no two ranks differ by more than the longest and the shortest row of the mini-batch do. The
    heaviest cell then goes to the rank with least in the mini-batches before, so that whole ranks
    don't differ by more than the longest and the shortest row of the batch. (Adding e₁ ≥ e₂ to
    loads l₁ ≤ l₂ leaves a difference between −(e₁ − e₂) and l₂ − l₁.) Padding is dealt last: cells
    differ by at most one row of it, and every mini-batch has a survivor.

    The rows of a cell go from the shortest to the longest: where padding to the longest row of a
    micro-batch can't be removed, there is least of it then. Sums over the cell don't change.

    Args:
        lengths_N: tokens of each row, or another measure of its work (verl's
            ``calculate_workload``).
        padding_N: the row is padding.
        plan: of so many rows and so much padding.
        seed: assign survivors to mini-batches at random; None keeps their order.

    Raises:
        ArrolError: the rows are not those of the plan.
    """
    padding = [row for row, is_padding in enumerate(padding_N) if is_padding]
    rows = [row for row, is_padding in enumerate(padding_N) if not is_padding]
    _check(len(lengths_N), len(rows), len(padding), plan)
    if seed is not None:
        rows = [rows[place] for place in np.random.default_rng(seed).permutation(len(rows))]
    ranks: list[list[int]] = [[] for _ in range(plan.dp_size)]
    loads = [0] * plan.dp_size
    row_shares = _shares(len(rows), plan.mini_batches)
    # Against the direction of the rows, so that all mini-batches come out equally large.
    padding_shares = _shares(len(padding), plan.mini_batches)[::-1]
    for n_rows, n_padding in zip(row_shares, padding_shares, strict=True):
        mini, rows = rows[:n_rows], rows[n_rows:]
        fill, padding = padding[:n_padding], padding[n_padding:]
        cells = _deal(mini, fill, lengths_N, plan.dp_size)
        cells.sort(key=lambda cell: _load(cell, lengths_N), reverse=True)
        lightest_first = sorted(range(plan.dp_size), key=loads.__getitem__)
        for rank, cell in zip(lightest_first, cells, strict=True):
            ranks[rank] += cell
            loads[rank] += _load(cell, lengths_N)
    return [row for rank in ranks for row in rank]


def largest_divisor(rows: int, limit: int) -> int:
    """The largest number up to ``limit`` that divides ``rows``: a micro-batch verl will take.

    For passes without training, in which a rank takes all its rows at once and which are cut into
    ``log_prob_micro_batch_size_per_gpu``.

    Args:
        rows: of a rank, ``padded // dp_size``.
        limit: most rows of a micro-batch.

    Raises:
        ArrolError: a number is below 1.
    """
    check_integer("rows", rows, 1)
    check_integer("limit", limit, 1)
    return next(n for n in range(min(limit, rows), 0, -1) if rows % n == 0)


def _check(lengths: int, rows: int, padding: int, plan: BatchPlan) -> None:
    if (rows, padding) != (plan.rows, plan.padding) or lengths != plan.padded:
        raise ArrolError(
            f"the batch has {lengths} lengths, {rows} rows and {padding} of padding; allowed is "
            f"what was planned, {plan.padded}, {plan.rows} and {plan.padding}."
        )


def _shares(total: int, parts: int) -> list[int]:
    """``total`` in ``parts`` that differ by at most one, the larger ones first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def _load(cell: list[int], lengths_N: Sequence[int]) -> int:
    return sum(lengths_N[row] for row in cell)


def _deal(
    rows: list[int], padding: list[int], lengths_N: Sequence[int], dp_size: int
) -> list[list[int]]:
    """One mini-batch's cells: equal counts, balanced loads, padding spread, shortest first."""
    dealt = [*sorted(rows, key=lengths_N.__getitem__, reverse=True), *padding]
    cells: list[list[int]] = [[] for _ in range(dp_size)]
    loads = [0] * dp_size
    for start in range(0, len(dealt), dp_size):
        block = sorted(dealt[start : start + dp_size], key=lengths_N.__getitem__, reverse=True)
        lightest_first = sorted(range(dp_size), key=loads.__getitem__)
        for cell, row in zip(lightest_first, block, strict=True):
            cells[cell].append(row)
            loads[cell] += lengths_N[row]
    return [sorted(cell, key=lengths_N.__getitem__) for cell in cells]
