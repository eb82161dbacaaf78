"""The session of asyncpg: for a connection, or for the proxy of one that its pool gives out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncpg import InterfaceError, Record  # type: ignore[import-untyped, unused-ignore]

from .base_session import BaseDriverSession, NamedRows, closed_connection_error, no_transaction_error


class AsyncpgSession(BaseDriverSession):
    """One statement is one `fetch`; transactions that effectonce begins are asyncpg's own objects."""

    __slots__ = ("_transaction",)
    dialect = "postgresql"
    is_async = True
    _transaction: Any

    def require_transaction(self) -> None:
        try:
            if self.connection.is_closed():
                raise closed_connection_error()
            if not self.connection.is_in_transaction():
                raise no_transaction_error("`async with conn.transaction():`")
        except InterfaceError as error:  # the proxy of a connection that went back to its pool
            raise closed_connection_error(error) from error

    async def _send(self, sql: str, params: Sequence[Any]) -> NamedRows:
        if not params and not sql.startswith("SELECT"):
            await self.connection.execute(sql)  # one round trip; `fetch` prepares the statement first and takes two
            return (), ()
        # The plain record class, whatever class the connection was opened with.
        records = await self.connection.fetch(sql, *params, record_class=Record)
        names = list(records[0].keys()) if records else ()
        return names, [tuple(record.values()) for record in records]

    def _is_lost(self) -> bool:
        try:
            return bool(self.connection.is_closed())
        except InterfaceError:  # the proxy of a connection that went back to its pool
            return True

    async def _in_transaction(self) -> bool:
        return bool(self.connection.is_in_transaction())

    async def _begin(self) -> None:
        # Not BEGIN in SQL: asyncpg would then refuse the handler's own `conn.transaction()`.
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def _commit(self) -> None:
        await self._transaction.commit()

    async def roll_back(self) -> None:
        await self._transaction.rollback()
