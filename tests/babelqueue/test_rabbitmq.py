"""Queues of BabelQueue on RabbitMQ: plain durable ones, with the real package on the other side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import babelqueue
import pika
import pytest
from babelqueue import EnvelopeCodec, idempotency
from babelqueue.headers import headers_from_context
from msgspec.structs import replace

import effectonce as eo
from effectonce.babelqueue import BabelQueue
from effectonce.envelopes import Signed
from tests.worker.bench import serving, until

from .test_redis_lists import GO, TRACE, URN

PAYMENT = {"payment_id": "pay_1"}


class Both:
    """One queue, with our worker at one end and the real package at the other; each charges what it is sent."""

    def __init__(self, url: str, queue: str) -> None:
        self.queue = queue
        self.broker = eo.connect_broker(f"{url}?queue_type=classic", envelope=BabelQueue())
        self.store = eo.connect("memory://")
        self.events: list[str] = []
        self.store.add_hook(lambda event: self.events.append(event.kind))
        self.worker = eo.Worker(self.broker, store=self.store, name=queue)
        self.worker.handler(queue, type=URN)(self.charge)
        self.messages: list[eo.Message[Any]] = []
        self.theirs = babelqueue.BabelQueue(url, queue=queue, dead_letter=True, max_attempts=3)
        self.theirs.register(URN, idempotency.wrap(idempotency.InMemoryStore(), self.charge_there))
        self.handled: list[Any] = []
        self.failures = 0
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()

    async def charge(self, message: eo.Message[Any]) -> None:
        self.messages.append(message)

    def charge_there(self, data: dict[str, Any], meta: dict[str, Any], envelope: dict[str, Any]) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no funds")
        self.handled.append((data, meta, envelope, dict(headers_from_context())))

    async def publish(self, *messages: eo.Message[Any]) -> None:
        await self.broker.backend.declare(self.queue, group=self.queue)
        await self.broker.apublish(self.queue, messages)

    def consume_theirs(self) -> int:
        count: int = self.theirs.consume(max_messages=20, timeout=0.02, handle_signals=False)
        return count

    async def work(self, *kinds: str) -> None:
        """Our worker, until all of ``kinds`` have happened."""
        async with serving(self.worker):
            await until(lambda: all(self.events.count(kind) >= kinds.count(kind) for kind in kinds))

    def left(self) -> int:
        return int(self.channel.queue_declare(self.queue, passive=True).method.message_count)


@pytest.fixture
async def both(rabbitmq_url: str, unique_name: str) -> AsyncIterator[Both]:
    made = Both(rabbitmq_url, unique_name)
    yield made
    await made.broker.aclose()
    await made.store.aclose()
    made.theirs.transport.close()
    made.connection.close()


async def test_our_duplicate_payment_is_charged_once_by_their_guard(both: Both) -> None:
    message = eo.Message(type=URN, data={**PAYMENT, "note": "☕"}, trace_id="trace-1")
    await both.publish(message, message)
    assert both.consume_theirs() == 2
    ((data, meta, envelope, _),) = both.handled
    assert data == message.data
    assert (meta["id"], meta["queue"], envelope["trace_id"]) == (message.id, both.queue, "trace-1")
    assert both.left() == 0


async def test_their_duplicate_payment_is_charged_once_by_our_worker(both: Both) -> None:
    made = EnvelopeCodec.make(URN, PAYMENT, queue=both.queue, trace_id="trace-1")
    for _ in range(2):
        both.theirs.transport.publish(both.queue, EnvelopeCodec.encode(made))
    await both.work("completed", "replayed")
    (message,) = both.messages
    assert (message.data, message.id, message.key) == (PAYMENT, made["meta"]["id"], made["meta"]["id"])
    assert (message.trace_id, message.attempt) == ("trace-1", 1)
    assert both.left() == 0


async def test_headers_beside_the_envelope_arrive_in_both_directions(both: Both) -> None:
    await both.publish(eo.Message(type=URN, data=PAYMENT, headers={"traceparent": TRACE}))
    both.consume_theirs()
    assert both.handled[0][3]["traceparent"] == TRACE
    both.theirs.publish_with_headers(URN, PAYMENT, {"traceparent": TRACE})
    await both.work("completed")
    assert both.messages[0].headers["traceparent"] == TRACE


async def test_our_key_survives_their_retry(both: Both) -> None:
    """They publish it anew, without our headers; what is ours is in the envelope."""
    message = eo.Message(type=URN, data=PAYMENT, key="order-7", ordering_key="customer-3")
    await both.publish(message, message)
    both.failures = 1
    both.theirs.consume(max_messages=1, timeout=0.02, handle_signals=False)
    assert both.handled == []
    await both.work("completed", "replayed")
    (found,) = both.messages
    assert (found.id, found.key, found.ordering_key) == (message.id, "order-7", "customer-3")
    assert both.left() == 0


async def test_a_signed_message_is_verified_after_its_way_through_the_broker(both: Both) -> None:
    """RabbitMQ carries the contract's headers under other names, and not all of them."""
    signed = Signed(BabelQueue(), keys={"k1": b"0123456789abcdef"})
    message = eo.Message(type=URN, data=PAYMENT, ordering_key="customer-3", headers={"x": "y"})
    await both.broker.backend.declare(both.queue, group="g")
    await both.broker.apublish(both.queue, message, envelope=signed)
    consumer = both.broker.backend.consumer(both.queue, group="g", prefetch=1)
    (delivery,) = await consumer.receive(1, 10.0)
    found = signed.decode(delivery.packet)
    assert (found.id, found.data, found.ordering_key, found.headers["x"]) == (message.id, PAYMENT, "customer-3", "y")
    for forged in ({**delivery.packet.headers, "x": "z"}, {**delivery.packet.headers, "added": "1"}):
        with pytest.raises(eo.ForgedMessage):
            signed.decode(replace(delivery.packet, headers=forged))
    await consumer.close()


