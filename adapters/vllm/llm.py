"""Pruning inside a vLLM engine: groups of rollouts in, survivors and decisions out."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from arrol.adapters.vllm.outputs import failed, finished
from arrol.adapters.vllm.pruner import Record, unpack
from arrol.adapters.vllm.request import (
    PruningArgs,
    RolloutRequest,
    TokenRollout,
    rollout_seed,
    with_pruning,
)
from arrol.adapters.vllm.support import check_equipped, engine_arguments, find_sentinel
from arrol.errors import ArrolError, check_integer
from arrol.plan import PruningPlan
from arrol.records import Mode

FETCH = 64  #: finished rollouts that wait for one fetch of their records
STATUS_SECONDS = 0.5  #: time between two looks at the engine's counts
_log = logging.getLogger("arrol")


@dataclass
class Progress:
    """How far a batch is.

    Attributes:
        total, done, running: rollouts.
        pruned: those that the engine has ended so far.
        tokens: tokens that the engine has generated.
        seconds: wall time since the start.
    """

    total: int
    done: int = 0
    running: int = 0
    pruned: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass
class Batch:
    """What is left over from a batch, beside its rollouts.

    Attributes:
        orphans: records of rollouts that had ended when they were decided (a stop string, an
            abort). With systematic draws, ``plan.replay`` wants them too.
        undecided: whole rollouts that went past the detection length without a decision: their
            engine had lost its plan.
    """

    orphans: list[Record] = field(default_factory=list)
    undecided: int = 0


class PruningLLM:
    """A vLLM ``LLM`` that carries out pruning plans (:class:`arrol.backend.Backend`).

    Args:
        llm: made with :func:`engine_arguments`; in this process or with an engine process.
        engine: its number, where several carry out one plan.
        sentinel: token that ends pruned rollouts; default: :func:`find_sentinel`.
        keep_hidden: hand back the hidden states that the head reads.

    Attributes:
        plan: the plan in force.
        batch: leftovers of the last batch.

    Raises:
        ArrolError: the engine was made without these arguments, or with a setting that pruning
            can't work with.
    """

    def __init__(
        self, llm: Any, engine: int = 0, sentinel: int | None = None, keep_hidden: bool = True
    ) -> None:
        check_integer("engine", engine, 0)
        config = llm.llm_engine.vllm_config
        check_equipped(config)
        if config.parallel_config.data_parallel_size > 1:
            raise ArrolError(
                f"data_parallel_size is {config.parallel_config.data_parallel_size}; allowed is 1: "
                "make one engine a rank and number them."
            )
        self.llm = llm
        self.engine = engine
        self.keep_hidden = keep_hidden
        self.plan: PruningPlan | None = None
        self.batch = Batch()
        vocab_size = config.model_config.get_vocab_size()
        if sentinel is None:
            tokenizer = None if config.model_config.skip_tokenizer_init else llm.get_tokenizer()
            sentinel = find_sentinel(tokenizer, vocab_size, _ends(config.model_config))
        check_integer("sentinel", sentinel, 0, vocab_size - 1)
        self.sentinel = sentinel
        self._head = ""
        self._head_version: int | None = None
        self._batches = 0
        self._push_plan()

    @classmethod
    def of(cls, model: str, **arguments: Any) -> PruningLLM:
        """A new in-process ``LLM``, wrapped; ``arguments`` are vLLM's."""
        from vllm import LLM

        return cls(LLM(model=model, **engine_arguments(**arguments)))

    def load_plan(self, plan: PruningPlan) -> None:
        """Put ``plan`` in force for every rollout decided from now on."""
        self.plan = plan
        self._push_plan()

    def load_head(self, head: Any | None) -> None:
        """Score with this :class:`arrol.head.QualityHead` from now on; None takes it away."""
        self._head = "" if head is None else base64.b64encode(head.to_bytes()).decode("ascii")
        self._head_version = None if head is None else head.version
        self._call("arrol_load_head", self._head)

    def status(self) -> dict[str, Any]:
        """The engine's own word on what is in force, and its counts (see the extension)."""
        status: dict[str, Any] = self._call("arrol_status")
        return status

    def generate(
        self,
        requests: Sequence[RolloutRequest],
        progress: Callable[[Progress], None] | None = None,
    ) -> list[TokenRollout]:
        """Generate all requests; one rollout for each, in the order of their ends.

        Each call is a batch of its own: groups are decided from their first rollout on.

        Args:
            requests: each key once. One that vLLM refuses comes back failed, with the reason.
            progress: called about twice a second.
        """
        return list(self.stream(requests, progress))

    def stream(
        self,
        requests: Sequence[RolloutRequest],
        progress: Callable[[Progress], None] | None = None,
    ) -> Iterator[TokenRollout]:
        """As :meth:`generate`, handing over rollouts as they end; closing it aborts the rest."""
        self._start_batch()
        engine = self.llm.llm_engine
        running: dict[str, RolloutRequest] = {}
        ended: list[tuple[RolloutRequest, Any]] = []
        meter = _Meter(len(requests), progress)
        self._batches += 1
        for number, request in enumerate(requests):
            name = f"arrol-{self._batches}-{number}"
            try:
                engine.add_request(name, _prompt(request), self._sampling(request))
            except ValueError as error:
                meter.done += 1
                yield failed(request, str(error))
                continue
            running[name] = request
        try:
            while running or ended:
                for output in engine.step() if running else ():
                    if output.finished and output.request_id in running:
                        ended.append((running.pop(output.request_id), output.outputs[0]))
                if len(ended) >= FETCH or not running:
                    meter.done += len(ended)
                    yield from self._fetch(ended)
                    ended = []
                meter.look(self, len(running))
        finally:
            if running:
                engine.abort_request(list(running))
            self.batch.orphans += self._take()
            meter.look(self, 0, last=True)

    def sampling(self, params: Any, requests: Sequence[RolloutRequest]) -> Any:
        """``SamplingParams`` for ``LLM.generate``, where one call with n > 1 makes a whole group.

        Args:
            params: with n = the number of requests.
            requests: rollouts of one group, with consecutive indices. Read the outputs with
                :meth:`collect`.
        """
        first = requests[0]
        args = PruningArgs(
            tuple(request.key for request in requests), first.group, first.index, first.group_size,
            first.detect_length or self._detect_length, self.sentinel,
        )  # fmt: skip
        return with_pruning(params, args)

    def collect(self, requests: Sequence[RolloutRequest], outputs: Any) -> list[TokenRollout]:
        """Rollouts of vLLM's ``RequestOutput`` of :meth:`sampling`'s request."""
        return list(self._fetch(list(zip(requests, outputs.outputs, strict=True))))

    @property
    def _detect_length(self) -> int:
        return 1 if self.plan is None else self.plan.detect_length

    def _start_batch(self) -> None:
        """A fresh start of all groups. It also heals an engine that lost plan or head."""
        self.batch = Batch()
        if self.status()["head"] != self._head_version:
            self._call("arrol_load_head", self._head)
        self._push_plan()
        self._take()  # of a batch that was given up

    def _push_plan(self) -> None:
        text = "" if self.plan is None else self.plan.to_json()
        keep = "1" if self.keep_hidden else "0"
        status = self._call("arrol_load_plan", text, str(self.engine), keep)
        wanted = None if self.plan is None else self.plan.version
        if status["plan"] != wanted:
            raise RuntimeError(f"engine {self.engine} has plan {status['plan']}, not {wanted}.")

    def _sampling(self, request: RolloutRequest) -> Any:
        params = request.sampling
        if type(params).__name__ == "BeamSearchParams" or getattr(params, "n", 0) != 1:
            raise ArrolError(
                f"sampling is {params!r}; allowed is SamplingParams with n = 1 for each rollout."
            )
        seed = None if params.seed is None else rollout_seed(params.seed, request.key)
        if self.plan is None or self.plan.mode is Mode.OFF:
            changed = params.clone()
            changed.seed = seed
        else:
            length = request.detect_length or self._detect_length
            args = PruningArgs(
                (request.key,), request.group, request.index, request.group_size, length,
                self.sentinel,
            )  # fmt: skip
            changed = with_pruning(params, args, seed)
        changed.output_kind = _final_only()
        return changed

    def _fetch(self, ended: list[tuple[RolloutRequest, Any]]) -> Iterator[TokenRollout]:
        """Rollouts with their records."""
        if not ended:
            return
        keys = [request.key for request, _ in ended]
        records = {record.detection.key: record for record in self._take(keys)}
        for request, output in ended:
            record = records.get(request.key)
            length = request.detect_length or self._detect_length
            rollout, orphan = finished(request, output, record, self.sentinel, length)
            if orphan is not None:
                self.batch.orphans.append(orphan)
            yield self._judge(rollout, length)

    def _judge(self, rollout: TokenRollout, length: int) -> TokenRollout:
        """Count a rollout that should have been decided and was not."""
        decides = self.plan is not None and self.plan.mode is not Mode.OFF
        if decides and rollout.detection is None and rollout.survived and rollout.tokens > length:
            if self.batch.undecided == 0:
                _log.warning("Engine %d has lost its plan: rollouts are kept.", self.engine)
            self.batch.undecided += 1
        return rollout

    def _take(self, keys: Sequence[int] | None = None) -> list[Record]:
        packed = self._call("arrol_take", "" if keys is None else json.dumps(keys))
        return unpack(packed)

    def _call(self, method: str, *arguments: str) -> Any:
        """The first worker's answer that says something: ranks of one layer decide alike."""
        answers = self.llm.collective_rpc(method, args=arguments)
        return next((a for a in answers if a.get("detections") not in (None, "[]")), answers[0])


class _Meter:
    """Looks at the engine's counts now and then."""

    def __init__(self, total: int, report: Callable[[Progress], None] | None) -> None:
        self.done = 0
        self._total, self._report = total, report
        self._start = self._last = time.monotonic()

    def look(self, owner: PruningLLM, running: int, last: bool = False) -> None:
        """Report, if it is time to."""
        now = time.monotonic()
        if self._report is None or (now - self._last < STATUS_SECONDS and not last):
            return
        self._last = now
        status = owner.status()
        seconds = now - self._start
        self._report(
            Progress(self._total, self.done, running, status["pruned"], status["tokens"], seconds)
        )


def _prompt(request: RolloutRequest) -> Any:
    if isinstance(request.prompt, str):
        return request.prompt
    return {"prompt_token_ids": list(request.prompt)}


def _ends(model_config: Any) -> set[int]:
    """Tokens that end a text by the model's generation config."""
    ends = (model_config.try_get_generation_config() or {}).get("eos_token_id") or []
    return set(ends) if isinstance(ends, list) else {ends}


def _final_only() -> Any:
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.FINAL_ONLY
