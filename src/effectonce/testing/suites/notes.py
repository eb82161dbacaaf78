"""Notes: how far a claim has come, for whoever goes on with it."""

from __future__ import annotations

from .harness import SECOND, Case, Harness, case
from .sentences import equal, holds


def noted(body: object) -> Case:
    """A case for stores that keep notes."""

    async def through(h: Harness) -> None:
        h.needs(h.capabilities.notes, "a store that keeps notes")
        await body(h)  # type: ignore[operator]

    through.__name__, through.__doc__ = body.__name__, body.__doc__  # type: ignore[attr-defined]
    return case(through)


@noted
async def a_claims_note_is_stored_and_answered(h: Harness) -> None:
    equal((await h.take(note=b"frozen")).answer.note, b"frozen", "the note in the answer")
    equal((await h.record()).note, b"frozen", "the note in the record")
    equal((await h.take("bare")).answer.note, None, "the note of a claim that has none")


@noted
async def a_claim_repeated_answers_the_note_as_well(h: Harness) -> None:
    """F68: the reply to the first was lost."""
    mine = await h.take(note=b"frozen")
    await h.note(mine, b"sent")
    again = await h.send(h.a_claim(owner=mine.claim.owner, note=b"frozen"))
    equal((again.kind, again.token, again.answer.note), ("claimed", mine.token, b"sent"), "the repetition")


@noted
async def the_first_note_stays_whoever_claims_next(h: Harness) -> None:
    """What was frozen once is what everyone goes on with."""
    await h.settle(await h.take(note=b"first"), "free")
    equal((await h.take(note=b"second", lease=h.brief)).answer.note, b"first", "after a release")
    await h.past(h.brief)
    equal((await h.take(note=b"third")).answer.note, b"first", "after a lapse")
    equal((await h.record()).note, b"first", "what is stored")


@noted
async def a_note_brought_later_is_stored_where_there_was_none(h: Harness) -> None:
    await h.settle(await h.take(), "free")
    equal((await h.take(note=b"late")).answer.note, b"late", "the note")


@noted
async def a_note_replaces_the_one_before_and_outlives_its_writer(h: Harness) -> None:
    mine = await h.take(note=b"0", lease=h.brief)
    holds(await h.note(mine, b"1"), "the note was not applied")
    holds(await h.note(mine, b"2"), "the note was not applied")
    await h.past(h.brief)
    other = await h.take(note=b"0")
    equal((other.answer.note, other.answer.lapsed), (b"2", True), "what the next one finds")


@noted
async def a_note_repeated_answers_true(h: Harness) -> None:
    mine = await h.take(note=b"0")
    equal([await h.note(mine, b"1") for _ in range(2)], [True, True], "the note, sent twice")


@noted
async def a_note_of_a_zombie_is_refused(h: Harness) -> None:
    """F08: it paused, its lease ended, and another went on."""
    zombie = await h.lapsed(note=b"0")
    mine = await h.take()
    await h.note(mine, b"ours")
    equal(await h.note(zombie, b"theirs"), False, "the zombie's note")
    equal(await h.note(mine.with_token(mine.token - 1), b"x"), False, "a note with an older token")
    equal(await h.note(mine.with_owner(b"\0" * 16), b"x"), False, "a note of another owner")
    equal((await h.record()).note, b"ours", "what is stored")


@noted
async def a_note_on_what_is_not_claimed_is_refused(h: Harness) -> None:
    for state in ("done", "failed", "in_doubt", "free"):
        mine = await h.take(state, note=b"0")
        await h.settle(mine, state)
        equal(await h.note(mine, b"1"), False, f"a note on a record that is {state}")
        equal((await h.record(state)).note, b"0", f"the note of a record that is {state}")


@noted
async def a_settlement_keeps_the_note_unless_it_brings_one(h: Harness) -> None:
    for state in ("done", "failed", "in_doubt", "free"):
        await h.settle(await h.take(f"{state} kept", note=b"0"), state)
        equal((await h.record(f"{state} kept")).note, b"0", f"the note after {state}")
        await h.settle(await h.take(f"{state} new", note=b"0"), state, note=b"1")
        equal((await h.record(f"{state} new")).note, b"1", f"the note that {state} brought")


@noted
async def a_retry_keeps_the_note_and_a_forget_drops_it(h: Harness) -> None:
    await h.in_doubt(note=b"0")
    holds(await h.resolve("free"), "the resolution was not applied")
    mine = await h.take(note=b"1")
    equal((mine.answer.note, mine.answer.generation), (b"0", 1), "after a retry")
    await h.forget()
    mine = await h.take(note=b"1")
    equal((mine.answer.note, mine.answer.generation), (b"1", 2), "after a forget")


