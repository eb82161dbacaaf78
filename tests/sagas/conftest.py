"""Every store that keeps sagas, and the order saga on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import effectonce as eo

from .shop import Order, Shop, order_saga


@pytest.fixture(params=["memory", "sqlite", "postgresql", "mysql"])
def store(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Iterator[eo.Store]:
    url = "memory://"
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/shop.db"
    elif request.param == "postgresql":
        server = request.getfixturevalue("postgres_url")
        url = f"{server}{'&' if '?' in server else '?'}prefix={unique_name}"
    elif request.param == "mysql":
        url = f"{request.getfixturevalue('mariadb_url')}?prefix={unique_name}"
    with eo.connect(url, sweep_every=None) as store:
        store.migrate()
        yield store


@pytest.fixture
async def closed_in_its_loop(store: eo.Store) -> AsyncIterator[None]:
    """The connections of an event loop are closed before it is."""
    yield
    await store.aclose()


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def saga(store: eo.Store, shop: Shop) -> eo.Saga[Order]:
    return order_saga(store, shop)
