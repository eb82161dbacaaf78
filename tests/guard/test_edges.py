"""Awkward moments: closing in use, abandoned coroutines, shutdown, forks, slow settlements, odd callables."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryPort, MemoryStoreBackend
from effectonce.core.store_runtime import StoreRuntime
from effectonce.record import Claim, Settlement
from effectonce.testing import ManualClock, override
from tests.core.grouped import GroupedBackend

from .conftest import HandlerForm

if TYPE_CHECKING:
    from decimal import Decimal


# -- closing


def test_closing_a_store_in_use_waits_for_each_round_trip(tmp_path: Path) -> None:
    """Closing a connection under another thread's feet once brought the whole process down."""
    store = eo.connect(f"sqlite:///{tmp_path}/close.db?synchronous=NORMAL")
    charge = eo.once(store, scope="s", key="k")(lambda k: k)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(name: str) -> None:
        for number in range(10**9):
            if stop.is_set():
                return
            try:
                charge(f"{name}-{number}")
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        time.sleep(0.01)
        store.close()
    stop.set()
    for thread in threads:
        thread.join(30)
    store.close()
    assert failures == []


def test_a_store_that_nobody_has_any_more_leaves_no_thread_and_no_engine() -> None:
    store = eo.connect("memory://")
    eo.once(store, scope="s", key="k")(lambda k: k)("k")
    runtime: weakref.ref[StoreRuntime] = weakref.ref(store.runtime)
    del store
    gc.collect()
    assert runtime() is None
    for _ in range(100):
        if not [t for t in threading.enumerate() if t.name == "effectonce-heartbeat" and t.is_alive()]:
            break
        time.sleep(0.02)


def test_one_heartbeat_thread_even_after_a_close_in_mid_work() -> None:
    store = eo.connect("memory://")

    @eo.once(store, scope="s", key="k", lease="400ms")
    def slow(k: str) -> bool:
        store.close()
        fast(k)
        time.sleep(1.0)
        return eo.current().lease_lost

    fast = eo.once(store, scope="fast", key="k", lease="200ms")(lambda k: None)
    assert slow("k") is False
    store.close()


def test_a_thread_that_cannot_start_costs_the_heartbeat_not_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    store = eo.connect("memory://")
    charge = eo.once(store, scope="s", key="k")(lambda k: k)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start")))
        assert charge("a") == "a"
    assert charge("b") == "b"
    assert store.runtime.heartbeat._thread is not None, "the next call tries again"
    store.close()


# -- context and lifetime


async def test_current_survives_that_another_task_ends_in_its_context(store: eo.Store) -> None:
    """Of two in one context the later one is current; that the first one ends does not end that."""

    @eo.once(store, scope="charge", key="k")
    async def charge(k: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return eo.current().key

    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(charge(*each), context=context) for each in (("a", 0.01), ("b", 0.05))]
    assert (await asyncio.gather(*tasks))[1] == "b"


def test_current_survives_that_another_coroutine_is_closed_in_its_context(store: eo.Store) -> None:
    @eo.once(store, scope="abandoned", key="k")
    async def abandoned(k: str) -> None:
        await asyncio.sleep(60)

    left = contextvars.Context().run(abandoned, "a")

    async def start() -> None:
        contextvars.copy_context().run(left.send, None)

    asyncio.run(start())

    @eo.once(store, scope="innocent", key="k")
    def innocent(k: str) -> str:
        left.close()
        return eo.current().key

    assert innocent("mine") == "mine"


def test_handlers_that_start_their_successor_keep_no_chain_of_the_past() -> None:
    async def main() -> int:
        store = eo.connect("memory://", sweep_every=None)
        done = asyncio.Event()
        depths: list[int] = []

        @eo.once(store, scope="s", key="n")
        async def step(n: int) -> None:
            depth, run = 0, eo.current()
            while run.parent is not None:
                depth, run = depth + 1, run.parent
            depths.append(depth)
            if n == 200:
                done.set()
            else:
                tasks.append(asyncio.create_task(step(n + 1)))

        tasks: list[Any] = []
        await step(0)
        await done.wait()
        return max(depths)

    assert asyncio.run(main()) <= 1


