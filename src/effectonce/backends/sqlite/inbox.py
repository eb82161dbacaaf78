"""An inbox in a SQLite file, as operators look at it. The statements are in ``inbox/sqlite_admin.sql``."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from effectonce.contracts import Dialect

from .connection import DirectConnection, SQLiteConnection, in_autocommit
from .file import SQLiteFile


class SQLiteInbox:
    """See `contracts.InboxPort`. It creates no table: those of an inbox are made by `migrate`."""

    dialect: Dialect = "sqlite"

    def __init__(self, file: SQLiteFile, table: str) -> None:
        self.table = table
        self.connection = DirectConnection(SQLiteConnection(file, lambda cursor: None))

    @in_autocommit
    def rows(self, cursor: sqlite3.Cursor, sql: str, params: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        # SQLite takes $1 for the name of a parameter.
        return cursor.execute(sql, {str(number): value for number, value in enumerate(params, 1)}).fetchall()

    async def close(self) -> None:
        await self.connection.close()
