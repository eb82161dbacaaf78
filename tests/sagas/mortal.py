"""Processes that run the order saga and are killed at one of its boundaries, and processes that recover them.

``python -m tests.sagas.mortal kill STORE EFFECTS`` runs one order per boundary, each in a process of its own that sends
itself SIGKILL there; ``… resume STORE EFFECTS`` goes on until nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
import time
from typing import Any

import msgspec

import effectonce as eo

FORWARD = ("reserve", "charge", "ship")
#: Every boundary: before the effect, and after it when nothing is written down yet.
POINTS = [f"{name}:{when}" for name in FORWARD for when in ("before", "after")]
BACK_POINTS = [f"{name}:{when}" for name in ("reserve", "charge", "refund", "release") for when in ("before", "after")]
BACK_POINTS.append("ship:before")


class Order(msgspec.Struct):
    id: str
    shippable: bool
    killed_at: str


class Outside:
    """A provider that keeps keys: what was done under one is not done again. It outlives whoever asks."""

    def __init__(self, path: str) -> None:
        self._path = path
        with contextlib.closing(self._open()) as db:
            db.executescript(
                "CREATE TABLE IF NOT EXISTS effects (key TEXT PRIMARY KEY, name TEXT, order_id TEXT);"
                "CREATE TABLE IF NOT EXISTS calls (key TEXT, name TEXT, order_id TEXT)"
            )

    def do(self, name: str, order: Order, killing: bool) -> str:
        if killing and order.killed_at == f"{name}:before":
            os.kill(os.getpid(), signal.SIGKILL)
        key = eo.current().key
        with contextlib.closing(self._open()) as db:
            db.execute("INSERT INTO calls VALUES (?, ?, ?)", (key, name, order.id))
            db.execute("INSERT OR IGNORE INTO effects VALUES (?, ?, ?)", (key, name, order.id))
        if killing and order.killed_at == f"{name}:after":
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{name} of {order.id}"

    def of(self, order_id: str, table: str = "effects") -> list[str]:
        with contextlib.closing(self._open()) as db:
            rows = db.execute(f"SELECT name FROM {table} WHERE order_id = ? ORDER BY rowid", (order_id,))
            return [name for (name,) in rows]

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30, isolation_level=None)


def order_saga(store: eo.Store, outside: Outside, killing: bool) -> eo.Saga[Order]:
    saga = eo.Saga("order", store, input=Order, lease="1s")

    @saga.step()
    def reserve(order: Order) -> str:
        return outside.do("reserve", order, killing)

    @reserve.compensate
    def release(order: Order, done: eo.Done) -> None:
        assert done[reserve] == f"reserve of {order.id}"
        outside.do("release", order, killing)

    @saga.step()
    def charge(order: Order) -> str:
        return outside.do("charge", order, killing)

    @charge.compensate
    def refund(order: Order, done: eo.Done) -> None:
        assert done[charge] == f"charge of {order.id}"
        outside.do("refund", order, killing)

    @saga.step()
    def ship(order: Order) -> str:
        if not order.shippable:
            if killing and order.killed_at == "ship:before":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ConnectionError("no carrier goes there")
        return outside.do("ship", order, killing)

    return saga


def orders() -> list[Order]:
    return [
        Order(f"{'good' if shippable else 'bad'}-{point}", shippable, point)
        for shippable, points in ((True, POINTS), (False, BACK_POINTS))
        for point in points
    ]


def kill(store_url: str, effects: str) -> int:
    """How many of the processes were killed."""
    killed = 0
    if store_url.startswith("postgresql"):
        import psycopg  # noqa: F401 - once, and not in every child
    for order in orders():
        child = os.fork()
        if child == 0:
            with eo.connect(store_url, sweep_every=None) as store:
                order_saga(store, Outside(effects), killing=True).run(order.id, order)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return killed


def resume(store_url: str, effects: str) -> dict[str, Any]:
    totals = dict.fromkeys(("done", "failed", "in_doubt"), 0)
    with eo.connect(store_url, sweep_every=None) as store:
        saga = order_saga(store, Outside(effects), killing=False)
        deadline = time.monotonic() + 60
        while any(True for _ in saga.records("open")):
            assert time.monotonic() < deadline, "something is left"
            came = saga.resume()
            for name in totals:
                totals[name] += getattr(came, name)
            time.sleep(0.05)
    return totals


if __name__ == "__main__":
    print(msgspec.json.encode({"kill": kill, "resume": resume}[sys.argv[1]](sys.argv[2], sys.argv[3])).decode())
