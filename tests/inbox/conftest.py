"""One inbox table and one table of effects per database; each test has a scope of its own in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from tests.inbox.kinds import CallerConnection, Kind, Place, observers

EFFECTS = {
    "sqlite": "CREATE TABLE effects (scope TEXT, name TEXT)",
    "postgresql": "CREATE TABLE effects (scope text, name text)",
    "mysql": "CREATE TABLE effects (scope varchar(100), name varchar(100)) ENGINE = InnoDB",
}
PAYMENTS = {
    "sqlite": "CREATE TABLE payments (id INTEGER PRIMARY KEY, idempotency_key TEXT UNIQUE, amount INTEGER NOT NULL)",
    "postgresql": "CREATE TABLE payments (id serial PRIMARY KEY, idempotency_key text UNIQUE, amount int NOT NULL)",
    "mysql": "CREATE TABLE payments (id int AUTO_INCREMENT PRIMARY KEY, idempotency_key varchar(100) UNIQUE, "
    "amount int NOT NULL) ENGINE = InnoDB",
}


def prepare(place: Place) -> Place:
    inbox = eo.Inbox(scope="any", table=place.table).schema_sql(place.dialect)
    place.build(EFFECTS[place.dialect], PAYMENTS[place.dialect], inbox)
    return place


@pytest.fixture(scope="session")
def sqlite_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return sqlite_file(tmp_path_factory.mktemp("inbox"))


def sqlite_file(folder: Path) -> Place:
    place = Place("sqlite", f"sqlite:///{folder / 'shop.db'}")
    place.query("PRAGMA journal_mode = WAL")
    return prepare(place)


@pytest.fixture(scope="session")
def postgres_place(postgres_url: str) -> Iterator[Place]:
    place = Place("postgresql", postgres_url, "inbox_tests")
    yield prepare(place)
    drop(place)


@pytest.fixture(scope="session")
def mysql_place(mariadb_url: str) -> Iterator[Place]:
    place = Place("mysql", mariadb_url, "inbox_tests")
    yield prepare(place)
    drop(place)


def drop(place: Place) -> None:
    """Drop the tables at the end: the server may be one that the environment names."""
    if place.url in observers:
        observers.pop(place.url)[0].__exit__(None, None, None)
    with place.connected() as run:
        if place.dialect == "mysql":
            run("SET lock_wait_timeout = 5")  # a test that failed may have left a transaction open
        for table in ("effects", "payments", place.table, f"{place.table}_starts"):
            run(f"DROP TABLE {table}")


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def place(request: pytest.FixtureRequest) -> Any:
    return place_of(request, request.param)


def place_of(request: pytest.FixtureRequest, dialect: str) -> Any:
    names = {"sqlite": "sqlite_place", "postgresql": "postgres_place", "mysql": "mysql_place"}
    return request.getfixturevalue(names[dialect])


class Shop:
    """An inbox in one place, the effects of its scope, and callers' connections of one kind."""

    def __init__(self, place: Place, scope: str, kind: Kind | None = None) -> None:
        self.place = place
        self.through = place  # where handlers connect to
        self.scope = scope
        self.kind = kind
        self.inbox = eo.Inbox(scope=scope, table=place.table)
        self.stack = AsyncExitStack()

    async def caller(self) -> CallerConnection:
        """A new connection, with a transaction begun as its users begin one."""
        assert self.kind is not None
        caller: CallerConnection = await self.stack.enter_async_context(self.kind.open(self.place))
        await caller.begin()
        return caller

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        assert self.kind is not None
        assert self.kind.connect is not None
        opened = self.kind.connect(self.through)
        if hasattr(opened, "__aenter__"):
            async with opened as connect:
                yield connect
        else:
            with opened as connect:
                yield connect

    def effect(self, name: str) -> str:
        """The statement that has the effect."""
        return f"INSERT INTO effects (scope, name) VALUES ('{self.scope}', '{name}')"

    @property
    def effects(self) -> list[str]:
        """The effects that are committed, sorted."""
        return sorted(name for (name,) in self.place.query(f"SELECT name FROM effects WHERE scope = '{self.scope}'"))

    @property
    def rows(self) -> list[str]:
        """The keys that are recorded and committed."""
        key = "`key`" if self.place.dialect == "mysql" else "key"
        return sorted(
            k for (k,) in self.place.query(f"SELECT {key} FROM {self.place.table} WHERE scope = '{self.scope}'")
        )

    @property
    def attempts(self) -> int | None:
        rows = self.place.query(
            f"SELECT unreported + reported FROM {self.place.table}_starts WHERE scope = '{self.scope}'"
        )
        return rows[0][0] if rows else None


@pytest.fixture
async def shop(place: Place, unique_name: str) -> AsyncIterator[Shop]:
    """A shop on each dialect, without a kind of connection."""
    shop = Shop(place, unique_name)
    yield shop
    await shop.stack.aclose()