def test_a_result_that_holds_its_run_is_freed(store: eo.Store) -> None:
    class Holder:
        run: Any

    freed: list[weakref.ref[Holder]] = []

    @eo.once(store, scope="s", key="k")
    def handler(k: str) -> Any:
        holder = Holder()
        holder.run = eo.current()
        freed.append(weakref.ref(holder))
        return holder

    for number in range(10):
        handler(str(number))
    gc.collect()
    assert [ref() for ref in freed] == [None] * 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_while_another_thread_is_inside_the_store_does_not_hang_the_child() -> None:
    store = eo.connect("memory://")
    charge = eo.once(store, scope="s", key="k")(lambda k: k)
    backend: Any = store.runtime.backend
    with backend.lock:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(0 if charge("k") == "k" else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_two_processes_resumed_from_one_snapshot_are_two_owners() -> None:
    """The generator's state is the same in both; the time is not."""
    store = eo.Store(GroupedBackend(latency=0), sweep_every=None)
    runtime = store.runtime
    runtime._random_bits = lambda bits: 7
    owners = set()
    for number in range(3):
        eo.once(store, scope=f"s{number}", key="k")(lambda k: owners.add(eo.current().owner))("k")
        time.sleep(0.000001)
    assert len(owners) == 3


@pytest.mark.parametrize("backend", [MemoryStoreBackend, GroupedBackend])
def test_no_two_calls_have_one_owner(backend: Any) -> None:
    """Nor two engines, as before and after a fork: each begins anew."""
    engines = [eo.Store(backend(), sweep_every=None).runtime for _ in range(2)]
    owners = [runtime.new_owner() for runtime in engines for _ in range(1000)]
    assert len(set(owners)) == 2000
    assert {len(owner) for owner in owners} == {16}


# -- settling


def test_a_lease_is_renewed_while_its_completion_is_on_its_way() -> None:
    """The settlement stalls for longer than the lease; nobody takes over meanwhile."""

    class Slow(GroupedBackend):
        def sync_port(self) -> Any:
            port: Any = super().sync_port()
            run = port.run

            async def stalled(batch: Any) -> Any:
                if any(isinstance(op, Settlement) and op.state == "done" and op.key == "k" for op in batch):
                    time.sleep(1.0)  # noqa: ASYNC251
                return await run(batch)

            port.run = stalled
            return port

    store = eo.Store(Slow(), sweep_every=None)
    first = threading.Thread(
        target=eo.once(store, scope=eo.GLOBAL, key="k", lease="200ms")(lambda k: "first"), args=("k",)
    )
    first.start()
    time.sleep(0.7)
    with pytest.raises(eo.InProgress):
        eo.once(store, scope=eo.GLOBAL, key="k", lease="200ms")(lambda k: "second")("k")
    first.join(10)
    store.close()


def test_a_graceful_shutdown_releases_what_was_running() -> None:
    store = eo.Store(GroupedBackend(latency=0.02), sweep_every=None)

    @eo.once(store, scope="s", key="k")
    async def handler(k: str) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        tasks = [asyncio.create_task(handler(f"k{n}")) for n in range(10)]
        await asyncio.sleep(0.1)
        assert len(tasks) == 10

    asyncio.run(main())
    states = {store.get("s", f"k{n}").state for n in range(10)}  # type: ignore[union-attr]
    assert states == {"free"}


def test_an_unrecorded_completion_says_that_the_handler_ran(store: eo.Store, clock: ManualClock) -> None:
    class Port(MemoryPort):
        def _settle(self, op: Any, now: int) -> bool:
            raise eo.StoreUnavailable("no route to host", 7.0)

    class Down(MemoryStoreBackend):
        def sync_port(self) -> Any:
            return Port(self)

    charge = eo.once(eo.Store(Down(clock=clock)), scope="s", key="k")(lambda k: k)
    with pytest.raises(eo.StoreUnavailable, match="the handler ran") as caught:
        charge("k")
    assert caught.value.retry_after == 7.0


def test_a_waiter_does_not_run_beside_the_first_because_the_store_blinked() -> None:
    class Blinks(MemoryStoreBackend):
        asked = 0

        def sync_port(self) -> Any:
            port: Any = super().sync_port()
            run = port.run

            async def blinking(batch: Any) -> Any:
                is_claim = isinstance(batch[0], Claim)
                Blinks.asked += is_claim
                if is_claim and Blinks.asked == 3:
                    raise eo.StoreUnavailable("blink")
                return await run(batch)

            port.run = blinking
            return port

    store = eo.Store(Blinks(), sweep_every=None)
    started, go = threading.Event(), threading.Event()

    @eo.once(store, scope=eo.GLOBAL, key="k")
    def first(k: str) -> None:
        started.set()
        go.wait(10)

    thread = threading.Thread(target=first, args=("k",))
    thread.start()
    started.wait(10)
    second = eo.once(store, scope=eo.GLOBAL, key="k", wait="5s", on_store_error="run")(lambda k: pytest.fail("ran"))
    with pytest.raises(eo.StoreUnavailable):
        second("k")
    go.set()
    thread.join(10)


# -- keys and results


def test_a_call_without_a_key_has_no_key_for_a_provider(store: eo.Store, form: HandlerForm) -> None:
    @form.once(store, scope="s", key="k", on_missing_key="run")
    def charge(k: str | None) -> None:
        eo.current().provider_key("stripe")

    with pytest.raises(eo.MissingKey, match="provider"):
        charge(None)


def test_resolving_as_done_without_a_result_tells_duplicates_to_ack(store: eo.Store) -> None:
    @eo.once(store, scope="s", key="k", on_error="doubt")
    def charge(k: str) -> dict[str, int]:
        raise TimeoutError

    for key in ("unknown", "abandoned"):
        with pytest.raises(TimeoutError):
            charge(key)
    store.resolve("s", "unknown", "done")
    with pytest.raises(eo.ResultNotStored, match="ack"):
        charge("unknown")
    store.resolve("s", "abandoned", "abandon")
    with pytest.raises(eo.PermanentFailure, match="operator gave it up"):
        charge("abandoned")


@dataclass
class Base:
    a: int


@dataclass
class Sub(Base):
    b: int


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (dict[str, Any], {"at": datetime(2026, 1, 1, tzinfo=UTC)}),
        (dict, {1: "a"}),
        (list, [(1, 2)]),
        (float | None, float("nan")),
        (Base, Sub(1, 2)),
        (list | None, {1, 2}),
    ],
    ids=str,
)
def test_what_would_read_back_as_something_else_is_not_stored(store: eo.Store, type_: Any, value: Any) -> None:
    handler = eo.once(store, scope="s", key="k", returns=type_)(lambda k: value)
    assert handler("k") is value
    with pytest.raises(eo.ResultNotStored):
        handler("k")


