"""Step 1 of a claim: what has expired counts as absent, and a lease ends when no time is left."""

from __future__ import annotations

from effectonce.testing.suites.expectations import expect, expect_between, expect_fields, skip_unless

from .harness import RESOLUTIONS, StoreHarness, expect_newer_token, fingerprint
from .port_harness import SECOND_US

ONE_FINGERPRINT, OTHER_FINGERPRINT = fingerprint("one payload"), fingerprint("another payload")


async def an_expired_record_counts_as_absent(h: StoreHarness) -> None:
    options = {"fingerprints": ONE_FINGERPRINT, "result": b"old", "error": b"old", "retention": h.brief_us}
    expired = {state: await h.make_record(state, state, **options) for state in RESOLUTIONS}
    await h.wait_out(h.brief_us)
    for state, first in expired.items():
        expect(await h.get(state), None, f"get of an expired record that was {state}")
        expect_fields(await h.look(state), "a look at it", kind="absent")
        again = await h.claim(state)
        expect_fields(again.answer, attempts=1, generation=0, lapsed=False, result=None, error=None)
        expect_newer_token(again, first)
        expect_fields(await h.record(state), "a new record in its place", result=None, error=None)


async def a_lapsed_claim_expires_one_retention_after_its_lease(h: StoreHarness) -> None:
    first = await h.claim(lease=h.brief_us, retention=h.brief_us)
    await h.wait_out(2 * h.brief_us)
    expect(await h.get(), None, "get of an expired record")
    again = await h.claim()
    expect_fields(again.answer, attempts=1, lapsed=False)
    expect_newer_token(again, first)


async def an_expired_record_is_no_mismatch(h: StoreHarness) -> None:
    await h.make_record("done", fingerprints=ONE_FINGERPRINT, retention=h.brief_us)
    await h.wait_out(h.brief_us)
    expect_fields(await h.look(fingerprints=OTHER_FINGERPRINT), "a look with another payload", kind="absent")
    await h.claim(fingerprints=OTHER_FINGERPRINT)
    expect_fields(await h.record(), fingerprint=OTHER_FINGERPRINT)


async def an_expired_records_fingerprint_is_not_inherited(h: StoreHarness) -> None:
    await h.make_record("done", fingerprints=ONE_FINGERPRINT, retention=h.brief_us)
    await h.wait_out(h.brief_us)
    await h.claim()
    expect_fields(await h.record(), "a record whose claim sent none", fingerprint=None)


async def an_expired_record_does_not_count_against_the_limit(h: StoreHarness) -> None:
    await h.claim(lease=h.brief_us, retention=h.brief_us, max_attempts=1)
    await h.wait_out(2 * h.brief_us)
    expect_fields((await h.claim(max_attempts=1)).answer, attempts=1)


async def records_end_exactly_at_their_expiry(h: StoreHarness) -> None:
    """F13: ``expires_at <= now`` is expired, one microsecond earlier is not."""
    clock = skip_unless(h.clock, "a manual clock")
    await h.make_record("done", retention=SECOND_US)
    clock.advance_micros(SECOND_US - 1)
    expect_fields(await h.look(), "a look one microsecond before expiry", kind="done")
    clock.advance_micros(1)
    expect_fields(await h.look(), "a look at the moment of expiry", kind="absent")
    expect_fields((await h.claim()).answer, attempts=1)


async def a_lease_ends_exactly_when_no_time_is_left(h: StoreHarness) -> None:
    """F13: a remaining time of 0 is the end of the lease, not "no lease"."""
    clock = skip_unless(h.clock, "a manual clock")
    await h.claim(lease=SECOND_US)
    clock.advance_micros(SECOND_US - 1)
    answer = await h.try_claim()
    expect_fields(answer, "the answer one microsecond before the lease ends", kind="in_progress")
    expect_between(0, answer.retry_after, 0.001, "retry_after with a microsecond left")
    clock.advance_micros(1)
    expect_fields((await h.claim()).answer, lapsed=True)


async def the_shortest_lease_ends(h: StoreHarness) -> None:
    """F13: a lease that rounds to 0 in the store's unit must not become one that never ends."""
    skip_unless(not h.capabilities.estimated_clock, "a clock that tells microseconds")
    await h.claim(lease=1)
    await h.wait_out(1)
    expect_fields((await h.claim()).answer, "the claim after a lease of one microsecond", lapsed=True)
