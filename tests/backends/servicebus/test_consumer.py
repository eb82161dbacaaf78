"""Queues without sessions, with a stand-in for the SDK: whose a delivery is, batches, and pages of dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus.amqp import AmqpMessageBodyType
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusConnectionError

from effectonce.backends.common import visibility_timeout
from effectonce.backends.servicebus import consumer as consumer_module
from effectonce.backends.servicebus.broker import ServiceBusPublisher
from effectonce.backends.servicebus.client import ServiceBusRefusal
from effectonce.backends.servicebus.consumer import ServiceBusConsumer
from effectonce.backends.servicebus.dead_letters import MAX_BATCH, ServiceBusDeadLetters
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable


class Message:
    delivery_count = 0
    message_id = subject = correlation_id = content_type = None
    body_type = AmqpMessageBodyType.DATA

    def __init__(self, number: int, lock_s: float = 60.0) -> None:
        self.sequence_number = number
        self.body = [b"%d" % number]
        self.application_properties: dict[str, Any] = {}
        self.locked_until_utc = datetime.now(UTC) + timedelta(seconds=lock_s)


class Batch:
    """A batch of the SDK that has room for messages with two bytes together."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.sessions: set[str | None] = set()

    def add_message(self, message: Any) -> None:
        body = b"".join(message.body)
        if len(b"".join(self.bodies) + body) > 2:
            raise ValueError("no room")
        self.bodies.append(body)
        self.sessions.add(message.session_id)


class ServiceBus:
    """A namespace, the SDK's client for it, and its sender and receiver."""

    timeout = 5.0

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.calls: list[tuple[str, int]] = []
        self.scheduled: list[tuple[Any, datetime]] = []
        self.sent: list[Batch] = []
        self.peeks: list[int] = []  # how many messages each peek asked for
        self.error: Exception | None = None
        self.opened = 0

    def client(self) -> ServiceBus:
        return self

    def get_queue_receiver(self, queue: str, sub_queue: object = None) -> ServiceBus:
        return self

    def get_queue_sender(self, queue: str) -> ServiceBus:
        return self

    async def __aenter__(self) -> ServiceBus:
        self.opened += 1
        return self

    async def close(self) -> None:
        pass

    async def receive_messages(self, limit: int, max_wait_time: float) -> list[Message]:
        received, self.messages = self.messages[:limit], self.messages[limit:]
        return received

    async def peek_messages(self, max_message_count: int, sequence_number: int) -> list[Message]:
        self.peeks.append(max_message_count)
        return [message for message in self.messages if message.sequence_number >= sequence_number][:max_message_count]

    async def complete_message(self, message: Message) -> None:
        self._note("completed", message)

    async def abandon_message(self, message: Message) -> None:
        self._note("abandoned", message)

    async def renew_message_lock(self, message: Message) -> None:
        self._note("renewed", message)

    async def schedule_messages(self, message: Any, due: datetime) -> None:
        self.scheduled.append((message, due))

    async def create_message_batch(self) -> Batch:
        return Batch()

    async def send_messages(self, batch: Batch) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append(batch)

    def _note(self, call: str, message: Message) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append((call, message.sequence_number))


