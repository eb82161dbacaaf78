"""Races: several ports at once, as threads on sync ports and as tasks on async ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from effectonce.contracts import Port
from effectonce.core.run_sync import run_sync
from effectonce.record import Answer, Resolution
from effectonce.testing.suites.expectations import expect, expect_fields, require

from .harness import RETENTION_US, Grant, StoreHarness, round_keys
from .port_harness import only_on, run_in_threads


def _expect_one_grant(answers: Sequence[Answer], **fields: Any) -> None:
    """Require that one claim was granted, with these ``fields``, and the others found it in progress."""
    granted = [answer for answer in answers if answer.kind == "claimed"]
    expect([answer.kind for answer in answers].count("in_progress"), len(answers) - 1, f"the others of {answers}")
    expect(len(granted), 1, f"the grants among {answers}")
    expect_fields(granted[0], **fields)


async def one_of_many_concurrent_claims_is_granted(h: StoreHarness) -> None:
    """F14: look, then insert, lets two through."""
    for answers in await h.race(6, round_keys(12), h.try_claim):
        _expect_one_grant(answers)


async def one_of_many_concurrent_takeovers_is_granted(h: StoreHarness) -> None:
    for key in round_keys(8):
        await h.claim(key, lease=h.brief_us)
    await h.wait_out(h.brief_us)
    for answers in await h.race(5, round_keys(8), h.try_claim):
        _expect_one_grant(answers, attempts=2, lapsed=True)


async def one_of_many_concurrent_claims_takes_a_free_record(h: StoreHarness) -> None:
    for key in round_keys(8):
        await h.make_record("free", key)
    for answers in await h.race(5, round_keys(8), partial(h.try_claim, max_attempts=2)):
        _expect_one_grant(answers)


async def a_completion_and_a_takeover_exclude_each_other(h: StoreHarness) -> None:
    """F08: an owner that was paused completes just as another takes over: it succeeds, or learns that it lost."""
    owners = [await h.claim(key, lease=h.brief_us) for key in round_keys(10)]
    await h.wait_out(h.brief_us)

    async def contend(port: Port, n: int) -> list[object]:
        if n == 0:
            return [await h.try_settle(owner, "done", result=b"owner", port=port) for owner in owners]
        return [(await h.try_claim(owner.key, port=port)).kind for owner in owners]

    completions, *claims = await h.run_together(3, contend)
    for owner, completed, *answers in zip(owners, completions, *claims, strict=True):
        what = f"{owner.key}, where the completion was answered {completed}"
        kinds = ["done", "done"] if completed else ["claimed", "in_progress"]
        expect(sorted(map(str, answers)), kinds, f"the answers to the claims of {what}")
        expect(await h.state(owner.key), "done" if completed else "claimed", f"the state of {what}")


async def a_claim_sent_twice_at_once_is_granted_as_one(h: StoreHarness) -> None:
    """F68: the resent claim may overtake the first."""
    claims = {key: h.make_claim(key) for key in round_keys(10)}

    async def resend(key: str, port: Port) -> Answer:
        return await h.send(claims[key], port)

    for answers in await h.race(3, list(claims), resend):
        for answer in answers:
            expect_fields(answer, kind="claimed", attempts=1, token=answers[0].token)


async def a_refund_sent_twice_at_once_is_given_once(h: StoreHarness) -> None:
    grants: dict[str, Grant] = {}
    for key in round_keys(8):
        await h.make_record("free", key)
        grants[key] = await h.claim(key)

    async def release(key: str, port: Port) -> None:
        await h.settle(grants[key], "free", refund=True, port=port)

    await h.race(3, list(grants), release)
    for key in grants:
        expect_fields(await h.record(key), f"{key}, after one refund", attempts=1)


async def one_of_many_concurrent_resolutions_is_applied(h: StoreHarness) -> None:
    keys = round_keys(8)
    for key in keys:
        await h.make_record("in_doubt", key)

    async def resolve(key: str, port: Port) -> bool:
        return await port.resolve(h.scope, key, Resolution(state="free", retention_us=RETENTION_US))

    for applied in await h.race(3, keys, resolve):
        expect(sorted(applied), [False, False, True], "the replies in one round")
    for key in keys:
        expect_fields(await h.record(key), key, generation=1)


async def overlapping_batches_grant_each_identity_once_and_do_not_deadlock(h: StoreHarness) -> None:
    """F70: unsorted multi-row writes deadlock; sorted ones wait in line."""
    size = min(24, h.capabilities.batch)

    async def contend(port: Port, n: int) -> list[tuple[str, str]]:
        answered: list[tuple[str, str]] = []
        for key in round_keys(4):
            shifted = range(n, size + n)  # the batches overlap in part
            claims = [h.make_claim(f"{key}-{index:02}") for index in shifted]
            replies = await h.run(*claims, port=port)
            answered += [
                (claim.key, answer.kind)
                for claim, answer in zip(claims, replies, strict=True)
                if isinstance(answer, Answer)
            ]
        return answered

    answered = [pair for pairs in await h.run_together(4, contend) for pair in pairs]
    expect(len(answered), 4 * 4 * size, "the number of answers")
    require({kind for _, kind in answered} <= {"claimed", "in_progress"}, f"answers of other kinds: {set(answered)}")
    granted = sorted(key for key, kind in answered if kind == "claimed")
    expect(granted, sorted({key for key, _ in answered}), "the keys granted, each once")


async def concurrent_sweeps_share_the_work(h: StoreHarness) -> None:
    """Every process has a sweeper: they meet, and none fails or waits for another."""
    await h.sweep()
    await h.make_backlog(10)

    async def sweep(port: Port, _: int) -> int:
        return sum([(await port.sweep(4)).lapsed for _ in range(3)])

    moved = sum(await h.run_together(3, sweep)) + (await h.sweep()).lapsed
    require(moved >= 10, f"{moved} of 10 lapsed claims were moved")
    expect([await h.state(f"doubt{n}") for n in range(10)], ["in_doubt"] * 10, "the states of the doubts")
    expect([await h.state(f"expired{n}") for n in range(10)], ["absent"] * 10, "the states of the expired")


async def claims_settlements_renewals_and_sweeps_run_together(h: StoreHarness) -> None:
    """F70: each port claims, renews and settles its own batches while another sweeps; nothing is lost."""
    size = min(16, h.capabilities.batch)

    async def work(port: Port, n: int) -> int:
        if n == 0:
            for _ in range(6):
                await port.sweep(10)
                await port.stats()
            return 0
        settled = 0
        for key in round_keys(4):
            grants = await h.claim_batch([h.make_claim(f"{key}-{index:02}") for index in range(size)], port)
            if grants:
                applied = [True] * len(grants)
                renewals = await h.run(*(grant.renewal() for grant in grants), port=port)
                expect(renewals, applied, "renewals of its own claims")
                settlements = await h.run(*(grant.settlement(result=b"r") for grant in grants), port=port)
                expect(settlements, applied, "settlements of its own claims")
            settled += len(grants)
        return settled

    expect(sum(await h.run_together(4, work)), 4 * size, "the number of claims granted and settled in all")
    expect(len(await h.list_keys(state="done")), 4 * size, "the records that are done")


@only_on("sync")
async def a_sync_port_serves_one_thread_after_another(h: StoreHarness) -> None:
    """One caller at a time, not one caller for life: calls of many threads are grouped over few ports."""
    await h.claim("here")
    run_in_threads([lambda: run_sync(h.claim("there"))])
    await h.claim("here again")


async def many_ports_may_be_open_at_once(h: StoreHarness) -> None:
    await h.run_together(16, lambda port, n: h.claim(f"k{n}", port=port))
