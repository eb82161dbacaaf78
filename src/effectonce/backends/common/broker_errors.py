"""Errors of a broker that is built on a store's connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from effectonce.errors import BrokerUnavailable, StoreUnavailable


@contextmanager
def as_broker_errors() -> Iterator[None]:
    """Raise `BrokerUnavailable` where the connection raises `StoreUnavailable`, with the same ``retry_after``.

    SQLite's store and broker share their connection; a broker's callers handle brokers' errors.
    """
    try:
        yield
    except StoreUnavailable as error:
        raise BrokerUnavailable(str(error), error.retry_after) from error
