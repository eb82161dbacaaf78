"""A relay whose broker is slow, or whose messages are large: what a lease takes, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import effectonce as eo
from effectonce.contracts import Packet
from effectonce.core.retry import Retry
from effectonce.errors import BrokerUnavailable, InvalidOption
from tests.relay.harness import Database, FakeBroker, FakePublisher, message

pytestmark = pytest.mark.quick_on("postgres")


class SlowPublisher(FakePublisher):
    """Takes ``pace`` seconds for each packet, and confirms them all at the end."""

    pace = 0.02

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        await asyncio.sleep(self.pace * len(packets))
        return await super().publish(queue, packets)


class SlowBroker(FakeBroker):
    def publisher(self) -> FakePublisher:
        return SlowPublisher(self)


async def test_a_batch_that_takes_longer_than_the_lease_is_sent_in_smaller_ones(database: Database) -> None:
    """200 at once take 4 s, and a lease of 1 s is given up after 0.8: all of it again would never end."""
    broker = SlowBroker()
    database.send_numbers(range(200))
    relay = database.relay(broker, order=None, lease="1s", batch=200)
    serving = asyncio.create_task(relay.serve())
    async with asyncio.timeout(30):
        while relay.totals.published < 60:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    relay.stop()
    await serving


async def test_a_lease_of_large_messages_holds_few_of_them(database: Database, broker: FakeBroker) -> None:
    """Else 500 of the largest are 128 MB at once; these would be 32."""
    blob = b"x" * 200_000
    held: list[int] = []
    broker.raises = lambda packets: held.append(sum(len(packet.body) for packet in packets))
    for _ in range(4):
        database.send(*(eo.Message(data=blob) for _ in range(40)))
    assert await database.relay(broker, order=None).drain() == 160
    assert max(held) < 20_000_000  # in base64


async def test_a_publisher_that_is_upset_by_one_gets_no_more_time_for_the_others(
    database: Database, broker: FakeBroker
) -> None:
    """Each goes by itself then, and all of them within the one lease: 0.8 s are enough for one of 0.5."""

    class Publisher(FakePublisher):
        async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
            if len(packets) > 1:
                raise ValueError("one of you is wrong")
            await asyncio.sleep(0.5)
            return await super().publish(queue, packets)

    broker.publisher = lambda: Publisher(broker)  # type: ignore[method-assign]
    database.send_numbers(range(6))
    with pytest.raises(BrokerUnavailable):
        await database.relay(broker, order=None, lease="1s").drain()
    assert len(broker.sent) <= 1


async def test_a_queue_that_never_confirms_holds_up_no_other(database: Database, broker: FakeBroker) -> None:
    """One queue of a broker may be stuck (a quorum queue without its majority) while the others work."""

    class Publisher(FakePublisher):
        async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
            if queue == "stuck":
                await asyncio.sleep(3600)
            return await super().publish(queue, packets)

    broker.publisher = lambda: Publisher(broker)  # type: ignore[method-assign]
    database.send(*(message(n) for n in range(30)), to="stuck")
    database.send(message(100))
    relay = database.relay(broker, lease="400ms", batch=10)
    serving = asyncio.create_task(relay.serve())
    async with asyncio.timeout(60):
        while not broker.numbers():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    relay.stop()
    await serving


async def test_many_rows_behind_a_waiting_one_do_not_hold_up_another_line(
    database: Database, broker: FakeBroker
) -> None:
    """F46: those behind it come due with it, all at once, and before a row of another line that is due later."""
    database.send_numbers(range(150), key=lambda n: "busy")
    database.send_numbers([1000], key=lambda n: "other")
    database.execute("UPDATE {outbox} SET state = 'waiting', due_at = 1 WHERE message_id <> 'm1000'")
    database.execute("UPDATE {outbox} SET state = 'waiting', due_at = 2 WHERE message_id = 'm1000'")
    database.execute("UPDATE {outbox} SET due_at = 4000000000000000 WHERE message_id = 'm0'")
    assert await database.relay(broker, batch=10).drain() == 1
    assert broker.numbers() == [1000]


async def test_people_ask_for_a_state_that_there_is(database: Database, broker: FakeBroker) -> None:
    with pytest.raises(InvalidOption, match="pending, waiting, parked, published"):
        database.relay(broker).list("lost")  # type: ignore[arg-type]


async def test_an_error_may_say_anything(database: Database, broker: FakeBroker) -> None:
    database.send_numbers([1])
    broker.refuse = lambda packet: ValueError("\0 \ud800 \x1b[31m " + "ü" * 5000)
    await database.relay(broker, retry=Retry(1)).drain()
    assert database.states() == {"parked": 1}
