"""The settings, counters and state of one relay, which its pumps share."""

from __future__ import annotations

import asyncio
from collections import deque

from msgspec import Struct

from effectonce.broker import Broker
from effectonce.contracts import BrokerBackend, Envelope, OutboxBackend
from effectonce.core.retry import Retry
from effectonce.core.store_runtime import StoreRuntime
from effectonce.errors import BrokerUnavailable, ConfigurationError
from effectonce.store import Store


class RelayTotals(Struct):
    """Counters of one relay since it was made."""

    published: int = 0
    failed: int = 0
    parked: int = 0
    cleaned: int = 0


class RelaySettings(Struct, kw_only=True):
    """The options of a relay, checked. The handles open their backends when these are first asked for."""

    store: Store
    broker: Broker | BrokerBackend
    table: str | None
    envelope: Envelope
    retry: Retry
    ordered: bool
    max_batch: int
    lease_us: int
    keep_us: int  # how long published rows stay
    poll_s: float
    totals: RelayTotals

    @property
    def runtime(self) -> StoreRuntime:
        return self.store.runtime

    @property
    def broker_backend(self) -> BrokerBackend:
        return self.broker.backend if isinstance(self.broker, Broker) else self.broker


class RefusedQueue(Struct, frozen=True):
    """A queue that is missing, or may not be used."""

    times: int  # in a row
    until: float  # on the loop's clock: when it is tried again
    error: ConfigurationError


class RelayState:
    """The state that the pumps of one relay share. It is touched on their event loop only."""

    def __init__(self) -> None:
        self.stopping = False
        self.outage: BrokerUnavailable | None = None
        #: Set when there may be rows to lease.
        self.rows_expected = asyncio.Event()
        #: Set while there are more rows than one pump can publish.
        self.crowded = asyncio.Event()
        #: Held during a lease: two at once would compete for the same rows.
        self.lease_lock = asyncio.Lock()
        #: Owners of leases whose reply did not come, each with the loop's time until which rows may be leased to it.
        #: The next lease takes the oldest: the database may have granted rows to it, even after it has told a
        #: repetition of that lease that there are none.
        self.unheard_leases: deque[tuple[bytes, float]] = deque()
        #: Queues that did not answer the last time: rows to all others go first.
        self.unresponsive: set[str] = set()
        #: Queues that could not be used the last time: their rows wait.
        self.refused_queues: dict[str, RefusedQueue] = {}


def require_outboxes(store: Store) -> OutboxBackend:
    """Return the backend of ``store`` as one that opens outboxes. Raises `ConfigurationError` where it cannot."""
    backend = store.runtime.backend
    if not isinstance(backend, OutboxBackend):
        raise ConfigurationError(
            f"{backend!r} cannot hold an outbox; those in sqlite:///, postgresql://, mysql:// and mariadb:// can"
        )
    return backend
