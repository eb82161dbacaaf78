"""`InboxAdmin`: the rows of an inbox, for operators: list, show, find and purge them.

    with InboxAdmin(eo.connect("postgresql://localhost/shop")) as inbox:
        for entry in inbox.list(scope="billing").entries:
            print(entry.key, entry.handled_at)

It works on a connection of its own to the database that the store's URL names, and never in a transaction of a handler.
Every statement is bounded, however large the table is.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, Literal, Self, TypeVar

from msgspec import Struct

from effectonce.contracts import ConnectionLost, Contention, InboxBackend
from effectonce.core.run_sync import run_sync
from effectonce.errors import ConfigurationError, InvalidOption, StoreUnavailable
from effectonce.store import Store
from effectonce.values.cursors import CursorNumber, CursorText, read_cursor, write_cursor
from effectonce.values.durations import Duration, micros
from effectonce.values.key_term import KeyTerm

from .admin_statements import END_OF_TIME, EntryRow, Position, admin_statements

T = TypeVar("T")

InboxState = Literal["handled", "expired", "unfinished"]

MAX_PAGE: Final = 1000
MAX_ROWS_PER_PAGE: Final = 10_000  # rows that one page looks at to find those of a scope or an age
ROWS_PER_ROUND: Final = 1000
ROWS_PER_BATCH: Final = 500  # that a purge reads, and deletes some of
MAX_COUNT: Final = 100_000
MAX_SCOPES: Final = 200  # that one search looks in
MAX_TRIES: Final = 5  # of a request that met a broken connection or a deadlock


class InboxEntry(Struct, frozen=True, kw_only=True):
    """One row, as operators see it. Times are microseconds since the epoch, on the database's clock.

    ``handled``: the message was handled, and its duplicates are recognised. ``expired``: its retention is over;
    duplicates are recognised until a purge deletes the row. ``unfinished``: a handler with ``max_attempts``, or of a
    worker, has started ``attempts`` times, and has not handled it.
    """

    scope: str
    key: str  # a hash where the inbox is private
    state: InboxState
    handled_at: int | None  # None: unfinished
    expires_at: int
    attempts: int | None  # None: not counted
    fingerprint: bytes | None = None  # of the payload; None: it is not compared
    result_size: int | None = None  # bytes; None: no result is stored
    result: bytes | None = None  # only `InboxAdmin.show` reads it


class InboxPage(Struct, frozen=True):
    """One page of rows. ``cursor`` is None on the last page."""

    entries: list[InboxEntry]
    cursor: str | None = None


class InboxMatches(Struct, frozen=True):
    """What a search has found. ``gap``: where it did not look; "" if it looked everywhere."""

    entries: list[InboxEntry]
    gap: str = ""


class PurgePreview(Struct, frozen=True):
    """How many rows a purge would delete. ``within_retention``: how many of them still recognise duplicates.
    ``capped``: there may be more, since not all rows were looked at."""

    rows: int
    within_retention: int
    capped: bool


class PurgedBatch(Struct, frozen=True):
    """What one batch of a purge deleted. ``within_retention``: how many of the rows still recognised duplicates."""

    deleted: int
    within_retention: int


class InboxAdmin:
    """The rows of the inbox in the database of ``store``. ``table``: by default the one that the store's `migrate`
    made. A private inbox shows hashes in place of keys."""

    def __init__(self, store: Store, table: str | None = None) -> None:
        self._port = require_inboxes(store).sync_inbox(table)
        self._statements = admin_statements(self._port.dialect, self._port.table)
        self._name = f"{store.runtime.backend!r} {table or 'inbox'}"

    @property
    def name(self) -> str:
        """The audit log's name of the inbox: its database, and its table."""
        return self._name

    def now(self) -> int:
        """The database's clock."""
        return self._ask(self._statements.now)

    # -- reading

    def list(
        self,
        state: InboxState = "handled",
        *,
        scope: str | None = None,
        older_than: Duration | None = None,
        newer_than: Duration | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> InboxPage:
        """A page of at most ``limit`` rows in one state, the last to expire first: of rows with one retention, that is
        the newest first. Pass its ``cursor`` on for the next; a page may be short, and yet have one.

        ``older_than``, ``newer_than``: only rows that were handled so long ago.
        """
        if state == "unfinished" and (older_than is not None or newer_than is not None):
            raise InvalidOption("unfinished messages were not handled yet: list them without an age")
        now, limit = self.now(), max(1, min(limit, MAX_PAGE))
        handled_by = None if older_than is None else now - micros(older_than, "older_than")
        handled_since = None if newer_than is None else now - micros(newer_than, "newer_than")
        filtered = scope is not None or handled_by is not None or handled_since is not None
        size = ROWS_PER_ROUND if filtered else limit
        listing = f"inbox rows that are {state}"
        position: Position = (now + 1 if state == "expired" else END_OF_TIME, "", "")
        if cursor is not None:
            position = read_cursor(cursor, listing, tuple[CursorNumber, CursorText, CursorText])
        unexpired_since = now if state == "handled" else -1
        entries: list[InboxEntry] = []
        for _ in range(-(-MAX_ROWS_PER_PAGE // size)):
            rows = self._ask(self._statements.list, state == "unfinished", position, unexpired_since, size)
            for row in rows:
                position = (row[3], row[0], row[1])
                entry = _entry(row, now)
                if (
                    (scope is None or entry.scope == scope)
                    and (handled_by is None or (entry.handled_at or 0) <= handled_by)
                    and (handled_since is None or (entry.handled_at or 0) >= handled_since)
                ):
                    entries.append(entry)
                    if len(entries) == limit:
                        is_last = len(rows) < size and row is rows[-1]
                        return InboxPage(entries, None if is_last else write_cursor(listing, position))
            if len(rows) < size:
                return InboxPage(entries)
        return InboxPage(entries, write_cursor(listing, position))

    def show(self, scope: str, key: str) -> InboxEntry | None:
        """The row of ``key`` with its stored result; None if there is none. ``key``: as `list` shows it."""
        row = self._ask(self._statements.show, scope, key)
        return None if row is None else _entry(row, self.now())

    def find(self, term: KeyTerm, limit: int = 100) -> InboxMatches:
        """The rows whose key is ``term``, in every scope: of PostgreSQL and SQLite by the primary key. MySQL has no
        index for that, so there the search takes the scopes of the rows that expire last; ``gap`` says so."""
        rows, gap = self._ask(self._statements.find, term, MAX_SCOPES, limit)
        now = self.now()
        return InboxMatches([_entry(row, now) for row in rows[:limit]], gap)

    # -- purging

    def count_old(self, older_than: Duration | None = None) -> PurgePreview:
        """How many rows `purge` would delete, of the first 100,000 that it would look at."""
        now = self.now()
        if older_than is None:
            count = self._ask(self._statements.count_expired, now, MAX_COUNT)
            return PurgePreview(count, 0, capped=count >= MAX_COUNT)
        handled_by = now - micros(older_than, "older_than")
        count = within_retention = looked = 0
        for rows in self._walk(END_OF_TIME, ROWS_PER_ROUND):
            old = [row for row in rows if row[2] <= handled_by]
            count += len(old)
            within_retention += sum(row[3] > now for row in old)
            looked += len(rows)
            if looked >= MAX_COUNT:
                break
        return PurgePreview(count, within_retention, capped=looked >= MAX_COUNT)

    def purge(self, *, older_than: Duration | None = None, limit: int | None = None) -> Iterator[PurgedBatch]:
        """Delete rows in bounded batches, the first to expire first, and yield each batch: stop when you like.

        By default these are the rows that have expired. ``older_than``: the rows that were handled so long ago, expired
        or not. A duplicate of a row that had not expired would run again: `PurgedBatch.within_retention` counts them.
        """
        now = self.now()
        handled_by = now if older_than is None else now - micros(older_than, "older_than")
        expired_by = now if older_than is None else END_OF_TIME
        remaining = limit
        for rows in self._walk(expired_by, ROWS_PER_BATCH):
            old = [row for row in rows if row[2] <= handled_by][:remaining]
            within_retention = sum(row[3] > now for row in old)
            deleted = self._ask(self._statements.delete, old, handled_by, expired_by) if old else 0
            yield PurgedBatch(deleted, min(within_retention, deleted))
            if remaining is not None:
                remaining -= deleted
                if remaining <= 0:
                    return
        while self._ask(self._statements.delete_attempts, now, ROWS_PER_BATCH) == ROWS_PER_BATCH:
            yield PurgedBatch(0, 0)

    def _walk(self, expired_by: int, size: int) -> Iterator[Sequence[EntryRow]]:
        """Yield the rows that expire by ``expired_by`` in batches, the first to expire first."""
        position: Position = (0, "", "")
        while True:
            rows = self._ask(self._statements.walk, position, expired_by, size)
            yield rows
            if len(rows) < size:
                return
            position = (rows[-1][3], rows[-1][0], rows[-1][1])

    # -- the connection

    def _ask(self, request: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a request, and again after a broken connection or a deadlock: each may be repeated."""
        for _ in range(MAX_TRIES):
            try:
                return run_sync(request(self._port, *args))
            except (Contention, ConnectionLost) as error:
                failure = error
        raise StoreUnavailable(f"{self.name} did not answer: {failure}") from failure

    def close(self) -> None:
        run_sync(self._port.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def require_inboxes(store: Store) -> InboxBackend:
    """Return the backend of ``store`` as one that opens inboxes. Raises `ConfigurationError` where it cannot."""
    backend = store.runtime.backend
    if not isinstance(backend, InboxBackend):
        raise ConfigurationError(
            f"{backend!r} cannot hold an inbox; those in sqlite:///, postgresql://, mysql:// and mariadb:// can: give "
            "the URL of the database that your handlers write to"
        )
    return backend


def _entry(row: EntryRow, now: int) -> InboxEntry:
    scope, key, handled_at, expires_at, attempts, fingerprint, result_size, *result = row
    state: InboxState = "expired" if expires_at <= now else "handled"
    return InboxEntry(
        scope=scope,
        key=key,
        state="unfinished" if handled_at is None else state,
        handled_at=handled_at,
        expires_at=expires_at,
        attempts=attempts,
        fingerprint=fingerprint,
        result_size=result_size,
        result=result[0] if result else None,
    )
