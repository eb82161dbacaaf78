"""Processes that run the order saga and are killed at one of its boundaries, and processes that recover them.

``python -m tests.sagas.victims kill STORE PROVIDER`` runs one order per boundary, each in a process of its own that
sends itself SIGKILL there; ``… resume STORE PROVIDER`` resumes sagas until none is unfinished.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import httpx
import msgspec

import effectonce as eo
import effectonce.public  # once, and not in every child

#: Longer than a busy machine holds a process up: one that loses its lease does not reach its boundary.
LEASE = "3s"
FORWARD = ("reserve", "charge", "ship", "mail")
#: Every boundary: before the call goes out, and when it has happened and nothing is written down yet.
POINTS = [f"{name}:{when}" for name in FORWARD for when in ("before", "after")]
BACK_POINTS = [f"{name}:{when}" for name in ("reserve", "charge", "refund", "release") for when in ("before", "after")]
BACK_POINTS.append("ship:before")


class Order(msgspec.Struct):
    id: str
    shippable: bool
    killed_at: str

    @property
    def ambiguous(self) -> bool:
        """Whether its outcome is unknown: it was killed around a call to an API without keys."""
        return self.killed_at.startswith("mail:")


class Shop:
    """The order saga: each step calls the provider through an intent, or with the step's own key."""

    def __init__(self, store: eo.Store, provider: str, *, killing: bool) -> None:
        self.http = httpx.Client(base_url=provider, timeout=10, verify=False)  # no certificates to load
        self.killing = killing
        self.intents = intents = eo.Intents(store, scope="shop")
        self.saga = saga = eo.Saga("order", store, input=Order, lease=LEASE)

        @intents.operation("stripe", "charge", lease=LEASE)
        def stripe_charge(intent: eo.Intent[Order]) -> str:
            return self.call("charge", intent.request, "/charges", intent.headers)

        @intents.operation("stripe", "refund", lease=LEASE)
        def stripe_refund(intent: eo.Intent[Order]) -> str:
            return self.call("refund", intent.request, "/refunds", intent.headers)

        @intents.operation("ses", "confirm", without_key="at-most-once", lease=LEASE)
        def ses_confirm(intent: eo.Intent[Order]) -> str:
            return self.call("mail", intent.request, "/mails", {})

        @saga.step()
        def reserve(order: Order) -> str:
            return self.call("reserve", order, "/reservations", {"Idempotency-Key": eo.current().key})

        @reserve.compensate
        def release(order: Order, done: eo.Done) -> None:
            assert done[reserve]
            self.call("release", order, "/releases", {"Idempotency-Key": eo.current().key})

        @saga.step()
        def charge(order: Order) -> str:
            return str(stripe_charge(order, key=eo.current().key))

        @charge.compensate
        def refund(order: Order, done: eo.Done) -> None:
            assert done[charge].startswith("ch_")
            stripe_refund(order, key=eo.current().key)

        @saga.step()
        def ship(order: Order) -> str:
            if not order.shippable:
                self.die(order, "ship:before")
                raise LookupError("no carrier goes there")
            return self.call("ship", order, "/shipments", {"Idempotency-Key": eo.current().key})

        @saga.step()
        def mail(order: Order) -> str:
            return str(ses_confirm(order, key=eo.current().key))

    def call(self, name: str, order: Order, path: str, headers: dict[str, str]) -> str:
        self.die(order, f"{name}:before")
        response = self.http.post(path, headers=headers, json={"order": order.id})
        self.die(order, f"{name}:after")
        return str(response.raise_for_status().json()["id"])

    def die(self, order: Order, point: str) -> None:
        if self.killing and order.killed_at == point:
            os.kill(os.getpid(), signal.SIGKILL)


def orders() -> list[Order]:
    return [
        Order(f"{'good' if shippable else 'bad'}-{point}", shippable, point)
        for shippable, points in ((True, POINTS), (False, BACK_POINTS))
        for point in points
    ]


def kill(store_url: str, provider: str) -> int:
    """How many of the processes were killed."""
    killed = 0
    if store_url.startswith("postgresql"):
        import psycopg  # noqa: F401 - once, and not in every child
    for order in orders():
        child = os.fork()
        if child == 0:
            with eo.connect(store_url, sweep_every=None) as store:
                Shop(store, provider, killing=True).saga.run(order.id, order)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return killed


def resume(store_url: str, provider: str) -> dict[str, Any]:
    totals = dict.fromkeys(("done", "failed", "in_doubt"), 0)
    with eo.connect(store_url, sweep_every=None) as store:
        shop = Shop(store, provider, killing=False)
        deadline = time.monotonic() + 60
        while any(True for _ in shop.saga.records("open")):
            assert time.monotonic() < deadline, "something is left"
            shop.intents.recover(idle="1ms")  # beside the saga, as a worker does
            came = shop.saga.resume()
            for name in totals:
                totals[name] += getattr(came, name)
            time.sleep(0.05)
    return totals


if __name__ == "__main__":
    print(msgspec.json.encode({"kill": kill, "resume": resume}[sys.argv[1]](sys.argv[2], sys.argv[3])).decode())
