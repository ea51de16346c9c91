"""How ``arrol generate`` is stopped: at any time, with all processes that it started."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any
from unittest.mock import patch

CHILD_SECONDS = 3.0  #: that an engine process has to end by itself


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP end the run as Ctrl-C does: no engine outlives it."""
    with _handled(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _handled(handler: Callable[[int, Any], Any], *signals: signal.Signals) -> Iterator[None]:
    """Within the block these signals go to ``handler``; only the main thread can have it so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes that are started within the block don't get the terminal's Ctrl-C.

    An engine process would end by it at once, and a call to it that is under way would never come
    back. A signal that is blocked where a process is started stays blocked in it, whatever handler
    it sets. On Ctrl-C within the block the processes are ended.
    """
    resource_tracker.ensure_running()  # or the first start does it, and that unblocks
    plain_start = BaseProcess.start

    def start(process: BaseProcess) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            plain_start(process)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    try:
        with patch.object(BaseProcess, "start", start), _stopped_at_once():
            yield
    except BaseException:
        _end_children()
        raise


@contextmanager
def _stopped_at_once() -> Iterator[None]:
    """Within the block Ctrl-C ends the process itself: there is nothing to save yet.

    An exception would not do: what loads is not made for it, and either swallows it or waits for
    ever for a process that has gone.
    """

    def stop(number: int, frame: Any) -> None:
        print("arrol generate: interrupted.", file=sys.stderr, flush=True)
        _end_children()
        os._exit(130)

    with _handled(stop, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


def _end_children() -> None:
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(CHILD_SECONDS)
        child.kill()
