"""One outbox, one inbox and one table of effects per database; each test has a queue and a scope of its own in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts.outbox import OutboxRow
from effectonce.outbox.outbox import Outbox, message_of
from tests.inbox.kinds import CallerConnection, Kind, Place, observers

EFFECTS = "CREATE TABLE outbox_effects (scope VARCHAR(100), name VARCHAR(100))"
COLUMNS = "seq, id, message_id, destination, ordering_key, type, headers, payload, content, trace_id, source, time"


def prepare(place: Place) -> Place:
    inbox = eo.Inbox(scope="any", table="outbox_tests_inbox").schema_sql(place.dialect)
    place.build(EFFECTS, inbox, Outbox(to="any", table="outbox_tests").schema_sql(place.dialect))
    return place


@pytest.fixture(scope="session")
def outbox_in_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place("sqlite", f"sqlite:///{tmp_path_factory.mktemp('outbox') / 'shop.db'}")
    place.query("PRAGMA journal_mode = WAL")
    return prepare(place)


@pytest.fixture(scope="session")
def outbox_in_postgresql(postgres_url: str) -> Iterator[Place]:
    yield from prepared_until_end(Place("postgresql", postgres_url))


@pytest.fixture(scope="session")
def outbox_in_mysql(mariadb_url: str) -> Iterator[Place]:
    yield from prepared_until_end(Place("mysql", mariadb_url))


def prepared_until_end(place: Place) -> Iterator[Place]:
    """Drop the tables at the end: the server may be one that the environment names."""
    yield prepare(place)
    if place.url in observers:
        observers.pop(place.url)[0].__exit__(None, None, None)
    with place.connected() as run:
        for table in ("outbox_effects", "outbox_tests", "outbox_tests_inbox", "outbox_tests_inbox_starts"):
            run(f"DROP TABLE {table}")


class Office:
    """An outbox and an inbox in one place, and callers' connections of one kind."""

    def __init__(self, place: Place, name: str, kind: Kind) -> None:
        self.place = place
        self.name = name
        self.kind = kind
        self.outbox = Outbox(to=name, table="outbox_tests")
        self.inbox = eo.Inbox(scope=name, table="outbox_tests_inbox")
        self.stack = AsyncExitStack()

    async def caller(self) -> CallerConnection:
        """A new connection, with a transaction begun as its users begin one."""
        caller: CallerConnection = await self.stack.enter_async_context(self.kind.open(self.place))
        await caller.begin()
        return caller

    def effect(self, name: str) -> str:
        return f"INSERT INTO outbox_effects (scope, name) VALUES ('{self.name}', '{name}')"

    @property
    def effects(self) -> list[str]:
        """The effects that are committed."""
        return sorted(name for (name,) in self._select("name", "outbox_effects", "scope"))

    @property
    def sent(self) -> list[eo.Message[Any]]:
        """The messages whose rows are committed, in the order of their rows."""
        rows = self._select(COLUMNS, "outbox_tests", "destination")
        return [message_of(OutboxRow(*row, 0)) for row in sorted(rows)]

    @property
    def ids(self) -> list[str]:
        return [message.id for message in self.sent]

    @property
    def delays(self) -> dict[str, float | None]:
        """The committed messages, by their ids: for how many seconds after the first one each waits."""
        rows = sorted(self._select("seq, message_id, state, due_at, created_at", "outbox_tests", "destination"))
        first_at = rows[0][4]
        return {
            id: round((due_at - first_at) / 1e7) * 10.0 if state == "waiting" else None
            for _, id, state, due_at, _ in rows
        }

    def _select(self, columns: str, table: str, column: str) -> list[tuple[Any, ...]]:
        return self.place.query(f"SELECT {columns} FROM {table} WHERE {column} = '{self.name}'")


@pytest.fixture
async def office(request: pytest.FixtureRequest, kind: Kind, unique_name: str) -> AsyncIterator[Office]:
    place: Place = request.getfixturevalue(f"outbox_in_{kind.dialect}")
    office = Office(place, unique_name, kind)
    yield office
    await office.stack.aclose()
