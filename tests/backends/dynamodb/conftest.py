"""Fixtures: a migrated table, a port on it, and a table on a clock that tests advance."""

import uuid
from collections.abc import Iterator

import pytest

from effectonce.backends.dynamodb.store import DynamoDBBackend
from effectonce.contracts import Port
from effectonce.core.run_sync import run_sync
from effectonce.values.urls import Address

from .table import TimelessBackend, table_url


@pytest.fixture(scope="module")
def table(dynamodb_url: str) -> str:
    """The URL of a migrated table for everything below."""
    url = table_url(dynamodb_url, f"own-{uuid.uuid4().hex}")
    run_sync(DynamoDBBackend(Address(url)).sync_port().migrate())
    return url


@pytest.fixture
def port(table: str) -> Iterator[Port]:
    port = DynamoDBBackend(Address(table)).sync_port()
    yield port
    run_sync(port.close())


@pytest.fixture
def key(unique_name: str) -> str:
    return unique_name


@pytest.fixture
def timeless(dynamodb_url: str, unique_name: str) -> TimelessBackend:
    """A table of the test's own, on a clock that is advanced."""
    backend = TimelessBackend(Address(table_url(dynamodb_url, unique_name)))
    run_sync(backend.sync_port().migrate())
    return backend


@pytest.fixture
def aws(dynamodb_url: str) -> None:
    """Credentials in the environment."""
