"""Crashes, zombies and lost leases: what one attempt may do after another has taken over."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest

import effectonce as eo
from effectonce.contracts import ConnectionLost
from effectonce.record import Claim
from effectonce.testing import ManualClock
from tests.harness.faulty_store import FaultyBackend, down

from .conftest import HandlerForm


def test_f01_a_crash_before_the_claim_leaves_nothing_behind(
    faulty: FaultyBackend, form: HandlerForm, clock: ManualClock
) -> None:
    store = eo.Store(faulty)
    runs: list[int] = []
    charge = form.once(store, scope="charge", key="k")(lambda k: runs.append(1))
    faulty.before = down
    with pytest.raises(eo.StoreUnavailable):
        charge("p1")
    faulty.before = lambda op: None
    charge("p1")
    charge("p1")
    assert runs == [1]


def test_f04_a_crash_after_the_record_replays_the_result(store: eo.Store, form: HandlerForm) -> None:
    """The ack was lost, not the record: the redelivery gets the stored result and can be acked."""
    runs: list[int] = []
    charge = form.once(store, scope="charge", key="k")(lambda k: runs.append(1) or "receipt")
    charge("p1")
    assert charge.call("p1") == eo.Outcome("receipt", True, "p1", "charge", 1)
    assert runs == [1]


def test_f06_a_duplicate_of_a_running_one_is_told_to_come_back_not_that_it_is_done(store: eo.Store) -> None:
    """F06: acked, it would be a loss if the first runner died; so it must not look like a success."""

    @eo.once(store, scope="charge", key="k")
    def charge(k: str) -> str:
        errors: list[BaseException] = []

        def duplicate() -> None:
            try:
                charge(k)
            except eo.InProgress as error:
                errors.append(error)

        thread = threading.Thread(target=duplicate)
        thread.start()
        thread.join(10)
        assert isinstance(errors[0], eo.Retryable)
        return "receipt"

    assert charge("p1") == "receipt"


def test_f13_a_lease_is_lost_in_the_moment_in_which_it_ends(
    store: eo.Store, form: HandlerForm, clock: ManualClock
) -> None:
    lost: list[bool] = []

    @form.once(store, scope="charge", key="k", lease="30s")
    def charge(k: str) -> None:
        for seconds in (29, 1):
            clock.advance(seconds)
            lost.append(eo.current().lease_lost)

    with suppress(eo.EffectOnceError):
        charge("p1")
    assert lost == [False, True]


def take_over(store: eo.Store, clock: ManualClock, lease: str = "31s") -> None:
    """Let the lease of the running handler end, and run the same key to its end from elsewhere."""
    clock.advance(lease)
    done = contextvars.Context().run(eo.once(store, scope=eo.GLOBAL, key="k")(lambda k: "successor").call, "p1")
    assert not done.replayed


def test_f08_a_zombie_cannot_complete_after_another_took_over(
    store: eo.Store, form: HandlerForm, clock: ManualClock, events: list[eo.Event]
) -> None:
    """F08, F11: fencing, not timing. The successor's result stands."""

    @form.once(store, scope=eo.GLOBAL, key="k")
    def charge(k: str) -> str:
        take_over(store, clock)
        return "zombie"

    with pytest.raises(eo.LeaseLost, match="not recorded"):
        charge("p1")
    assert charge("p1") == "successor"
    assert "fenced" in [event.kind for event in events]


def test_f09_a_zombie_that_fails_does_not_release_its_successors_record(
    store: eo.Store, form: HandlerForm, clock: ManualClock
) -> None:
    @form.once(store, scope=eo.GLOBAL, key="k")
    def charge(k: str) -> str:
        take_over(store, clock)
        raise ValueError("late failure")

    with pytest.raises(ValueError, match="late failure"):
        charge("p1")
    assert charge.call("p1").replayed


def test_f10_a_handler_learns_that_its_lease_is_lost(
    store: eo.Store, form: HandlerForm, clock: ManualClock, events: list[eo.Event]
) -> None:
    """Also when no heartbeat got a turn: by the clock alone."""
    told: list[bool] = []

    @form.once(store, scope=eo.GLOBAL, key="k", lease="30s")
    def charge(k: str) -> None:
        told.append(eo.current().lease_lost)
        clock.advance("29s")
        told.append(eo.current().lease_lost)
        store.runtime.heartbeat.beat()
        clock.advance("29s")
        told.append(eo.current().lease_lost)
        clock.advance("2s")
        told.append(eo.current().lease_lost)

    charge("p1")
    assert told == [False, False, False, True]


def test_f10_a_refused_heartbeat_tells_the_handler_at_once(
    store: eo.Store, form: HandlerForm, clock: ManualClock, events: list[eo.Event]
) -> None:
    @form.once(store, scope=eo.GLOBAL, key="k", lease="30s")
    def charge(k: str) -> None:
        clock.advance("10s")
        store.forget(eo.GLOBAL, "p1")
        assert not eo.current().lease_lost
        store.runtime.heartbeat.beat()
        assert eo.current().lease_lost

    with pytest.raises(eo.LeaseLost):
        charge("p1")
    assert "lease_lost" in [event.kind for event in events]


