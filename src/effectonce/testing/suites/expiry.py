"""Step 1 of a claim: what has expired counts as absent, and a lease ends when no time is left."""

from __future__ import annotations

from .harness import SECOND, Harness, a_print, case
from .sentences import equal, holds

ONE, OTHER = a_print("one payload"), a_print("another payload")


@case
async def an_expired_done_record_counts_as_absent(h: Harness) -> None:
    first = await h.take(prints=ONE)
    holds(await h.settle(first, "done", result=b"old", retention=h.brief), "the completion was not applied")
    await h.past(h.brief)
    equal(await h.get(), None, "get of an expired record")
    equal((await h.look()).kind, "absent", "a look at an expired record")
    again = (await h.take()).answer
    equal((again.attempts, again.generation, again.lapsed), (1, 0, False), "attempts, generation and lapsed")
    equal((again.result, again.error), (None, None), "what is left of the expired record")
    holds(
        again.token > first.token,
        f"F69: the token did not grow over expiry: {first.token}, then {again.token}",
    )
    record = await h.record()
    equal((record.result, record.error), (None, None), "what the new claim inherited from the expired record")


@case
async def an_expired_failed_record_counts_as_absent(h: Harness) -> None:
    holds(await h.settle(await h.take(), "failed", error=b"e", retention=h.brief), "the failure was not applied")
    await h.past(h.brief)
    equal(await h.get(), None, "get of an expired record")
    equal((await h.take()).answer.attempts, 1, "attempts after expiry")


@case
async def an_expired_free_record_counts_as_absent(h: Harness) -> None:
    holds(await h.settle(await h.take(), "free", retention=h.brief), "the release was not applied")
    await h.past(h.brief)
    equal(await h.get(), None, "get of an expired record")
    equal((await h.take()).answer.attempts, 1, "attempts after expiry")


@case
async def a_lapsed_claim_expires_one_retention_after_its_lease(h: Harness) -> None:
    first = await h.take(lease=h.brief, retention=h.brief)
    await h.past(2 * h.brief)
    equal(await h.get(), None, "get of an expired record")
    again = await h.take()
    equal((again.answer.attempts, again.answer.lapsed), (1, False), "attempts and lapsed after expiry")
    holds(again.token > first.token, f"the token did not grow over expiry: {first.token}, then {again.token}")


@case
async def an_expired_record_is_no_mismatch(h: Harness) -> None:
    first = await h.take(prints=ONE)
    holds(await h.settle(first, "done", retention=h.brief), "the completion was not applied")
    await h.past(h.brief)
    equal((await h.look(prints=OTHER)).kind, "absent", "a look with another payload, after expiry")
    await h.take(prints=OTHER)
    equal((await h.record()).fingerprint, OTHER, "the stored fingerprint")


@case
async def an_expired_records_fingerprint_is_not_inherited(h: Harness) -> None:
    first = await h.take(prints=ONE)
    holds(await h.settle(first, "done", retention=h.brief), "the completion was not applied")
    await h.past(h.brief)
    await h.take()
    equal((await h.record()).fingerprint, None, "the fingerprint of a claim that sent none")


@case
async def an_expired_record_does_not_count_against_the_limit(h: Harness) -> None:
    await h.take(lease=h.brief, retention=h.brief, max_attempts=1)
    await h.past(2 * h.brief)
    equal((await h.take(max_attempts=1)).answer.attempts, 1, "attempts after expiry")


@case
async def records_end_exactly_at_their_expiry(h: Harness) -> None:
    """F13: ``expires_at <= now`` is expired, one microsecond earlier is not."""
    clock = h.manual_clock()
    holds(await h.settle(await h.take(), "done", retention=SECOND), "the completion was not applied")
    clock.advance_micros(SECOND - 1)
    equal((await h.look()).kind, "done", "a look one microsecond before expiry")
    clock.advance_micros(1)
    equal((await h.look()).kind, "absent", "a look at the moment of expiry")
    equal((await h.take()).answer.attempts, 1, "attempts after expiry")


@case
async def a_lease_ends_exactly_when_no_time_is_left(h: Harness) -> None:
    """F13: a remaining time of 0 is the end of the lease, not "no lease"."""
    clock = h.manual_clock()
    await h.take(lease=SECOND)
    clock.advance_micros(SECOND - 1)
    held = (await h.ask()).answer
    equal(held.kind, "in_progress", "a claim one microsecond before the lease ends")
    holds(0 <= held.retry_after <= 0.001, f"retry_after is {held.retry_after} with a microsecond left")
    clock.advance_micros(1)
    equal((await h.take()).answer.lapsed, True, "lapsed, at the moment the lease ends")


@case
async def the_shortest_lease_ends(h: Harness) -> None:
    """F13: a lease that rounds to 0 in the store's unit must not become one that never ends."""
    h.needs(not h.capabilities.estimated_clock, "a clock that tells microseconds")
    await h.take(lease=1)
    await h.past(1)
    equal((await h.take()).answer.lapsed, True, "lapsed, after a lease of one microsecond")
