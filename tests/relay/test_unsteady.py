"""A relay whose database answers late or not at all, that is stopped twice, traced, or behind with its clean-up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from effectonce.contracts import ConnectionLost, Contention, Event
from effectonce.contracts.outbox import OutboxRow
from effectonce.core.retry import Retry
from effectonce.errors import BrokerUnavailable, StoreUnavailable
from tests.harness.waiting import auntil
from tests.relay.harness import Database, FakeBroker, Refused, message

pytestmark = pytest.mark.quick_on("sqlite")


# -- asking again


def fail(monkeypatch: pytest.MonkeyPatch, port: Any, method: str, *errors: Exception) -> list[Exception]:
    """Make ``method`` of every port like this one raise these errors first. Returns those that are left."""
    left = list(errors)
    honest: Callable[..., Any] = getattr(type(port), method)

    async def failing(self: Any, *args: Any, **options: Any) -> Any:
        if left:
            raise left.pop(0)
        return await honest(self, *args, **options)

    monkeypatch.setattr(type(port), method, failing)
    return left


@pytest.mark.parametrize("error", [ConnectionLost("it broke"), Contention("another was quicker")])
async def test_a_broken_connection_or_a_lost_race_is_tried_four_times(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    database.send_numbers([1])
    left = fail(monkeypatch, database.port(), "lease", *[error] * 3)
    assert await database.relay(broker).drain() == 1
    left += [error] * 5
    with pytest.raises(type(error)):
        await database.relay(broker).drain()
    assert len(left) == 1


async def test_a_database_that_is_away_is_asked_once(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = fail(monkeypatch, database.port(), "lease", *[StoreUnavailable("nobody is there")] * 2)
    with pytest.raises(StoreUnavailable):
        await database.relay(broker).drain()
    assert len(left) == 1


def test_people_who_lose_every_race_hear_that_the_store_did_not_answer(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = database.store().runtime.backend
    fail(monkeypatch, backend.sync_outbox(None), "stats", *[Contention("another was quicker")] * 4)
    with pytest.raises(StoreUnavailable, match="did not answer: another was quicker"):
        database.relay(broker).stats()


# -- a database that is away


async def test_a_lease_that_fails_is_a_pause_and_then_tried_again(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    relay = database.relay(broker)
    relay.store.add_hook(events.append)
    database.send_numbers([1])
    left = fail(monkeypatch, database.port(), "lease", *[StoreUnavailable("gone")] * 3)
    serving = asyncio.create_task(relay.serve())
    await auntil(lambda: broker.numbers() == [1])
    relay.stop()
    await serving
    assert left == []
    assert [(event.detail, 0.0 < (event.seconds or 0) <= 0.4) for event in events if event.kind == "relay_paused"] == [
        ("gone", True)
    ] * 3


async def test_a_settlement_that_fails_is_repeated_after_a_pause(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F42: as long as the lease is ours; the messages go out once."""
    events: list[Event] = []
    relay = database.relay(broker)
    relay.store.add_hook(events.append)
    database.send_numbers(range(3))
    fail(monkeypatch, database.port(), "settle", *[StoreUnavailable("gone")] * 3)
    assert await relay.drain() == 3
    assert broker.numbers() == [0, 1, 2]
    assert database.states() == {"published": 3}
    assert [event.seconds for event in events if event.kind == "relay_paused"] == [0.05, 0.1, 0.2]


