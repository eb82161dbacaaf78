"""Claims and looks: which are granted, and how the others are answered (steps 3 to 8 of `contracts.Port.run`)."""

from __future__ import annotations

from effectonce.record import EXHAUSTED_ERROR
from effectonce.testing.suites.expectations import expect, expect_between, expect_fields, require

from .harness import FINISHED, LEASE_US, RETENTION_US, StoreHarness, expect_newer_token, fingerprint
from .port_harness import SECOND_US

# -- granted


async def a_claim_of_an_absent_record_is_granted(h: StoreHarness) -> None:
    expect_fields(await h.try_claim(), kind="claimed", attempts=1, generation=0, lapsed=False, result=None, error=None)


async def a_granted_claim_is_stored_as_it_was_asked(h: StoreHarness) -> None:
    before = await h.now()
    grant = await h.claim(lease=LEASE_US, retention=RETENTION_US, fingerprints=fingerprint("p"))
    record = await h.record()
    expect_fields(record, scope=h.scope, key="k", state="claimed", owner=grant.claim.owner, token=grant.token)
    expect_fields(record, attempts=1, generation=0, fingerprint=fingerprint("p"), doubt_on_lapse=False)
    await h.expect_lease(record, LEASE_US, before)
    await h.expect_recent(record.created_at, before, "created_at")
    await h.expect_recent(record.changed_at, before, "changed_at")


async def a_token_comes_from_the_stores_time(h: StoreHarness) -> None:
    """F69: a token that starts at 1 starts at 1 again after data was lost."""
    before = await h.now()
    await h.expect_recent((await h.claim()).token, before, "the token")


async def a_free_record_is_taken_again_and_its_attempts_grow(h: StoreHarness) -> None:
    first = await h.make_record("free")
    second = await h.try_claim()
    expect_fields(second, kind="claimed", attempts=2, generation=0, lapsed=False)
    expect_newer_token(second, first)


async def a_lapsed_lease_with_rerun_is_taken_over(h: StoreHarness) -> None:
    """F02: the owner died. The next one runs it, and learns that the last attempt ended without a release."""
    first, second = await h.make_takeover()
    expect_fields(second.answer, attempts=2, generation=0, lapsed=True)
    expect_newer_token(second, first)
    expect_fields(await h.record(), owner=second.claim.owner, token=second.token)


async def a_takeover_is_held_for_the_new_lease(h: StoreHarness) -> None:
    await h.make_record("lapsed")
    await h.claim(lease=LEASE_US)
    expect_fields(await h.try_claim(), "the answer to a third claim", kind="in_progress")


# -- 3. the owner again


async def a_claim_repeated_by_its_owner_answers_the_same(h: StoreHarness) -> None:
    """F68: the reply was lost and the client sent it again: it must not find its own key taken."""
    grant = await h.claim()
    again = await h.send(grant.claim)
    expect_fields(again, kind="claimed", token=grant.token, attempts=1, generation=0)
    await h.settle(grant.with_token(again.token), "done")


async def a_claim_repeated_from_another_connection_answers_the_same(h: StoreHarness) -> None:
    """F68: the connection broke, the client repeats on a new one."""
    grant = await h.claim(max_attempts=1)
    expect_fields(await h.send(grant.claim, h.port()), kind="claimed", token=grant.token, attempts=1)


async def a_takeover_repeated_by_its_owner_answers_the_same(h: StoreHarness) -> None:
    _, grant = await h.make_takeover()
    expect_fields(await h.send(grant.claim), kind="claimed", token=grant.token, attempts=2, lapsed=True)


async def a_claim_repeated_by_its_owner_is_its_own_even_lapsed(h: StoreHarness) -> None:
    """Step 3 comes before 6, 7 and 8: the end of the lease alone invalidates nothing."""
    for doubt_on_lapse in (False, True):
        grant = await h.make_record("lapsed", f"doubt {doubt_on_lapse}", doubt_on_lapse=doubt_on_lapse)
        expect_fields(await h.send(grant.claim), grant.key, kind="claimed", token=grant.token, attempts=1)


# -- 4. and 5. finished, in doubt


async def a_done_record_answers_its_result(h: StoreHarness) -> None:
    await h.make_record("done", result=b'1{"paid":true}')
    for answer in (await h.try_claim(), await h.look()):
        expect_fields(answer, kind="done", result=b'1{"paid":true}')


