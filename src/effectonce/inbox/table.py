"""The inbox's table: the statements that read and write its rows, once per dialect, over a sync or async session."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Struct

from effectonce.contracts import Dialect, DriverSession
from effectonce.core.sql_files import CLOCK_EXPRESSIONS, inbox_statements, quote_name
from effectonce.errors import SchemaMissing, TransactionConflict, UnsafeStore, show
from effectonce.values.fingerprint import FINGERPRINT_SIZE, first_fingerprint, split_fingerprints
from effectonce.values.identity import digest

MAX_BATCH: Final = 5000  # messages of one `first_many`
MAX_TABLE_NAME: Final = 47  # characters, so that the names of its indexes stay under PostgreSQL's limit of 63
MAX_INSERT_ROUNDS: Final = 5  # a row may exist at the insert, and be purged before it is read
_NO_FINGERPRINT: Final = bytes(FINGERPRINT_SIZE)  # in a batch, in place of a fingerprint


class InboxKey(Struct, gc=False):
    """The identity of a message in the table, with what its row will hold."""

    scope: str
    key: str  # a keyed hash of `plain_key` where the inbox is private
    plain_key: str
    fingerprints: bytes  # of its payload, one per version, the first is stored; b"": not compared
    retention_us: int
    row_mark: Any = None  # set by the insert that made its row: a value that no other row of this key has

    @property
    def fingerprint(self) -> bytes | None:
        """The fingerprint that is stored."""
        return first_fingerprint(self.fingerprints) or None

    @property
    def id(self) -> str:
        return digest(self.scope, self.key).hex()


class ExistingRow(Struct, gc=False):
    """The row of an earlier delivery, as a duplicate reads it."""

    fingerprint: bytes | None
    result: bytes | None

    def mismatches(self, key: InboxKey) -> bool:
        """Whether the row was written for another payload than the one of ``key``."""
        if not self.fingerprint or not key.fingerprints:
            return False
        return self.fingerprint not in split_fingerprints(key.fingerprints)


class StartCount(Struct, frozen=True, gc=False):
    """How often handlers have started on a message, the start that was just counted included.

    ``unreported``: since the last outcome. All of these but the last one have probably ended their processes.
    ``reported``: before that. ``last_error``: what the last attempt that failed has reported.
    """

    unreported: int
    reported: int = 0
    last_error: str | None = None

    @property
    def total(self) -> int:
        return self.unreported + self.reported


@lru_cache(maxsize=64)
def inbox_table(dialect: Dialect, name: str) -> InboxTable:
    return _TABLES[dialect](dialect, name)


class InboxTable(ABC):
    """One table of handled messages, and the table of started attempts beside it.

    Its methods run statements in the transaction that is open on ``session``; none begins, ends or repeats one.
    """

    def __init__(self, dialect: Dialect, name: str) -> None:
        self.name = name
        self._quoted_names = quote_name(name, dialect), quote_name(f"{name}_starts", dialect)
        self._sql = inbox_statements(dialect, name)

    @abstractmethod
    async def insert(self, session: DriverSession, key: InboxKey, *, result: bool) -> ExistingRow | None:
        """Insert the row of ``key``. None: it is new. Else the row that was there, with its result if ``result``."""

    @abstractmethod
    async def insert_many(self, session: DriverSession, keys: Sequence[InboxKey]) -> dict[str, ExistingRow]:
        """Insert the rows of ``keys``, which are all different, and set the ``row_mark`` of those that are new.

        Returns the rows that were there, by key, without their results.
        """

    async def store_result(self, session: DriverSession, key: InboxKey, result: bytes | None) -> None:
        """Write the result into a row that this transaction has inserted."""
        await session.rows(self._sql["store"], (*self._identity(key), self._encode(result)))

    async def is_ours(self, session: DriverSession, key: InboxKey) -> bool:
        """Whether the stored row was inserted for this very ``key`` object."""
        return bool(await session.rows(self._sql["ours"], (*self._identity(key), self._encode(key.row_mark))))

    async def refund_attempt(self, session: DriverSession, key: InboxKey) -> None:
        """Take back the start of an attempt that does not count."""
        await session.rows(self._sql["refund"], self._identity(key))

    async def forget_attempts(self, session: DriverSession, key: InboxKey) -> None:
        """Delete the count of attempts."""
        await session.rows(self._sql["uncount"], self._identity(key))

    @abstractmethod
    def _identity(self, key: InboxKey) -> tuple[str, ...]:
        """The parameters that name the row of ``key``."""

    def _encode(self, value: Any) -> Any:
        """A value as a parameter of this dialect's statements."""
        return value

    @abstractmethod
    async def forget_many(self, session: DriverSession, keys: Sequence[InboxKey]) -> None:
        """Delete the rows of ``keys``."""

    @abstractmethod
    async def count_attempt(self, session: DriverSession, key: InboxKey) -> StartCount | None:
        """Count the start of one attempt. Returns the count; None if the message is handled already."""

    @abstractmethod
    async def report_failure(self, session: DriverSession, key: InboxKey, error: str, *, uncounted: bool) -> None:
        """An attempt has failed with ``error``: no start is unreported any more. ``uncounted``: its start was not
        counted, so it is counted now."""

    @abstractmethod
    async def purge(self, session: DriverSession, limit: int) -> int:
        """Delete up to ``limit`` expired rows, skipping those that are locked. Returns how many rows of the inbox."""

    @abstractmethod
    async def check(self, session: DriverSession) -> None:
        """`UnsafeStore` where the database may lose a confirmed commit; `SchemaMissing` without the table."""

    def _missing_table_error(self) -> SchemaMissing:
        return SchemaMissing(
            f"the table {self.name} is missing, or {self.name}_starts; create it: effectonce migrate --store URL, or "
            "run what inbox.schema_sql(dialect) gives in your own migrations"
        )


