"""`start_eagerly`: what runs before the first wait, and that the rest behaves as if it were awaited in a task."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, copy_context

import pytest

from effectonce.worker.eager_start import start_eagerly

current: ContextVar[str] = ContextVar("current", default="outside")


async def test_a_coroutine_that_never_waits_has_ended_at_once() -> None:
    ended: list[bool] = []

    async def handle() -> str:
        ended.append(True)
        return "a result"

    assert start_eagerly(handle(), copy_context()) is None
    assert ended == [True]


async def test_one_that_waits_gets_what_it_waits_for() -> None:
    answer = asyncio.get_running_loop().create_future()
    received: list[str] = []

    async def handle() -> None:
        received.append(await answer)

    rest = start_eagerly(handle(), copy_context())
    answer.set_result("an answer")
    assert received == []
    assert rest is not None
    await rest
    assert received == ["an answer"]


async def test_all_of_it_runs_in_its_context_and_leaves_the_callers_alone() -> None:
    seen: list[str] = []

    async def handle() -> None:
        current.set("inside")
        await asyncio.sleep(0)
        seen.append(current.get())
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            seen.append(current.get())

    rest = start_eagerly(handle(), copy_context())
    assert rest is not None
    task = asyncio.ensure_future(rest)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (seen, current.get()) == (["inside", "inside"], "outside")


@pytest.mark.parametrize("waits", [False, True])
async def test_what_it_raises_is_raised(waits: bool) -> None:
    async def handle() -> None:
        if waits:
            await asyncio.sleep(0)
        raise ValueError("not today")

    async def run() -> None:
        rest = start_eagerly(handle(), copy_context())
        assert (rest is not None) is waits
        if rest is not None:
            await rest

    with pytest.raises(ValueError, match="not today"):
        await run()
