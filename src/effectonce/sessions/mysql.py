"""PyMySQL and aiomysql, on MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .base import Caller, Named, closed, not_in_transaction, render

_IN_TRANSACTION: Final = 1  # a bit of the status that the server sends with every answer
_ASK: Final = "DO 0"  # its answer has the status
_HOW = "conn.begin(), or connect with autocommit=False"


class MySQLSession(Caller):
    """After a deadlock the transaction is gone, and the driver does not know: an error carries no status. Where the
    connection would commit each statement by itself, the server is asked once before the first."""

    __slots__ = ("_unsure",)
    _unsure: bool
    dialect = "mysql"
    is_async = False

    @property
    def returning(self) -> bool:  # type: ignore[override]
        return is_mariadb(self.connection)

    def require_transaction(self) -> None:
        connection = self.connection
        if not connection.open:
            raise closed()
        self._require_open()

    def _require_open(self) -> None:
        self._unsure = bool(self.connection.get_autocommit())
        if self._unsure and not self._is_open():
            raise not_in_transaction(_HOW)

    async def _send(self, sql: str, params: Sequence[Any], named: bool) -> Named:
        from pymysql.cursors import Cursor

        with self.connection.cursor(Cursor) as cursor:
            if getattr(self, "_unsure", False):
                cursor.execute(_ASK)
                self._require_open()
                self._unsure = False
            cursor.execute(*render(sql, params, "%s"))
            return _names(cursor) if named else (), cursor.fetchall()

    def _is_open(self) -> bool:
        return bool(self.connection.server_status & _IN_TRANSACTION)

    async def _in_transaction(self) -> bool:
        return self._is_open()

    async def _begin(self) -> None:
        await self.rows("BEGIN")


class AsyncMySQLSession(MySQLSession):
    __slots__ = ()
    is_async = True

    def require_transaction(self) -> None:
        connection = self.connection
        if connection.closed:
            raise closed()
        self._require_open()

    def _is_open(self) -> bool:
        return bool(self.connection.get_transaction_status())

    async def _send(self, sql: str, params: Sequence[Any], named: bool) -> Named:
        from aiomysql.cursors import Cursor  # type: ignore[import-untyped, unused-ignore]

        async with self.connection.cursor(Cursor) as cursor:
            if getattr(self, "_unsure", False):
                await cursor.execute(_ASK)
                self._require_open()
                self._unsure = False
            await cursor.execute(*render(sql, params, "%s"))
            return _names(cursor) if named else (), await cursor.fetchall()


def is_mariadb(connection: Any) -> bool:
    """From the greeting of the server, which the driver has kept."""
    return "mariadb" in str(connection.server_version).lower()


def _names(cursor: Any) -> list[str]:
    return [column[0] for column in cursor.description or ()]
