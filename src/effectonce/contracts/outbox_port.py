"""The seam to outboxes: what a relay asks of the database that holds one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from effectonce.values.key_term import KeyTerm

from .outbox import (
    CleanupResult,
    LeasedRows,
    LeaseRequest,
    OutboxBacklog,
    OutboxMatches,
    OutboxPage,
    OutboxState,
    RowOutcome,
)


class OutboxPort(Protocol):
    """One connection to one outbox. The obligations of `Port` hold here, too: when it connects, what it raises, and
    that the coroutines of a sync port never suspend."""

    table: str

    async def lease(self, lease: LeaseRequest) -> LeasedRows:
        """Read up to ``limit`` fresh rows and up to ``limit`` that are due, and lease up to ``take`` of them, for
        ``lease_us`` from now on the database's clock. The attempt is counted. Rows to the queues ``without`` are not
        read.

        Fresh: pending, not waiting for a retry, and not leased by another owner. A row whose lease has ended is fresh
        again. Due: waiting, and its time has come.

        Repeated with the same owner, it gives the same rows, and counts no attempt twice: the reply to the first may
        have been lost. ``after``, of the request and of the answer, is a position among the fresh rows only: the next
        request reads those behind it, since those before it wait for other relays. ``more``: rows were left unread.

        Which rows may be leased depends on the rows alone, never on a reader's position (F41: rows do not commit in the
        order of their numbers): those that are pending and not leased, pending with a lease that has ended, or waiting
        and due. Locks are held for one short transaction (F47: no transaction is open during the publish); rows that
        others have locked are skipped. The work is bounded by ``limit``, however many rows are published, waiting or
        parked.

        ``ordered``: a row is leased only together with every unpublished row before it in its line (destination and
        ordering key; F43: order is lost where a later row overtakes). A row behind a waiting or parked one waits as
        long as that one, or until it is read again (`outbox.BLOCKED_ROW_RECHECK_US`). A row behind a leased one stays
        as it is.
        """

    async def settle(self, owner: bytes, outcomes: Sequence[RowOutcome], keep_us: int) -> int:
        """Apply the outcome of each leased row, in one round trip (F44: a batch may fail in part). Returns how many
        rows this lease still had. A row that another relay has leased since stays as it is. Published rows are deleted
        after ``keep_us`` microseconds; 0: now. It may be repeated: rows that are settled already stay as they are, and
        are not counted again."""

    async def unpark(self, seqs: Sequence[int] | None, limit: int, *, discard: bool = False) -> int:
        """Make parked rows pending again (or delete them): those in ``seqs``, or up to ``limit`` of all. The rows
        behind them may follow. Returns how many there were."""

    async def list(self, state: OutboxState, limit: int, cursor: str | None = None) -> OutboxPage:
        """A page of the rows in ``state``, in the order in which they are due."""

    async def find(self, term: KeyTerm, recent: int, limit: int) -> OutboxMatches:
        """Up to ``limit`` rows whose key, message id or ordering key is ``term``, the newest first. No index has these,
        so it looks at the ``recent`` newest rows only."""

    async def stats(self) -> OutboxBacklog: ...

    async def clean(self, limit: int) -> CleanupResult:
        """Delete up to ``limit`` published rows whose ``keep_us`` is over, and as many expired rows of the inbox of the
        same name, where there is one. Never waits for the lock of a row. Records the time when nothing is left to
        delete (F37: a clean-up that fails in silence is noticed)."""

    async def wait(self, timeout: float) -> bool:
        """Wait until a sender announces a commit, for ``timeout`` seconds at most. Returns whether one did, which is
        only a hint. Only called where the backend's capabilities have ``notifies``."""

    async def check(self) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class OutboxBackend(Protocol):
    """An optional ability of a `Backend`: its database can hold an outbox. ``table``: by default the one that its
    `migrate` has created."""

    def sync_outbox(self, table: str | None = None) -> OutboxPort: ...

    def async_outbox(self, table: str | None = None) -> OutboxPort: ...
