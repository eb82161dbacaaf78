"""Settlements, renewals and remembers: who may end a claim, and what repeating it does."""

from __future__ import annotations

import os

from effectonce.record import Settled

from .harness import KEEP, LONG, SECOND, Harness, Try, a_print, case
from .sentences import equal, holds

ALL: tuple[Settled, ...] = ("done", "failed", "in_doubt", "free")


# -- applied


@case
async def each_settlement_is_stored(h: Harness) -> None:
    for state in ALL:
        mine = await h.take(state)
        result = b"r" if state == "done" else None
        error = b"e" if state == "failed" else None
        holds(
            await h.settle(mine, state, result=result, error=error),
            f"the settlement to {state} was not applied",
        )
        record = await h.record(state)
        equal((record.state, record.result, record.error), (state, result, error), "what is stored")
        equal((record.owner, record.token), (mine.claim.owner, mine.token), f"owner and token of {state}, kept")
        equal((record.attempts, record.generation), (1, 0), "attempts and generation")
        holds(record.created_at <= record.changed_at, f"changed before it was created: {record}")


@case
async def done_failed_and_free_expire_one_retention_from_now(h: Harness) -> None:
    for state in ("done", "failed", "free"):
        mine = await h.take(state, lease=LONG, retention=KEEP)
        before = await h.now()
        await h.settle(mine, state, retention=100 * SECOND)
        after = await h.now()
        expires = (await h.record(state)).expires_at or 0
        holds(
            before - h.slack <= expires - 100 * SECOND <= after + h.slack,
            f"{state} expires {expires - 100 * SECOND - before} us off now + retention",
        )


@case
async def a_done_claim_with_doubt_on_lapse_expires_like_any(h: Harness) -> None:
    await h.settle(await h.take(doubt=True), "done", retention=h.brief)
    await h.past(h.brief)
    equal(await h.get(), None, "get after the retention")


@case
async def a_settlement_of_an_absent_record_is_refused(h: Harness) -> None:
    mine = Try(h.a_claim("never"), (await h.take("k")).answer, await h.now())
    for state in ALL:
        equal(await h.settle(mine, state), False, f"{state} of a record that is not there")
    equal(await h.renew(mine), False, "a renewal of a record that is not there")
    equal(await h.get("never"), None, "what that left behind")


@case
async def a_refund_gives_the_attempt_back(h: Harness) -> None:
    await h.settle(await h.take(), "free")
    mine = await h.take()
    equal(mine.answer.attempts, 2, "attempts before the refund")
    holds(await h.settle(mine, "free", refund=True), "the release was not applied")
    equal((await h.record()).attempts, 1, "attempts after the refund")
    equal((await h.take()).answer.attempts, 2, "attempts of the next claim")


@case
async def a_refunded_attempt_does_not_count_against_the_limit(h: Harness) -> None:
    for _ in range(3):
        mine = await h.take(max_attempts=1)
        equal(mine.answer.attempts, 1, "attempts")
        holds(await h.settle(mine, "free", refund=True), "the release was not applied")
    await h.settle(await h.take(max_attempts=1), "free")
    equal((await h.ask(max_attempts=1)).kind, "exhausted", "the claim after an attempt that counted")


# -- repeated


@case
async def a_settlement_repeated_answers_true_and_changes_nothing(h: Harness) -> None:
    """F68: its reply was lost."""
    for state in ALL:
        mine = await h.take(state)
        result, error = (b"r", None) if state == "done" else (None, b"e") if state == "failed" else (None, None)
        equal(await h.settle(mine, state, result=result, error=error), True, f"{state}")
        before = await h.get(state)
        again = await h.settle(mine, state, result=result, error=error, port=h.port())
        equal(again, True, f"{state}, repeated")
        equal(await h.get(state), before, f"the record after {state} was repeated")


@case
async def a_repeated_completion_does_not_replace_the_result(h: Harness) -> None:
    """Every replay agrees with the first."""
    mine = await h.take()
    await h.settle(mine, "done", result=b"first")
    await h.settle(mine, "done", result=b"second")
    equal((await h.ask()).answer.result, b"first", "the stored result")


@case
async def a_repeated_refund_is_given_once(h: Harness) -> None:
    await h.settle(await h.take(), "free")
    mine = await h.take()
    for _ in range(3):
        equal(await h.settle(mine, "free", refund=True), True, "the release")
    equal((await h.record()).attempts, 1, "attempts after one refund, sent three times")


