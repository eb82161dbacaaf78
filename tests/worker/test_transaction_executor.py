"""What a worker in transactions does with the messages that do not simply run and commit."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import Delivery

from .bench import Watched, paid, serving, until
from .test_transactions import Database, inserting, sqlite

__all__ = ["sqlite"]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """By id of a message: the how manieth delivery of it the broker says that this is."""
    receive, attempts = Watched.receive, dict[str, int]()

    async def receive_counted(self: Watched, limit: int, wait: float) -> Sequence[Delivery]:
        found = await receive(self, limit, wait)
        for delivery in found:
            delivery.attempt = attempts.get(delivery.packet.id or "", delivery.attempt)
        return found

    monkeypatch.setattr(Watched, "receive", receive_counted)
    return attempts


async def test_a_suspect_does_not_join_the_batch_that_waits_with_it(sqlite: Database, counted: dict[str, int]) -> None:
    """Its row and its effect are in a transaction of its own, also where it came in the middle of others."""
    worker = sqlite.worker()
    transactions: list[tuple[int, Any]] = []

    @worker.handler("orders", batch=True, concurrency=1)
    def note(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        transactions.append((message.data["order"], connection))

    messages = [paid(number) for number in range(5)]
    counted[messages[2].id] = 2
    async with serving(worker):
        await sqlite.bench.send("orders", *messages)
        await until(lambda: sqlite.bench.count("ack") == 5)
    of_suspect = dict(transactions)[2]
    assert [number for number, connection in transactions if connection is of_suspect] == [2]
    assert [number for number, _ in transactions] == [0, 1, 2, 3, 4]
    assert len({connection for _, connection in transactions}) == 3


@pytest.mark.parametrize("batch", [False, True])
async def test_what_the_broker_has_given_away_meanwhile_is_not_run(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch, batch: bool
) -> None:
    """F54: its new consumer runs it. Here it is neither settled nor held against those behind it."""
    worker = sqlite.worker(prefetch=10)
    go, started, runs = threading.Event(), threading.Event(), list[int]()
    first, given_away, last = paid(1), paid(2, ordering_key="k"), paid(3, ordering_key="k")

    @worker.handler("orders", batch=batch, concurrency=1)
    def note(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        runs.append(message.data["order"])
        started.set()
        assert go.wait(60)

    async def extend(self: Watched, deliveries: Sequence[Delivery], seconds: float) -> list[bool]:
        return [delivery.packet.id != given_away.id for delivery in deliveries]

    monkeypatch.setattr(Watched, "extend", extend)
    async with serving(worker):
        await sqlite.bench.send("orders", first)
        await until(started.is_set)
        await sqlite.bench.send_unordered("orders", given_away, last)
        await until(lambda: worker.consumers[0].received == 3)
        await worker.consumers[0].extend()
        go.set()
        await until(lambda: sqlite.bench.count("ack") == 2)
    assert runs == [1, 3]
    assert [(what, id) for what, id, _ in sqlite.bench.noted] == [("ack", first.id), ("ack", last.id)]


async def test_fewer_attempts_than_were_made_already_end_at_the_dead_letters(sqlite: Database) -> None:
    """An operator has lowered the limit while the message waited for its next attempt: it is not run once more, and its
    cause says what the last attempt ended with."""
    worker = sqlite.worker()
    inserting(sqlite, worker, retry=eo.Retry(9, first="50ms", jitter=False)).append(1)
    async with serving(worker):
        await sqlite.bench.send("orders", paid(1))
        await until(lambda: sqlite.bench.count("nack") == 1)
    strict = sqlite.worker()
    runs: list[str] = []

    @strict.handler("orders", scope="orders/*/billing", retry=eo.Retry(1))
    def insert(connection: sqlite3.Connection, message: eo.Message[Any]) -> None:
        runs.append(message.id)

    async with serving(strict):
        await until(lambda: sqlite.bench.count("dead") == 1)
    (dead,) = await sqlite.bench.dead(strict, "orders").alist()
    assert (dead.cause.why, dead.cause.attempts, runs) == ("attempts-exhausted", 1, [])
    assert "the last error was ValueError: after its effect" in dead.cause.text


async def test_a_message_of_a_batch_whose_lane_has_failed_is_tried_after_it_only(sqlite: Database) -> None:
    """Redone one by one, too: the one behind the failed message waits, and those of other keys are committed."""
    worker = sqlite.worker()
    runs: list[tuple[str | None, int]] = []

    @worker.handler("orders", batch=True, concurrency=1, retry=eo.Retry(2, first="1ms"))
    def insert(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        runs.append((message.ordering_key, message.data["order"]))
        if message.data["order"] == 0:
            raise ValueError

    messages = [paid(0, ordering_key="a"), paid(1, ordering_key="a"), paid(2, ordering_key="b")]
    async with serving(worker):
        await sqlite.bench.send_unordered("orders", *messages)
        await until(lambda: sqlite.bench.count("ack") == 2 and sqlite.bench.count("dead") == 1)
    of_a = [number for key, number in runs if key == "a"]
    assert (of_a[-1], of_a.count(1)) == (1, 1), "it ran when the one before it had left"
    assert ("b", 2) in runs


async def test_a_batch_waits_for_a_database_that_is_away_and_no_attempt_is_counted(sqlite: Database) -> None:
    connect, away, refused = sqlite.connect, False, list[bool]()

    def flaky() -> Any:
        if away:
            refused.append(True)
            raise sqlite3.OperationalError("unable to open database file")
        return connect()

    sqlite.connect = flaky
    worker = sqlite.worker()
    inserting(sqlite, worker, batch=True, retry=eo.Retry(1))
    async with serving(worker):
        await until(lambda: worker.consumers)
        away = True
        await sqlite.bench.send("orders", *(paid(number) for number in range(5)))
        await until(lambda: len(refused) > 6)  # the retries inside the transaction are over: the worker pauses
        away = False
        await until(lambda: sqlite.bench.count("ack") == 5)
    assert sqlite.effects() == [0, 1, 2, 3, 4]
    assert sqlite.bench.count("nack") == sqlite.bench.count("dead") == 0
