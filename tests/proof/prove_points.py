"""Deliveries that end at a named crash point: ``python -m tests.proof.prove_points``, then one order a line.

An order is a store and a file for its effects; the answer is what came of each of its cells: 12 points, 3 ways to end,
a first delivery or a redelivery. Everything is imported once, and lives are forked from that. Exceptions and
cancellations share one process, in which they run at once; whoever is to be killed has one of its own.
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

Ending = Literal["exception", "cancel", "SIGKILL"]

POINTS = (
    "delivered",  # nothing is said to the store yet
    "claim.before",
    "claim.after",  # executed, and its reply is on its way; so with the others
    "handler",  # in the handler, before the effect
    "renew.before",
    "renew.after",
    "effect",  # in the handler, after the effect
    "complete.before",
    "complete.after",
    "returned",  # to whoever acks
    "release.before",  # the handler failed by itself
    "release.after",
)
ENDINGS: tuple[Ending, ...] = ("exception", "cancel", "SIGKILL")
TURNS = ("first", "redelivery")
#: Mode L: ended here, the effect is there and its success is not recorded, so it happens again.
WINDOW = ("effect", "complete.before")
LEASE = 2.0


class Cell(Struct, frozen=True):
    point: str
    ending: Ending
    turn: str

    @property
    def key(self) -> str:
        return f"{self.point}/{self.ending}/{self.turn}"


CELLS = [Cell(*each) for each in product(POINTS, ENDINGS, TURNS)]


class Order(Struct, frozen=True):
    url: str
    ledger: str


class Outcome(Struct):
    effects: dict[str, int]  # of each cell
    missed: list[str]  # cells whose point was not reached


class Injected(Exception):
    """What a handler or a consumer raises because the test says so."""


class Life:
    """The deliveries of one process, and where each is to end."""

    def __init__(self, order: Order, cells: Sequence[Cell] = ()) -> None:
        self.ends = {cell.key: cell for cell in cells}
        self.begun: set[str] = set()
        self.reached: set[str] = set()  # whose end has come, for the handler to see
        self.tasks: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = {}
        ledger = os.open(order.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        store = Store(_Backend(_backend(order.url), self), sweep_every=None)
        self.store = store

        @eo.once(store, scope="points", key="key", lease=LEASE)
        async def handler(key: str, fails: bool = False) -> str:
            if fails:
                raise Injected
            cell = self.ends.get(key)
            self.at(key, "handler")
            await asyncio.sleep(0)
            if cell is not None and cell.point.startswith("release"):
                raise Injected
            waits = cell is not None and cell.point.startswith("renew")
            while waits and key not in self.reached:  # noqa: ASYNC110  (by the heartbeat's thread)
                await asyncio.sleep(0.01)
            os.write(ledger, f"{key}\n".encode())
            self.at(key, "effect")
            await asyncio.sleep(0)
            return "receipt"

        self.handler = handler

    def at(self, key: str, point: str) -> None:
        """End the delivery of ``key`` if this is its point. From any thread."""
        cell = self.ends.get(key)
        if cell is None or cell.point != point or key in self.begun:
            return
        self.begun.add(key)
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
        """Once, as a consumer does; it may end in any way."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks[key] = (asyncio.get_running_loop(), task)
        try:
            self.at(key, "delivered")
            await asyncio.sleep(0)
            await self.handler(key, **options)
            self.at(key, "returned")
            await asyncio.sleep(0)
        except (Injected, eo.Retryable, eo.LeaseLost, asyncio.CancelledError):
            pass

    async def settle(self, key: str) -> None:
        """As a queue does: until it is handled."""
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
        async def all_of_them() -> None:
            try:
                await asyncio.gather(*(asyncio.ensure_future(_awaited(deliver(key))) for key in keys))
            finally:
                await self.store.aclose()

        asyncio.run(all_of_them())


async def _awaited(work: Awaitable[None]) -> None:
    await work


class _Backend:
    """Every claim, renewal and settlement goes alone, and is a crash point before and after."""

    def __init__(self, inner: Any, life: Life) -> None:
        self._inner = inner
        self._life = life
        self.capabilities = replace(inner.capabilities, lanes=inner.capabilities.lanes or 1, batch=1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sync_port(self) -> Any:
        return _Port(self._inner.sync_port(), self._life)

    def async_port(self) -> Any:
        return _Port(self._inner.async_port(), self._life)


class _Port:
    def __init__(self, inner: Any, life: Life) -> None:
        self._inner = inner
        self._life = life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def run(self, batch: Sequence[Any]) -> Any:
        (op,) = batch
        what = _named(op)
        self._life.at(op.key, f"{what}.before")
        replies = await self._inner.run(batch)
        self._life.at(op.key, f"{what}.after")
        return replies


def _named(op: Any) -> str:
    if isinstance(op, Claim):
        return "claim"
    if isinstance(op, Renewal):
        return "renew"
    return "complete" if isinstance(op, Settlement) and op.state == "done" else "release"


# -- the processes


_memory: dict[str, Any] = {}


def _backend(url: str) -> Any:
    """A store in memory is one for all lives of this process."""
    if url != "memory://":
        return open_backend(url)
    return _memory.setdefault(url, open_backend(url))


def run(order: Order) -> Outcome:
    """Every cell: delivered before where it is a redelivery, ended at its point, and delivered until it is handled."""
    missed: list[str] = []
    open(order.ledger, "w").close()
    again = [cell.key for cell in CELLS if cell.turn == "redelivery"]
    together = [cell for cell in CELLS if cell.ending != "SIGKILL"]
    alone = [cell for cell in CELLS if cell.ending == "SIGKILL"]

    def fail_first() -> list[str]:
        life = Life(order)
        life.run(lambda key: life.deliver(key, fails=True), again)
        return []

    def end_together() -> list[str]:
        life = Life(order, together)
        life.run(life.deliver, [cell.key for cell in together])
        return [cell.key for cell in together if cell.key not in life.reached]

    def settle() -> list[str]:
        life = Life(order)
        life.run(life.settle, [cell.key for cell in CELLS])
        return []

    def end_alone(cell: Cell) -> list[str]:
        life = Life(order, [cell])
        life.run(life.deliver, [cell.key])
        return [cell.key]

    own = _here if order.url == "memory://" else _forked
    own(fail_first)
    missed += own(end_together)
    children = [(cell, _fork(lambda cell=cell: end_alone(cell))) for cell in alone]  # type: ignore[misc]
    for cell, child in children:
        if _ended(*child)[0] != -signal.SIGKILL:
            missed.append(cell.key)
    own(settle)
    with open(order.ledger) as lines:
        effects = [line.rstrip("\n") for line in lines]
    _memory.clear()
    return Outcome({cell.key: effects.count(cell.key) for cell in CELLS}, missed)


def _here(work: Callable[[], list[str]]) -> list[str]:
    return work()


def _forked(work: Callable[[], list[str]]) -> list[str]:
    status, said = _ended(*_fork(work))
    if status:
        raise RuntimeError(f"a process that was to live ended with {status}")
    return said


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


def _ended(pid: int, reader: int) -> tuple[int, list[str]]:
    with os.fdopen(reader, "rb") as words:
        said = words.read()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), msgspec.json.decode(said, type=list[str]) if said else []


def main() -> NoReturn:
    for line in sys.stdin:
        print(msgspec.json.encode(run(msgspec.json.decode(line, type=Order))).decode(), flush=True)
    sys.exit()


if __name__ == "__main__":
    main()
