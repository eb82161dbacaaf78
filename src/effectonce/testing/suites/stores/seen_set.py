"""Mode S, the seen-set: which records a success that was not claimed replaces, and which it leaves."""

from __future__ import annotations

from effectonce.testing.suites.expectations import expect, expect_fields, require

from .harness import RETENTION_US, StoreHarness, expect_newer_token, fingerprint


async def a_remember_makes_an_absent_record_done(h: StoreHarness) -> None:
    before = await h.now()
    await h.remember(result=b"r", fingerprints=fingerprint("p"))
    record = await h.record()
    expect_fields(record, state="done", result=b"r", generation=0, owner=b"", fingerprint=fingerprint("p"))
    require(record.token >= before - h.slack_us, f"token {record.token} is before its time {before}")
    expect_fields(await h.try_claim(), kind="done", result=b"r")
    expect_fields(await h.try_claim(fingerprints=fingerprint("q")), "a claim of another payload", kind="mismatch")


async def a_remember_expires(h: StoreHarness) -> None:
    await h.remember(retention=h.brief_us)
    await h.wait_out(h.brief_us)
    expect(await h.get(), None, "get after the retention")
    await h.remember(result=b"new")
    expect_fields(await h.record(), result=b"new")


async def a_remember_leaves_a_done_record_as_it_is(h: StoreHarness) -> None:
    """All replays agree, whichever recorded first."""
    await h.make_record("done", "claimed-first", result=b"first")
    await h.remember("remembered-first", result=b"first")
    for key in ("claimed-first", "remembered-first"):
        before = await h.get(key)
        await h.remember(key, result=b"second", retention=2 * RETENTION_US)
        expect(await h.get(key), before, f"the record, {key}")


async def a_remember_never_overwrites_a_live_claim(h: StoreHarness) -> None:
    grant = await h.claim()
    before = await h.get()
    expect(await h.try_remember(result=b"r"), False, "a remember of a claimed record")
    expect(await h.get(), before, "the record")
    await h.settle(grant, "done", result=b"mine")


async def a_remember_never_overwrites_a_doubt(h: StoreHarness) -> None:
    await h.make_record("in_doubt", "settled")
    await h.make_record("lapsed", "lapsed", doubt_on_lapse=True)
    for key in ("settled", "lapsed"):
        expect(await h.try_remember(key, result=b"r"), False, f"a remember of a doubt, {key}")
        expect_fields(await h.look(key), f"a look at it, {key}", kind="in_doubt")


async def a_remember_never_overwrites_a_failure(h: StoreHarness) -> None:
    await h.make_record("failed", "failed", error=b"e")
    await h.make_record("exhausted", "exhausted")
    for key in ("failed", "exhausted"):
        before = await h.get(key)
        expect(await h.try_remember(key, result=b"r"), False, f"a remember of a failure, {key}")
        expect(await h.get(key), before, f"the record, {key}")


async def a_remember_takes_a_free_record(h: StoreHarness) -> None:
    await h.claim()
    await h.forget()
    grant = await h.make_record("free")
    await h.remember(result=b"r")
    record = await h.record()
    expect_fields(record, state="done", result=b"r", generation=1)
    expect_newer_token(record, grant)
    expect(await h.try_settle(grant, "free"), False, "the old release, repeated")


async def a_remember_takes_a_lapsed_claim_and_fences_its_owner(h: StoreHarness) -> None:
    grant = await h.make_record("lapsed")
    await h.remember(result=b"r")
    expect_newer_token(await h.record(), grant)
    await h.expect_fenced(grant)
    expect_fields(await h.try_claim(), result=b"r")


async def a_remember_of_another_payload_is_refused(h: StoreHarness) -> None:
    """It is applied where a claim would be granted, and a claim would mismatch."""
    await h.make_record("free", fingerprints=fingerprint("p"))
    before = await h.get()
    expect(await h.try_remember(result=b"r", fingerprints=fingerprint("q")), False, "a remember of another payload")
    expect(await h.get(), before, "the record")
