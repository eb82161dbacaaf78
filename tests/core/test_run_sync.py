"""Sync calls of the algorithms, which are written once as coroutines."""

from __future__ import annotations

import asyncio
import threading

import pytest

import effectonce as eo
from effectonce.core.run_sync import run_in_thread, run_sync


def test_a_call_that_needs_an_event_loop_is_refused_and_closes_what_it_had_open() -> None:
    closed: list[str] = []

    async def read() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append("connection")

    with pytest.raises(eo.SyncAsyncMismatch, match="use the async form") as refusal:
        run_sync(read())
    assert closed == ["connection"], "and not only when the traceback is dropped"
    assert refusal.value.__cause__ is None


def test_a_call_that_never_suspends_returns_its_result() -> None:
    async def read() -> int:
        return 7

    assert run_sync(read()) == 7


def test_a_thread_for_work_that_may_hang_does_not_keep_the_process() -> None:
    thread = run_in_thread(threading.current_thread, "effectonce test").result(10)
    assert (thread.daemon, thread.name) == (True, "effectonce test")


def test_what_work_in_a_thread_raises_is_in_its_future() -> None:
    def leave() -> None:
        raise SystemExit(3)

    assert isinstance(run_in_thread(leave, "effectonce test").exception(10), SystemExit)
