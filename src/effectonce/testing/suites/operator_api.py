"""The operations of operators and of the sweeper: get, list, stats, forget, resolve, sweep."""

from __future__ import annotations

from typing import Literal

from effectonce.record import State

from .harness import KEEP, Harness, a_print, case
from .sentences import equal, holds

FINAL: tuple[Literal["done", "failed", "free"], ...] = ("done", "failed", "free")


async def _one_of_each(h: Harness) -> dict[str, State]:
    """A record in every state, and a claim that lapsed into doubt unnoticed: their keys and stored states."""
    await h.take("claimed")
    await h.settle(await h.take("done"), "done", result=b"r")
    await h.settle(await h.take("failed"), "failed", error=b"e")
    await h.in_doubt("in_doubt")
    await h.settle(await h.take("free"), "free")
    await h.lapsed("lapsed", doubt=True)
    return {
        "claimed": "claimed",
        "done": "done",
        "failed": "failed",
        "in_doubt": "in_doubt",
        "free": "free",
        "lapsed": "claimed",
    }


# -- get, list, stats


@case
async def get_of_an_unknown_key_is_none(h: Harness) -> None:
    equal(await h.get("never"), None, "get")


@case
async def get_shows_a_lapse_as_it_is_stored(h: Harness) -> None:
    await h.lapsed("rerun")
    await h.lapsed("doubt", doubt=True)
    equal([await h.state("rerun"), await h.state("doubt")], ["claimed", "claimed"], "the stored states")


@case
async def created_at_stays_and_changed_at_moves(h: Harness) -> None:
    mine = await h.take()
    first = await h.record()
    await h.past(2_000)
    await h.settle(mine, "done")
    second = await h.record()
    equal(second.created_at, first.created_at, "created_at after a settlement")
    holds(second.changed_at > first.changed_at, "changed_at did not move")


@case
async def list_filters_by_scope(h: Harness) -> None:
    other = h.scope + "-other"
    await h.take("mine")
    await h.take("theirs", scope=other)
    equal([r.key for r in await h.listed(scope=h.scope)], ["mine"], "the records of one scope")
    equal([r.key for r in await h.listed(scope=other)], ["theirs"], "the records of the other")
    equal(await h.listed(scope=h.scope + "-none"), [], "the records of an unknown scope")


@case
async def list_filters_by_state(h: Harness) -> None:
    states = await _one_of_each(h)
    wanted: tuple[State, ...] = ("claimed", "done", "failed", "in_doubt", "free")
    for state in wanted:
        keys = sorted(key for key, stored in states.items() if stored == state)
        found = await h.listed(state=state, scope=h.scope)
        equal(sorted(r.key for r in found), keys, f"the records that are {state}")
        everywhere = await h.listed(state=state)
        holds(all(r.state == state for r in everywhere), f"a list of {state} holds other states")
        holds(
            set(keys) <= {r.key for r in everywhere if r.scope == h.scope},
            f"a list of all {state} misses some",
        )


@case
async def list_shows_records_as_get_does(h: Harness) -> None:
    states = await _one_of_each(h)
    listed = {record.key: record for record in await h.listed(scope=h.scope)}
    equal(sorted(listed), sorted(states), "the listed keys")
    for key, record in listed.items():
        equal(record, await h.get(key), f"the listed record of {key}")


@case
async def list_pages_reach_all_and_none_twice(h: Harness) -> None:
    keys = sorted(f"k{n:02}" for n in range(17))
    for key in keys:
        await h.take(key)
    for limit in (1, 4, 17, 100):
        pages = await h.pages(scope=h.scope, limit=limit)
        equal(sorted(r.key for p in pages for r in p.records), keys, f"the keys on all pages of {limit}")
        pages = await h.pages(scope=h.scope, state="claimed", limit=limit, sweeping=True)
        equal(sorted(r.key for p in pages for r in p.records), keys, f"the claimed keys on all pages of {limit}")


@case
async def a_list_may_begin_after_any_place(h: Harness) -> None:
    h.needs(h.capabilities.ordered, "a store that keeps its records in order")
    keys = [f"k{n:02}" for n in range(9)]
    for key in keys:
        await h.take(key)
    await h.settle(await h.take("k04z"), "free")
    pages = await h.pages(scope=h.scope, after=(h.scope, "k04"), limit=3)
    equal([r.key for p in pages for r in p.records], ["k04z", *keys[5:]], "the keys after the fifth, in their order")
    pages = await h.pages(scope=h.scope, state="free", after=(h.scope, "k04"), limit=3)
    equal([r.key for p in pages for r in p.records], ["k04z"], "the free ones among them")
    beyond = await h.pages(scope=None, after=(h.scope + "\x01", ""), limit=100)
    holds(all(r.scope > h.scope for p in beyond for r in p.records), "a list after a scope holds records of it")


