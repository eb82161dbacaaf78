"""Emitting events to the hooks of a store, or of a worker that has no store."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from effectonce.contracts import Event, Hook, Meter, Tracer

log = logging.getLogger("effectonce")

MAX_REMEMBERED = 2000  # pairs of event kind and scope; scopes that never end must not fill the memory

_adding = threading.Lock()  # one for all: hooks are added seldom


class Events:
    """Emits events to hooks. A hook that only counts gives a meter instead, and no event is made for it."""

    def __init__(self, hooks: tuple[Hook, ...] = ()) -> None:
        self.tracer: Tracer | None = None  # links runs to the traces they happen in
        self.hooks = hooks  # changed by `set_hooks` only
        self._forget_listeners()

    def set_hooks(self, hooks: tuple[Hook, ...]) -> None:
        """Emit to ``hooks`` from now on, and to no others."""
        self.hooks = hooks
        self._forget_listeners()

    def _forget_listeners(self) -> None:
        self._listeners: dict[tuple[str, str], tuple[list[Meter], list[Hook]]] = {}  # by kind and scope

    def add_hook(self, hook: Hook) -> None:
        with _adding:
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
        """Emit to every hook. One that raises is logged and otherwise ignored: telemetry never changes an outcome."""
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
        """The meters and the hooks that want such events. They are asked once, and remembered."""
        meters: list[Meter] = []
        hooks: list[Hook] = []
        asked = self.hooks
        for hook in asked:
            try:
                wanted = hook.wants(kind, scope) if hasattr(hook, "wants") else True
            except Exception:
                _log_raised(kind)
                continue
            if wanted is True:
                hooks.append(hook)
            elif wanted:
                meters.append(wanted)
        if len(self._listeners) >= MAX_REMEMBERED:
            self._forget_listeners()
        self._listeners[kind, scope] = meters, hooks
        if self.hooks is not asked:  # another thread has added one, and may have forgotten before this was remembered
            self._forget_listeners()
        return meters, hooks


def _log_raised(kind: str) -> None:
    log.exception("an effectonce hook raised on %s", kind)


def _after_fork() -> None:
    global _adding  # a thread that is the parent's may hold it
    _adding = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
