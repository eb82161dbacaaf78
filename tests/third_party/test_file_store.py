from __future__ import annotations

from pathlib import Path

import pytest

import effectonce as eo
from effectonce.testing import ManualClock
from effectonce.testing.suites import store_suite
from effectonce.values.urls import Address

from .file_store import FileBackend


@pytest.fixture
def backend(tmp_path: Path) -> FileBackend:
    backend = FileBackend(Address(f"file://{tmp_path}/records.bin"))
    backend.clock = ManualClock()  # time passes when the suite says so; without it the suite waits
    return backend


TestContract = pytest.mark.long(store_suite())


def test_a_guard_runs_on_it(tmp_path: Path) -> None:
    ran: list[str] = []
    for _ in range(2):
        store = eo.Store(FileBackend(Address(f"file://{tmp_path}/records.bin")))
        eo.once(store, scope="mailer", key="order")(lambda order: ran.append(order))("o-1")
    assert ran == ["o-1"]