@case
async def list_leaves_out_what_has_expired(h: Harness) -> None:
    await h.settle(await h.take("gone"), "done", retention=h.brief)
    await h.settle(await h.take("kept"), "done", retention=KEEP)
    await h.past(h.brief)
    equal([r.key for r in await h.listed(scope=h.scope)], ["kept"], "the listed keys")
    equal(
        [r.key for r in await h.listed(scope=h.scope, state="done")],
        ["kept"],
        "the listed keys that are done",
    )


@case
async def stats_count_every_state(h: Harness) -> None:
    before = await h.first.stats()
    states = await _one_of_each(h)
    now = await h.now()
    after = await h.first.stats()
    holds(after.cap > 0, f"a cap of {after.cap}")
    for state in set(states.values()):
        got = after.counts.get(state, 0)
        mine = sum(1 for stored in states.values() if stored == state)
        holds(mine <= got <= after.cap, f"{got} {state} where there are at least {mine}, cap {after.cap}")
    doubts = before.counts.get("in_doubt", 0)
    holds(
        after.counts["in_doubt"] >= min(after.cap, doubts + 1),
        f"{doubts} in doubt, then one more: {after.counts}",
    )
    oldest = after.oldest_in_doubt
    holds(oldest is not None and oldest <= now + h.slack, f"the oldest doubt is of {oldest}, now is {now}")


@case
async def stats_do_not_count_what_has_expired(h: Harness) -> None:
    before = (await h.first.stats()).counts.get("failed", 0)
    for n in range(3):
        await h.settle(await h.take(f"k{n}"), "failed", retention=h.brief)
    await h.past(h.brief)
    await h.sweep()
    after = (await h.first.stats()).counts.get("failed", 0)
    holds(after <= before, f"{before} failed, then three that expired: {after}")


# -- forget


@case
async def forget_makes_the_next_claim_run(h: Harness) -> None:
    for state in ("done", "failed", "in_doubt", "free"):
        mine = await h.take(state, prints=a_print("p"))
        await h.settle(mine, state, result=b"r", error=b"e")
        equal(await h.forget(state), True, f"a forget of {state}")
        record = await h.record(state)
        equal(
            (record.state, record.attempts, record.generation),
            ("free", 0, 1),
            f"what a forget of {state} stores",
        )
        equal((record.result, record.error, record.fingerprint), (None, None, None), "result, error, fingerprint")
        holds(record.token > mine.token, f"the token did not grow: {mine.token}, then {record.token}")
        again = await h.take(state, prints=a_print("corrected"), max_attempts=1)
        equal(
            (again.answer.attempts, again.answer.generation),
            (1, 1),
            "attempts and generation of the next claim",
        )
        equal(again.answer.lapsed, False, "lapsed, though it was forgotten")
        holds(again.token > record.token, f"F69: the token did not grow: {record.token}, then {again.token}")


@case
async def forget_of_an_exhausted_record_lets_it_run_again(h: Harness) -> None:
    await h.settle(await h.take(), "free")
    equal((await h.ask(max_attempts=1)).kind, "exhausted", "the claim past the limit")
    equal(await h.forget(), True, "the forget")
    equal((await h.take(max_attempts=1)).answer.attempts, 1, "attempts")


@case
async def forget_fences_the_owner_out(h: Harness) -> None:
    """F69: the zombie whose record was forgotten settles nothing, before or after the next claim."""
    mine = await h.take()
    equal(await h.forget(), True, "the forget")
    for state in ("done", "failed", "in_doubt", "free"):
        equal(await h.settle(mine, state), False, f"the old owner's {state}")
    equal(await h.renew(mine), False, "the old owner's renewal")
    equal(await h.state(), "free", "the state")
    again = await h.take()
    equal(await h.settle(mine, "done", result=b"z"), False, "the old owner's completion of the next claim")
    equal(await h.settle(again, "done", result=b"r"), True, "the new owner's completion")


@case
async def forget_of_nothing_is_false(h: Harness) -> None:
    equal(await h.forget("never"), False, "a forget of nothing")
    equal(await h.get("never"), None, "what it left")
    await h.settle(await h.take("expired"), "done", retention=h.brief)
    await h.past(h.brief)
    equal(await h.forget("expired"), False, "a forget of an expired record")