def test_the_heartbeat_stops_at_max_run(store: eo.Store, form: HandlerForm, clock: ManualClock) -> None:
    """A handler that hangs for ever does not hold its key for ever."""

    @form.once(store, scope=eo.GLOBAL, key="k", lease="30s", max_run="1m")
    def charge(k: str) -> None:
        for _ in range(6):
            clock.advance("10s")
            store.runtime.heartbeat.beat()
            assert not eo.current().lease_lost
        for _ in range(4):
            clock.advance("10s")
            store.runtime.heartbeat.beat()
        assert eo.current().lease_lost

    charge("p1")


def test_f12_a_workers_wall_clock_decides_nothing(store: eo.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the store's clock counts: ±1 h on the worker changes no lease and no expiry."""
    charge = eo.once(store, scope="charge", key="k", lease="30s")(lambda k: eo.current().token)
    for skew in (-3600, 3600):
        monkeypatch.setattr("time.time", lambda skew=skew: 1e9 + skew)
        charge(f"p{skew}")
        record = store.get("charge", f"p{skew}")
        assert record is not None
        assert record.changed_at == store.now()


def test_f15_a_herd_on_one_key_is_one_run_and_few_store_calls(clock: ManualClock) -> None:
    """1,000 tasks: one execution, every waiter answered, and a number of round trips that does not grow with them."""
    from tests.core.grouped import GroupedBackend

    backend = GroupedBackend()
    runs: list[int] = []

    async def herd() -> list[int]:
        async with eo.Store(backend, sweep_every=None) as store:

            @eo.once(store, scope="hot", key="k", wait="30s")
            async def hot(k: str) -> int:
                runs.append(1)
                await asyncio.sleep(0.2)
                return 7

            return await asyncio.gather(*(hot("p1") for _ in range(1000)))

    assert asyncio.run(herd()) == [7] * 1000
    assert runs == [1]
    assert backend.round_trips < 60, backend.round_trips


def test_f20_a_handler_that_kills_its_process_is_stopped_by_its_attempts(tmp_path: Path) -> None:
    """The attempt is counted before the run, in the store, so that os._exit cannot avoid it."""
    program = textwrap.dedent(
        """
        import os, sys, effectonce as eo
        store = eo.connect(f"sqlite:///{sys.argv[1]}")
        @eo.once(store, scope="poison", key="k", max_attempts=2, lease="10ms")
        def poison(k: str) -> None:
            os._exit(7)
        try:
            poison("p1")
        except eo.AttemptsExhausted:
            sys.exit(0)
        """
    )
    codes = [
        subprocess.run([sys.executable, "-c", program, str(tmp_path / "poison.db")], timeout=60).returncode
        for _ in range(4)
    ]
    assert codes == [7, 7, 0, 0]


def test_f68_a_claim_resent_after_a_lost_reply_is_its_own(faulty: FaultyBackend, clock: ManualClock) -> None:
    """The reply to the claim is lost once; the repetition by the same owner is granted, as one attempt."""
    from effectonce.core.group_commit.send_batch import send_from_thread

    lost = [True]
    faulty.after = lambda op: ConnectionLost("reset") if lost and lost.pop() else None
    claim = Claim("s", "k", b"o" * 16, 30_000_000, 10**9)
    (reply,) = send_from_thread(faulty.sync_port(), [claim])
    assert not isinstance(reply, Exception | bool)
    assert (reply.kind, reply.attempts) == ("claimed", 1)


def stop_between_writes(process: subprocess.Popen[str], path: Path) -> None:
    """Stopped in the middle of a heartbeat's write it would keep the lock of the file. So we hold the lock at that
    moment."""
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        db.execute("ROLLBACK")


def test_f11_a_stopped_process_cannot_record_what_another_has_taken_over(tmp_path: Path) -> None:
    """SIGSTOP is a GC pause or a live migration: the process wakes up sure of its lease, and is fenced."""
    program = textwrap.dedent(
        """
        import sys, effectonce as eo
        store = eo.connect(f"sqlite:///{sys.argv[1]}")
        @eo.once(store, scope="charge", key="k", lease="300ms")
        def charge(k: str) -> str:
            print("charging", flush=True)
            sys.stdin.readline()
            return "zombie"
        try:
            charge("p1")
        except eo.LeaseLost:
            print("fenced", flush=True)
        """
    )
    path = tmp_path / "stop.db"
    zombie = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert zombie.stdin
    assert zombie.stdout
    assert zombie.stdout.readline() == "charging\n"
    store = eo.connect(f"sqlite:///{path}")
    stop_between_writes(zombie, path)
    successor = eo.once(store, scope="charge", key="k", wait=timedelta(seconds=30))(lambda k: "successor")
    assert successor("p1") == "successor"
    zombie.send_signal(signal.SIGCONT)
    zombie.stdin.write("\n")
    zombie.stdin.close()
    assert zombie.stdout.read() == "fenced\n"
    assert zombie.wait(30) == 0
    assert successor("p1") == "successor"
    store.close()
