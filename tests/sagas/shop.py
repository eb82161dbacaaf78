"""An order saga over a shop that can be told to misbehave, and that counts what was done to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import effectonce as eo
from effectonce.testing.fault_points import FaultInjectingBackend, FaultInjector, Killed


class Order(msgspec.Struct):
    id: str
    amount: int = 4200


class Receipt(msgspec.Struct):
    charge: str
    amount: int


class Shop:
    """The outside: idempotent by key, as a keyed provider is. ``at[name]`` is what goes wrong before it is done,
    ``after[name]`` afterwards."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.done: dict[str, str] = {}  # by key
        self.at: dict[str, Callable[[], Any]] = {}
        self.after: dict[str, Callable[[], Any]] = {}

    def do(self, name: str, key: str | None = None) -> str:
        run = eo.current()
        self.calls.append(name)
        self.at.get(name, lambda: None)()
        self.done.setdefault(key or run.key, name)
        self.after.get(name, lambda: None)()
        return f"{name}-{len(self.done)}"

    @property
    def effects(self) -> list[str]:
        return list(self.done.values())


QUICK = eo.Retry(2, first="1ms", cap="1ms", max_crashes=9)


def order_saga(store: eo.Store, shop: Shop, *, retry: eo.Retry = QUICK, **options: Any) -> eo.Saga[Order]:
    saga = eo.Saga("order", store, input=Order, **options)

    @saga.step(retry=retry)
    def reserve(order: Order) -> str:
        return shop.do("reserve")

    @reserve.compensate(retry=retry)
    def release(order: Order, done: eo.Done) -> None:
        assert done[reserve].startswith("reserve-")
        shop.do("release")

    @saga.step(retry=retry)
    def charge(order: Order, done: eo.Done) -> Receipt:
        assert reserve in done
        return Receipt(shop.do("charge"), order.amount)

    @charge.compensate(retry=retry)
    def refund(order: Order, done: eo.Done) -> None:
        assert done[charge].amount == order.amount
        shop.do("refund")

    @saga.step(retry=retry)
    def ship(order: Order) -> None:
        shop.do("ship")

    return saga


def raising(error: BaseException, times: int = 1_000_000) -> Callable[[], None]:
    left = [times]

    def fail() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise error

    return fail


def state(saga: eo.Saga[Any], id: str = "o-1") -> str:
    record = saga.get(id)
    assert record is not None
    return record.state


def part(saga: eo.Saga[Any], step: str, id: str = "o-1") -> Any:
    record = saga.get(id)
    assert record is not None
    return next(entry for entry in saga.log(record).entries if entry.name == step)


def killed_after(step: str, store: Any, backend: FaultInjectingBackend, shop: Shop) -> None:
    """Run the saga in a process that is killed after ``step`` has happened and before that is recorded."""

    def die() -> None:
        backend.injector.killed = True
        raise Killed

    shop.after[step] = die
    with pytest.raises(Killed):
        order_saga(store, shop).run("o-1", Order("o-1"))
    shop.after.clear()
    backend.injector = FaultInjector()
    backend.clock.advance("1m")
