"""The sessions of psycopg 3: for its `Connection` and its `AsyncConnection`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import AsyncRawCursor, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from effectonce.values.awaitables import maybe_await

from .base_session import BaseDriverSession, NamedRows, closed_connection_error, no_transaction_error

_IDLE = TransactionStatus.IDLE
_INERROR = TransactionStatus.INERROR
_HOW_TO_BEGIN = "`with conn.transaction():`, or connect with autocommit=False"


class PsycopgSession(BaseDriverSession):
    """A connection of psycopg.

    Statements run on raw cursors, which take ``$1`` as it is and return tuples, whatever factories the connection was
    opened with.
    """

    __slots__ = ()
    dialect = "postgresql"
    is_async = False
    _cursor_class: type = RawCursor

    def require_transaction(self) -> None:
        connection = self.connection
        if connection.closed:
            raise closed_connection_error()
        if connection.autocommit:
            status = connection.pgconn.transaction_status
            # In a pipeline the BEGIN of `conn.transaction()` may still be on its way.
            if status == _IDLE and not (connection.pgconn.pipeline_status and connection._num_transactions):
                raise no_transaction_error(_HOW_TO_BEGIN)

    async def _send(self, sql: str, params: Sequence[Any]) -> NamedRows:
        cursor: Any = self._cursor_class(self.connection, row_factory=tuple_row)
        await maybe_await(cursor.execute(sql, params))
        if cursor.pgresult is None:  # the connection is in pipeline mode
            await self._sync_pipeline()
        if not cursor.pgresult.nfields:
            return (), ()
        names = [column.name for column in cursor.description]
        return names, await maybe_await(cursor.fetchall())

    async def _sync_pipeline(self) -> None:
        """Send what the pipeline holds, and fetch the results."""
        with self.connection.pipeline() as pipeline:
            pipeline.sync()

    def _is_lost(self) -> bool:
        return bool(self.connection.closed)

    async def _in_transaction(self) -> bool:
        return bool(self.connection.pgconn.transaction_status != _IDLE)

    async def _has_failed(self) -> bool:
        if self.connection.pgconn.pipeline_status:  # the result of a failed statement may still be on its way
            await self._sync_pipeline()
        return bool(self.connection.pgconn.transaction_status == _INERROR)

    async def _begin(self) -> None:
        if self.connection.autocommit:
            await self.rows("BEGIN")


class AsyncPsycopgSession(PsycopgSession):
    """An async connection of psycopg."""

    __slots__ = ()
    is_async = True
    _cursor_class = AsyncRawCursor

    async def _sync_pipeline(self) -> None:
        async with self.connection.pipeline() as pipeline:
            await pipeline.sync()
