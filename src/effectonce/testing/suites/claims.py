"""Claims and looks: what is granted, and steps 3 to 8 of `contracts.Port.run`."""

from __future__ import annotations

from effectonce.record import EXHAUSTED

from .harness import KEEP, LONG, SECOND, Harness, Try, a_print, case
from .sentences import equal, holds

# -- granted


@case
async def a_claim_of_an_absent_record_is_granted(h: Harness) -> None:
    mine = (await h.ask()).answer
    equal(mine.kind, "claimed", "the first claim")
    equal(mine.attempts, 1, "its attempts")
    equal(mine.generation, 0, "its generation")
    equal(mine.lapsed, False, "whether an earlier attempt lapsed")
    equal((mine.result, mine.error), (None, None), "result and error of a grant")


@case
async def a_granted_claim_is_stored_as_it_was_asked(h: Harness) -> None:
    before = await h.now()
    mine = await h.take(lease=LONG, retention=KEEP, prints=a_print("p"))
    after = await h.now()
    record = await h.record()
    equal((record.scope, record.key, record.state), (h.scope, "k", "claimed"), "what is stored")
    equal((record.owner, record.token), (mine.claim.owner, mine.token), "the stored owner and token")
    equal((record.attempts, record.generation), (1, 0), "the stored attempts and generation")
    equal(record.fingerprint, a_print("p"), "the stored fingerprint")
    equal(record.doubt_on_lapse, False, "the stored meaning of a lapse")
    holds(
        record.lease_until is not None and record.expires_at is not None,
        f"a claim without its times: {record}",
    )
    lease_until, expires_at = record.lease_until or 0, record.expires_at or 0
    holds(
        before - h.slack <= lease_until - LONG <= after + h.slack,
        f"lease_until is {lease_until - before - LONG} us from now + lease",
    )
    holds(
        abs(expires_at - lease_until - KEEP) <= h.slack,
        f"expires_at is {expires_at - lease_until - KEEP} us from lease_until + retention",
    )
    for time in (record.created_at, record.changed_at):
        holds(
            before - h.slack <= time <= after + h.slack,
            f"created or changed {time - before} us from the claim",
        )


@case
async def a_token_comes_from_the_stores_time(h: Harness) -> None:
    """F69: a token that starts at 1 starts at 1 again after data was lost."""
    before = await h.now()
    mine = await h.take()
    after = await h.now()
    holds(before - h.slack <= mine.token <= after + h.slack, f"token {mine.token} is not the time {before}")


@case
async def a_free_record_is_taken_again_and_its_attempts_grow(h: Harness) -> None:
    first = await h.take()
    holds(await h.settle(first, "free"), "the release was not applied")
    second = (await h.take()).answer
    equal(second.attempts, 2, "attempts after a release")
    equal(second.generation, 0, "the generation after a release")
    equal(second.lapsed, False, "lapsed, though it was released")
    holds(second.token > first.token, f"the token did not grow: {first.token}, then {second.token}")


@case
async def a_lapsed_lease_with_rerun_is_taken_over(h: Harness) -> None:
    """F02: the owner died; another runs it, and learns that the attempt before ended without a word."""
    first = await h.lapsed()
    second = await h.take()
    equal(second.answer.attempts, 2, "attempts after a lapse")
    equal(second.answer.generation, 0, "the generation after a lapse")
    equal(second.answer.lapsed, True, "whether the attempt before lapsed")
    holds(second.token > first.token, f"the token did not grow: {first.token}, then {second.token}")
    record = await h.record()
    equal((record.owner, record.token), (second.claim.owner, second.token), "whose claim is stored")


@case
async def a_takeover_is_held_for_the_new_lease(h: Harness) -> None:
    await h.lapsed()
    await h.take(lease=LONG)
    equal((await h.ask()).kind, "in_progress", "a third claim")


# -- 3. the owner again


@case
async def a_claim_repeated_by_its_owner_answers_the_same(h: Harness) -> None:
    """F68: the reply was lost and the client sent it again: it must not find its own key taken."""
    mine = await h.take()
    again = await h.send(mine.claim)
    equal(again.kind, "claimed", "the same claim, sent again")
    equal(
        (again.token, again.answer.attempts, again.answer.generation),
        (mine.token, 1, 0),
        "token, attempts, generation",
    )
    holds(await h.settle(again, "done"), "the settlement by the repeated claim was not applied")


@case
async def a_claim_repeated_from_another_connection_answers_the_same(h: Harness) -> None:
    """F68: the connection broke, the client repeats on a new one."""
    mine = await h.take(max_attempts=1)
    again = await h.send(mine.claim, h.port())
    equal((again.kind, again.token, again.answer.attempts), ("claimed", mine.token, 1), "the repetition")


@case
async def a_takeover_repeated_by_its_owner_answers_the_same(h: Harness) -> None:
    await h.lapsed()
    mine = await h.take()
    again = await h.send(mine.claim)
    equal((again.kind, again.token, again.answer.attempts), ("claimed", mine.token, 2), "the repeated takeover")
    equal(again.answer.lapsed, True, "whether the attempt before lapsed, said once more")


