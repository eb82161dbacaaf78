"""A guarded function as an object among others: what it looks like, equals, and is copied as."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

import effectonce as eo
from effectonce.store import DEFAULT_RETENTION
from effectonce.values.durations import micros


def handler(payment_id: str) -> str:
    return payment_id


class Shop:
    def __init__(self) -> None:
        self.charges: list[str] = []

    @eo.once(eo.connect("memory://"), key="payment_id")
    def charge(self, payment_id: str) -> str:
        self.charges.append(payment_id)
        return payment_id

    @eo.once(eo.connect("memory://"), key="payment_id")
    async def acharge(self, payment_id: str) -> str:
        return payment_id

    @staticmethod
    @eo.once(eo.connect("memory://"), key="payment_id")
    def static(payment_id: str) -> str:
        return payment_id


class Counted:
    def __init__(self) -> None:
        self.seen: list[str] = []

    @eo.once(eo.connect("memory://"), scope="counted", key="order.id")
    def charge(self, order: Any, amount: int = 1, *, currency: str = "EUR") -> int:
        """Charges."""
        self.seen.append(order)
        return amount


def test_a_bound_method_has_the_parameters_that_are_left() -> None:
    counted = Counted()
    parameters = inspect.signature(counted.charge).parameters
    assert list(parameters) == ["order", "amount", "currency"]
    assert (parameters["amount"].default, parameters["currency"].kind) == (1, inspect.Parameter.KEYWORD_ONLY)
    assert list(inspect.signature(Counted.charge).parameters) == ["self", "order", "amount", "currency"]
    assert (counted.charge.__self__, counted.charge.__doc__) == (counted, "Charges.")  # type: ignore[attr-defined]
    assert counted.charge.__func__ is Counted.__dict__["charge"]  # type: ignore[attr-defined]


def test_bound_methods_are_equal_as_those_of_python_are() -> None:
    one, other = Counted(), Counted()
    assert one.charge == one.charge
    assert hash(one.charge) == hash(one.charge)
    assert one.charge != other.charge
    assert one.charge != Counted.charge
    assert one.charge != "charge"
    assert len({one.charge, one.charge, other.charge, Counted.charge}) == 3


def test_a_bound_method_is_not_bound_again(store: eo.Store) -> None:
    counted = Counted()

    class Other:
        charge = counted.charge

    assert Other().charge == counted.charge


def test_a_guarded_function_tells_its_store_scope_and_policy(store: eo.Store) -> None:
    guarded = eo.once(store, scope="charge", key="payment_id", lease="7s", max_attempts=3)(handler)
    assert (guarded.store, guarded.scope) == (store, "charge")
    assert (guarded.policy.lease_us, guarded.policy.max_attempts) == (7_000_000, 3)
    assert "handler" in repr(guarded)


def test_a_guarded_function_is_copied_and_pickled_by_its_name() -> None:
    shop = Shop()
    for guarded in (Shop.charge, Shop.static):
        assert pickle.loads(pickle.dumps(guarded)) is guarded
        assert copy.copy(guarded) is guarded
    bound = copy.deepcopy(shop.charge)
    assert bound("p9") == "p9"
    assert shop.charges == [], "it is the method of a copy"


def test_what_a_guarded_function_looks_like() -> None:
    assert inspect.isfunction(Shop.charge)
    assert inspect.ismethod(Shop().charge)
    assert inspect.iscoroutinefunction(Shop.acharge)
    assert not inspect.iscoroutinefunction(Shop.charge)
    assert inspect.unwrap(Shop.charge).__qualname__ == "Shop.charge"


def test_an_object_looks_like_no_function(store: eo.Store) -> None:
    class Charge:
        def __call__(self, payment_id: str) -> str:
            return payment_id

    class Acharge:
        async def __call__(self, payment_id: str) -> str:
            return payment_id

    charge = eo.once(store, scope="object", key="payment_id")(Charge())
    assert not inspect.isfunction(charge)
    assert (charge("p1"), charge.call("p1").replayed) == ("p1", True)
    acharge = eo.once(store, scope="async object", key="payment_id")(Acharge())
    assert inspect.iscoroutinefunction(acharge)


def test_what_does_not_tell_its_parameters_is_refused(store: eo.Store) -> None:
    class Silent:
        __signature__ = "none"

        def __call__(self, k: str) -> None: ...

    with pytest.raises(eo.ConfigurationError, match=r"the parameters of .* are unknown"):
        eo.once(store, scope="s", key="k")(Silent())


def test_scopes_have_a_length(store: eo.Store) -> None:
    assert eo.once(store, scope="x" * 255, key="payment_id")(handler).scope == "x" * 255
    with pytest.raises(eo.ConfigurationError, match="1 to 255 bytes"):
        eo.once(store, scope="x" * 254 + "ü", key="payment_id")


def test_a_lease_that_could_not_be_renewed_is_refused(store: eo.Store) -> None:
    assert eo.once(store, scope="s", key="payment_id", lease="10ms")(handler).policy.lease_us == 10_000
    with pytest.raises(eo.ConfigurationError, match="too short to be renewed"):
        eo.once(store, scope="s", key="payment_id", lease="9ms")


@pytest.mark.parametrize("tool", ["once", "block"])
def test_what_is_not_said_has_the_documented_defaults(store: eo.Store, tool: str) -> None:
    if tool == "once":
        policy = eo.once(store, scope="charge", key="payment_id")(handler).policy
    else:
        with eo.block(store, scope="charge", key="p1") as entered:
            assert entered.first
            policy = entered.run.policy
    assert (policy.lease_us, policy.max_run_s, policy.wait_s) == (30_000_000, 3600.0, None)
    assert policy.retention_us == micros(DEFAULT_RETENTION)
    assert (policy.max_attempts, policy.permanent) == (0, ())
    assert (policy.seen_set, policy.doubt_on_error, policy.doubt_on_lapse) == (False, False, False)
    assert not policy.run_on_store_error
