"""F48, twice over: a saga whose process is killed at every commit, and whose recovery is killed at every commit too."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import effectonce as eo
from effectonce.testing.fault_points import FaultInjectingBackend, FaultInjector, Killed

from .shop import Order, Shop, order_saga, raising

ORDER = Order("o-1")


def live(store: eo.Store, backend: FaultInjectingBackend, shop: Shop, at: int | None) -> FaultInjector:
    """One process that runs or resumes the saga, killed at its store's operation with the number ``at``."""
    backend.injector = injector = FaultInjector("killed", at)
    with contextlib.suppress(Killed, eo.SagaFailed, eo.InProgress):
        order_saga(store, shop).run("o-1", ORDER)
    backend.injector = FaultInjector()
    backend.clock.advance("1m")
    return injector


@pytest.mark.parametrize("fails", ["", "charge", "ship"])
def test_f48_killed_at_any_commit_and_again_while_recovering(fails: str) -> None:
    def trial(first: int | None, second: int | None) -> tuple[FaultInjector, FaultInjector]:
        backend, shop = FaultInjectingBackend(), Shop()
        if fails:
            shop.at[fails] = raising(RuntimeError("declined"))
        store: Any = eo.Store(backend, sweep_every=None)
        one = live(store, backend, shop, first)
        two = live(store, backend, shop, second)
        live(store, backend, shop, None)
        record = store.get("saga/order", "o-1")
        forward = ["reserve", "charge", "ship"]
        expected = {"": forward, "charge": ["reserve", "release"], "ship": ["reserve", "charge", "refund", "release"]}
        assert shop.effects == expected[fails], (first, second)
        assert record.state == ("failed" if fails else "done"), (first, second)
        again = sum(shop.calls.count(name) - 1 for name in shop.effects)
        assert again <= (first is not None) + (second is not None), "a kill repeats at most what was under way"
        order = [name for at, name in enumerate(shop.calls) if name not in shop.calls[:at]]
        assert order == [*forward[: forward.index(fails) + 1 if fails else 3], *expected[fails][order_of(fails) :]]
        return one, two

    whole, _ = trial(None, None)
    assert len(whole.fault_points()) >= 6
    for first in whole.fault_points():
        _, rest = trial(first, None)
        for second in rest.fault_points():
            trial(first, second)


def order_of(fails: str) -> int:
    return {"": 3, "charge": 1, "ship": 2}[fails]


def test_f48_what_has_turned_around_never_goes_forward_again() -> None:
    """The step that failed would succeed after the crash: shipped and refunded would be both."""
    seen = set()

    def trial(at: int | None) -> FaultInjector:
        backend, shop = FaultInjectingBackend(), Shop()
        store: Any = eo.Store(backend, sweep_every=None)
        shop.at["ship"] = raising(RuntimeError("no carrier"), 2)
        injector = live(store, backend, shop, at)
        shop.at.clear()
        live(store, backend, shop, None)
        assert shop.effects in (["reserve", "charge", "ship"], ["reserve", "charge", "refund", "release"]), at
        seen.add(shop.effects[-1])
        return injector

    for at in trial(None).fault_points():
        trial(at)
    assert seen == {"ship", "release"}


def test_f20_a_step_that_ends_its_process_again_and_again_is_in_doubt() -> None:
    backend, shop = FaultInjectingBackend(), Shop()
    store: Any = eo.Store(backend, sweep_every=None)
    retry = eo.Retry(1, max_crashes=3)

    def die() -> None:
        backend.injector.killed = True
        raise Killed

    shop.at["charge"] = die
    for _ in range(3):
        with pytest.raises(Killed):
            order_saga(store, shop, retry=retry).run("o-1", ORDER)
        backend.injector = FaultInjector()
        backend.clock.advance("1m")
    saga = order_saga(store, shop, retry=retry)
    with pytest.raises(eo.InDoubt, match="step charge: 3 processes died in it"):
        saga.run("o-1", ORDER)
    assert shop.calls == ["reserve", "charge", "charge", "charge"]
    shop.at.clear()
    saga.resolve("o-1", "retry")
    assert saga.resume().done == 1


def test_f20_a_compensation_that_ends_its_process_again_and_again_is_in_doubt() -> None:
    backend, shop = FaultInjectingBackend(), Shop()
    store: Any = eo.Store(backend, sweep_every=None)
    retry = eo.Retry(1, max_crashes=3)

    def die() -> None:
        backend.injector.killed = True
        raise Killed

    shop.at.update(ship=raising(RuntimeError("no carrier")), refund=die)
    for _ in range(3):
        with pytest.raises(Killed):
            order_saga(store, shop, retry=retry).run("o-1", ORDER)
        backend.injector = FaultInjector()
        backend.clock.advance("1m")
    saga = order_saga(store, shop, retry=retry)
    with pytest.raises(eo.InDoubt, match="step charge: 3 processes died in it"):
        saga.run("o-1", ORDER)
    assert shop.calls.count("refund") == 3
    shop.at.pop("refund")
    saga.resolve("o-1", "retry")
    assert saga.resume().failed == 1
    assert shop.effects == ["reserve", "charge", "refund", "release"]


def test_an_unfinished_saga_outlives_every_retention() -> None:
    backend, shop = FaultInjectingBackend(), Shop()
    store: Any = eo.Store(backend, sweep_every=None)
    saga = order_saga(store, shop, retention="1h")
    saga.start("o-1", ORDER)
    backend.clock.advance("400d")
    store.purge()
    assert saga.resume().done == 1
    backend.clock.advance("2h")
    assert saga.get("o-1") is None
