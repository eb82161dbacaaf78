"""Queries of servers for scrapes and health checks: who asks, how often, and who waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import effectonce as eo
from effectonce.telemetry.cached_probe import CachedProbe, query_store, refresh, run_in_loop


class Server:
    """Counts who asks it, and may hang or fail."""

    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()

    def read(self) -> int:
        self.asked += 1
        assert self.answers.wait(30)
        if self.error is not None:
            raise self.error
        return self.asked


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.answers.set()


def test_an_answer_is_used_again_until_it_is_too_old(server: Server) -> None:
    probe = CachedProbe("server", server.read)
    refresh([probe])
    refresh([probe])
    assert (probe.value, server.asked) == (1, 1)
    always_too_old = CachedProbe("server", server.read, max_age_s=0.0)
    refresh([always_too_old])
    refresh([always_too_old])
    assert (always_too_old.value, server.asked) == (3, 3)


def test_before_the_first_answer_there_is_neither_a_value_nor_an_error(server: Server) -> None:
    server.answers.clear()
    probe = CachedProbe("server", server.read)
    assert (probe.value, probe.error) == (None, None)
    probe.refresh()
    assert (probe.value, probe.error) == (None, None)


def test_a_server_that_hangs_is_asked_once_and_nobody_waits_longer_than_he_said(server: Server) -> None:
    server.answers.clear()
    probe = CachedProbe("server", server.read, max_age_s=0.0)
    began = time.monotonic()
    refresh([probe], 0.01)
    refresh([probe], 0.01)
    assert time.monotonic() - began < 10
    assert server.asked == 1
    server.answers.set()
    probe.refresh().result(10)
    assert (probe.value, probe.error) == (1, None)


def test_a_failure_is_kept_until_the_next_answer(server: Server) -> None:
    server.error = OSError("gone")
    probe = CachedProbe("server", server.read, max_age_s=0.0)
    refresh([probe])
    assert (probe.value, str(probe.error)) == (None, "gone")
    server.error = None
    refresh([probe])
    assert (probe.value, probe.error) == (2, None)


def test_a_forked_child_asks_for_itself(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = CachedProbe("server", server.read)
    refresh([probe])
    monkeypatch.setattr("effectonce.telemetry.cached_probe.os.getpid", lambda: -1)
    refresh([probe])
    assert (probe.value, server.asked) == (2, 2)


def test_a_query_has_a_connection_of_its_own_and_closes_it() -> None:
    closed: list[bool] = []

    class Port:
        async def close(self) -> None:
            closed.append(True)

    async def now(port: Any) -> int:
        return 7

    async def fail(port: Any) -> int:
        raise OSError("gone")

    store: Any = SimpleNamespace(runtime=SimpleNamespace(backend=SimpleNamespace(sync_port=Port)))
    assert query_store(store, now) == 7
    with pytest.raises(OSError, match="gone"):
        query_store(store, fail)
    assert closed == [True, True]


async def test_work_on_another_loop_is_waited_for_only_so_long() -> None:
    loop = asyncio.get_running_loop()
    cancelled = asyncio.Event()

    async def answer() -> int:
        return 7

    async def hang() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()

    assert await asyncio.to_thread(run_in_loop, loop, answer, 10) == 7
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(run_in_loop, loop, hang, 0.01)
    await asyncio.wait_for(cancelled.wait(), 10)


def test_without_a_loop_that_runs_a_worker_cannot_be_asked() -> None:
    closed = asyncio.new_event_loop()
    closed.close()
    for loop in (None, closed):
        with pytest.raises(eo.StoreUnavailable, match="the event loop of the worker is not running"):
            run_in_loop(loop, lambda: asyncio.sleep(0), 1)
