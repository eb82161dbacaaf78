"""Hints inside one process: a writer notifies those who wait for what it wrote. A hint may come early, or never."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_subscribers: dict[str, set[Callable[[], Any]]] = {}


def notify(subject: str) -> None:
    """Call everyone who has subscribed to ``subject``; from any thread."""
    for callback in tuple(_subscribers.get(subject, ())):
        callback()


@contextmanager
def subscribe(subject: str, callback: Callable[[], Any]) -> Iterator[None]:
    """Call ``callback`` for every `notify` meanwhile. It must return at once and never raise."""
    _subscribers.setdefault(subject, set()).add(callback)
    try:
        yield
    finally:
        _subscribers[subject].remove(callback)
