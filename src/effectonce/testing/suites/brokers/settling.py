"""Ack, nack and extend: which deliveries are made again, and which consumer may settle them."""

from __future__ import annotations

import asyncio

from effectonce.contracts import Consumer, Delivery
from effectonce.testing.suites.expectations import expect, require, skip_unless

from .harness import BrokerHarness, numbered_bodies

# -- ack


async def an_acked_delivery_is_not_redelivered(h: BrokerHarness) -> None:
    consumer, deliveries = await h.make_deliveries(b"first", b"second")
    expect(list(await consumer.ack(deliveries)), [True, True], "the answer of ack")
    await consumer.flush()
    await h.end_window_if_any()
    await h.expect_nothing(consumer, "it was acked")
    await consumer.close()
    await h.expect_nothing(await h.consumer(), "it was acked")


async def closing_sends_the_acks_that_wait(h: BrokerHarness) -> None:
    consumer, delivery = await h.make_delivery()
    await consumer.ack([delivery])
    await consumer.close()
    await h.end_window_if_any()
    await h.expect_nothing(await h.consumer(), "it was acked before its consumer closed")


async def each_delivery_is_settled_alone(h: BrokerHarness) -> None:
    """F56: an ack of the second is not an ack of the first."""
    consumer, deliveries = await h.make_deliveries(*numbered_bodies(4))
    await consumer.ack([deliveries[1], deliveries[3]])
    await consumer.close()
    await h.expect_deliveries(await h.consumer(), b"0", b"2", timeout=h.redelivery_timeout)


async def settling_twice_changes_nothing(h: BrokerHarness) -> None:
    consumer, delivery = await h.make_delivery()
    for _ in range(2):
        await consumer.ack([delivery])
        await consumer.flush()
    await consumer.nack([delivery])
    expect(await consumer.dead_letter(delivery, {"why": "late"}), False, "the dead-lettering of what was acked")
    expect(await h.dead_letters().count(), 0, "the dead letters")
    await h.expect_nothing(consumer, "it was acked first")
    await h.publish(b"next")
    await h.expect_deliveries(consumer, b"next")


async def settling_nothing_is_fine(h: BrokerHarness) -> None:
    consumer = await h.consumer()
    for answers in (await consumer.ack([]), await consumer.nack([]), await consumer.extend([], 1.0)):
        expect(list(answers), [], "the answers about no delivery")
    await consumer.flush()


# -- nack


async def a_nacked_delivery_is_redelivered_unchanged(h: BrokerHarness) -> None:
    consumer, delivery = await h.make_delivery()
    expect(list(await consumer.nack([delivery])), [True], "the answer of nack")
    again = await h.receive_one(await h.consumer() if h.capabilities.ordering == "none" else consumer)
    expect(again.packet, delivery.packet, "the packet that was delivered again")


async def a_delay_keeps_a_delivery_back_that_long(h: BrokerHarness) -> None:
    consumer, delivery = await h.make_delivery(b"later")
    began = h.now()
    await consumer.nack([delivery], h.delay)
    if h.clock is not None:
        await h.expect_nothing(consumer, "its delay was not over")
        await h.sleep(h.delay * 0.9)
        await h.expect_nothing(consumer, "its delay was not over")
        await h.sleep(h.delay * 0.11)
    await h.expect_deliveries(consumer, b"later")
    took = h.now() - began
    require(took >= h.delay * 0.95, f"a delay of {h.delay:g} s was over after {took:.3f} s")


async def a_delay_does_not_hold_up_the_others(h: BrokerHarness) -> None:
    consumer, delivery = await h.make_delivery(b"slow")
    await consumer.nack([delivery], 60)
    await h.publish(b"fast")
    await h.expect_deliveries(consumer, b"fast")


async def a_delayed_delivery_outlives_its_consumer(h: BrokerHarness) -> None:
    """It is not lost with the process that nacked it."""
    consumer, delivery = await h.make_delivery(b"later")
    await consumer.nack([delivery], h.delay)
    await consumer.close()
    h.end_delay()
    await h.expect_deliveries(await h.consumer(), b"later", timeout=h.redelivery_timeout)


async def attempts_are_counted(h: BrokerHarness) -> None:
    skip_unless(h.capabilities.counts_attempts, "a broker that counts attempts")
    consumer, delivery = await h.make_delivery()
    for attempt, delay in ((1, 0.0), (2, h.delay), (3, h.delay)):
        expect(delivery.attempt, attempt, "the attempt")
        await consumer.nack([delivery], delay)
        if delay:
            h.end_delay()
        delivery = await h.receive_one(consumer)
    expect(delivery.attempt, 4, "the attempt after three nacks")


async def an_attempt_that_was_never_settled_counts(h: BrokerHarness) -> None:
    """F20: a message that takes its consumer down is recognised by its attempts."""
    skip_unless(h.capabilities.counts_attempts, "a broker that counts attempts")
    consumer, _ = await h.make_delivery(b"poison")
    await h.end_window()
    delivery = await h.receive_one(consumer)
    expect(delivery.attempt, 2, "the attempt after one that lapsed")
    await consumer.nack([delivery])
    expect((await h.receive_one(consumer)).attempt, 3, "the attempt after a nack")


