"""Sweeps: what the sweeper deletes, what it moves to in doubt, and what it leaves alone."""

from __future__ import annotations

from effectonce.testing.suites.expectations import expect, expect_fields, require

from .harness import RESOLUTIONS, StoreHarness, expect_newer_token


async def sweep_moves_lapsed_doubts(h: StoreHarness) -> None:
    """F07: every stored state is reached by the sweeper."""
    grant = await h.make_record("lapsed", doubt_on_lapse=True)
    swept = await h.sweep()
    require(swept.lapsed >= 1, f"a sweep moved {swept.lapsed} lapsed claims")
    expect_fields(await h.record(), state="in_doubt", expires_at=None, owner=grant.claim.owner, token=grant.token)
    expect(await h.list_keys(state="in_doubt"), ["k"], "the operator's queue")


async def sweep_deletes_what_has_expired(h: StoreHarness) -> None:
    await h.sweep()
    for state in RESOLUTIONS:
        await h.make_record(state, state, retention=h.brief_us)
    await h.claim("lapsed", lease=h.brief_us, retention=h.brief_us)
    await h.wait_out(2 * h.brief_us)
    swept = await h.sweep()
    if not h.capabilities.expires_by_itself:
        require(swept.deleted >= 4, f"a sweep deleted {swept.deleted} of 4 expired records")
    expect(await h.states(*RESOLUTIONS, "lapsed"), ["absent"] * 4, "the states")
    expect(await h.list_keys(), [], "the listed keys")


async def sweep_deletes_no_live_record(h: StoreHarness) -> None:
    """F26: live, in doubt, done and unexpired, free, lapsed: all stay as they are."""
    keys = [*await h.make_record_in_each_state(), "doubt", "rerun"]
    await h.claim("doubt", doubt_on_lapse=True)
    await h.make_record("lapsed", "rerun")
    await h.claim("old-doubt", lease=h.brief_us, retention=h.brief_us, doubt_on_lapse=True)
    await h.wait_out(3 * h.brief_us)
    keys.remove("lapsed")
    before = [await h.get(key) for key in keys]
    await h.sweep()
    expect([await h.get(key) for key in keys], before, "the records after a sweep")
    expect(await h.states("lapsed", "old-doubt"), ["in_doubt"] * 2, "the states of what lapsed into doubt")


async def sweep_is_bounded_by_its_limit(h: StoreHarness) -> None:
    await h.sweep()
    await h.make_backlog(5)
    swept = await h.main_port.sweep(2)
    require(swept.deleted <= 2 and swept.lapsed == 2, f"a sweep of 2, with 5 of each kind to sweep, did {swept}")
    expect_fields(swept, more=True)
    rest = await h.sweep(2)
    require(rest.lapsed >= 3, f"the sweeps after it moved {rest.lapsed} of 3 lapsed claims")
    if not h.capabilities.expires_by_itself:
        require(swept.deleted == 2, f"a sweep of 2 deleted {swept.deleted} of 5 expired records")
        require(rest.deleted >= 3, f"the sweeps after it deleted {rest.deleted} of 3 expired records")
    expect([await h.state(f"doubt{n}") for n in range(5)], ["in_doubt"] * 5, "the states")


async def sweep_records_its_time(h: StoreHarness) -> None:
    """F37: a sweeper that fails in silence is seen by the age of this."""
    before = await h.now()
    await h.sweep()
    await h.expect_recent((await h.main_port.stats()).swept_at, before, "swept_at")


async def a_key_is_claimed_anew_after_it_was_swept(h: StoreHarness) -> None:
    grant = await h.make_record("done", retention=h.brief_us)
    await h.wait_out(h.brief_us)
    await h.sweep()
    again = await h.claim()
    expect_fields(again.answer, attempts=1, generation=0)
    expect_newer_token(again, grant)
    expect(await h.try_settle(grant, "done"), False, "the old owner's completion")
