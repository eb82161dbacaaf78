"""What keeps its order, where the broker says that something does."""

from __future__ import annotations

import time
from collections import defaultdict

from effectonce.contracts import Delivery

from .broker_harness import BrokerHarness, a_packet, bodies, broker_case
from .sentences import equal, holds


@broker_case
async def a_queue_is_delivered_as_it_was_published(h: BrokerHarness) -> None:
    h.needs(h.capabilities.ordering != "none", "a broker that keeps an order")
    key = "one" if h.capabilities.ordering == "key" else None
    await h.publish(*(a_packet(b"%d" % n, key=key) for n in range(12)))
    await h.publish(*(a_packet(b"%d" % n, key=key) for n in range(12, 20)))
    consumer = await h.consumer()
    found: list[bytes] = []
    deadline = time.monotonic() + h.timeout
    while len(found) < 20 and time.monotonic() < deadline:
        page = await consumer.receive(7, 1.0)
        found += bodies(page)
        await consumer.ack(page)
    equal(found, [b"%d" % n for n in range(20)], "the order of delivery")


@broker_case
async def each_key_keeps_its_order(h: BrokerHarness) -> None:
    h.needs(h.capabilities.ordering == "key", "order per key")
    await h.publish(*(a_packet(b"%d" % n, key=f"k{n % 3}") for n in range(12)))
    consumer = await h.consumer()
    found: dict[str | None, list[int]] = defaultdict(list)
    deadline = time.monotonic() + h.timeout
    while sum(map(len, found.values())) < 12 and time.monotonic() < deadline:
        page = await consumer.receive(5, 1.0)
        for delivery in page:
            found[delivery.packet.ordering_key].append(int(delivery.packet.body))
        await consumer.ack(page)
    wanted = {f"k{k}": [n for n in range(12) if n % 3 == k] for k in range(3)}
    equal(dict(found), wanted, "what came of each key, in order")


@broker_case
async def the_next_of_a_key_comes_to_no_other_while_one_is_unsettled(h: BrokerHarness) -> None:
    h.needs(h.capabilities.ordering == "key", "order per key")
    consumer, other = await h.consumer(prefetch=1), await h.consumer()
    await h.publish(*(a_packet(b"%d" % n, key="k") for n in range(3)))
    # Whoever gets the first holds it: with partitions, that is not for the test to say.
    holder, rival = consumer, other
    found = list(await consumer.receive(1, h.quiet))
    while not found:
        holder, rival = rival, holder
        found = list(await holder.receive(1, h.quiet))
    equal(bodies(found), [b"0"], "what came first")
    await h.nothing(rival, "an earlier one of its key was unsettled")
    await holder.ack(found)
    await holder.flush()


@broker_case
async def a_nacked_one_comes_before_those_behind_it(h: BrokerHarness) -> None:
    h.needs(h.capabilities.ordering == "key", "order per key")
    consumer = await h.consumer(prefetch=1)
    await h.publish(*(a_packet(b"%d" % n, key="k") for n in range(3)))
    first = await h.one(consumer)
    await consumer.nack([first], h.delay)
    await h.sleep(h.delay if h.clock is not None else 0)
    found: list[Delivery] = []
    for _ in range(3):
        delivery = await h.one(consumer)
        await consumer.ack([delivery])
        found.append(delivery)
    equal(bodies(found), [b"0", b"1", b"2"], "the order after a nack")


@broker_case
async def a_delayed_key_does_not_hold_up_another(h: BrokerHarness) -> None:
    """One bad key does not stop the others."""
    h.needs(h.capabilities.ordering == "key", "order per key")
    consumer = await h.consumer(prefetch=1)
    await h.publish(a_packet(b"bad", key="bad"))
    await consumer.nack([await h.one(consumer)], 60)
    await h.publish(a_packet(b"behind", key="bad"), a_packet(b"good", key="good"))
    found = await h.one(consumer)
    equal(found.packet.body, b"good", "what came while another key was delayed")
    await consumer.ack([found])
    await h.nothing(consumer, "what is left is behind a delayed one of its key")


@broker_case
async def what_is_given_up_lets_the_next_of_its_key_pass(h: BrokerHarness) -> None:
    h.needs(h.capabilities.ordering == "key", "order per key")
    consumer = await h.consumer(prefetch=1)
    await h.publish(a_packet(b"bad", key="k"), a_packet(b"good", key="k"))
    holds(await consumer.dead_letter(await h.one(consumer), {"why": "bad"}), "a dead-lettering was refused")
    equal((await h.one(consumer)).packet.body, b"good", "what came after the bad one was given up")
