"""What goes wrong around a guarded call, by the numbers of the failure catalogue."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.contracts import ConnectionLost
from effectonce.core.guarded_call.run import Run
from effectonce.core.run_sync import Pending, run_sync
from effectonce.record import Batchable, Claim, Settlement
from effectonce.testing import ManualClock, override
from tests.harness.faulty import FaultyBackend, down

from .conftest import HandlerForm


@pytest.fixture
def faulty(clock: ManualClock) -> FaultyBackend:
    return FaultyBackend(clock)


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


@pytest.mark.parametrize("exit_with", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_f16_every_way_out_releases_and_is_raised_again(
    store: eo.Store, exit_with: type[BaseException], clock: ManualClock
) -> None:
    @eo.once(store, scope="charge", key="k")
    def charge(k: str) -> None:
        raise exit_with

    with pytest.raises(exit_with):
        charge("p1")
    record = store.get("charge", "p1")
    assert record is not None
    assert (record.state, record.attempts) == ("free", 1)


def test_f16_an_interruption_just_before_the_handler_releases_its_key(
    store: eo.Store, form: HandlerForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge = form.once(store, scope="charge", key="k")(lambda k: 7)

    enter = Run.enter

    def interrupted(run: Run) -> None:
        enter(run)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "enter", interrupted)
        with pytest.raises(KeyboardInterrupt):
            charge("p1")
    record = store.get("charge", "p1")
    assert record is not None
    assert record.state == "free"
    assert charge("p1") == 7


async def test_f16_a_cancelled_task_releases_its_key(store: eo.Store) -> None:
    started = asyncio.Event()

    @eo.once(store, scope="charge", key="k")
    async def charge(k: str) -> None:
        started.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(charge("p1"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = store.get("charge", "p1")
    assert record is not None
    assert record.state == "free"


async def test_f16_a_closed_coroutine_leaves_its_key_to_the_lease(store: eo.Store) -> None:
    @eo.once(store, scope="charge", key="k")
    async def charge(k: str) -> None:
        await asyncio.sleep(60)

    coroutine = charge("p1")
    coroutine.send(None)
    coroutine.close()
    record = store.get("charge", "p1")
    assert record is not None
    assert record.state == "claimed"


def test_f17_a_failing_release_does_not_hide_the_handlers_error(
    faulty: FaultyBackend, form: HandlerForm, caplog: pytest.LogCaptureFixture
) -> None:
    store = eo.Store(faulty)

    @form.once(store, scope="charge", key="k")
    def charge(k: str) -> None:
        faulty.before = down
        raise ValueError("the real cause")

    with caplog.at_level(logging.WARNING, "effectonce"), pytest.raises(ValueError, match="the real cause"):
        charge("p1")
    assert "could not be settled" in caplog.text


class Opaque:
    pass


@pytest.mark.parametrize(
    "value", [Opaque(), {1: "int key"}, float("nan"), (1, 2), {"deep": [Opaque()]}, b"raw", datetime(2026, 1, 1)]
)
def test_f18_a_result_that_cannot_be_stored_is_done_all_the_same(
    store: eo.Store, form: HandlerForm, value: Any, events: list[eo.Event]
) -> None:
    runs: list[int] = []

    @form.once(store, scope="charge", key="k")
    def charge(k: str):  # type: ignore[no-untyped-def]
        runs.append(1)
        return value

    assert charge("p1") is value
    with pytest.raises(eo.ResultNotStored, match="ack"):
        charge("p1")
    assert runs == [1]
    assert "result_not_stored" in [event.kind for event in events]


@pytest.mark.parametrize("value", ["x" * 200, 10**200], ids=["text", "number"])
def test_f18_a_result_over_the_cap_is_done_too(clock: ManualClock, form: HandlerForm, value: str | int) -> None:
    store = eo.Store(MemoryStoreBackend(clock=clock), max_result=100)
    charge = form.once(store, scope="charge", key="k", returns=type(value))(lambda k: value)
    assert charge("p1") == value
    with pytest.raises(eo.ResultNotStored):
        charge("p1")


def test_f18_a_result_that_the_store_refuses_is_done_all_the_same(faulty: FaultyBackend, form: HandlerForm) -> None:
    store = eo.Store(faulty)

    def too_big(op: Batchable) -> Exception | None:
        return ValueError("item too large") if isinstance(op, Settlement) and op.result else None

    faulty.before = too_big
    runs: list[int] = []
    charge = form.once(store, scope="charge", key="k")(lambda k: runs.append(1))
    charge("p1")
    with pytest.raises(eo.ResultNotStored):
        charge("p1")
    assert runs == [1]


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


def test_f36_a_store_that_is_down_runs_nothing(faulty: FaultyBackend, form: HandlerForm) -> None:
    store = eo.Store(faulty)
    faulty.before = down
    runs: list[int] = []
    charge = form.once(store, scope="charge", key="k")(lambda k: runs.append(1))
    with pytest.raises(eo.StoreUnavailable) as caught:
        charge("p1")
    assert caught.value.retry_after > 0
    assert runs == []


def test_f36_a_completion_that_cannot_be_recorded_is_not_a_success(faulty: FaultyBackend, form: HandlerForm) -> None:
    """Nothing is acked: the delivery comes again when the lease has ended."""
    store = eo.Store(faulty)

    @form.once(store, scope="charge", key="k")
    def charge(k: str) -> str:
        faulty.before = down
        return "receipt"

    with pytest.raises(eo.StoreUnavailable):
        charge("p1")


def test_running_without_the_store_is_an_explicit_choice_with_an_event(
    faulty: FaultyBackend, form: HandlerForm, events: list[eo.Event]
) -> None:
    store = eo.Store(faulty, hooks=[events.append])
    faulty.before = down
    charge = form.once(store, scope="charge", key="k", on_store_error="run")(lambda k: "receipt")
    assert charge("p1") == "receipt"
    assert [event.kind for event in events] == ["unprotected"]


def test_f68_a_claim_resent_after_a_lost_reply_is_its_own(faulty: FaultyBackend, clock: ManualClock) -> None:
    """The reply to the claim is lost once; the repetition by the same owner is granted, as one attempt."""
    from effectonce.core.group_commit.exchange import exchange, pause_thread

    lost = [True]
    faulty.after = lambda op: ConnectionLost("reset") if lost and lost.pop() else None
    claim = Claim("s", "k", b"o" * 16, 30_000_000, 10**9)
    (reply,) = run_sync(exchange(faulty.sync_port(), [claim], pause_thread))
    assert not isinstance(reply, Exception | bool)
    assert (reply.kind, reply.attempts) == ("claimed", 1)


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


def test_f65_hostile_keys_cannot_forge_log_lines_or_repaint_a_terminal(store: eo.Store, form: HandlerForm) -> None:
    hostile = "k\r\n2026 CRITICAL paid\x1b[2J<script>"
    charge = form.once(store, scope="charge", key="k", fingerprint="amount")(lambda k, amount: None)
    charge(hostile, 1)
    with pytest.raises(eo.PayloadMismatch) as caught:
        charge(hostile, 2)
    assert all(character.isprintable() for character in str(caught.value))


def test_f66_no_password_in_any_repr_or_message() -> None:
    from effectonce.values.urls import Address

    address = Address("redis://user:c4n4ry@127.0.0.1:1/0?password=c4n4ry&private_key=c4n4ry")
    assert "c4n4ry" not in f"{address} {address!r}"
    for url in ("nosuch://user:c4n4ry@host/db", "redis://u:c4n4ry@[bad/0", "sqlite:///x.db?nope=1&password=c4n4ry"):
        with pytest.raises(eo.ConfigurationError) as caught:
            eo.connect(url)
        assert "c4n4ry" not in f"{caught.value!r}"


def test_f60_a_poisoned_row_is_an_error_not_code(clock: ManualClock, form: HandlerForm) -> None:
    backend = MemoryStoreBackend(clock=clock)
    store = eo.Store(backend)

    @form.once(store, scope="charge", key="k")
    def charge(k: str) -> dict[str, int]:
        return {"amount": 1}

    charge("p1")
    for poison in (b"\x80\x04\x95", b'2{"amount":1}', b'1{"amount":"x"}', b"1{", b""):
        backend.scopes["charge"]["p1"].result = poison
        with pytest.raises(eo.CorruptRecord, match="forget"):
            charge("p1")


def test_hooks_that_raise_change_no_outcome(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: eo.Event) -> None:
        raise RuntimeError("sink")

    store = eo.Store(MemoryStoreBackend(clock=clock), hooks=[broken])
    assert eo.once(store, scope="charge", key="k")(lambda k: 7)("p1") == 7
    assert "hook raised" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_shares_records_but_no_connections(tmp_path: Path) -> None:
    store = eo.connect(f"sqlite:///{tmp_path}/fork.db")
    runs = tmp_path / "runs"
    charge = eo.once(store, scope="charge", key="k")(lambda k: runs.open("a").write(k) and None)
    charge("a")
    pid = os.fork()
    if pid == 0:
        try:
            charge("a")
            charge("b")
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    charge("b")
    assert runs.read_text() == "ab"
    store.close()


def stop_between_writes(process: subprocess.Popen[str], path: Path) -> None:
    """Stopped in the middle of a heartbeat's write it would keep the lock of the file, and everybody out. So nobody
    else has the lock at that moment: we do."""
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


def test_a_guarded_function_is_async_exactly_where_its_function_is(store: eo.Store) -> None:
    @eo.once(store, scope="a", key="k")
    async def handler(k: str) -> None: ...

    @eo.once(store, scope="b", key="k")
    def plain(k: str) -> None: ...

    assert inspect.iscoroutinefunction(handler)
    assert not inspect.iscoroutinefunction(plain)
