"""Lists, their filters and pages, and the counts of `stats`."""

from __future__ import annotations

from collections.abc import Sequence

from effectonce.record import Record
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


async def list_may_be_newest_first(h: StoreHarness) -> None:
    keys = [f"k{n}" for n in range(9)]
    grants = {key: await h.claim(key) for key in keys}
    await h.wait_out(1)
    await h.settle(grants["k3"], "done")
    await h.wait_out(1)
    await h.settle(grants["k1"], "failed")
    await h.wait_out(1)
    await h.settle(grants["k7"], "done")
    for limit in (1, 4, 9, 100):
        records = await h.list_records(scope=h.scope, newest_first=True, limit=limit)
        expect(sorted(record.key for record in records), keys, f"the keys on all pages of {limit}, newest first")
        expect([record.key for record in records[:3]], ["k7", "k1", "k3"], f"the last changes on pages of {limit}")
        _require_newest_first(records, f"pages of {limit}")
        done = await h.list_records(scope=h.scope, state="done", newest_first=True, limit=limit)
        expect(sorted(record.key for record in done), ["k3", "k7"], f"the keys that are done, on pages of {limit}")
        _require_newest_first(done, f"pages of {limit} that are done")
    of_all_scopes = await h.list_records(scope=None, newest_first=True, limit=1000)
    _require_newest_first(of_all_scopes, "a list of all scopes")
    listed = [record.key for record in of_all_scopes if record.scope == h.scope]
    expect(sorted(listed), keys, "the keys of this scope in a list of all scopes")


def _require_newest_first(records: Sequence[Record], where: str) -> None:
    times = [record.changed_at for record in records]
    expect(times, sorted(times, reverse=True), f"the times of change on {where}")


async def list_finds_what_a_key_contains(h: StoreHarness) -> None:
    keys = ["Order:12:paid", "Order:123:paid", "order:12:sent", "Order:1_2", "Order:12%"]
    for key in keys:
        await h.make_record("done", key)
    await h.make_record("in_doubt", "Order:12:doubt")
    for text, found in (("Order:12", [0, 1, 4]), (":12:", [0, 2]), ("1_2", [3]), ("12%", [4]), ("none", [])):
        for limit in (1, 100):
            listed = await h.list_keys(newest_first=True, key_contains=text, state="done", limit=limit)
            expect(sorted(listed), sorted(keys[n] for n in found), f"the keys that contain {text!r}")
    in_doubt = await h.list_keys(newest_first=True, key_contains="12:d", state="in_doubt")
    expect(in_doubt, ["Order:12:doubt"], "the key in doubt that contains the text")
    everything = await h.list_keys(newest_first=True, key_contains=":12:")
    expect(sorted(everything), ["Order:12:doubt", "Order:12:paid", "order:12:sent"], "the same in all states")


async def unfinished_records_may_be_listed_newest_first(h: StoreHarness) -> None:
    skip_unless(h.capabilities.notes, "a store that keeps notes")
    grants = {key: await h.claim(key, note=b"begun") for key in ("a", "b", "c", "d")}
    await h.claim("without a note")
    await h.settle(grants["a"], "free")
    await h.settle(grants["c"], "done")
    for limit in (1, 10):
        records = await h.list_records(scope=h.scope, unfinished=True, newest_first=True, limit=limit)
        expect(sorted(record.key for record in records), ["a", "b", "d"], "the unfinished keys")
        _require_newest_first(records, f"pages of {limit} of unfinished records")


async def list_leaves_out_what_has_expired(h: StoreHarness) -> None:
    await h.make_record("done", "gone", retention=h.brief_us)
    await h.make_record("done", "kept")
    await h.wait_out(h.brief_us)
    expect(await h.list_keys(), ["kept"], "the listed keys")
    expect(await h.list_keys(state="done"), ["kept"], "the listed keys that are done")
    expect(await h.list_keys(newest_first=True), ["kept"], "the listed keys, newest first")
    expect(await h.list_keys(state="done", newest_first=True), ["kept"], "those that are done, newest first")


async def stats_count_every_state(h: StoreHarness) -> None:
    before, began = await h.main_port.stats(), await h.now()
    keys = await h.make_record_in_each_state()
    now = await h.now()
    after = await h.main_port.stats()
    require(after.cap > 0, f"a cap of {after.cap}")
    states = await h.states(*keys)
    for state in STATES:
        expect_between(states.count(state), after.counts.get(state, 0), after.cap, f"the count of {state}")
    doubts = before.counts.get("in_doubt", 0)
    require(after.counts["in_doubt"] >= min(after.cap, doubts + 1), f"{doubts} in doubt, then one more: {after.counts}")
    earliest, oldest = (before.oldest_in_doubt or 0) if doubts else began, after.oldest_in_doubt or 0
    expect_between(earliest - h.slack_us, oldest, now + h.slack_us, "the time of the oldest doubt")


async def stats_do_not_count_what_has_expired(h: StoreHarness) -> None:
    before = (await h.main_port.stats()).counts.get("failed", 0)
    for n in range(3):
        await h.make_record("failed", f"k{n}", retention=h.brief_us)
    await h.wait_out(h.brief_us)
    await h.sweep()
    after = (await h.main_port.stats()).counts.get("failed", 0)
    require(after <= before, f"{before} failed, then three that expired: {after}")
