"""The protocol that every engine implements: the simulator, vLLM, whatever comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

from arrol.plan import PruningPlan
from arrol.records import Request, Rollout

RequestT = TypeVar("RequestT", bound=Request, contravariant=True)


@runtime_checkable
class Backend(Protocol[RequestT]):
    """A generation engine, or several behind one door, that carries out a pruning plan.

    The contract (``tests/test_backend_contract.py`` states it over every backend):

    * every submitted key comes back exactly once: stop + length + pruned + failed = submitted;
    * a rollout is decided once, when it has generated ``plan.detect_length`` tokens and goes on;
      one that ends at or before that length carries no detection;
    * a pruned rollout ends at exactly ``plan.detect_length`` tokens;
    * without a plan, or in mode ``off``, nothing is scored; in ``shadow`` nothing is pruned;
    * every detection carries the version of the plan last loaded, and
      ``plan.replay(detections)`` gives each of them again to the last bit.
    """

    def load_plan(self, plan: PruningPlan) -> None:
        """Put ``plan`` in force for every rollout decided from now on."""
        ...

    def generate(self, requests: Sequence[RequestT]) -> list[Rollout]:
        """Generate all requests and return one rollout for each, in any order."""
        ...
