"""Publishing and receiving: what is confirmed is delivered, unchanged, to each group once."""

from __future__ import annotations

import asyncio
import os
import time

from effectonce.contracts import Consumer, Delivery, Packet
from effectonce.testing.suites.expectations import expect, require, skip_unless

from .harness import BrokerHarness, bodies_of, make_packet, numbered_bodies

HEADERS = {
    "content-type": "application/json",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "ce-Mixed_Case.1": "kept",
    "empty": "",
    "unicode": "Café ☕ \U0001f600",
    "spaces": "  two  each side  ",
    "lines": "a\r\nb\tc",
    "long": "x" * 2000,
    **{f"n{n}": str(n) for n in range(12)},
}

# -- publishing


async def what_is_confirmed_is_delivered(h: BrokerHarness) -> None:
    """F45: `None` means that the broker has it."""
    consumer, deliveries = await h.make_deliveries(b"body 0", b"body 1", b"body 2")
    expect({delivery.queue for delivery in deliveries}, {h.queue}, "the queue of the deliveries")
    await h.expect_nothing(consumer, "all was delivered")


async def publishing_nothing_is_fine(h: BrokerHarness) -> None:
    await h.publish()


async def a_full_batch_is_confirmed_and_delivered_once(h: BrokerHarness) -> None:
    bodies = numbered_bodies(h.capabilities.batch)
    consumer, _ = await h.make_deliveries(*bodies, prefetch=len(bodies) + 10)
    await h.expect_nothing(consumer, "all was delivered")


