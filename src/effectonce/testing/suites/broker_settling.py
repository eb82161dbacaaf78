"""Ack, nack, extend: what becomes of a delivery, and who may say so."""

from __future__ import annotations

import asyncio

from effectonce.contracts import Consumer, Delivery

from .broker_harness import BrokerHarness, bodies, broker_case
from .sentences import equal, holds


@broker_case
async def an_acked_delivery_does_not_come_again(h: BrokerHarness) -> None:
    await h.publish(b"done", b"also")
    consumer = await h.consumer()
    found = await h.collect(consumer, 2)
    equal(list(await consumer.ack(found)), [True, True], "what `ack` answered")
    await consumer.flush()
    if h.capabilities.ack_window is not None:
        await h.past_window()
    await h.nothing(consumer, "it was acked")
    await consumer.close()
    await h.nothing(await h.consumer(), "it was acked")


@broker_case
async def closing_sends_the_acks_that_wait(h: BrokerHarness) -> None:
    await h.publish(b"done")
    consumer = await h.consumer()
    await consumer.ack([await h.one(consumer)])
    await consumer.close()
    if h.capabilities.ack_window is not None:
        await h.past_window()
    await h.nothing(await h.consumer(), "it was acked before its consumer closed")


@broker_case
async def each_delivery_is_settled_alone(h: BrokerHarness) -> None:
    """F56: an ack of the second is no ack of the first."""
    await h.publish(b"0", b"1", b"2", b"3")
    consumer = await h.consumer()
    held = sorted(await h.collect(consumer, 4), key=lambda delivery: delivery.packet.body)
    await consumer.ack([held[1], held[3]])
    await consumer.close()
    again = await h.collect(await h.consumer(), 2, within=h.afterwards)
    equal(sorted(bodies(again)), [b"0", b"2"], "what came again")


@broker_case
async def settling_twice_changes_nothing(h: BrokerHarness) -> None:
    await h.publish(b"done")
    consumer = await h.consumer()
    delivery = await h.one(consumer)
    await consumer.ack([delivery])
    await consumer.flush()
    await consumer.ack([delivery])
    await consumer.flush()
    await consumer.nack([delivery])
    equal(await consumer.dead_letter(delivery, {"why": "late"}), False, "the dead-lettering of what was acked")
    equal(await h.dead().count(), 0, "the dead letters")
    await h.nothing(consumer, "it was acked first")
    await h.publish(b"next")
    equal((await h.one(consumer)).packet.body, b"next", "what the consumer got afterwards")


@broker_case
async def nothing_to_settle_is_fine(h: BrokerHarness) -> None:
    consumer = await h.consumer()
    for answers in (await consumer.ack([]), await consumer.nack([]), await consumer.extend([], 1.0)):
        equal(list(answers), [], "what was answered about no delivery")
    await consumer.flush()


# -- nack


@broker_case
async def a_nacked_delivery_comes_again_unchanged(h: BrokerHarness) -> None:
    await h.publish(b"again")
    consumer = await h.consumer()
    first = await h.one(consumer)
    equal(list(await consumer.nack([first])), [True], "what `nack` answered")
    second = await h.one(await h.consumer() if h.capabilities.ordering == "none" else consumer)
    equal(second.packet, first.packet, "what came again")


@broker_case
async def a_delay_keeps_it_back_that_long(h: BrokerHarness) -> None:
    await h.publish(b"later")
    consumer = await h.consumer()
    began = h.now()
    await consumer.nack([await h.one(consumer)], h.delay)
    if h.clock is not None:
        await h.nothing(consumer, "its delay was not over")
        await h.sleep(h.delay * 0.9)
        await h.nothing(consumer, "its delay was not over")
        await h.sleep(h.delay * 0.11)
    equal((await h.one(consumer)).packet.body, b"later", "what came after the delay")
    took = h.now() - began
    holds(took >= h.delay * 0.95, f"a delay of {h.delay:g} s was over after {took:.3f} s")


@broker_case
async def a_delay_does_not_hold_up_the_others(h: BrokerHarness) -> None:
    await h.publish(b"slow")
    consumer = await h.consumer()
    await consumer.nack([await h.one(consumer)], 60)
    await h.publish(b"fast")
    equal((await h.one(consumer)).packet.body, b"fast", "what came while another was delayed")


@broker_case
async def what_is_delayed_outlives_its_consumer(h: BrokerHarness) -> None:
    """Never lost in between: not by the end of the process that nacked it."""
    await h.publish(b"later")
    consumer = await h.consumer()
    await consumer.nack([await h.one(consumer)], h.delay)
    await consumer.close()
    await h.sleep(h.delay if h.clock is not None else 0)
    again = await h.one(await h.consumer(), within=h.afterwards)
    equal(again.packet.body, b"later", "what came after the delay")


@broker_case
async def attempts_are_counted(h: BrokerHarness) -> None:
    h.needs(h.capabilities.counts_attempts, "a broker that counts attempts")
    await h.publish(b"again")
    consumer = await h.consumer()
    for attempt in (1, 2, 3):
        delivery = await h.one(consumer)
        equal(delivery.attempt, attempt, "the attempt")
        await consumer.nack([delivery], 0 if attempt == 1 else h.delay)
        if attempt > 1:
            await h.sleep(h.delay if h.clock is not None else 0)
    equal((await h.one(consumer)).attempt, 4, "the attempt after three nacks")


@broker_case
async def an_attempt_that_ended_without_a_word_counts(h: BrokerHarness) -> None:
    """F20: a message that takes its consumer down is recognised by its attempts."""
    h.needs(h.capabilities.counts_attempts, "a broker that counts attempts")
    await h.publish(b"poison")
    consumer = await h.consumer()
    await h.one(consumer)
    await h.past_window()
    delivery = await h.one(consumer)
    equal(delivery.attempt, 2, "the attempt after one that lapsed")
    await consumer.nack([delivery])
    equal((await h.one(consumer)).attempt, 3, "the attempt after a nack")


