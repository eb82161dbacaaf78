"""What a store knows by itself, without asking its server."""

from __future__ import annotations

import time

from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core.store_runtime import StoreRuntime
from effectonce.testing import ManualClock


class ServerBackend(MemoryStoreBackend):
    """As of a store with a server, whose clock this process would have to ask for."""

    def __init__(self) -> None:
        super().__init__()
        del self.clock


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
