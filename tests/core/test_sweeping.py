"""What a store deletes by itself, and that its hooks are told: also when it cannot (F37)."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryPort, MemoryStoreBackend
from effectonce.core.heartbeat import Heartbeat
from effectonce.record import SweepResult
from tests.harness.failure_lines import failures, raised
from tests.harness.waiting import until


class FailingBackend(MemoryStoreBackend):
    """Its first sweeps fail."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = [eo.StoreUnavailable("it is away")] * 3
        self.sweeps: list[float] = []  # when

    def sync_port(self) -> MemoryPort:
        return _FailingPort(self)


class _FailingPort(MemoryPort):
    _backend: FailingBackend

    async def sweep(self, limit: int) -> SweepResult:
        self._backend.sweeps.append(time.monotonic())
        if self._backend.failures:
            raise self._backend.failures.pop()
        return await super().sweep(limit)


def test_what_has_expired_is_deleted_in_the_background_and_hooks_are_told() -> None:
    events: list[eo.Event] = []
    with eo.Store(MemoryStoreBackend(), hooks=[events.append], sweep_every="20ms") as store:
        eo.once(store, scope="charge", key="order", lease="1h", retention="50ms")(lambda order: None)("o-1")
        until(lambda: store.get("charge", "o-1") is None and not store.list().records)
        until(lambda: any(event.kind == "swept" and "deleted 1" in event.detail for event in events))
    assert "sweep_failed" not in {event.kind for event in events}


def test_f37_a_sweep_that_fails_is_reported_and_tried_again_when_the_next_is_due(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events, backend = list[eo.Event](), FailingBackend()
    with eo.Store(backend, hooks=[events.append], sweep_every="200ms") as store:
        eo.once(store, scope="charge", key="order", lease="1h")(lambda order: None)("o-1")
        until(lambda: any(event.kind == "swept" for event in events))
    assert [event.detail for event in events if event.kind == "sweep_failed"] == ["it is away"] * 3
    lines = [line for line in failures(caplog) if "failed and is tried again: " in line.getMessage()]
    assert [(line.levelname, str(raised(line))) for line in lines] == [("WARNING", "it is away")] * 3
    assert all(later - earlier > 0.09 for earlier, later in pairwise(backend.sweeps)), "not as fast as it can"


class OnePort:
    """A port whose sweep ends with ``outcome``."""

    def __init__(self, outcome: SweepResult | Exception) -> None:
        self._outcome = outcome
        self.limits: list[int] = []

    async def sweep(self, limit: int) -> SweepResult:
        self.limits.append(limit)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


@pytest.mark.parametrize(
    ("outcome", "counts", "more"),
    [
        (SweepResult(deleted=3, lapsed=2, more=True), (3, 2), True),
        (SweepResult(deleted=0, lapsed=0, more=False), (0, 0), False),
        (eo.StoreUnavailable("it is away"), (0, 0), False),
        (ZeroDivisionError("a defect"), (0, 0), False),
    ],
    ids=["more", "all", "away", "defect"],
)
def test_a_sweep_reports_what_it_did_and_only_one_that_succeeded_goes_on_at_once(
    outcome: SweepResult | Exception, counts: tuple[int, int], more: bool
) -> None:
    reports: list[tuple[int, int, Exception | None]] = []
    port: Any = OnePort(outcome)
    heartbeat = Heartbeat(
        set(), lambda: port, time.monotonic, lambda *facts: reports.append(facts), None, 100, manual=True
    )
    assert heartbeat.sweep(port) is more
    assert reports == [(*counts, outcome if isinstance(outcome, Exception) else None)]
    assert port.limits == [500]
