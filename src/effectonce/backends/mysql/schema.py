"""The tables in MySQL and MariaDB: made, and their version looked at once per connection."""

from __future__ import annotations

from functools import cache

from effectonce.backends.common.sql_files import bare, inbox_schema, outbox_schema, script, statements
from effectonce.contracts import remedy
from effectonce.errors import SchemaMismatch, SchemaMissing
from effectonce.values.urls import Address

from .connection import Server, Wire

SCHEMA_VERSION = 1


class Schema:
    """The tables of one prefix, over one wire."""

    def __init__(self, wire: Wire, address: Address, prefix: str) -> None:
        self._wire = wire
        self._address = address
        self._prefix = prefix
        self._verified = 0  # the connection, by number, on which the version was looked at

    async def ready(self) -> tuple[Server, bool]:
        """Connected, to tables that this release can use; and whether the connection is a new one."""
        server = await self._wire.connected()
        if self._verified == self._wire.opened:
            return server, False
        await self.verify()
        self._verified = self._wire.opened
        return server, True

    async def verify(self) -> None:
        [[[found, oldest]]] = await self._wire.ask(_version(self._prefix))
        if found is None:
            raise SchemaMissing(f"{self._prefix}_meta holds no schema_version: effectonce migrate '{self._address}'")
        todo = remedy(int(found), None if oldest is None else int(oldest), SCHEMA_VERSION)
        if todo:
            how = f"run: effectonce migrate '{self._address}'" if todo == "migrate" else "upgrade effectonce"
            raise SchemaMismatch(f"the tables of {self._address} are of version {found}, not {SCHEMA_VERSION}; {how}")

    async def migrate(self) -> None:
        """Every statement of the schema may run twice and at once, so no lock is needed (nor would one reach
        across a cluster)."""
        await self._wire.connected()
        # Without notes, which the async driver would pass on as warnings that a table is there already.
        await self._wire.ask(f"SET sql_notes = 0; {bare(schema_sql(self._prefix))}; SET sql_notes = 1")
        await self.verify()


def schema_sql(prefix: str) -> str:
    records = script("backends/mysql/records_schema.sql", **tables(prefix))
    return "\n".join([records, inbox_schema("mysql", f"{prefix}_inbox"), outbox_schema("mysql", f"{prefix}_outbox")])


def tables(prefix: str) -> dict[str, str]:
    return {"records": f"`{prefix}_records`", "meta": f"`{prefix}_meta`"}


@cache
def _version(prefix: str) -> str:
    return statements("backends/mysql/records.sql", **tables(prefix))["version"]
