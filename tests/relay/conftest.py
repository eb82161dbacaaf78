"""Three real databases, and an outbox of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import effectonce as eo
from tests.relay.harness import Database, FakeBroker

DATABASES = ["sqlite", "postgres", "mariadb"]


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Iterator[Database]:
    yield from open_database(request.param, request, tmp_path, unique_name)


@pytest.fixture
def sqlite(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Iterator[Database]:
    yield from open_database("sqlite", request, tmp_path, unique_name)


@pytest.fixture
def postgres(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Iterator[Database]:
    yield from open_database("postgres", request, tmp_path, unique_name)


@pytest.fixture
def mariadb(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Iterator[Database]:
    yield from open_database("mariadb", request, tmp_path, unique_name)


def open_database(name: str, request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Iterator[Database]:
    server = f"sqlite:///{tmp_path}/shop.db" if name == "sqlite" else str(request.getfixturevalue(f"{name}_url"))
    database = Database(name, server, unique_name)
    with eo.connect(database.url) as store:
        store.migrate()
    yield database
    database.close()


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()
