"""Pruning inside a running ``vllm serve``, over HTTP.

The server is vLLM's own, started as::

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL \\
        --logits-processors arrol.adapters.vllm.processor:PruningLogitsProcessor \\
        --worker-extension-cls arrol.adapters.vllm.worker.PruningWorkerExtension

Development mode opens vLLM's route to ``collective_rpc``, which plan, head and records take: keep
such a server off public networks.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from types import SimpleNamespace
from typing import Any

from arrol.adapters.vllm.frontend import Batch, Ended, Frontend, check_keys
from arrol.adapters.vllm.llm import FETCH
from arrol.adapters.vllm.outputs import failed
from arrol.adapters.vllm.request import (
    PruningArgs,
    RolloutRequest,
    TokenRollout,
    rollout_seed,
)
from arrol.errors import ArrolError, check_integer
from arrol.plan import PruningPlan


class PruningServer(Frontend):
    """A ``vllm serve`` that carries out pruning plans (:class:`arrol.backend.Backend`).

    A request's ``sampling`` is a dictionary of the completions API's own fields here, such as
    ``{"temperature": 1.0, "max_tokens": 512}``; this end needs no vLLM.

    Args:
        url: such as ``http://localhost:8000``.
        sentinel: token that ends pruned rollouts; the server can't be asked for one.
        model: the served model's name; default: the first that the server lists.
        engine: its number, where several carry out one plan.
        keep_hidden: hand back the hidden states that the head reads.
        concurrency: requests under way at once.
        seconds: time limit of one request.

    Raises:
        ArrolError: the server can't be reached, or was started without what pruning needs.
    """

    def __init__(
        self,
        url: str,
        sentinel: int,
        model: str | None = None,
        engine: int = 0,
        keep_hidden: bool = True,
        concurrency: int = 256,
        seconds: float = 3600.0,
    ) -> None:
        super().__init__(engine, sentinel, keep_hidden)
        check_integer("concurrency", concurrency, 1)
        self.url = url.rstrip("/")
        self.concurrency = concurrency
        self.seconds = seconds
        self.model = model or self._first_model()
        self._push_plan()

    def load_plan(self, plan: PruningPlan) -> None:
        """Put ``plan`` in force for every rollout decided from now on."""
        self.plan = plan
        self._push_plan()

    def load_head(self, head: Any | None) -> None:
        """Score with this :class:`arrol.head.QualityHead` from now on; None takes it away."""
        self._call("arrol_load_head", self.hold(head))

    def status(self) -> dict[str, Any]:
        """The engine's own word on what is in force, and its counts."""
        status: dict[str, Any] = self._call("arrol_status")[0]
        return status

    def generate(self, requests: Sequence[RolloutRequest]) -> list[TokenRollout]:
        """Generate all requests; one rollout for each, in the order of their ends.

        Each call is a batch of its own: groups are decided from their first rollout on. A request
        that the server refuses comes back failed, with its reason.
        """
        check_keys(requests)
        bodies = [self.body(request) for request in requests]
        if self.status()["head"] != self._head_version:
            self._call("arrol_load_head", self._head)
        self._push_plan()
        list(self.rollouts([], self._call("arrol_take")))
        self.batch = Batch()
        rollouts: list[TokenRollout] = []
        ended: list[Ended] = []
        with ThreadPoolExecutor(self.concurrency) as pool:
            jobs = {pool.submit(self._post, "/v1/completions", body): request
                    for body, request in zip(bodies, requests, strict=True)}  # fmt: skip
            for job in as_completed(jobs):
                try:
                    ended.append((jobs[job], _output(job.result()["choices"][0])))
                except ArrolError as error:
                    rollouts.append(failed(jobs[job], str(error)))
                if len(ended) >= FETCH:
                    rollouts += self._fetch(ended)
                    ended = []
        rollouts += self._fetch(ended)
        list(self.rollouts([], self._call("arrol_take")))  # what is left are orphans
        return rollouts

    def body(self, request: RolloutRequest) -> dict[str, Any]:
        """What is posted for a request."""
        prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
        given = dict(request.sampling)
        if given.get("n", 1) != 1:
            raise ArrolError(f"n is {given['n']!r}; allowed is 1 for each rollout.")
        if given.get("seed") is not None:
            given["seed"] = rollout_seed(given["seed"], request.key)
        if self.pruning:
            args = PruningArgs(
                (request.key,), request.group, request.index, request.group_size,
                self.length(request), self.sentinel,
            )  # fmt: skip
            given["vllm_xargs"] = {**(given.get("vllm_xargs") or {}), **args.to_extra_args()}
            given["stop_token_ids"] = [*(given.get("stop_token_ids") or ()), self.sentinel]
        return {**given, "model": self.model, "prompt": prompt, "return_token_ids": True}

    def _push_plan(self) -> None:
        for status in self._call("arrol_load_plan", *self.plan_arguments()):
            self.check_status(status)

    def _fetch(self, ended: list[Ended]) -> Iterator[TokenRollout]:
        if ended:
            keys = json.dumps([request.key for request, _ in ended])
            yield from self.rollouts(ended, self._call("arrol_take", keys))

    def _call(self, method: str, *arguments: str) -> Any:
        try:
            answer = self._post("/collective_rpc", {"method": method, "args": list(arguments)})
        except ArrolError as error:
            raise ArrolError(
                f"{error} Allowed is a server that was started as arrol.adapters.vllm.server says."
            ) from None
        return answer["results"]

    def _first_model(self) -> str:
        name: str = self._send(urllib.request.Request(f"{self.url}/v1/models"))["data"][0]["id"]
        return name

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return self._send(urllib.request.Request(self.url + path, data, headers))

    def _send(self, request: urllib.request.Request) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=self.seconds) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            said = " ".join(error.read().decode(errors="replace").split())[:300]
            raise ArrolError(f"{request.full_url} answers {error.code}: {said}.") from None
        except (OSError, ValueError) as error:
            raise ArrolError(f"{request.full_url} can't be reached: {error}.") from None


def _output(choice: dict[str, Any]) -> SimpleNamespace:
    """A choice of the completions API as vLLM's ``CompletionOutput``."""
    logprobs = choice.get("logprobs") or {}
    return SimpleNamespace(
        text=choice["text"],
        token_ids=choice.get("token_ids") or [],
        logprobs=logprobs.get("token_logprobs"),
        finish_reason=choice["finish_reason"],
        stop_reason=choice.get("stop_reason"),
    )
