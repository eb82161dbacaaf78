"""The thread that keeps leases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import effectonce as eo
from effectonce.core.heartbeat import Heartbeat
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
