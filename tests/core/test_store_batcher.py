"""Group commit for a worker: callbacks instead of waiting callers, and the rules of F70 as for `AsyncGroup`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryPort
from effectonce.core.group_commit.batcher import MIN_JOBS_FOR_SECOND_TRIP, StoreBatcher
from effectonce.record import Answer, Batchable, Claim, Reply
from tests.harness.waiting import auntil

from .grouped import GroupedBackend


def claim(key: str, owner: str = "o") -> Claim:
    return Claim("s", key, owner.encode().ljust(16), 60_000_000, 10**10)


class Observed:
    """A batcher on ports, and the replies that came, in their order. Its end is awaited, and no callback has failed."""

    def __init__(self, *ports: Any, limit: int = 128) -> None:
        self.replies: list[tuple[str, Reply]] = []
        self.failures: list[Exception] = []
        self.ends_of_batches: list[int] = []  # how many replies there were at each
        self.batcher = StoreBatcher(ports, limit, self.failures.append)
        self.batcher.on_batch.append(lambda: self.ends_of_batches.append(len(self.replies)))

    def submit(self, *ops: Claim) -> None:
        for op in ops:
            self.batcher.submit(op, self._note, op.key)

    def _note(self, key: str, op: Claim, reply: Reply) -> None:
        self.replies.append((key, reply))

    async def replied(self, count: int) -> list[tuple[str, Reply]]:
        await auntil(lambda: len(self.replies) == count)
        return self.replies

    def kinds(self) -> dict[str, str]:
        return {key: reply.kind for key, reply in self.replies if isinstance(reply, Answer)}


@asynccontextmanager
async def batching(*ports: Any, limit: int = 128) -> AsyncIterator[Observed]:
    observed = Observed(*ports, limit=limit)
    yield observed
    await asyncio.wait_for(observed.batcher.close(), 10)
    assert observed.failures == []


async def test_what_is_submitted_together_is_one_round_trip_and_each_gets_its_own_reply() -> None:
    backend = GroupedBackend()
    keys = [f"k{n * 37 % 100:02}" for n in range(100)]
    async with batching(backend.async_port()) as observed:
        observed.submit(claim("k05", "other"))
        await observed.replied(1)
        observed.replies.clear()
        observed.submit(*(claim(key) for key in keys))
        await observed.replied(100)
    assert [len(batch) for batch in backend.batches] == [1, 100]
    assert observed.kinds() == {key: "in_progress" if key == "k05" else "claimed" for key in keys}
    assert observed.ends_of_batches == [1, 100], "once after each batch, when all of it is answered"


async def test_duplicates_and_what_is_over_the_limit_go_out_in_further_round_trips() -> None:
    backend = GroupedBackend(batch=10)
    async with batching(backend.async_port(), limit=10) as observed:
        observed.submit(*(claim(f"k{n % 20}", f"o{n}") for n in range(40)))
        replies = await observed.replied(40)
    kinds = [reply.kind for _, reply in replies if isinstance(reply, Answer)]
    assert kinds.count("claimed") == 20
    assert kinds.count("in_progress") == 20
    for batch in backend.batches:
        names = [op.key for op in batch]
        assert names == sorted(set(names))


async def test_an_error_is_the_reply_of_its_own_operation_only() -> None:
    class Port:
        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            return [ValueError("bad") if op.key == "b" else Answer("absent") for op in batch]

        async def close(self) -> None: ...

    async with batching(Port()) as observed:
        observed.submit(claim("a"), claim("b"), claim("c"))
        (_, first), (_, second), (_, third) = await observed.replied(3)
    assert isinstance(second, ValueError)
    assert (first, third) == (Answer("absent"), Answer("absent"))


@pytest.mark.parametrize("error", [eo.StoreUnavailable("it is away"), asyncio.CancelledError()])
async def test_a_store_that_is_away_is_the_reply_of_each(error: BaseException) -> None:
    """So is one whose driver cancels itself: sent again without end, it would keep the loop to itself."""
    asked: list[int] = []

    class Port:
        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            asked.append(len(batch))
            raise error

        async def close(self) -> None: ...

    async with batching(Port()) as observed:
        observed.submit(claim("a"), claim("b"))
        replies = await observed.replied(2)
    assert ([type(reply) for _, reply in replies], asked) == ([eo.StoreUnavailable] * 2, [2])


class Gated:
    """A port whose round trips end when ``answers`` is set."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.answers = asyncio.Event()

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        self.batches.append(len(batch))
        await self.answers.wait()
        return [True] * len(batch)

    async def close(self) -> None: ...


