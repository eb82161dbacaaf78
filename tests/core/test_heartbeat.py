"""The thread that keeps leases."""

from __future__ import annotations

import threading

import effectonce as eo
from tests.core.grouped import GroupedBackend
from tests.harness.waiting import until


def test_a_lease_of_an_hour_starts_the_thread_too() -> None:
    """It renews, and it sweeps: a store with long leases only would otherwise do neither."""
    before = {thread for thread in threading.enumerate() if thread.name == "effectonce-heartbeat"}
    with eo.Store(GroupedBackend()) as store:
        guarded = eo.once(store, scope="s", key="order", lease="2h")(lambda order: None)
        guarded("o-1")
        until(lambda: {t for t in threading.enumerate() if t.name == "effectonce-heartbeat"} - before)