def test_a_handler_whose_result_nobody_needs_stores_none(store: eo.Store) -> None:
    handler = eo.once(store, scope="s", key="k", returns=None)(lambda k: object())
    handler("k")
    assert handler("k") is None


class Declined(Exception):
    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"card declined ({code})")


def test_an_error_that_would_come_back_changed_is_a_permanent_failure(store: eo.Store) -> None:
    @eo.once(store, scope="s", key="k", permanent=(Declined,))
    def charge(k: str) -> None:
        raise Declined(51)

    with pytest.raises(Declined):
        charge("k")
    with pytest.raises(eo.PermanentFailure, match=r"card declined \(51\)"):
        charge("k")


def test_errors_of_ours_are_never_stored_as_permanent(store: eo.Store) -> None:
    @eo.once(store, scope="s", key="k", permanent=(Exception,))
    def outer(k: str) -> None:
        raise eo.InProgress("an inner guard is busy")

    for _ in range(2):
        with pytest.raises(eo.InProgress):
            outer("k")
    assert store.get("s", "k").state == "free"  # type: ignore[union-attr]


# -- odd callables


class Generates:
    def __call__(self, k: str) -> Iterator[int]:
        yield 1


def test_lazy_results_are_refused(store: eo.Store) -> None:
    with pytest.raises(eo.ConfigurationError, match="generator"):
        eo.once(store, scope="s", key="k")(Generates())
    handler = eo.once(store, scope="s", key="k")(lambda k: (n for n in range(3)))
    with pytest.raises(eo.SyncAsyncMismatch, match="nothing had happened"):
        handler("k")
    assert store.get("s", "k").state == "free"  # type: ignore[union-attr]


