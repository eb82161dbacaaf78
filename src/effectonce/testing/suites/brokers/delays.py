"""Delayed messages: the broker keeps them itself, and delivers them when they are due."""

from __future__ import annotations

from effectonce.broker import Broker
from effectonce.contracts import Packet
from effectonce.errors import ConfigurationError
from effectonce.message import Message
from effectonce.testing.suites.expectations import expect, expect_fields, require, skip_unless

from .harness import BrokerHarness, make_packet


def _make_delayed(h: BrokerHarness, delay_s: float = 0.0) -> Packet:
    """Make a packet with this delay, or else the harness's."""
    skip_unless(h.capabilities.max_delay_s != 0, "a broker that delays what is published")
    return Packet(body=b"later", headers={"own": "kept"}, id="delayed-1", delay_s=delay_s or h.delay)


async def a_delayed_message_is_delivered_when_it_is_due(h: BrokerHarness) -> None:
    delayed = _make_delayed(h)
    consumer = await h.consumer()
    published_at = h.now()
    await h.publish(delayed)
    if h.clock is not None:
        await h.expect_nothing(consumer, "its delay was not over")
        await h.sleep(h.delay * 0.9)
        await h.expect_nothing(consumer, "its delay was not over")
        await h.sleep(h.delay * 0.11)
    await h.expect_deliveries(consumer, b"later")
    took = h.now() - published_at
    require(took >= h.delay * 0.95, f"a delay of {h.delay:g} s was over after {took:.3f} s")


async def a_delayed_message_is_delivered_once_and_unchanged(h: BrokerHarness) -> None:
    delayed = _make_delayed(h)
    await h.publish(delayed)
    h.end_delay()
    consumer = await h.consumer()
    delivery = await h.receive_one(consumer)
    expect_fields(delivery.packet, "the delivered packet", body=b"later", id="delayed-1", ordering_key=None)
    expect(dict(delivery.packet.headers), {"own": "kept"}, "its headers")
    if h.capabilities.counts_attempts:
        expect(delivery.attempt, 1, "the attempt")
    expect(list(await consumer.ack([delivery])), [True], "the answer of ack")
    await consumer.flush()
    await h.expect_nothing(consumer, "it was delivered, and acked")


async def a_delayed_message_does_not_hold_up_those_behind_it(h: BrokerHarness) -> None:
    delayed = _make_delayed(h, delay_s=60.0)
    consumer = await h.consumer()
    await h.publish(delayed)
    await h.publish(b"now")
    await h.expect_deliveries(consumer, b"now")


async def delayed_and_other_messages_may_be_one_batch(h: BrokerHarness) -> None:
    delayed = _make_delayed(h, delay_s=60.0)
    consumer = await h.consumer()
    await h.publish(make_packet(b"first"), delayed, make_packet(b"last"))
    await h.expect_deliveries(consumer, b"first", b"last")
    await h.expect_nothing(consumer, "its delay was not over")


async def two_delayed_messages_with_the_same_bytes_are_two(h: BrokerHarness) -> None:
    delayed = _make_delayed(h)
    consumer = await h.consumer()
    same = [Packet(body=delayed.body, delay_s=delayed.delay_s) for _ in range(2)]
    await h.publish(*same)
    h.end_delay()
    await h.expect_deliveries(consumer, delayed.body, delayed.body)


async def a_delayed_message_needs_neither_publisher_nor_consumer(h: BrokerHarness) -> None:
    """Once it is confirmed, the broker alone has it."""
    delayed = _make_delayed(h)
    await h.declare()
    publisher = h.publisher()
    await h.publish(delayed, publisher=publisher)
    await publisher.close()
    h.end_delay()
    await h.expect_deliveries(await h.consumer(), b"later")


async def a_delayed_message_outlives_a_restart(h: BrokerHarness) -> None:
    delayed = _make_delayed(h)
    skip_unless(h.capabilities.durable, "a durable server")
    restart = skip_unless(h.site.restart, "a server that can be restarted")
    publisher = h.publisher()
    await h.publish(delayed, publisher=publisher)
    restart()
    await publisher.close()
    await h.expect_deliveries(await h.consumer(), b"later", timeout=h.redelivery_timeout)


async def a_delayed_message_reaches_every_group(h: BrokerHarness) -> None:
    delayed = _make_delayed(h)
    skip_unless(h.capabilities.groups, "groups")
    consumers = [await h.consumer(group="first"), await h.consumer(group="second")]
    await h.publish(delayed)
    h.end_delay()
    for consumer in consumers:
        await h.expect_deliveries(consumer, b"later")


async def a_delay_that_the_broker_cannot_keep_is_refused(h: BrokerHarness) -> None:
    """It is never shortened in silence."""
    longest = h.capabilities.max_delay_s
    skip_unless(longest is not None, "a broker with a longest delay")
    await h.declare()
    message = Message(data=1)
    broker = Broker(h.backend)
    try:
        await broker.apublish(h.queue, message, delay=(longest or 0.0) + 1.0)
    except ConfigurationError as error:
        require("outbox" in str(error), f"the refusal names no other way: {error}")
    else:
        raise AssertionError(f"a delay of {(longest or 0.0) + 1.0:g} s was accepted, and the longest is {longest:g} s")
    await h.expect_nothing(await h.consumer(), "it was refused")