async def a_failed_record_answers_its_error(h: StoreHarness) -> None:
    await h.make_record("failed", error=b'1{"type":"CardDeclined"}')
    for answer in (await h.try_claim(), await h.look()):
        expect_fields(answer, kind="failed", error=b'1{"type":"CardDeclined"}', result=None)


async def an_answer_carries_the_generation_of_what_is_stored(h: StoreHarness) -> None:
    """Stored results may be encrypted under their generation: a replay must learn it."""
    for state in FINISHED:
        await h.claim(state)
        await h.forget(state)
        grant = await h.make_record(state, state)
        for answer in (grant.answer, await h.try_claim(state), await h.look(state)):
            expect_fields(answer, f"an answer about a record that is {state}", generation=1)


async def duplicates_do_not_change_a_finished_record(h: StoreHarness) -> None:
    await h.make_record("done", result=b"r")
    before = await h.get()
    for _ in range(3):
        await h.try_claim(retention=1, lease=1, doubt_on_lapse=True, max_attempts=1, waiting=True)
    expect(await h.get(), before, "the record after three duplicates")


async def a_record_in_doubt_answers_in_doubt(h: StoreHarness) -> None:
    await h.make_record("in_doubt")
    for answer in (await h.try_claim(), await h.look(), await h.try_claim(max_attempts=1)):
        expect_fields(answer, kind="in_doubt")


async def a_record_in_doubt_never_expires(h: StoreHarness) -> None:
    """F26: work whose outcome is unknown must wait for its operator."""
    grant = await h.claim(lease=h.brief_us, retention=h.brief_us)
    await h.settle(grant, "in_doubt", retention=h.brief_us)
    expect_fields(await h.record(), expires_at=None)
    await h.wait_out(3 * h.brief_us)
    expect_fields(await h.try_claim(), "the answer long after", kind="in_doubt")
    await h.sweep()
    expect(await h.state(), "in_doubt", "the state after a sweep")


# -- 6. in progress


async def a_live_claim_is_in_progress_for_others(h: StoreHarness) -> None:
    await h.claim(lease=LEASE_US)
    before = await h.get()
    for answer in (await h.try_claim(), await h.look(), await h.try_claim(max_attempts=1)):
        expect_fields(answer, kind="in_progress", result=None, error=None)
        expect_between(30, answer.retry_after, (LEASE_US + h.slack_us) / SECOND_US, "retry_after, of a minute's lease")
    expect(await h.get(), before, "the record after others asked")


async def a_waiting_claim_changes_nothing_that_is_seen(h: StoreHarness) -> None:
    grant = await h.claim()
    before = await h.get()
    expect_fields(await h.try_claim(waiting=True), kind="in_progress")
    expect(await h.get(), before, "the record after a waiter flagged it")
    await h.settle(grant, "done", result=b"r")
    expect_fields(await h.try_claim(waiting=True), result=b"r")


# -- 7. lapsed into doubt


async def a_lapsed_lease_with_doubt_is_moved_to_in_doubt_by_the_next_claim(h: StoreHarness) -> None:
    """A dead owner cannot say that it is in doubt; its claim said what a lapse means."""
    grant = await h.make_record("lapsed", doubt_on_lapse=True)
    expect_fields(await h.try_claim(), "the answer to the next claim", kind="in_doubt")
    expect_fields(await h.record(), state="in_doubt", owner=grant.claim.owner, token=grant.token, expires_at=None)
    expect_fields(await h.try_claim(), "the answer to the claim after that", kind="in_doubt")


async def a_look_at_a_lapse_into_doubt_answers_in_doubt_without_moving_it(h: StoreHarness) -> None:
    await h.make_record("lapsed", doubt_on_lapse=True)
    expect_fields(await h.look(), kind="in_doubt")
    expect(await h.state(), "claimed", "the stored state")


async def a_claim_with_doubt_on_lapse_never_expires(h: StoreHarness) -> None:
    await h.claim(lease=h.brief_us, retention=h.brief_us, doubt_on_lapse=True)
    expect_fields(await h.record(), expires_at=None, doubt_on_lapse=True)
    await h.wait_out(3 * h.brief_us)
    expect(await h.state(), "claimed", "the stored state, long after")
    expect_fields(await h.try_claim(), "the answer long after", kind="in_doubt")


