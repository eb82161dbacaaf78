"""Dead letters: stored with their bytes and the reason, listed, removed, sent again."""

from __future__ import annotations

from effectonce.contracts import DeadLetters, Packet
from effectonce.testing.suites.expectations import expect, expect_fields, require

from .harness import BrokerHarness, bodies_of, make_packet, numbered_bodies

REASON = {"eo-dead-reason": "PermanentFailure: Café ☕", "eo-dead-attempts": "3"}


async def _make_five(h: BrokerHarness) -> DeadLetters:
    """Make five dead letters, one after the other, and return an open view of them."""
    consumer = await h.consumer()
    for body in numbered_bodies(5):
        await h.publish(body)
        (delivery,) = await h.expect_deliveries(consumer, body)
        moved = await consumer.dead_letter(delivery, {**REASON, "n": body.decode()})
        require(moved, "a dead-lettering was refused")
    return h.dead_letters()


async def a_dead_letter_keeps_its_bytes_and_the_reason(h: BrokerHarness) -> None:
    sent = Packet(
        body=bytes(range(256)) + "☕".encode(),
        headers={"content-type": "x/y", "own": "kept"},
        id="dead-1",
        ordering_key="k",
    )
    await h.publish(sent)
    consumer, dead_letters = await h.consumer(), h.dead_letters()
    expect(await dead_letters.count(), 0, "the dead letters before")
    expect(await consumer.dead_letter(await h.receive_one(consumer), REASON), True, "the answer of dead_letter")
    expect(await dead_letters.count(), 1, "the dead letters after")
    ((letter,), cursor) = await dead_letters.browse(10)
    expect(cursor, None, "the cursor after the last page")
    expect_fields(letter.packet, "the dead letter", body=sent.body, id="dead-1", ordering_key="k")
    expect(dict(letter.packet.headers), {**sent.headers, **REASON}, "its headers")
    expect(letter.queue, h.queue, "the queue it was given up on")


async def a_dead_letter_is_not_delivered_again(h: BrokerHarness) -> None:
    consumer, (bad, good) = await h.make_deliveries(b"bad", b"good")
    require(await consumer.dead_letter(bad, REASON), "a dead-lettering was refused")
    await consumer.ack([good])
    await consumer.close()
    await h.end_window_if_any()
    await h.expect_nothing(await h.consumer(), "one was given up and one was acked")
    expect(await h.dead_letters().count(), 1, "the dead letters")


async def dead_letters_are_paged_oldest_first(h: BrokerHarness) -> None:
    dead_letters = await _make_five(h)
    letters = await h.all_dead_letters(dead_letters, 2)
    expect(bodies_of(letters), numbered_bodies(5), "the bodies on pages of two")
    expect(len({letter.id for letter in letters}), 5, "the number of different ids")
    expect(bodies_of(await h.all_dead_letters(dead_letters, 5)), numbered_bodies(5), "the bodies on one full page")
    expect(await dead_letters.count(), 5, "the dead letters after they were listed")


async def removing_removes_only_the_named_ones(h: BrokerHarness) -> None:
    dead_letters = await _make_five(h)
    ids = [letter.id for letter in await h.all_dead_letters(dead_letters)]
    expect(await dead_letters.remove([ids[1], ids[3]]), 2, "how many were removed")
    expect(await dead_letters.remove([ids[1]]), 0, "how many of the removed were removed")
    expect(await dead_letters.remove([]), 0, "how many of none were removed")
    remaining = await h.all_dead_letters(h.dead_letters())
    expect(bodies_of(remaining), [b"0", b"2", b"4"], "the bodies that are left")
    expect(await dead_letters.count(), 3, "how many are left")


async def listing_takes_no_dead_letter_away(h: BrokerHarness) -> None:
    dead_letters = await _make_five(h)
    await dead_letters.browse(5)
    expect(len(await h.all_dead_letters(h.dead_letters())), 5, "the dead letters in a second view")
    await dead_letters.close()
    expect(len(await h.all_dead_letters(h.dead_letters())), 5, "the dead letters in a third view")


async def a_dead_letter_can_be_sent_again(h: BrokerHarness) -> None:
    """A redrive: publish, be confirmed, and only then remove."""
    await h.publish(make_packet(b"\0again", own="kept"))
    consumer, dead_letters = await h.consumer(), h.dead_letters()
    first = await h.receive_one(consumer)
    await consumer.dead_letter(first, REASON)
    ((letter,), _) = await dead_letters.browse(1)
    await h.publish(letter.packet)
    expect(await dead_letters.remove([letter.id]), 1, "how many were removed")
    again = await h.receive_one(consumer)
    expect(again.packet.body, first.packet.body, "the body that was delivered again")
    expect({**again.packet.headers}, {**first.packet.headers, **REASON}, "its headers")
    expect(await dead_letters.count(), 0, "the dead letters that are left")
