"""Whose a delivery is, and what its attempt is, with a stand-in for the connection."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pamqp.commands
import pamqp.frame
import pytest

from effectonce.backends.rabbitmq.consumer import MAX_PREFETCH, RabbitMQConsumer, _parse_count
from effectonce.backends.rabbitmq.endpoint import RabbitMQEndpoint
from effectonce.backends.rabbitmq.packets import DEAD_LETTER_ID
from effectonce.backends.rabbitmq.properties import copy_properties, make_properties, read_properties, value_as_text
from effectonce.backends.rabbitmq.queues import QueueDeclarations, QueueType
from effectonce.errors import BrokerUnavailable
from effectonce.values.urls import Address


class Channel:
    """A channel that consumes; it notes what was sent on it."""

    commands = pamqp.commands
    number = 1

    def __init__(self) -> None:
        self.lost: Exception | None = None
        self.connection: Any = SimpleNamespace(lost=None, write=self.write)
        self.settled: list[tuple[str, list[int]]] = []
        self.calls: list[Any] = []
        self.on_delivery: Any = None
        self.on_lost: Any = None

    async def call(self, *commands: Any) -> list[Any]:
        self.calls += commands
        return [SimpleNamespace(message_count=0)]

    def write(self, data: bytes) -> None:
        kind, tags = "", []
        while data:
            count, _, frame = pamqp.frame.unmarshal(data)
            kind, data = frame.name, data[count:]
            tags.append(frame.delivery_tag)
            assert kind == "Basic.Ack" or frame.requeue
        if tags:
            self.settled.append((kind, tags))

    def deliver(self, *bodies: bytes, **headers: str | int) -> None:
        for tag, body in enumerate(bodies, 1):
            self.on_delivery(tag, bytes(12) + make_properties("id", headers.items()), body)

    def lose(self, *, connection: bool) -> None:
        self.lost = BrokerUnavailable("lost")
        self.connection.lost = self.lost if connection else None
        self.on_lost(self.lost)


class Copies:
    """Publishes copies, each with the next of ``outcomes``."""

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes, dict[str, str]]] = []
        self.outcomes: list[Exception | None] = []

    async def publish(self, exchange: str, queue: str, contents: Any, declare: Any) -> list[Exception | None]:
        for properties, body in contents:
            self.published.append((queue, body, read_properties(bytes(12) + properties).headers))
        return self.outcomes or [None] * len(contents)

    async def close(self) -> None:
        pass


class ConsumerUnderTest:
    def __init__(self, queue_type: QueueType = "quorum", prefetch: int = 10) -> None:
        queues = QueueDeclarations(RabbitMQEndpoint(Address("amqp://h")), queue_type, "", True)
        self.consumer: Any = RabbitMQConsumer(queues, "q", "g", prefetch)
        self.channels: list[Channel] = []
        self.copies = self.consumer._copies = Copies()
        self.consumer._connection._open = self._open

    async def _open(self) -> Any:
        async def close() -> None:
            pass

        return SimpleNamespace(lost=None, open_channel=self._open_channel, close=close)

    async def _open_channel(self) -> Channel:
        self.channels.append(Channel())
        return self.channels[-1]

    async def receive(self, *bodies: bytes, **headers: str | int) -> list[Any]:
        await self.consumer.receive(0, 0.0)
        self.channels[-1].deliver(*bodies, **headers)
        return list(await self.consumer.receive(len(bodies), 5.0))


@pytest.fixture
def under_test() -> ConsumerUnderTest:
    return ConsumerUnderTest()


# -- attempts


async def attempt(queue_type: QueueType, **headers: str | int) -> int:
    (delivery,) = await ConsumerUnderTest(queue_type).receive(b"x", **headers)
    number: int = delivery.attempt
    return number


async def test_a_quorum_queue_counts_its_deliveries_and_those_before_a_delay() -> None:
    assert await attempt("quorum") == 1
    assert await attempt("quorum", **{"x-delivery-count": 2}) == 3
    assert await attempt("quorum", **{"x-delivery-count": 2, "eo-attempts": "4"}) == 7
    # RabbitMQ 4.3 counts what a consumer gave back as acquired only.
    assert await attempt("quorum", **{"x-acquired-count": 3}) == 4
    assert await attempt("quorum", **{"x-delivery-count": 1, "x-acquired-count": 3, "eo-attempts": "4"}) == 8


async def test_a_classic_queue_does_not_count() -> None:
    assert await attempt("classic", **{"x-delivery-count": 2, "eo-attempts": "4"}) == 0


@pytest.mark.parametrize(
    ("value", "count"),
    [("0", 0), (7, 7), ("999999999", 999_999_999), ("1234567890", 0), ("-1", 0), ("٣", 0), (None, 0)],
)
def test_a_count_of_another_client_that_is_no_number_is_none(value: Any, count: int) -> None:
    assert _parse_count(value) == count


# -- receiving


async def test_a_receive_returns_as_many_as_it_was_asked_for(under_test: ConsumerUnderTest) -> None:
    await under_test.consumer.receive(0, 0.0)
    under_test.channels[0].deliver(b"1", b"2", b"3")
    pages = [await under_test.consumer.receive(2, 0.0) for _ in range(3)]
    assert [[delivery.packet.body for delivery in page] for page in pages] == [[b"1", b"2"], [b"3"], []]


async def test_a_receive_waits_for_a_message_and_no_longer(under_test: ConsumerUnderTest) -> None:
    receiving = asyncio.create_task(under_test.consumer.receive(1, 60.0))
    await asyncio.sleep(0.01)
    under_test.channels[0].deliver(b"1")
    assert len(await asyncio.wait_for(receiving, 5)) == 1


@pytest.mark.parametrize(("asked", "sent"), [(10, 10), (0, 1), (100_000, MAX_PREFETCH)])
async def test_the_prefetch_is_one_that_the_protocol_takes(asked: int, sent: int) -> None:
    under_test = ConsumerUnderTest(prefetch=asked)
    await under_test.consumer.receive(1, 0.0)
    (qos,) = (call for call in under_test.channels[0].calls if call.name == "Basic.Qos")
    assert qos.prefetch_count == sent


async def test_f56_after_its_channel_a_delivery_is_nobodys(under_test: ConsumerUnderTest) -> None:
    deliveries = await under_test.receive(b"1")
    under_test.channels[0].lose(connection=False)
    assert await under_test.consumer.ack(deliveries) == [False]
    again = await under_test.receive(b"1")  # on a new channel, with the same tag
    assert await under_test.consumer.ack(deliveries) == [False]
    assert await under_test.consumer.extend(again, 1.0) == [True]
    assert under_test.channels[1].settled == []


async def test_a_lost_connection_is_the_error_of_one_receive(under_test: ConsumerUnderTest) -> None:
    await under_test.receive(b"1")
    under_test.channels[0].lose(connection=True)
    with pytest.raises(BrokerUnavailable, match="deliveries of q stopped"):
        await under_test.consumer.receive(1, 60.0)
    assert await under_test.consumer.receive(1, 0.0) == []


# -- settling


async def test_a_delivery_is_settled_once(under_test: ConsumerUnderTest) -> None:
    first, second = await under_test.receive(b"1", b"2")
    assert await under_test.consumer.ack([first]) == [True]
    assert await under_test.consumer.ack([first, second]) == [False, True]
    assert await under_test.consumer.extend([first, second], 1.0) == [False, False]
    assert under_test.channels[0].settled == [("Basic.Ack", [1]), ("Basic.Ack", [2])]


async def test_what_was_never_received_cannot_be_settled(under_test: ConsumerUnderTest) -> None:
    deliveries = await under_test.receive(b"1")
    await under_test.consumer.close()
    assert await under_test.consumer.ack(deliveries) == [False]


async def test_a_nacked_message_is_requeued_or_waits_for_its_delay(under_test: ConsumerUnderTest) -> None:
    first, second = await under_test.receive(b"1", b"2")
    assert await under_test.consumer.nack([first]) == [True]
    assert await under_test.consumer.nack([first, second], 0.25) == [False, True]
    assert under_test.channels[0].settled == [("Basic.Nack", [1]), ("Basic.Ack", [2])]
    assert under_test.copies.published == [("q.delay.300", b"2", {"eo-attempts": "1"})]


async def test_only_a_message_whose_copy_was_confirmed_is_acked(under_test: ConsumerUnderTest) -> None:
    deliveries = await under_test.receive(b"1", b"2", b"3")
    under_test.copies.outcomes = [None, BrokerUnavailable("full"), None]
    with pytest.raises(BrokerUnavailable, match="full"):
        await under_test.consumer.nack(deliveries, 1.0)
    assert under_test.channels[0].settled == [("Basic.Ack", [1, 3])]
    assert await under_test.consumer.extend(deliveries, 1.0) == [False, True, False]


async def test_a_dead_letter_has_the_cause_and_an_id_of_its_own(under_test: ConsumerUnderTest) -> None:
    first, second = await under_test.receive(b"1", b"2", shop="x")
    assert await under_test.consumer.dead_letter(first, {"eo-dead": "why"}) is True
    assert await under_test.consumer.dead_letter(first, {"eo-dead": "why"}) is False
    assert await under_test.consumer.dead_letter(second, {}) is True
    ids = [headers.pop(DEAD_LETTER_ID) for _, _, headers in under_test.copies.published]
    assert len(set(ids)) == 2
    assert under_test.copies.published[0] == ("q.dead", b"1", {"eo-dead": "why", "shop": "x"})


# -- copies of messages


def test_a_copy_leaves_out_what_the_server_wrote_or_would_act_upon() -> None:
    import pika

    sent = pika.BasicProperties(
        message_id="id",
        expiration="1000",
        user_id="shop",
        content_type="text/plain",
        priority=3,
        delivery_mode=1,
        headers={"CC": "other", "BCC": "other", "x-death": "1", "kept": 7, "replaced": "old"},
    )
    copy = copy_properties(bytes(12) + b"".join(sent.encode()), {"replaced": "new", "type": "shop"})
    read = pika.BasicProperties().decode(copy)
    assert (read.message_id, read.expiration, read.user_id, read.content_type) == ("id", None, None, "text/plain")
    assert (read.priority, read.delivery_mode, read.type) == (3, 2, "shop")
    assert read.headers == {"kept": 7, "replaced": "new"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (b"\xff", "\\xff"),
        (bytearray(b"b"), "b"),
        (True, "true"),
        (False, "false"),
        (None, ""),
        (1.5, "1.5"),
        ({"a": [1]}, '{"a":[1]}'),
        ([], "[]"),
    ],
)
def test_a_header_of_any_type_is_text(value: Any, text: str) -> None:
    assert value_as_text(value) == text


def test_a_message_without_an_id_or_headers_has_none() -> None:
    read = read_properties(bytes(12) + make_properties("", []))
    assert (read.id, read.headers, read.numbers, read.server_headers) == ("", {}, set(), {})
