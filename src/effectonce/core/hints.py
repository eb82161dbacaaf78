"""Hints inside one process: whoever wrote something tells those who wait for it. A hint may come early, or never."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_listeners: dict[str, set[Callable[[], Any]]] = {}


def ring(subject: str) -> None:
    """Tell everyone who listens for ``subject``; from any thread."""
    for listener in tuple(_listeners.get(subject, ())):
        listener()


@contextmanager
def listening(subject: str, listener: Callable[[], Any]) -> Iterator[None]:
    """Call ``listener`` for every `ring` meanwhile. It must return at once and never raise."""
    _listeners.setdefault(subject, set()).add(listener)
    try:
        yield
    finally:
        _listeners[subject].remove(listener)
