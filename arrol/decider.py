"""The plan in force at one engine: the running sums of its groups, and the decisions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from arrol.columns import check_one_length
from arrol.config import Draw
from arrol.draws import bernoulli_keep, systematic_keep, systematic_keeps
from arrol.errors import check_integer
from arrol.keys import as_keys, stream, uniform, uniforms
from arrol.records import DecisionReason, Detection, Mode, Request
from arrol.seen_scores import is_score
from arrol.survival import FeedbackRule

if TYPE_CHECKING:
    from arrol.plan import PruningPlan

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_REASONS = tuple(DecisionReason)
_CODES = {reason: code for code, reason in enumerate(_REASONS)}


@dataclass(frozen=True)
class Decisions:
    """Decisions on N rollouts, as arrays [N]; ``reasons_N`` are places in ``DecisionReason``."""

    keys_N: NDArray[np.uint64]
    groups_N: NDArray[np.uint64]
    indices_N: Ints
    group_sizes_N: Ints
    ranks_N: Ints
    scores_N: Floats
    posteriors_N: Floats
    survivals_N: Floats
    keeps_N: NDArray[np.bool_]
    reasons_N: NDArray[np.int8]
    version: int
    enforced: bool
    engine: int

    def __len__(self) -> int:
        return len(self.keys_N)

    @property
    def inclusion_N(self) -> Floats:
        """Probability with which each outcome gets to be seen (see ``Detection.inclusion``)."""
        return self.survivals_N if self.enforced else np.ones(len(self))

    def detections(self) -> list[Detection]:
        """The same as records, row by row."""
        columns = (
            self.keys_N,
            self.groups_N,
            self.indices_N,
            self.group_sizes_N,
            self.ranks_N,
            self.scores_N,
            self.posteriors_N,
            self.survivals_N,
            self.keeps_N,
        )
        reasons = [_REASONS[code] for code in self.reasons_N.tolist()]
        rows = zip(*(column.tolist() for column in columns), reasons, strict=True)
        constants = (self.version, self.enforced, self.engine)
        return [Detection(*(row + constants)) for row in rows]


# Running sums of one group at one engine: how many were decided, C = Σp, Σq, how many were kept.
_Sums = tuple[int, float, float, int]
_START: _Sums = (0, 0.0, 0.0, 0)


class Decider:
    """Decides rollouts as they reach the detection length, one by one or many at once.

    Both ways give equal results to the last bit and continue from the same state. Rollouts that
    arrive in one engine step are decided in order of their index within the group.
    """

    def __init__(self, plan: PruningPlan, engine: int, head_version: int) -> None:
        self._plan = plan
        self._engine = engine
        # Parts of a group at other engines draw independently.
        self._stream = stream(plan.seed, plan.version)
        self._group_stream = stream(self._stream, engine)
        self._enforced = plan.mode is Mode.ON
        self._systematic = plan.draw is Draw.SYSTEMATIC
        self.hold_head(head_version)
        self._neutral = plan.rule.mean if isinstance(plan.rule, FeedbackRule) else 0.0
        self._shares: dict[int, float] = {}  # κ' by group size
        self._draws: dict[int, float] = {}  # u by group, as far as asked for one by one
        self._groups: dict[int, _Sums] = {}

    def hold_head(self, version: int) -> None:
        """Say which quality head the engine holds now; 0 for none."""
        self._keep_all = _reason_to_keep_all(self._plan, version)

    def decide_one(self, request: Request, score: float | None) -> Detection:
        """Decide one rollout.

        Args:
            request: which one; ``group_size`` counts the group's rollouts at this engine.
            score: quality score s in [0, 1]; None or NaN keeps it.

        Raises:
            ArrolError: ``group_size`` is below 1.
        """
        group, size = request.group, request.group_size
        if size < 1:
            check_integer("group_size", size, 1)
        rank, spent, seen, kept = self._groups.get(group, _START)
        score = math.nan if score is None else float(score)
        posterior, survival, keep = math.nan, 1.0, True
        reason = self._keep_all or self._reason_to_keep(score, size)
        if reason is None:
            assert self._plan.calibration is not None
            reason = DecisionReason.DRAW
            posterior = self._plan.calibration.posterior(score)
            survival = self._survival(posterior, size, rank, spent, seen)
            keep = self._draw(request, survival, spent)
            # Whatever comes after, pruning it would leave fewer than ``min_survivors``.
            minimum = self._plan.min_survivors
            if minimum and not keep and kept + size - rank - 1 < minimum:
                keep, reason = True, DecisionReason.FORCED
        seen += self._neutral if posterior != posterior else posterior
        self._groups[group] = (rank + 1, spent + survival, seen, kept + keep)
        return Detection(
            request.key,
            group,
            request.index,
            size,
            rank,
            score,
            posterior,
            survival,
            keep,
            reason,
            self._plan.version,
            self._enforced,
            self._engine,
        )

    def decide(
        self,
        scores_N: Any,
        keys_N: Any,
        groups_N: Any,
        indices_N: Any | None = None,
        group_size: Any | None = None,
    ) -> Decisions:
        """Decide N rollouts that arrive in one step (arguments: see ``PruningPlan.decide``)."""
        rows = _Rows.of(scores_N, keys_N, groups_N, indices_N, group_size)
        reasons_N = self._reasons(rows)
        drawn_N = reasons_N == _CODES[DecisionReason.DRAW]
        posteriors_N = np.full(len(rows.scores_N), np.nan)
        if drawn_N.any():
            assert self._plan.calibration is not None
            posteriors_N[drawn_N] = self._plan.calibration.posteriors_of(rows.scores_N[drawn_N])
        survivals_N, keeps_N, ranks_N = self._decide_waves(rows, posteriors_N, reasons_N)
        return Decisions(
            rows.keys_N,
            rows.groups_N,
            rows.indices_N,
            rows.sizes_N,
            ranks_N,
            rows.scores_N,
            posteriors_N,
            survivals_N,
            keeps_N,
            reasons_N,
            self._plan.version,
            self._enforced,
            self._engine,
        )

    def _decide_waves(
        self, rows: _Rows, posteriors_N: Floats, reasons_N: NDArray[np.int8]
    ) -> tuple[Floats, NDArray[np.bool_], Ints]:
        """Decide the first row of every group, then the second of every group, and so on.

        Returns:
            p, decision and rank of each row; in ``reasons_N`` it marks those that it forces.
        """
        rule, minimum = self._plan.rule, self._plan.min_survivors
        groups = rows.unique_B.tolist()
        sums_B4 = np.zeros((len(groups), 4))
        if groups and self._groups:
            sums_B4[:] = [self._groups.get(group, _START) for group in groups]
        rank_B, spent_B, seen_B, kept_B = sums_B4.T.copy()
        u_B = uniforms(self._group_stream, rows.unique_B)
        order_N, waves = rows.waves()
        # All columns in the order of the waves, so that each wave is a slice of them.
        codes_N, sizes_N = rows.codes_N[order_N], rows.sizes_N[order_N]
        posteriors_N = posteriors_N[order_N]
        drawn_N = reasons_N[order_N] == _CODES[DecisionReason.DRAW]
        shares_N = self._shares_of(sizes_N)
        u_N = u_B[codes_N] if self._systematic else uniforms(self._stream, rows.keys_N[order_N])
        survivals_N, keeps_N = np.empty(len(order_N)), np.empty(len(order_N), dtype=np.bool_)
        ranks_N, forced_N = np.empty_like(sizes_N), np.zeros(len(order_N), dtype=np.bool_)
        all_drawn = bool(drawn_N.all())
        for wave in waves:
            q, sizes = posteriors_N[wave], sizes_N[wave]
            # A wave holds each group once, in order: where it holds all, views save the copies.
            b = slice(None) if len(q) == len(groups) else codes_N[wave]
            ranks = rank_B[b].copy()
            if isinstance(rule, FeedbackRule):
                p = rule.survivals(q, shares_N[wave], sizes, ranks, spent_B[b], seen_B[b])
            else:
                p = rule.survivals(q)
            keep = systematic_keeps(u_N[wave], spent_B[b], p) if self._systematic else u_N[wave] < p
            if not all_drawn:
                drawn = drawn_N[wave]
                p, keep = np.where(drawn, p, 1.0), np.where(drawn, keep, True)
                q = np.where(drawn, q, self._neutral)
            if minimum:
                forced_N[wave] = ~keep & (kept_B[b] + sizes - ranks - 1 < minimum)
                keep = keep | forced_N[wave]
            survivals_N[wave], keeps_N[wave], ranks_N[wave] = p, keep, ranks
            rank_B[b] += 1
            spent_B[b] += p
            seen_B[b] += q
            kept_B[b] += keep
        reasons_N[order_N[forced_N]] = _CODES[DecisionReason.FORCED]
        ranks, kepts = rank_B.astype(np.int64).tolist(), kept_B.astype(np.int64).tolist()
        sums_B = zip(ranks, spent_B.tolist(), seen_B.tolist(), kepts, strict=True)
        self._groups.update(zip(groups, sums_B, strict=True))
        rows_N = np.empty_like(order_N)
        rows_N[order_N] = np.arange(len(order_N))  # back to the order of the rows
        return survivals_N[rows_N], keeps_N[rows_N], ranks_N[rows_N]

    def _reason_to_keep(self, score: float, group_size: int) -> DecisionReason | None:
        if not 0.0 <= score <= 1.0:
            return DecisionReason.BAD_SCORE
        if group_size <= self._plan.min_survivors:
            return DecisionReason.SMALL_GROUP
        return None

    def _reasons(self, rows: _Rows) -> NDArray[np.int8]:
        n = len(rows.scores_N)
        if self._keep_all is not None:
            return np.full(n, _CODES[self._keep_all], dtype=np.int8)
        reasons_N = np.full(n, _CODES[DecisionReason.DRAW], dtype=np.int8)
        small_N = rows.sizes_N <= self._plan.min_survivors
        reasons_N[small_N] = _CODES[DecisionReason.SMALL_GROUP]
        reasons_N[~is_score(rows.scores_N)] = _CODES[DecisionReason.BAD_SCORE]
        return reasons_N

    def _survival(self, posterior: float, size: int, rank: int, spent: float, seen: float) -> float:
        rule = self._plan.rule
        if isinstance(rule, FeedbackRule):
            return rule.survival(posterior, self._share(size), size, rank, spent, seen)
        return rule.survival(posterior)

    def _draw(self, request: Request, survival: float, spent: float) -> bool:
        if self._systematic:
            u = self._draws.get(request.group)
            if u is None:
                u = self._draws[request.group] = uniform(self._group_stream, request.group)
            return systematic_keep(u, spent, survival)
        return bernoulli_keep(uniform(self._stream, request.key), survival)

    def _share(self, group_size: int) -> float:
        share = self._shares.get(group_size)
        if share is None:
            rule = self._plan.rule
            share = rule.share(group_size) if isinstance(rule, FeedbackRule) else 0.0
            self._shares[group_size] = share
        return share

    def _shares_of(self, sizes_N: Ints) -> Floats:
        """κ' of each row's group size; not read by rules without a budget."""
        if sizes_N.size and sizes_N.min() == sizes_N.max():
            return np.full(len(sizes_N), self._share(int(sizes_N[0])))
        sizes, places_N = np.unique(sizes_N, return_inverse=True)
        return np.array([self._share(size) for size in sizes.tolist()])[places_N]


@dataclass(frozen=True)
class _Rows:
    """The arguments of one call, with the groups numbered."""

    scores_N: Floats
    keys_N: NDArray[np.uint64]
    groups_N: NDArray[np.uint64]
    indices_N: Ints
    sizes_N: Ints
    unique_B: NDArray[np.uint64]
    codes_N: Ints

    @classmethod
    def of(
        cls,
        scores_N: Any,
        keys_N: Any,
        groups_N: Any,
        indices_N: Any | None,
        group_size: Any | None,
    ) -> _Rows:
        scores_N = np.asarray(scores_N, dtype=np.float64)
        n = len(scores_N)
        groups_N = as_keys(groups_N)
        unique_B, codes_N = np.unique(groups_N, return_inverse=True)
        if indices_N is None:
            indices_N = np.arange(n)
        if group_size is None:
            group_size = np.bincount(codes_N, minlength=len(unique_B))[codes_N]
        sizes_N = np.asarray(group_size, dtype=np.int64)
        sizes_N = np.full(n, sizes_N) if sizes_N.ndim == 0 else sizes_N
        indices_N = np.asarray(indices_N, dtype=np.int64)
        keys_N = as_keys(keys_N)
        check_one_length(
            scores=scores_N, keys=keys_N, groups=groups_N, indices=indices_N, group_size=sizes_N
        )
        if n and sizes_N.min() < 1:
            check_integer("group_size", int(sizes_N.min()), 1)
        return cls(scores_N, keys_N, groups_N, indices_N, sizes_N, unique_B, codes_N)

    def waves(self) -> tuple[Ints, list[slice]]:
        """The rows' order by their place within their group, and the slice of each place."""
        order_N = np.lexsort((_narrow(self.indices_N), _narrow(self.codes_N)))
        counts_B = np.bincount(self.codes_N, minlength=len(self.unique_B))
        starts_B = np.cumsum(counts_B) - counts_B
        places_N = np.arange(len(order_N)) - np.repeat(starts_B, counts_B)
        ends = np.cumsum(np.bincount(places_N)).tolist()
        slices = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        return order_N[np.argsort(_narrow(places_N), kind="stable")], slices


def _narrow(values_N: Ints) -> NDArray[np.signedinteger[Any] | np.unsignedinteger[Any]]:
    """The same values in 16 bits where they fit: numpy then sorts by radix, 6× as fast."""
    fits = values_N.size > 0 and values_N.min() >= 0 and values_N.max() < 2**16
    return values_N.astype(np.uint16) if fits else values_N


def _reason_to_keep_all(plan: PruningPlan, head_version: int) -> DecisionReason | None:
    if head_version == 0:
        return DecisionReason.NO_HEAD
    if head_version != plan.head_version:
        return DecisionReason.OLD_HEAD
    if plan.calibration is None:
        return DecisionReason.COLD_START
    return None