@case
async def a_settled_record_is_not_settled_otherwise(h: Harness) -> None:
    """Only in_doubt → done, by the same owner, is allowed."""
    for first in ALL:
        for second in ALL:
            if second == first or (first, second) == ("in_doubt", "done"):
                continue
            key = f"{first}-{second}"
            mine = await h.take(key)
            await h.settle(mine, first, result=b"r" if first == "done" else None)
            before = await h.get(key)
            equal(await h.settle(mine, second, result=b"late", error=b"late"), False, f"{second} after {first}")
            equal(await h.get(key), before, f"the record after {second} was refused")


@case
async def a_doubt_may_be_completed_by_its_owner(h: Harness) -> None:
    mine = await h.in_doubt()
    equal(await h.settle(mine, "done", result=b"r"), True, "done, after in_doubt")
    answer = (await h.ask()).answer
    equal((answer.kind, answer.result), ("done", b"r"), "a duplicate's answer")
    equal(await h.settle(mine, "done", result=b"r"), True, "done, repeated")
    holds((await h.record()).expires_at is not None, "a record completed from doubt never expires")


@case
async def a_doubt_may_not_be_completed_by_another(h: Harness) -> None:
    mine = await h.in_doubt()
    equal(await h.settle(mine.with_owner(os.urandom(16)), "done"), False, "done by another owner")
    equal(await h.settle(mine.with_token(mine.token + 1), "done"), False, "done under another token")
    equal(await h.state(), "in_doubt", "the state")


# -- a lapse alone invalidates nothing


@case
async def a_completion_after_the_lease_ended_is_applied_while_nobody_took_over(h: Harness) -> None:
    for state in ALL:
        mine = await h.lapsed(state, lease=h.brief)
        equal(await h.settle(mine, state), True, f"{state} after the lease ended")
        equal(await h.state(state), state, "the stored state")


@case
async def a_renewal_after_the_lease_ended_is_applied_while_nobody_took_over(h: Harness) -> None:
    mine = await h.lapsed()
    equal(await h.renew(mine, LONG), True, "a renewal after the lease ended")
    equal((await h.ask()).kind, "in_progress", "another's claim")


@case
async def a_claim_moved_to_in_doubt_may_still_be_completed_by_its_owner(h: Harness) -> None:
    by_claim = await h.take("by-claim", lease=h.brief, doubt=True)
    by_sweep = await h.take("by-sweep", lease=h.brief, doubt=True)
    await h.past(h.brief)
    equal((await h.ask("by-claim")).kind, "in_doubt", "the next claim")
    await h.sweep()
    for mine in (by_claim, by_sweep):
        key = mine.claim.key
        equal(await h.state(key), "in_doubt", f"the state, {key}")
        equal(await h.settle(mine, "done", result=b"r"), True, f"the owner's completion, {key}")
        equal((await h.ask(key)).answer.result, b"r", f"a duplicate's answer, {key}")


@case
async def a_claim_moved_to_in_doubt_may_not_be_released_or_failed(h: Harness) -> None:
    """It is the operator's now."""
    mine = await h.lapsed(doubt=True)
    equal((await h.ask()).kind, "in_doubt", "the next claim")
    equal(await h.settle(mine, "free"), False, "the owner's release")
    equal(await h.settle(mine, "failed", error=b"e"), False, "the owner's failure")
    equal(await h.settle(mine, "in_doubt"), True, "the owner's doubt, which it is already in")
    equal(await h.state(), "in_doubt", "the state")


# -- fencing


async def _takeover(h: Harness, key: str = "k") -> tuple[Try, Try]:
    zombie = await h.lapsed(key)
    return zombie, await h.take(key)


@case
async def a_zombies_settlements_and_renewal_are_refused(h: Harness) -> None:
    """F08: it slept past its lease, and another took over."""
    zombie, mine = await _takeover(h)
    before = await h.get()
    for state in ALL:
        equal(await h.settle(zombie, state, result=b"z", error=b"z"), False, f"the zombie's {state}")
    equal(await h.settle(zombie, "free", refund=True), False, "the zombie's refund")
    equal(await h.renew(zombie), False, "the zombie's renewal")
    equal(await h.get(), before, "the successor's claim, after all that")
    equal(await h.settle(mine, "done", result=b"mine"), True, "the successor's completion")


@case
async def a_stale_release_leaves_the_successors_done_alone(h: Harness) -> None:
    """F09: a release that only looks at the key deletes the proof that the work is done."""
    zombie, mine = await _takeover(h)
    equal(await h.settle(mine, "done", result=b"mine"), True, "the successor's completion")
    before = await h.get()
    for state in ALL:
        equal(await h.settle(zombie, state), False, f"the zombie's {state}")
    equal(await h.renew(zombie), False, "the zombie's renewal")
    equal(await h.get(), before, "the successor's record")
    equal((await h.ask()).answer.result, b"mine", "a duplicate's answer")


