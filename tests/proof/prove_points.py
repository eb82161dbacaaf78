"""Deliveries that end at a named crash point: ``python -m tests.proof.prove_points``, then one request a line.

A request is a store and a file for its effects; the answer has the effects of each cell: 12 points, 3 ways to end, a
first delivery or a redelivery. Everything is imported once, and processes are forked from that. Exceptions and
cancellations share one process, in which they run at once; a delivery that is to be killed has one of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import product
from typing import Any, Literal, NoReturn

import aiobotocore.session  # noqa: F401  (before the fork)
import msgspec
import psycopg  # noqa: F401
import pymysql  # noqa: F401
import redis  # noqa: F401
from msgspec import Struct
from msgspec.structs import replace

import effectonce as eo
import effectonce.public
from effectonce.record import Claim, Renewal, Settlement
from effectonce.store import Store, open_backend
from effectonce.testing.wrapper import Wrapper

Ending = Literal["exception", "cancel", "SIGKILL"]

POINTS = (
    "delivered",  # nothing is output to the store yet
    "claim.before",
    "claim.after",  # executed, and its reply is on its way; so with the others
    "handler",  # in the handler, before the effect
    "renew.before",
    "renew.after",
    "effect",  # in the handler, after the effect
    "complete.before",
    "complete.after",
    "returned",  # to the consumer, which acks
    "release.before",  # the handler has failed
    "release.after",
)
ENDINGS: tuple[Ending, ...] = ("exception", "cancel", "SIGKILL")
TURNS = ("first", "redelivery")
#: Mode L: a delivery that ends here has had its effect and has not recorded it, so the effect happens again.
UNRECORDED_POINTS = ("effect", "complete.before")
LEASE_S = 2.0


class Cell(Struct, frozen=True):
    point: str
    ending: Ending
    turn: str

    @property
    def key(self) -> str:
        return f"{self.point}/{self.ending}/{self.turn}"


CELLS = [Cell(*combination) for combination in product(POINTS, ENDINGS, TURNS)]


class PointsRequest(Struct, frozen=True):
    url: str
    ledger: str


class Outcome(Struct):
    effects: dict[str, int]  # by cell
    missed: list[str]  # cells whose point was not reached


class Injected(Exception):
    """The error that a handler or a consumer raises at its crash point."""


class DeliveryProcess:
    """The deliveries of one process, and the point at which each is to end."""

    def __init__(self, request: PointsRequest, cells: Sequence[Cell] = ()) -> None:
        self.ends = {cell.key: cell for cell in cells}
        self.ending: set[str] = set()  # the deliveries whose end has begun
        self.reached: set[str] = set()  # the deliveries that have ended at their point, for the handler to see
        self.tasks: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = {}
        ledger = os.open(request.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        store = Store(_Backend(_backend(request.url), self), sweep_every=None)
        self.store = store

        @eo.once(store, scope="points", key="key", lease=LEASE_S)
        async def handler(key: str, fails: bool = False) -> str:
            if fails:
                raise Injected
            cell = self.ends.get(key)
            self.reach(key, "handler")
            await asyncio.sleep(0)
            if cell is not None and cell.point.startswith("release"):
                raise Injected
            waits = cell is not None and cell.point.startswith("renew")
            while waits and key not in self.reached:  # noqa: ASYNC110  (by the heartbeat's thread)
                await asyncio.sleep(0.01)
            os.write(ledger, f"{key}\n".encode())
            self.reach(key, "effect")
            await asyncio.sleep(0)
            return "receipt"

        self.handler = handler

    def reach(self, key: str, point: str) -> None:
        """End the delivery of ``key`` if this is its point. May be called from any thread."""
        cell = self.ends.get(key)
        if cell is None or cell.point != point or key in self.ending:
            return
        self.ending.add(key)
        if cell.ending == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        if cell.ending == "cancel":
            self.tasks[key][0].call_soon_threadsafe(self._cancel, key)
            return
        self.reached.add(key)
        if "." in point:
            raise eo.StoreUnavailable(f"made to fail at {point}", 0.0)
        else:
            raise Injected(point)

    def _cancel(self, key: str) -> None:
        self.reached.add(key)
        self.tasks[key][1].cancel()

    async def deliver(self, key: str, **options: Any) -> None:
        """Deliver once, as a consumer does; the delivery may end in any way."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks[key] = (asyncio.get_running_loop(), task)
        try:
            self.reach(key, "delivered")
            await asyncio.sleep(0)
            await self.handler(key, **options)
            self.reach(key, "returned")
            await asyncio.sleep(0)
        except (Injected, eo.Retryable, eo.LeaseLost, asyncio.CancelledError):
            pass

    async def settle(self, key: str) -> None:
        """Deliver until the message is handled, as a queue does."""
        deadline = time.monotonic() + 60
        while True:
            try:
                await self.handler(key)
                return
            except (eo.Retryable, eo.LeaseLost):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    def run(self, deliver: Callable[[str], Awaitable[None]], keys: Sequence[str]) -> None:
        async def deliver_all() -> None:
            try:
                await asyncio.gather(*(asyncio.ensure_future(_await(deliver(key))) for key in keys))
            finally:
                await self.store.aclose()

        asyncio.run(deliver_all())


