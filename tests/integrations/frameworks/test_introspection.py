"""A guarded function still looks like a function: what every framework's decorator rests on."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import typing
import weakref
from dataclasses import dataclass
from typing import Any

import pytest

import effectonce as eo

store = eo.connect("memory://")


@dataclass
class Receipt:
    payment_id: str
    amount: int


@eo.once(store, key="payment_id")
def charge(payment_id: str, amount: int = 1, *, currency: str = "EUR") -> Receipt:
    """Charge a card."""
    return Receipt(payment_id, amount)


@eo.once(store, key="payment_id")
async def acharge(payment_id: str, amount: int = 1) -> Receipt:
    return Receipt(payment_id, amount)


class Shop:
    def __init__(self) -> None:
        self.charges: list[str] = []

    def plain(self, payment_id: str, amount: int = 1) -> Receipt:
        return Receipt(payment_id, amount)

    @eo.once(store, key="payment_id")
    def charge(self, payment_id: str, amount: int = 1) -> Receipt:
        """Charge a card."""
        self.charges.append(payment_id)
        return Receipt(payment_id, amount)

    @eo.once(store, key="payment_id")
    async def acharge(self, payment_id: str, amount: int = 1) -> Receipt:
        self.charges.append(payment_id)
        return Receipt(payment_id, amount)

    @staticmethod
    @eo.once(store, key="payment_id")
    async def static(payment_id: str) -> str:
        return payment_id

    def __reduce__(self) -> Any:
        return Shop, ()


shop = Shop()

SYNC = {"function": charge, "method": shop.charge, "unbound method": Shop.charge}
ASYNC = {"function": acharge, "method": shop.acharge, "unbound method": Shop.acharge, "static method": shop.static}
over_sync = pytest.mark.parametrize("guarded", SYNC.values(), ids=SYNC.keys())
over_async = pytest.mark.parametrize("guarded", ASYNC.values(), ids=ASYNC.keys())


@over_async
@pytest.mark.parametrize("ask", [inspect.iscoroutinefunction, asyncio.iscoroutinefunction])
def test_async_def_is_a_coroutine_function(guarded: Any, ask: Any) -> None:
    assert ask(guarded)
    assert ask(functools.partial(guarded, amount=2))


@over_sync
@pytest.mark.parametrize("ask", [inspect.iscoroutinefunction, asyncio.iscoroutinefunction])
def test_def_is_none(guarded: Any, ask: Any) -> None:
    assert not ask(guarded)
    assert not ask(functools.partial(guarded, amount=2))


def test_neither_is_a_sync_wrapper_around_an_async_one() -> None:
    """Dramatiq and others run an `async def` from a `def` made with `functools.wraps`."""

    @functools.wraps(acharge)
    def run(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(acharge(*args, **kwargs))

    assert not inspect.iscoroutinefunction(run)
    assert run("wrapped") == Receipt("wrapped", 1)


def test_an_async_partial_is_a_coroutine_function() -> None:
    async def convert(rate: int, payment_id: str) -> int:
        return rate

    guarded = eo.once(store, scope="partial", key="payment_id")(functools.partial(convert, 2))
    assert inspect.iscoroutinefunction(guarded)
    assert list(inspect.signature(guarded).parameters) == ["payment_id"]
    assert asyncio.run(guarded("p1")) == 2  # type: ignore[arg-type]


def test_the_signature_is_the_functions_own() -> None:
    assert str(inspect.signature(charge, eval_str=True)) == (
        f"(payment_id: str, amount: int = 1, *, currency: str = 'EUR') -> {__name__}.Receipt"
    )
    spec = inspect.getfullargspec(charge)
    assert (spec.args, spec.defaults, spec.kwonlyargs) == (["payment_id", "amount"], (1,), ["currency"])


def test_a_methods_signature_has_no_self() -> None:
    for guarded in (shop.charge, shop.acharge):
        assert inspect.signature(guarded) == inspect.signature(shop.plain)
    assert inspect.signature(Shop.charge) == inspect.signature(Shop.plain)


def test_a_guarded_function_is_a_function_and_a_bound_one_a_method() -> None:
    assert [inspect.isfunction(each) for each in (charge, acharge, Shop.charge, shop.charge)] == [True] * 3 + [False]
    assert [inspect.ismethod(each) for each in (charge, Shop.charge, shop.charge, shop.acharge)] == [False] * 2 + [
        True,
        True,
    ]
    assert all(inspect.isroutine(each) for each in (charge, shop.charge))
    assert isinstance(charge, eo.Guarded)
    assert isinstance(shop.charge, eo.Guarded)


def test_the_names_are_the_functions_own() -> None:
    assert (charge.__name__, charge.__qualname__, charge.__module__) == ("charge", "charge", __name__)
    assert (shop.charge.__name__, shop.charge.__qualname__) == ("charge", "Shop.charge")
    assert inspect.getdoc(charge) == inspect.getdoc(shop.charge) == "Charge a card."
    assert inspect.getsourcefile(inspect.unwrap(charge)) == __file__


@pytest.mark.parametrize("guarded", [*SYNC.values(), acharge, shop.acharge])
def test_type_hints_are_resolved_where_the_function_was_written(guarded: Any) -> None:
    """Annotations are strings in this module: they mean something only beside its globals."""
    hints = typing.get_type_hints(guarded)
    assert (hints["payment_id"], hints["amount"], hints["return"]) == (str, int, Receipt)


def test_a_methods_func_and_self_are_guarded_too() -> None:
    """A caller who takes a bound method apart and calls the halves must not get around the guard."""
    till = Shop()
    bound = till.charge
    for _ in range(2):
        bound.__func__(bound.__self__, "taken apart")  # type: ignore[attr-defined]
    assert till.charges == ["taken apart"]


def test_a_wrapper_on_top_keeps_guard_signature_and_names() -> None:
    till = Shop()
    for guarded in (till.charge, functools.partial(till.charge, amount=3)):

        @functools.wraps(guarded)
        def logged(*args: Any, _guarded: Any = guarded, **kwargs: Any) -> Any:
            return _guarded(*args, **kwargs)

        assert list(inspect.signature(logged).parameters) == ["payment_id", "amount"]
        logged("wrapped method")
    assert till.charges == ["wrapped method"]
    assert functools.partial(charge, amount=3)("three") == Receipt("three", 3)


def test_a_module_level_function_pickles_by_name() -> None:
    for guarded in (charge, acharge):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(guarded, protocol)) is guarded


def test_a_bound_method_pickles_with_its_object() -> None:
    there = pickle.loads(pickle.dumps(Shop().charge))
    assert there("pickled") == Receipt("pickled", 1)
    assert there.__self__.charges == ["pickled"]


def test_a_copy_of_a_function_is_the_function() -> None:
    assert copy.copy(charge) is charge
    assert copy.deepcopy({"handler": charge})["handler"] is charge
    assert copy.copy(shop.charge) == shop.charge


def test_bound_methods_are_equal_as_plain_ones_are() -> None:
    assert shop.charge == shop.charge
    assert hash(shop.charge) == hash(shop.charge)
    assert shop.charge in {shop.charge: "registered"}
    assert len({charge, acharge, Shop.charge, shop.charge, Shop().charge, shop.acharge}) == 6
    assert charge != "charge"


def test_weak_references_to_it_hold_as_long_as_it_does() -> None:
    @eo.once(store, scope="weak", key="k")
    def local(k: str) -> None: ...

    reference = weakref.ref(local)
    assert reference() is local
    assert local in weakref.WeakSet([local])
    del local
    assert reference() is None
