"""The tables in MySQL and MariaDB: created by `migrate`, verified once per connection."""

from __future__ import annotations

from typing import Final

from effectonce.backends.common.sql_store import require_schema_version
from effectonce.core.sql_files import store_schema, strip_comments
from effectonce.values.urls import Address

from .connection import MySQLConnection, MySQLServer, ResultRows
from .statements import load_statements

SCHEMA_VERSION: Final = 1


class MySQLTables:
    """The tables of one prefix, over one connection.

    ``probe`` is a statement that fails if a column that this release reads is missing from another table of the port.
    """

    def __init__(self, connection: MySQLConnection, address: Address, prefix: str, probe: str | None = None) -> None:
        self.connection = connection
        self.address = address
        self._prefix = prefix
        self._probe = probe
        self._verified_connect_count = 0  # the number of the connection on which the tables were verified last

    async def execute(self, packet: str) -> list[ResultRows]:
        """Send statements that need the tables, in one packet. Returns the rows of each."""
        await self.connect()
        return await self.connection.execute(packet)

    async def connect(self) -> MySQLServer:
        """Connect, and verify the tables on a new connection."""
        server = await self.connection.connect()
        if self._verified_connect_count != self.connection.connect_count:
            await self.verify()
            self._verified_connect_count = self.connection.connect_count
        return server

    async def verify(self) -> None:
        """Raise `SchemaMissing` or `SchemaMismatch` where this release cannot use the tables."""
        [[[version, oldest]]] = await self.connection.execute(load_statements(self._prefix)["version"])
        stored, still_readable = (None if number is None else int(number) for number in (version, oldest))
        require_schema_version(self.address, stored, still_readable, SCHEMA_VERSION)
        if self._probe is not None:
            await self.connection.execute(self._probe)

    async def migrate(self) -> None:
        """Create the tables. Every statement may run twice, also at the same time, so no lock is needed (and none would
        reach across a cluster)."""
        # Without the server's notes, since the async driver would log "table exists" as warnings.
        schema = strip_comments(store_schema("mysql", self._prefix))
        await self.connection.execute(f"SET sql_notes = 0; {schema}; SET sql_notes = 1")
        await self.verify()