@case
async def a_claim_repeated_by_its_owner_is_its_own_even_lapsed(h: Harness) -> None:
    """Step 3 comes before 6, 7 and 8: the end of the lease alone invalidates nothing."""
    for key, doubt in (("rerun", False), ("doubt", True)):
        mine = await h.lapsed(key, doubt=doubt)
        again = await h.send(mine.claim)
        equal((again.kind, again.token, again.answer.attempts), ("claimed", mine.token, 1), f"repeated, {key}")


# -- 4. and 5. finished, in doubt


@case
async def a_done_record_answers_its_result(h: Harness) -> None:
    await h.settle(await h.take(), "done", result=b'1{"paid":true}')
    for answer in ((await h.ask()).answer, await h.look()):
        equal((answer.kind, answer.result), ("done", b'1{"paid":true}'), "a duplicate's answer")


@case
async def a_failed_record_answers_its_error(h: Harness) -> None:
    await h.settle(await h.take(), "failed", error=b'1{"type":"CardDeclined"}')
    for answer in ((await h.ask()).answer, await h.look()):
        equal((answer.kind, answer.error), ("failed", b'1{"type":"CardDeclined"}'), "a duplicate's answer")
        equal(answer.result, None, "the result of a failure")


@case
async def an_answer_carries_the_generation_of_what_is_stored(h: Harness) -> None:
    """Stored results may be encrypted under their generation: a replay must learn it."""
    for key, state in (("d", "done"), ("f", "failed")):
        await h.take(key)
        holds(await h.forget(key), "the forget was not applied")
        mine = await h.take(key)
        equal(mine.answer.generation, 1, "the generation of a claim after a forget")
        holds(await h.settle(mine, state), "the settlement was not applied")  # type: ignore[arg-type]
        equal((await h.ask(key)).answer.generation, 1, f"the generation in a claim's answer, {state}")
        equal((await h.look(key)).generation, 1, f"the generation in a look's answer, {state}")


@case
async def duplicates_do_not_change_a_finished_record(h: Harness) -> None:
    await h.settle(await h.take(), "done", result=b"r")
    before = await h.get()
    for _ in range(3):
        await h.ask(retention=1, lease=1, doubt=True, max_attempts=1, waiting=True)
    equal(await h.get(), before, "the record after three duplicates")


@case
async def a_record_in_doubt_answers_in_doubt(h: Harness) -> None:
    await h.in_doubt()
    equal((await h.ask()).kind, "in_doubt", "a claim")
    equal((await h.look()).kind, "in_doubt", "a look")
    equal((await h.ask(max_attempts=1)).kind, "in_doubt", "a claim past its limit")


@case
async def a_record_in_doubt_never_expires(h: Harness) -> None:
    """F26: what nobody knows the outcome of must wait for its operator."""
    mine = await h.take(lease=h.brief, retention=h.brief)
    holds(await h.settle(mine, "in_doubt", retention=h.brief), "the doubt was not applied")
    equal((await h.record()).expires_at, None, "when a record in doubt expires")
    await h.past(3 * h.brief)
    equal((await h.ask()).kind, "in_doubt", "a claim long after")
    await h.sweep()
    equal(await h.state(), "in_doubt", "the state after a sweep")


# -- 6. in progress


@case
async def a_live_claim_is_in_progress_for_others(h: Harness) -> None:
    await h.take(lease=LONG)
    before = await h.get()
    for answer in ((await h.ask()).answer, await h.look(), (await h.ask(max_attempts=1)).answer):
        equal(answer.kind, "in_progress", "another's answer")
        holds(0 < answer.retry_after <= LONG / SECOND + h.slack / SECOND, f"retry_after is {answer.retry_after}")
        holds(answer.retry_after > 30, f"retry_after is {answer.retry_after}, most of a minute is left")
        equal((answer.result, answer.error), (None, None), "result and error")
    equal(await h.get(), before, "the record after others asked")


@case
async def a_waiting_claim_changes_nothing_that_is_seen(h: Harness) -> None:
    mine = await h.take()
    before = await h.get()
    equal((await h.ask(waiting=True)).kind, "in_progress", "the waiter's answer")
    equal(await h.get(), before, "the record after a waiter flagged it")
    holds(await h.settle(mine, "done", result=b"r"), "the owner's completion was not applied")
    equal((await h.ask(waiting=True)).answer.result, b"r", "the waiter's second answer")


# -- 7. lapsed into doubt


@case
async def a_lapsed_lease_with_doubt_is_moved_to_in_doubt_by_the_next_claim(h: Harness) -> None:
    """A dead owner cannot say that it is in doubt; what it asked for at its claim says so."""
    mine = await h.lapsed(doubt=True)
    equal((await h.ask()).kind, "in_doubt", "the next claim")
    record = await h.record()
    equal(record.state, "in_doubt", "the stored state")
    equal((record.owner, record.token), (mine.claim.owner, mine.token), "the owner and token, kept")
    equal(record.expires_at, None, "when it expires")
    equal((await h.ask()).kind, "in_doubt", "the claim after that")