# -- the ack window


@broker_case
async def what_a_dead_consumer_left_comes_to_another(h: BrokerHarness) -> None:
    await h.publish(b"0", b"1")
    dead, heir = await h.consumer(), await h.consumer()
    await h.collect(dead, 2)
    await h.nothing(heir, "it was another's")
    await h.past_window()
    found = await h.collect(heir, 2)
    equal(sorted(bodies(found)), [b"0", b"1"], "what the heir got")
    equal(list(await heir.ack(found)), [True, True], "the heir's acks")


@broker_case
async def extend_keeps_it_past_the_window(h: BrokerHarness) -> None:
    """F54: a handler that takes longer than the window keeps its message."""
    h.needs(h.capabilities.extends, "a window that can be extended")
    await h.publish(b"long")
    consumer, other = await h.consumer(), await h.consumer()
    delivery = await h.one(consumer)
    for _ in range(4):
        await h.sleep(h.window * 0.4)
        equal(list(await consumer.extend([delivery], h.window)), [True], "what `extend` answered")
    await h.nothing(other, "its consumer had extended it")
    equal(list(await consumer.ack([delivery])), [True], "the ack after 1.6 windows")
    await consumer.flush()
    await h.past_window()
    await h.nothing(other, "it was acked")


@broker_case
async def a_stale_ack_says_so_and_leaves_the_heirs_delivery_alone(h: BrokerHarness) -> None:
    """F54: a stale receipt is not success."""
    consumer, heir, stale, again = await _taken_over(h)
    equal(list(await consumer.ack([stale])), [False], "the ack of the one who was too late")
    await consumer.flush()
    equal(list(await heir.nack([again])), [True], "the heir's nack")
    equal((await h.one(heir)).packet.body, b"late", "what the heir got again")


@broker_case
async def a_stale_nack_does_not_deliver_it_twice(h: BrokerHarness) -> None:
    consumer, heir, stale, again = await _taken_over(h)
    equal(list(await consumer.nack([stale])), [False], "the nack of the one who was too late")
    await h.nothing(heir, "its delivery was still unsettled")
    equal(list(await heir.ack([again])), [True], "the heir's ack")
    await heir.flush()
    await h.nothing(heir, "it was acked")


@broker_case
async def a_stale_dead_letter_is_refused(h: BrokerHarness) -> None:
    consumer, heir, stale, again = await _taken_over(h)
    equal(await consumer.dead_letter(stale, {"why": "late"}), False, "the dead-lettering of the one who was too late")
    equal(await h.dead().count(), 0, "the dead letters")
    equal(list(await heir.ack([again])), [True], "the heir's ack")


@broker_case
async def a_stale_extension_is_refused(h: BrokerHarness) -> None:
    h.needs(h.capabilities.extends, "a window that can be extended")
    consumer, heir, stale, again = await _taken_over(h)
    equal(list(await consumer.extend([stale], h.window)), [False], "the extension of the one who was too late")
    equal(list(await heir.ack([again])), [True], "the heir's ack")


async def _taken_over(h: BrokerHarness) -> tuple[Consumer, Consumer, Delivery, Delivery]:
    """A delivery that lapsed and came to another: consumer, heir, the stale delivery, the heir's."""
    await h.publish(b"late")
    consumer, heir = await h.consumer(), await h.consumer()
    stale = await h.one(consumer)
    await h.past_window()
    again = await h.one(heir)
    equal(again.packet, stale.packet, "what the heir got")
    return consumer, heir, stale, again


# -- beside a receive that waits


@broker_case
async def settling_does_not_wait_for_a_receive(h: BrokerHarness) -> None:
    """A worker settles one message while it waits for the next."""
    await h.publish(b"0", b"1", b"2")
    consumer = await h.consumer()
    held = sorted(await h.collect(consumer, 3), key=lambda delivery: delivery.packet.body)
    waiting = asyncio.ensure_future(consumer.receive(1, h.timeout * 2))
    try:
        await asyncio.sleep(0.1)
        async with asyncio.timeout(h.timeout):
            await consumer.ack([held[0]])
            await consumer.dead_letter(held[1], {"why": "meanwhile"})
            await consumer.nack([held[2]])
            (again,) = await waiting
    finally:
        waiting.cancel()
    equal(again.packet.body, b"2", "what the waiting receive got")


@broker_case
async def closing_gives_back_what_is_unsettled(h: BrokerHarness) -> None:
    """F58."""
    await h.publish(b"0", b"1", b"2")
    consumer = await h.consumer()
    held = sorted(await h.collect(consumer, 3), key=lambda delivery: delivery.packet.body)
    await consumer.ack([held[0]])
    await consumer.close()
    heir = await h.consumer()
    found: list[Delivery] = await h.collect(heir, 2, within=h.afterwards)
    equal(sorted(bodies(found)), [b"1", b"2"], "what came again")
    await heir.ack(found)
    await heir.flush()
    await h.nothing(heir, "all was acked")


@broker_case
async def closing_unused_and_twice_is_fine(h: BrokerHarness) -> None:
    unused, used = await h.consumer(), await h.consumer()
    await unused.close()
    await used.receive(1, 0.0)
    await used.close()
    await used.close()
    publisher, dead = h.publisher(), h.dead()
    await publisher.close()
    await dead.close()
    await h.publish(b"still")
    equal((await h.one(await h.consumer())).packet.body, b"still", "what came after others were closed")
