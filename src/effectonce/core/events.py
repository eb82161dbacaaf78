"""`Events`: emits events to the hooks of a store, or of a worker without a store."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from effectonce.contracts import Event, Hook, Meter, Tracer

log = logging.getLogger("effectonce")

MAX_CACHED_LISTENERS = 2000  # pairs of event kind and scope; a program may make new scopes without end

_hooks_lock = threading.Lock()  # one for all instances: hooks are rarely added


class Events:
    """Emits events to hooks.

    A hook may have a method ``wants(kind, scope)``, which is asked once for each pair. It returns whether to call the
    hook, or a `Meter`, which is called with the seconds alone: so no `Event` is made for a hook that only counts.
    """

    def __init__(self, hooks: tuple[Hook, ...] = ()) -> None:
        self.tracer: Tracer | None = None  # links runs to their traces
        self.hooks = hooks  # changed by `set_hooks` only
        self._forget_listeners()

    def set_hooks(self, hooks: tuple[Hook, ...]) -> None:
        """Emit to ``hooks`` from now on, and to no others."""
        self.hooks = hooks
        self._forget_listeners()

    def _forget_listeners(self) -> None:
        self._listeners: dict[tuple[str, str], tuple[list[Meter], list[Hook]]] = {}  # by kind and scope

    def add_hook(self, hook: Hook) -> None:
        with _hooks_lock:
            if hook not in self.hooks:
                self.set_hooks((*self.hooks, hook))

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
        meters, hooks = self._listeners.get((kind, scope)) or self._find_listeners(kind, scope)
        for meter in meters:
            try:
                meter(seconds)
            except Exception:
                _log_raised(kind)
        if not hooks:
            return
        event = Event(kind, scope, key, attempt, token, seconds, detail)
        for hook in hooks:
            try:
                hook(event)
            except Exception:
                _log_raised(kind)

    def _find_listeners(self, kind: str, scope: str) -> tuple[list[Meter], list[Hook]]:
        """The meters and the hooks that want such events, kept for the next time."""
        meters: list[Meter] = []
        hooks: list[Hook] = []
        hooks_before = self.hooks
        for hook in hooks_before:
            try:
                wanted = hook.wants(kind, scope) if hasattr(hook, "wants") else True
            except Exception:
                _log_raised(kind)
                continue
            if wanted is True:
                hooks.append(hook)
            elif wanted:
                meters.append(wanted)
        if len(self._listeners) >= MAX_CACHED_LISTENERS:
            self._forget_listeners()
        self._listeners[kind, scope] = meters, hooks
        if self.hooks is not hooks_before:  # another thread added a hook, perhaps before this entry was written
            self._forget_listeners()
        return meters, hooks


def _log_raised(kind: str) -> None:
    log.exception("an effectonce hook raised on %s", kind)


def _after_fork() -> None:
    global _hooks_lock  # a thread of the parent process may hold it
    _hooks_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