@noted
async def an_expired_note_is_gone(h: Harness) -> None:
    await h.settle(await h.take(note=b"old"), "done", retention=h.brief)
    await h.past(h.brief)
    equal((await h.take(note=b"new")).answer.note, b"new", "the note")


@noted
async def a_note_is_any_bytes(h: Harness) -> None:
    for name, note in {"empty": b"", "binary": bytes(range(256)), "long": b"\0\xff" * 50_000}.items():
        mine = await h.take(name, note=note)
        equal(mine.answer.note, note, f"the {name} note of the claim")
        holds(await h.note(mine, note[::-1]), f"the {name} note was not applied")
        equal((await h.record(name)).note, note[::-1], f"the {name} note")


@noted
async def what_is_unfinished_is_listed(h: Harness) -> None:
    """Claimed or free, and with a note: what recovery has to look at."""
    for number in range(3):
        await h.take(f"claimed {number}", note=b"n")
        await h.settle(await h.take(f"free {number}", note=b"n"), "free")
    await h.take("claimed without")
    await h.settle(await h.take("free without"), "free")
    for state in ("done", "failed", "in_doubt"):
        await h.settle(await h.take(state, note=b"n"), state)
    pages = await h.pages(scope=h.scope, unfinished=True, limit=2)
    found = sorted(record.key for page in pages for record in page.records)
    equal(found, [f"{state} {n}" for state in ("claimed", "free") for n in range(3)], "what is unfinished")
    equal({record.note for page in pages for record in page.records}, {b"n"}, "their notes")


@noted
async def notes_of_a_batch_go_to_their_records(h: Harness) -> None:
    claims = [h.a_claim(f"k{n}", note=b"%d" % n if n % 2 else None) for n in range(8)]
    answers = await h.run(*claims)
    equal(
        [getattr(answer, "note", ...) for answer in answers],
        [b"%d" % n if n % 2 else None for n in range(8)],
        "the notes that were answered",
    )
    holds((await h.record("k3")).expires_at is not None, "a note keeps no record alive")
    holds(((await h.record("k3")).lease_until or 0) > await h.now() + SECOND, "the lease of a claim with a note")


@noted
async def notes_and_settlements_of_one_batch_do_each_their_own(h: Harness) -> None:
    """F08, F68: as if each were alone, also for the zombie among them, and when the batch is sent again."""
    noted, ended, doubted = [await h.take(key, note=b"0") for key in ("noted", "ended", "doubted")]
    over = await h.take("over", note=b"0")
    await h.settle(over)
    zombie = await h.lapsed("zombie", note=b"0")
    await h.take("zombie")
    before = await h.record("noted")
    batch = (
        h.a_settlement(doubted, "in_doubt"),
        h.a_settlement(ended, result=b"r"),
        h.a_note(noted, b"1"),
        h.a_note(over, b"1"),
        h.a_note(zombie, b"1"),
    )
    for sent in ("first", "again"):
        equal(await h.run(*batch), [True, True, True, False, False], f"the replies to the batch, sent {sent}")
    after = await h.record("noted")
    equal((after.state, after.note, after.result), ("claimed", b"1", None), "what was noted")
    for name in ("token", "attempts", "generation", "lease_until", "expires_at", "owner"):
        equal(getattr(after, name), getattr(before, name), f"its {name}")
    equal([(await h.record(key)).state for key in ("ended", "doubted")], ["done", "in_doubt"], "what was settled")
    equal([(await h.record(key)).note for key in ("ended", "over", "zombie")], [b"0"] * 3, "the notes of the others")
    equal([await h.settle(noted), (await h.record("noted")).state], [True, "done"], "what was noted, settled")


@noted
async def a_note_leaves_its_record_to_those_who_look_for_it(h: Harness) -> None:
    """F07, F26: recovery, and at last the sweeper. Alone and among others: a store may write those in two ways."""
    for company in (False, True):
        await h.sweep()
        first, doubts = await h.take(f"late {company}"), await h.take(f"doubts {company}", lease=h.brief, doubt=True)
        ends = await h.take(f"ends {company}", lease=h.brief, retention=3 * h.brief, note=b"0")
        notes = [h.a_note(mine, b"1") for mine in (ends, first, doubts)]
        replies = await h.run(*notes) if company else [await h.one(note) for note in notes]
        equal(replies, [True] * 3, "the replies to the notes")
        pages = await h.pages(scope=h.scope, unfinished=True, limit=100)
        found = [record.key for page in pages for record in page.records]
        holds(f"late {company}" in found, f"a claim that had no note at first is not among the unfinished: {found}")
        await h.past(4 * h.brief)
        deleted = (await h.sweep()).deleted
        holds(deleted >= 1 or h.capabilities.expires_by_itself, "a record with a note has expired, and was not deleted")
        states = [await h.state(mine.claim.key) for mine in (ends, first, doubts)]
        equal(states, ["absent", "claimed", "in_doubt"], "the states after a sweep")