class TextKeyTable(InboxTable):
    """A table whose primary key is the two texts, scope and key: PostgreSQL and SQLite."""

    async def insert(self, session: DriverSession, key: InboxKey, *, result: bool) -> ExistingRow | None:
        params = (key.scope, key.key, key.fingerprint, key.retention_us)
        for _ in range(MAX_INSERT_ROUNDS):
            inserted = await session.rows(self._sql["insert"], params)
            if inserted:
                ((key.row_mark,),) = inserted
                return None
            if not result and not key.fingerprints:  # the caller needs no column of it
                return ExistingRow(None, None)
            for fingerprint, stored in await session.rows(self._sql["find"], (key.scope, key.key)):
                return ExistingRow(_bytes(fingerprint), _bytes(stored))
        raise _purged_meanwhile()

    async def insert_many(self, session: DriverSession, keys: Sequence[InboxKey]) -> dict[str, ExistingRow]:
        existing: dict[str, ExistingRow] = {}
        for _ in range(MAX_INSERT_ROUNDS):
            marks = {_text(key): mark for key, mark in await self._insert_many(session, keys)}
            for key in keys:
                key.row_mark = marks.get(key.key)
            if len(marks) == len(keys):
                return existing
            keys = [key for key in keys if key.key not in marks]
            for text, fingerprint in await self._find_many(session, keys):
                existing[_text(text)] = ExistingRow(_bytes(fingerprint), None)
            keys = [key for key in keys if key.key not in existing]
            if not keys:
                return existing
        raise _purged_meanwhile()

    def _identity(self, key: InboxKey) -> tuple[str, ...]:
        return key.scope, key.key

    async def count_attempt(self, session: DriverSession, key: InboxKey) -> StartCount | None:
        return _start_count(await session.rows(self._sql["count"], (key.scope, key.key, key.retention_us)))

    async def report_failure(self, session: DriverSession, key: InboxKey, error: str, *, uncounted: bool) -> None:
        await session.rows(self._sql["report"], (key.scope, key.key, key.retention_us, int(uncounted), error))

    async def purge(self, session: DriverSession, limit: int) -> int:
        await session.rows(self._sql["purge_attempts"], (limit,))
        return len(await session.rows(self._sql["purge"], (limit,)))

    async def forget_many(self, session: DriverSession, keys: Sequence[InboxKey]) -> None:
        if keys:
            await session.rows(self._sql["forget_many"], (keys[0].scope, self._key_list(keys)))

    async def _insert_many(self, session: DriverSession, keys: Sequence[InboxKey]) -> Sequence[Any]:
        fingerprints = b"".join([key.fingerprint or _NO_FINGERPRINT for key in keys])
        first = keys[0]
        params = (first.scope, self._key_list(keys), fingerprints, first.retention_us)
        return await session.rows(self._sql["insert_many"], params)

    async def _find_many(self, session: DriverSession, keys: Sequence[InboxKey]) -> Sequence[Any]:
        return await session.rows(self._sql["find_many"], (keys[0].scope, self._key_list(keys)))

    @abstractmethod
    def _key_list(self, keys: Sequence[InboxKey]) -> str:
        """The keys as one parameter, so that the statement is the same for any number of them."""


