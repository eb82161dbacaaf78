"""Settlements: which owner may end a claim, and what a repeated settlement does."""

from __future__ import annotations

from effectonce.testing.suites.expectations import expect, expect_fields, require

from .harness import FINISHED, LEASE_US, RESOLUTIONS, SETTLEMENTS, Grant, StoreHarness, expect_newer_token, outcome_of
from .port_harness import SECOND_US

# -- applied


async def each_settlement_is_stored(h: StoreHarness) -> None:
    for state in SETTLEMENTS:
        outcome = outcome_of(state)
        grant = await h.make_record(state, state, **outcome)
        record = await h.record(state)
        expect_fields(record, state=state, result=outcome.get("result"), error=outcome.get("error"))
        expect_fields(record, owner=grant.claim.owner, token=grant.token, attempts=1, generation=0)
        require(record.created_at <= record.changed_at, f"changed before it was created: {record}")


async def an_open_record_keeps_its_error_until_an_attempt_ends_otherwise(h: StoreHarness) -> None:
    """Operators see why the last attempt failed, even while the next one runs."""
    for state in ("free", "in_doubt"):
        await h.make_record(state, state, error=b"e")
        expect_fields(await h.record(state), state=state, result=None, error=b"e")
    for state in SETTLEMENTS:
        key, outcome = f"then-{state}", outcome_of(state)
        await h.make_record("free", key, error=b"before")
        grant = await h.claim(key)
        expect_fields(grant.answer, "the next claim", attempts=2, error=b"before")
        expect_fields(await h.record(key), "the record while it runs", state="claimed", error=b"before")
        require(await h.try_renew(grant), "the renewal was refused")
        expect_fields(await h.record(key), "the record after a renewal", error=b"before")
        await h.settle(grant, state, **outcome)
        expect_fields(await h.record(key), f"the record after {state}", error=outcome.get("error"))


async def a_refund_keeps_the_error_of_the_attempt_before(h: StoreHarness) -> None:
    await h.make_record("free", error=b"e")
    await h.settle(await h.claim(), "free", refund=True)
    expect_fields(await h.record(), attempts=1, error=b"e")
    expect_fields((await h.claim()).answer, attempts=2, error=b"e")


async def a_lapsed_lease_leaves_the_error_of_the_attempt_before(h: StoreHarness) -> None:
    for doubt_on_lapse in (False, True):
        key = f"doubt-{doubt_on_lapse}"
        await h.make_record("free", key, error=b"e")
        await h.claim(key, lease=h.brief_us, doubt_on_lapse=doubt_on_lapse)
        await h.wait_out(h.brief_us)
        answer = await h.try_claim(key)
        expect_fields(answer, kind="in_doubt" if doubt_on_lapse else "claimed")
        expect_fields(await h.record(key), "the record", error=b"e")


async def done_failed_and_free_expire_one_retention_from_now(h: StoreHarness) -> None:
    for state in RESOLUTIONS:
        before = await h.now()
        await h.make_record(state, state, retention=100 * SECOND_US)
        expires_at = (await h.record(state)).expires_at or 0
        await h.expect_recent(expires_at - 100 * SECOND_US, before, f"expires_at - retention of {state}")


async def a_done_claim_with_doubt_on_lapse_expires_like_any(h: StoreHarness) -> None:
    await h.make_record("done", doubt_on_lapse=True, retention=h.brief_us)
    await h.wait_out(h.brief_us)
    expect(await h.get(), None, "get after the retention")


async def a_settlement_of_an_absent_record_is_refused(h: StoreHarness) -> None:
    other = await h.claim()
    await h.expect_fenced(Grant(h.make_claim("never"), other.answer, await h.now()))
    expect(await h.get("never"), None, "what that left behind")


async def a_refund_gives_the_attempt_back(h: StoreHarness) -> None:
    await h.make_record("free")
    grant = await h.claim()
    expect_fields(grant.answer, attempts=2)
    await h.settle(grant, "free", refund=True)
    expect_fields(await h.record(), attempts=1)
    expect_fields((await h.claim()).answer, attempts=2)


async def a_refunded_attempt_does_not_count_against_the_limit(h: StoreHarness) -> None:
    for _ in range(3):
        grant = await h.claim(max_attempts=1)
        expect_fields(grant.answer, attempts=1)
        await h.settle(grant, "free", refund=True)
    await h.make_record("free", max_attempts=1)
    expect_fields(await h.try_claim(max_attempts=1), "the answer after an attempt that counted", kind="exhausted")


# -- repeated


async def a_settlement_repeated_answers_true_and_changes_nothing(h: StoreHarness) -> None:
    """F68: its reply was lost."""
    for state in SETTLEMENTS:
        grant = await h.make_record(state, state, **outcome_of(state))
        before = await h.get(state)
        await h.settle(grant, state, port=h.port(), **outcome_of(state))
        expect(await h.get(state), before, f"the record after {state} was repeated")


async def a_repeated_completion_does_not_replace_the_result(h: StoreHarness) -> None:
    """Every replay agrees with the first."""
    grant = await h.make_record("done", result=b"first")
    await h.try_settle(grant, "done", result=b"second")
    expect_fields(await h.try_claim(), result=b"first")


