"""The thread that keeps leases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core.codec import Codec
from effectonce.core.guarded_call.begin import begin, prepare_run
from effectonce.core.guarded_call.run import Policy
from effectonce.core.heartbeat import Heartbeat
from effectonce.core.run_sync import run_sync
from effectonce.record import SweepResult
from tests.core.grouped import GroupedBackend
from tests.harness.waiting import until


def heartbeats() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "effectonce-heartbeat"}


def test_a_store_that_is_closed_ends_its_thread_however_long_its_leases_are() -> None:
    before = heartbeats()
    with eo.Store(GroupedBackend(), sweep_every=None) as store:
        eo.once(store, scope="s", key="order", lease="2h")(lambda order: None)("o-1")
        until(lambda: heartbeats() - before)
    until(lambda: not heartbeats() - before)


def test_a_lease_of_an_hour_starts_the_thread_too() -> None:
    """It renews, and it sweeps: a store with long leases only would otherwise do neither."""
    before = heartbeats()
    with eo.Store(GroupedBackend()) as store:
        guarded = eo.once(store, scope="s", key="order", lease="2h")(lambda order: None)
        guarded("o-1")
        until(lambda: heartbeats() - before)


class LookedAt(set[Any]):
    """Leased runs. When `Heartbeat.stop` looks whether there are any, ``call`` has its turn on another thread.

    The heartbeat's thread looks, too: only the thread that made this set, which is the one that stops, starts ``call``.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self.call = threading.Thread(target=call)
        self.stopping = threading.current_thread()

    def __len__(self) -> int:
        if threading.current_thread() is self.stopping and self.call.ident is None:
            self.call.start()
            self.call.join(0.2)  # it may wait for `stop` to end
        return 0


@pytest.mark.parametrize("hours", [0.01, 2])
def test_a_call_that_begins_while_the_thread_is_stopped_has_a_thread_again(hours: float) -> None:
    lease = int(hours * 3_600_000_000)
    leased = LookedAt(lambda: heartbeat.cover(lease))
    port = GroupedBackend().sync_port
    heartbeat = Heartbeat(leased, port, time.monotonic, lambda *swept: None, None, 128, manual=False)
    before = heartbeats()
    heartbeat.cover(lease)
    heartbeat.stop()
    leased.call.join()
    try:
        assert len(heartbeats() - before) == 1
    finally:
        heartbeat.stop()
    until(lambda: not heartbeats() - before)


# -- one beat


class Lease:
    """A run, as the heartbeat sees it."""

    def __init__(self, key: str, asked_at: float, *, lease_s: float = 40.0, started_at: float = 0.0) -> None:
        self.scope, self.key = "s", key
        self.lease_requested_at, self.started_at = asked_at, started_at
        self.policy = SimpleNamespace(lease_us=int(lease_s * 1e6), max_run_s=3600.0)
        self.lost = False

    def renewal(self) -> Any:
        return SimpleNamespace(scope=self.scope, key=self.key, weight=1)

    def mark_lease_lost(self) -> None:
        self.lost = True


class RenewingPort:
    """Answers renewals by key, True where ``replies`` says nothing."""

    def __init__(self, **replies: Any) -> None:
        self.requests: list[list[str]] = []
        self.replies = replies

    async def run(self, batch: Any) -> list[Any]:
        self.requests.append([op.key for op in batch])
        return [self.replies.get(op.key, True) for op in batch]

    async def sweep(self, limit: int) -> SweepResult:
        if self.replies.get("sweep") is not None:
            raise self.replies["sweep"]
        return SweepResult(3, 4, True)


def beat(port: RenewingPort, *leases: Lease, at: float, batch: int = 128) -> None:
    heartbeat_of(leases, at=at, batch=batch).beat(port)  # type: ignore[arg-type]