class PostgresInboxTable(TextKeyTable):
    def _key_list(self, keys: Sequence[InboxKey]) -> str:
        """An array literal. (psycopg's own adaptation of a list takes three times as long.)"""
        text = '","'.join([key.key for key in keys])
        if "\\" in text or text.count('"') != 2 * (len(keys) - 1):  # a key has a quote or a backslash itself
            escaped = [key.key.replace("\\", "\\\\").replace('"', '\\"') for key in keys]
            text = '","'.join(escaped)
        return f'{{"{text}"}}'

    async def check(self, session: DriverSession) -> None:
        ((fsync, synchronous_commit, persistence),) = await session.rows(self._sql["settings"], self._quoted_names)
        if persistence is None:
            raise self._missing_table_error()
        if fsync == "off":
            raise UnsafeStore("this server runs with fsync=off: a power cut loses or corrupts commits; set fsync=on")
        if synchronous_commit == "off":
            raise UnsafeStore(
                "this connection has synchronous_commit=off: a crash loses commits that were confirmed, and the broker "
                "does not deliver them again; ALTER ROLE ... SET synchronous_commit = on"
            )
        if persistence == "u":
            raise UnsafeStore(f"a crash empties {self.name}: ALTER TABLE {self.name} SET LOGGED")


class SQLiteInboxTable(TextKeyTable):
    def _key_list(self, keys: Sequence[InboxKey]) -> str:
        return msgspec.json.encode([key.key for key in keys]).decode()

    async def check(self, session: DriverSession) -> None:
        unqualified_name = self.name.rpartition(".")[2]
        ((journal, synchronous, exists),) = await session.rows(
            self._sql["settings"], (unqualified_name, f"{unqualified_name}_starts")
        )
        if not exists:
            raise self._missing_table_error()
        if journal in ("off", "memory"):
            raise UnsafeStore(
                f"this connection has journal_mode={journal}: a crash can leave half a transaction; PRAGMA "
                "journal_mode = WAL (a database in memory loses all of it)"
            )
        if synchronous < (2 if journal == "wal" else 1):  # FULL, NORMAL
            raise UnsafeStore(
                f"this connection has journal_mode={journal} and synchronous={synchronous}: a power cut loses commits "
                "that were confirmed; PRAGMA synchronous = FULL"
            )