async def a_repeated_refund_is_given_once(h: StoreHarness) -> None:
    await h.make_record("free")
    grant = await h.claim()
    for _ in range(3):
        await h.settle(grant, "free", refund=True)
    expect_fields(await h.record(), "the record after one refund, sent three times", attempts=1)


async def a_settled_record_is_not_settled_differently(h: StoreHarness) -> None:
    """Only in_doubt → done, by the same owner, is allowed."""
    for first in SETTLEMENTS:
        for second in SETTLEMENTS:
            if second == first or (first, second) == ("in_doubt", "done"):
                continue
            key = f"{first}-{second}"
            grant = await h.make_record(first, key, **outcome_of(first))
            before = await h.get(key)
            late = await h.try_settle(grant, second, result=b"late", error=b"late")
            expect(late, False, f"{second} after {first}")
            expect(await h.get(key), before, f"the record after {second} was refused")


async def a_doubt_may_be_completed_by_its_owner(h: StoreHarness) -> None:
    grant = await h.make_record("in_doubt")
    await h.settle(grant, "done", result=b"r")
    expect_fields(await h.try_claim(), kind="done", result=b"r")
    await h.settle(grant, "done", result=b"r")
    require((await h.record()).expires_at is not None, "a record completed from doubt never expires")


async def a_doubt_may_not_be_completed_by_another(h: StoreHarness) -> None:
    grant = await h.make_record("in_doubt")
    expect(await h.try_settle(grant.with_another_owner(), "done"), False, "done by another owner")
    expect(await h.try_settle(grant.with_token(grant.token + 1), "done"), False, "done under another token")
    expect(await h.state(), "in_doubt", "the state")


# -- a lapse alone invalidates nothing


async def a_settlement_after_the_lease_ended_is_applied_until_a_takeover(h: StoreHarness) -> None:
    for state in SETTLEMENTS:
        grant = await h.make_record("lapsed", state)
        await h.settle(grant, state)
        expect(await h.state(state), state, "the stored state")


async def a_renewal_after_the_lease_ended_is_applied_until_a_takeover(h: StoreHarness) -> None:
    grant = await h.make_record("lapsed")
    await h.renew(grant, LEASE_US)
    expect_fields(await h.try_claim(), kind="in_progress")


async def a_claim_moved_to_in_doubt_may_still_be_completed_by_its_owner(h: StoreHarness) -> None:
    by_claim = await h.claim("by-claim", lease=h.brief_us, doubt_on_lapse=True)
    by_sweep = await h.claim("by-sweep", lease=h.brief_us, doubt_on_lapse=True)
    await h.wait_out(h.brief_us)
    expect_fields(await h.try_claim("by-claim"), kind="in_doubt")
    await h.sweep()
    for grant in (by_claim, by_sweep):
        expect(await h.state(grant.key), "in_doubt", f"the state, {grant.key}")
        await h.settle(grant, "done", result=b"r")
        expect_fields(await h.try_claim(grant.key), f"a duplicate's answer, {grant.key}", result=b"r")


async def a_claim_moved_to_in_doubt_may_not_be_released_or_failed(h: StoreHarness) -> None:
    """It is the operator's now."""
    grant = await h.make_record("lapsed", doubt_on_lapse=True)
    expect_fields(await h.try_claim(), kind="in_doubt")
    expect(await h.try_settle(grant, "free"), False, "the owner's release")
    expect(await h.try_settle(grant, "failed", error=b"e"), False, "the owner's failure")
    expect(await h.try_settle(grant, "in_doubt"), True, "the owner's doubt, which it is already in")
    expect(await h.state(), "in_doubt", "the state")


# -- fencing


async def a_zombies_settlements_and_renewal_are_refused(h: StoreHarness) -> None:
    """F08: it slept past its lease, and another took over."""
    zombie, successor = await h.make_takeover()
    await h.expect_fenced(zombie)
    await h.settle(successor, "done", result=b"mine")


async def a_stale_settlement_leaves_the_successors_alone(h: StoreHarness) -> None:
    """F09: a release that only looks at the key deletes the proof that the work is done."""
    for state in SETTLEMENTS:
        zombie, successor = await h.make_takeover(state)
        await h.settle(successor, state, **outcome_of(state))
        await h.expect_fenced(zombie)
        expect_fields(await h.record(state), "the successor's record", state=state, **outcome_of(state))
        if state in FINISHED:
            expect_fields(await h.try_claim(state), "a duplicate's answer", kind=state, **outcome_of(state))


async def the_same_token_under_another_owner_is_refused(h: StoreHarness) -> None:
    """F08: two stores' tokens may meet; the owner identifies."""
    grant = await h.claim()
    await h.expect_fenced(grant.with_another_owner())


async def the_same_owner_under_another_token_is_refused(h: StoreHarness) -> None:
    """F69: the token orders: the owner's claim before the forget is not its claim after."""
    grant = await h.claim()
    for token in (grant.token - 1, grant.token + 1, 0, 1):
        await h.expect_fenced(grant.with_token(token))


async def an_owner_that_claimed_again_is_fenced_from_its_first_claim(h: StoreHarness) -> None:
    first = await h.make_record("free")
    second = await h.claim(owner=first.claim.owner)
    expect_newer_token(second, first)
    await h.expect_fenced(first)
    await h.settle(second, "done")
