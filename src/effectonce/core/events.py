"""Who is told what happens. Nobody wants most of it, and some only count: what is not wanted is not made."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from effectonce.contracts import Event, Hook, Meter, Tracer

log = logging.getLogger("effectonce")

MANY_SCOPES = 2000  # so many are remembered; names that never end must not fill the memory

_adding = threading.Lock()  # one for all: hooks are added seldom


class Events:
    """The hooks of one store, or of a worker that has none. Whether anybody watches is asked before every event."""

    def __init__(self, hooks: tuple[Hook, ...] = ()) -> None:
        self._tracer: Tracer | None = None
        self.hooks = hooks

    @property
    def hooks(self) -> tuple[Hook, ...]:
        return self._hooks

    @hooks.setter
    def hooks(self, hooks: tuple[Hook, ...]) -> None:
        self._hooks = hooks
        self._forget()
        self._look()

    @property
    def tracer(self) -> Tracer | None:
        """Who ties what happens to the traces that it happens in."""
        return self._tracer

    @tracer.setter
    def tracer(self, tracer: Tracer | None) -> None:
        self._tracer = tracer
        self._look()

    def _look(self) -> None:
        self.traced = self._tracer is not None
        #: Whether there is anybody to tell: all that an unwatched call asks.
        self.watched = bool(self._hooks) or self.traced

    def _forget(self) -> None:
        self._told: dict[tuple[str, str], tuple[list[Meter], list[Hook]]] = {}  # who wants which events
        #: By scope, who counts these two, where nobody else wants them: every call has both, so they take a short cut.
        #: None: there is none.
        self.claimed: dict[str, Meter | None] = {}
        self.completed: dict[str, Meter | None] = {}

    def add_hook(self, hook: Hook) -> None:
        with _adding:
            if hook not in self._hooks:
                self.hooks = (*self._hooks, hook)

    def emit(
        self, kind: Any, scope: str = "", key: str = "", attempt: int = 0, token: int = 0, seconds: float = 0.0,
        detail: str = "",
    ) -> None:  # fmt: skip
        """Tell every hook. A hook that raises is logged and otherwise ignored: telemetry never changes an outcome."""
        meters, hooks = self._told.get((kind, scope)) or self._who_wants(kind, scope)
        for meter in meters:
            try:
                meter(seconds)
            except Exception:
                self.hook_raised(kind)
        if hooks:
            event = Event(kind, scope, key, attempt, token, seconds, detail)
            for hook in hooks:
                try:
                    hook(event)
                except Exception:
                    self.hook_raised(kind)

    def hook_raised(self, kind: str) -> None:
        log.exception("an effectonce hook raised on %s", kind)

    def _who_wants(self, kind: str, scope: str) -> tuple[list[Meter], list[Hook]]:
        """Those who count such events, and those who want to see them; remembered."""
        meters: list[Meter] = []
        hooks: list[Hook] = []
        asked = self._hooks
        for hook in asked:
            try:
                wanted = hook.wants(kind, scope) if hasattr(hook, "wants") else True
            except Exception:
                self.hook_raised(kind)
                continue
            if wanted is True:
                hooks.append(hook)
            elif wanted:
                meters.append(wanted)
        if len(self._told) >= MANY_SCOPES:
            self._forget()
        self._told[kind, scope] = meters, hooks
        if kind in ("claimed", "completed"):
            alone = meters[0] if len(meters) == 1 and not hooks else None
            (self.claimed if kind == "claimed" else self.completed)[scope] = alone
        if self._hooks is not asked:  # another thread has added one, and may have forgotten before this was remembered
            self._forget()
        return meters, hooks


def _after_fork() -> None:
    global _adding  # a thread that is the parent's may hold it
    _adding = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
