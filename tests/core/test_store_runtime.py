"""What a store knows by itself, without asking its server, and what it says of itself."""

from __future__ import annotations

import time

import msgspec
import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core.store_runtime import StoreRuntime
from effectonce.testing import ManualClock
from tests.core.grouped import GroupedBackend


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