def test_a_bound_method_on_another_class_stays_bound(store: eo.Store) -> None:
    class Service:
        @eo.once(store, scope="service", key="k")
        def charge(self, k: str) -> str:
            return type(self).__name__

    class Worker:
        handler = Service().charge

    assert Worker().handler("k") == "Service"


def test_parameters_may_be_annotated_for_type_checkers_only(store: eo.Store) -> None:
    @eo.once(store, scope="s", key="k")
    def charge(k: str, amount: Decimal) -> int:
        return 1

    assert charge("k", None) == 1  # type: ignore[arg-type]

    def unknown(k: str) -> Decimal: ...

    with pytest.raises(eo.ConfigurationError, match="returns="):
        eo.once(store, scope="s2", key="k")(unknown)("k")


def test_two_closures_under_one_explicit_scope_are_refused(store: eo.Store) -> None:
    def make(name: str) -> Any:
        @eo.once(store, scope="notify", key="k")
        def send(k: str) -> str:
            return name

        return send

    mail = make("mail")
    with pytest.raises(eo.ScopeTaken):
        make("sms")
    assert mail("k") == "mail"


class SMSMessage:
    pass


def test_what_is_called_like_a_message_is_none(store: eo.Store) -> None:
    def handle(message: SMSMessage) -> None: ...

    with pytest.raises(eo.ConfigurationError, match="key="):
        eo.once(store, scope="s")(handle)


async def test_a_blocking_wait_in_a_loop_is_refused_at_every_call(store: eo.Store) -> None:
    charge = eo.once(store, scope="s", key="k", wait="1s")(lambda k: k)
    with pytest.raises(eo.SyncAsyncMismatch, match="event loop"):
        charge("k")


@pytest.mark.parametrize("option", [{"lease": "1us"}, {"max_attempts": 2.5}])
def test_settings_that_cannot_work_are_refused(store: eo.Store, option: dict[str, Any]) -> None:
    with pytest.raises(eo.ConfigurationError):
        eo.once(store, scope="s", key="k", **option)


def test_a_secret_is_text_or_bytes() -> None:
    with pytest.raises(eo.InvalidOption, match="str or bytes"):
        eo.connect("memory://", private=32)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:c4n4ry#x@h/db",
        "redis://u:12#c4n4ry@h",
        "redis://app:c4n4ry/x@db",
        "mysql://app:c4n4ry?x@db/y",
        "redis://app:1234/5c4n4ry@db",
        "postgresql://u:c4n4ry℀@h/db",
        "sqlite:////tmp/my#file.db",
    ],
)
def test_f66_a_password_that_was_not_encoded_is_not_printed(url: str) -> None:
    with pytest.raises(eo.InvalidOption, match="percent-encode") as caught:
        eo.connect(url)
    assert "c4n4ry" not in str(caught.value)
    assert caught.value.__context__ is None or "c4n4ry" not in str(caught.value.__context__)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks_do_not_wedge_the_group() -> None:
    async def main() -> str:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        async with eo.Store(GroupedBackend(latency=0), sweep_every=None) as store:

            @eo.once(store, scope="s", key="k")
            async def handler(k: str) -> str:
                return k

            for number in range(5):
                await handler(str(number))
            return await handler("last")

    assert asyncio.run(main()) == "last"


def test_override_of_a_closed_store_is_fine(store: eo.Store) -> None:
    with eo.connect("memory://") as other, override(store, other):
        store.close()
        assert eo.once(store, scope="s", key="k")(lambda k: 1)("k") == 1


def test_an_event_loop_ends_even_if_its_last_submission_never_left(tmp_path: Path) -> None:
    """A drain that is cancelled before its first step must give its port back."""

    async def main() -> None:
        store = eo.connect(f"sqlite:///{tmp_path}/end.db", sweep_every=None)

        @eo.once(store, scope="s", key="k")
        async def handler(k: str) -> None:
            await asyncio.sleep(60)

        tasks = [asyncio.create_task(handler("a"))]
        await asyncio.sleep(0.2)
        tasks.append(asyncio.create_task(handler("b")))
        await asyncio.sleep(0)
        assert len(tasks) == 2

    ended = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    ended.start()
    ended.join(20)
    assert not ended.is_alive()


