"""Publishing, and what is delivered of it."""

from __future__ import annotations

import asyncio
import os
import time

from effectonce.contracts import Consumer, Delivery, Packet

from .broker_harness import BrokerHarness, a_packet, bodies, broker_case
from .sentences import equal, holds

# -- publishing


@broker_case
async def what_is_confirmed_is_delivered(h: BrokerHarness) -> None:
    """F45: `None` means that the broker has it."""
    sent = [a_packet(b"body %d" % n) for n in range(3)]
    await h.publish(*sent)
    consumer = await h.consumer()
    found = await h.collect(consumer, 3)
    equal(sorted(bodies(found)), sorted(p.body for p in sent), "the bodies")
    equal({d.queue for d in found}, {h.queue}, "the queue of the deliveries")
    await h.nothing(consumer, "all was delivered")


@broker_case
async def nothing_published_is_fine(h: BrokerHarness) -> None:
    await h.publish()


@broker_case
async def a_full_batch_is_confirmed_and_delivered_once(h: BrokerHarness) -> None:
    sent = [a_packet(b"%d" % n) for n in range(h.capabilities.batch)]
    await h.publish(*sent)
    consumer = await h.consumer(prefetch=len(sent) + 10)
    found = await h.collect(consumer, len(sent))
    equal(sorted(map(int, bodies(found))), list(range(len(sent))), "the bodies")
    await h.nothing(consumer, "each was delivered")


