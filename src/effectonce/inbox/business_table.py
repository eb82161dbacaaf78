"""`OnTable`: a unique key on the user's own business table recognises duplicates, in place of a row in the inbox."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, overload

from msgspec import Struct

from effectonce.contracts import AsyncConnection, AsyncpgConnection, SyncConnection
from effectonce.core.run_sync import run_sync
from effectonce.core.sql_files import quote_name
from effectonce.errors import ConfigurationError, InvalidOption, SchemaMissing, TransactionConflict, show
from effectonce.sessions import BaseDriverSession, Pending, is_duplicate_key, lacks_unique_key, session_on
from effectonce.values.identity import Key, encode_key

MAX_INSERT_ROUNDS: Final = 5  # a row may exist at the insert, and be deleted before it is read


class Inserted(Struct, frozen=True):
    """The row with a key, with all its columns. ``was_inserted``: whether this call inserted it, or an earlier one."""

    row: dict[str, Any]
    was_inserted: bool


class OnTable:
    """What `Inbox.on_table` returns: the unique ``column`` of ``table`` says which inserts are the same operation."""

    def __init__(self, table: str, column: str) -> None:
        self.table = table
        self.column = column
        self._is_unique = False  # on MySQL: the unique index was found in the catalogue
        quote_name(table, "sqlite")
        _column(column, "sqlite")

    def __repr__(self) -> str:
        return f"<OnTable {self.table}.{self.column}>"

    @overload
    def insert(self, conn: SyncConnection, key: Key, values: Mapping[str, Any]) -> Inserted: ...
    @overload
    def insert(
        self, conn: AsyncConnection | AsyncpgConnection, key: Key, values: Mapping[str, Any]
    ) -> Pending[Inserted]: ...
    def insert(self, conn: Any, key: Key, values: Mapping[str, Any]) -> Any:
        """Insert a row with ``key`` in the column and ``values`` in others. If there is a row with that key, return it
        unchanged. Your transaction stays usable (F40: on PostgreSQL a refused duplicate would abort it).

        It takes one statement, and a second one if the row exists. If another open transaction has inserted the key,
        this waits for its end. Values go to the driver as they are; a violation of another constraint is raised as the
        driver raises it.
        """
        session = session_on(conn)
        text = encode_key(key)
        if self.column in values:
            raise ConfigurationError(f"{self.column} is the key's own column; leave it out of the values")
        columns = {self.column: key if type(key) is int else text, **values}
        names = ", ".join([_column(name, session.dialect) for name in columns])
        placeholders = ", ".join([f"${at}" for at in range(1, len(columns) + 1)])
        sql = f"INSERT INTO {quote_name(self.table, session.dialect)} ({names}) VALUES ({placeholders})"
        session.require_transaction()
        inserting = self._insert_translated(session, text, self._insert(session, sql, list(columns.values())))
        return (
            Pending(inserting, "on_table(...).insert(...)", writes_on=session)
            if session.is_async
            else run_sync(inserting)
        )

    async def _insert(self, session: BaseDriverSession, sql: str, params: Sequence[Any]) -> Inserted:
        if session.dialect == "mysql" and not self._is_unique:
            await self._require_unique(session)
        refusal: Exception = TransactionConflict(
            f"the row in {self.table} existed at {MAX_INSERT_ROUNDS} inserts and was deleted before each was read; "
            "roll back, and run the whole transaction again"
        )
        for _ in range(MAX_INSERT_ROUNDS):
            try:
                row = await self._try_insert(session, sql, params)
            except Exception as error:
                # On MySQL a refused duplicate undoes only its own statement. If no row is found afterwards, another
                # unique key of the table was violated.
                if session.dialect != "mysql" or not is_duplicate_key(error):
                    raise
                row, refusal = None, error
            if row is not None:
                return Inserted(row, True)
            row = await self._find(session, params[0])
            if row is not None:
                return Inserted(row, False)
        raise refusal

    async def _try_insert(self, session: BaseDriverSession, sql: str, params: Sequence[Any]) -> dict[str, Any] | None:
        """The inserted row; None if there was one. MySQL raises its error for a duplicate key instead.

        MySQL does not return the row, so it is read by its key: {} where the column has changed the key on insert.
        """
        if session.dialect != "mysql":
            column = _column(self.column, session.dialect)
            return await _row(session, f"{sql} ON CONFLICT ({column}) DO NOTHING RETURNING *", params)
        if session.has_returning:
            return await _row(session, f"{sql} RETURNING *", params)
        await session.rows(sql, params)
        return await self._find(session, params[0]) or {}

    async def _find(self, session: BaseDriverSession, key: Any) -> dict[str, Any] | None:
        column = _column(self.column, session.dialect)
        select = f"SELECT * FROM {quote_name(self.table, session.dialect)} WHERE {column} = $1"
        if session.dialect != "mysql":
            return await _row(session, select, (key,))
        # A plain SELECT may not see what was committed meanwhile. MySQL compares a number with texts as numbers: 7
        # equals '07x'.
        return await _row(session, f"{select} FOR UPDATE", (str(key),))

    async def _require_unique(self, session: BaseDriverSession) -> None:
        """Check once that the column is unique: otherwise MySQL would insert every duplicate. (The other databases
        refuse the statement.)"""
        schema, _, unqualified_name = self.table.rpartition(".")
        if not await session.rows(_UNIQUE_INDEXES, (schema or None, unqualified_name, self.column)):
            raise self._not_unique()
        self._is_unique = True

    async def _insert_translated(
        self, session: BaseDriverSession, key: str, inserting: Coroutine[Any, Any, Inserted]
    ) -> Inserted:
        """Await ``inserting``, and translate errors: the table is the user's, so there is nothing to migrate."""
        try:
            inserted = await inserting
        except SchemaMissing as error:
            raise ConfigurationError(f"{self!r}: {error.__cause__}") from error.__cause__
        except Exception as error:
            if lacks_unique_key(error):
                raise self._not_unique() from error
            raise
        self._require_same(session, key, inserted.row)
        return inserted

    def _require_same(self, session: BaseDriverSession, key: str, row: Mapping[str, Any]) -> None:
        """Raise `ConfigurationError` if the row has another text than ``key`` in the column. A collation that ignores
        case or trailing spaces would make two operations one."""
        stored = next((row[name] for name in row if name.lower() == self.column.lower()), None)
        if isinstance(stored, bytes | bytearray | memoryview):
            stored = bytes(stored).decode(errors="replace")
        if not isinstance(stored, str | int) or str(stored) == key:
            return
        if session.dialect == "postgresql" and str(stored).rstrip(" ") == key:  # char(n) is padded with spaces
            return
        raise ConfigurationError(
            f"{self!r} keeps the key {show(key)!r} as {show(str(stored))!r}, so that two operations would be one: give "
            "the column a type that is long enough and a collation that compares bytes (MySQL: COLLATE utf8mb4_bin, or "
            "VARBINARY; SQLite: BINARY), and roll back"
        )

    def _not_unique(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self.table} is missing, or its column {self.column} has no unique key of its own, by which a duplicate "
            f"would be refused: CREATE UNIQUE INDEX ... ON {self.table} ({self.column})"
        )


_UNIQUE_INDEXES: Final = (
    "SELECT index_name FROM information_schema.statistics "
    "WHERE table_schema = COALESCE($1, DATABASE()) AND table_name = $2 AND non_unique = 0 "
    "GROUP BY index_name HAVING COUNT(*) = 1 AND MAX(column_name) = $3"
)


async def _row(session: BaseDriverSession, sql: str, params: Sequence[Any]) -> dict[str, Any] | None:
    names, rows = await session.named_rows(sql, params)
    return dict(zip(names, rows[0], strict=True)) if rows else None


def _column(name: str, dialect: str) -> str:
    if isinstance(name, str) and "." in name:
        raise InvalidOption(f"a column is named without its table, not {show(name)!r}")
    return quote_name(name, dialect, "column")
