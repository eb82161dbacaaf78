"""Step 2 of a claim: another payload under the same key is refused, whatever the state."""

from __future__ import annotations

from effectonce.testing.suites.expectations import expect, expect_fields

from .harness import RecordState, StoreHarness, fingerprint

ONE_FINGERPRINT, OTHER_FINGERPRINT = fingerprint("one payload"), fingerprint("another payload")
STATES: tuple[RecordState, ...] = ("claimed", "done", "failed", "in_doubt", "free", "lapsed", "exhausted")


async def another_payload_mismatches_in_every_state(h: StoreHarness) -> None:
    """F21: it is refused, changes nothing, and learns nothing of the stored outcome."""
    for state in STATES:
        await h.make_record(state, state, fingerprints=ONE_FINGERPRINT, result=b"secret", error=b"secret")
    await h.make_record("lapsed", "lapsed into doubt", fingerprints=ONE_FINGERPRINT, doubt_on_lapse=True)
    for key in (*STATES, "lapsed into doubt"):
        what = f"the answer to another payload where the record is {key}"
        before = await h.get(key)
        answer = await h.try_claim(key, fingerprints=OTHER_FINGERPRINT)
        expect_fields(answer, what, kind="mismatch", result=None, error=None)
        expect_fields(await h.look(key, fingerprints=OTHER_FINGERPRINT), what, kind="mismatch")
        expect(await h.get(key), before, f"the record, which is {key}, after a mismatch")


async def another_payload_mismatches_even_under_the_same_owner(h: StoreHarness) -> None:
    grant = await h.claim(fingerprints=ONE_FINGERPRINT)
    expect_fields(await h.try_claim(owner=grant.claim.owner, fingerprints=OTHER_FINGERPRINT), kind="mismatch")


async def the_same_payload_matches(h: StoreHarness) -> None:
    grant = await h.claim(fingerprints=ONE_FINGERPRINT)
    expect_fields(await h.try_claim(fingerprints=ONE_FINGERPRINT), kind="in_progress")
    await h.settle(grant, "done", result=b"r")
    expect_fields(await h.try_claim(fingerprints=ONE_FINGERPRINT), result=b"r")


async def a_claim_without_fingerprint_is_not_compared(h: StoreHarness) -> None:
    await h.make_record("done", fingerprints=ONE_FINGERPRINT, result=b"r")
    expect_fields(await h.try_claim(), kind="done")
    expect_fields(await h.look(), kind="done")


async def a_record_without_fingerprint_is_not_compared(h: StoreHarness) -> None:
    await h.make_record("done", result=b"r")
    expect_fields(await h.try_claim(fingerprints=ONE_FINGERPRINT), kind="done")


async def a_stored_fingerprint_may_be_any_of_those_sent(h: StoreHarness) -> None:
    """Claims send one per algorithm version, so that an upgrade recognises what the old version stored."""
    v1, v2 = fingerprint("payload", 1), fingerprint("payload", 2)
    await h.make_record("free", fingerprints=v1)
    expect_fields(await h.look(fingerprints=v2 + v1), "a look that sends both versions", kind="absent")
    await h.claim(fingerprints=v2 + v1)
    expect_fields(await h.record(), "a record whose claim sent both versions", fingerprint=v2)
    expect_fields(await h.try_claim(fingerprints=v1), "a claim that sends the old version only", kind="mismatch")


async def a_claim_without_fingerprint_leaves_the_stored_one(h: StoreHarness) -> None:
    await h.make_record("free", fingerprints=ONE_FINGERPRINT)
    await h.make_record("free")
    expect_fields(await h.try_claim(fingerprints=OTHER_FINGERPRINT), kind="mismatch")