@broker_case
async def bodies_come_back_byte_for_byte(h: BrokerHarness) -> None:
    """No broker looks into a body: empty, binary, long, and whatever Unicode there is."""
    large = min(h.capabilities.max_body or 200_000, 200_000)
    wanted = [b"", b"\0", bytes(range(256)), "☕ naïve \u2028 \U0001f600".encode(), b"\xff\xfe", os.urandom(large // 2)]
    await h.publish(*wanted)
    found = await h.collect(await h.consumer(), len(wanted))
    equal(sorted(bodies(found)), sorted(wanted), "the bodies")


@broker_case
async def headers_come_back_as_they_were(h: BrokerHarness) -> None:
    headers = {
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
    await h.publish(Packet(body=b"b", headers=headers, id="id-1"), Packet(body=b"b", id="id-2"))
    found = {d.packet.id: d.packet for d in await h.collect(await h.consumer(), 2)}
    equal(dict(found["id-1"].headers), headers, "the headers")
    equal(dict(found["id-2"].headers), {}, "the headers of a packet without any")


@broker_case
async def id_and_ordering_key_travel_with_the_packet(h: BrokerHarness) -> None:
    sent = [Packet(body=b"1", id="id ☕ 1", ordering_key="Kunde ü/7"), Packet(body=b"2", id="id-2")]
    await h.publish(*sent)
    found = sorted((d.packet for d in await h.collect(await h.consumer(), 2)), key=lambda packet: packet.body)
    equal([(p.id, p.ordering_key) for p in found], [(p.id, p.ordering_key) for p in sent], "id and ordering key")


@broker_case
async def queues_are_separate(h: BrokerHarness) -> None:
    other = f"{h.queue}-b"
    here, there = await h.consumer(), await h.consumer(queue=other)
    await h.publish(b"there", queue=other)
    await h.nothing(here, "it was published to another queue")
    await h.publish(b"here")
    equal((await h.one(here)).packet.body, b"here", "the body from the first queue")
    equal((await h.one(there)).packet.body, b"there", "the body from the second")


@broker_case
async def what_nobody_declared_is_kept_or_refused(h: BrokerHarness) -> None:
    """A message to a queue that is not there is never confirmed and lost (F45)."""
    try:
        (outcome,) = await h.publisher().publish(h.queue, [a_packet(b"early")])
    except Exception:
        return
    if outcome is None:
        equal((await h.one(await h.consumer())).packet.body, b"early", "what was confirmed before a group was there")


# -- receiving


@broker_case
async def receive_comes_back_empty_after_its_wait(h: BrokerHarness) -> None:
    consumer = await h.consumer()
    for wait in (0.0, 0.2):
        began = time.monotonic()
        equal(list(await consumer.receive(10, wait)), [], "what an empty queue gives")
        took = time.monotonic() - began
        holds(took < wait + h.timeout, f"receive(10, {wait}) took {took:.1f} s")


@broker_case
async def receive_wakes_when_something_comes(h: BrokerHarness) -> None:
    consumer = await h.consumer()
    await consumer.receive(1, 0.0)  # connected
    began = time.monotonic()
    waiting = asyncio.ensure_future(consumer.receive(1, h.timeout))
    try:
        await asyncio.sleep(0.1)
        await h.publish(b"now")
        equal(bodies(await waiting), [b"now"], "what the waiting consumer got")
    finally:
        waiting.cancel()
    holds(time.monotonic() - began < h.timeout * 0.8, "it was delivered only when the wait was over")


@broker_case
async def receive_gives_at_most_its_limit(h: BrokerHarness) -> None:
    await h.publish(*(b"%d" % n for n in range(7)))
    consumer = await h.consumer()
    found: list[Delivery] = []
    for _ in range(40):
        page = await consumer.receive(2, 0.5)
        holds(len(page) <= 2, f"receive(2) gave {len(page)}")
        found += page
        if len(found) == 7:
            break
    equal(sorted(bodies(found)), [b"%d" % n for n in range(7)], "what came, two at a time")


@broker_case
async def prefetch_bounds_what_is_unsettled(h: BrokerHarness) -> None:
    await h.publish(*(b"%d" % n for n in range(5)))
    consumer = await h.consumer(prefetch=2)
    held = await h.collect(consumer, 2)
    await h.nothing(consumer, "two were unsettled, and the prefetch is two")
    await consumer.ack(held[:1])
    held = [held[1], await h.one(consumer)]
    await h.nothing(consumer, "two were unsettled again")
    await consumer.nack(held[:1])
    await h.collect(consumer, 1)


@broker_case
async def several_consumers_share_the_messages(h: BrokerHarness) -> None:
    count = 30
    found: list[bytes] = []

    async def consume(consumer: Consumer) -> None:
        while len(found) < count and time.monotonic() < deadline:
            page = await consumer.receive(3, 0.2)
            found.extend(bodies(page))
            await consumer.ack(page)
            await consumer.flush()

    consumers = [await h.consumer() for _ in range(3)]
    await h.publish(*(b"%d" % n for n in range(count)))
    deadline = time.monotonic() + h.timeout
    await asyncio.gather(*map(consume, consumers))
    equal(sorted(map(int, found)), list(range(count)), "what three consumers got together")
    for consumer in consumers:
        await h.nothing(consumer, "each had come to one of them")


@broker_case
async def a_cancelled_receive_loses_nothing(h: BrokerHarness) -> None:
    consumer = await h.consumer()
    await consumer.receive(1, 0.0)
    found: set[bytes] = set()
    for turn in range(12):
        task = asyncio.ensure_future(consumer.receive(2, 0.05))
        await h.publish(b"%d" % turn)
        for _ in range(turn % 5):
            await asyncio.sleep(0)
        task.cancel()
        (came,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(came, BaseException):
            found.update(bodies(came))
            await consumer.ack(came)
    if h.capabilities.ack_window is not None:
        await h.past_window()
    deadline = time.monotonic() + h.afterwards
    while len(found) < 12 and time.monotonic() < deadline:
        page = await consumer.receive(10, 0.2)
        found.update(bodies(page))
        await consumer.ack(page)
    equal(len(found), 12, "the messages that came, though receives were cancelled")


# -- groups


@broker_case
async def another_group_sees_everything_too(h: BrokerHarness) -> None:
    h.needs(h.capabilities.groups, "groups")
    first, second = await h.consumer(group="first"), await h.consumer(group="second")
    await h.publish(*(b"%d" % n for n in range(5)))
    for consumer in (first, second):
        found = await h.collect(consumer, 5)
        equal(sorted(bodies(found)), [b"%d" % n for n in range(5)], "what each group got")
        await consumer.ack(found)
        await consumer.flush()
        await h.nothing(consumer, "each group had all five")


@broker_case
async def what_one_group_nacks_comes_to_it_alone(h: BrokerHarness) -> None:
    h.needs(h.capabilities.groups, "groups")
    first, second = await h.consumer(group="first"), await h.consumer(group="second")
    await h.publish(b"once")
    mine, other = await h.one(first), await h.one(second)
    await second.ack([other])
    await first.nack([mine])
    again = await h.one(first)
    equal(again.packet, mine.packet, "what was delivered again")
    await h.nothing(second, "this group had acked it, and another had not")
    await first.dead_letter(again, {"why": "first"})
    equal(await h.dead(group="first").count(), 1, "the dead letters of the group that gave it up")
    equal(await h.dead(group="second").count(), 0, "the dead letters of the other")


# -- the backend


@broker_case
async def declare_may_run_twice_and_at_once(h: BrokerHarness) -> None:
    await asyncio.gather(*(h.backend.declare(h.queue, group=h.group) for _ in range(3)))
    await h.publish(b"kept")
    await h.backend.declare(h.queue, group=h.group)
    equal((await h.one(await h.consumer())).packet.body, b"kept", "what was published before")


@broker_case
async def a_declared_queue_passes_its_check(h: BrokerHarness) -> None:
    await h.declare()
    await h.backend.check(h.queue, group=h.group)
