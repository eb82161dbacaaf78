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
    """One connection to one outbox. The obligations of `Port` hold here, too: when it connects, what it raises, and
    that the coroutines of a sync one never suspend."""

    table: str

    async def lease(self, lease: LeaseRequest) -> LeasedRows:
        """Read up to ``limit`` rows of each kind, and lease up to ``take`` of them, for ``span`` from now on the
        database's clock. The attempt is counted. Rows to the queues ``without`` are not read.

        A row may be leased because of its state, never because of a reader's position (F41: numbers are given out
        before the commit, so a position skips rows): pending and not leased, pending with a lease that has ended,
        waiting and due. Locks are held for one short transaction (F47: none is open during broker I/O); rows that
        others have locked are passed over. The work is bounded by ``limit``, however many rows are published, waiting
        or parked.

        ``ordered``: a row is leased only together with every unpublished row before it in its line, that is of its
        destination and ordering key (F43: order is lost where a later row overtakes). Rows behind a waiting or a parked
        one wait as long as it, or until they are read again (`outbox.BLOCKED_ROW_RECHECK_US`); those behind a leased
        one stay as they are.
        """
        ...

    async def settle(self, owner: bytes, outcomes: Sequence[RowOutcome], keep: int) -> int:
        """Apply the outcomes of rows of this lease, each by itself (F44: a batch may fail in part), in one round
        trip. Returns how many were still this owner's; a row that another has leased since stays as it is. Published
        rows are deleted after ``keep``, 0: now."""
        ...

    async def unpark(self, seqs: Sequence[int] | None, limit: int, *, discard: bool = False) -> int:
        """Send parked rows again (or delete them), these or up to ``limit`` of all, and release the rows behind them.
        Returns how many there were."""
        ...

    async def list(self, state: OutboxState, limit: int, cursor: str | None = None) -> OutboxPage:
        """A page of the rows in ``state``, in the order in which they become due."""
        ...

    async def stats(self) -> OutboxBacklog: ...

    async def clean(self, limit: int) -> CleanupResult:
        """Delete up to ``limit`` published rows, and as many rows of the inbox of the same name (where there is one),
        whose retention is over. Never waits for the lock of a row. Stores the time when there was no more to delete
        (F37: a clean-up that fails in silence shows by it)."""
        ...

    async def wait(self, timeout: float) -> bool:
        """Whether a sender has notified within ``timeout`` seconds that it has committed something; a hint. Only called
        where the backend's capabilities say ``notifies``."""
        ...

    async def check(self) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class OutboxBackend(Protocol):
    """An optional power of a `Backend`: its database can hold an outbox. ``table``: by default the one that its
    `migrate` creates."""

    def sync_outbox(self, table: str | None = None) -> OutboxPort: ...

    def async_outbox(self, table: str | None = None) -> OutboxPort: ...