def send_as_go(both: Both, body: bytes, **properties: Any) -> None:
    both.channel.queue_declare(both.queue, durable=True)
    written = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
        app_id="babelqueue",
        **properties,
    )
    both.channel.basic_publish("", both.queue, body, written)


async def test_a_duplicate_payment_as_go_writes_it_is_charged_once_by_our_worker(both: Both) -> None:
    headers = {"x-attempts": 0, "x-schema-version": 1, "x-source-lang": "go"}
    id = "0b6e4ac5-93e0-4a39-8c4c-8e1ab7b2b7f1"
    for _ in range(2):
        send_as_go(both, GO, type=URN, correlation_id="trace-1", message_id=id, headers=headers)
    await both.work("completed", "replayed")
    (message,) = both.messages
    assert message.data == {"amount": 4200, "note": "a<b & \u2028 ☕", "payment_id": "pay_1"}
    assert (message.id, message.key, message.trace_id, message.attempt) == (id, id, "trace-1", 1)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"not json", None),
        # What Go makes of a body that it cannot read and gives back: an envelope with nothing in it.
        (
            b'{"job":"","trace_id":"","data":null,"meta":{"id":"","queue":"","lang":"","schema_version":0,'
            b'"created_at":0},"attempts":1}',
            {"x-attempts": 1},
        ),
        (GO.replace(b'"schema_version":1', b'"schema_version":2'), {"x-schema-version": 2}),
    ],
    ids=["no JSON", "emptied", "another version"],
)
async def test_what_is_no_message_is_given_up_with_its_exact_bytes(
    both: Both, body: bytes, headers: dict[str, Any] | None
) -> None:
    send_as_go(both, body, headers=headers)
    await both.work("dead_lettered")
    (dead_letter,) = await eo.DeadLetterQueue(both.worker, both.queue).alist()
    assert dead_letter.packet.body == body
    assert dead_letter.cause.why == "undecodable"
    assert both.messages == []
    assert both.left() == 0
