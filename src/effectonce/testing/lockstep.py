"""Calls in several threads in lockstep: each stops at every line of the user's code, so that they really overlap."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from effectonce.core.run_sync import run_in_thread

WAIT_BUDGET_S = 1.0


def call_in_lockstep(call: Callable[[], Any], count: int, is_step: Callable[[FrameType], bool]) -> list[Any]:
    """Run ``call`` in ``count`` threads. Each waits before every line of a frame for which ``is_step`` is true, until
    all have reached one. Returns what each call returned or raised."""
    lockstep = _Lockstep(count)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not is_step(frame):
            return None
        if event == "line":
            lockstep.step()
        return trace

    def run() -> Any:
        lockstep.step()
        sys.settrace(trace)
        try:
            return call()
        finally:
            sys.settrace(None)
            lockstep.leave()

    futures = [run_in_thread(run, "effectonce-lockstep") for _ in range(count)]
    return [future.exception() or future.result() for future in futures]


def trace_in_lockstep(count: int) -> Callable[[FrameType, str, Any], Any]:
    """Make a trace function that lets ``count`` threads go from line to line together, except the calling one, whose
    event loop they need."""
    lockstep, caller = _Lockstep(count), threading.get_ident()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and threading.get_ident() != caller:
            lockstep.step()
        return trace

    return trace


class _Lockstep:
    """Lets threads continue together: each waits at a line until all that still run have reached one.

    A thread that is blocked (by a lock, or by another's result) does not reach one. The others wait for such threads no
    longer than `WAIT_BUDGET_S` in all.
    """

    def __init__(self, threads: int) -> None:
        self._changed = threading.Condition()
        self._running = threads
        self._arrived = self._line = 0
        self._wait_budget = WAIT_BUDGET_S

    def step(self) -> None:
        with self._changed:
            self._arrived += 1
            line, began = self._line, time.monotonic()
            self._advance_if_all_arrived()
            if not self._changed.wait_for(lambda: self._line != line, max(self._wait_budget, 0.001)):
                self._arrived -= 1
                self._wait_budget -= time.monotonic() - began

    def leave(self) -> None:
        with self._changed:
            self._running -= 1
            self._advance_if_all_arrived()

    def _advance_if_all_arrived(self) -> None:
        if self._arrived >= self._running:
            self._arrived = 0
            self._line += 1
            self._changed.notify_all()
