"""Notes: what a claim stores about how far its work has come, for the next claim that resumes it."""

from __future__ import annotations

from effectonce.testing.suites.expectations import expect, expect_fields, require

from .harness import SETTLEMENTS, StoreHarness
from .port_harness import SECOND_US

REQUIRES = "notes"  # the capability that all of these cases are about


async def a_claims_note_is_stored_and_answered(h: StoreHarness) -> None:
    expect_fields(await h.try_claim(note=b"frozen"), kind="claimed", note=b"frozen")
    expect_fields(await h.record(), note=b"frozen")
    expect_fields(await h.try_claim("bare"), "a claim that has none", kind="claimed", note=None)


async def a_claim_repeated_answers_the_note_as_well(h: StoreHarness) -> None:
    """F68: the reply to the first was lost."""
    grant = await h.claim(note=b"frozen")
    await h.note(grant, b"sent")
    expect_fields(await h.send(grant.claim), kind="claimed", token=grant.token, note=b"sent")


async def the_first_note_stays_whichever_claim_is_next(h: StoreHarness) -> None:
    """What was frozen once is what every attempt resumes."""
    await h.make_record("free", note=b"first")
    second = await h.claim(note=b"second", lease=h.brief_us)
    expect_fields(second.answer, "a claim after a release", note=b"first")
    await h.wait_out(h.brief_us)
    expect_fields(await h.try_claim(note=b"third"), "a claim after a lapse", kind="claimed", note=b"first")
    expect_fields(await h.record(), note=b"first")


async def a_note_brought_later_is_stored_where_there_was_none(h: StoreHarness) -> None:
    await h.make_record("free")
    expect_fields(await h.try_claim(note=b"late"), kind="claimed", note=b"late")


async def a_note_replaces_the_one_before_and_outlives_its_writer(h: StoreHarness) -> None:
    grant = await h.claim(note=b"0", lease=h.brief_us)
    await h.note(grant, b"1")
    await h.note(grant, b"2")
    await h.wait_out(h.brief_us)
    expect_fields(await h.try_claim(note=b"0"), "the next claim", kind="claimed", note=b"2", lapsed=True)


async def a_note_repeated_answers_true(h: StoreHarness) -> None:
    grant = await h.claim(note=b"0")
    for _ in range(2):
        await h.note(grant, b"1")


async def a_note_of_a_zombie_is_refused(h: StoreHarness) -> None:
    """F08: it paused, its lease ended, and another resumed its work."""
    zombie = await h.make_record("lapsed", note=b"0")
    successor = await h.claim()
    await h.note(successor, b"ours")
    expect(await h.try_note(zombie, b"theirs"), False, "the zombie's note")
    expect(await h.try_note(successor.with_token(successor.token - 1), b"x"), False, "a note with an older token")
    expect(await h.try_note(successor.with_another_owner(b"\0" * 16), b"x"), False, "a note of another owner")
    expect_fields(await h.record(), note=b"ours")


async def a_note_on_what_is_not_claimed_is_refused(h: StoreHarness) -> None:
    for state in SETTLEMENTS:
        grant = await h.make_record(state, state, note=b"0")
        expect(await h.try_note(grant, b"1"), False, f"a note on a record that is {state}")
        expect_fields(await h.record(state), f"a record that is {state}", note=b"0")


async def a_settlement_keeps_the_note_unless_it_brings_one(h: StoreHarness) -> None:
    for state in SETTLEMENTS:
        await h.make_record(state, f"{state} kept", note=b"0")
        expect_fields(await h.record(f"{state} kept"), f"the record after {state}", note=b"0")
        await h.settle(await h.claim(f"{state} new", note=b"0"), state, note=b"1")
        expect_fields(await h.record(f"{state} new"), f"the record after {state} with a note", note=b"1")


async def a_retry_keeps_the_note_and_a_forget_drops_it(h: StoreHarness) -> None:
    await h.make_record("in_doubt", note=b"0")
    await h.resolve("free")
    expect_fields(await h.try_claim(note=b"1"), "a claim after a retry", kind="claimed", note=b"0", generation=1)
    await h.forget()
    expect_fields(await h.try_claim(note=b"1"), "a claim after a forget", kind="claimed", note=b"1", generation=2)


async def an_expired_note_is_gone(h: StoreHarness) -> None:
    await h.make_record("done", note=b"old", retention=h.brief_us)
    await h.wait_out(h.brief_us)
    expect_fields(await h.try_claim(note=b"new"), kind="claimed", note=b"new")


