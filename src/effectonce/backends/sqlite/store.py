"""Records in a SQLite file, for several processes on one machine.

The store's clock is the machine's wall clock, which all processes that share the file have in common. Only one
connection can write at a time, so one connection serves all operations, and a batch of mixed operations is one
transaction. A lone claim or settlement is one statement, which is its own transaction. The statements are in
``backends/sqlite/records.sql``, the lists and counts for operators in `record_reader`.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from msgspec.structs import asdict

from effectonce.backends.common.sql_store import RECORD_COLUMNS, require_schema_version
from effectonce.contracts import Capabilities, Clock, Contention, Dialect, InboxPort, OutboxPort, Port
from effectonce.core import sql_files
from effectonce.errors import CorruptRecord, InvalidKey, show
from effectonce.record import (
    Answer,
    Batchable,
    Claim,
    Figures,
    Look,
    Note,
    Page,
    Query,
    Record,
    Remember,
    Renewal,
    Reply,
    Resolution,
    Settlement,
    Stats,
    StoredClaim,
    SweepResult,
    answer_for,
    exhausted_error,
)
from effectonce.values.clocks import MachineClock
from effectonce.values.fingerprint import first_fingerprint
from effectonce.values.urls import Address

from .connection import (
    DirectConnection,
    PortConnection,
    SQLiteConnection,
    in_autocommit,
    in_transaction,
    run_script,
    run_statements,
)
from .file import SQLiteFile, parse_prefix
from .inbox import SQLiteInbox
from .outbox import SQLiteOutbox
from .record_reader import MAX_COUNT, RecordReader
from .threaded_connection import ThreadedConnection

SCHEMA_VERSION: Final = 1
MAX_CLAIM_ROUNDS: Final = 100  # how often a record may change under one claim before that is Contention
POSTPONE_US: Final = 24 * 3600 * 1_000_000  # after this the sweep visits a record that never expires again
# The column `due`, which is the rowid, is a time in milliseconds and then a sequence number that makes it unique.
_SEQUENCE_BITS: Final = 20
_SEQUENCE_MASK: Final = (1 << _SEQUENCE_BITS) - 1


class SQLiteStoreBackend:
    """``sqlite:///file.db?synchronous=FULL&timeout=5s&prefix=effectonce``.

    ``synchronous``: FULL (default) and EXTRA keep every confirmed record through a power cut; NORMAL may then lose
    the last ones, though never through the death of a process. ``timeout``: how long to wait for the write lock.
    """

    capabilities = Capabilities(name="sqlite", connections="one", notes=True, ordered=True)

    def __init__(self, address: Address, *, clock: Clock | None = None) -> None:
        self.file = SQLiteFile(address)
        self.prefix = address.take("prefix", parse_prefix, "effectonce")
        address.refuse_unknown_options()
        self.clock: Clock = clock if clock is not None else MachineClock()
        self._names = {"prefix": self.prefix, "records": f"{self.prefix}_records", "meta": f"{self.prefix}_meta"}

    @cached_property
    def statements(self) -> dict[str, str]:
        """The statements by name, with this store's table names."""
        columns = ", ".join(RECORD_COLUMNS)
        return sql_files.read_statements("backends/sqlite/records.sql", columns=columns, **self._names)

    def sync_port(self) -> Port:
        return SQLitePort(self, DirectConnection)

    def async_port(self) -> Port:
        return SQLitePort(self, ThreadedConnection)

    def sync_outbox(self, table: str | None = None) -> OutboxPort:
        return SQLiteOutbox(self, DirectConnection, table or f"{self.prefix}_outbox")

    def async_outbox(self, table: str | None = None) -> OutboxPort:
        return SQLiteOutbox(self, ThreadedConnection, table or f"{self.prefix}_outbox")

    def sync_inbox(self, table: str | None = None) -> InboxPort:
        return SQLiteInbox(self.file, table or f"{self.prefix}_inbox")

    def completion(self, op: Settlement) -> tuple[Dialect, Sequence[tuple[str, Sequence[Any]]]]:
        params = (op.scope, op.key, op.owner, op.token, op.retention_us, op.result, self.clock.now())
        return "sqlite", [(self.statements["complete"], params)]

    # -- the schema

    def is_new(self) -> bool:
        return self.file.lacks(f"{self.prefix}_meta")

    def schema_sql(self) -> str:
        return sql_files.store_schema("sqlite", self.prefix)

    def _records_sql(self) -> str:
        return sql_files.read_script("backends/sqlite/records_schema.sql", **self._names)

    def prepare(self, cursor: sqlite3.Cursor) -> None:
        """Create the tables where they are missing, and check their version. Every new connection calls this first."""
        try:
            version = self._read_meta(cursor, "schema")
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            version = None
        if version is None:
            run_script(cursor, self._records_sql())
            version = self._read_meta(cursor, "schema")
        require_schema_version(self, version, self._read_meta(cursor, "oldest"), SCHEMA_VERSION)

    def _read_meta(self, cursor: sqlite3.Cursor, name: str) -> int | None:
        row = cursor.execute(self.statements["read_meta"], (name,)).fetchone()
        return row[0] if row is not None else None

    def __repr__(self) -> str:
        return str(self.file)


