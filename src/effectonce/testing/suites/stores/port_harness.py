"""The part of the harness about ports: sending batches, letting time pass, and races, on sync or async ports."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import wait
from functools import partial
from typing import Any, Literal, TypeVar

from effectonce.contracts import Backend, Capabilities, Contention, Port
from effectonce.core.run_sync import run_in_thread, run_sync
from effectonce.record import Batchable, Reply
from effectonce.testing.clock import ManualClock
from effectonce.testing.suites.expectations import expect

PortKind = Literal["sync", "async"]
PORT_KINDS: tuple[PortKind, ...] = ("sync", "async")
Body = Callable[[Any], Coroutine[Any, Any, None]]
T = TypeVar("T")

SECOND_US = 1_000_000
MAX_CONTENTIONS = 50  # so often a batch may fail with `Contention`, which says that nothing was applied


def only_on(port_kind: PortKind) -> Callable[[Body], Body]:
    """Mark a case that is only about threads (sync ports), or only about tasks (async ports)."""

    def mark(body: Body) -> Body:
        body.port_kinds = (port_kind,)  # type: ignore[attr-defined]
        return body

    return mark


class PortHarness:
    """One backend under one case, with ports that are all sync or all async.

    On sync ports the case is driven on the caller's thread, races are threads and waiting is `time.sleep`; on async
    ports all of it is tasks on one event loop.
    """

    def __init__(self, backend: Backend, port_kind: PortKind, brief: float | None = None) -> None:
        self.backend = backend
        self.port_kind = port_kind
        clock = getattr(backend, "clock", None)
        self.clock = clock if isinstance(clock, ManualClock) else None
        seconds = brief if brief is not None else (1.0 if self.capabilities.estimated_clock else 0.06)
        #: A short lease or retention. Cases expect that it ends, never that it still holds.
        self.brief_us = round(seconds * SECOND_US)
        #: How far two readings of the store's time may differ.
        self.slack_us = 2 * SECOND_US if self.capabilities.estimated_clock else 5_000
        self._ports: list[Port] = []
        self._ports_lock = threading.Lock()
        self._main_port: Port | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    # -- ports

    def port(self) -> Port:
        """Return a new port, which is closed when the case ends."""
        port = self.new_port()
        with self._ports_lock:
            self._ports.append(port)
        return port

    def new_port(self) -> Port:
        """Return a new port, which the caller closes."""
        return self.backend.sync_port() if self.port_kind == "sync" else self.backend.async_port()

    @property
    def main_port(self) -> Port:
        """The port that the methods below use by default."""
        if self._main_port is None:
            self._main_port = self.port()
        return self._main_port

    async def close(self) -> None:
        for port in self._ports:
            await port.close()

    # -- batches

    async def run(self, *operations: Batchable, port: Port | None = None) -> list[Reply]:
        """Send one batch, and return its replies in the order of ``operations``.

        The port gets them sorted by identity, as the core sends them. Contention means that nothing was applied.
        """
        order = sorted(range(len(operations)), key=lambda n: (operations[n].scope, operations[n].key))
        replies = await self._run_until_uncontended(port or self.main_port, [operations[n] for n in order])
        expect(len(replies), len(order), "the number of replies to a batch")
        by_position = dict(zip(order, replies, strict=True))
        return [by_position[n] for n in range(len(operations))]

    async def _run_until_uncontended(self, port: Port, batch: Sequence[Batchable]) -> list[Reply]:
        for _ in range(MAX_CONTENTIONS):
            try:
                replies = list(await port.run(batch))
            except Contention:
                replies = [Contention()]
            if not any(isinstance(reply, Contention) for reply in replies):
                return replies
            await self.sleep(0.01)
        raise AssertionError(f"{MAX_CONTENTIONS} repetitions of one batch all ended in Contention")

    # -- time

    async def now(self) -> int:
        return await self.main_port.now()

    async def sleep(self, seconds: float) -> None:
        """Wait in real time."""
        if self.port_kind == "sync":
            time.sleep(seconds)  # noqa: ASYNC251  (a sync port's coroutine never suspends)
        else:
            await asyncio.sleep(seconds)

    async def wait_out(self, span: int) -> None:
        """Wait until ``span`` microseconds have passed on the store's clock, and a little more."""
        if self.clock is not None:
            self.clock.advance_micros(span + 1)
            return
        until = await self.now() + span + self.slack_us
        while (time_left_us := until - await self.now()) > 0:
            await self.sleep(time_left_us / SECOND_US)

    # -- races

    async def run_together(self, count: int, work: Callable[[Port, int], Coroutine[Any, Any, T]]) -> list[T]:
        """Run ``work`` on ``count`` new ports at once: in threads on sync ports, in tasks on async ones."""
        ports = [self.port() for _ in range(count)]
        for port in ports:  # connected first, so that they really meet
            await port.now()
        if self.port_kind == "async":
            return list(await asyncio.gather(*(work(port, n) for n, port in enumerate(ports))))
        return run_in_threads([partial(lambda *on: run_sync(work(*on)), port, n) for n, port in enumerate(ports)])

    async def race(
        self, count: int, keys: Sequence[str], contend: Callable[..., Coroutine[Any, Any, T]]
    ) -> list[tuple[T, ...]]:
        """Let ``count`` ports run ``contend(key, port=port)`` at once, for one key after the other.

        Returns what they got for each key.
        """

        async def run_rounds(port: Port, n: int) -> Sequence[T]:
            return [await contend(key, port=port) for key in keys]

        return list(zip(*await self.run_together(count, run_rounds), strict=True))


def run_in_threads(bodies: Sequence[Callable[[], T]]) -> list[T]:
    """Run ``bodies`` at once, on a thread each, and return their results. Raises the first exception."""
    barrier = threading.Barrier(len(bodies))

    def run(body: Callable[[], T]) -> T:
        barrier.wait(30)
        return body()

    futures = [run_in_thread(partial(run, body), "effectonce-suite") for body in bodies]
    if wait(futures, 60).not_done:
        raise AssertionError("concurrent calls have not returned within a minute: a deadlock")
    return [future.result() for future in futures]
