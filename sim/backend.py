"""The simulated engines behind the door that every backend has."""

from __future__ import annotations

from collections.abc import Sequence

from arrol.errors import check_integer
from arrol.plan import PruningPlan
from arrol.records import Rollout
from arrol.sim.cost import StepTime
from arrol.sim.engine import EngineLimits, EngineRun, SimulatedRequest, simulate


class SimulatedBackend:
    """One or several simulated engines as an :class:`arrol.backend.Backend`.

    Each call of ``generate`` is a batch of its own: its groups are decided from their first
    rollout on, so equal requests under an equal plan give equal rollouts.

    Args:
        limits: what each engine holds at once.
        cost: time of one engine step.
        engines: how many engines share the batch; whole groups are dealt round robin.
        first_engine: number of the first of them, where other backends carry out the plan too.

    Attributes:
        plan: the plan in force.
        seconds: simulated time of all batches so far [s].
        last_run: times and counts of the last batch; None before the first.

    Raises:
        ArrolError: ``engines`` is below 1 or ``first_engine`` below 0.
    """

    def __init__(
        self, limits: EngineLimits, cost: StepTime, engines: int = 1, first_engine: int = 0
    ) -> None:
        check_integer("engines", engines, 1)
        check_integer("first_engine", first_engine, 0)
        self.limits = limits
        self.cost = cost
        self.engines = engines
        self.first_engine = first_engine
        self.plan: PruningPlan | None = None
        self.seconds = 0.0
        self.last_run: EngineRun | None = None

    def load_plan(self, plan: PruningPlan) -> None:
        """Put ``plan`` in force for every batch from now on."""
        self.plan = plan

    def generate(self, requests: Sequence[SimulatedRequest]) -> list[Rollout]:
        """Play all requests out; one rollout for each, in order of their ends at each engine.

        Raises:
            ArrolError: as :func:`arrol.sim.engine.simulate`.
        """
        run = simulate(
            requests,
            self.limits,
            self.cost,
            self.plan,
            self.engines,
            first_engine=self.first_engine,
        )
        self.last_run = run
        self.seconds += run.seconds
        return list(run.rollouts)
