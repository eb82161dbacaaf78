"""Queues of BabelQueue on Redis: the contract on its layout, and the real package on the other side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import babelqueue
import pytest
import redis
from babelqueue import EnvelopeCodec, idempotency
from babelqueue.headers import headers_from_context
from babelqueue.redrive import redrive
from msgspec import structs

import effectonce as eo
from effectonce.babelqueue import BabelQueue
from effectonce.babelqueue.redis_lists import RedisBabelQueueBackend
from effectonce.contracts import Delivery, Packet
from effectonce.envelopes import Signed
from effectonce.message import BYPASS_PREFIX, REDRIVEN_HEADER
from effectonce.testing.suites import Site, broker_suite
from effectonce.values.urls import Address
from tests.harness.proxy import FaultProxy
from tests.worker.bench import serving, until

URN = "urn:babel:payments:charge"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
FIXTURES = Path(__file__).parent / "fixtures"
DEAD = {"eo-dead": '{"why":"raised","text":"no funds","error":"shop:Declined","attempts":3}'}


def backend_at(url: str, **options: str) -> RedisBabelQueueBackend:
    extra = "&".join(f"{name}={value}" for name, value in {"ack_window": "0.6", **options}.items())
    return RedisBabelQueueBackend(Address(f"{url.replace('redis:', 'redis+babelqueue:')}?{extra}"))


@pytest.fixture
def site(redis_url: str) -> Iterator[Site]:
    host, _, port = redis_url.removeprefix("redis://").partition("/")[0].partition(":")
    with FaultProxy(int(port), host) as proxy:
        yield Site(backend=backend_at(proxy.through(redis_url)), cut=proxy.reset)


TestContract = broker_suite(quiet=0.15)


# -- both ends


class Both:
    """One queue, with us at one end and the real package at the other."""

    def __init__(self, url: str, queue: str) -> None:
        self.queue = queue
        self.redis = redis.Redis.from_url(url)
        self.broker = eo.connect_broker(
            f"{url.replace('redis:', 'redis+babelqueue:')}?ack_window=5s", envelope=BabelQueue()
        )
        self.consumer = self.broker.backend.consumer(queue, group="g", prefetch=10)
        self.theirs = babelqueue.BabelQueue(url, queue=queue, dead_letter=True, max_attempts=2)
        self.handled: list[Any] = []
        self.theirs.register(URN, self.handle)

    def handle(self, data: dict[str, Any], meta: dict[str, Any], envelope: dict[str, Any]) -> None:
        self.handled.append((data, meta, envelope, dict(headers_from_context())))

    def consume_theirs(self) -> int:
        count: int = self.theirs.consume(max_messages=20, timeout=0.02, handle_signals=False)
        return count

    async def ours(self, count: int) -> list[Delivery]:
        found: list[Delivery] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                found += await self.consumer.receive(count - len(found), 0.2)
        return found

    def keys(self) -> set[str]:
        """What is left of the queue in Redis."""
        found: Any = self.redis.keys(f"{self.queue}*")
        return {key.decode().removeprefix(self.queue) for key in found}


@pytest.fixture
async def both(redis_url: str, unique_name: str) -> AsyncIterator[Both]:
    made = Both(redis_url, unique_name)
    yield made
    await made.consumer.close()
    await made.broker.aclose()
    made.theirs.transport.close()
    made.redis.close()


async def test_their_consumer_handles_what_we_publish(both: Both) -> None:
    message = eo.Message(type=URN, data={"payment_id": "pay_1", "note": "☕"}, trace_id="trace-1")
    await both.broker.apublish(both.queue, message)
    assert both.consume_theirs() == 1
    ((data, meta, envelope, headers),) = both.handled
    assert data == message.data
    assert (meta["id"], meta["queue"], envelope["trace_id"]) == (message.id, both.queue, "trace-1")
    assert headers == {}
    assert both.keys() == set()


async def test_we_handle_what_their_producer_publishes(both: Both) -> None:
    id = both.theirs.publish(URN, {"payment_id": "pay_1"}, trace_id="trace-1")
    (delivery,) = await both.ours(1)
    message = BabelQueue().decode(delivery.packet)
    assert (message.id, message.key, message.type, message.trace_id) == (id, id, URN, "trace-1")
    assert (message.data, message.attempt, delivery.packet.id) == ({"payment_id": "pay_1"}, 1, id)
    assert list(await both.consumer.ack([delivery])) == [True]
    assert both.keys() == set()


async def test_a_signed_message_is_verified_after_its_way_through_the_broker(both: Both) -> None:
    """An element of the list has no place for the contract's headers: they say again what is in the envelope."""
    signed = Signed(BabelQueue(), keys={"k1": b"0123456789abcdef"})
    message = eo.Message(type=URN, data={"payment_id": "pay_1"}, ordering_key="customer-3", headers={"x": "y"})
    await both.broker.apublish(both.queue, message, envelope=signed)
    (delivery,) = await both.ours(1)
    found = signed.decode(delivery.packet)
    assert (found.id, found.data, found.headers["x"]) == (message.id, {"payment_id": "pay_1"}, "y")
    with pytest.raises(eo.ForgedMessage):
        signed.decode(structs.replace(delivery.packet, body=delivery.packet.body.replace(b"pay_1", b"pay_2")))


