"""Order of delivery, for brokers whose capabilities promise one."""

from __future__ import annotations

from collections import defaultdict

from effectonce.testing.suites.expectations import expect, require, skip_unless

from .harness import BrokerHarness, bodies_of, make_packet, numbered_bodies


def _need_order_per_key(h: BrokerHarness) -> None:
    skip_unless(h.capabilities.ordering == "key", "order per key")


async def a_queue_is_delivered_as_it_was_published(h: BrokerHarness) -> None:
    skip_unless(h.capabilities.ordering != "none", "a broker that keeps an order")
    key = "one" if h.capabilities.ordering == "key" else None
    for bodies in (numbered_bodies(12), numbered_bodies(20, start=12)):
        await h.publish(*(make_packet(body, key=key) for body in bodies))
    deliveries = await h.receive_and_ack(await h.consumer(), 20, 7)
    expect(bodies_of(deliveries), numbered_bodies(20), "the order of delivery")


async def each_key_keeps_its_order(h: BrokerHarness) -> None:
    _need_order_per_key(h)
    await h.publish(*(make_packet(b"%d" % n, key=f"k{n % 3}") for n in range(12)))
    received: dict[str | None, list[int]] = defaultdict(list)
    for delivery in await h.receive_and_ack(await h.consumer(), 12, 5):
        received[delivery.packet.ordering_key].append(int(delivery.packet.body))
    expect(dict(received), {f"k{k}": [*range(k, 12, 3)] for k in range(3)}, "the numbers of each key, in order")


async def no_consumer_gets_the_next_of_a_key_while_one_is_unsettled(h: BrokerHarness) -> None:
    _need_order_per_key(h)
    holder, rival = await h.consumer(prefetch=1), await h.consumer()
    await h.publish(*(make_packet(body, key="k") for body in numbered_bodies(3)))
    # Whichever consumer gets the first message is the holder: with partitions, the broker decides.
    deliveries = list(await holder.receive(1, h.quiet))
    while not deliveries:
        holder, rival = rival, holder
        deliveries = list(await holder.receive(1, h.quiet))
    expect(bodies_of(deliveries), [b"0"], "the first delivery")
    await h.expect_nothing(rival, "an earlier one of its key was unsettled")
    await holder.ack(deliveries)
    await holder.flush()


async def a_nacked_delivery_is_redelivered_before_those_behind_it(h: BrokerHarness) -> None:
    _need_order_per_key(h)
    consumer = await h.consumer(prefetch=1)
    await h.publish(*(make_packet(body, key="k") for body in numbered_bodies(3)))
    await consumer.nack([await h.receive_one(consumer)], h.delay)
    h.end_delay()
    deliveries = await h.receive_and_ack(consumer, 3, 1)
    expect(bodies_of(deliveries), numbered_bodies(3), "the order after a nack")


async def a_delayed_key_does_not_hold_up_another(h: BrokerHarness) -> None:
    """One bad key does not stop the others."""
    _need_order_per_key(h)
    consumer = await h.consumer(prefetch=1)
    await h.publish(make_packet(b"bad", key="bad"))
    await consumer.nack([await h.receive_one(consumer)], 60)
    await h.publish(make_packet(b"behind", key="bad"), make_packet(b"good", key="good"))
    await consumer.ack(await h.expect_deliveries(consumer, b"good"))
    await h.expect_nothing(consumer, "all that is left is behind a delayed message of its key")


async def a_dead_letter_lets_the_next_of_its_key_pass(h: BrokerHarness) -> None:
    _need_order_per_key(h)
    consumer = await h.consumer(prefetch=1)
    await h.publish(make_packet(b"bad", key="k"), make_packet(b"good", key="k"))
    moved = await consumer.dead_letter(await h.receive_one(consumer), {"why": "bad"})
    require(moved, "a dead-lettering was refused")
    await h.expect_deliveries(consumer, b"good")
