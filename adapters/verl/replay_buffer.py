"""verl's replay buffer, which lets survivors through and judges groups by their outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from arrol.adapters.verl.rollouts import Row, verdicts

TRAIN = "train"  #: verl's name for the partition of training rollouts

Reader = Callable[[Sequence[str], Sequence[dict[str, Any]]], list[Row]]


class PruningReplayBuffer(ReplayBuffer):
    """Samples whole groups, as verl does, and hands out their survivors.

    With dynamic sampling (DAPO) a group without signal is one whose survivors have a single
    outcome, or of which fewer than two survived. verl compares the values of a metric over all
    rows, and pruned ones have none.

    Args:
        read: rows of these keys and tags.
        timer: takes the time of sorting the survivors out.
        arguments: verl's.

    Attributes:
        sampled: all rows of the groups sampled last, the pruned ones too.
        left: rows of groups that were filtered or in surplus since the last sample; they are
            observed as well, as nothing may be filtered by its label before.
        refilled: prompts asked for beyond the batch since the last sample.
    """

    def __init__(
        self, read: Reader, timer: Callable[[], AbstractContextManager[Any]], **arguments: Any
    ) -> None:
        refill = arguments.pop("refill_fn")
        super().__init__(refill_fn=self._refill, **arguments)
        self._read = read
        self._timer = timer
        self._ask = refill
        self.sampled: list[Row] = []
        self.left: list[Row] = []
        self.refilled = 0

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """As verl's, without pruned and failed rows; another batch where nobody survived."""
        if partition_id != TRAIN:
            whole: tuple[KVBatchMeta, dict[str, Any]] = super().sample(
                global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
            )
            return whole
        self.sampled, self.left, self.refilled = [], [], 0
        while True:
            batch, metrics = super().sample(
                global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
            )
            with self._timer():
                survivors = self._survivors(batch)
            if len(survivors):
                return survivors, metrics
            # With independent draws it can happen that a whole batch is pruned.
            self._refill(batch_size)

    def score(self, rows: Sequence[Row]) -> None:
        """Put rows in place of those sampled, which a colocated reward model had not seen yet."""
        scored = {row.row_key: row for row in rows}
        self.sampled = [scored.get(row.row_key, row) for row in self.sampled]

    def _survivors(self, batch: KVBatchMeta) -> KVBatchMeta:
        # Rows come in the order in which they were finished; training should not depend on it.
        order = sorted(range(len(batch)), key=lambda i: _place(batch.keys[i]))
        keys, tags = [batch.keys[i] for i in order], [batch.tags[i] for i in order]
        rows = self._read(keys, tags)
        self.sampled += rows
        gone = [row.row_key for row in rows if not row.survived]
        if gone:
            tq.kv_clear(keys=gone, partition_id=batch.partition_id)
        kept = [i for i, row in enumerate(rows) if row.survived]
        return KVBatchMeta(
            partition_id=batch.partition_id,
            keys=[keys[i] for i in kept],
            tags=[tags[i] for i in kept],
        )

    def _refill(self, prompts: int) -> Any:
        self.refilled += prompts
        return self._ask(prompts)

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        if partition_id == TRAIN and uids:
            partition = self.partitions[partition_id]
            keys = sorted((key for key in partition if _uid(key) in uids), key=_place)
            self.left += self._read(keys, [partition[key] for key in keys])
        super()._clear_groups(partition_id, uids)

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter[float]]:
        if partition_id != TRAIN or self.filter_groups_metric is None:
            return set(), Counter()
        done = self.finished_keys[partition_id]
        known = self._dapo_classification_cache[partition_id]
        for uid in known.keys() - done:
            del known[uid]
        new = done - known.keys()
        partition = self.partitions[partition_id]
        keys = [key for key in partition if _uid(key) in new]
        rows = self._read(keys, [partition[key] for key in keys])
        lost = verdicts(rows)
        for uid in new:
            outcomes = [r.outcome for r in rows if r.uid == uid and r.outcome is not None]
            # verl keeps a number for what is filtered; ours is the pass rate of the survivors.
            rate = sum(outcomes) / len(outcomes) if outcomes else 0.0
            known[uid] = rate if lost.get(uid, _NOBODY) is not None else None
        filtered = {uid: rate for uid, rate in known.items() if rate is not None}
        return set(filtered), Counter(filtered.values())


_NOBODY = object()


def _uid(key: str) -> str:
    return key.split("_")[0]


def _place(key: str) -> tuple[str, int, int]:
    uid, session, part = key.rsplit("_", 2)
    return uid, int(session), int(part)
