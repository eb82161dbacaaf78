"""Step 2 of a claim: another payload under the same key is refused, whatever the state."""

from __future__ import annotations

from .harness import Harness, a_print, case
from .sentences import equal

ONE, OTHER = a_print("one payload"), a_print("another payload")


async def _mismatches(h: Harness, state: str) -> None:
    """Another payload is refused in this state, and nothing changes or leaks."""
    before = await h.get()
    asked = (await h.ask(prints=OTHER)).answer
    equal(asked.kind, "mismatch", f"F21: a claim with another payload where the record is {state}")
    equal((asked.result, asked.error), (None, None), "what a mismatch tells of the stored outcome")
    equal((await h.look(prints=OTHER)).kind, "mismatch", f"a look with another payload where it is {state}")
    equal(await h.get(), before, "the record after a mismatch")


@case
async def another_payload_mismatches_a_claimed_record(h: Harness) -> None:
    await h.take(prints=ONE)
    await _mismatches(h, "claimed")


@case
async def another_payload_mismatches_a_done_record(h: Harness) -> None:
    await h.settle(await h.take(prints=ONE), "done", result=b"secret")
    await _mismatches(h, "done")


@case
async def another_payload_mismatches_a_failed_record(h: Harness) -> None:
    await h.settle(await h.take(prints=ONE), "failed", error=b"secret")
    await _mismatches(h, "failed")


@case
async def another_payload_mismatches_a_record_in_doubt(h: Harness) -> None:
    await h.in_doubt(prints=ONE)
    await _mismatches(h, "in doubt")


@case
async def another_payload_mismatches_a_free_record(h: Harness) -> None:
    await h.settle(await h.take(prints=ONE), "free")
    await _mismatches(h, "free")


@case
async def another_payload_mismatches_a_lapsed_claim(h: Harness) -> None:
    await h.lapsed(prints=ONE)
    await _mismatches(h, "lapsed")


@case
async def another_payload_mismatches_a_claim_lapsed_into_doubt(h: Harness) -> None:
    await h.lapsed(prints=ONE, doubt=True)
    await _mismatches(h, "lapsed into doubt")


@case
async def another_payload_mismatches_an_exhausted_record(h: Harness) -> None:
    await h.settle(await h.take(prints=ONE), "free")
    equal((await h.ask(prints=ONE, max_attempts=1)).kind, "exhausted", "a claim past the limit")
    await _mismatches(h, "exhausted")


@case
async def another_payload_mismatches_even_under_the_same_owner(h: Harness) -> None:
    mine = await h.take(prints=ONE)
    equal(
        (await h.ask(owner=mine.claim.owner, prints=OTHER)).kind,
        "mismatch",
        "the owner's claim, another payload",
    )


@case
async def the_same_payload_matches(h: Harness) -> None:
    mine = await h.take(prints=ONE)
    equal((await h.ask(prints=ONE)).kind, "in_progress", "the same payload, claimed")
    await h.settle(mine, "done", result=b"r")
    equal((await h.ask(prints=ONE)).answer.result, b"r", "the same payload, done")


@case
async def a_claim_without_fingerprint_is_not_compared(h: Harness) -> None:
    await h.settle(await h.take(prints=ONE), "done", result=b"r")
    equal((await h.ask()).kind, "done", "a claim without fingerprint on a record with one")
    equal((await h.look()).kind, "done", "a look without fingerprint")


@case
async def a_record_without_fingerprint_is_not_compared(h: Harness) -> None:
    await h.settle(await h.take(), "done", result=b"r")
    equal((await h.ask(prints=ONE)).kind, "done", "a claim with a fingerprint on a record without")


@case
async def a_stored_fingerprint_may_be_any_of_those_sent(h: Harness) -> None:
    """Claims send one per algorithm version, so that an upgrade recognises what the old version stored."""
    v1, v2 = a_print("payload", 1), a_print("payload", 2)
    await h.settle(await h.take(prints=v1), "free")
    equal((await h.look(prints=v2 + v1)).kind, "absent", "a look that sends both versions")
    await h.take(prints=v2 + v1)
    equal((await h.record()).fingerprint, v2, "the stored fingerprint, the first of those sent")
    equal((await h.ask(prints=v1)).kind, "mismatch", "a claim that sends only the version no longer stored")


@case
async def a_claim_without_fingerprint_leaves_the_stored_one(h: Harness) -> None:
    await h.settle(await h.take(prints=ONE), "free")
    await h.settle(await h.take(), "free")
    equal((await h.ask(prints=OTHER)).kind, "mismatch", "another payload, after a claim that sent none")
