"""`Events`: emits events to the hooks of a store, or of a worker without a store."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from effectonce.contracts import Event, Hook, Tracer

from .interrupts import raise_interrupt

log = logging.getLogger("effectonce")

_hooks_lock = threading.Lock()  # one for all instances: hooks are rarely added


class Events:
    """Emits events to hooks, from any thread and any event loop.

    The tuple ``hooks`` is replaced and never changed, so that `emit` reads it without a lock: a signal handler may emit
    while its own thread adds a hook.
    """

    def __init__(self, hooks: tuple[Hook, ...] = ()) -> None:
        self.tracer: Tracer | None = None  # links runs to their traces
        self.hooks = hooks

    def add_hook(self, hook: Hook) -> None:
        """Call ``hook`` with every event from now on. Adding it twice has no further effect."""
        with _hooks_lock:
            if hook not in self.hooks:
                self.hooks = (*self.hooks, hook)

    def emit(
        self,
        kind: Any,
        scope: str = "",
        key: str = "",
        attempt: int = 0,
        token: int = 0,
        seconds: float = 0.0,
        detail: str = "",
    ) -> None:
        """Emit to every hook. A hook that raises is logged and ignored: telemetry never changes an outcome."""
        if not self.hooks:
            return
        event = Event(kind, scope, key, attempt, token, seconds, detail)
        for hook in self.hooks:
            try:
                hook(event)
            except Exception as error:
                raise_interrupt(error)
                log.exception("an effectonce hook raised on %s", kind)


def _after_fork() -> None:
    global _hooks_lock  # a thread of the parent process may hold it
    _hooks_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