@case
async def a_forgotten_record_expires(h: Harness) -> None:
    mine = await h.in_doubt()
    equal(await h.forget(retention=h.brief), True, "the forget")
    await h.past(h.brief)
    equal(await h.get(), None, "get after the retention")
    again = await h.take()
    equal((again.answer.attempts, again.answer.generation), (1, 0), "attempts and generation")
    holds(again.token > mine.token, f"the token did not grow: {mine.token}, then {again.token}")


@case
async def forget_touches_its_own_identity_only(h: Harness) -> None:
    other = h.scope + "-other"
    await h.settle(await h.take("k", scope=other), "done", result=b"r")
    await h.settle(await h.take("k2"), "done", result=b"r")
    await h.take("k")
    equal(await h.forget("k"), True, "the forget")
    equal((await h.look("k", scope=other)).kind, "done", "the same key in another scope")
    equal((await h.look("k2")).kind, "done", "another key in the same scope")


# -- resolve


@case
async def resolve_done_stores_the_result(h: Harness) -> None:
    mine = await h.in_doubt()
    equal(await h.resolve("done", result=b"r"), True, "the resolution")
    answer = (await h.ask()).answer
    equal((answer.kind, answer.result), ("done", b"r"), "a duplicate's answer")
    record = await h.record()
    equal((record.generation, record.error), (0, None), "generation and error")
    holds(record.expires_at is not None, "a resolved record never expires")
    equal(await h.settle(mine, "done", result=b"late"), False, "the old owner's completion")
    equal((await h.record()).result, b"r", "the stored result")


@case
async def resolve_failed_stores_the_error(h: Harness) -> None:
    mine = await h.in_doubt()
    equal(await h.resolve("failed", error=b"e"), True, "the resolution")
    answer = (await h.ask()).answer
    equal((answer.kind, answer.error, answer.result), ("failed", b"e", None), "a duplicate's answer")
    equal(await h.settle(mine, "done"), False, "the old owner's completion")


@case
async def resolve_free_starts_a_new_generation(h: Harness) -> None:
    mine = await h.in_doubt()
    equal(await h.resolve("free"), True, "the resolution")
    record = await h.record()
    equal((record.state, record.attempts, record.generation), ("free", 0, 1), "what is stored")
    equal(await h.settle(mine, "done"), False, "the old owner's completion")
    equal(await h.settle(mine, "free"), False, "the old owner's release")
    again = await h.take(max_attempts=1)
    equal((again.answer.attempts, again.answer.generation), (1, 1), "attempts and generation of the next claim")
    holds(again.token > mine.token, f"the token did not grow: {mine.token}, then {again.token}")
    equal(await h.settle(mine, "done"), False, "the old owner's completion of the next claim")


@case
async def resolve_keeps_the_operators_retention(h: Harness) -> None:
    for state in FINAL:
        await h.in_doubt(state)
        equal(await h.resolve(state, state, retention=h.brief), True, f"the resolution to {state}")
    await h.past(h.brief)
    for state in FINAL:
        equal(await h.get(state), None, f"get of {state} after the retention")


@case
async def resolve_takes_a_claim_that_lapsed_into_doubt(h: Harness) -> None:
    """F07: the owner is dead, nobody claimed since, no sweeper came by: the operator still reaches it."""
    for state in FINAL:
        mine = await h.lapsed(state, doubt=True)
        equal(await h.resolve(state, state, result=b"r" if state == "done" else None), True, f"to {state}")
        equal(await h.state(state), state, "the state")
        equal(await h.settle(mine, "done", result=b"late"), False, "the old owner's completion")
        equal(await h.renew(mine), False, "the old owner's renewal")


@case
async def resolve_of_what_is_not_in_doubt_is_refused(h: Harness) -> None:
    """NotInDoubt: an operator's late word must not undo what is settled, nor take a live claim."""
    equal(await h.resolve("done", "never"), False, "a resolution of nothing")
    equal(await h.get("never"), None, "what it left")
    await h.take("live")
    await h.take("live-doubt", doubt=True)
    await h.lapsed("lapsed-rerun")
    for state in FINAL:
        await h.settle(await h.take(state), state, result=b"r" if state == "done" else None)
    for key in ("live", "live-doubt", "lapsed-rerun", *FINAL):
        before = await h.get(key)
        for word in FINAL:
            equal(await h.resolve(word, key, result=b"late", error=b"late"), False, f"{word} of {key}")
        equal(await h.get(key), before, f"the record of {key}")


