"""The sessions of PyMySQL and aiomysql, on MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from effectonce.values.awaitables import maybe_await

from .base_session import BaseDriverSession, NamedRows, closed_connection_error, no_transaction_error, render

_STATUS_IN_TRANSACTION: Final = 1  # SERVER_STATUS_IN_TRANS, a bit of the status that every answer carries
_REFRESH_STATUS: Final = "DO 0"  # the cheapest statement: it does nothing, and its answer carries the status
_HOW_TO_BEGIN = "conn.begin(), or connect with autocommit=False"


class MySQLSession(BaseDriverSession):
    """A connection of PyMySQL.

    The driver knows from the server's last answer whether a transaction is open. An error carries no such status, so
    after a deadlock the driver still reports a transaction that is gone. In autocommit the next statement would then
    commit by itself. So there, where `require_transaction` was called before the first `rows`, `DO 0` is sent before
    the first statement: its answer says whether the transaction is still open.
    """

    __slots__ = ("_must_check_transaction",)
    dialect = "mysql"
    is_async = False

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        #: The connection is in autocommit, and no statement has been sent since `require_transaction`.
        self._must_check_transaction = False

    @property
    def has_returning(self) -> bool:  # type: ignore[override]
        return is_mariadb(self.connection)

    def require_transaction(self) -> None:
        if not self.connection.open:
            raise closed_connection_error()
        self._refuse_autocommit()

    def _refuse_autocommit(self) -> None:
        self._must_check_transaction = bool(self.connection.get_autocommit())
        if self._must_check_transaction and not self._has_transaction():
            raise no_transaction_error(_HOW_TO_BEGIN)

    async def _send(self, sql: str, params: Sequence[Any]) -> NamedRows:
        cursor = await maybe_await(self.connection.cursor(self._plain_cursor_class()))
        try:
            if self._must_check_transaction:
                await maybe_await(cursor.execute(_REFRESH_STATUS))
                self._refuse_autocommit()
                self._must_check_transaction = False
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
        if self.connection.closed:
            raise closed_connection_error()
        self._refuse_autocommit()

    def _has_transaction(self) -> bool:
        return bool(self.connection.get_transaction_status())

    def _plain_cursor_class(self) -> type:
        from aiomysql.cursors import Cursor  # type: ignore[import-untyped, unused-ignore]

        plain_cursor: type = Cursor
        return plain_cursor


def is_mariadb(connection: Any) -> bool:
    """Whether the server is MariaDB, by the version in its greeting, which the driver keeps."""
    return "mariadb" in str(connection.server_version).lower()
