"""Races: several ports at once, as threads in the sync port_kind and as tasks in the async one."""

from __future__ import annotations

from effectonce.contracts import Port
from effectonce.core.run_sync import run_sync
from effectonce.record import Answer, Claim, Reply, Resolution

from .harness import Harness, Try, case, sync_case
from .sentences import equal, holds, threads


@case
async def one_of_many_concurrent_claims_is_granted(h: Harness) -> None:
    """F14: look, then insert, lets two through."""

    async def contend(port: Port, n: int) -> list[str]:
        return [(await h.ask(f"round{r}", port=port)).kind for r in range(12)]

    found = await h.together(6, contend)
    for r, kinds in enumerate(zip(*found, strict=True)):
        equal(sorted(kinds), ["claimed"] + ["in_progress"] * 5, f"the answers in round {r}")


@case
async def one_of_many_concurrent_takeovers_is_granted(h: Harness) -> None:
    for n in range(8):
        await h.take(f"round{n}", lease=h.brief)
    await h.past(h.brief)

    async def contend(port: Port, n: int) -> list[Answer]:
        return [(await h.ask(f"round{r}", port=port)).answer for r in range(8)]

    for r, answers in enumerate(zip(*await h.together(5, contend), strict=True)):
        equal(sorted(a.kind for a in answers), ["claimed"] + ["in_progress"] * 4, f"the answers in round {r}")
        granted = [(a.attempts, a.lapsed) for a in answers if a.kind == "claimed"]
        equal(granted, [(2, True)], f"attempts and lapsed in round {r}")


@case
async def one_of_many_concurrent_claims_takes_a_free_record(h: Harness) -> None:
    for n in range(8):
        await h.settle(await h.take(f"round{n}"), "free")

    async def contend(port: Port, n: int) -> list[str]:
        return [(await h.ask(f"round{r}", port=port, max_attempts=2)).kind for r in range(8)]

    for r, kinds in enumerate(zip(*await h.together(5, contend), strict=True)):
        equal(sorted(kinds), ["claimed"] + ["in_progress"] * 4, f"the answers in round {r}")


@case
async def a_completion_and_a_takeover_exclude_each_other(h: Harness) -> None:
    """F08: the owner comes back just as another takes over: it completes, or learns that it lost."""
    owners = [await h.take(f"round{r}", lease=h.brief) for r in range(10)]
    await h.past(h.brief)

    async def contend(port: Port, n: int) -> list[object]:
        if n == 0:
            return [await h.settle(mine, "done", result=b"owner", port=port) for mine in owners]
        return [(await h.ask(f"round{r}", port=port)).kind for r in range(10)]

    completed, first, second = await h.together(3, contend)
    for r, outcome in enumerate(zip(completed, first, second, strict=True)):
        applied, answers = outcome[0], sorted(map(str, outcome[1:]))
        want = ["done", "done"] if applied else ["claimed", "in_progress"]
        equal(answers, want, f"the claims in round {r}, where the completion was answered {applied}")
        equal(await h.state(f"round{r}"), "done" if applied else "claimed", f"the state in round {r}")


@case
async def a_claim_sent_twice_at_once_is_granted_as_one(h: Harness) -> None:
    """F68: the resent claim may overtake the first."""
    claims = [h.a_claim(f"round{r}") for r in range(10)]

    async def resend(port: Port, n: int) -> list[Answer]:
        return [(await h.send(claim, port)).answer for claim in claims]

    for r, answers in enumerate(zip(*await h.together(3, resend), strict=True)):
        equal([(a.kind, a.attempts) for a in answers], [("claimed", 1)] * 3, f"the answers in round {r}")
        equal(len({a.token for a in answers}), 1, f"the number of tokens in round {r}")


@case
async def a_refund_sent_twice_at_once_is_given_once(h: Harness) -> None:
    tries: list[Try] = []
    for r in range(8):
        await h.settle(await h.take(f"round{r}"), "free")
        tries.append(await h.take(f"round{r}"))

    async def release(port: Port, n: int) -> list[bool]:
        return [await h.settle(mine, "free", refund=True, port=port) for mine in tries]

    for r, applied in enumerate(zip(*await h.together(3, release), strict=True)):
        equal(applied, (True, True, True), f"the replies in round {r}")
        equal((await h.record(f"round{r}")).attempts, 1, f"attempts after one refund in round {r}")


