"""One order of arrival for runs that must be repeatable.

How a batch is put together in an engine depends on when requests come in, and with it the last
bits of their numbers and the order in which a group is decided. Where verl's ``full_determinism``
asks for a repeatable run, a server holds its requests until the step's last is there, and starts
them together, in order of their groups.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

PATIENCE = 60.0  #: seconds without a new request after which the others are let go
_log = logging.getLogger("arrol")


class Arrivals:
    """Holds requests until all are there, then lets them into the engine one by one.

    Args:
        engine: vLLM's ``AsyncLLM``.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._missing = 0
        self._waiting: dict[tuple[int, int], asyncio.Event] = {}
        self._added = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None
        add_request = engine.add_request

        async def add_and_tell(*args: Any, **kwargs: Any) -> Any:
            added = await add_request(*args, **kwargs)
            self.passed()
            return added

        engine.add_request = add_and_tell

    def expect(self, requests: int) -> None:
        """Hold the next so many requests for each other; 0 holds none."""
        self._missing = requests

    async def turn(self, group: int, index: int) -> None:
        """Wait until it is this request's turn to enter the engine."""
        if self._missing <= 0:
            return
        self._missing -= 1
        mine = self._waiting[group, index] = asyncio.Event()
        if self._timer is not None:
            self._timer.cancel()
        if self._missing == 0:
            self._start()
        else:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._give_up)
        await mine.wait()

    def passed(self) -> None:
        """A request is through: it is in the engine, or has failed on the way."""
        self._added.set()

    def _give_up(self) -> None:
        _log.warning(
            "%d requests of this step never came: the others start without them, and the run is "
            "not repeatable.", self._missing,
        )  # fmt: skip
        self._missing = 0
        self._start()

    def _start(self) -> None:
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        await self._engine.pause_generation(mode="keep", clear_cache=False)
        for place in sorted(self._waiting):
            self._added.clear()
            self._waiting.pop(place).set()
            await self._added.wait()
        await self._engine.resume_generation()