# -- the ack window


async def a_dead_consumers_deliveries_are_redelivered_to_another(h: BrokerHarness) -> None:
    await h.make_deliveries(b"0", b"1")
    next_owner = await h.consumer()
    await h.expect_nothing(next_owner, "it was another's")
    await h.end_window()
    deliveries = await h.expect_deliveries(next_owner, b"0", b"1")
    expect(list(await next_owner.ack(deliveries)), [True, True], "the next owner's acks")


async def extend_keeps_a_delivery_past_the_window(h: BrokerHarness) -> None:
    """F54: a handler that takes longer than the window keeps its message."""
    skip_unless(h.capabilities.extends, "a window that can be extended")
    consumer, delivery = await h.make_delivery(b"long")
    other = await h.consumer()
    for _ in range(4):
        await h.sleep(h.window * 0.4)
        expect(list(await consumer.extend([delivery], h.window)), [True], "the answer of extend")
    await h.expect_nothing(other, "its consumer had extended it")
    expect(list(await consumer.ack([delivery])), [True], "the ack after 1.6 windows")
    await consumer.flush()
    await h.end_window()
    await h.expect_nothing(other, "it was acked")


async def _make_takeover(h: BrokerHarness) -> tuple[Consumer, Consumer, Delivery, Delivery]:
    """Let a delivery lapse, and be redelivered. Returns both consumers, and the delivery of each."""
    await h.publish(b"late")
    consumer, next_owner = await h.consumer(), await h.consumer()
    stale = await h.receive_one(consumer)
    await h.end_window()
    current = await h.receive_one(next_owner)
    expect(current.packet, stale.packet, "the packet that the next owner got")
    return consumer, next_owner, stale, current


async def a_stale_ack_is_refused_and_leaves_the_heirs_delivery_alone(h: BrokerHarness) -> None:
    """F54: a stale receipt is not success."""
    consumer, next_owner, stale, current = await _make_takeover(h)
    expect(list(await consumer.ack([stale])), [False], "the late ack")
    await consumer.flush()
    expect(list(await next_owner.nack([current])), [True], "the next owner's nack")
    await h.expect_deliveries(next_owner, b"late")


async def a_stale_nack_does_not_deliver_it_twice(h: BrokerHarness) -> None:
    consumer, next_owner, stale, current = await _make_takeover(h)
    expect(list(await consumer.nack([stale])), [False], "the late nack")
    await h.expect_nothing(next_owner, "its delivery was still unsettled")
    expect(list(await next_owner.ack([current])), [True], "the next owner's ack")
    await next_owner.flush()
    await h.expect_nothing(next_owner, "it was acked")


async def a_stale_dead_letter_is_refused(h: BrokerHarness) -> None:
    consumer, next_owner, stale, current = await _make_takeover(h)
    expect(await consumer.dead_letter(stale, {"why": "late"}), False, "the late dead-lettering")
    expect(await h.dead_letters().count(), 0, "the dead letters")
    expect(list(await next_owner.ack([current])), [True], "the next owner's ack")


async def a_stale_extension_is_refused(h: BrokerHarness) -> None:
    skip_unless(h.capabilities.extends, "a window that can be extended")
    consumer, next_owner, stale, current = await _make_takeover(h)
    expect(list(await consumer.extend([stale], h.window)), [False], "the late extension")
    expect(list(await next_owner.ack([current])), [True], "the next owner's ack")


# -- beside a receive that waits, and at the end


async def settling_does_not_wait_for_a_receive(h: BrokerHarness) -> None:
    """A worker settles one message while it waits for the next."""
    consumer, deliveries = await h.make_deliveries(*numbered_bodies(3))
    waiting = asyncio.ensure_future(consumer.receive(1, h.timeout * 2))
    try:
        await asyncio.sleep(0.1)
        async with asyncio.timeout(h.timeout):
            await consumer.ack([deliveries[0]])
            await consumer.dead_letter(deliveries[1], {"why": "meanwhile"})
            await consumer.nack([deliveries[2]])
            (again,) = await waiting
    finally:
        waiting.cancel()
    expect(again.packet.body, b"2", "the body that the waiting receive got")


async def closing_returns_unsettled_deliveries(h: BrokerHarness) -> None:
    """F58."""
    consumer, deliveries = await h.make_deliveries(*numbered_bodies(3))
    await consumer.ack([deliveries[0]])
    await consumer.close()
    next_owner = await h.consumer()
    await next_owner.ack(await h.expect_deliveries(next_owner, b"1", b"2", timeout=h.redelivery_timeout))
    await next_owner.flush()
    await h.expect_nothing(next_owner, "all was acked")


async def closing_unused_and_twice_is_fine(h: BrokerHarness) -> None:
    unused, used = await h.consumer(), await h.consumer()
    await unused.close()
    await used.receive(1, 0.0)
    await used.close()
    await used.close()
    await h.publisher().close()
    await h.dead_letters().close()
    await h.publish(b"still")
    await h.expect_deliveries(await h.consumer(), b"still")