def heartbeat_of(leases: Any, *, at: float = 0.0, batch: int = 128, report: Any = None) -> Heartbeat:
    opened = GroupedBackend().sync_port
    return Heartbeat(set(leases), opened, lambda: at, report or (lambda *swept: None), None, batch, manual=True)


@pytest.mark.parametrize(("at", "renewed"), [(109.9, False), (110.0, True), (200.0, True)])
def test_a_lease_is_renewed_when_a_quarter_of_it_is_over(at: float, renewed: bool) -> None:
    port, lease = RenewingPort(), Lease("a", 100.0)
    beat(port, lease, at=at)
    assert bool(port.requests) is renewed
    assert lease.lease_requested_at == (at if renewed else 100.0)


@pytest.mark.parametrize(("at", "renewed"), [(3649.9, True), (3650.0, False), (9999.0, False)])
def test_f07_a_run_that_is_over_its_limit_is_renewed_no_longer(at: float, renewed: bool) -> None:
    port = RenewingPort()
    beat(port, Lease("a", 100.0, started_at=50.0), at=at)
    assert bool(port.requests) is renewed


def test_leases_are_renewed_in_the_order_of_their_keys_and_so_many_at_once() -> None:
    """Two processes that lock rows in one order never wait for each other in a circle."""
    port = RenewingPort()
    beat(port, *(Lease(key, 0.0) for key in "cabd"), at=99.0, batch=4)
    assert port.requests == [["a", "b", "c", "d"]]
    port = RenewingPort()
    beat(port, *(Lease(key, 0.0) for key in "cabde"), at=99.0, batch=2)
    assert [len(request) for request in port.requests] == [2, 2, 1]
    assert all(request == sorted(request) for request in port.requests)


def test_a_lease_that_another_delivery_took_is_lost_and_the_others_are_kept() -> None:
    taken, kept = Lease("a", 0.0), Lease("b", 0.0)
    beat(RenewingPort(a=False), taken, kept, at=99.0)
    assert (taken.lost, taken.lease_requested_at) == (True, 0.0)
    assert (kept.lost, kept.lease_requested_at) == (False, 99.0)


def test_a_renewal_that_failed_alone_loses_nothing_and_is_tried_again() -> None:
    """Whether its lease has ended, the run sees from the clock."""
    port, lease = RenewingPort(a=eo.CorruptRecord("x")), Lease("a", 0.0)
    heartbeat = heartbeat_of([lease], at=99.0)
    for _ in range(2):
        heartbeat.beat(port)  # type: ignore[arg-type]
    assert port.requests == [["a"], ["a"]]
    assert (lease.lost, lease.lease_requested_at) == (False, 0.0)


@pytest.mark.parametrize("error", [None, eo.StoreUnavailable("away")])
def test_a_sweep_is_reported_with_what_it_did_or_why_it_failed(error: Exception | None) -> None:
    reported: list[Any] = []
    heartbeat = heartbeat_of([], report=lambda *swept: reported.append(swept))
    more = heartbeat.sweep(RenewingPort(sweep=error))  # type: ignore[arg-type]
    assert (more, reported) == ((True, [(3, 4, None)]) if error is None else (False, [(0, 0, error)]))


def test_a_run_whose_lease_is_lost_tells_so_and_no_time_that_it_cannot_know() -> None:
    events: list[eo.Event] = []
    with eo.Store(MemoryStoreBackend(), hooks=[events.append], sweep_every=None) as store:
        policy = Policy(scope="charge", codec=Codec(Any, 1000), retention_us=10**9)
        run = prepare_run(store.runtime, policy, "o-1", b"")
        run_sync(begin(run, store.runtime.sync_client()))
        assert not run.lease_lost
        run.mark_lease_lost()
        assert run.lease_lost
        run.end()
    lost = [event for event in events if event.kind == "lease_lost"]
    assert [(event.scope, event.key, event.attempt, event.seconds) for event in lost] == [("charge", "o-1", 1, 0.0)]