async def test_the_second_port_joins_in_only_while_many_wait() -> None:
    one, other = Gated(), Gated()
    async with batching(one, other) as observed:
        await asyncio.sleep(0)
        observed.submit(claim("first"))
        await asyncio.sleep(0)
        observed.submit(*(claim(f"k{n}") for n in range(MIN_JOBS_FOR_SECOND_TRIP - 1)))
        await asyncio.sleep(0)
        assert sorted([one.batches, other.batches]) == [[], [1]]
        observed.submit(claim("one more"))
        await asyncio.sleep(0)
        assert sorted([one.batches, other.batches]) == [[1], [MIN_JOBS_FOR_SECOND_TRIP]]
        one.answers.set()
        other.answers.set()
        await observed.replied(MIN_JOBS_FOR_SECOND_TRIP + 1)


async def test_lone_operations_take_the_same_port_each_time() -> None:
    one, other = Gated(), Gated()
    one.answers.set()
    other.answers.set()
    async with batching(one, other) as observed:
        await asyncio.sleep(0)
        for number in range(5):
            observed.submit(claim(f"k{number}"))
            await observed.replied(number + 1)
    assert sorted([one.batches, other.batches]) == [[], [1] * 5]


async def test_closing_sends_what_still_waits() -> None:
    backend = GroupedBackend(latency=0.01)
    observed = Observed(backend.async_port(), limit=2)
    observed.submit(*(claim(key) for key in "abcdef"))
    await observed.batcher.close()
    assert observed.kinds() == dict.fromkeys("abcdef", "claimed")
    assert observed.batcher.closed


async def test_a_callback_that_raises_is_reported_and_the_batcher_goes_on() -> None:
    backend = GroupedBackend()
    observed = Observed(backend.async_port())
    defect = ValueError("a defect")

    def raise_defect(key: str, op: Claim, reply: Reply) -> None:
        raise defect

    observed.batcher.submit(claim("a"), raise_defect, "a")
    await auntil(lambda: observed.failures == [defect])
    observed.submit(claim("b"))
    await observed.replied(1)
    await observed.batcher.close()


async def test_a_callback_that_raises_keeps_no_other_of_its_batch_from_its_reply() -> None:
    observed = Observed(GroupedBackend().async_port())

    def raise_defect(key: str, op: Claim, reply: Reply) -> None:
        raise ValueError("a defect")

    observed.batcher.submit(claim("a"), raise_defect, "a")
    observed.submit(claim("b"), claim("c"))
    await observed.replied(2)
    assert (len(observed.failures), observed.ends_of_batches) == (1, [2])
    await observed.batcher.close()


async def test_closing_while_the_store_is_down_waits_for_the_batches_under_way_only() -> None:
    away = eo.StoreUnavailable("it is away")

    class SlowPort(MemoryPort):
        batches = 0

        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            self.batches += 1
            await asyncio.sleep(0.05)
            raise away

    port = SlowPort(GroupedBackend())
    observed = Observed(port, limit=1)
    observed.submit(*(claim(key) for key in "abcdef"))
    await asyncio.sleep(0.01)
    await observed.batcher.close()
    assert port.batches == 1
    assert observed.replies == [(key, away) for key in "abcdef"]


@pytest.mark.parametrize("ports", [1, 2])
async def test_tasks_that_are_cancelled_with_their_loop_are_replaced_until_it_is_closed(ports: int) -> None:
    backend = GroupedBackend(latency=0.05)
    others = asyncio.all_tasks()
    observed = Observed(*(backend.async_port() for _ in range(ports)))
    observed.submit(claim("a"))
    await auntil(lambda: backend.round_trips == 1)
    for task in asyncio.all_tasks() - others:  # one of them is idle where there are two
        task.cancel()
    observed.submit(claim("b"))
    await observed.replied(2)
    assert observed.kinds() == {"a": "claimed", "b": "claimed"}
    await asyncio.wait_for(observed.batcher.close(), 5)
    assert asyncio.all_tasks() == others