async def test_the_element_is_the_envelope_byte_for_byte(both: Both) -> None:
    """Conformance `redis.payload_identity`: nothing around it, nothing in it."""
    body = (FIXTURES / "fixtures/order-created.json").read_bytes()
    packet = BabelQueue().encode(BabelQueue().decode(Packet(body=body)))
    publisher = both.broker.backend.publisher()
    await publisher.publish(both.queue, [packet])
    await publisher.close()
    assert both.redis.lrange(both.queue, 0, -1) == [packet.body]
    assert (await both.ours(1))[0].packet.body == packet.body
    await both.consumer.nack([])
    both.redis.rpush(both.queue, body)
    assert (await both.ours(1))[0].packet.body == body


async def test_headers_beside_the_envelope_arrive_in_both_directions(both: Both) -> None:
    await both.broker.apublish(both.queue, eo.Message(type=URN, data={}, headers={"traceparent": TRACE}))
    both.consume_theirs()
    assert both.handled[0][3] == {"traceparent": TRACE}
    both.theirs.publish_with_headers(URN, {}, {"traceparent": TRACE})
    (delivery,) = await both.ours(1)
    assert BabelQueue().decode(delivery.packet).headers["traceparent"] == TRACE


async def test_our_duplicate_payment_is_charged_once_by_their_guard(both: Both) -> None:
    charges: list[str] = []

    def charge(data: dict[str, Any], meta: dict[str, Any]) -> None:
        charges.append(data["payment_id"])

    both.theirs.register(URN, idempotency.wrap(idempotency.InMemoryStore(), charge))
    message = eo.Message(type=URN, data={"payment_id": "pay_1"})
    await both.broker.apublish(both.queue, [message, message])
    assert both.consume_theirs() == 2
    assert charges == ["pay_1"]


async def test_their_duplicate_payment_is_charged_once_by_our_guard(both: Both) -> None:
    charges: list[str] = []
    with eo.connect("memory://") as store:

        @eo.once(store, scope="charge")
        def charge(message: eo.Message[Any]) -> None:
            charges.append(message.data["payment_id"])

        body = EnvelopeCodec.encode(EnvelopeCodec.make(URN, {"payment_id": "pay_1"}, queue=both.queue))
        for _ in range(2):
            both.theirs.transport.publish(both.queue, body)
        for delivery in await both.ours(2):
            charge(BabelQueue().decode(delivery.packet))
    assert charges == ["pay_1"]


#: An element as their Go SDK writes it: the data sorted, U+2028 escaped, and HTML not.
GO = (
    '{"job":"urn:babel:payments:charge","trace_id":"trace-1",'
    '"data":{"amount":4200,"note":"a<b & \\u2028 ☕","payment_id":"pay_1"},'
    '"meta":{"id":"0b6e4ac5-93e0-4a39-8c4c-8e1ab7b2b7f1","queue":"payments","lang":"go",'
    '"schema_version":1,"created_at":1760000000000},"attempts":0}'
).encode()


