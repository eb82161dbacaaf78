"""What adapters share: connections speak of stores when they fail, a broker's callers know brokers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

from effectonce.errors import BrokerUnavailable, StoreUnavailable
from effectonce.message import REDRIVEN


@contextmanager
def as_broker() -> Iterator[None]:
    """`BrokerUnavailable` for a connection's `StoreUnavailable`."""
    try:
        yield
    except StoreUnavailable as error:
        raise BrokerUnavailable(str(error), error.retry_after) from error


def sent_again(headers: Mapping[str, str]) -> bool:
    """Whether these are the headers of a dead letter that goes out again. A broker that has seen its id would take it
    for a duplicate, confirm it and drop it: it must not be known to the broker by that id."""
    return any(name == REDRIVEN or name.startswith("eo-dead") for name in headers)


async def take_leave(last: Callable[[], Awaitable[None]]) -> None:
    """What a consumer does last: tried on a new connection, where the old one was broken, and then left to the broker,
    which delivers again what it has heard nothing of."""
    for _ in range(2):
        try:
            return await last()
        except BrokerUnavailable as error:
            failure = error
    log.info("a consumer could not give back what it held: %s", failure)
    return None


log = logging.getLogger("effectonce")
