"""Records in a SQLite file: for one machine, several processes.

The machine's wall clock is the store's clock, since all who share the file share it. One connection writes at a
time, so there is one lane, and a batch of mixed operations is one transaction. A lone claim or settlement is one
statement, which is its own transaction: the statements are in ``backends/sqlite/records.sql``.
"""

from __future__ import annotations

import itertools
import random
import re
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from effectonce.backends.common import sql_files as sqlfiles
from effectonce.contracts import Capabilities, Clock, Contention, Dialect, OutboxPort, Port, remedy
from effectonce.errors import CorruptRecord, InvalidKey, InvalidOption, SchemaMismatch, show
from effectonce.record import (
    EXHAUSTED,
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
    Swept,
    answer_for,
    first_fingerprint,
)
from effectonce.values.clocks import MachineClock
from effectonce.values.urls import Address

from .connection import Connection, File, Threaded, run_script, run_statements
from .outbox import SQLiteOutbox, ThreadedOutbox

SCHEMA: Final = 1
CAP: Final = 100_000  # the most that `stats` counts of one state
VISITS: Final = 5_000  # the most rows that one page of `list` looks at
RECENT: Final = 1_000_000  # the most rows that `stats` looks at for claimed and done
DAY: Final = 86_400_000_000
CLAIM_TRIES: Final = 100  # how often an operation starts over whose record changes between its statements
UNLIMITED: Final = 1 << 62
FIRST, LAST = -(1 << 63), (1 << 63) - 1
AFTER: Final = b""  # to SQLite, a blob comes after every text
ATTENTION: Final = ("failed", "free", "in_doubt")
OTHERS: Final = ("claimed", "done")

_COLUMNS = (
    "scope, key, state, token, attempts, generation, doubt_on_lapse, created_at, changed_at, lease_until, expires_at, "
    "owner, fingerprint, result, error, note"
)
_FIELDS = _COLUMNS.split(", ")
_CURSOR = re.compile(r"([0-9]{1,18}):([0-9]{1,9}):(.*)", re.DOTALL)


class SQLiteBackend:
    """``sqlite:///file.db?synchronous=FULL&timeout=5s&prefix=effectonce``.

    ``synchronous``: FULL (default) and EXTRA keep every confirmed record through a power cut; NORMAL may then lose
    the last ones, though never through the death of a process. ``timeout``: how long to wait for the write lock.
    """

    capabilities = Capabilities(name="sqlite", lanes=1, notes=True, ordered=True)

    def __init__(self, address: Address, *, clock: Clock | None = None) -> None:
        self.file = File(address)
        self.prefix = address.take("prefix", _prefix, "effectonce")
        address.done()
        self.clock: Clock = clock if clock is not None else MachineClock()
        self._queries: dict[str, str] | None = None

    @property
    def queries(self) -> dict[str, str]:
        """The statements by name, with this store's table names."""
        if self._queries is None:
            self._queries = sqlfiles.statements("backends/sqlite/records.sql", columns=_COLUMNS, **self._names())
        return self._queries

    def _names(self) -> dict[str, str]:
        return {"prefix": self.prefix, "records": f"{self.prefix}_records", "meta": f"{self.prefix}_meta"}

    def sync_port(self) -> Port:
        return SQLitePort(self)

    def async_port(self) -> Port:
        return Threaded(SQLitePort(self))

    def sync_outbox(self, table: str | None = None) -> OutboxPort:
        return SQLiteOutbox(self, table or f"{self.prefix}_outbox")

    def async_outbox(self, table: str | None = None) -> OutboxPort:
        return ThreadedOutbox(SQLiteOutbox(self, table or f"{self.prefix}_outbox"))

    def completion(self, op: Settlement) -> tuple[Dialect, Sequence[tuple[str, Sequence[Any]]]]:
        params = (op.scope, op.key, op.owner, op.token, op.retention, op.result, self.clock.now())
        return "sqlite", [(self.queries["complete"], params)]

    # -- the schema

    def is_new(self) -> bool:
        return self.file.lacks(f"{self.prefix}_meta")

    def schema_sql(self) -> str:
        inbox = sqlfiles.inbox_schema("sqlite", f"{self.prefix}_inbox")
        return "\n".join([self._records_sql(), inbox, sqlfiles.outbox_schema("sqlite", f"{self.prefix}_outbox")])

    def _records_sql(self) -> str:
        return sqlfiles.script("backends/sqlite/records_schema.sql", **self._names())

    def prepare(self, cursor: sqlite3.Cursor) -> None:
        """What a new connection does first: see that the tables are there in our version, or create them."""
        try:
            version = self.meta(cursor, "schema")
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            version = None
        if version is None:
            run_script(cursor, self._records_sql())
            version = self.meta(cursor, "schema")
        todo = remedy(version, self.meta(cursor, "oldest"), SCHEMA)
        if todo:
            raise SchemaMismatch(
                f"{self!r} has schema version {version}, this release reads {SCHEMA}; "
                + (f"run: effectonce migrate {self!r}" if todo == "migrate" else "upgrade effectonce")
            )

    def meta(self, cursor: sqlite3.Cursor, name: str) -> int | None:
        row = cursor.execute(self.queries["read_meta"], (name,)).fetchone()
        return row[0] if row is not None else None

    def __repr__(self) -> str:
        return str(self.file)


