"""An inbox in MySQL or MariaDB, as operators look at it. The statements are in ``inbox/mysql_admin.sql``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effectonce.contracts import Dialect

from .connection import MySQLConnection, ResultRows
from .literals import bind_numbers


class MySQLInbox:
    """See `contracts.InboxPort`. It needs no table of the store's: an inbox may be all that is there."""

    dialect: Dialect = "mysql"

    def __init__(self, connection: MySQLConnection, table: str) -> None:
        self.table = table
        self._connection = connection

    async def rows(self, sql: str, params: Sequence[Any] = ()) -> ResultRows:
        return (await self._connection.execute(bind_numbers(sql, params)))[-1]

    async def close(self) -> None:
        await self._connection.close()
