"""Lists, their filters and pages, and the counts of `stats`."""

from __future__ import annotations

from effectonce.testing.suites.expectations import expect, expect_between, require, skip_unless

from .harness import STATES, StoreHarness


async def list_filters_by_scope(h: StoreHarness) -> None:
    other = h.scope + "-other"
    await h.claim("mine")
    await h.claim("theirs", scope=other)
    expect(await h.list_keys(), ["mine"], "the keys of one scope")
    expect(await h.list_keys(scope=other), ["theirs"], "the keys of the other")
    expect(await h.list_keys(scope=h.scope + "-none"), [], "the keys of an unknown scope")


async def list_filters_by_state(h: StoreHarness) -> None:
    await h.make_record_in_each_state()
    for state in STATES:
        keys = ["claimed", "lapsed"] if state == "claimed" else [state]
        expect(sorted(await h.list_keys(state=state)), keys, f"the keys that are {state}")
        of_all_scopes = await h.list_records(state=state)
        require(all(r.state == state for r in of_all_scopes), f"a list of {state} holds other states")
        listed = {record.key for record in of_all_scopes if record.scope == h.scope}
        require(set(keys) <= listed, f"a list of all {state} misses some")


async def list_shows_records_as_get_does(h: StoreHarness) -> None:
    keys = await h.make_record_in_each_state()
    records = await h.list_records(scope=h.scope)
    expect(sorted(record.key for record in records), sorted(keys), "the listed keys")
    for record in records:
        expect(record, await h.get(record.key), f"the listed record of {record.key}")


async def list_pages_reach_all_and_none_twice(h: StoreHarness) -> None:
    keys = [f"k{n:02}" for n in range(17)]
    for key in keys:
        await h.claim(key)
    for limit in (1, 4, 17, 100):
        expect(sorted(await h.list_keys(limit=limit)), keys, f"the keys on all pages of {limit}")
        claimed = await h.list_keys(state="claimed", limit=limit, sweep_between=True)
        expect(sorted(claimed), keys, f"the claimed keys on all pages of {limit}")


async def a_list_may_begin_after_any_place(h: StoreHarness) -> None:
    skip_unless(h.capabilities.ordered, "a store that keeps its records in order")
    keys = [f"k{n:02}" for n in range(9)]
    for key in keys:
        await h.claim(key)
    await h.make_record("free", "k04z")
    fifth = (h.scope, "k04")
    expect(await h.list_keys(after=fifth, limit=3), ["k04z", *keys[5:]], "the keys after the fifth, in their order")
    expect(await h.list_keys(after=fifth, state="free", limit=3), ["k04z"], "the free ones among them")
    beyond = await h.list_records(scope=None, after=(h.scope + "\x01", ""))
    require(all(record.scope > h.scope for record in beyond), "a list after a scope holds records of it")


async def list_leaves_out_what_has_expired(h: StoreHarness) -> None:
    await h.make_record("done", "gone", retention=h.brief_us)
    await h.make_record("done", "kept")
    await h.wait_out(h.brief_us)
    expect(await h.list_keys(), ["kept"], "the listed keys")
    expect(await h.list_keys(state="done"), ["kept"], "the listed keys that are done")


async def stats_count_every_state(h: StoreHarness) -> None:
    before = await h.main_port.stats()
    keys = await h.make_record_in_each_state()
    now = await h.now()
    after = await h.main_port.stats()
    require(after.cap > 0, f"a cap of {after.cap}")
    states = await h.states(*keys)
    for state in STATES:
        expect_between(states.count(state), after.counts.get(state, 0), after.cap, f"the count of {state}")
    doubts = before.counts.get("in_doubt", 0)
    require(after.counts["in_doubt"] >= min(after.cap, doubts + 1), f"{doubts} in doubt, then one more: {after.counts}")
    oldest = after.oldest_in_doubt
    require(oldest is not None and oldest <= now + h.slack_us, f"the oldest doubt is of {oldest}, now is {now}")


async def stats_do_not_count_what_has_expired(h: StoreHarness) -> None:
    before = (await h.main_port.stats()).counts.get("failed", 0)
    for n in range(3):
        await h.make_record("failed", f"k{n}", retention=h.brief_us)
    await h.wait_out(h.brief_us)
    await h.sweep()
    after = (await h.main_port.stats()).counts.get("failed", 0)
    require(after <= before, f"{before} failed, then three that expired: {after}")