@case
async def one_of_many_concurrent_resolutions_is_applied(h: Harness) -> None:
    for r in range(8):
        await h.in_doubt(f"round{r}")

    async def resolve(port: Port, n: int) -> list[bool]:
        word = Resolution(state="free", retention=3_600_000_000)
        return [await port.resolve(h.scope, f"round{r}", word) for r in range(8)]

    for r, applied in enumerate(zip(*await h.together(3, resolve), strict=True)):
        equal(sorted(applied), [False, False, True], f"the replies in round {r}")
        equal((await h.record(f"round{r}")).generation, 1, f"the generation in round {r}")


@case
async def overlapping_batches_grant_each_identity_once_and_do_not_deadlock(h: Harness) -> None:
    """F70: unsorted multi-row writes deadlock; sorted ones wait in line."""
    size = min(24, h.capabilities.batch)

    async def contend(port: Port, n: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for r in range(4):
            claims = [h.a_claim(f"round{r}-{k:02}") for k in range(n, size + n)]  # shifted: they overlap in part
            replies = await h.run(*claims, port=port)
            found += [(c.key, a.kind) for c, a in zip(claims, replies, strict=True) if isinstance(a, Answer)]
        return found

    every = [pair for found in await h.together(4, contend) for pair in found]
    equal(len(every), 4 * 4 * size, "the number of answers")
    holds({kind for _, kind in every} <= {"claimed", "in_progress"}, f"answers of other kinds: {set(every)}")
    granted = sorted(key for key, kind in every if kind == "claimed")
    equal(granted, sorted({key for key, _ in every}), "the keys granted, each once")


@case
async def concurrent_sweeps_share_the_work(h: Harness) -> None:
    """Every process has a sweeper: they meet, and none fails or waits for another."""
    await h.sweep()
    for n in range(10):
        await h.settle(await h.take(f"expired{n}"), "done", retention=h.brief)
        await h.take(f"doubt{n}", lease=h.brief, doubt=True)
    await h.past(h.brief)

    async def sweep(port: Port, n: int) -> int:
        return sum([(await port.sweep(4)).lapsed for _ in range(3)])

    moved = sum(await h.together(3, sweep)) + (await h.sweep()).lapsed
    holds(moved >= 10, f"{moved} of 10 lapsed claims were moved")
    equal([await h.state(f"doubt{n}") for n in range(10)], ["in_doubt"] * 10, "the states")
    equal([await h.state(f"expired{n}") for n in range(10)], ["absent"] * 10, "the states of the expired")


@case
async def claims_settlements_renewals_and_sweeps_run_together(h: Harness) -> None:
    """F70: each port claims, renews and settles its own batches while another sweeps; nothing is lost."""
    size = min(16, h.capabilities.batch)

    async def work(port: Port, n: int) -> int:
        if n == 0:
            for _ in range(6):
                await port.sweep(10)
                await port.stats()
            return 0
        done = 0
        for r in range(4):
            claims = [h.a_claim(f"round{r}-{k:02}") for k in range(size)]
            mine = _granted(claims, await h.run(*claims, port=port))
            if mine:
                renewed = await h.run(*(h.a_renewal(t) for t in mine), port=port)
                equal(renewed, [True] * len(mine), "renewals of one's own claims")
                settled = await h.run(*(h.a_settlement(t, "done", result=b"r") for t in mine), port=port)
                equal(settled, [True] * len(mine), "settlements of one's own claims")
            done += len(mine)
        return done

    equal(sum(await h.together(4, work)), 4 * size, "the number of claims granted and settled in all")
    equal(len(await h.listed(scope=h.scope, state="done")), 4 * size, "the records that are done")


def _granted(claims: list[Claim], replies: list[Reply]) -> list[Try]:
    return [
        Try(claim, answer, answer.token)
        for claim, answer in zip(claims, replies, strict=True)
        if isinstance(answer, Answer) and answer.kind == "claimed"
    ]


@sync_case
async def a_sync_port_serves_one_thread_after_another(h: Harness) -> None:
    """One caller at a time, not one caller for life: calls of many threads are grouped over few ports."""
    await h.take("here")

    def there() -> str:
        return run_sync(h.take("there")).kind

    equal(threads([there]), ["claimed"], "a claim on the same port from another thread")
    await h.take("here again")


@case
async def many_ports_may_be_open_at_once(h: Harness) -> None:
    async def use(port: Port, n: int) -> str:
        return (await h.take(f"k{n}", port=port)).kind

    equal(await h.together(16, use), ["claimed"] * 16, "claims of 16 ports")
