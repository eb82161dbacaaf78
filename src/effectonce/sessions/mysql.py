"""PyMySQL and aiomysql, on MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from effectonce.values.awaitables import maybe_await

from .base import DriverAdapter, NamedRows, connection_closed, not_in_transaction, render

_STATUS_IN_TRANSACTION: Final = 1  # SERVER_STATUS_IN_TRANS, a bit of the status that every answer carries
_REFRESH_STATUS: Final = "DO 0"  # a statement that does nothing; its answer carries the status
_HOW_TO_BEGIN = "conn.begin(), or connect with autocommit=False"


class MySQLSession(DriverAdapter):
    """A connection of PyMySQL.

    An error carries no status, so after a deadlock the driver still believes in a transaction that is gone. Where the
    connection is in autocommit, the server is therefore asked once before the first statement.
    """

    __slots__ = ("_status_is_stale",)
    _status_is_stale: bool
    dialect = "mysql"
    is_async = False

    @property
    def returning(self) -> bool:  # type: ignore[override]
        return is_mariadb(self.connection)

    def require_transaction(self) -> None:
        connection = self.connection
        if not connection.open:
            raise connection_closed()
        self._require_open()

    def _require_open(self) -> None:
        self._status_is_stale = bool(self.connection.get_autocommit())
        if self._status_is_stale and not self._has_transaction():
            raise not_in_transaction(_HOW_TO_BEGIN)

    async def _send(self, sql: str, params: Sequence[Any]) -> NamedRows:
        cursor = await maybe_await(self.connection.cursor(self._plain_cursor_class()))
        try:
            if getattr(self, "_status_is_stale", False):
                await maybe_await(cursor.execute(_REFRESH_STATUS))
                self._require_open()
                self._status_is_stale = False
            await maybe_await(cursor.execute(*render(sql, params, "%s")))
            names = [column[0] for column in cursor.description or ()]
            return names, await maybe_await(cursor.fetchall())
        finally:
            await maybe_await(cursor.close())

    def _plain_cursor_class(self) -> type:
        """The class of cursors whose rows are tuples, whatever class the connection was opened with."""
        from pymysql.cursors import Cursor

        return Cursor

    def _has_transaction(self) -> bool:
        return bool(self.connection.server_status & _STATUS_IN_TRANSACTION)

    async def _in_transaction(self) -> bool:
        return self._has_transaction()

    async def _begin(self) -> None:
        await self.rows("BEGIN")


class AsyncMySQLSession(MySQLSession):
    """A connection of aiomysql."""

    __slots__ = ()
    is_async = True

    def require_transaction(self) -> None:
        connection = self.connection
        if connection.closed:
            raise connection_closed()
        self._require_open()

    def _has_transaction(self) -> bool:
        return bool(self.connection.get_transaction_status())

    def _plain_cursor_class(self) -> type:
        from aiomysql.cursors import Cursor  # type: ignore[import-untyped, unused-ignore]

        plain_cursor: type = Cursor
        return plain_cursor


def is_mariadb(connection: Any) -> bool:
    """Read off the version in the server's greeting, which the driver keeps."""
    return "mariadb" in str(connection.server_version).lower()
