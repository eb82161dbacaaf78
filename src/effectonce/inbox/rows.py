"""The rows of an inbox: what is asked of the database, once per dialect, over a `Session` of either colour."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from effectonce.backends.common.sql_files import inbox_words, quoted, statements
from effectonce.contracts import Dialect, Session
from effectonce.errors import SchemaMissing, TransactionConflict, UnsafeStore, show
from effectonce.record import split_fingerprints
from effectonce.values.identity import digest

MAX_BATCH: Final = 5000
MAX_NAME: Final = 47  # of a table, so that the names of its indexes are under PostgreSQL's limit of 63
_NONE: Final = bytes(33)  # in place of a fingerprint
_TRIES: Final = 5  # a row that is there for the insert and gone for the look at it was purged in between


class Arrival(Struct, gc=False):
    """A message as its row names it. ``key`` is a keyed hash where the inbox is private."""

    scope: str
    key: str
    plain_key: str
    prints: bytes  # the fingerprints of its payload, one per version, the first is stored; b"": not compared
    retention: int
    mark: Any = None  # of the row that `insert` has made for it: no other has the same

    @property
    def fingerprint(self) -> bytes | None:
        return self.prints[:33] or None

    @property
    def id(self) -> str:
        return digest(self.scope, self.key).hex()


class Found(Struct, gc=False):
    """The row that a duplicate found."""

    fingerprint: bytes | None
    result: bytes | None

    def mismatches(self, arrival: Arrival) -> bool:
        """Whether it was written for another payload."""
        stored = self.fingerprint
        return bool(stored and arrival.prints and stored not in split_fingerprints(arrival.prints))


@lru_cache(maxsize=64)
def rows_of(dialect: Dialect, table: str) -> Rows:
    return _KINDS[dialect](dialect, table)


class Rows(ABC):
    """The rows of one table. Nothing here begins, ends or repeats a transaction."""

    file: str
    now: str

    def __init__(self, dialect: Dialect, table: str) -> None:
        self.table = table
        self._quoted = quoted(table, dialect)
        self._sql = statements(self.file, now=self.now, **inbox_words(dialect, table))

    @abstractmethod
    async def insert(self, session: Session, arrival: Arrival, *, result: bool) -> Found | None:
        """None: it is the first, and its row is there. Else the row that was, with its result where ``result``."""

    @abstractmethod
    async def insert_many(self, session: Session, arrivals: Sequence[Arrival]) -> dict[str, Found]:
        """Insert them all, no key twice; by key, the rows that were there (without their results). The others have
        their marks then."""

    @abstractmethod
    async def store(self, session: Session, arrival: Arrival, result: bytes | None) -> None:
        """Keep the result of a row that this transaction has inserted."""

    @abstractmethod
    async def ours(self, session: Session, arrival: Arrival) -> bool:
        """Whether the row that `insert` has made for this very arrival is there."""

    @abstractmethod
    async def forget_many(self, session: Session, arrivals: Sequence[Arrival]) -> None: ...

    @abstractmethod
    async def count(self, session: Session, arrival: Arrival) -> int | None:
        """Count one attempt; how many there are now. None: the message is handled already."""

    @abstractmethod
    async def refund(self, session: Session, arrival: Arrival) -> None:
        """Take one attempt back."""

    @abstractmethod
    async def uncount(self, session: Session, arrival: Arrival) -> None:
        """Forget them all."""

    @abstractmethod
    async def purge(self, session: Session, limit: int) -> int:
        """Delete up to ``limit`` expired rows, skipping those that are locked; how many rows of the inbox."""

    @abstractmethod
    async def check(self, session: Session) -> None:
        """`UnsafeStore` where a commit may be lost after it was confirmed; `SchemaMissing` without the table."""

    def _missing(self) -> SchemaMissing:
        return SchemaMissing(
            f"the table {self.table} is missing; create it: effectonce migrate URL, or run what "
            "inbox.schema_sql(dialect) gives in your own migrations"
        )


class _Keyed(Rows):
    """Tables whose key is the two texts: PostgreSQL and SQLite."""

    async def insert(self, session: Session, arrival: Arrival, *, result: bool) -> Found | None:
        new = (arrival.scope, arrival.key, arrival.fingerprint, arrival.retention)
        for _ in range(_TRIES):
            for (arrival.mark,) in await session.rows(self._sql["insert"], new):
                return None
            if not result and not arrival.prints:  # nothing about the row matters but that it is there
                return Found(None, None)
            for row in await session.rows(self._sql["find"], new[:2]):
                return Found(*map(_bytes, row))
        raise _purged()

    async def insert_many(self, session: Session, arrivals: Sequence[Arrival]) -> dict[str, Found]:
        found: dict[str, Found] = {}
        for _ in range(_TRIES):
            new = {_text(key): mark for key, mark in await self._insert_many(session, arrivals)}
            for arrival in arrivals:
                arrival.mark = new.get(arrival.key)
            if len(new) == len(arrivals):
                return found
            arrivals = [arrival for arrival in arrivals if arrival.key not in new]
            for key, fingerprint in await self._find_many(session, arrivals):
                found[_text(key)] = Found(_bytes(fingerprint), None)
            arrivals = [arrival for arrival in arrivals if arrival.key not in found]
            if not arrivals:
                return found
        raise _purged()

    async def store(self, session: Session, arrival: Arrival, result: bytes | None) -> None:
        await session.rows(self._sql["store"], (arrival.scope, arrival.key, result))

    async def ours(self, session: Session, arrival: Arrival) -> bool:
        return bool(await session.rows(self._sql["ours"], (arrival.scope, arrival.key, arrival.mark)))

    async def count(self, session: Session, arrival: Arrival) -> int | None:
        counted = await session.rows(self._sql["count"], (arrival.scope, arrival.key, arrival.retention))
        return counted[0][0] if counted else None

    async def refund(self, session: Session, arrival: Arrival) -> None:
        await session.rows(self._sql["refund"], (arrival.scope, arrival.key))

    async def uncount(self, session: Session, arrival: Arrival) -> None:
        await session.rows(self._sql["uncount"], (arrival.scope, arrival.key))

    async def purge(self, session: Session, limit: int) -> int:
        await session.rows(self._sql["purge_attempts"], (limit,))
        return len(await session.rows(self._sql["purge"], (limit,)))

    async def forget_many(self, session: Session, arrivals: Sequence[Arrival]) -> None:
        if arrivals:
            await session.rows(self._sql["forget_many"], (arrivals[0].scope, self._keys(arrivals)))

    async def _insert_many(self, session: Session, arrivals: Sequence[Arrival]) -> Sequence[Any]:
        prints = b"".join([arrival.prints[:33] or _NONE for arrival in arrivals])
        first = arrivals[0]
        params = (first.scope, self._keys(arrivals), prints, first.retention)
        return await session.rows(self._sql["insert_many"], params)

    async def _find_many(self, session: Session, arrivals: Sequence[Arrival]) -> Sequence[Any]:
        return await session.rows(self._sql["find_many"], (arrivals[0].scope, self._keys(arrivals)))

    @abstractmethod
    def _keys(self, arrivals: Sequence[Arrival]) -> str:
        """Their keys as one parameter: the statement is the same for any number of them."""


class _PostgreSQL(_Keyed):
    file = "inbox/postgres.sql"
    now = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"

    def _keys(self, arrivals: Sequence[Arrival]) -> str:
        """An array literal. (psycopg's own takes three times as long.)"""
        text = '","'.join([arrival.key for arrival in arrivals])
        if "\\" in text or text.count('"') != 2 * (len(arrivals) - 1):
            escaped = [arrival.key.replace("\\", "\\\\").replace('"', '\\"') for arrival in arrivals]
            text = '","'.join(escaped)
        return f'{{"{text}"}}'

    async def check(self, session: Session) -> None:
        ((fsync, synchronous_commit, persistence),) = await session.rows(self._sql["settings"], (self._quoted,))
        if persistence is None:
            raise self._missing()
        if fsync == "off":
            raise UnsafeStore("this server runs with fsync=off: a power cut loses or corrupts commits; set fsync=on")
        if synchronous_commit == "off":
            raise UnsafeStore(
                "this connection has synchronous_commit=off: a crash loses commits that were confirmed, and the broker "
                "does not deliver them again; ALTER ROLE ... SET synchronous_commit = on"
            )
        if persistence == "u":
            raise UnsafeStore(f"a crash empties {self.table}: ALTER TABLE {self.table} SET LOGGED")


class _SQLite(_Keyed):
    file = "inbox/sqlite.sql"
    now = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"

    def _keys(self, arrivals: Sequence[Arrival]) -> str:
        return msgspec.json.encode([arrival.key for arrival in arrivals]).decode()

    async def check(self, session: Session) -> None:
        bare = self.table.rpartition(".")[2]
        ((journal, synchronous, there),) = await session.rows(self._sql["settings"], (bare,))
        if there is None:
            raise self._missing()
        if journal in ("off", "memory"):
            raise UnsafeStore(
                f"this connection has journal_mode={journal}: a crash can leave half a transaction; PRAGMA "
                "journal_mode = WAL (a database in memory loses all of it)"
            )
        if synchronous < (2 if journal == "wal" else 1):
            raise UnsafeStore(
                f"this connection has journal_mode={journal} and synchronous={synchronous}: a power cut loses commits "
                "that were confirmed; PRAGMA synchronous = FULL"
            )


class _MySQL(Rows):
    """The key is a hash. Who was first is told by a nonce that only the first row's insert has kept."""

    file = "inbox/mysql.sql"
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

    async def insert(self, session: Session, arrival: Arrival, *, result: bool) -> Found | None:
        nonce = arrival.mark = os.urandom(16)
        insert, params = self._insert([arrival], nonce)
        for _ in range(_TRIES):
            if session.returning:
                columns = "nonce, fingerprint, result" if result else "nonce, fingerprint, NULL"
                found = await session.rows(f"{insert} RETURNING {columns}", params)
            else:
                await session.rows(insert, params)
                found = await session.rows(self._sql["find"], (arrival.id,))
            for kept, *rest in found:
                return None if bytes(kept) == nonce else Found(*map(_bytes, rest))
        raise _purged()

    async def insert_many(self, session: Session, arrivals: Sequence[Arrival]) -> dict[str, Found]:
        nonce = os.urandom(16)
        for arrival in arrivals:
            arrival.mark = nonce
        # By id, so that two batches never wait for each other.
        by_id = dict(sorted((digest(arrival.scope, arrival.key), arrival) for arrival in arrivals))
        insert, params = self._insert(list(by_id.values()), nonce)
        if session.returning:
            rows = await session.rows(f"{insert} RETURNING id, nonce, fingerprint", params)
        else:
            await session.rows(insert, params)
            rows = await session.rows(*self._of_ids("find_many", [each.hex() for each in by_id]))
        return {
            by_id[bytes(id_)].key: Found(_bytes(fingerprint), None)
            for id_, kept, fingerprint in rows
            if bytes(kept) != nonce
        }

    def _insert(self, arrivals: list[Arrival], nonce: bytes) -> tuple[str, list[Any]]:
        first = arrivals[0]
        params: list[Any] = [nonce.hex(), first.scope.encode().hex(), first.retention]
        for arrival in arrivals:
            params += (arrival.id, arrival.key.encode().hex(), arrival.prints[:33].hex() or None)
        return self._insert_of(len(arrivals)), params

    def _insert_of(self, count: int) -> str:
        rows = ",".join(
            [
                f"(UNHEX(${at}), CONVERT(UNHEX($2) USING utf8mb4), CONVERT(UNHEX(${at + 1}) USING utf8mb4), UNHEX($1), "
                f"UNHEX(${at + 2}), {self.now}, {self.now} + $3)"
                for at in range(4, 4 + 3 * count, 3)
            ]
        )
        return self._sql["insert"].replace("{rows}", rows)

    async def store(self, session: Session, arrival: Arrival, result: bytes | None) -> None:
        await session.rows(self._sql["store"], (arrival.id, None if result is None else result.hex()))

    async def ours(self, session: Session, arrival: Arrival) -> bool:
        return bool(await session.rows(self._sql["ours"], (arrival.id, arrival.mark.hex())))

    async def forget_many(self, session: Session, arrivals: Sequence[Arrival]) -> None:
        if arrivals:
            await session.rows(*self._of_ids("forget_many", [arrival.id for arrival in arrivals]))

    async def count(self, session: Session, arrival: Arrival) -> int | None:
        named = (arrival.id, arrival.scope.encode().hex(), arrival.key.encode().hex(), arrival.retention)
        await session.rows(self._sql["count"], named)
        counted = await session.rows(self._sql["counted"], named[:1])
        return int(counted[0][0]) if counted else None

    async def refund(self, session: Session, arrival: Arrival) -> None:
        await session.rows(self._sql["refund"], (arrival.id,))

    async def uncount(self, session: Session, arrival: Arrival) -> None:
        await session.rows(self._sql["uncount"], (arrival.id,))

    async def purge(self, session: Session, limit: int) -> int:
        deleted = 0
        for due, forget in (("due_attempts", "forget_attempts"), ("due", "forget_many")):
            ids = [bytes(row[0]).hex() for row in await session.rows(self._sql[due], (limit,))]
            deleted = len(ids)
            if ids:
                await session.rows(*self._of_ids(forget, ids))
        return deleted

    async def check(self, session: Session) -> None:
        schema, _, bare = self.table.rpartition(".")
        ((flush, engine),) = await session.rows(self._sql["settings"], (schema or None, bare))
        if engine is None:
            raise self._missing()
        if int(flush) != 1:
            raise UnsafeStore(
                f"this server runs with innodb_flush_log_at_trx_commit={flush}: a crash loses commits that were "
                "confirmed; SET GLOBAL innodb_flush_log_at_trx_commit = 1"
            )
        if _text(engine).lower() != "innodb":
            raise UnsafeStore(
                f"{self.table} is a table of {show(engine)}, which has no transactions: ALTER TABLE {self.table} "
                "ENGINE = InnoDB (the tables of your effects, too)"
            )

    def _of_ids(self, name: str, ids: Sequence[str]) -> tuple[str, Sequence[str]]:
        marks = ",".join([f"UNHEX(${at})" for at in range(1, len(ids) + 1)])
        return self._sql[name].replace("{ids}", marks), ids


_KINDS: dict[Dialect, type[Rows]] = {"postgresql": _PostgreSQL, "sqlite": _SQLite, "mysql": _MySQL}


def _bytes(value: Any) -> bytes | None:
    """Drivers give memoryview and bytearray, too."""
    return None if value is None else bytes(value)


def _text(value: Any) -> str:
    """Bytes, where the connection was told to give texts so."""
    return value if isinstance(value, str) else bytes(value).decode()


def _purged() -> TransactionConflict:
    return TransactionConflict("the record of this key was deleted each time it was looked at; run it again")
