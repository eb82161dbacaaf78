"""Group commit of blocks: several operations, one future, and the rules of F70 as for single ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import effectonce as eo
from effectonce.core.group_commit.tasks import AsyncGroup
from effectonce.record import Answer, Batchable, Claim, Reply
from tests.guard.grouped import GroupedBackend

from .bench import until


def claim(key: str, owner: str = "o") -> Claim:
    return Claim("s", key, owner.encode().ljust(16), 60_000_000, 10**10)


def group_on(backend: GroupedBackend, orphans: list[str] | None = None, limit: int = 128) -> AsyncGroup:
    def orphaned(op: Claim, answer: Answer) -> None:
        assert orphans is not None, "nothing was orphaned here"
        orphans.append(op.key)

    return AsyncGroup([backend.async_port()], limit, orphaned, asyncio.get_running_loop())


async def test_a_block_is_one_round_trip_and_is_answered_in_its_order() -> None:
    backend = GroupedBackend()
    group = group_on(backend)
    keys = [f"k{n * 37 % 100:02}" for n in range(100)]
    await group.submit(claim("k05", "other"))
    replies = await group.submit_block([claim(key) for key in keys])
    assert [len(batch) for batch in backend.batches] == [1, 100]
    kinds = [reply.kind for reply in replies if isinstance(reply, Answer)]
    assert kinds == ["in_progress" if key == "k05" else "claimed" for key in keys]


async def test_duplicates_and_what_is_over_the_limit_go_out_in_further_round_trips() -> None:
    backend = GroupedBackend(batch=10)
    replies = await group_on(backend, limit=10).submit_block([claim(f"k{n % 20}", f"o{n}") for n in range(40)])
    kinds = [reply.kind for reply in replies if isinstance(reply, Answer)]
    assert kinds.count("claimed") == 20
    assert kinds.count("in_progress") == 20
    for batch in backend.batches:
        names = [op.key for op in batch]
        assert names == sorted(set(names))


async def test_an_error_is_the_reply_of_its_own_operation_only() -> None:
    class Port:
        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            return [ValueError("bad") if op.key == "b" else Answer("absent") for op in batch]

    group = AsyncGroup([Port()], 128, lambda op, answer: None, asyncio.get_running_loop())  # type: ignore[list-item]
    first, second, third = await group.submit_block([claim("a"), claim("b"), claim("c")])
    assert isinstance(second, ValueError)
    assert (first, third) == (Answer("absent"), Answer("absent"))


async def test_a_store_that_is_away_is_the_reply_of_each() -> None:
    class Port:
        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            raise eo.StoreUnavailable("it is away")

    group = AsyncGroup([Port()], 128, lambda op, answer: None, asyncio.get_running_loop())  # type: ignore[list-item]
    replies = await group.submit_block([claim("a"), claim("b")])
    assert [type(reply) for reply in replies] == [eo.StoreUnavailable] * 2


async def test_what_a_cancelled_block_was_granted_is_given_back() -> None:
    backend = GroupedBackend(latency=0.05)
    orphans: list[str] = []
    group = group_on(backend, orphans, limit=2)
    future = group.submit_block([claim(key) for key in "abcdef"])
    await until(lambda: len(backend.batches) == 2)  # "a" and "b" are answered, "c" and "d" under way, the rest waits
    future.cancel()
    await asyncio.sleep(0.15)
    assert sorted(orphans) == ["a", "b", "c", "d"]
    assert [op.key for batch in backend.batches for op in batch] == ["a", "b", "c", "d"]


async def test_an_empty_block_is_answered_at_once() -> None:
    assert await group_on(GroupedBackend()).submit_block([]) == []


async def test_a_store_in_this_process_answers_a_block_itself() -> None:
    store = eo.connect("memory://")
    client = store.runtime.async_client()
    replies: Any = client.claim_block([claim("a"), claim("a", "other")])
    assert [reply.kind for reply in replies] == ["claimed", "in_progress"]


async def test_a_port_that_is_cancelled_from_within_is_a_store_that_is_away() -> None:
    """Nobody has cancelled the group's own task: sent again without end, it would keep the loop to itself."""

    class Port:
        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            asked.append(len(batch))
            raise asyncio.CancelledError

    asked: list[int] = []
    group = AsyncGroup([Port()], 128, lambda op, answer: None, asyncio.get_running_loop())  # type: ignore[list-item]
    replies = await asyncio.wait_for(group.submit_block([claim("a"), claim("b")]), 5)
    assert ([type(reply) for reply in replies], asked) == ([eo.StoreUnavailable] * 2, [2])


async def test_lone_operations_and_blocks_go_out_together_in_the_order_they_came() -> None:
    """Neither waits for what came after it, and a lone operation takes the room that a block has left."""
    backend = GroupedBackend(latency=0.001)
    group = group_on(backend, limit=8)
    first = group.submit_block([claim(f"a{at}") for at in range(6)])
    early = [group.submit(claim(f"l{n}")) for n in range(4)]
    second = group.submit_block([claim(f"b{at}") for at in range(6)])
    late = group.submit(claim("l9"))
    await asyncio.gather(first, *early, second, late)
    assert ["".join(sorted({op.key[0] for op in batch})) for batch in backend.batches] == ["al", "bl", "l"]
    assert [len(batch) for batch in backend.batches] == [8, 8, 1]


async def test_a_group_that_is_closed_meanwhile_answers_its_blocks_all_the_same() -> None:
    backend = GroupedBackend(latency=0.01)
    group = group_on(backend, limit=2)
    block = group.submit_block([claim(key) for key in "abcdef"])
    await until(lambda: backend.batches)
    closing = asyncio.create_task(group.close())
    await asyncio.sleep(0)
    later = group.submit_block([claim("g")])
    await closing
    assert [reply.kind for reply in (*await block, *await later) if isinstance(reply, Answer)] == ["claimed"] * 7
