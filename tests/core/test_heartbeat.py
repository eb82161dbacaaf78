"""The thread that keeps leases."""

from __future__ import annotations

import threading

import effectonce as eo
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
