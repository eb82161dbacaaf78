"""The operations of operators on one record: get, forget and resolve."""

from __future__ import annotations

from effectonce.testing.suites.expectations import expect, expect_fields, require

from .harness import RESOLUTIONS, SETTLEMENTS, StoreHarness, expect_newer_token, fingerprint, outcome_of

# -- get


async def get_of_an_unknown_key_is_none(h: StoreHarness) -> None:
    expect(await h.get("never"), None, "get")


async def get_shows_a_lapse_as_it_is_stored(h: StoreHarness) -> None:
    await h.make_record("lapsed", "rerun")
    await h.make_record("lapsed", "doubt", doubt_on_lapse=True)
    expect(await h.states("rerun", "doubt"), ["claimed", "claimed"], "the stored states")


async def created_at_stays_and_changed_at_moves(h: StoreHarness) -> None:
    grant = await h.claim()
    first = await h.record()
    await h.wait_out(2_000)
    await h.settle(grant, "done")
    second = await h.record()
    expect_fields(second, created_at=first.created_at)
    require(second.changed_at > first.changed_at, "changed_at did not move")


# -- forget


async def forget_makes_the_next_claim_run(h: StoreHarness) -> None:
    for state in SETTLEMENTS:
        grant = await h.make_record(state, state, fingerprints=fingerprint("p"), result=b"r", error=b"e")
        await h.forget(state)
        record = await h.record(state)
        what = f"what a forget of {state} stores"
        expect_fields(record, what, state="free", attempts=0, generation=1, result=None, error=None, fingerprint=None)
        expect_newer_token(record, grant)
        again = await h.claim(state, fingerprints=fingerprint("corrected"), max_attempts=1)
        expect_fields(again.answer, "the next claim", attempts=1, generation=1, lapsed=False)
        expect_newer_token(again, record)


async def forget_of_an_exhausted_record_lets_it_run_again(h: StoreHarness) -> None:
    await h.make_record("exhausted")
    await h.forget()
    expect_fields((await h.claim(max_attempts=1)).answer, attempts=1)


async def forget_fences_the_owner_out(h: StoreHarness) -> None:
    """F69: the zombie whose record was forgotten settles nothing, before or after the next claim."""
    grant = await h.claim()
    await h.forget()
    await h.expect_fenced(grant)
    expect(await h.state(), "free", "the state")
    again = await h.claim()
    await h.expect_fenced(grant)
    await h.settle(again, "done", result=b"r")


async def forget_of_nothing_is_false(h: StoreHarness) -> None:
    expect(await h.try_forget("never"), False, "a forget of nothing")
    expect(await h.get("never"), None, "what it left")
    await h.make_record("done", "expired", retention=h.brief_us)
    await h.wait_out(h.brief_us)
    expect(await h.try_forget("expired"), False, "a forget of an expired record")


async def a_forgotten_record_expires(h: StoreHarness) -> None:
    grant = await h.make_record("in_doubt")
    await h.forget(retention=h.brief_us)
    await h.wait_out(h.brief_us)
    expect(await h.get(), None, "get after the retention")
    again = await h.claim()
    expect_fields(again.answer, attempts=1, generation=0)
    expect_newer_token(again, grant)


async def forget_touches_its_own_identity_only(h: StoreHarness) -> None:
    other = h.scope + "-other"
    await h.make_record("done", "k", scope=other)
    await h.make_record("done", "k2")
    await h.claim("k")
    await h.forget("k")
    expect_fields(await h.look("k", scope=other), "the same key in another scope", kind="done")
    expect_fields(await h.look("k2"), "another key in the same scope", kind="done")


# -- resolve


async def resolve_done_stores_the_result(h: StoreHarness) -> None:
    grant = await h.make_record("in_doubt")
    await h.resolve("done", result=b"r")
    expect_fields(await h.try_claim(), kind="done", result=b"r")
    record = await h.record()
    expect_fields(record, generation=0, error=None)
    require(record.expires_at is not None, "a resolved record never expires")
    await h.expect_fenced(grant)
    expect_fields(await h.record(), result=b"r")


async def resolve_failed_stores_the_error(h: StoreHarness) -> None:
    grant = await h.make_record("in_doubt")
    await h.resolve("failed", error=b"e")
    expect_fields(await h.try_claim(), kind="failed", error=b"e", result=None)
    await h.expect_fenced(grant)


async def resolve_free_starts_a_new_generation(h: StoreHarness) -> None:
    grant = await h.make_record("in_doubt")
    await h.resolve("free")
    expect_fields(await h.record(), state="free", attempts=0, generation=1)
    await h.expect_fenced(grant)
    again = await h.claim(max_attempts=1)
    expect_fields(again.answer, "the next claim", attempts=1, generation=1)
    expect_newer_token(again, grant)
    await h.expect_fenced(grant)


async def resolve_keeps_the_operators_retention(h: StoreHarness) -> None:
    for state in RESOLUTIONS:
        await h.make_record("in_doubt", state)
        await h.resolve(state, state, retention=h.brief_us)
    await h.wait_out(h.brief_us)
    expect(await h.states(*RESOLUTIONS), ["absent"] * 3, "the states after the retention")


async def resolve_takes_a_claim_that_lapsed_into_doubt(h: StoreHarness) -> None:
    """F07: the owner is dead, no claim came since, no sweeper came by: the operator still reaches it."""
    for state in RESOLUTIONS:
        grant = await h.make_record("lapsed", state, doubt_on_lapse=True)
        await h.resolve(state, state, **outcome_of(state))
        expect(await h.state(state), state, "the state")
        await h.expect_fenced(grant)


async def resolve_of_what_is_not_in_doubt_is_refused(h: StoreHarness) -> None:
    """NotInDoubt: an operator's late word must not undo what is settled, nor take a live claim."""
    expect(await h.try_resolve("done", "never"), False, "a resolution of nothing")
    expect(await h.get("never"), None, "what it left")
    await h.claim("live")
    await h.claim("live-doubt", doubt_on_lapse=True)
    await h.make_record("lapsed", "lapsed-rerun")
    for state in RESOLUTIONS:
        await h.make_record(state, state, **outcome_of(state))
    for key in ("live", "live-doubt", "lapsed-rerun", *RESOLUTIONS):
        before = await h.get(key)
        for resolution in RESOLUTIONS:
            late = await h.try_resolve(resolution, key, result=b"late", error=b"late")
            expect(late, False, f"a resolution of {key} to {resolution}")
        expect(await h.get(key), before, f"the record of {key}")


async def a_second_resolution_is_refused(h: StoreHarness) -> None:
    await h.make_record("in_doubt")
    await h.resolve("done", result=b"first")
    expect(await h.try_resolve("free"), False, "the second resolution")
    expect_fields(await h.try_claim(), result=b"first")
