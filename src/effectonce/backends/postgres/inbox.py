"""An inbox in PostgreSQL, as operators look at it. The statements are in ``inbox/postgres_admin.sql``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from effectonce.contracts import Dialect

from .client import Param, PostgresClient, Row, Statement
from .codec import int8, utf8


class PostgresInbox:
    """See `contracts.InboxPort`. It needs no table of the store's: an inbox may be all that is there."""

    dialect: Dialect = "postgresql"

    def __init__(self, client: PostgresClient, table: str) -> None:
        self.table = table
        self._client = client

    async def rows(self, sql: str, params: Sequence[Any] = ()) -> Sequence[Row]:
        encoded = [_encode(value) for value in params]
        return await self._client.execute(_statement(sql), encoded, prepare=False, schema=False)

    async def close(self) -> None:
        await self._client.close()


_statement = lru_cache(maxsize=64)(Statement)


def _encode(value: str | int | bytes | None) -> Param:
    """A parameter in binary form. The statements compare numbers with bigint columns only."""
    if isinstance(value, int):
        return int8.pack(value)
    return utf8(value) if isinstance(value, str) else value
