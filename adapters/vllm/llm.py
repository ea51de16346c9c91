"""Pruning inside a vLLM ``LLM``: groups of rollouts in, survivors and decisions out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from arrol.adapters.vllm.frontend import Ended, Frontend, check_keys
from arrol.adapters.vllm.liveness import watched
from arrol.adapters.vllm.outputs import failed
from arrol.adapters.vllm.request import RolloutRequest, TokenRollout
from arrol.adapters.vllm.support import check_engine, engine_arguments, seeds_crash
from arrol.errors import ArrolError
from arrol.plan import PruningPlan

FETCH = 64  #: finished rollouts that wait for one fetch of their records
STATUS_SECONDS = 0.5  #: time between two looks at the engine's counts


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


class PruningLLM(Frontend):
    """A vLLM ``LLM`` that carries out pruning plans (:class:`arrol.backend.Backend`).

    Args:
        llm: made with :func:`engine_arguments`; in this process or with an engine process.
        engine: its number, where several carry out one plan.
        sentinel: token that ends pruned rollouts; default: :func:`find_sentinel`.
        keep_hidden: hand back the hidden states that the head reads.

    Raises:
        ArrolError: the engine was made without these arguments, or with a setting that pruning
            can't work with.
    """

    def __init__(
        self, llm: Any, engine: int = 0, sentinel: int | None = None, keep_hidden: bool = True
    ) -> None:
        config = llm.llm_engine.vllm_config
        sentinel = check_engine(config, llm.get_tokenizer, sentinel)
        super().__init__(engine, sentinel, keep_hidden, seeds_crash(config))
        self.llm = llm
        self._batches = 0
        self._free = Lock()
        self._push_plan()

    @classmethod
    def of(cls, model: str, **arguments: Any) -> PruningLLM:
        """A new ``LLM``, wrapped; ``arguments`` are vLLM's."""
        from vllm import LLM

        return cls(LLM(model=model, **engine_arguments(**arguments)))

    def load_plan(self, plan: PruningPlan) -> None:
        """Put ``plan`` in force for every rollout decided from now on."""
        self.plan = plan
        self._push_plan()

    def load_head(self, head: Any | None) -> None:
        """Score with this :class:`arrol.head.QualityHead` from now on; None takes it away."""
        self.check_head(head, self.llm.llm_engine.vllm_config.model_config.get_hidden_size())
        self._call("arrol_load_head", self.hold(head))

    def status(self) -> dict[str, Any]:
        """The engine's own word on what is in force, and its counts (see the extension)."""
        status: dict[str, Any] = self._call("arrol_status")[0]
        return status

    def generate(
        self,
        requests: Sequence[RolloutRequest],
        progress: Callable[[Progress], None] | None = None,
    ) -> list[TokenRollout]:
        """Generate all requests; one rollout for each, in the order of their ends.

        Each call is a batch of its own: groups are decided from their first rollout on.

        Args:
            requests: each key once. One whose prompt vLLM refuses comes back failed, with the
                reason.
            progress: called about twice a second.

        Raises:
            ArrolError: sampling parameters that pruning can't work with; nothing is started then.
        """
        return list(self.stream(requests, progress))

    def stream(
        self,
        requests: Sequence[RolloutRequest],
        progress: Callable[[Progress], None] | None = None,
    ) -> Iterator[TokenRollout]:
        """As :meth:`generate`, handing over rollouts as they end; closing it aborts the rest.

        Raises:
            ArrolError: as there, at once; or another batch is under way.
            vllm.v1.engine.exceptions.EngineDeadError: the engine's process has died. What was
                handed over stands; make a new engine and ask for the others again: their draws
                will be the same.
        """
        check_keys(requests)
        return self._stream(requests, [self.one(request) for request in requests], progress)

    def _stream(
        self,
        requests: Sequence[RolloutRequest],
        params: Sequence[Any],
        progress: Callable[[Progress], None] | None,
    ) -> Iterator[TokenRollout]:
        if not self._free.acquire(blocking=False):
            raise ArrolError(
                "a batch is under way; allowed is one at a time: exhaust its stream, or close it."
            )
        try:
            yield from self._run(requests, params, progress)
        finally:
            self._free.release()

    def _run(
        self,
        requests: Sequence[RolloutRequest],
        params: Sequence[Any],
        progress: Callable[[Progress], None] | None,
    ) -> Iterator[TokenRollout]:
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.engine.exceptions import EngineDeadError

        engine = self.llm.llm_engine
        self._start_batch()
        meter = _Meter(len(requests), progress)
        running: dict[str, RolloutRequest] = {}
        dead = False
        try:
            with watched(engine.engine_core):
                for number, (request, sampling) in enumerate(zip(requests, params, strict=True)):
                    name = f"arrol-{self._batches}-{number}"
                    sampling.output_kind = _final_only()
                    try:
                        engine.add_request(name, request.vllm_prompt, sampling)
                    except (TypeError, ValueError, VLLMValidationError) as error:
                        meter.done += 1
                        yield failed(request, str(error))
                        continue
                    running[name] = request
                yield from self._steps(running, meter)
        except EngineDeadError:
            dead = True
            raise
        finally:
            if running and not dead:
                engine.abort_request(list(running))
            if not dead:
                list(self._fetch([], everything=True))  # what is left are orphans
                meter.look(self, 0, last=True)

    def _steps(self, running: dict[str, RolloutRequest], meter: _Meter) -> Iterator[TokenRollout]:
        """Let the engine step until nothing runs; what ends leaves ``running``."""
        engine = self.llm.llm_engine
        ended: list[Ended] = []
        while running:
            for output in engine.step():
                if output.finished and output.request_id in running:
                    ended.append((running.pop(output.request_id), output.outputs[0]))
            if len(ended) >= FETCH or not running or (ended and meter.due):
                meter.done += len(ended)
                handed, ended = ended, []
                yield from self._fetch(handed)
            meter.look(self, len(running))

    def collect(self, requests: Sequence[RolloutRequest], outputs: Any) -> list[TokenRollout]:
        """Rollouts of the ``RequestOutput`` of a request with :meth:`sampling`'s parameters."""
        return list(self._fetch(list(zip(requests, outputs.outputs, strict=True))))

    def _start_batch(self) -> None:
        """A fresh start of all groups. It also heals an engine that lost plan or head."""
        self._batches += 1
        if self.status()["head"] != self._head_version:
            self._call("arrol_load_head", self._head)
        self._push_plan()
        list(self._fetch([], everything=True))  # of a batch that was given up
        self.batch = type(self.batch)()

    def _push_plan(self) -> None:
        for status in self._call("arrol_load_plan", *self.plan_arguments()):
            self.check_status(status)

    def _fetch(self, ended: list[Ended], everything: bool = False) -> Iterator[TokenRollout]:
        """Rollouts with their records."""
        if ended or everything:
            keys = "" if everything else json.dumps([request.key for request, _ in ended])
            yield from self.rollouts(ended, self._call("arrol_take", keys))

    def _call(self, method: str, *arguments: str) -> Any:
        return self.llm.collective_rpc(method, args=arguments)


class _Meter:
    """Looks at the engine's counts now and then."""

    def __init__(self, total: int, report: Callable[[Progress], None] | None) -> None:
        self.done = 0
        self._total, self._report = total, report
        self._start = self._last = time.monotonic()

    @property
    def due(self) -> bool:
        """It is time for another look."""
        return time.monotonic() - self._last >= STATUS_SECONDS

    def look(self, owner: PruningLLM, running: int, last: bool = False) -> None:
        """Report, if it is time to."""
        if not self.due and not last:
            return
        self._last = now = time.monotonic()
        if self._report is None:
            return
        status = owner.status()
        seconds = now - self._start
        self._report(
            Progress(self._total, self.done, running, status["pruned"], status["tokens"], seconds)
        )


def _final_only() -> Any:
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.FINAL_ONLY
