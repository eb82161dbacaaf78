"""Messages with a delay: the row waits in the outbox, whatever the broker can do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, InvalidOption
from tests.harness.waiting import auntil
from tests.relay.harness import Database, FakeBroker, message

pytestmark = pytest.mark.quick_on("postgres")

HOUR_US = 3_600_000_000


def send_delayed(database: Database, *numbers: int, delay: str = "1h") -> None:
    with database.transaction() as connection:
        database.outbox().send_many(connection, (message(n) for n in numbers), delay=delay)


def let_an_hour_go_by(database: Database) -> None:
    database.execute("UPDATE {outbox} SET due_at = due_at - ?, created_at = created_at - ?", HOUR_US, HOUR_US)


async def test_a_delayed_row_is_published_when_it_is_due_and_once(database: Database, broker: FakeBroker) -> None:
    send_delayed(database, 1)
    relay = database.relay(broker)
    assert await relay.drain() == 0
    assert database.states() == {"waiting": 1}
    let_an_hour_go_by(database)
    assert await relay.drain() == 1
    assert await relay.drain() == 0
    ((_, packet),) = broker.sent
    assert (packet.id, packet.delay_s) == ("m1", 0.0), "it has waited: the broker is not to keep it longer"
    assert database.states() == {"published": 1}


async def test_a_delayed_row_blocks_no_row_behind_it(database: Database, broker: FakeBroker) -> None:
    send_delayed(database, *range(20))
    database.send_numbers(range(20, 30), key=lambda n: f"k{n % 2}")
    assert await database.relay(broker, batch=5).drain() == 10
    assert sorted(broker.numbers()) == list(range(20, 30))


async def test_delayed_rows_go_out_in_the_order_in_which_they_are_due(database: Database, broker: FakeBroker) -> None:
    for number, delay in ((1, "59m"), (2, "30m"), (3, "45m")):
        send_delayed(database, number, delay=delay)
    let_an_hour_go_by(database)
    relay = database.relay(broker, batch=1)
    await relay.drain()
    assert broker.numbers() == [2, 3, 1]


async def test_a_relay_that_serves_publishes_it_without_being_woken(database: Database, broker: FakeBroker) -> None:
    relay = database.relay(broker, poll="20ms")
    serving = asyncio.create_task(relay.serve())
    send_delayed(database, 1, delay="300ms")
    await auntil(lambda: broker.numbers() == [1])
    relay.stop()
    await serving


async def test_a_row_that_was_due_and_whose_relay_was_cut_off_goes_out_again_with_its_id(
    database: Database, broker: FakeBroker
) -> None:
    """F42: the broker may have it already."""
    send_delayed(database, 1)
    let_an_hour_go_by(database)
    first: list[str] = []

    def breaks_once(packets: Sequence[Packet]) -> Exception | None:
        if first:
            return None
        first.extend(packet.id for packet in packets)
        return BrokerUnavailable("the confirm was lost")

    broker.raises = breaks_once
    relay = database.relay(broker)
    with pytest.raises(BrokerUnavailable):
        await relay.drain()
    assert await relay.drain() == 1
    assert [packet.id for _, packet in broker.sent] == first == ["m1"]


async def test_a_delayed_row_is_not_late_before_it_is_due(database: Database, broker: FakeBroker) -> None:
    relay = database.relay(broker)
    send_delayed(database, 1)
    backlog, now = relay.stats(), relay.store.now()
    assert backlog.oldest is not None
    assert backlog.oldest > now
    let_an_hour_go_by(database)
    backlog = relay.stats()
    assert backlog.oldest is not None
    assert now <= backlog.oldest + 60_000_000 <= relay.store.now() + 60_000_000


async def test_a_delay_that_is_rolled_back_is_gone(database: Database, broker: FakeBroker) -> None:
    connection = database.connect()
    if database.name == "sqlite":
        connection.execute("BEGIN")
    database.outbox().send(connection, message(1), delay="1ms")
    connection.rollback()
    connection.close()
    assert database.states() == {}


@pytest.mark.parametrize("delay", ["soon", 0, -1, "0s", True])
def test_a_delay_is_a_span_of_time(sqlite: Database, delay: str) -> None:
    with sqlite.transaction() as connection, pytest.raises(InvalidOption, match="delay="):
        sqlite.outbox().send(connection, message(1), delay=delay)


def test_a_message_with_an_ordering_key_has_no_delay_and_none_of_its_batch_is_sent(sqlite: Database) -> None:
    """Those behind it would have to wait as long, or overtake it."""
    with sqlite.transaction() as connection, pytest.raises(InvalidOption, match="ordering key"):
        sqlite.outbox().send_many(connection, [message(1), message(2, "k")], delay="1m")
    assert sqlite.states() == {}


async def test_an_ordered_message_waits_for_no_delayed_one(database: Database, broker: FakeBroker) -> None:
    send_delayed(database, 1)
    database.send(message(2, "k"), message(3, "k"))
    await database.relay(broker).drain()
    assert broker.numbers() == [2, 3]


def test_a_message_is_delayed_on_a_broker_that_cannot_delay(sqlite: Database, broker: FakeBroker) -> None:
    """Kafka has no delayed messages; its outbox has."""
    assert broker.capabilities.max_delay_s == 0
    send_delayed(sqlite, 1, delay="1us")
    assert asyncio.run(sqlite.relay(broker).drain()) == 1