async def a_note_is_any_bytes(h: StoreHarness) -> None:
    for name, note in {"empty": b"", "binary": bytes(range(256)), "long": b"\0\xff" * 50_000}.items():
        grant = await h.claim(name, note=note)
        expect_fields(grant.answer, name, note=note)
        await h.note(grant, note[::-1])
        expect_fields(await h.record(name), name, note=note[::-1])


async def unfinished_records_are_listed(h: StoreHarness) -> None:
    """Claimed or free, and with a note: what recovery has to look at."""
    for number in range(3):
        await h.make_record("claimed", f"claimed {number}", note=b"n")
        await h.make_record("free", f"free {number}", note=b"n")
    await h.make_record("claimed", "claimed without")
    await h.make_record("free", "free without")
    for state in ("done", "failed", "in_doubt"):
        await h.make_record(state, state, note=b"n")
    records = await h.list_records(scope=h.scope, unfinished=True, limit=2)
    unfinished = [f"{state} {number}" for state in ("claimed", "free") for number in range(3)]
    expect(sorted(record.key for record in records), unfinished, "the unfinished keys")
    expect({record.note for record in records}, {b"n"}, "their notes")


async def notes_of_a_batch_go_to_their_records(h: StoreHarness) -> None:
    notes = [b"%d" % n if n % 2 else None for n in range(8)]
    answers = await h.run(*(h.make_claim(f"k{n}", note=note) for n, note in enumerate(notes)))
    expect([getattr(answer, "note", ...) for answer in answers], notes, "the notes that were answered")
    record = await h.record("k3")
    require(record.expires_at is not None, "a note keeps no record alive")
    require((record.lease_until or 0) > await h.now() + SECOND_US, "the lease of a claim with a note")


async def notes_and_settlements_of_one_batch_do_each_their_own(h: StoreHarness) -> None:
    """F08, F68: each has its own outcome, also the zombie among them, and when the batch is sent again."""
    noted, ended, doubted = [await h.claim(key, note=b"0") for key in ("noted", "ended", "doubted")]
    over = await h.make_record("done", "over", note=b"0")
    zombie = await h.make_record("lapsed", "zombie", note=b"0")
    await h.claim("zombie")
    before = await h.record("noted")
    batch = (
        doubted.settlement("in_doubt"),
        ended.settlement("done", result=b"r"),
        noted.note(b"1"),
        over.note(b"1"),
        zombie.note(b"1"),
    )
    for sent in ("first", "again"):
        expect(await h.run(*batch), [True, True, True, False, False], f"the replies to the batch, sent {sent}")
    after = await h.record("noted")
    expect_fields(after, state="claimed", note=b"1", result=None)
    for name in ("token", "attempts", "generation", "lease_until", "expires_at", "owner"):
        expect_fields(after, **{name: getattr(before, name)})
    expect(await h.states("ended", "doubted"), ["done", "in_doubt"], "the states of what was settled")
    for key in ("ended", "over", "zombie"):
        expect_fields(await h.record(key), key, note=b"0")
    await h.settle(noted)
    expect(await h.state("noted"), "done", "the state of what was noted, and then settled")


async def a_note_leaves_its_record_to_recovery_and_to_the_sweeper(h: StoreHarness) -> None:
    """F07, F26: alone and in a batch, since a store may write the two in different ways."""
    for batched in (False, True):
        await h.sweep()
        first = await h.claim(f"late {batched}")
        doubts = await h.claim(f"doubts {batched}", lease=h.brief_us, doubt_on_lapse=True)
        ends = await h.claim(f"ends {batched}", lease=h.brief_us, retention=3 * h.brief_us, note=b"0")
        batch = [grant.note(b"1") for grant in (ends, first, doubts)]
        replies = await h.run(*batch) if batched else [(await h.run(note))[0] for note in batch]
        expect(replies, [True] * 3, "the replies to the notes")
        unfinished = await h.list_keys(unfinished=True)
        require(first.key in unfinished, f"a claim that had no note at first is not among the unfinished: {unfinished}")
        await h.wait_out(4 * h.brief_us)
        deleted = (await h.sweep()).deleted
        require(
            deleted >= 1 or h.capabilities.expires_by_itself, "a record with a note has expired, and was not deleted"
        )
        states = await h.states(ends.key, first.key, doubts.key)
        expect(states, ["absent", "claimed", "in_doubt"], "the states after a sweep")
