"""`override`: puts one store in the place of another for the duration of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from effectonce.store import Store


@contextmanager
def override(store: Store, other: Store) -> Iterator[Store]:
    """Make every guard on ``store`` use ``other`` inside the ``with``; ``store`` itself is not even opened.

    Calls that are already running keep their store.
    """
    before = store.use_runtime(other.runtime)
    try:
        yield other
    finally:
        store.use_runtime(before)