def framed_by_go(body: bytes) -> bytes:
    """Its frame, in which HTML is escaped."""
    text = json.dumps({"__bq_frame": 1, "headers": {"traceparent": TRACE}, "body": body.decode()}, ensure_ascii=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text.encode()


@pytest.mark.parametrize("elements", [[GO, GO], [GO, framed_by_go(GO)]], ids=["bare", "framed"])
async def test_a_duplicate_payment_as_go_writes_it_is_charged_once_by_our_worker(
    both: Both, elements: list[bytes]
) -> None:
    both.redis.rpush(both.queue, *elements)
    messages: list[eo.Message[Any]] = []
    events: list[str] = []
    with eo.connect("memory://") as store:
        store.add_hook(lambda event: events.append(event.kind))
        worker = eo.Worker(both.broker, store=store, name="billing")

        @worker.handler(both.queue, type=URN)
        async def charge(message: eo.Message[Any]) -> None:
            messages.append(message)

        async with serving(worker):
            await until(lambda: {"completed", "replayed"} <= set(events) and both.keys() == set())
    (message,) = messages
    assert message.data == {"amount": 4200, "note": "a<b & \u2028 ☕", "payment_id": "pay_1"}
    assert message.id == message.key == "0b6e4ac5-93e0-4a39-8c4c-8e1ab7b2b7f1"


async def test_of_two_equal_elements_a_consumer_without_deadlines_keeps_its_own(both: Both) -> None:
    """Their Go SDK reserves by BLMOVE alone: what it holds has no deadline, so that we leave it, and settle ours."""
    both.redis.rpush(both.queue, GO, GO)
    assert both.redis.lmove(both.queue, f"{both.queue}:processing", "LEFT", "RIGHT") == GO
    (delivery,) = await both.ours(1)
    assert list(await both.consumer.ack([delivery])) == [True]
    assert both.redis.lrange(f"{both.queue}:processing", 0, -1) == [GO]
    assert await both.consumer.receive(1, 0.05) == []
    assert both.redis.lrem(f"{both.queue}:processing", 1, GO.decode()) == 1
    assert both.keys() == set()


async def test_what_they_left_reserved_comes_to_us_and_what_we_left_to_them(both: Both) -> None:
    """A killed process at either end: another consumer takes over when the deadline is past."""
    id = both.theirs.publish(URN, {"n": 1})
    received = both.theirs.transport.pop(both.queue, 0.1)
    assert received is not None
    both.redis.zadd(f"{both.queue}:processing:deadlines", {_member(both): 1})
    (delivery,) = await both.ours(1)
    assert delivery.packet.id == id
    both.redis.zadd(f"{both.queue}:processing:deadlines", {_member(both): 1})
    assert both.consume_theirs() == 1
    assert both.handled[0][1]["id"] == id
    assert list(await both.consumer.ack([delivery])) == [False]
    both.theirs.transport.ack(received)
    assert both.keys() == set()


def _member(both: Both) -> bytes:
    members: Any = both.redis.zrange(f"{both.queue}:processing:deadlines", 0, -1)
    (member,) = members
    assert isinstance(member, bytes)
    return member


async def test_a_nack_counts_where_they_count(both: Both) -> None:
    both.theirs.publish(URN, {"n": 1})
    await both.consumer.nack(await both.ours(1))
    (delivery,) = await both.ours(1)
    assert BabelQueue().decode(delivery.packet).attempt == 2
    await both.consumer.nack([delivery], 0.05)
    await asyncio.sleep(0.1)
    (delivery,) = await both.ours(1)
    await both.consumer.nack([delivery])
    both.consume_theirs()
    assert both.handled[0][2]["attempts"] == 3


async def test_a_nack_changes_nothing_but_the_count(both: Both) -> None:
    body = b'{"attempts":0, "job":"urn:x","n":12345678901234567890123,"e":1e400,"data":{"a":[ 1 ]}}'
    both.redis.rpush(both.queue, body)
    await both.consumer.nack(await both.ours(1))
    (delivery,) = await both.ours(1)
    assert (
        delivery.packet.body == b'{"attempts":1,"job":"urn:x","n":12345678901234567890123,"e":1e400,"data":{"a":[ 1 ]}}'
    )


# -- dead letters


async def test_our_dead_letter_is_one_of_theirs_and_their_redrive_sends_it_again(both: Both) -> None:
    message = eo.Message(type=URN, data={"n": 1}, headers={"traceparent": TRACE})
    await both.broker.apublish(both.queue, message)
    (delivery,) = await both.ours(1)
    assert await both.consumer.dead_letter(delivery, DEAD)
    (element,) = both.redis.lrange(f"{both.queue}.dlq", 0, -1)
    block = json.loads(element)["dead_letter"]
    wanted = {"reason": "failed", "error": "no funds", "exception": "shop:Declined", "attempts": 3, "lang": "python"}
    assert {name: block[name] for name in wanted} == wanted
    assert block["original_queue"] == both.queue
    result = redrive(both.theirs.transport, f"{both.queue}.dlq", timeout=0.01, bypass=True)
    assert (result.redriven, result.items[0].message_id) == (1, message.id)
    (again,) = await both.ours(1)
    found = BabelQueue().decode(again.packet)
    assert (found.id, found.headers[REDRIVEN_HEADER]) == (message.id, BYPASS_PREFIX)


async def test_their_dead_letter_is_one_of_ours(both: Both) -> None:
    def fail(data: dict[str, Any], meta: dict[str, Any]) -> None:
        raise RuntimeError("no funds")

    both.theirs.register(URN, fail)
    id = both.theirs.publish(URN, {"n": 1})
    while both.consume_theirs():
        pass
    dead = both.broker.backend.dead_letters(both.queue, group="g")
    ((dead_letter,), _) = await dead.browse(10)
    assert (dead_letter.packet.id, dead_letter.queue) == (id, both.queue)
    cause = json.loads(dead_letter.packet.headers["eo-dead"])
    assert (cause["why"], cause["text"], cause["attempts"]) == ("failed", "no funds", 2)
    assert "dead_letter" not in json.loads(dead_letter.packet.body)
    assert await dead.remove([dead_letter.id]) == 1
    await dead.close()


@pytest.mark.parametrize("body", [b"not json", b"\xff\xfe", b"", b"[1]", b' {"a": 1} ', b'{"dead_letter":{}}'])
async def test_a_poison_body_is_given_up_with_its_exact_bytes(both: Both, body: bytes) -> None:
    both.redis.rpush(both.queue, body)
    (delivery,) = await both.ours(1)
    assert delivery.packet.body == body
    with pytest.raises(eo.Undecodable):
        BabelQueue().decode(delivery.packet)
    assert await both.consumer.dead_letter(delivery, {"eo-dead": '{"why":"undecodable"}'})
    dead = both.broker.backend.dead_letters(both.queue, group="g")
    ((dead_letter,), _) = await dead.browse(10)
    await dead.close()
    assert dead_letter.packet.body == body
    (element,) = both.redis.lrange(f"{both.queue}.dlq", 0, -1)
    assert json.loads(element)["dead_letter"]["reason"] == "poison"


async def test_pages_of_dead_letters_hold_together_while_some_are_removed(both: Both) -> None:
    for n in range(6):
        both.redis.rpush(both.queue, b'{"n":%d}' % n)
        (delivery,) = await both.ours(1)
        await both.consumer.dead_letter(delivery, {})
    dead = both.broker.backend.dead_letters(both.queue, group="g")
    first, cursor = await dead.browse(3)
    await dead.remove([first[0].id, first[1].id])
    rest, end = await dead.browse(3, cursor)
    assert [dead_letter.packet.body for dead_letter in rest] == [b'{"n":3}', b'{"n":4}', b'{"n":5}']
    assert end is None
    await dead.close()


async def test_dead_letters_are_found_and_removed_among_hundreds(both: Both) -> None:
    dead = f"{both.queue}.dlq"
    both.redis.rpush(dead, *(EnvelopeCodec.encode(EnvelopeCodec.make(URN, {"n": n})) for n in range(250)))
    letters = both.broker.backend.dead_letters(both.queue, group="g")
    first_page, cursor = await letters.browse(220)
    assert (len(first_page), cursor is not None) == (220, True)
    assert await letters.remove([first_page[0].id, first_page[210].id, "not-there"]) == 2
    second_page, end = await letters.browse(220, cursor)
    assert (len(second_page), end) == (30, None)
    assert await letters.count() == 248
    assert await letters.remove([letter.id for letter in second_page]) == 30
    assert both.redis.llen(dead) == 218
    await letters.close()


async def test_a_page_starts_again_where_its_place_is_gone(both: Both) -> None:
    both.redis.rpush(f"{both.queue}.dlq", *(EnvelopeCodec.encode(EnvelopeCodec.make(URN, {"n": n})) for n in range(5)))
    letters = both.broker.backend.dead_letters(both.queue, group="g")
    first_page, cursor = await letters.browse(2)
    await letters.remove([first_page[1].id])
    again, _ = await letters.browse(2, cursor)
    assert again[0].id == first_page[0].id
    await letters.close()


def test_a_message_is_reserved_for_ninety_seconds_unless_the_url_says_otherwise() -> None:
    """As by BabelQueue's own consumers, whose ``retry_after`` is that."""
    assert RedisBabelQueueBackend(Address("redis+babelqueue://localhost")).capabilities.ack_window_s == 90.0
