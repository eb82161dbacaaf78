"""Tells the relays of this process at once that an outbox has new rows, so that none waits for its next poll.

It only saves time: a relay also polls, and a notification may come before its transaction has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_subscribers: dict[str, set[Callable[[], Any]]] = {}  # by the outbox's table


def notify(table: str) -> None:
    """Call every subscriber of ``table``. Any thread may call this."""
    for callback in tuple(_subscribers.get(table, ())):
        callback()


@contextmanager
def subscribe(table: str, callback: Callable[[], Any]) -> Iterator[None]:
    """Inside the block, call ``callback`` at each `notify` of ``table``. It must return at once and never raise."""
    _subscribers.setdefault(table, set()).add(callback)
    try:
        yield
    finally:
        _subscribers[table].remove(callback)
