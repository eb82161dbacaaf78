"""Stores on a clock that tests advance, intents on them, and the bank that they call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.intents.intents import Intents
from effectonce.intents.operation import Intent
from effectonce.store import Store, open_backend
from effectonce.testing import ManualClock
from effectonce.testing.fault_points import Killed

from .bank import Bank, Payment


@pytest.fixture(params=["memory", "sqlite"])
def clock_and_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[ManualClock, Store]]:
    clock = ManualClock()
    if request.param == "memory":
        backend: Any = MemoryStoreBackend(clock=clock)
    else:
        opened: Any = open_backend(f"sqlite:///{tmp_path}/shop.db")
        opened.clock, backend = clock, opened
    with Store(backend, sweep_every=None) as store:
        yield clock, store


@pytest.fixture
def clock(clock_and_store: tuple[ManualClock, Store]) -> ManualClock:
    return clock_and_store[0]


@pytest.fixture
def store(clock_and_store: tuple[ManualClock, Store]) -> Store:
    return clock_and_store[1]


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
def intents(store: Store) -> Intents:
    return Intents(store, scope="billing")


@pytest.fixture
def charge(intents: Intents, bank: Bank) -> Any:
    @intents.operation("stripe", "charge")
    def charge(intent: Intent[Payment]) -> str:
        return bank.charge(intent)

    return charge


@pytest.fixture
def mail(intents: Intents) -> Any:
    sent: list[str] = []

    @intents.operation("ses", "send", without_key="at-most-once")
    def mail(intent: Intent[str]) -> None:
        sent.append(intent.request)
        if intent.request == "lost reply":
            raise TimeoutError
        if intent.request == "killed":
            raise Killed

    mail.sent = sent  # type: ignore[attr-defined]
    return mail
