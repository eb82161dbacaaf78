"""asyncpg: a connection, or the proxy that its pool gives out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncpg import InterfaceError, Record  # type: ignore[import-untyped, unused-ignore]

from .base import Caller, Named, closed, not_in_transaction


class AsyncpgSession(Caller):
    __slots__ = ("_transaction",)
    dialect = "postgresql"
    is_async = True
    _transaction: Any

    def require_transaction(self) -> None:
        try:
            if self.connection.is_closed():
                raise closed()
            if not self.connection.is_in_transaction():
                raise not_in_transaction("`async with conn.transaction():`")
        except InterfaceError as error:  # the proxy of a connection that went back to its pool
            raise closed(error) from error

    async def _send(self, sql: str, params: Sequence[Any], named: bool) -> Named:
        if not params and not sql.startswith("SELECT"):
            await self.connection.execute(sql)  # in one round trip; what is prepared first takes two
            return (), ()
        # Its own class of records, whatever class the connection was opened with.
        found = await self.connection.fetch(sql, *params, record_class=Record)
        return list(found[0].keys()) if named and found else (), [tuple(record.values()) for record in found]

    def _is_lost(self) -> bool:
        try:
            return bool(self.connection.is_closed())
        except InterfaceError:  # the proxy of one that went back to its pool
            return True

    async def _in_transaction(self) -> bool:
        return bool(self.connection.is_in_transaction())

    async def _begin(self) -> None:
        # Its own object: in a transaction begun in SQL, it refuses the handler's `conn.transaction()`.
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def _commit(self) -> None:
        await self._transaction.commit()

    async def roll_back(self) -> None:
        await self._transaction.rollback()