@case
async def a_stale_completion_leaves_the_successors_failure_alone(h: Harness) -> None:
    zombie, mine = await _takeover(h)
    equal(await h.settle(mine, "failed", error=b"mine"), True, "the successor's failure")
    equal(await h.settle(zombie, "done", result=b"z"), False, "the zombie's completion")
    equal(await h.settle(zombie, "failed", error=b"z"), False, "the zombie's failure")
    equal((await h.ask()).answer.error, b"mine", "a duplicate's answer")


@case
async def a_stale_completion_leaves_the_successors_doubt_and_release_alone(h: Harness) -> None:
    for state in ("in_doubt", "free"):
        zombie, mine = await _takeover(h, state)
        equal(await h.settle(mine, state), True, f"the successor's {state}")
        before = await h.get(state)
        for late in ALL:
            equal(await h.settle(zombie, late), False, f"the zombie's {late} after the successor's {state}")
        equal(await h.get(state), before, "the successor's record")


@case
async def the_same_token_under_another_owner_is_refused(h: Harness) -> None:
    """F08: two stores' tokens may meet; the owner identifies."""
    mine = await h.take()
    before = await h.get()
    other = mine.with_owner(os.urandom(16))
    for state in ALL:
        equal(await h.settle(other, state), False, f"another owner's {state}")
    equal(await h.renew(other), False, "another owner's renewal")
    equal(await h.get(), before, "the record")


@case
async def the_same_owner_under_another_token_is_refused(h: Harness) -> None:
    """F69: the token orders: the owner's claim before the forget is not its claim after."""
    mine = await h.take()
    before = await h.get()
    for token in (mine.token - 1, mine.token + 1, 0, 1):
        for state in ALL:
            equal(
                await h.settle(mine.with_token(token), state),
                False,
                f"{state} under token {token - mine.token:+}",
            )
        equal(await h.renew(mine.with_token(token)), False, f"a renewal under token {token - mine.token:+}")
    equal(await h.get(), before, "the record")


@case
async def an_owner_that_claimed_again_is_fenced_from_its_first_claim(h: Harness) -> None:
    first = await h.take()
    await h.settle(first, "free")
    second = await h.take(owner=first.claim.owner)
    holds(second.token > first.token, "the token did not grow")
    equal(await h.settle(first, "done"), False, "done under the first token")
    equal(await h.settle(first, "free"), False, "the first release, repeated late")
    equal(await h.state(), "claimed", "the state")
    equal(await h.settle(second, "done"), True, "done under the second token")


# -- renewals


@case
async def a_renewal_extends_the_lease_from_now(h: Harness) -> None:
    mine = await h.take(lease=LONG)
    before = await h.now()
    equal(await h.renew(mine, 2 * LONG, KEEP), True, "the renewal")
    after = await h.now()
    record = await h.record()
    until, expires = record.lease_until or 0, record.expires_at or 0
    holds(
        before - h.slack <= until - 2 * LONG <= after + h.slack,
        f"lease_until is {until - 2 * LONG - before} us off",
    )
    holds(abs(expires - until - KEEP) <= h.slack, f"expires_at is {expires - until - KEEP} us off")
    equal((record.owner, record.token, record.attempts), (mine.claim.owner, mine.token, 1), "all else")


@case
async def a_renewed_lease_outlives_the_first(h: Harness) -> None:
    mine = await h.take(lease=h.brief)
    equal(await h.renew(mine, LONG), True, "the renewal")
    await h.past(h.brief)
    equal((await h.ask()).kind, "in_progress", "another's claim after the first lease would have ended")


@case
async def a_renewed_lease_ends_too(h: Harness) -> None:
    mine = await h.take(lease=LONG)
    equal(await h.renew(mine, h.brief), True, "the renewal")
    await h.past(h.brief)
    equal((await h.take()).answer.lapsed, True, "lapsed, after the renewed lease")


@case
async def a_renewal_repeated_answers_true(h: Harness) -> None:
    mine = await h.take()
    equal([await h.renew(mine) for _ in range(3)], [True, True, True], "three renewals")


@case
async def a_renewed_claim_with_doubt_on_lapse_still_never_expires(h: Harness) -> None:
    mine = await h.take(lease=LONG, doubt=True)
    equal(await h.renew(mine, h.brief, h.brief), True, "the renewal")
    equal((await h.record()).expires_at, None, "when it expires")
    await h.past(3 * h.brief)
    equal((await h.ask()).kind, "in_doubt", "a claim long after")