async def test_a_settlement_is_given_up_when_the_lease_ends(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    relay = database.relay(broker, lease="300ms")
    database.send_numbers([1])
    left = fail(monkeypatch, database.port(), "settle", *[StoreUnavailable("gone")] * 100)
    assert await relay.drain() == 1, "it was published, as far as this relay knows"
    assert 1 <= 100 - len(left) <= 4
    assert "could not settle 1 messages before their lease ends" in caplog.text
    left.clear()
    await asyncio.sleep(0.3)
    assert await relay.drain() == 1
    assert [packet.id for _, packet in broker.sent] == ["m1", "m1"], "it goes out again, with the same id"


async def test_a_relay_that_stops_does_not_wait_for_a_database_that_is_away(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.send_numbers([1])
    relay = database.relay(broker, lease="10m")
    left = fail(monkeypatch, database.port(), "settle", *[StoreUnavailable("gone")] * 1000)
    serving = asyncio.create_task(relay.serve())
    await auntil(lambda: len(left) < 1000)
    relay.stop()
    await asyncio.wait_for(serving, 60)


# -- stopping


async def test_a_second_stop_waits_for_nothing(database: Database, broker: FakeBroker) -> None:
    database.send_numbers([1])
    broker.gate = asyncio.Event()
    relay = database.relay(broker, lease="10m")
    serving = asyncio.create_task(relay.serve())
    await asyncio.wait_for(broker.entered.wait(), 60)
    relay.stop()
    await asyncio.sleep(0.1)
    assert not serving.done(), "it waits for what the broker has not confirmed"
    relay.stop()
    await asyncio.wait_for(asyncio.wait([serving]), 60)
    assert database.execute("SELECT state, attempts, leased_until FROM {outbox}") == [("pending", 0, 0)]
    assert broker.closed > 0


async def test_an_idle_relay_stops_at_once(database: Database, broker: FakeBroker) -> None:
    relay = database.relay(broker, poll="1h")
    relay.stop()  # it does not run yet
    serving = asyncio.create_task(relay.serve())
    await asyncio.sleep(0.3)
    relay.stop()
    await asyncio.wait_for(serving, 60)


async def test_a_defect_of_the_relay_ends_it_with_its_error(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with a hang, and not in silence. Its connections are closed."""
    fail(monkeypatch, database.port(), "lease", ZeroDivisionError("a defect"))
    relay = database.relay(broker)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        await asyncio.wait_for(relay.serve(), 60)
    assert relay.phase == "stopped"
    assert broker.closed > 0


# -- what others see of it


class Tracer:
    def __init__(self) -> None:
        self.relayed_rows: list[tuple[str, str, bool, str | None]] = []

    def trace_relay(self, system: str, row: OutboxRow, seconds: float, error: Exception | None) -> None:
        self.relayed_rows.append((system, row.message_id, 0 < seconds < 60, error and str(error)))


async def test_every_message_is_traced_as_sent_or_failed(database: Database, broker: FakeBroker) -> None:
    database.send_numbers([1, 2])
    broker.refuse = lambda packet: Refused("too ugly") if packet.id == "m2" else None
    relay = database.relay(broker, retry=Retry(3, first="1h", cap="1h"))
    tracer = Tracer()
    relay.store.runtime.tracer = tracer  # type: ignore[assignment]
    await relay.drain()
    assert sorted(tracer.relayed_rows) == [("fake", "m1", True, None), ("fake", "m2", True, "too ugly")]


async def test_hooks_hear_of_every_message(database: Database, broker: FakeBroker) -> None:
    database.send_numbers([1, 2])
    database.execute("UPDATE {outbox} SET attempts = 9 WHERE message_id = 'm2'")
    events: list[Event] = []
    relay = database.relay(broker, retry=Retry(3))
    relay.store.add_hook(events.append)
    while await relay.drain():
        pass
    told = [(event.kind, event.scope, event.key, event.attempt) for event in events if event.key]
    assert told == [("published", "orders", "m1", 1), ("parked", "orders", "m2", 10)]
    assert (relay.totals.published, relay.totals.failed, relay.totals.parked) == (1, 0, 1)


# -- how a batch is published


async def test_two_queues_that_do_not_answer_mean_that_the_broker_is_away(
    database: Database, broker: FakeBroker
) -> None:
    """The others are not tried in this round, and the next one begins with those that are not known to be stuck."""
    for queue in ("a", "b", "c", "d"):
        database.send(message(1), to=queue)
    queues: list[str] = []
    broker.raises = lambda packets: BrokerUnavailable("gone fishing")
    publisher = broker.publisher()
    publish = publisher.publish

    async def recorded(queue: str, packets: Any) -> Any:
        queues.append(queue)
        return await publish(queue, packets)

    publisher.publish = recorded  # type: ignore[method-assign]
    broker.publisher = lambda: publisher  # type: ignore[method-assign]
    relay = database.relay(broker)
    with pytest.raises(BrokerUnavailable):
        await relay.drain()
    assert len(queues) == 2
    broker.raises = lambda packets: None
    assert await relay.drain() == 4


async def test_what_waits_behind_a_failed_message_comes_due_with_it(database: Database, broker: FakeBroker) -> None:
    database.send_numbers([1, 2], key=lambda n: "k")
    database.send_numbers([3])
    broker.refuse = lambda packet: Refused("no") if packet.id == "m1" else None
    await database.relay(broker, retry=Retry(3, first="1h", cap="1h", jitter=False)).drain()
    due = dict(database.execute("SELECT message_id, due_at FROM {outbox} WHERE state = 'waiting'"))
    assert due.keys() == {"m1", "m2"}
    assert abs(due["m1"] - due["m2"]) < 60_000_000
    ((now,),) = database.execute("SELECT max(created_at) FROM {outbox}")
    assert 3_600_000_000 <= due["m1"] - now < 3_700_000_000


async def test_the_largest_batch_is_what_the_option_says(database: Database, broker: FakeBroker) -> None:
    database.send_numbers(range(1200))
    assert await database.relay(broker, order=None).drain() == 1200
    assert max(len(call) for call in broker.calls) == 500


# -- cleaning up


async def test_a_clean_up_that_is_behind_does_not_pause(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 rows at a time, one after the other; then it says so, and rests."""
    monkeypatch.setattr("effectonce.relay.relay_run.MAX_ROWS_PER_STATEMENT", 2)
    monkeypatch.setattr("effectonce.relay.relay_run._CLEANUP_INTERVAL_S", 3600.0)
    database.send_numbers(range(7))
    events: list[Event] = []
    relay = database.relay(broker, keep="1us")
    relay.store.add_hook(events.append)
    await relay.drain()
    serving = asyncio.create_task(relay.serve())
    await auntil(lambda: any(event.kind == "swept" for event in events))
    relay.stop()
    await serving
    assert database.states() == {}
    assert relay.totals.cleaned == 7
    assert [event.detail for event in events if event.kind == "swept"] == [f"outbox {database.table}: 7 deleted so far"]


async def test_people_free_thousands_at_once(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effectonce.relay.relay.MAX_ROWS_PER_STATEMENT", 2)
    database.send_numbers(range(5))
    broker.refuse = lambda packet: Refused("no")
    relay = database.relay(broker, retry=Retry(1))
    await relay.drain()
    assert database.states() == {"parked": 5}
    assert len(relay.list(limit=3).entries) == 3
    page = relay.list(limit=0)
    assert len(page.entries) == 1, "a page has one entry at least"
    assert len(relay.list(limit=100, cursor=page.cursor).entries) == 4
    assert relay.unpark() == 5
    assert database.states() == {"pending": 5}
