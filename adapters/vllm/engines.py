"""Several engines on one machine as one backend."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

from arrol.adapters.vllm.llm import PruningLLM
from arrol.adapters.vllm.request import RolloutRequest, TokenRollout
from arrol.errors import ArrolError
from arrol.plan import PruningPlan


class PruningEngines:
    """Engines that share batches: whole groups are dealt round robin (data parallelism).

    Args:
        engines: with numbers of their own, each with an engine process of its own: they run at
            the same time.

    Raises:
        ArrolError: there is none, or two have the same number.
    """

    def __init__(self, engines: Sequence[PruningLLM]) -> None:
        numbers = [engine.engine for engine in engines]
        if not engines or len(set(numbers)) < len(numbers):
            raise ArrolError(
                f"engines have the numbers {numbers}; allowed is at least one, each once."
            )
        self.engines = list(engines)
        self.plan: PruningPlan | None = None

    def load_plan(self, plan: PruningPlan) -> None:
        """Put ``plan`` in force at every engine."""
        self.plan = plan
        for engine in self.engines:
            engine.load_plan(plan)

    def load_head(self, head: Any | None) -> None:
        """Give every engine this head."""
        for engine in self.engines:
            engine.load_head(head)

    def generate(self, requests: Sequence[RolloutRequest]) -> list[TokenRollout]:
        """Generate all requests; one rollout for each, by engine.

        Raises:
            ArrolError: as :meth:`PruningLLM.generate`.
        """
        groups = {
            group: place for place, group in enumerate(dict.fromkeys(r.group for r in requests))
        }
        shares: list[list[RolloutRequest]] = [[] for _ in self.engines]
        for request in requests:
            shares[groups[request.group] % len(shares)].append(request)
        with ThreadPoolExecutor(len(shares)) as pool:
            results = pool.map(lambda e, share: e.generate(share), self.engines, shares)
            return list(chain.from_iterable(results))