@case
async def a_settled_record_is_not_renewed(h: Harness) -> None:
    for state in ALL:
        mine = await h.take(state)
        await h.settle(mine, state)
        before = await h.get(state)
        equal(await h.renew(mine), False, f"a renewal after {state}")
        equal(await h.get(state), before, "the record")


# -- remembers


@case
async def a_remember_makes_an_absent_record_done(h: Harness) -> None:
    before = await h.now()
    equal(await h.remember(result=b"r", prints=a_print("p"), retention=KEEP), True, "the remember")
    record = await h.record()
    equal((record.state, record.result, record.generation), ("done", b"r", 0), "what is stored")
    equal((record.owner, record.fingerprint), (b"", a_print("p")), "owner and fingerprint")
    holds(record.token >= before - h.slack, f"token {record.token} is before its time {before}")
    answer = (await h.ask()).answer
    equal((answer.kind, answer.result), ("done", b"r"), "a duplicate's answer")
    equal((await h.ask(prints=a_print("q"))).kind, "mismatch", "another payload")


@case
async def a_remember_expires(h: Harness) -> None:
    equal(await h.remember(retention=h.brief), True, "the remember")
    await h.past(h.brief)
    equal(await h.get(), None, "get after the retention")
    equal(await h.remember(result=b"new"), True, "a remember over an expired one")
    equal((await h.record()).result, b"new", "the stored result")


@case
async def a_remember_leaves_a_done_record_as_it_is(h: Harness) -> None:
    """All replays agree, whoever recorded first."""
    await h.settle(await h.take("claimed-first"), "done", result=b"first")
    await h.remember("remembered-first", result=b"first")
    for key in ("claimed-first", "remembered-first"):
        before = await h.get(key)
        equal(
            await h.remember(key, result=b"second", retention=2 * KEEP),
            True,
            f"a remember of a done record, {key}",
        )
        equal(await h.get(key), before, f"the record, {key}")


@case
async def a_remember_never_overwrites_a_live_claim(h: Harness) -> None:
    mine = await h.take()
    before = await h.get()
    equal(await h.remember(result=b"r"), False, "a remember of a claimed record")
    equal(await h.get(), before, "the record")
    equal(await h.settle(mine, "done", result=b"mine"), True, "the owner's completion")


@case
async def a_remember_never_overwrites_a_doubt(h: Harness) -> None:
    await h.in_doubt("said")
    await h.lapsed("lapsed", doubt=True)
    for key in ("said", "lapsed"):
        equal(await h.remember(key, result=b"r"), False, f"a remember of a doubt, {key}")
        equal((await h.look(key)).kind, "in_doubt", f"a look at it, {key}")


@case
async def a_remember_never_overwrites_a_failure(h: Harness) -> None:
    await h.settle(await h.take("failed"), "failed", error=b"e")
    await h.settle(await h.take("exhausted"), "free")
    await h.ask("exhausted", max_attempts=1)
    for key in ("failed", "exhausted"):
        before = await h.get(key)
        equal(await h.remember(key, result=b"r"), False, f"a remember of a failure, {key}")
        equal(await h.get(key), before, f"the record, {key}")


@case
async def a_remember_takes_a_free_record(h: Harness) -> None:
    await h.take()
    holds(await h.forget(), "the forget was not applied")
    mine = await h.take()
    holds(await h.settle(mine, "free"), "the release was not applied")
    equal(await h.remember(result=b"r"), True, "a remember of a free record")
    record = await h.record()
    equal((record.state, record.result, record.generation), ("done", b"r", 1), "what is stored")
    holds(record.token > mine.token, f"the token did not grow: {mine.token}, then {record.token}")
    equal(await h.settle(mine, "free"), False, "the old release, repeated")


@case
async def a_remember_takes_a_lapsed_claim_and_fences_its_owner(h: Harness) -> None:
    mine = await h.lapsed()
    equal(await h.remember(result=b"r"), True, "a remember of a lapsed claim")
    holds((await h.record()).token > mine.token, "the token did not grow")
    equal(await h.settle(mine, "free"), False, "the owner's release")
    equal(await h.settle(mine, "done", result=b"late"), False, "the owner's completion")
    equal((await h.ask()).answer.result, b"r", "a duplicate's answer")


@case
async def a_remember_of_another_payload_is_refused(h: Harness) -> None:
    """It is applied where a claim would be granted, and a claim would mismatch."""
    await h.settle(await h.take(prints=a_print("p")), "free")
    before = await h.get()
    equal(await h.remember(result=b"r", prints=a_print("q")), False, "a remember of another payload")
    equal(await h.get(), before, "the record")