async def _await(work: Awaitable[None]) -> None:
    await work


class _Backend(Wrapper):
    """A store whose claims, renewals and settlements go one by one, each a crash point before and after."""

    def __init__(self, inner: Any, process: DeliveryProcess) -> None:
        super().__init__(inner)
        self._process = process
        connections = "one" if inner.capabilities.connections == "none" else inner.capabilities.connections
        self.capabilities = replace(inner.capabilities, connections=connections, batch=1)

    def sync_port(self) -> Any:
        return _Port(self._inner.sync_port(), self._process)

    def async_port(self) -> Any:
        return _Port(self._inner.async_port(), self._process)


class _Port(Wrapper):
    def __init__(self, inner: Any, process: DeliveryProcess) -> None:
        super().__init__(inner)
        self._process = process

    async def run(self, batch: Sequence[Any]) -> Any:
        (op,) = batch
        name = _operation_point(op)
        self._process.reach(op.key, f"{name}.before")
        replies = await self._inner.run(batch)
        self._process.reach(op.key, f"{name}.after")
        return replies


def _operation_point(op: Any) -> str:
    if isinstance(op, Claim):
        return "claim"
    if isinstance(op, Renewal):
        return "renew"
    return "complete" if isinstance(op, Settlement) and op.state == "done" else "release"


# -- the processes


_memory: dict[str, Any] = {}


def _backend(url: str) -> Any:
    """Open the store at ``url``. One in memory is shared by all deliveries of this process."""
    if url != "memory://":
        return open_backend(url)
    return _memory.setdefault(url, open_backend(url))


def run(request: PointsRequest) -> Outcome:
    """Deliver every cell: before, where it is a redelivery; then until its point; then until it is handled."""
    missed: list[str] = []
    open(request.ledger, "w").close()
    again = [cell.key for cell in CELLS if cell.turn == "redelivery"]
    together = [cell for cell in CELLS if cell.ending != "SIGKILL"]
    alone = [cell for cell in CELLS if cell.ending == "SIGKILL"]

    def fail_first() -> list[str]:
        process = DeliveryProcess(request)
        process.run(lambda key: process.deliver(key, fails=True), again)
        return []

    def end_together() -> list[str]:
        process = DeliveryProcess(request, together)
        process.run(process.deliver, [cell.key for cell in together])
        return [cell.key for cell in together if cell.key not in process.reached]

    def settle() -> list[str]:
        process = DeliveryProcess(request)
        process.run(process.settle, [cell.key for cell in CELLS])
        return []

    def end_alone(cell: Cell) -> list[str]:
        process = DeliveryProcess(request, [cell])
        process.run(process.deliver, [cell.key])
        return [cell.key]

    run_in_process = _run_here if request.url == "memory://" else _run_forked
    run_in_process(fail_first)
    missed += run_in_process(end_together)
    children = [(cell, _fork(lambda cell=cell: end_alone(cell))) for cell in alone]  # type: ignore[misc]
    for cell, child in children:
        if _wait_for_exit(*child)[0] != -signal.SIGKILL:
            missed.append(cell.key)
    run_in_process(settle)
    with open(request.ledger) as lines:
        effects = [line.rstrip("\n") for line in lines]
    _memory.clear()
    return Outcome({cell.key: effects.count(cell.key) for cell in CELLS}, missed)


def _run_here(work: Callable[[], list[str]]) -> list[str]:
    return work()


def _run_forked(work: Callable[[], list[str]]) -> list[str]:
    status, output = _wait_for_exit(*_fork(work))
    if status:
        raise RuntimeError(f"a process ended with {status}")
    return output


def _fork(work: Callable[[], list[str]]) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 3
        try:
            os.write(writer, msgspec.json.encode(work()))
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    os.close(writer)
    return pid, reader


def _wait_for_exit(pid: int, reader: int) -> tuple[int, list[str]]:
    with os.fdopen(reader, "rb") as words:
        output = words.read()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), msgspec.json.decode(output, type=list[str]) if output else []


def main() -> NoReturn:
    for line in sys.stdin:
        print(msgspec.json.encode(run(msgspec.json.decode(line, type=PointsRequest))).decode(), flush=True)
    sys.exit()


if __name__ == "__main__":
    main()
