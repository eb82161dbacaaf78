"""What a store knows by itself, without asking its server, and what it says of itself."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import msgspec
import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core.store_clients import ClaimAndSettlement, LoopClient, release_with_refund
from effectonce.core.store_runtime import StoreRuntime, call_weakly
from effectonce.record import Answer, Claim
from effectonce.testing import ManualClock
from tests.core.grouped import GroupedBackend
from tests.harness.waiting import until


class ServerBackend(MemoryStoreBackend):
    """As of a store with a server, whose clock this process would have to ask for."""

    def __init__(self) -> None:
        super().__init__()
        del self.clock


class MixingBackend(GroupedBackend):
    """As of a store that takes claims and settlements in one round trip."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = msgspec.structs.replace(self.capabilities, mixed_batches=True)


def test_a_process_tells_the_time_by_its_own_clock_where_the_store_has_a_server() -> None:
    runtime = StoreRuntime(ServerBackend())
    before = time.time()
    now = runtime.now() / 1e6
    assert before - 0.001 <= now <= time.time() + 0.001


def test_a_process_tells_the_time_by_the_clock_of_a_store_without_a_server() -> None:
    clock = ManualClock()
    runtime = StoreRuntime(MemoryStoreBackend(clock=clock))
    before = runtime.now()
    clock.advance(7)
    assert runtime.now() == before + 7_000_000


@pytest.mark.parametrize(
    ("backend", "kinds"), [(GroupedBackend(), ["claims", "settlements"]), (MixingBackend(), ["both"])]
)
def test_round_trips_are_counted_by_kind(backend: GroupedBackend, kinds: list[str]) -> None:
    """For a metric: how many operations share one."""
    with eo.Store(backend, sweep_every=None) as store:
        eo.once(store, scope="charge", key="order")(lambda order: None)("o-1")
        assert [kind for kind, _ in store.runtime.batch_sizes()] == kinds


class OneConnectionBackend(GroupedBackend):
    """As of a store that takes one connection for all."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = msgspec.structs.replace(self.capabilities, connections="one")


@pytest.mark.parametrize(
    ("backend", "kinds"), [(GroupedBackend(), ["claims", "settlements"]), (OneConnectionBackend(), ["both"])]
)
async def test_an_event_loop_sends_claims_and_settlements_apart_where_the_store_takes_them_so(
    backend: GroupedBackend, kinds: list[str]
) -> None:
    async with eo.Store(backend, sweep_every=None) as store:

        @eo.once(store, scope="charge", key="order")
        async def charge(order: str) -> None: ...

        await charge("o-1")
        assert [kind for kind, _ in store.runtime.batch_sizes()] == kinds


@pytest.mark.parametrize("outcome", ["the store is away", "the loop ends"])
async def test_a_release_that_nobody_waits_for_fails_without_a_word(
    outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease ends by itself. asyncio would log that the error was never retrieved."""
    loop = asyncio.get_running_loop()
    replies: list[asyncio.Future[Any]] = []

    class Group:
        def submit(self, op: object) -> asyncio.Future[Any]:
            replies.append(loop.create_future())
            return replies[-1]

    LoopClient(ClaimAndSettlement(Group(), Group()), loop).release(  # type: ignore[arg-type]
        Claim("charge", "p1", b"owner", lease_us=1, retention_us=1), Answer("claimed")
    )
    if outcome == "the loop ends":
        replies.pop().cancel()
    else:
        replies.pop().set_exception(eo.StoreUnavailable("it is away"))
    await asyncio.sleep(0)
    gc.collect()
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("backend", "kinds"),
    [(GroupedBackend(), ["claims", "settlements"]), (MixingBackend(), ["both"]), (OneConnectionBackend(), ["both"])],
)
async def test_a_worker_sends_claims_and_settlements_apart_where_the_store_takes_them_so(
    backend: GroupedBackend, kinds: list[str]
) -> None:
    runtime = StoreRuntime(backend, sweep_every=None)
    batchers = runtime.open_batchers(lambda error: None)
    assert [kind for kind, _ in runtime.batch_sizes()] == kinds
    for batcher in batchers.distinct():
        await batcher.close()


@pytest.mark.parametrize("backend", [GroupedBackend(), MixingBackend()], ids=["apart", "mixed"])
async def test_round_trips_are_counted_of_the_workers_that_still_run(backend: GroupedBackend) -> None:
    runtime = StoreRuntime(backend, sweep_every=None)
    ended, running = (runtime.open_batchers(lambda error: None) for _ in range(2))
    for batcher in ended.distinct():
        await batcher.close()
    begun = runtime.open_batchers(lambda error: None)
    expected = [batcher.sizes for batchers in (running, begun) for batcher in batchers.distinct()]
    assert list(map(id, expected)) == [id(sizes) for _, sizes in runtime.batch_sizes()]
    for batcher in (*running.distinct(), *begun.distinct()):
        await batcher.close()


def test_a_thread_that_must_not_keep_an_object_calls_it_while_it_lives() -> None:
    class Object:
        def note(self, text: str) -> None:
            noted.append(text)

    noted: list[str] = []
    watched = Object()
    call = call_weakly(watched.note)
    call("alive")
    del watched
    gc.collect()
    call("gone")
    assert noted == ["alive"]


def test_closing_a_store_closes_the_connections_of_its_threads_and_of_its_operators() -> None:
    backend = GroupedBackend()
    opened: list[Any] = []
    closed: list[Any] = []
    make_port = backend.sync_port

    def sync_port() -> Any:
        port = make_port()

        async def close() -> None:
            closed.append(port)

        port.close = close  # type: ignore[method-assign]
        opened.append(port)
        return port

    backend.sync_port = sync_port  # type: ignore[method-assign]
    store = eo.Store(backend, sweep_every=None)
    eo.once(store, scope="charge", key="order")(lambda order: None)("o-1")
    before = len(opened)
    store.list()
    assert len(opened) > before, "operators have a connection of their own"
    store.close()
    until(lambda: len(closed) == len(opened))
    assert {id(port) for port in closed} == {id(port) for port in opened}


async def test_closing_a_store_closes_the_connections_of_its_event_loop() -> None:
    backend = GroupedBackend()
    opened: list[Any] = []
    closed: list[Any] = []
    make_port = backend.async_port

    def async_port() -> Any:
        port = make_port()

        async def close() -> None:
            closed.append(port)

        port.close = close  # type: ignore[method-assign]
        opened.append(port)
        return port

    backend.async_port = async_port  # type: ignore[method-assign]
    store = eo.Store(backend, sweep_every=None)

    @eo.once(store, scope="charge", key="order")
    async def charge(order: str) -> None: ...

    await charge("o-1")
    assert opened
    assert closed == []
    await store.aclose()
    assert closed == opened


def test_what_never_started_is_given_back_as_no_attempt() -> None:
    claim = Claim("charge", "o-1", b"o" * 16, lease_us=1, retention_us=7)
    settlement = release_with_refund(claim, Answer("claimed", token=3))
    assert (settlement.scope, settlement.key, settlement.owner, settlement.token) == ("charge", "o-1", b"o" * 16, 3)
    assert (settlement.state, settlement.retention_us, settlement.refund) == ("free", 7, True)
