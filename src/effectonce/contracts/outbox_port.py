"""The seam to outboxes: what a relay asks of the database that holds one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from .outbox import (
    CleanupResult,
    LeasedRows,
    LeaseRequest,
    OutboxBacklog,
    OutboxPage,
    OutboxState,
    RowOutcome,
)


class OutboxPort(Protocol):
    """One connection to one outbox. What is said of `Port` holds here, too: when it connects, what it raises, and that
    the coroutines of a sync one never suspend."""

    table: str

    async def lease(self, lease: LeaseRequest) -> LeasedRows:
        """Look at up to ``limit`` rows of each kind, and take up to ``take`` of them, for ``span`` from now on the
        database's clock; the attempt is counted. Rows to the queues ``without`` are not looked at.

        Rows are there to be taken by what they are, never by where a reader has come to (F41): pending and not leased,
        pending with a lease that has ended, waiting and due. Locks are held for one short transaction (F47); rows that
        others have locked are passed over. However many rows are published, waiting or parked, the work is bounded by
        ``limit``.

        ``ordered``: a row is taken only if every row before it in its line (destination and ordering key) that has not
        left is taken with it (F43). Rows that stand behind a waiting or a parked one wait as long as it, or until they
        are looked at again (`outbox.BLOCKED_ROW_RECHECK_US`); those behind a leased one stay as they are.
        """
        ...

    async def settle(self, owner: bytes, outcomes: Sequence[RowOutcome], keep: int) -> int:
        """Say what became of rows of this lease, each by itself (F44), in one round trip; how many were still its own.
        A row that another has leased since stays as it is. Published ones are deleted after ``keep``, 0: now."""
        ...

    async def unpark(self, seqs: Sequence[int] | None, limit: int, *, discard: bool = False) -> int:
        """Send parked rows again (or delete them), these or up to ``limit`` of all; those behind them are free to
        follow. How many there were."""
        ...

    async def list(self, state: OutboxState, limit: int, cursor: str | None = None) -> OutboxPage:
        """A page of the rows in ``state``, in the order in which they come up."""
        ...

    async def stats(self) -> OutboxBacklog: ...

    async def clean(self, limit: int) -> CleanupResult:
        """Delete up to ``limit`` published rows, and as many rows of the inbox of the same name (where there is one),
        whose time is over. Never waits for the lock of a row. Records the time when there was no more to do (F37)."""
        ...

    async def wait(self, timeout: float) -> bool:
        """Whether a sender has said within ``timeout`` seconds that it has committed something; a hint. Only called
        where the backend's capabilities say ``notifies``."""
        ...

    async def check(self) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class OutboxBackend(Protocol):
    """What a `Backend` also has whose database can hold an outbox. ``table``: by default the one that its `migrate`
    has made."""

    def sync_outbox(self, table: str | None = None) -> OutboxPort: ...

    def async_outbox(self, table: str | None = None) -> OutboxPort: ...
