"""The layout of a ragged batch: laws, and what verl's own code makes of it."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, permutations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrol.adapters.verl.batching import BatchPlan, arrange, largest_divisor, plan_batches
from arrol.advantages import LossKind, loss_weights
from arrol.errors import ArrolError

PAD = 20  #: length of a padding row; verl's have 128 tokens, more than some survivors


@dataclass
class Case:
    plan: BatchPlan
    lengths: list[int]  #: of the padded batch
    padding: list[bool]
    seed: int | None

    @property
    def order(self) -> list[int]:
        return arrange(self.lengths, self.padding, self.plan, self.seed)

    def cells(self) -> list[list[list[int]]]:
        """[dp_size][mini_batches] lists of rows, cut as verl cuts."""
        plan, order = self.plan, self.order
        n = plan.padded // (plan.dp_size * plan.mini_batches)
        flat = [order[start : start + n] for start in range(0, plan.padded, n)]
        return [flat[r * plan.mini_batches :][: plan.mini_batches] for r in range(plan.dp_size)]

    def mini_batches(self) -> list[list[int]]:
        return [list(chain(*cells)) for cells in zip(*self.cells(), strict=True)]

    def load(self, rows) -> int:
        return sum(self.lengths[row] for row in rows)


def case_of(lengths, mini_batches, dp_size, micro_limit=None, seed=None, mixer=0):
    plan = plan_batches(len(lengths), mini_batches, dp_size, micro_limit)
    rows = [(length, False) for length in lengths] + [(PAD, True)] * plan.padding
    places = np.random.default_rng(mixer).permutation(len(rows)) if mixer else range(len(rows))
    mixed = [rows[place] for place in places]
    return Case(plan, [length for length, _ in mixed], [pad for _, pad in mixed], seed)


cases = st.builds(
    case_of,
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    mini_batches=st.integers(1, 5),
    dp_size=st.integers(1, 4),
    micro_limit=st.none() | st.integers(1, 5),
    seed=st.none() | st.integers(0, 99),
    mixer=st.integers(0, 5),
)


class TestPlan:
    @given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 9))
    def test_smallest_multiple(self, rows, mini_batches, dp_size):
        plan = plan_batches(rows, mini_batches, dp_size)
        steps = min(rows, mini_batches)
        fits = (n for n in range(rows, 10_000) if n % (dp_size * steps) == 0)
        assert (plan.mini_batches, plan.padded) == (steps, next(fits))
        assert plan.padding < dp_size * steps
        assert plan.rows_per_mini_batch * plan.mini_batches == pytest.approx(rows)

    def test_nothing_pruned_is_what_the_user_configured(self):
        """512 prompts of 16, mini-batches of 128 prompts: 4 steps of 2048 rows."""
        plan = plan_batches(512 * 16, 4, 8)
        assert (plan.padding, plan.mini_batches, plan.rows_per_mini_batch) == (0, 4, 2048.0)

    def test_half_pruned_is_half_the_work(self):
        plan = plan_batches(512 * 8, 4, 8)
        assert (plan.padding, plan.mini_batches, plan.rows_per_mini_batch) == (0, 4, 1024.0)

    @given(st.integers(1, 99), st.integers(1, 5), st.integers(1, 4), st.integers(1, 9))
    def test_fixed_micro_batches(self, rows, mini_batches, dp_size, limit):
        plan = plan_batches(rows, mini_batches, dp_size, limit)
        cells = dp_size * plan.mini_batches
        assert plan.micro_rows <= limit
        assert plan.cell_rows % plan.micro_rows == 0
        assert plan.cell_rows * cells == plan.padded
        # Padding up to a multiple of the limit takes as many passes, and never fewer rows.
        naive = math.ceil(rows / (cells * limit)) * limit
        assert plan.cell_rows // plan.micro_rows == naive // limit
        assert plan.cell_rows <= naive

    def test_five_rows_in_micro_batches_of_up_to_four(self):
        plan = plan_batches(5, 1, 1, 4)
        assert (plan.padded, plan.micro_rows) == (6, 3)

    @given(st.integers(1, 400), st.integers(1, 40))
    def test_largest_divisor(self, rows, limit):
        best = max(n for n in range(1, limit + 1) if rows % n == 0)
        assert largest_divisor(rows, limit) == best

    def test_no_divisor_below_one(self):
        with pytest.raises(ArrolError, match="limit is 0"):
            largest_divisor(4, 0)

    @pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1, 0)])
    def test_refuses(self, numbers):
        with pytest.raises(ArrolError, match="is 0; allowed is an integer of at least 1"):
            plan_batches(*numbers)


class TestLayout:
    @given(cases)
    def test_every_row_once(self, case):
        assert sorted(case.order) == list(range(case.plan.padded))

    @given(cases)
    def test_every_mini_batch_trains(self, case):
        survivors = [sum(not case.padding[row] for row in rows) for rows in case.mini_batches()]
        assert min(survivors) >= 1
        assert max(survivors) - min(survivors) <= 1

    @given(cases)
    def test_padding_is_spread(self, case):
        padding = [sum(case.padding[row] for row in cell) for rank in case.cells() for cell in rank]
        assert max(padding) - min(padding) <= 1

    @given(cases)
    def test_ranks_are_balanced(self, case):
        for rows, cells in zip(case.mini_batches(), zip(*case.cells(), strict=True), strict=True):
            loads = [case.load(cell) for cell in cells]
            lengths = [case.lengths[row] for row in rows]
            assert max(loads) - min(loads) <= max(lengths) - min(lengths)
        totals = [sum(map(case.load, rank)) for rank in case.cells()]
        assert max(totals) - min(totals) <= max(case.lengths) - min(case.lengths)

    @given(st.lists(st.integers(1, 40), min_size=1, max_size=7), st.integers(1, 4))
    def test_micro_batches_are_padded_as_little_as_can_be(self, lengths, limit):
        """Against every other order of the rows of a cell."""
        case = case_of(lengths, 1, 1, limit)
        size, ((cell,),) = case.plan.micro_rows, case.cells()

        def padded(order):
            parts = [order[start : start + size] for start in range(0, len(order), size)]
            return sum(size * max(case.lengths[row] for row in part) for part in parts)

        assert padded(cell) == min(map(padded, permutations(cell)))

    @given(cases, st.randoms(use_true_random=False))
    def test_lengths_do_not_choose_the_mini_batch(self, case, random):
        before = [{row for row in rows if not case.padding[row]} for rows in case.mini_batches()]
        case.lengths = random.sample(case.lengths, len(case.lengths))
        after = [{row for row in rows if not case.padding[row]} for rows in case.mini_batches()]
        assert before == after

    @given(cases)
    def test_without_a_seed_the_order_stays(self, case):
        case.seed = None
        firsts = [
            sorted(row for row in rows if not case.padding[row]) for rows in case.mini_batches()
        ]
        assert list(chain(*firsts)) == [row for row, pad in enumerate(case.padding) if not pad]

    def test_with_seeds_every_row_gets_everywhere_alike(self):
        """7 rows in 3 mini-batches of 3, 2, 2: a row is in them with 3/7, 2/7, 2/7."""
        found = Counter()
        draws = 3000
        for seed in range(draws):
            case = case_of([9, 1, 5, 5, 2, 8, 3], 3, 2, seed=seed)
            for place, rows in enumerate(case.mini_batches()):
                found.update((row, place) for row in rows if not case.padding[row])
        for row in range(7):
            for place, share in enumerate([3 / 7, 2 / 7, 2 / 7]):
                error = math.sqrt(share * (1 - share) / draws)
                assert abs(found[row, place] / draws - share) < 4.5 * error

    def test_a_worked_one(self):
        """Two ranks, two mini-batches: rows 0–3 and 4–6 with the padding, row 7.

        First 9, 7, 4, 1: 9 | 7, then 1 | 4, so 10 and 11. Then 8, 6, 5 and 1: 8 | 6, then 1 | 5,
        so 9 and 11: the 11 goes to the rank that has 10. In a cell the shortest row comes first.
        """
        case = Case(plan_batches(7, 2, 2), [9, 7, 4, 1, 8, 6, 5, 1], [False] * 7 + [True], None)
        assert case.cells() == [[[2, 1], [7, 4]], [[3, 0], [6, 5]]]

    def test_padding_may_be_longer_than_a_survivor(self):
        """9 | 5, then the 20 of the padding goes to the 5 and the 3 to the 9."""
        assert case_of([9, 5, 3], 1, 2).cells() == [[[1, 3]], [[2, 0]]]

    def test_refuses_rows_that_were_not_planned(self):
        plan = plan_batches(3, 1, 2)
        with pytest.raises(ArrolError, match="4 lengths, 4 rows and 0 of padding; allowed is what"):
            arrange([1, 1, 1, 1], [False] * 4, plan)


@pytest.fixture(scope="module")
def verl():
    """The pieces of verl that cut a batch and add up a loss."""
    pytest.importorskip("verl", reason="verl is not installed")
    from tensordict import TensorDict
    from torch import arange
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.core_algos import agg_loss
    from verl.utils import tensordict_utils
    from verl.workers.engine.utils import prepare_micro_batches
    from verl.workers.engine_workers import TrainingWorker

    return SimpleNamespace(
        TensorDict=TensorDict,
        arange=arange,
        KVBatchMeta=KVBatchMeta,
        agg_loss=agg_loss,
        tools=tensordict_utils,
        prepare_micro_batches=prepare_micro_batches,
        train_mini_batch=TrainingWorker.train_mini_batch.__wrapped__,
    )


def verls_cells(verl, case):
    """What verl's dispatch and its worker make of the order: [dp_size][mini_batches] rows."""
    plan = case.plan
    batch = verl.KVBatchMeta(
        keys=[str(row) for row in range(plan.padded)],
        tags=[{} for _ in range(plan.padded)],
        partition_id="train",
    )
    batch.reorder(case.order)
    ranks = []
    for rank, part in enumerate(batch.chunk(plan.dp_size)):
        cells = []
        engine = SimpleNamespace(
            get_data_parallel_size=lambda: plan.dp_size,
            get_data_parallel_rank=lambda rank=rank: rank,
            train_mode=lambda **_: nullcontext(),
            is_mp_src_rank_with_outputs=lambda: False,
        )
        worker = SimpleNamespace(
            engine=engine,
            train_batch=lambda data, cells=cells: cells.append(data),
            profiler=SimpleNamespace(step=lambda: None),
        )
        rows = verl.arange(plan.padded)[[int(key) for key in part.keys]]
        data = verl.TensorDict({"row": rows}, batch_size=len(rows))
        verl.tools.assign_non_tensor(
            data,
            num_mini_batch=plan.mini_batches,
            global_batch_size=plan.rows_per_mini_batch,
            dataloader_kwargs={"shuffle": False},
        )
        verl.train_mini_batch(worker, data)
        assert all(data["global_batch_size"] == plan.rows_per_mini_batch for data in cells)
        ranks.append([data["row"].tolist() for data in cells])
    return ranks


MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
SCALE = 64


def micro_batches(verl, case, cell, micro_rows):
    """Rows of each micro-batch of a cell; ``micro_rows`` None for a split by tokens."""
    import torch

    ids = [torch.zeros(case.lengths[row], dtype=torch.int64) for row in cell]
    data = verl.TensorDict(
        {
            "row": torch.tensor(cell),
            "input_ids": torch.nested.as_nested_tensor(ids, layout=torch.jagged),
        },
        batch_size=len(cell),
    )
    verl.tools.assign_non_tensor(
        data,
        use_dynamic_bsz=micro_rows is None,
        micro_batch_size_per_gpu=micro_rows,
        max_token_len_per_gpu=2 * max(case.lengths),
    )
    return [part["row"] for part in verl.prepare_micro_batches(data)[0]]


def token_weights(verl, case, mode, size, micro_rows, scale=SCALE):
    """Weight of each token of the padded batch in the sum of a step's losses, [N, T].

    verl's own agg_loss, micro-batch by micro-batch, as its FSDP engine calls it; gradients are
    averaged over the ranks.
    """
    import torch

    plan, longest = case.plan, max(case.lengths)
    losses = torch.ones(plan.padded, longest, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor(case.lengths)
    mask = torch.arange(longest) < lengths[:, None]
    mask &= ~torch.tensor(case.padding)[:, None]
    total = torch.zeros((), dtype=torch.float64)
    for mini in zip(*case.cells(), strict=True):
        tokens = int(sum(mask[cell].sum() for cell in mini))
        for rows in chain(*(micro_batches(verl, case, cell, micro_rows) for cell in mini)):
            # A micro-batch is as wide as its longest response.
            width = int(lengths[rows].max())
            total = total + verl.agg_loss(
                losses[rows, :width], mask[rows, :width], mode, dp_size=plan.dp_size,
                batch_num_tokens=tokens, global_batch_size=size, loss_scale_factor=scale,
            )  # fmt: skip
    (total / plan.dp_size).backward()
    return losses.grad.numpy()


def by_hand(case, mode):
    """The weights as they should be: each survivor alike, whatever the split."""
    plan, padding = case.plan, np.array(case.padding)
    lengths = np.array(case.lengths)
    weights_N = np.zeros(plan.padded)
    if mode == "token-mean":
        for rows in case.mini_batches():
            real = [row for row in rows if not case.padding[row]]
            weights_N[real] = 1.0 / lengths[real].sum()
    elif mode == "seq-mean-token-mean":
        weights_N = plan.mini_batches * loss_weights(lengths, ~padding, LossKind.SEQUENCE_MEAN)
    else:
        weights_N[~padding] = plan.mini_batches / plan.rows
        weights_N /= SCALE if mode.endswith("norm") else 1
    return weights_N[:, None] * (np.arange(max(lengths)) < lengths[:, None])


class TestVerl:
    @settings(max_examples=40)
    @given(case=cases)
    def test_verl_cuts_at_the_cells(self, verl, case):
        assert verls_cells(verl, case) == case.cells()

    @settings(max_examples=20)
    @given(case=cases)
    def test_its_iterator_gives_a_rank_its_mini_batches(self, verl, case):
        plan = case.plan
        data = verl.TensorDict({"row": verl.arange(plan.padded)}, batch_size=plan.padded)
        for rank, part in enumerate(verl.tools.chunk_tensordict(data[case.order], plan.dp_size)):
            found = verl.tools.make_iterator(part, plan.cell_rows, epochs=2, seed=7)
            assert [mini["row"].tolist() for mini in found] == 2 * case.cells()[rank]

    @pytest.mark.parametrize("mode", MODES)
    @settings(max_examples=25)
    @given(case=cases)
    def test_loss_weights(self, verl, case, mode):
        size = case.plan.rows_per_mini_batch
        for micro_rows in {case.plan.micro_rows, case.plan.cell_rows, 1, None}:
            found = token_weights(verl, case, mode, size, micro_rows)
            assert found == pytest.approx(by_hand(case, mode), rel=1e-6)

    @pytest.mark.parametrize("mode", MODES[1:])
    def test_with_verls_own_size_pruning_shrinks_the_loss(self, verl, mode):
        """Of 16 rows in 2 mini-batches 8 are left: verl would divide by 8 each time, not by 4."""
        case = case_of([3, 5, 2, 7, 4, 4, 6, 1], 2, 2)
        found = token_weights(verl, case, mode, 8, case.plan.cell_rows)
        assert found == pytest.approx(by_hand(case, mode) / 2, rel=1e-6)

    def test_without_a_scale_the_norm_depends_on_verls_split(self, verl):
        """It is then the longest response of the micro-batch: 8 for both rows, or 8 and 2."""
        case = case_of([8, 2], 1, 1)
        mode, size = "seq-mean-token-sum-norm", case.plan.rows_per_mini_batch
        together = token_weights(verl, case, mode, size, 2, scale=None)
        apart = token_weights(verl, case, mode, size, 1, scale=None)
        assert together[:, 0].tolist() == [1 / 16, 1 / 16]
        assert apart[:, 0].tolist() == [1 / 16, 1 / 4]
