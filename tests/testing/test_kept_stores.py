"""`assert_idempotent` on a handler that completes an intent in its own transaction: its store stays in its place."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import effectonce as eo
from effectonce.errors import ConfigurationError
from effectonce.testing import assert_idempotent


class Bank:
    """A provider that keeps keys, as Stripe does."""

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}

    def charge(self, intent: eo.Intent[int]) -> int:
        return self.charges.setdefault(intent.provider_key, intent.request)


class Shop:
    """A handler that charges, and writes the order in the transaction that completes the intent."""

    def __init__(self, path: Path, *, careless: bool = False) -> None:
        self.path = path / "shop.db"
        self.store = eo.connect(f"sqlite:///{self.path}", sweep_every=None)
        self.bank = Bank()
        self.careless = careless
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("CREATE TABLE orders (id TEXT)")
        intents = eo.Intents(self.store, scope="shop")
        self.charge = intents.operation("stripe", "charge")(self.bank.charge)

    def place(self, order: str, amount: int) -> None:
        with self.charge.send(amount, key=order) as sent, closing(sqlite3.connect(self.path)) as connection:
            if not sent.replayed:
                connection.execute("INSERT INTO orders VALUES (?)", (order,))
                if self.careless:
                    connection.commit()
                    connection.execute("BEGIN")
            if not connection.in_transaction:
                connection.execute("BEGIN")
            sent.complete(connection)
            connection.commit()

    @property
    def orders(self) -> int:
        with closing(sqlite3.connect(self.path)) as connection:
            return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])

    def clear(self) -> None:
        self.bank.charges.clear()
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("DELETE FROM orders")


def test_one_order_and_one_charge_wherever_it_is_killed(tmp_path: Path) -> None:
    """F03"""
    shop = Shop(tmp_path)
    report = assert_idempotent(
        shop.place,
        "o-1",
        42,
        effects=lambda: shop.orders + len(shop.bank.charges),
        reset=shop.clear,
        keep_stores=[shop.store],
        strict=True,
    )
    assert {(trial.verdict, trial.effects) for trial in report.trials} == {("once", 2)}
    steps = {trial.step.partition(":")[0] for trial in report.trials if trial.scenario == "killed"}
    assert {"claim", "note"} <= steps, "the operations of the kept store are steps"
    assert shop.store.list(state="claimed").records == [], "no lease of a killed delivery is left"


@pytest.mark.long
def test_an_order_that_is_committed_before_its_intent_is_doubled(tmp_path: Path) -> None:
    shop = Shop(tmp_path, careless=True)
    with pytest.raises(AssertionError, match=r"it happened again"):
        assert_idempotent(
            shop.place, "o-1", 42, effects=lambda: shop.orders, reset=shop.clear, keep_stores=[shop.store]
        )


def test_without_it_the_error_says_what_to_keep(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with pytest.raises(ConfigurationError, match=r"let it stay, with keep_stores=\[store\] or --keep-store"):
        assert_idempotent(shop.place, "o-1", 42, effects=lambda: shop.orders, reset=shop.clear, store=shop.store)


@pytest.fixture
def orders(postgres_url: str, unique_name: str) -> Iterator[str]:
    name = f"o{unique_name[-20:]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} (id text)".encode())
        yield name
        connection.execute(f"DROP TABLE {name}".encode())


@pytest.mark.long
def test_an_async_handler_of_a_worker_on_postgresql(postgres_url: str, unique_name: str, orders: str) -> None:
    """F03"""
    prefix = unique_name[-20:]
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}prefix={prefix}"
    bank = Bank()
    with eo.connect(url, sweep_every=None) as store:
        store.migrate()
        intents = eo.Intents(store, scope="shop")

        @intents.operation("stripe", "charge")
        async def charge(intent: eo.Intent[int]) -> int:
            return bank.charge(intent)

        worker = eo.Worker(eo.connect_broker("memory://"), store=store, name="shop")

        @worker.handler("orders", lease="5s")
        async def place(message: eo.Message[dict[str, Any]]) -> None:
            sending = charge.send(message.data["amount"], key=message.key)
            async with sending as sent, await psycopg.AsyncConnection.connect(postgres_url) as connection:
                if not sent.replayed:
                    await connection.execute(f"INSERT INTO {orders} VALUES (%s)".encode(), (message.key,))
                else:
                    await connection.execute("SELECT 1")
                await sent.complete(connection)

        def count() -> int:
            with psycopg.connect(postgres_url) as connection:
                row = connection.execute(f"SELECT count(*) FROM {orders}".encode()).fetchone()
                assert row is not None
                return int(row[0])

        message = eo.Message(data={"amount": 7})
        report = assert_idempotent(place, message, effects=count, keep_stores=[store], strict=True)
        assert {trial.verdict for trial in report.trials} == {"once"}