async def bodies_are_delivered_byte_for_byte(h: BrokerHarness) -> None:
    """No broker reads a body: empty, binary, long, any Unicode."""
    large = min(h.capabilities.max_body or 200_000, 200_000)
    await h.make_deliveries(
        *(b"", b"\0", bytes(range(256)), "☕ naïve \u2028 \U0001f600".encode(), b"\xff\xfe", os.urandom(large // 2))
    )


async def headers_are_delivered_unchanged(h: BrokerHarness) -> None:
    await h.publish(Packet(body=b"b", headers=HEADERS, id="id-1"), Packet(body=b"b", id="id-2"))
    deliveries = await h.receive(await h.consumer(), 2)
    headers = {delivery.packet.id: dict(delivery.packet.headers) for delivery in deliveries}
    expect(headers, {"id-1": HEADERS, "id-2": {}}, "the headers of a packet with and of one without any")


async def id_and_ordering_key_travel_with_the_packet(h: BrokerHarness) -> None:
    sent = {("id ☕ 1", "Kunde ü/7"), ("id-2", None)}
    await h.publish(*(Packet(body=b"b", id=id, ordering_key=key) for id, key in sent))
    deliveries = await h.receive(await h.consumer(), 2)
    received = {(delivery.packet.id, delivery.packet.ordering_key) for delivery in deliveries}
    expect(received, sent, "id and ordering key")


async def queues_are_separate(h: BrokerHarness) -> None:
    here, there = await h.consumer(), await h.consumer(queue=f"{h.queue}-b")
    await h.publish(b"there", queue=f"{h.queue}-b")
    await h.expect_nothing(here, "it was published to another queue")
    await h.publish(b"here")
    await h.expect_deliveries(here, b"here")
    await h.expect_deliveries(there, b"there")


async def a_message_to_an_undeclared_queue_is_kept_or_refused(h: BrokerHarness) -> None:
    """F45: it is never confirmed and lost."""
    try:
        (outcome,) = await h.publisher().publish(h.queue, [make_packet(b"early")])
    except Exception:
        return
    if outcome is None:
        await h.expect_deliveries(await h.consumer(), b"early")


# -- receiving


async def receive_returns_nothing_after_its_wait(h: BrokerHarness) -> None:
    consumer = await h.consumer()
    for wait in (0.0, 0.2):
        began = time.monotonic()
        expect(list(await consumer.receive(10, wait)), [], "the deliveries of an empty queue")
        took = time.monotonic() - began
        require(took < wait + h.timeout, f"receive(10, {wait}) took {took:.1f} s")


async def receive_returns_when_a_message_arrives(h: BrokerHarness) -> None:
    consumer = await h.consumer()
    await consumer.receive(1, 0.0)  # connected
    began = time.monotonic()
    waiting = asyncio.ensure_future(consumer.receive(1, h.timeout))
    try:
        await asyncio.sleep(0.1)
        await h.publish(b"now")
        expect(bodies_of(await waiting), [b"now"], "the deliveries to the waiting consumer")
    finally:
        waiting.cancel()
    require(time.monotonic() - began < h.timeout * 0.8, "it was delivered only when the wait was over")


async def receive_gives_at_most_its_limit(h: BrokerHarness) -> None:
    bodies = numbered_bodies(7)
    await h.publish(*bodies)
    consumer = await h.consumer()
    deliveries: list[Delivery] = []
    for _ in range(40):
        page = await consumer.receive(2, 0.5)
        require(len(page) <= 2, f"receive(2) gave {len(page)}")
        deliveries += page
        if len(deliveries) == len(bodies):
            break
    expect(sorted(bodies_of(deliveries)), bodies, "the bodies, received two at a time")


async def prefetch_bounds_the_unsettled_deliveries(h: BrokerHarness) -> None:
    await h.publish(*numbered_bodies(5))
    consumer = await h.consumer(prefetch=2)
    first, second = await h.receive(consumer, 2)
    await h.expect_nothing(consumer, "two were unsettled, and the prefetch is two")
    await consumer.ack([first])
    await h.receive_one(consumer)
    await h.expect_nothing(consumer, "two were unsettled again")
    await consumer.nack([second])
    await h.receive_one(consumer)


async def several_consumers_share_the_messages(h: BrokerHarness) -> None:
    received: list[bytes] = []

    async def consume(consumer: Consumer) -> None:
        while len(received) < len(bodies) and time.monotonic() < deadline:
            page = await consumer.receive(3, 0.2)
            received.extend(bodies_of(page))
            await consumer.ack(page)
            await consumer.flush()

    consumers = [await h.consumer() for _ in range(3)]
    bodies = numbered_bodies(30)
    await h.publish(*bodies)
    deadline = time.monotonic() + h.timeout
    await asyncio.gather(*map(consume, consumers))
    expect(sorted(received), sorted(bodies), "the bodies that three consumers received together")
    for consumer in consumers:
        await h.expect_nothing(consumer, "each was delivered to one of them")


async def a_cancelled_receive_loses_nothing(h: BrokerHarness) -> None:
    consumer = await h.consumer()
    await consumer.receive(1, 0.0)
    received: set[bytes] = set()
    for turn in range(12):
        task = asyncio.ensure_future(consumer.receive(2, 0.05))
        await h.publish(b"%d" % turn)
        for _ in range(turn % 5):
            await asyncio.sleep(0)
        task.cancel()
        (page,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(page, BaseException):
            received.update(bodies_of(page))
            await consumer.ack(page)
    await h.end_window_if_any()
    deadline = time.monotonic() + h.redelivery_timeout
    while len(received) < 12 and time.monotonic() < deadline:
        received.update(bodies_of(await h.receive_and_ack(consumer, 1, 10, timeout=0.2)))
    expect(len(received), 12, "the messages that were delivered, though receives were cancelled")


# -- groups


async def another_group_gets_every_message_too(h: BrokerHarness) -> None:
    skip_unless(h.capabilities.groups, "groups")
    consumers = [await h.consumer(group="first"), await h.consumer(group="second")]
    await h.publish(*numbered_bodies(5))
    for consumer in consumers:
        await consumer.ack(await h.expect_deliveries(consumer, *numbered_bodies(5)))
        await consumer.flush()
        await h.expect_nothing(consumer, "each group had all five")


async def a_nack_of_one_group_does_not_deliver_to_another(h: BrokerHarness) -> None:
    skip_unless(h.capabilities.groups, "groups")
    first, second = await h.consumer(group="first"), await h.consumer(group="second")
    await h.publish(b"once")
    delivery = await h.receive_one(first)
    await second.ack([await h.receive_one(second)])
    await first.nack([delivery])
    again = await h.receive_one(first)
    expect(again.packet, delivery.packet, "the packet that was delivered again")
    await h.expect_nothing(second, "this group had acked it, and another had not")
    await first.dead_letter(again, {"why": "first"})
    expect(await h.dead_letters(group="first").count(), 1, "the dead letters of the group that gave it up")
    expect(await h.dead_letters(group="second").count(), 0, "the dead letters of the other")


# -- the backend


async def declare_may_run_twice_and_at_once(h: BrokerHarness) -> None:
    await asyncio.gather(*(h.backend.declare(h.queue, group=h.group) for _ in range(3)))
    await h.publish(b"kept")
    await h.backend.declare(h.queue, group=h.group)
    await h.expect_deliveries(await h.consumer(), b"kept")


async def a_declared_queue_passes_its_check(h: BrokerHarness) -> None:
    await h.declare()
    await h.backend.check(h.queue, group=h.group)