class Clock:
    """The machine's clock, which stands still until a test advances it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(consumer_module, "time", clock)
    monkeypatch.setattr(visibility_timeout.UnsettledDeliveries.__init__, "__defaults__", (clock.monotonic,))
    monkeypatch.setattr(visibility_timeout, "time", clock)
    return clock


@asynccontextmanager
async def consuming(*messages: Message, window: float = 60.0) -> AsyncIterator[tuple[ServiceBusConsumer, ServiceBus]]:
    service: Any = ServiceBus(*messages)
    consumer = ServiceBusConsumer(service, "q", 20, window)
    try:
        yield consumer, service
    finally:
        await consumer.close()


# -- whose a delivery is


async def test_a_delivery_is_settled_once() -> None:
    async with consuming(Message(1)) as (consumer, service):
        deliveries = await consumer.receive(5, 0.0)
        assert await consumer.ack(deliveries) == [True]
        assert await consumer.ack(deliveries) == [False]
    assert service.calls == [("completed", 1)]


@pytest.mark.parametrize(("lock_s", "window"), [(60.0, 80.0), (300.0, 60.0)])
async def test_a_delivery_is_ours_until_the_first_time_at_which_its_lock_may_end(
    clock: Clock, lock_s: float, window: float
) -> None:
    for later_s, is_ours in ((59.0, True), (60.1, False)):
        async with consuming(Message(1, lock_s), window=window) as (consumer, _):
            deliveries = await consumer.receive(1, 0.0)
            clock.now += later_s
            assert await consumer.ack(deliveries) == [is_ours]


async def test_an_extended_delivery_is_ours_for_another_window(clock: Clock) -> None:
    async with consuming(Message(1)) as (consumer, service):
        deliveries = await consumer.receive(1, 0.0)
        clock.now += 50
        assert await consumer.extend(deliveries, 60.0) == [True]
        clock.now += 50
        assert await consumer.ack(deliveries) == [True]
        assert await consumer.extend(deliveries, 60.0) == [False]
    assert service.calls == [("renewed", 1), ("completed", 1)]


async def test_f56_a_lock_that_the_service_says_is_lost_is_ours_no_more() -> None:
    async with consuming(Message(1)) as (consumer, service):
        deliveries = await consumer.receive(1, 0.0)
        service.error = MessageLockLostError(message="late")
        assert await consumer.extend(deliveries, 60.0) == [False]
        service.error = None
        assert await consumer.ack(deliveries) == [False]
        assert service.calls == []


async def test_f56_what_a_lost_link_has_received_is_not_settled_on_the_next_one() -> None:
    async with consuming(Message(1), Message(2)) as (consumer, service):
        first, second = await consumer.receive(2, 0.0)
        service.error = ServiceBusConnectionError(message="gone")
        with pytest.raises(BrokerUnavailable):
            await consumer.ack([first])
        service.error = None
        assert await consumer.ack([first, second]) == [False, False]


async def test_a_nacked_message_is_given_back_or_a_copy_of_it_scheduled() -> None:
    async with consuming(Message(1), Message(2)) as (consumer, service):
        first, second = await consumer.receive(2, 0.0)
        asked_at = datetime.now(UTC)
        assert await consumer.nack([first]) == [True]
        assert await consumer.nack([first, second], 60.0) == [False, True]
        ((copy, due),) = service.scheduled
        assert timedelta(seconds=60) <= due - asked_at < timedelta(seconds=70)
        assert copy.application_properties["eo-deliveries"] == 1
    assert service.calls == [("abandoned", 1), ("completed", 2)]


async def test_close_gives_back_what_is_unsettled() -> None:
    async with consuming(Message(1), Message(2)) as (consumer, service):
        first, _ = await consumer.receive(2, 0.0)
        await consumer.ack([first])
    assert service.calls == [("completed", 1), ("abandoned", 2)]


async def test_a_consumer_that_cannot_give_back_is_closed_all_the_same() -> None:
    async with consuming(Message(1)) as (consumer, service):
        await consumer.receive(1, 0.0)
        service.error = ServiceBusConnectionError(message="gone")


# -- publishing in batches


async def publish(
    service: ServiceBus, *packets: Packet, sessions: bool = False
) -> tuple[list[Any], list[tuple[bytes, ...]]]:
    namespace: Any = service
    outcomes = list(await ServiceBusPublisher(namespace, sessions).publish("q", packets))
    return outcomes, [tuple(batch.bodies) for batch in service.sent]


async def test_a_full_batch_is_sent_and_the_next_one_begun() -> None:
    outcomes, batches = await publish(ServiceBus(), *(Packet(body=body) for body in (b"a", b"b", b"c")))
    assert outcomes == [None] * 3
    assert batches == [(b"a", b"b"), (b"c",)]


async def test_f44_a_message_that_no_batch_has_room_for_is_refused_alone() -> None:
    outcomes, batches = await publish(ServiceBus(), *(Packet(body=body) for body in (b"a", b"big", b"c")))
    assert [type(outcome) for outcome in outcomes] == [type(None), ServiceBusRefusal, type(None)]
    assert batches == [(b"a",), (b"c",)]


async def test_a_batch_goes_to_one_session() -> None:
    packets = [Packet(body=body, ordering_key=key) for body, key in ((b"a", "x"), (b"b", "x"), (b"c", "y"))]
    service = ServiceBus()
    assert (await publish(service, *packets, sessions=True))[1] == [(b"a", b"b"), (b"c",)]
    assert [batch.sessions for batch in service.sent] == [{"x"}, {"y"}]


async def test_nothing_to_publish_is_nothing_sent() -> None:
    assert await publish(ServiceBus()) == ([], [])


async def test_f45_where_no_batch_is_answered_nothing_is_known() -> None:
    service = ServiceBus()
    service.error = ServiceBusConnectionError(message="gone")
    with pytest.raises(BrokerUnavailable):
        await publish(service, Packet(body=b"a"), Packet(body=b"bb"))


async def test_a_publisher_keeps_its_link_to_a_queue() -> None:
    service: Any = ServiceBus()
    publisher = ServiceBusPublisher(service, False)
    for _ in range(2):
        await publisher.publish("q", [Packet(body=b"a")])
    assert service.opened == 1
    await publisher.close()


# -- dead letters


def dead_letters_of(service: Any) -> ServiceBusDeadLetters:
    return ServiceBusDeadLetters(service, "q")


async def test_dead_letters_are_listed_page_by_page() -> None:
    dead_letters = dead_letters_of(ServiceBus(*(Message(n) for n in (2, 3, 5))))
    page, cursor = await dead_letters.browse(2)
    assert ([dead_letter.id for dead_letter in page], cursor) == (["2", "3"], "3")
    page, cursor = await dead_letters.browse(2, cursor)
    assert ([dead_letter.id for dead_letter in page], cursor) == (["5"], None)
    page, cursor = await dead_letters.browse(3)
    assert (len(page), cursor) == (3, None)


async def test_more_dead_letters_than_a_peek_returns_are_listed_and_counted() -> None:
    service = ServiceBus(*(Message(n) for n in range(1, MAX_BATCH + 5)))
    dead_letters = dead_letters_of(service)
    assert await dead_letters.count() == MAX_BATCH + 4
    page, cursor = await dead_letters.browse(MAX_BATCH + 2)
    assert (len(page), cursor) == (MAX_BATCH + 2, page[-1].id)
    assert max(service.peeks) == MAX_BATCH


async def test_removing_dead_letters_gives_back_those_before_them() -> None:
    service = ServiceBus(*(Message(n) for n in (1, 2, 3)))
    assert await dead_letters_of(service).remove(["2", "9"]) == 1
    assert sorted(service.calls) == [("abandoned", 1), ("abandoned", 3), ("completed", 2)]


async def test_removing_stops_at_the_last_one_that_is_wanted() -> None:
    service = ServiceBus(*(Message(n) for n in range(1, MAX_BATCH + 5)))
    assert await dead_letters_of(service).remove(["1"]) == 1
    assert len(service.messages) == 4  # they were not even received


async def test_removing_nothing_asks_for_nothing() -> None:
    service = ServiceBus(Message(1))
    assert await dead_letters_of(service).remove([]) == 0
    assert service.opened == 0
