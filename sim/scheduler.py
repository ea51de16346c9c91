"""Continuous batching at one engine: who waits, who runs, and who makes room in the KV cache.

The scheduler knows steps and tokens but no time; :mod:`arrol.sim.engine` adds the time. One step:

1. Each decoder needs a slot for one more token. While they don't fit, the newest-admitted running
   request is preempted: its own KV is freed and it goes to the front of the queue with its g
   generated tokens. One that runs alone and doesn't fit fails.
2. What the decoders leave of ``max_batched_tokens`` goes to prefills: first to running ones in
   order of admission, then to waiting ones, admitted first in first out while a sequence slot, a
   token of the budget and their KV are free. A step that preempted admits nobody.
3. At its end each decoder has one token more, and each prefill with nothing left to compute has
   sampled its next token and decodes from the next step on.

KV accounting is exact to a token, as in vLLM: the KV of a token is written by the step that
consumes it, so a decoder with g tokens stores g − 1 and a prefill the g that it computes again. The
prompt of a group is stored once while any member runs, and computed once: who joins computes
max(1, g) tokens, who comes first prompt + g. A request whose prompt + max(1, g) exceeds the cache
can never run and fails when its turn comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from arrol.errors import check_integer
from arrol.records import Detection, FinishReason, Request


@dataclass(frozen=True, slots=True)
class SimulatedRequest(Request):
    """A request whose fate is known beforehand, for the engine to play out.

    Attributes:
        prompt_tokens: tokens of its prompt, the same for the whole group, at least 1.
        length: tokens that it generates if nobody prunes it, at least 1.
        score: what the quality head would say at the detection length; NaN where it can't.
        outcome: 1 if its answer is right, else 0.
        finish_reason: how it ends if nobody prunes it: stop, or length where the cap cuts it.

    Raises:
        ArrolError: ``prompt_tokens`` or ``length`` is below 1.
    """

    prompt_tokens: int
    length: int
    score: float = float("nan")
    outcome: int = 0
    finish_reason: FinishReason = FinishReason.STOP

    def __post_init__(self) -> None:
        if self.length < 1 or self.prompt_tokens < 1:  # one test, as there may be millions
            check_integer("length", self.length, 1)
            check_integer("prompt_tokens", self.prompt_tokens, 1)


@dataclass(frozen=True)
class EngineLimits:
    """What one engine holds at once.

    Attributes:
        max_num_seqs: sequences that run (prefill or decode) at once.
        max_batched_tokens: tokens computed in one step, decoded and prefilled together.
        kv_tokens: tokens that the KV cache stores.

    Raises:
        ArrolError: a limit is not an integer of at least 1.
    """

    max_num_seqs: int = 256
    max_batched_tokens: int = 8192
    kv_tokens: int = field(kw_only=True)

    def __post_init__(self) -> None:
        check_integer("max_num_seqs", self.max_num_seqs, 1)
        check_integer("max_batched_tokens", self.max_batched_tokens, 1)
        check_integer("kv_tokens", self.kv_tokens, 1)


class Sequence:
    """A request on its way through an engine.

    Attributes:
        order: (group, index, key): the order in which sequences due in one step are handled.
        generated: g, while it waits or prefills. A decoder's g is ``clock − start``.
        todo: prefill tokens not yet computed; 0 for a decoder.
        start: the step count at which a decoder would have had no token.
        due: the step count of its next event; 0 where it has none.
        admitted: time of its last admission [s].
        preempted: it was preempted before.
        detection: the decision about it, once made.
    """

    __slots__ = (
        "admitted",
        "detection",
        "due",
        "generated",
        "order",
        "preempted",
        "request",
        "start",
        "todo",
    )

    def __init__(self, request: SimulatedRequest) -> None:
        self.request = request
        self.order = (request.group, request.index, request.key)
        self.generated = 0
        self.todo = 0
        self.start = 0
        self.due = 0
        self.admitted = 0.0
        self.preempted = False
        self.detection: Detection | None = None


class Scheduler:
    """The queue, the running set and the KV cache of one engine.

    Args:
        requests: what comes to this engine, in order of arrival.
        limits: sequences, tokens a step and KV tokens that the engine holds.

    Attributes:
        clock: steps done so far.
        decoders: sequences that decode, n.
        read: Σ (prompt + g) over the decoders: KV tokens that the next step reads, K.
        room: KV tokens that the cache has left.
        failed: sequences that can't run, for the engine to collect.
        preemptions, prefill_tokens, recomputed_tokens: counts so far.
    """

    def __init__(self, requests: Iterable[SimulatedRequest], limits: EngineLimits) -> None:
        self.limits = limits
        self.clock = 0
        self.decoders = 0
        self.read = 0
        self.room = limits.kv_tokens
        self.preemptions = 0
        self.prefill_tokens = 0
        self.recomputed_tokens = 0
        self.failed: list[Sequence] = []
        self.running: dict[int, Sequence] = {}  # by key, in order of admission
        self._waiting = deque(map(Sequence, requests))
        self._prefilling: deque[Sequence] = deque()  # in order of admission, hence of completion
        self._members: dict[int, int] = {}  # running members of each group

    def make_room(self) -> list[Sequence]:
        """Evict the newest until every decoder's next token fits; return who had to go."""
        evicted: list[Sequence] = []
        while self.decoders > self.room:
            newest = next(reversed(self.running.values()))
            self.remove(newest)
            evicted.append(newest)
            if self.running:
                self.preemptions += 1
                newest.preempted = True
                self._waiting.appendleft(newest)
            else:
                self.failed.append(newest)
        return evicted

    def prefill(self, now: float) -> int:
        """Hand out this step's prefill tokens, first to running, then to new sequences.

        Who was evicted in this step heads the queue and can't fit again while others decode, as
        what it freed went to them: it holds the queue up.

        Returns:
            How many tokens the step prefills.
        """
        budget = self.limits.max_batched_tokens - self.decoders
        left = budget
        for sequence in self._prefilling:
            left -= self._compute(sequence, left)
        free = self.limits.max_num_seqs - len(self.running)
        while left > 0 and free > 0 and (newcomer := self._admit(now)):
            left -= self._compute(newcomer, left)
            free -= 1
        return budget - left

    def advance(self, steps: int) -> list[Sequence]:
        """Let ``steps`` steps pass; return the sequences that decode from here on."""
        self.clock += steps
        grown = self.decoders * steps
        self.read += grown
        self.room -= grown
        starting: list[Sequence] = []
        prefilling = self._prefilling
        while prefilling and not prefilling[0].todo:
            sequence = prefilling.popleft()
            sequence.generated += 1
            sequence.start = self.clock - sequence.generated
            self.decoders += 1
            self.read += sequence.request.prompt_tokens + sequence.generated
            starting.append(sequence)
        return starting

    def remove(self, sequence: Sequence) -> None:
        """Take a running sequence out and free its KV, and its prompt's if it was the last."""
        request = sequence.request
        del self.running[request.key]
        if sequence.todo:  # only the newest is ever removed while it prefills
            self._prefilling.pop()
            self.room += sequence.generated
        else:
            sequence.generated = generated = self.clock - sequence.start
            sequence.due = 0
            self.decoders -= 1
            self.read -= request.prompt_tokens + generated
            self.room += generated - 1
        members = self._members[request.group] - 1
        if members:
            self._members[request.group] = members
        else:
            del self._members[request.group]
            self.room += request.prompt_tokens

    def _compute(self, sequence: Sequence, left: int) -> int:
        chunk = min(sequence.todo, left)
        sequence.todo -= chunk
        self.prefill_tokens += chunk
        if sequence.preempted:
            self.recomputed_tokens += chunk
        return chunk

    def _admit(self, now: float) -> Sequence | None:
        """Admit the head of the queue if its KV fits; heads that can never fit fail on the way."""
        while self._waiting:
            head = self._waiting[0]
            request, generated = head.request, head.generated
            if request.prompt_tokens + max(1, generated) > self.limits.kv_tokens:
                self.failed.append(self._waiting.popleft())
                continue
            members = self._members.get(request.group, 0)
            need = generated if members else request.prompt_tokens + generated
            if self.decoders + need > self.room:
                return None
            self._waiting.popleft()
            self._members[request.group] = members + 1
            self.running[request.key] = head
            self._prefilling.append(head)
            self.room -= need
            head.todo = max(1, need)
            head.admitted = now
            return head
        return None
