"""Steps through the other tools: an inbox in a database of the user's own, and intents."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest

import effectonce as eo
from effectonce.sagas.recovery import ResumeCounts
from effectonce.testing.fault_points import FaultInjectingBackend, FaultInjector, Killed

from .shop import Order

pytestmark = pytest.mark.quick_on("postgresql")

ORDER = Order("o-1")


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """A database of the user's own; the saga's records are elsewhere."""
    if request.param == "sqlite":
        return lambda: sqlite3.connect(tmp_path / "shop.db")
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
        return lambda: psycopg.connect(url)
    parts = urlsplit(request.getfixturevalue("mariadb_url"))
    options: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "user": parts.username}
    return lambda: pymysql.connect(database=parts.path[1:], password=parts.password or "", **options)


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_through_an_inbox_is_done_once_with_its_rows(
    connect: Callable[[], Any], unique_name: str, fails: bool
) -> None:
    """Killed when its transaction is committed and the saga does not know it yet: it runs again, and does nothing.
    The same for its compensation (F48)."""
    inbox = eo.Inbox(scope="warehouse", table=f"{unique_name}_inbox")
    stock = f"{unique_name}_stock"
    with closing(connect()) as conn:
        inbox.migrate(conn)
        conn.cursor().execute(f"CREATE TABLE {stock} (left_over INTEGER)")
        conn.cursor().execute(f"INSERT INTO {stock} VALUES (10)")
        conn.commit()

    backend = FaultInjectingBackend()
    store: Any = eo.Store(backend, sweep_every=None)
    saga = eo.Saga("order", store, input=Order)
    deaths: list[Killed] = []

    def take(number: int) -> int:
        with closing(connect()) as conn:
            conn.cursor().execute(f"SELECT 1 FROM {stock}")
            if not getattr(conn, "in_transaction", True):
                conn.execute("BEGIN")
            if inbox.first(conn, eo.current().key):
                conn.cursor().execute(f"UPDATE {stock} SET left_over = left_over - {number}")
            conn.commit()
        if deaths:
            backend.injector.killed = True
            raise deaths.pop()
        return number

    @saga.step()
    def reserve(order: Order) -> int:
        return take(3)

    @reserve.compensate
    def release(order: Order) -> None:
        take(-3)

    @saga.step()
    def ship(order: Order) -> None:
        if fails:
            deaths.append(Killed())
            raise LookupError("no carrier goes there")

    deaths.append(Killed())
    came = ResumeCounts()
    for _ in range(4):
        try:
            if saga.get("o-1") is None:
                saga.run("o-1", ORDER)
            came = saga.resume()
        except Killed:
            backend.injector = FaultInjector()
            backend.clock.advance("1m")
    assert saga.get("o-1").state == ("failed" if fails else "done")  # type: ignore[union-attr]
    assert came == ResumeCounts(), "nothing is left"
    with closing(connect()) as conn:
        cursor = conn.cursor()
        cursor.execute(f"SELECT left_over FROM {stock}")
        assert int(cursor.fetchone()[0]) == (10 if fails else 7)
