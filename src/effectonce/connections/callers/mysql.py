"""PyMySQL and aiomysql, on MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .base import Caller, Named, closed, not_in_transaction, render

_IN_TRANSACTION: Final = 1  # a bit of the status that the server sends with every answer
_HOW = "conn.begin(), or connect with autocommit=False"


class MySQLSession(Caller):
    __slots__ = ()
    dialect = "mysql"
    is_async = False

    @property
    def returning(self) -> bool:  # type: ignore[override]
        return is_mariadb(self.connection)

    def require_transaction(self) -> None:
        connection = self.connection
        if not connection.open:
            raise closed()
        if connection.get_autocommit() and not self._is_open():
            raise not_in_transaction(_HOW)

    async def _send(self, sql: str, params: Sequence[Any], named: bool) -> Named:
        from pymysql.cursors import Cursor

        with self.connection.cursor(Cursor) as cursor:
            cursor.execute(*render(sql, params, "%s"))
            return _names(cursor) if named else (), cursor.fetchall()

    def _is_open(self) -> bool:
        return bool(self.connection.server_status & _IN_TRANSACTION)

    async def _in_transaction(self) -> bool:
        return self._is_open()

    async def _begin(self) -> None:
        await self.rows("BEGIN")

    async def _commit(self) -> None:
        self.connection.commit()

    async def roll_back(self) -> None:
        self.connection.rollback()

    async def close(self) -> None:
        self.connection.close()


class AsyncMySQLSession(MySQLSession):
    __slots__ = ()
    is_async = True

    def require_transaction(self) -> None:
        connection = self.connection
        if connection.closed:
            raise closed()
        if connection.get_autocommit() and not self._is_open():
            raise not_in_transaction(_HOW)

    def _is_open(self) -> bool:
        return bool(self.connection.get_transaction_status())

    async def _send(self, sql: str, params: Sequence[Any], named: bool) -> Named:
        from aiomysql.cursors import Cursor  # type: ignore[import-untyped, unused-ignore]

        async with self.connection.cursor(Cursor) as cursor:
            await cursor.execute(*render(sql, params, "%s"))
            return _names(cursor) if named else (), await cursor.fetchall()

    async def _commit(self) -> None:
        await self.connection.commit()

    async def roll_back(self) -> None:
        await self.connection.rollback()

    async def close(self) -> None:
        self.connection.close()


def is_mariadb(connection: Any) -> bool:
    """From the greeting of the server, which the driver has kept."""
    return "mariadb" in str(connection.server_version).lower()


def _names(cursor: Any) -> list[str]:
    return [column[0] for column in cursor.description or ()]
