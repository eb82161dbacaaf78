"""F76: a grant that arrives after its lease is over is claimed again before the handler runs."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest

import effectonce as eo
from effectonce.core.run_sync import run_sync
from effectonce.record import Batchable, Claim, Settlement
from effectonce.testing import ManualClock
from tests.harness.faulty_store import FaultyBackend

from .conftest import HandlerForm


class SlowReplies:
    """The replies to the first ``count`` claims take 31 seconds."""

    def __init__(self, faulty: FaultyBackend, clock: ManualClock, count: int = 1) -> None:
        self.left = count
        self._clock = clock
        faulty.after = self._delay

    def _delay(self, op: Batchable) -> None:
        if isinstance(op, Claim) and self.left:
            self.left -= 1
            self._clock.advance("31s")


@pytest.mark.parametrize("on_lapse", ["rerun", "doubt"])
@pytest.mark.parametrize("count", [1, 2])
def test_the_handler_starts_under_a_lease_that_holds(
    faulty: FaultyBackend, form: HandlerForm, clock: ManualClock, on_lapse: Any, count: int
) -> None:
    """The late grant counts as no attempt, and leaves no doubt: nothing was started under it."""
    store = eo.Store(faulty)
    seen: list[tuple[bool, int, bool]] = []

    @form.once(store, scope="charge", key="k", lease="30s", on_lapse=on_lapse)
    def charge(k: str) -> None:
        seen.append((eo.current().lease_lost, eo.current().attempt, eo.current().lapsed))

    replies = SlowReplies(faulty, clock, count)
    charge("p1")
    assert (seen, replies.left) == ([(False, 1, False)], 0)


def test_another_delivery_that_has_taken_over_is_not_repeated(
    faulty: FaultyBackend, form: HandlerForm, clock: ManualClock
) -> None:
    store = eo.Store(faulty)
    other = eo.once(store, scope=eo.GLOBAL, key="k")(lambda k: "other")
    runs: list[int] = []

    @form.once(store, scope=eo.GLOBAL, key="k", lease="30s")
    def charge(k: str) -> str:
        runs.append(1)
        return "late"

    def take_over(op: Batchable) -> None:
        if isinstance(op, Claim):
            faulty.after = lambda op: None
            clock.advance("31s")
            contextvars.Context().run(other, "p1")

    faulty.after = take_over
    assert (charge("p1"), runs) == ("other", [])


@pytest.mark.parametrize("on_lapse", ["rerun", "doubt"])
def test_a_late_grant_whose_release_fails_is_released_by_the_heartbeat(
    faulty: FaultyBackend, form: HandlerForm, clock: ManualClock, on_lapse: Any
) -> None:
    """Else the next delivery would find a lapsed lease: a crash that never was, or a doubt about nothing."""
    store = eo.Store(faulty)
    charge = form.once(store, scope="charge", key="k", lease="30s", on_lapse=on_lapse)(lambda k: None)
    SlowReplies(faulty, clock)
    faulty.before = lambda op: eo.StoreUnavailable("gone") if isinstance(op, Settlement) else None
    with pytest.raises(eo.StoreUnavailable, match="gone"):
        charge("p1")
    faulty.before = lambda op: None
    store.runtime.heartbeat._unanswered.release(faulty.sync_port())
    record = store.get("charge", "p1")
    assert record is not None
    assert (record.state, record.attempts) == ("free", 0)


def test_a_lapse_before_the_late_grant_is_not_forgotten(
    faulty: FaultyBackend, form: HandlerForm, clock: ManualClock
) -> None:
    store = eo.Store(faulty)
    lapsed: list[bool] = []

    @form.once(store, scope="charge", key="k", lease="30s")
    def charge(k: str) -> None:
        lapsed.append(eo.current().lapsed)
        if len(lapsed) == 1:
            faulty.before = lambda op: eo.StoreUnavailable("gone")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        charge("p1")
    faulty.before = lambda op: None
    clock.advance("31s")
    SlowReplies(faulty, clock)
    charge("p1")
    assert lapsed == [False, True]


@pytest.mark.parametrize("on_store_error", ["raise", "run"])
def test_a_store_that_takes_longer_than_the_lease_lets_nothing_start(
    faulty: FaultyBackend, form: HandlerForm, clock: ManualClock, on_store_error: Any
) -> None:
    """Not with ``on_store_error="run"`` either: another delivery may have taken over."""
    store = eo.Store(faulty)
    runs: list[int] = []
    charge = form.once(store, scope="charge", key="k", lease="30s", on_store_error=on_store_error)(
        lambda k: runs.append(1)
    )
    SlowReplies(faulty, clock, 100)
    with pytest.raises(eo.StoreUnavailable, match="make lease= longer"):
        charge("p1")
    record = store.get("charge", "p1")
    assert record is not None
    assert (record.state, record.attempts, runs) == ("free", 0, [])


def test_a_delivery_that_has_waited_longer_than_its_lease_keeps_its_grant(
    faulty: FaultyBackend, form: HandlerForm, clock: ManualClock
) -> None:
    """Its lease began with the claim that was granted, and not with the first one that it has sent."""
    store = eo.Store(faulty)
    runs: list[bool] = []
    releases: list[Settlement] = []

    @form.once(store, scope="charge", key="k", lease="20s", wait="5m")
    def charge(k: str) -> None:
        runs.append(eo.current().lease_lost)

    claim = Claim("charge", "p1", bytes(16), 50_000_000, 3_600_000_000)  # of a process that dies with it
    run_sync(faulty.sync_port().run([claim]))

    def watch(op: Batchable) -> None:
        if isinstance(op, Claim):
            clock.advance("12s")
        if isinstance(op, Settlement) and op.refund:
            releases.append(op)

    faulty.before = watch
    charge("p1")
    assert (runs, releases) == ([False], [])
