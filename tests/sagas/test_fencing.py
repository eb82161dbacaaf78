"""A runner that has lost its saga to another process starts no more steps, and is told that it has lost it."""

from __future__ import annotations

from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.sagas.recovery import ResumeCounts
from effectonce.testing import ManualClock

from .shop import Order, Shop, order_saga, raising

ORDER = Order("o-1")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Any:
    return eo.Store(MemoryStoreBackend(clock=clock), sweep_every=None)


def take_over(store: Any, clock: ManualClock) -> None:
    """Another process resumes what has lapsed meanwhile."""
    clock.advance("10m")
    order_saga(eo.Store(store.runtime.backend, sweep_every=None), Shop()).resume()


def test_a_runner_whose_saga_another_process_has_ended_reports_no_success(store: Any, clock: ManualClock) -> None:
    shop, events = Shop(), list[eo.Event]()
    store.add_hook(events.append)
    shop.at["ship"] = lambda: take_over(store, clock)
    with pytest.raises(eo.LeaseLost):
        order_saga(store, shop).run("o-1", ORDER)
    assert [event.kind for event in events if event.kind in ("done", "fenced")] == ["fenced"]
    record = order_saga(eo.Store(store.runtime.backend, sweep_every=None), Shop()).get("o-1")
    assert record is not None
    assert record.state == "done", "by the other one"


def test_a_runner_that_has_lost_its_lease_starts_no_further_step(store: Any, clock: ManualClock) -> None:
    """Also before the store has refused anything: its own clock says so."""
    shop = Shop()
    saga = order_saga(store, shop)
    shop.after["reserve"] = lambda: _lose_leases(store)
    with pytest.raises(eo.LeaseLost):
        saga.run("o-1", ORDER)
    assert shop.calls == ["reserve"]
    clock.advance("10m")
    other_shop = Shop()
    assert order_saga(eo.Store(store.runtime.backend, sweep_every=None), other_shop).resume() == ResumeCounts(done=1)
    assert other_shop.calls[-2:] == ["charge", "ship"], "which the next process does"


def _lose_leases(store: Any) -> None:
    """As the thread of the heartbeat does, when it hears that another process has taken over."""
    for run in list(store.runtime.leased_runs):
        run.renewal_refused = True


def test_a_result_for_a_step_that_returns_nothing_is_refused(store: Any) -> None:
    shop = Shop()
    saga = order_saga(store, shop)
    shop.at["ship"] = raising(eo.InDoubt("?"))
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    with pytest.raises(eo.ConfigurationError, match="step ship returns nothing"):
        saga.resolve("o-1", "done", result="parcel 7")
    record = saga.get("o-1")
    assert record is not None
    assert record.state == "in_doubt", "nothing was changed"
    saga.resolve("o-1", "done")
    assert saga.resume() == ResumeCounts(done=1)


def test_a_step_can_be_called_as_the_function_that_it_is(store: Any) -> None:
    saga: eo.Saga[Order] = eo.Saga("order", store, input=Order)

    @saga.step()
    def total(order: Order) -> int:
        return order.amount * 2

    assert total(Order("o-1", 21)) == 42
