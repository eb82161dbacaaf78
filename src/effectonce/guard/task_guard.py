"""`guard_task`: puts the function of a framework's task under `once`, by what the task's decorator asks for.

The integrations of Celery, dramatiq and taskiq guard whole applications with it: ``once=`` means the same in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from effectonce.core.guarded_call.run import current_run
from effectonce.keys import Extract, Strategy
from effectonce.store import Store

from .once import find_guarded, once


class MessageId(Strategy):
    """The key of a task that names none: the id of its message, which ``read`` returns; None: it was called without
    one, like a function, also by itself."""

    def __init__(self, scope: str, read: Callable[[], str | None]) -> None:
        self._scope = scope
        self._read = read

    def bind(self, handler: Any, name: str) -> Extract:
        return lambda args, kwargs: self._read_once()

    def _read_once(self) -> str | None:
        """Return the id, unless this call is inside the run that has it for its key: it is a task that calls itself."""
        id = self._read()
        run = current_run.get()
        while run is not None:
            if run.active and (run.scope, run.key) == (self._scope, id):
                return None
            run = run.parent
        return id


def check_defaults(store: Store, defaults: Mapping[str, Any]) -> None:
    """Raise what `once` raises for these options, at the application's line and not at its first task."""
    once(store, **{"scope": "tasks", **defaults})


def guard_task(
    function: Callable[..., Any],
    requested: Any,
    *,
    store: Store,
    scope: str,
    read_message_id: Callable[[], str | None],
    defaults: Mapping[str, Any],
) -> Callable[..., Any]:
    """Put ``function`` under `once`; one that is under it already keeps that guard.

    ``requested`` is the ``once=`` of the task: a key, a dict of options, or True for the application's ``defaults``.
    Where none of them has a key, it is the message's id, and a call without a message runs unguarded.
    """
    if find_guarded(function) is not None:
        return function
    options: dict[str, Any] = {"scope": scope, **defaults}
    if isinstance(requested, dict):
        options.update(requested)
    elif requested is not True:
        options["key"] = requested
    if "key" not in options:
        options["key"] = MessageId(options["scope"], read_message_id)
        options.setdefault("on_missing_key", "run")
    return once(store, **options)(function)
