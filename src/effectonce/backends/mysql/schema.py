"""The tables in MySQL and MariaDB: created by `migrate`, their version checked once per connection."""

from __future__ import annotations

from functools import cache

from effectonce.backends.common.sql_files import bare, inbox_schema, outbox_schema, script, statements
from effectonce.contracts import remedy
from effectonce.errors import SchemaMismatch, SchemaMissing
from effectonce.values.urls import Address

from .connection import MySQLConnection, MySQLServer

SCHEMA_VERSION = 1


class MySQLSchema:
    """The tables of one prefix, seen over one connection."""

    def __init__(self, connection: MySQLConnection, address: Address, prefix: str) -> None:
        self._connection = connection
        self._address = address
        self._prefix = prefix
        self._verified_connect_count = 0  # the connection, by its number, on which the version was checked

    async def prepare(self) -> tuple[MySQLServer, bool]:
        """Connect, and check the version of the tables on a new connection. Returns the server, and whether the
        connection is new."""
        server = await self._connection.connect()
        if self._verified_connect_count == self._connection.connect_count:
            return server, False
        await self.verify()
        self._verified_connect_count = self._connection.connect_count
        return server, True

    async def verify(self) -> None:
        """`SchemaMissing` or `SchemaMismatch` where this release cannot use the tables."""
        [[[version, oldest]]] = await self._connection.execute(_version(self._prefix))
        if version is None:
            raise SchemaMissing(f"{self._prefix}_meta holds no schema_version: effectonce migrate '{self._address}'")
        next_step = remedy(int(version), None if oldest is None else int(oldest), SCHEMA_VERSION)
        if next_step:
            how = f"run: effectonce migrate '{self._address}'" if next_step == "migrate" else "upgrade effectonce"
            raise SchemaMismatch(f"the tables of {self._address} are of version {version}, not {SCHEMA_VERSION}; {how}")

    async def migrate(self) -> None:
        """Create the tables. Every statement may run twice, also at the same time, so no lock is needed (and none would
        reach across a cluster)."""
        await self._connection.connect()
        # Without notes: the async driver would log "table exists" as warnings.
        await self._connection.execute(f"SET sql_notes = 0; {bare(schema_sql(self._prefix))}; SET sql_notes = 1")
        await self.verify()


def schema_sql(prefix: str) -> str:
    records = script("backends/mysql/records_schema.sql", **tables(prefix))
    return "\n".join([records, inbox_schema("mysql", f"{prefix}_inbox"), outbox_schema("mysql", f"{prefix}_outbox")])


def tables(prefix: str) -> dict[str, str]:
    return {"records": f"`{prefix}_records`", "meta": f"`{prefix}_meta`"}


@cache
def _version(prefix: str) -> str:
    return statements("backends/mysql/records.sql", **tables(prefix))["version"]