def test_closing_a_store_takes_no_lease_from_who_still_runs() -> None:
    store = eo.connect("memory://")

    @eo.once(store, scope=eo.GLOBAL, key="k", lease="200ms")
    def slow(k: str) -> bool:
        store.close()
        time.sleep(0.6)
        with pytest.raises(eo.InProgress):
            contextvars.Context().run(eo.once(store, scope=eo.GLOBAL, key="k")(lambda k: None), k)
        return eo.current().lease_lost

    assert slow("k") is False
    store.close()


def test_closing_a_store_takes_no_lease_from_who_begins_meanwhile() -> None:
    """It looked for leases, found none, and ended the heartbeat of a call that had begun after the look."""
    store = eo.connect("memory://", sweep_every=None)
    inside, leave = threading.Event(), threading.Event()

    @eo.once(store, scope="s", key="k", lease="200ms")
    def handler(k: str) -> None:
        inside.set()
        leave.wait(10)

    class Looked(set[Any]):
        """Between the look at it and what is done then, a call begins."""

        def __bool__(self) -> bool:
            found = len(self) > 0
            if not caller.ident:
                caller.start()
                inside.wait(0.5)
            return found

    caller = threading.Thread(target=handler, args=("k",))
    heartbeat = store.runtime.heartbeat
    heartbeat.cover(30_000_000)
    store.runtime.leased_runs = heartbeat._leased = Looked()
    store.close()
    assert inside.wait(10)
    assert heartbeat._thread is not None
    assert heartbeat._thread.is_alive()
    leave.set()
    caller.join(10)
    store.close()


def test_a_heartbeat_that_cannot_reach_its_store_at_first_tries_again(caplog: pytest.LogCaptureFixture) -> None:
    """It ended, and no call looked whether it was there."""

    class Late(MemoryStoreBackend):
        failures = 1

        def sync_port(self) -> Any:
            if threading.current_thread().name == "effectonce-heartbeat" and self.failures:
                self.failures -= 1
                raise OSError("the token service is away for a moment")
            return super().sync_port()

    store = eo.Store(Late(), sweep_every=None)

    @eo.once(store, scope="s", key="k", lease="400ms")
    def handler(k: str) -> bool:
        run = eo.current()
        first, until = run.sent_at, time.monotonic() + 10
        while run.sent_at == first and time.monotonic() < until:
            time.sleep(0.01)
        return run.sent_at > first

    handler("warm")
    assert "the heartbeat failed; it tries again" in caplog.text
    assert handler("k")
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("how", ["seen", "lost"])
def test_a_child_that_returns_from_a_handler_uses_nothing_of_its_parents(how: str) -> None:
    """Neither its connections, whose replies are the parent's, nor locks that threads hold which it does not have."""

    class Mine(GroupedBackend):
        """Its ports tell when they are used by another process than the one that has opened them."""

        def sync_port(self) -> Any:
            port, opened_by = super().sync_port(), os.getpid()
            run = port.run

            async def checked(batch: Any) -> Any:
                if os.getpid() != opened_by:
                    os._exit(4)
                return await run(batch)

            port.run = checked
            return port

    store = eo.Store(Mine(), sweep_every=None)
    parent = os.getpid()

    @eo.once(store, scope="s", key="k", mode="seen" if how == "seen" else "lease")
    def handler(k: str) -> int:
        if how == "lost":
            eo.current().mark_lost()
        return os.fork()

    try:
        child = handler("k")
    except BaseException:
        if os.getpid() != parent:
            os._exit(5)
        raise
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_forked_in_a_handler_settles_nothing_of_its_parents(tmp_path: Path) -> None:
    store = eo.connect(f"sqlite:///{tmp_path}/fork.db", sweep_every=None)

    @eo.once(store, scope="s", key="k")
    def handler(k: str) -> str:
        child = os.fork()
        if child == 0:
            try:
                sys.exit(3)  # leaves through the guard, in the child
            except SystemExit as error:
                left.append(error)
                raise
        os.waitpid(child, 0)
        assert store.get("s", k).state == "claimed"  # type: ignore[union-attr]
        return "parent"

    left: list[BaseException] = []
    try:
        assert handler("k") == "parent"
    except SystemExit:
        os._exit(3)
    assert handler.call("k").replayed
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_store_that_cannot_be_renewed_leaves_no_other_with_its_parents_leases(tmp_path: Path) -> None:
    class Stubborn(MemoryStoreBackend):
        def after_fork(self) -> None:
            raise RuntimeError("not here")

    stores = [eo.Store(Stubborn(), sweep_every=None) for _ in range(20)]
    stores.append(eo.connect(f"sqlite:///{tmp_path}/fork.db", sweep_every=None))
    children = []

    @eo.once(stores[-1], scope="s", key="k")
    def handler(k: str) -> None:
        child = os.fork()
        if child == 0:
            os._exit(0 if not eo.current().protected else 1)
        children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    handler("k")
    assert children == [0]
    for store in stores:
        store.close()