async def the_last_claim_decides_the_meaning_of_its_lapse(h: StoreHarness) -> None:
    await h.make_record("free", "to-rerun", doubt_on_lapse=True)
    await h.make_record("free", "to-doubt", doubt_on_lapse=False)
    await h.claim("to-rerun", lease=h.brief_us, doubt_on_lapse=False)
    await h.claim("to-doubt", lease=h.brief_us, doubt_on_lapse=True)
    await h.wait_out(h.brief_us)
    expect_fields(await h.try_claim("to-rerun", doubt_on_lapse=True), "to-rerun", kind="claimed")
    expect_fields(await h.try_claim("to-doubt", doubt_on_lapse=False), "to-doubt", kind="in_doubt")


# -- 8. attempts


async def claims_up_to_the_limit_are_granted(h: StoreHarness) -> None:
    for attempt in (1, 2, 3):
        grant = await h.make_record("free", max_attempts=3)
        expect_fields(grant.answer, attempts=attempt)
    expect_fields(await h.try_claim(max_attempts=3), "the answer to the fourth claim of three", kind="exhausted")


async def a_claim_past_the_limit_fails_the_record(h: StoreHarness) -> None:
    await h.make_record("exhausted")
    expect_fields(await h.record(), state="failed", error=EXHAUSTED_ERROR, attempts=1, result=None)
    for answer in (await h.look(), await h.try_claim(max_attempts=1), await h.try_claim(max_attempts=0)):
        expect_fields(answer, kind="exhausted")


async def an_exhausted_record_keeps_the_last_error(h: StoreHarness) -> None:
    """The answer that every attempt failed says why, also where the very last one never reported its outcome."""
    for last_error in (b'1{"code":"last-error"}', b"P\x00\xff sealed"):
        for lapses in (False, True):
            key = f"{last_error!r}-{lapses}"
            await h.make_record("free", key, error=last_error)
            if lapses:
                await h.claim(key, lease=h.brief_us)
                await h.wait_out(h.brief_us)
            for _ in range(2):
                answer = await h.try_claim(key, max_attempts=1)
                expect_fields(answer, kind="exhausted", error=EXHAUSTED_ERROR + last_error)
            expect_fields(await h.record(key), state="failed", error=EXHAUSTED_ERROR + last_error)


async def an_exhausted_record_expires_one_retention_later(h: StoreHarness) -> None:
    await h.make_record("exhausted", retention=h.brief_us)
    await h.wait_out(h.brief_us)
    expect(await h.get(), None, "get after the retention")
    expect_fields((await h.claim(max_attempts=1)).answer, attempts=1)


async def an_attempt_that_took_the_process_down_counts(h: StoreHarness) -> None:
    """F20: attempts are counted before the run, so that a poison message ends."""
    grant = await h.make_record("lapsed", max_attempts=1)
    expect_fields(await h.try_claim(max_attempts=1), "the answer after the only attempt lapsed", kind="exhausted")
    expect(await h.try_settle(grant, "done"), False, "a completion after the record was exhausted")
    expect_fields(await h.record(), error=EXHAUSTED_ERROR)


async def exhausted_is_recognised_by_its_stored_error(h: StoreHarness) -> None:
    await h.make_record("failed", error=EXHAUSTED_ERROR)
    for answer in (await h.try_claim(), await h.look()):
        expect_fields(answer, kind="exhausted")


async def a_look_counts_no_attempt(h: StoreHarness) -> None:
    expect_fields(await h.look(), "a look at nothing", kind="absent")
    expect(await h.get(), None, "the record after a look")
    await h.make_record("free")
    before = await h.get()
    expect_fields(await h.look(), "a look at a free record", kind="absent")
    expect(await h.get(), before, "the free record after a look")
    expect_fields((await h.claim()).answer, attempts=2)


async def a_look_at_a_lapsed_lease_answers_absent_and_takes_nothing(h: StoreHarness) -> None:
    grant = await h.make_record("lapsed")
    before = await h.get()
    expect_fields(await h.look(), kind="absent")
    expect(await h.get(), before, "the record after a look")
    await h.settle(grant, "done")


async def tokens_grow_with_every_claim(h: StoreHarness) -> None:
    """F69: also where the store's clock stands still between two claims."""
    last = 0
    for _ in range(20):
        grant = await h.make_record("free")
        require(grant.token > last, f"the token did not grow: {last}, then {grant.token}")
        last = grant.token