@case
async def a_look_at_a_lapse_into_doubt_tells_it_without_moving_it(h: Harness) -> None:
    await h.lapsed(doubt=True)
    equal((await h.look()).kind, "in_doubt", "a look")
    equal(await h.state(), "claimed", "the stored state")


@case
async def a_claim_with_doubt_on_lapse_never_expires(h: Harness) -> None:
    await h.take(lease=h.brief, retention=h.brief, doubt=True)
    record = await h.record()
    equal((record.expires_at, record.doubt_on_lapse), (None, True), "when it expires, and what its lapse means")
    await h.past(3 * h.brief)
    equal(await h.state(), "claimed", "the stored state, long after")
    equal((await h.ask()).kind, "in_doubt", "a claim long after")


@case
async def what_a_lapse_means_is_the_last_claims_choice(h: Harness) -> None:
    await h.settle(await h.take("to-rerun", doubt=True), "free")
    await h.settle(await h.take("to-doubt", doubt=False), "free")
    await h.take("to-rerun", lease=h.brief, doubt=False)
    await h.take("to-doubt", lease=h.brief, doubt=True)
    await h.past(h.brief)
    equal((await h.ask("to-rerun", doubt=True)).kind, "claimed", "after a lapse with rerun")
    equal((await h.ask("to-doubt", doubt=False)).kind, "in_doubt", "after a lapse with doubt")


# -- 8. attempts


async def _use_up(h: Harness, key: str = "k", retention: int = KEEP) -> Try:
    """One attempt, released, and a second claim with a limit of one."""
    holds(await h.settle(await h.take(key), "free"), "the release was not applied")
    return await h.ask(key, max_attempts=1, retention=retention)


@case
async def claims_up_to_the_limit_are_granted(h: Harness) -> None:
    for attempt in (1, 2, 3):
        mine = await h.take(max_attempts=3)
        equal(mine.answer.attempts, attempt, "attempts")
        holds(await h.settle(mine, "free"), "the release was not applied")
    equal((await h.ask(max_attempts=3)).kind, "exhausted", "the fourth claim of three")


@case
async def a_claim_past_the_limit_fails_the_record(h: Harness) -> None:
    equal((await _use_up(h)).kind, "exhausted", "the second claim of one")
    record = await h.record()
    equal((record.state, record.error), ("failed", EXHAUSTED), "what is stored")
    equal((record.attempts, record.result), (1, None), "stored attempts and result")
    equal((await h.look()).kind, "exhausted", "a look at it")
    equal((await h.ask(max_attempts=1)).kind, "exhausted", "the next claim")
    equal((await h.ask(max_attempts=0)).kind, "exhausted", "a claim without a limit")


@case
async def an_exhausted_record_expires_one_retention_later(h: Harness) -> None:
    equal((await _use_up(h, retention=h.brief)).kind, "exhausted", "the claim past the limit")
    await h.past(h.brief)
    equal(await h.get(), None, "get after the retention")
    equal((await h.take(max_attempts=1)).answer.attempts, 1, "attempts after expiry")


@case
async def an_attempt_that_took_the_process_down_counts(h: Harness) -> None:
    """F20: attempts are counted before the run, so that a poison message ends."""
    mine = await h.lapsed(max_attempts=1)
    equal((await h.ask(max_attempts=1)).kind, "exhausted", "the claim after the only attempt lapsed")
    holds(
        not await h.settle(mine, "done"),
        "an attempt that came back after the record was exhausted completed it",
    )
    equal((await h.record()).error, EXHAUSTED, "the stored error")


@case
async def exhausted_is_told_by_its_stored_error(h: Harness) -> None:
    await h.settle(await h.take(), "failed", error=EXHAUSTED)
    equal((await h.ask()).kind, "exhausted", "a claim of a record that failed with EXHAUSTED")
    equal((await h.look()).kind, "exhausted", "a look")


@case
async def a_look_counts_no_attempt(h: Harness) -> None:
    equal((await h.look()).kind, "absent", "a look at nothing")
    equal(await h.get(), None, "what a look stored")
    await h.settle(await h.take(), "free")
    before = await h.get()
    equal((await h.look()).kind, "absent", "a look at a free record")
    equal(await h.get(), before, "the free record after a look")
    equal((await h.take()).answer.attempts, 2, "attempts")


@case
async def a_look_at_a_lapsed_lease_says_absent_and_takes_nothing(h: Harness) -> None:
    mine = await h.lapsed()
    before = await h.get()
    equal((await h.look()).kind, "absent", "a look at a lapsed lease")
    equal(await h.get(), before, "the record after a look")
    holds(await h.settle(mine, "done"), "the owner's completion after another's look was not applied")


@case
async def tokens_grow_with_every_claim(h: Harness) -> None:
    """F69: also where the store's clock stands still between two claims."""
    last = 0
    for _ in range(20):
        mine = await h.take()
        holds(mine.token > last, f"the token did not grow: {last}, then {mine.token}")
        last = mine.token
        holds(await h.settle(mine, "free"), "the release was not applied")