async def test_closing_waits_for_a_round_trip_not_for_an_idle_moment() -> None:
    store = eo.Store(GroupedBackend(latency=0.01), sweep_every=None)
    stop = asyncio.Event()

    @eo.once(store, scope="s", key="n")
    async def handler(n: int) -> int:
        return n

    async def steady(start: int) -> None:
        number = start
        while not stop.is_set():
            await handler(number)
            number += 4

    callers = [asyncio.create_task(steady(n)) for n in range(4)]
    await asyncio.sleep(0.1)
    await asyncio.wait_for(store.aclose(), 5)
    stop.set()
    await asyncio.gather(*callers)


# -- who watches


@pytest.mark.parametrize("mode", ["lease", "seen"])
def test_a_hook_that_comes_while_a_handler_runs_is_told_how_long_it_took_in_all(
    store: eo.Store, clock: ManualClock, form: HandlerForm, mode: Any
) -> None:
    events = list[eo.Event]()

    @form.once(store, scope="charge", key="k", mode=mode)
    def charge(k: str) -> None:
        clock.advance(3)
        store.runtime.set_hooks((events.append,))
        clock.advance(4)
        if k == "broken":
            raise ValueError(k)

    store.runtime.set_hooks(())
    charge("p1")
    store.runtime.set_hooks(())
    with pytest.raises(ValueError, match="broken"):
        charge("broken")
    assert [(event.kind, event.seconds) for event in events] == [("completed", 7.0), ("released", 7.0)]


async def test_one_hook_that_goes_and_another_that_comes_in_mid_run_is_told_how_long_it_took() -> None:
    """And not when the run began, as if that were how long it took."""
    store, events = eo.Store(GroupedBackend(0.05), hooks=[lambda event: None], sweep_every=None), list[eo.Event]()

    @eo.once(store, scope="charge", key="k")
    async def charge(k: str) -> None:
        store.runtime.set_hooks(())
        asyncio.get_running_loop().call_later(0.02, store.add_hook, events.append)

    await charge("p1")
    assert [(event.kind, 0.0 < event.seconds < 5.0) for event in events] == [("completed", True)]
    await store.aclose()


@pytest.mark.parametrize("value", ["stored", object()], ids=["stored", "not stored"])
def test_all_that_is_told_of_a_runs_end_has_its_time(
    store: eo.Store, clock: ManualClock, events: list[eo.Event], form: HandlerForm, value: Any
) -> None:
    """What is found out before the settlement too: it was told with a time of 0."""

    @form.once(store, scope="charge", key="k", returns=Any)
    def charge(k: str):  # type: ignore[no-untyped-def]
        clock.advance(7)
        return value

    charge("p1")
    ends = ["completed"] if value == "stored" else ["result_not_stored", "completed"]
    assert [(event.kind, event.seconds) for event in events] == [("claimed", 0.0), *((kind, 7.0) for kind in ends)]


def test_what_is_logged_of_a_hook_that_raises_is_its_own_error_alone(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: eo.Event) -> None:
        raise RuntimeError(event.kind)

    store = eo.Store(MemoryStoreBackend(), hooks=[broken], sweep_every=None)
    eo.once(store, scope="charge", key="k")(lambda k: None)("p1")
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [(str(error), error and error.__context__) for error in errors] == [("claimed", None), ("completed", None)]