class MySQLInboxTable(InboxTable):
    """A table whose primary key is a hash. A row is new if it holds the nonce of this insert."""

    async def insert(self, session: DriverSession, key: InboxKey, *, result: bool) -> ExistingRow | None:
        existing = await self._insert_or_read(session, [key], "result" if result else "NULL")
        return existing.get(key.key)

    async def insert_many(self, session: DriverSession, keys: Sequence[InboxKey]) -> dict[str, ExistingRow]:
        # In the order of their ids, so that two batches lock in one order and never wait for each other.
        return await self._insert_or_read(session, sorted(keys, key=attrgetter("id")), "NULL")

    async def _insert_or_read(
        self, session: DriverSession, keys: Sequence[InboxKey], result: str
    ) -> dict[str, ExistingRow]:
        """Insert the rows of ``keys``. Returns the rows that were there, by key. The insert locks these, so that no
        purge deletes them before they are read."""
        nonce = os.urandom(16)
        for key in keys:
            key.row_mark = nonce
        by_id = {key.id: key.key for key in keys}
        insert, params = self._insert(keys, nonce)
        columns = f"id, nonce, fingerprint, {result}"
        if session.has_returning:
            rows = await session.rows(f"{insert} RETURNING {columns}", params)
        else:
            await session.rows(insert, params)
            find, ids = self._with_ids("find", list(by_id))
            rows = await session.rows(find.replace("{columns}", columns), ids)
        if len(rows) != len(keys):
            raise _purged_meanwhile()
        return {
            by_id[bytes(row_id).hex()]: ExistingRow(_bytes(fingerprint), _bytes(stored))
            for row_id, stored_nonce, fingerprint, stored in rows
            if bytes(stored_nonce) != nonce
        }

    def _insert(self, keys: Sequence[InboxKey], nonce: bytes) -> tuple[str, list[Any]]:
        first = keys[0]
        params: list[Any] = [nonce.hex(), first.scope.encode().hex(), first.retention_us]
        for key in keys:
            params += (key.id, key.key.encode().hex(), self._encode(key.fingerprint))
        return self._insert_statement(len(keys)), params

    def _insert_statement(self, count: int) -> str:
        """Three parameters are shared by all rows, and each row has three more: id, key, fingerprint."""
        now = CLOCK_EXPRESSIONS["mysql"]
        rows = ",".join(
            [
                f"(UNHEX(${at}), CONVERT(UNHEX($2) USING utf8mb4), CONVERT(UNHEX(${at + 1}) USING utf8mb4), UNHEX($1), "
                f"UNHEX(${at + 2}), {now}, {now} + $3)"
                for at in range(4, 4 + 3 * count, 3)
            ]
        )
        return self._sql["insert"].replace("{rows}", rows)

    def _identity(self, key: InboxKey) -> tuple[str, ...]:
        return (key.id,)

    def _encode(self, value: bytes | None) -> str | None:
        return None if value is None else value.hex()

    async def forget_many(self, session: DriverSession, keys: Sequence[InboxKey]) -> None:
        if keys:
            await session.rows(*self._with_ids("forget_many", [key.id for key in keys]))

    async def count_attempt(self, session: DriverSession, key: InboxKey) -> StartCount | None:
        params = (key.id, key.scope.encode().hex(), key.key.encode().hex(), key.retention_us)
        await session.rows(self._sql["count"], params)
        return _start_count(await session.rows(self._sql["counted"], (key.id,)))

    async def report_failure(self, session: DriverSession, key: InboxKey, error: str, *, uncounted: bool) -> None:
        params = (key.id, key.scope.encode().hex(), key.key.encode().hex(), key.retention_us)
        await session.rows(self._sql["report"], (*params, int(uncounted), error.encode().hex()))

    async def purge(self, session: DriverSession, limit: int) -> int:
        await self._purge(session, "due_attempts", "forget_attempts", limit)
        return await self._purge(session, "due", "forget_many", limit)

    async def _purge(self, session: DriverSession, select: str, delete: str, limit: int) -> int:
        ids = [bytes(row[0]).hex() for row in await session.rows(self._sql[select], (limit,))]
        if ids:
            await session.rows(*self._with_ids(delete, ids))
        return len(ids)

    async def check(self, session: DriverSession) -> None:
        schema, _, unqualified_name = self.name.rpartition(".")
        ((flush, engine),) = await session.rows(
            self._sql["settings"], (schema or None, unqualified_name, f"{unqualified_name}_starts")
        )
        if engine is None:
            raise self._missing_table_error()
        if int(flush) != 1:
            raise UnsafeStore(
                f"this server runs with innodb_flush_log_at_trx_commit={flush}: a crash loses commits that were "
                "confirmed; SET GLOBAL innodb_flush_log_at_trx_commit = 1"
            )
        if _text(engine).lower() != "innodb":
            raise UnsafeStore(
                f"{self.name} is a table of {show(engine)}, which has no transactions: ALTER TABLE {self.name} "
                "ENGINE = InnoDB (the tables of your effects, too)"
            )

    def _with_ids(self, name: str, ids: Sequence[str]) -> tuple[str, Sequence[str]]:
        """The statement ``name`` with a placeholder for each of ``ids``, and its parameters."""
        placeholders = ",".join([f"UNHEX(${at})" for at in range(1, len(ids) + 1)])
        return self._sql[name].replace("{ids}", placeholders), ids


_TABLES: dict[Dialect, type[InboxTable]] = {
    "postgresql": PostgresInboxTable,
    "sqlite": SQLiteInboxTable,
    "mysql": MySQLInboxTable,
}


def _start_count(rows: Sequence[Any]) -> StartCount | None:
    for unreported, reported, last_error in rows:
        return StartCount(int(unreported), int(reported), None if last_error is None else _text(last_error))
    return None


def _bytes(value: Any) -> bytes | None:
    """Convert to bytes: some drivers return a memoryview or bytearray."""
    return None if value is None else bytes(value)


def _text(value: Any) -> str:
    """Convert to str: some connections are set up to return texts as bytes."""
    return value if isinstance(value, str) else bytes(value).decode()


def _purged_meanwhile() -> TransactionConflict:
    return TransactionConflict(
        "the row of this key existed at the insert, and was purged before it was read; roll back, and run the whole "
        "transaction again"
    )