@case
async def a_second_resolution_is_refused(h: Harness) -> None:
    await h.in_doubt()
    equal(await h.resolve("done", result=b"first"), True, "the first resolution")
    equal(await h.resolve("free"), False, "the second")
    equal((await h.ask()).answer.result, b"first", "a duplicate's answer")


# -- sweep


@case
async def sweep_moves_lapsed_doubts(h: Harness) -> None:
    """F07: every stored state is reached by the sweeper."""
    mine = await h.lapsed(doubt=True)
    swept = await h.sweep()
    holds(swept.lapsed >= 1, f"a sweep moved {swept.lapsed} lapsed claims")
    record = await h.record()
    equal((record.state, record.expires_at), ("in_doubt", None), "the state and expiry")
    equal((record.owner, record.token), (mine.claim.owner, mine.token), "owner and token, kept")
    equal([r.key for r in await h.listed(scope=h.scope, state="in_doubt")], ["k"], "the operator's queue")


@case
async def sweep_deletes_what_has_expired(h: Harness) -> None:
    await h.sweep()
    for state in FINAL:
        await h.settle(await h.take(state), state, retention=h.brief)
    await h.take("lapsed", lease=h.brief, retention=h.brief)
    await h.past(2 * h.brief)
    swept = await h.sweep()
    if not h.capabilities.expires_by_itself:
        holds(swept.deleted >= 4, f"a sweep deleted {swept.deleted} of 4 expired records")
    for key in (*FINAL, "lapsed"):
        equal(await h.get(key), None, f"get of {key}")
    equal(await h.listed(scope=h.scope), [], "the listed records")


@case
async def sweep_deletes_no_live_record(h: Harness) -> None:
    """F26: live, in doubt, done and unexpired, free, lapsed: all stay as they are."""
    await _one_of_each(h)
    await h.take("doubt", doubt=True)
    await h.lapsed("rerun")
    await h.take("old-doubt", lease=h.brief, retention=h.brief, doubt=True)
    await h.past(3 * h.brief)
    keys = ("claimed", "done", "failed", "in_doubt", "free", "doubt", "rerun")
    before = [await h.get(key) for key in keys]
    await h.sweep()
    equal([await h.get(key) for key in keys], before, "the records after a sweep")
    for key in ("lapsed", "old-doubt"):
        equal(await h.state(key), "in_doubt", f"the state of {key}")


@case
async def sweep_is_bounded_by_its_limit(h: Harness) -> None:
    await h.sweep()
    for n in range(5):
        await h.settle(await h.take(f"expired{n}"), "done", retention=h.brief)
        await h.take(f"doubt{n}", lease=h.brief, doubt=True)
    await h.past(h.brief)
    swept = await h.first.sweep(2)
    holds(swept.deleted <= 2 and swept.lapsed <= 2, f"a sweep of 2 did {swept}")
    holds(swept.lapsed == 2, f"a sweep of 2 moved {swept.lapsed} of 5 lapsed claims")
    equal(swept.more, True, "more, with three left")
    rest = await h.sweep(2)
    holds(rest.lapsed >= 3, f"the sweeps after it moved {rest.lapsed} of 3 lapsed claims")
    if not h.capabilities.expires_by_itself:
        holds(swept.deleted == 2, f"a sweep of 2 deleted {swept.deleted} of 5 expired records")
        holds(rest.deleted >= 3, f"the sweeps after it deleted {rest.deleted} of 3 expired records")
    equal([await h.state(f"doubt{n}") for n in range(5)], ["in_doubt"] * 5, "the states")


@case
async def sweep_records_its_time(h: Harness) -> None:
    """F37: a sweeper that fails in silence is seen by the age of this."""
    before = await h.now()
    await h.sweep()
    swept_at = (await h.first.stats()).swept_at
    after = await h.now()
    holds(
        swept_at is not None and before - h.slack <= swept_at <= after + h.slack,
        f"swept_at is {swept_at}, the sweep was between {before} and {after}",
    )


@case
async def a_key_is_claimed_anew_after_it_was_swept(h: Harness) -> None:
    mine = await h.take()
    await h.settle(mine, "done", retention=h.brief)
    await h.past(h.brief)
    await h.sweep()
    again = await h.take()
    equal((again.answer.attempts, again.answer.generation), (1, 0), "attempts and generation")
    holds(again.token > mine.token, f"F69: the token did not grow: {mine.token}, then {again.token}")
    equal(await h.settle(mine, "done"), False, "the old owner's completion")
