"""Sync and async code that is mixed up, and a guard that is called inside itself."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import effectonce as eo
from effectonce.core.run_sync import run_sync
from effectonce.record import Claim
from effectonce.sessions import Pending
from effectonce.testing import override


async def test_f71_an_async_answer_tested_without_await_raises() -> None:
    async def first() -> bool:
        return False

    pending = Pending(first(), "inbox.first(...)")
    with pytest.raises(eo.NotAwaited, match="await inbox"):
        bool(pending)
    assert await Pending(first(), "inbox.first(...)") is False


def test_f72_a_handlers_stop_iteration_is_its_own_error(store: eo.Store) -> None:
    @eo.once(store, scope="charge", key="k")
    def charge(k: str) -> None:
        next(iter(()))

    with pytest.raises(StopIteration):
        charge("p1")
    assert store.get("charge", "p1").state == "free"  # type: ignore[union-attr]


def test_f72_a_def_that_returns_an_awaitable_is_refused_and_released(store: eo.Store) -> None:
    """A peer's defect: never awaited, recorded as done, acked, lost."""

    async def work() -> None: ...

    @eo.once(store, scope="charge", key="k")
    def charge(k: str) -> Any:
        return work()

    with pytest.raises(eo.SyncAsyncMismatch, match="async def"):
        charge("p1")
    assert store.get("charge", "p1").state == "free"  # type: ignore[union-attr]


def test_f72_reentry_on_ones_own_key_raises_instead_of_waiting_for_itself(store: eo.Store) -> None:
    @eo.once(store, scope="charge", key="k", wait="5s")
    def charge(k: str, depth: int) -> str:
        return charge(k, depth - 1) if depth else "bottom"

    with pytest.raises(eo.Reentered):
        charge("p1", 1)
    assert charge("p1", 0) == "bottom"

    @eo.once(store, scope="outer", key="k")
    def outer(k: str) -> str:
        return charge("p2", 0)

    assert outer("p2") == "bottom", "the same key in another scope is another operation"


async def test_f72_a_blocking_wait_inside_a_running_loop_raises(store: eo.Store) -> None:
    @eo.once(store, scope="charge", key="k", wait="5s")
    def charge(k: str) -> None: ...

    with eo.connect("memory://") as other:
        drive_claim(other)
        with override(store, other), pytest.raises(eo.SyncAsyncMismatch, match="event loop"):
            charge("p1")
    with pytest.raises(eo.SyncAsyncMismatch, match="async with"), eo.block(store, scope="s", key="k"):
        pass


def drive_claim(store: eo.Store) -> None:
    claim = Claim("charge", "p1", b"another".ljust(16), 30_000_000, 10**9)
    run_sync(store.runtime.sync_client().claim(claim))


def test_a_guarded_function_is_async_exactly_where_its_function_is(store: eo.Store) -> None:
    @eo.once(store, scope="a", key="k")
    async def handler(k: str) -> None: ...

    @eo.once(store, scope="b", key="k")
    def plain(k: str) -> None: ...

    assert inspect.iscoroutinefunction(handler)
    assert not inspect.iscoroutinefunction(plain)


async def test_an_async_answer_may_be_a_task_of_its_own() -> None:
    async def first(key: int) -> int:
        await asyncio.sleep(0)
        return key

    async def cancelled() -> None:
        raise AssertionError("it ran")

    answers = [Pending(first(key), "inbox.first(...)") for key in range(4)]
    assert await asyncio.create_task(answers[0]) == 0
    assert await asyncio.gather(*answers[1:3]) == [1, 2]
    assert await asyncio.wait_for(answers[3], 10) == 3
    task = asyncio.create_task(Pending(cancelled(), "outbox.send(...)"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