class SQLitePort(Port):
    """See `contracts.Port`. One connection; the same code for sync and async."""

    def __init__(self, backend: SQLiteStoreBackend, connect: Callable[[SQLiteConnection], PortConnection]) -> None:
        self.connection = connect(SQLiteConnection(backend.file, backend.prepare))
        self._backend = backend
        self._sql = backend.statements
        self._now = backend.clock.now
        self._reader = RecordReader(backend.statements, backend.clock.now)
        self._sequence = itertools.count(random.getrandbits(_SEQUENCE_BITS))
        self._appliers: dict[type, Callable[[sqlite3.Cursor, Any], Reply]] = {
            Claim: self._claim,
            Look: self._look,
            Settlement: self._settle,
            Note: self._note,
            Renewal: self._renew,
            Remember: self._remember,
        }

    # -- operations

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        # A look writes nothing, and a lone operation is one statement: neither needs the lock of a transaction.
        without_transaction = len(batch) == 1 or all(type(op) is Look for op in batch)
        run = self.connection.execute if without_transaction else self.connection.transaction
        return await run(lambda cursor: [self._apply(cursor, op) for op in batch])

    def _apply(self, cursor: sqlite3.Cursor, op: Batchable) -> Reply:
        try:
            return self._appliers[type(op)](cursor, op)
        except CorruptRecord as error:
            return error
        except (UnicodeEncodeError, OverflowError, sqlite3.DataError) as error:
            invalid = InvalidKey(f"SQLite cannot store scope {show(op.scope)!r}, key {show(op.key)!r}: {error}")
            invalid.__cause__ = error
            return invalid

    def _due_rowid(self, at_us: int) -> int:
        """A rowid for a record that the sweep must visit at ``at_us``. Another row rarely has the same one."""
        return (at_us // 1000 << _SEQUENCE_BITS) | (next(self._sequence) & _SEQUENCE_MASK)

    def _claim(self, cursor: sqlite3.Cursor, op: Claim) -> Answer:
        for _ in range(MAX_CLAIM_ROUNDS):
            now = self._now()
            lease_until = now + op.lease_us
            due = self._due_rowid(now + op.retention_us)
            claim = {
                "scope": op.scope,
                "key": op.key,
                "owner": op.owner,
                "max_attempts": op.max_attempts,
                "doubt_on_lapse": op.doubt_on_lapse,
                "fingerprints": op.fingerprints,
                "note": op.note,
                "due": due,
                "now": now,
                "lease_until": lease_until,
                "expires_at": None if op.doubt_on_lapse else lease_until + op.retention_us,
                "fingerprint": first_fingerprint(op.fingerprints) or None,
            }
            try:
                cursor.execute(self._sql["claim"], claim)
            except sqlite3.IntegrityError:  # another row has this very rowid
                continue
            if cursor.rowcount and cursor.lastrowid == due:
                return Answer("claimed", token=now, attempts=1, note=op.note)
            # The claim took an existing record, which then has this owner, or was refused: the record tells which. But
            # outside of a transaction it may have changed since. Where no answer fits it, the claim is made again.
            stored = self._read(cursor, op, now)
            if stored is None:
                continue
            answer = answer_for(stored, fingerprints=op.fingerprints, now=now, claimant=op.owner)
            if answer is None:
                if 0 < op.max_attempts <= stored.attempts and self._exhaust(cursor, op, stored, now):
                    error = exhausted_error(stored.error)
                    return Answer("exhausted", stored.token, stored.attempts, stored.generation, error=error)
                continue
            if answer.kind == "in_doubt" and stored.state == "claimed":
                lapse = {"scope": op.scope, "key": op.key, "token": stored.token, "now": now}
                if not self._update_one(cursor, "lapse", lapse):
                    continue
            return answer
        raise _contention(op)

    def _exhaust(self, cursor: sqlite3.Cursor, op: Claim, stored: StoredClaim, now: int) -> bool:
        end = {
            "token": stored.token,
            "last_error": stored.error,
            "error": exhausted_error(stored.error),
            "now": now,
            "expires_at": now + op.retention_us,
        }
        return self._update_one(cursor, "exhaust", {**asdict(op), **end})

    def _update_one(self, cursor: sqlite3.Cursor, statement: str, values: Mapping[str, Any]) -> bool:
        """Run a statement that changes one record. False where its conditions did not hold, so that it changed none."""
        return cursor.execute(self._sql[statement], values).rowcount == 1

    def _read(self, cursor: sqlite3.Cursor, op: Batchable, now: int) -> StoredClaim | None:
        """The unexpired record that ``op`` is about."""
        row = cursor.execute(self._sql["stored_claim"], (op.scope, op.key, now)).fetchone()
        return None if row is None else StoredClaim(*row)

    def _look(self, cursor: sqlite3.Cursor, op: Look) -> Answer:
        now = self._now()
        stored = self._read(cursor, op, now)
        answer = None if stored is None else answer_for(stored, fingerprints=op.fingerprints, now=now)
        return answer or Answer("absent")

    def _settle(self, cursor: sqlite3.Cursor, op: Settlement) -> bool:
        now = self._now()
        settlement = {
            "scope": op.scope,
            "key": op.key,
            "owner": op.owner,
            "token": op.token,
            "state": op.state,
            "result": op.result,
            "error": op.error,
            "refund": op.refund,
            "note": op.note,
            "now": now,
            "expires_at": None if op.state == "in_doubt" else now + op.retention_us,
        }
        if self._update_one(cursor, "settle", settlement):
            return True
        # Not applied now. It may have been applied before, and its reply lost: no other claim has this owner and token.
        stored = self._read(cursor, op, now)
        return stored is not None and (stored.state, stored.owner, stored.token) == (op.state, op.owner, op.token)

    def _note(self, cursor: sqlite3.Cursor, op: Note) -> bool:
        return self._update_one(cursor, "note", {**asdict(op), "now": self._now()})

    def _renew(self, cursor: sqlite3.Cursor, op: Renewal) -> bool:
        now = self._now()
        ends = {"lease_until": now + op.lease_us, "expires_at": now + op.lease_us + op.retention_us}
        return self._update_one(cursor, "renew", {**asdict(op), "now": now, **ends})

    def _remember(self, cursor: sqlite3.Cursor, op: Remember) -> bool:
        for _ in range(MAX_CLAIM_ROUNDS):
            now = self._now()
            expires_at = now + op.retention_us
            success = {
                **asdict(op),
                "due": self._due_rowid(expires_at),
                "now": now,
                "expires_at": expires_at,
                "fingerprint": first_fingerprint(op.fingerprints) or None,
            }
            try:
                if self._update_one(cursor, "remember", success):
                    return True
            except sqlite3.IntegrityError:  # another row has this very rowid
                continue
            stored = self._read(cursor, op, now)
            answer = answer_for(stored, fingerprints=op.fingerprints, now=now) if stored is not None else None
            if answer is not None:
                return answer.kind == "done"
        raise _contention(op)

    # -- for operators

    @in_autocommit
    def get(self, cursor: sqlite3.Cursor, scope: str, key: str) -> Record | None:
        return self._reader.get(cursor, scope, key)

    @in_autocommit
    def list(self, cursor: sqlite3.Cursor, query: Query) -> Page:
        return self._reader.page(cursor, query)

    @in_autocommit
    def stats(self, cursor: sqlite3.Cursor) -> Stats:
        return self._reader.stats(cursor)

    @in_autocommit
    def forget(self, cursor: sqlite3.Cursor, scope: str, key: str, retention_us: int) -> bool:
        now = self._now()
        values = {"scope": scope, "key": key, "now": now, "expires_at": now + retention_us}
        return self._update_one(cursor, "forget", values)

    @in_autocommit
    def resolve(self, cursor: sqlite3.Cursor, scope: str, key: str, resolution: Resolution) -> bool:
        now = self._now()
        times = {"now": now, "expires_at": now + resolution.retention_us}
        is_retry = resolution.state == "free"
        values = {**asdict(resolution), "scope": scope, "key": key, "is_retry": is_retry, **times}
        return self._update_one(cursor, "resolve", values)

    @in_autocommit
    def figures(self, cursor: sqlite3.Cursor, before: int) -> Figures:
        """Overdue records are counted among the rows that the sweep should have visited by now."""
        values = (self._due_rowid(before) | _SEQUENCE_MASK, MAX_COUNT, before)
        overdue, oldest = cursor.execute(self._sql["overdue"], values).fetchone()
        settings = {
            name: str(cursor.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("journal_mode", "synchronous")
        }
        return Figures(overdue=overdue, oldest_overdue=oldest, cap=MAX_COUNT, settings=settings)

    # -- the sweep, and the schema

    @in_transaction
    def sweep(self, cursor: sqlite3.Cursor, limit: int) -> SweepResult:
        now = self._now()
        rows = cursor.execute(self._sql["due"], (self._due_rowid(now) | _SEQUENCE_MASK, 2 * limit + 1)).fetchall()
        visited, has_more_due = rows[: 2 * limit], len(rows) > 2 * limit
        # A row that is due and has not expired was claimed again, or its lease was renewed, or it never expires: visit
        # it again later, rounded up so that it is not within this very millisecond.
        postponed = [
            (self._due_rowid(now + POSTPONE_US if expires_at is None else expires_at + 999), due)
            for due, expires_at in visited
            if expires_at is None or expires_at > now
        ]
        cursor.executemany(self._sql["postpone"], postponed)
        expired = [due for due, expires_at in visited if expires_at is not None and expires_at <= now]
        cursor.executemany(self._sql["delete"], [(due, now) for due in expired[:limit]])
        remaining = limit - len(expired)
        if remaining >= 0:
            early = [due for (due,) in cursor.execute(self._sql["early"], (now, remaining + 1)).fetchall()]
            cursor.executemany(self._sql["delete"], [(due, now) for due in early[:remaining]])
            expired += early
        lapsed = cursor.execute(self._sql["lapsed"], (now, limit + 1)).fetchall()
        cursor.executemany(self._sql["doubt"], [(now, due) for (due,) in lapsed[:limit]])
        more = len(expired) > limit or len(lapsed) > limit or has_more_due
        if not more:
            cursor.execute(self._sql["write_meta"], ("swept_at", now))
        return SweepResult(min(len(expired), limit), min(len(lapsed), limit), more)

    async def now(self) -> int:
        return self._now()

    @in_transaction
    def check(self, cursor: sqlite3.Cursor) -> None:
        """Open the file and begin to write, which fails where the file can only be read."""
        cursor.execute(self._sql["touch_meta"])

    async def migrate(self) -> None:
        await self.connection.close()
        await self.connection.transaction(lambda cursor: run_statements(cursor, self._backend.schema_sql()))

    async def close(self) -> None:
        await self.connection.close()


def _contention(op: Claim | Remember) -> Contention:
    return Contention(
        f"scope {show(op.scope)!r}, key {show(op.key)!r} changed {MAX_CLAIM_ROUNDS} times during one call; retry, or "
        "lower the concurrency on this key"
    )
