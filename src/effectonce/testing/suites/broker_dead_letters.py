"""What was given up: kept with its bytes and the reason, listed, removed, sent again."""

from __future__ import annotations

from effectonce.contracts import Packet

from .broker_harness import BrokerHarness, a_packet, bodies, broker_case
from .sentences import equal, holds

REASON = {"eo-dead-reason": "PermanentFailure: Café ☕", "eo-dead-attempts": "3"}


@broker_case
async def a_dead_letter_keeps_its_bytes_and_says_why(h: BrokerHarness) -> None:
    body = bytes(range(256)) + "☕".encode()
    sent = Packet(body=body, headers={"content-type": "x/y", "own": "kept"}, id="dead-1", ordering_key="k")
    await h.publish(sent)
    consumer, dead = await h.consumer(), h.dead()
    equal(await dead.count(), 0, "the dead letters before")
    equal(await consumer.dead_letter(await h.one(consumer), REASON), True, "what `dead_letter` answered")
    equal(await dead.count(), 1, "the dead letters after")
    ((letter,), cursor) = await dead.browse(10)
    equal(cursor, None, "the cursor after the last page")
    equal(letter.packet.body, body, "the body of the dead letter")
    equal(dict(letter.packet.headers), {**sent.headers, **REASON}, "its headers")
    equal((letter.packet.id, letter.packet.ordering_key), ("dead-1", "k"), "its id and ordering key")
    equal(letter.queue, h.queue, "the queue it was given up on")


@broker_case
async def a_dead_letter_is_not_delivered_again(h: BrokerHarness) -> None:
    await h.publish(b"bad", b"good")
    consumer = await h.consumer()
    held = sorted(await h.collect(consumer, 2), key=lambda delivery: delivery.packet.body)
    holds(await consumer.dead_letter(held[0], REASON), "a dead-lettering was refused")
    await consumer.ack([held[1]])
    await consumer.close()
    if h.capabilities.ack_window is not None:
        await h.past_window()
    await h.nothing(await h.consumer(), "one was given up and one was acked")
    equal(await h.dead().count(), 1, "the dead letters")


@broker_case
async def dead_letters_are_paged_oldest_first(h: BrokerHarness) -> None:
    await _five_dead(h)
    dead = h.dead()
    found = await h.all_dead(dead, 2)
    equal([letter.packet.body for letter in found], [b"%d" % n for n in range(5)], "what the pages held")
    equal(len({letter.id for letter in found}), 5, "the number of different ids")
    equal([letter.packet.body for letter in await h.all_dead(dead, 5)], [b"%d" % n for n in range(5)], "one full page")
    equal(await dead.count(), 5, "the dead letters after they were looked at")


@broker_case
async def removing_removes_these_and_no_others(h: BrokerHarness) -> None:
    await _five_dead(h)
    dead = h.dead()
    ids = [letter.id for letter in await h.all_dead(dead)]
    equal(await dead.remove([ids[1], ids[3]]), 2, "how many were removed")
    equal(await dead.remove([ids[1]]), 0, "how many of the removed were removed")
    equal(await dead.remove([]), 0, "how many of none were removed")
    left = await h.all_dead(h.dead())
    equal([letter.packet.body for letter in left], [b"0", b"2", b"4"], "what is left")
    equal(await dead.count(), 3, "how many are left")


@broker_case
async def looking_does_not_take_them_away_from_another(h: BrokerHarness) -> None:
    await _five_dead(h)
    one, other = h.dead(), h.dead()
    await one.browse(5)
    equal(len(await h.all_dead(other)), 5, "what a second look saw")
    await one.close()
    equal(len(await h.all_dead(h.dead())), 5, "what a third look saw")


@broker_case
async def a_dead_letter_can_be_sent_again(h: BrokerHarness) -> None:
    """A redrive: publish, be confirmed, and only then remove."""
    await h.publish(a_packet(b"\0again", own="kept"))
    consumer, dead = await h.consumer(), h.dead()
    first = await h.one(consumer)
    await consumer.dead_letter(first, REASON)
    ((letter,), _) = await dead.browse(1)
    await h.publish(letter.packet)
    equal(await dead.remove([letter.id]), 1, "how many were removed")
    again = await h.one(consumer)
    equal(again.packet.body, first.packet.body, "the body that came again")
    equal({**again.packet.headers}, {**first.packet.headers, **REASON}, "its headers")
    equal(await dead.count(), 0, "the dead letters that are left")


async def _five_dead(h: BrokerHarness) -> None:
    consumer = await h.consumer()
    for n in range(5):
        await h.publish(b"%d" % n)
        held = await h.one(consumer)
        equal(bodies([held]), [b"%d" % n], "what came")
        holds(await consumer.dead_letter(held, {**REASON, "n": str(n)}), "a dead-lettering was refused")