def test_a_hook_that_comes_while_others_are_asked_what_they_want_is_told_from_then_on() -> None:
    asked, added = threading.Event(), threading.Event()

    class Counts:
        def wants(self, kind: str, scope: str) -> Any:
            asked.set()
            added.wait(10)
            return lambda seconds: None

        def __call__(self, event: eo.Event) -> None: ...

    seen: list[str] = []
    store = eo.Store(MemoryStoreBackend(), hooks=[Counts()], sweep_every=None)
    charge = eo.once(store, scope="charge", key="k")(lambda k: None)
    first = threading.Thread(target=charge, args=("p1",))
    first.start()
    assert asked.wait(10)
    store.add_hook(lambda event: seen.append(event.kind))
    added.set()
    first.join()
    seen.clear()
    charge("p2")
    assert seen == ["claimed", "completed"]


# -- a store in this process


def test_a_clock_that_stands_at_zero_is_no_reason_to_keep_a_claim() -> None:
    """F19"""
    store = eo.Store(MemoryStoreBackend(clock=ManualClock(0)), sweep_every=None)
    failing = [ValueError()]

    @eo.once(store, scope="s", key="k")
    def charge(k: str) -> str:
        if failing:
            raise failing.pop()
        return k

    with pytest.raises(ValueError):
        charge("k")
    assert charge("k") == "k"


def test_a_port_that_changes_what_becomes_of_operations_gets_all_of_them(clock: ManualClock) -> None:
    seen: list[str] = []

    class Port(MemoryPort):
        async def run(self, batch: Any) -> Any:
            seen.extend(type(op).__name__ for op in batch)
            return await super().run(batch)

    class Wrapped:
        def __init__(self, port: MemoryPort) -> None:
            self._port = port

        def __getattr__(self, name: str) -> Any:
            return getattr(self._port, name)

        async def run(self, batch: Any) -> Any:
            seen.extend(type(op).__name__ for op in batch)
            return await self._port.run(batch)

    class Backend(MemoryStoreBackend):
        wraps: Callable[[MemoryStoreBackend], Any] = Port

        def sync_port(self) -> Any:
            return type(self).wraps(self)

    class Wrapping(Backend):
        wraps = staticmethod(lambda backend: Wrapped(MemoryPort(backend)))

    for backend in (Backend(clock=clock), Wrapping(clock=clock)):
        seen.clear()
        charge = eo.once(eo.Store(backend), scope="s", key="k")(lambda k: k)
        assert (charge("a"), charge("b")) == ("a", "b")
        assert seen == ["Claim", "Settlement"] * 2


def test_a_time_limit_that_strikes_as_the_result_is_recorded_does_not_cost_it(clock: ManualClock) -> None:
    """It is raised by a signal's handler, wherever the program is, and is no word of the store's about the result."""

    class TimeLimit(Exception):
        pass

    class Port(MemoryPort):
        limits = iter([TimeLimit()])

        async def run(self, batch: Any) -> Any:
            for limit in self.limits if isinstance(batch[0], Settlement) else ():
                raise limit
            return await super().run(batch)

    class Backend(MemoryStoreBackend):
        def sync_port(self) -> Any:
            return Port(self)

    store = eo.Store(Backend(clock=clock))

    @eo.once(store, scope="charge", key="k")
    def charge(k: str) -> str:
        return "receipt"

    outcomes = [charge.call("k") for _ in range(2)]
    assert [(each.value, each.replayed) for each in outcomes] == [("receipt", False), ("receipt", True)]
    assert next(Port.limits, None) is None


def test_on_store_error_run_also_where_the_store_is_in_this_process(clock: ManualClock) -> None:
    class Port(MemoryPort):
        async def run(self, batch: Any) -> Any:
            raise eo.StoreUnavailable("it is away")

    class Backend(MemoryStoreBackend):
        def sync_port(self) -> Any:
            return Port(self)

    events: list[str] = []
    store = eo.Store(Backend(clock=clock), hooks=[lambda event: events.append(event.kind)])
    charge = eo.once(store, scope="s", key="k", on_store_error="run")(lambda k: k)
    assert charge("k") == "k"
    assert events == ["unprotected"]