def _prefix(text: str) -> str:
    if f"{text}_".lower().startswith("sqlite_"):
        raise InvalidOption("SQLite keeps names that begin with sqlite_ for itself; take another prefix")
    return sqlfiles.table_prefix(text)


def _changing(op: Claim | Remember) -> str:
    return f"scope {show(op.scope)!r}, key {show(op.key)!r} changed {CLAIM_TRIES} times during one operation"


class SQLitePort:
    """See `contracts.Port`. Its coroutines never suspend."""

    def __init__(self, backend: SQLiteBackend) -> None:
        self._backend = backend
        self._db = Connection(backend.file, backend.prepare)
        self._sql = backend.queries
        self._now = backend.clock.now
        self._ticket = itertools.count(random.getrandbits(20))

    def _meta(self, cursor: sqlite3.Cursor, name: str) -> int | None:
        return self._backend.meta(cursor, name)

    # -- operations

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        if len(batch) == 1:
            return (self._db.step(self._apply, batch[0]),)
        if all(type(op) is Look for op in batch):
            return self._db.step(self._apply_all, batch)
        return self._db.transaction(self._apply_all, batch)

    def _apply_all(self, cursor: sqlite3.Cursor, batch: Sequence[Batchable]) -> list[Reply]:
        return [self._apply(cursor, op) for op in batch]

    def _apply(self, cursor: sqlite3.Cursor, op: Batchable) -> Reply:
        try:
            if type(op) is Claim:
                return self._claim(cursor, op)
            if type(op) is Settlement:
                return self._settle(cursor, op)
            if type(op) is Renewal:
                return self._renew(cursor, op)
            if type(op) is Note:
                return self._note(cursor, op)
            if type(op) is Remember:
                return self._remember(cursor, op)
            return self._look(cursor, op)  # type: ignore[arg-type]
        except CorruptRecord as error:
            return error
        except (UnicodeEncodeError, OverflowError, sqlite3.DataError) as error:
            wrapped = InvalidKey(f"SQLite cannot keep scope {show(op.scope)!r}, key {show(op.key)!r}: {error}")
            wrapped.__cause__ = error
            return wrapped

    def _due(self, at: int) -> int:
        """A place in the table for a row to look at at ``at``, which no other row has (but for a rare chance)."""
        return (at // 1000 << 20) | (next(self._ticket) & 0xFFFFF)

    def _claim(self, cursor: sqlite3.Cursor, op: Claim) -> Answer:
        max_attempts = op.max_attempts or UNLIMITED
        for _ in range(CLAIM_TRIES):
            now = self._now()
            due = self._due(now + op.retention)
            lease_until = now + op.lease
            values = {
                "due": due,
                "scope": op.scope,
                "key": op.key,
                "owner": op.owner,
                "now": now,
                "doubt_on_lapse": op.doubt_on_lapse,
                "lease_until": lease_until,
                "expires_at": None if op.doubt_on_lapse else lease_until + op.retention,
                "fingerprint": first_fingerprint(op.fingerprints) or None,
                "note": op.note,
                "max_attempts": max_attempts,
                "fingerprints": op.fingerprints,
            }
            try:
                cursor.execute(self._sql["claim"], values)
            except sqlite3.IntegrityError:  # another row has this very place
                continue
            if cursor.rowcount and cursor.lastrowid == due:
                return Answer("claimed", token=now, attempts=1, note=op.note)
            # Taken from another (then it is ours below), or refused. Outside a transaction the record may have
            # changed since: then no answer fits what is found, and the claim is made again.
            stored = self._read(cursor, op.scope, op.key, now)
            if stored is None:
                continue
            answer = answer_for(stored, fingerprints=op.fingerprints, now=now, claimant=op.owner)
            if answer is None:
                if stored.attempts >= max_attempts and self._exhaust(cursor, op, stored.token, now):
                    return Answer(
                        "exhausted",
                        token=stored.token,
                        attempts=stored.attempts,
                        generation=stored.generation,
                        error=EXHAUSTED,
                    )
                continue
            if answer.kind == "in_doubt" and stored.state == "claimed":
                lapsed = cursor.execute(self._sql["lapse"], (now, op.scope, op.key, stored.token, now)).rowcount
                if not lapsed:
                    continue
            return answer
        raise Contention(_changing(op))

    def _exhaust(self, cursor: sqlite3.Cursor, op: Claim, token: int, now: int) -> bool:
        expires = now + op.retention
        values = (EXHAUSTED, now, expires, op.scope, op.key, token, op.max_attempts, now, now)
        return cursor.execute(self._sql["exhaust"], values).rowcount == 1

    def _read(self, cursor: sqlite3.Cursor, scope: str, key: str, now: int) -> StoredClaim | None:
        """The record, unless it has expired."""
        row = cursor.execute(self._sql["stored_claim"], (scope, key, now)).fetchone()
        return None if row is None else StoredClaim(*row)

    def _look(self, cursor: sqlite3.Cursor, op: Look) -> Answer:
        now = self._now()
        stored = self._read(cursor, op.scope, op.key, now)
        answer = None if stored is None else answer_for(stored, fingerprints=op.fingerprints, now=now)
        return answer or Answer("absent")

    def _settle(self, cursor: sqlite3.Cursor, op: Settlement) -> bool:
        now = self._now()
        values = {
            "state": op.state,
            "result": op.result,
            "error": op.error,
            "refund": op.refund,
            "now": now,
            "expires_at": None if op.state == "in_doubt" else now + op.retention,
            "note": op.note,
            "scope": op.scope,
            "key": op.key,
            "owner": op.owner,
            "token": op.token,
            "also_from": "in_doubt" if op.state == "done" else "claimed",
        }
        if cursor.execute(self._sql["settle"], values).rowcount:
            return True
        # Not applied now. Applied before, and its reply lost? Owner and token never come back to a claim.
        stored = self._read(cursor, op.scope, op.key, now)
        return stored is not None and (stored.state, stored.owner, stored.token) == (op.state, op.owner, op.token)

    def _note(self, cursor: sqlite3.Cursor, op: Note) -> bool:
        now = self._now()
        values = (op.note, now, op.scope, op.key, op.owner, op.token, now)
        return cursor.execute(self._sql["note"], values).rowcount == 1

    def _renew(self, cursor: sqlite3.Cursor, op: Renewal) -> bool:
        now = self._now()
        until = now + op.lease
        values = (until, until + op.retention, op.scope, op.key, op.owner, op.token, now)
        return cursor.execute(self._sql["renew"], values).rowcount == 1

    def _remember(self, cursor: sqlite3.Cursor, op: Remember) -> bool:
        for _ in range(CLAIM_TRIES):
            now = self._now()
            expires_at = now + op.retention
            values = {
                "due": self._due(expires_at),
                "scope": op.scope,
                "key": op.key,
                "now": now,
                "expires_at": expires_at,
                "fingerprint": first_fingerprint(op.fingerprints) or None,
                "result": op.result,
                "fingerprints": op.fingerprints,
            }
            try:
                if cursor.execute(self._sql["remember"], values).rowcount:
                    return True
            except sqlite3.IntegrityError:  # as in `_claim`
                continue
            stored = self._read(cursor, op.scope, op.key, now)
            answer = None if stored is None else answer_for(stored, fingerprints=op.fingerprints, now=now)
            if answer is not None:
                return answer.kind == "done"
        raise Contention(_changing(op))

    # -- for operators

    async def get(self, scope: str, key: str) -> Record | None:
        return self._db.step(self._get, scope, key)

    def _get(self, cursor: sqlite3.Cursor, scope: str, key: str) -> Record | None:
        row = cursor.execute(self._sql["get"], (scope, key, self._now())).fetchone()
        return _record(row) if row is not None else None

    async def list(self, query: Query) -> Page:
        """Failed, free and in_doubt: newest change first. Others by scope and key, which a sweep never changes."""
        walk = self._list_attention if _newest_first(query) else self._list_others
        return self._db.step(walk, query, _place(query))

    def _list_attention(self, cursor: sqlite3.Cursor, query: Query, place: Place | None) -> Page:
        start, end = place or (LAST, "", ""), (FIRST, "", "")
        edge = cursor.execute(self._sql["edge_attention"], (query.state, *start, VISITS - 1)).fetchone()
        values = (query.state, *start, *(edge or end), query.scope, query.scope, self._now(), query.limit + 1)
        return _page(cursor.execute(self._sql["page_attention"], values).fetchall(), query.limit, edge)

    def _list_others(self, cursor: sqlite3.Cursor, query: Query, place: Place | None) -> Page:
        start = place[1:] if place is not None else query.after or (query.scope or "", "")
        end = (AFTER if query.scope is None else query.scope, AFTER)
        which = "unfinished" if query.unfinished else "others"
        edge = cursor.execute(self._sql[f"edge_{which}"], (*start, *end, VISITS - 1)).fetchone()
        values = (*start, *(edge[1:] if edge else end), query.state, query.state, self._now(), query.limit + 1)
        return _page(cursor.execute(self._sql[f"page_{which}"], values).fetchall(), query.limit, edge)

    async def stats(self) -> Stats:
        return self._db.step(self._stats)

    def _stats(self, cursor: sqlite3.Cursor) -> Stats:
        """Failed, free and in_doubt from their index; claimed and done among the newest `RECENT` rows."""
        now = self._now()

        def one(name: str, *values: object) -> Any:
            row = cursor.execute(self._sql[name], values).fetchone()
            return row[0] if row is not None else None

        edge = one("edge_recent", RECENT)
        counts = {state: one("count_recent", FIRST if edge is None else edge, state, now, CAP) for state in OTHERS}
        counts.update({state: one("count_attention", state, now, CAP) for state in ATTENTION})
        return Stats(
            counts=counts,
            cap=CAP,
            oldest_in_doubt=one("oldest_in_doubt"),
            swept_at=self._meta(cursor, "swept_at"),
            approximate=() if edge is None else tuple(state for state in OTHERS if counts[state] < CAP),
        )

    async def forget(self, scope: str, key: str, retention: int) -> bool:
        return self._db.step(self._forget, scope, key, retention)

    def _forget(self, cursor: sqlite3.Cursor, scope: str, key: str, retention: int) -> bool:
        now = self._now()
        values = (now, now, now + retention, scope, key, now)
        return cursor.execute(self._sql["forget"], values).rowcount == 1

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        return self._db.step(self._resolve, scope, key, resolution)

    def _resolve(self, cursor: sqlite3.Cursor, scope: str, key: str, resolution: Resolution) -> bool:
        now = self._now()
        values = {
            "state": resolution.state,
            "now": now,
            "expires_at": now + resolution.retention,
            "result": resolution.result,
            "error": resolution.error,
            "scope": scope,
            "key": key,
        }
        return cursor.execute(self._sql["resolve"], values).rowcount == 1

    # -- upkeep

    async def sweep(self, limit: int) -> Swept:
        return self._db.transaction(self._sweep, limit)

    def _sweep(self, cursor: sqlite3.Cursor, limit: int) -> Swept:
        now = self._now()
        rows = cursor.execute(self._sql["due"], (self._due(now) | 0xFFFFF, 2 * limit + 1)).fetchall()
        seen, beyond = rows[: 2 * limit], rows[2 * limit :]
        # What is due and has not expired was claimed again, runs longer, or never expires: look again later, and not
        # within this very millisecond.
        later = [(self._due(now + DAY if at is None else at + 999), due) for due, at in seen if at is None or at > now]
        cursor.executemany(self._sql["postpone"], later)
        expired = [due for due, at in seen if at is not None and at <= now]
        cursor.executemany(self._sql["delete"], [(due, now) for due in expired[:limit]])
        room = limit - len(expired)
        if room >= 0:
            early = [due for (due,) in cursor.execute(self._sql["early"], (now, room + 1)).fetchall()]
            cursor.executemany(self._sql["delete"], [(due, now) for due in early[:room]])
            expired += early
        lapsed = cursor.execute(self._sql["lapsed"], (now, limit + 1)).fetchall()
        cursor.executemany(self._sql["doubt"], [(now, due) for (due,) in lapsed[:limit]])
        more = len(expired) > limit or len(lapsed) > limit or bool(beyond)
        if not more:
            cursor.execute(self._sql["write_meta"], ("swept_at", now))
        return Swept(min(len(expired), limit), min(len(lapsed), limit), more)

    async def figures(self, before: int) -> Figures:
        return self._db.step(self._figures, before)

    def _figures(self, cursor: sqlite3.Cursor, before: int) -> Figures:
        """Of those that are due; a sweep has put off what is due and runs longer."""
        values = (self._due(before) | 0xFFFFF, CAP, before)
        overdue, oldest = cursor.execute(self._sql["overdue"], values).fetchone()
        settings = {
            name: str(cursor.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("journal_mode", "synchronous")
        }
        return Figures(overdue=overdue, oldest_overdue=oldest, cap=CAP, settings=settings)

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return ()

    async def now(self) -> int:
        return self._now()

    async def check(self) -> None:
        """Open the file, and begin to write: a file that can only be read is no store."""
        self._db.transaction(sqlite3.Cursor.execute, self._sql["touch_meta"])

    async def migrate(self) -> None:
        self._db.close()
        self._db.transaction(run_statements, self._backend.schema_sql())

    async def close(self) -> None:
        self._db.close()


def _record(row: Sequence[Any]) -> Record:
    fields = dict(zip(_FIELDS, row, strict=True))
    fields["doubt_on_lapse"] = fields["doubt_on_lapse"] == 1
    return Record(**fields)


#: Where a list has come to: changed_at (0 in a list by scope and key), scope, key.
Place = tuple[int, str, str]


def _page(rows: Sequence[tuple[Any, ...]], limit: int, edge: Place | None) -> Page:
    """A page of places and columns; it goes on after its last row, or after the edge where it was not filled."""
    last = rows[limit - 1] if len(rows) > limit else edge
    cursor = None if last is None else f"{last[0]}:{len(last[1])}:{last[1]}{last[2]}"
    return Page([_record(row[3:]) for row in rows[:limit]], cursor)


def _newest_first(query: Query) -> bool:
    return query.state in ATTENTION and not query.unfinished and query.after is None


def _place(query: Query) -> Place | None:
    """The place in a query's cursor."""
    if query.cursor is None:
        return None
    found = _CURSOR.fullmatch(query.cursor)
    if found is not None:
        at, length, text = int(found[1]), int(found[2]), found[3]
        scope, key = text[:length], text[length:]
        newest = _newest_first(query)
        fits = newest if at else not newest and query.scope in (None, scope)
        if fits and len(scope) == length and not any("\ud800" <= char <= "\udfff" for char in text):
            return at, scope, key
    raise InvalidOption("this cursor is not of this list; start again without one")
