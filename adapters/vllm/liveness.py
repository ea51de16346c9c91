"""A dead engine process must end the wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

SECONDS = 0.5  #: between two looks


@contextmanager
def watched(engine_core: Any) -> Iterator[None]:
    """Within the block, ``step()`` raises ``EngineDeadError`` if the engine's process is killed.

    vLLM (0.28 to 0.32) notices the death, but its synchronous client then waits for ever for
    outputs that nobody will send. An engine in this process needs no watching.
    """
    if not hasattr(engine_core, "outputs_queue"):
        yield
        return
    done = Event()
    watcher = Thread(target=_watch, args=(engine_core, done), daemon=True, name="arrol-liveness")
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(engine_core: Any, done: Event) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    while not done.wait(SECONDS):
        if engine_core.resources.engine_dead:
            engine_core.outputs_queue.put(EngineDeadError())
            return
