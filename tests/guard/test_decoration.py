"""What may be guarded, under which scope, and what a mistake is told."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import inspect
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.testing import override


def handler(payment_id: str) -> str:
    return payment_id


def test_the_default_scope_is_module_and_qualname(store: eo.Store) -> None:
    assert eo.once(store, key="payment_id")(handler).scope == f"{__name__}:handler"


def test_two_functions_under_one_scope_are_refused(store: eo.Store) -> None:
    first = eo.once(store, scope="charge", key="k")(lambda k: None)
    with pytest.raises(eo.ScopeTaken, match="never run"):
        eo.once(store, scope="charge", key="payment_id")(handler)
    other_store = eo.connect("memory://")
    eo.once(other_store, scope="charge", key="payment_id")(handler)
    assert first.scope == "charge"


def test_decorating_one_function_again_is_fine(store: eo.Store) -> None:
    for _ in range(2):
        eo.once(store, key="payment_id")(handler)


def test_a_local_function_decorated_twice_needs_a_scope(store: eo.Store) -> None:
    def make(**options: Any) -> Any:
        @eo.once(store, key="k", **options)
        def local(k: str) -> None: ...

        return local

    kept = make()
    with pytest.raises(eo.ScopeTaken):
        make()
    assert kept is not None
    tenants = [make(scope=f"tenant-{n}") for n in range(2)]
    assert [t.scope for t in tenants] == ["tenant-0", "tenant-1"]


def test_a_scope_is_free_again_when_its_function_is_gone(store: eo.Store) -> None:
    eo.once(store, scope="charge", key="k")(lambda k: None)
    gc.collect()
    eo.once(store, scope="charge", key="payment_id")(handler)


@pytest.mark.parametrize("nameless", [lambda k: None, functools.partial(handler)], ids=["lambda", "partial"])
def test_what_has_no_name_of_its_own_needs_a_scope(store: eo.Store, nameless: Any) -> None:
    with pytest.raises(eo.ConfigurationError, match="scope="):
        eo.once(store, key="k" if nameless.__class__ is not functools.partial else "payment_id")(nameless)


def test_a_script_is_warned_and_a_module_run_with_m_has_its_real_name(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        textwrap.dedent(
            """
            import effectonce as eo
            @eo.once(eo.connect("memory://"), key="k")
            def charge(k: str) -> None: ...
            print(charge.scope)
            """
        )
    )
    run = functools.partial(
        subprocess.run, cwd=tmp_path, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": "."}
    )
    script = run([sys.executable, "shop.py"])
    assert script.stdout == "__main__:charge\n"
    assert "pass scope=" in script.stderr
    module = run([sys.executable, "-m", "shop"])
    assert (module.stdout, module.stderr) == ("shop:charge\n", "")


@pytest.mark.parametrize("scope", ["", "a\0b", "x" * 300, 7])
def test_a_bad_scope_is_refused(store: eo.Store, scope: Any) -> None:
    with pytest.raises(eo.ConfigurationError, match="scope="):
        eo.once(store, scope=scope, key="k")


class Shop:
    def __init__(self) -> None:
        self.charges: list[str] = []

    @eo.once(eo.connect("memory://"), key="payment_id")
    def charge(self, payment_id: str) -> str:
        self.charges.append(payment_id)
        return payment_id

    @eo.once(eo.connect("memory://"), key="payment_id")
    async def acharge(self, payment_id: str) -> str:
        self.charges.append(payment_id)
        return payment_id

    @staticmethod
    @eo.once(eo.connect("memory://"), key="payment_id")
    def static(payment_id: str) -> str:
        return payment_id


def test_methods_are_guarded_without_their_self() -> None:
    shop = Shop()
    assert [shop.charge("p1"), shop.charge("p1"), shop.charge.call("p1").replayed] == ["p1", "p1", True]
    assert asyncio.run(shop.acharge("p2")) == "p2"
    assert shop.charges == ["p1", "p2"]
    assert Shop.static("p3") == "p3"
    assert Shop.charge(shop, "p1") == "p1"
    assert inspect.iscoroutinefunction(shop.acharge)
    assert list(inspect.signature(shop.charge).parameters) == ["payment_id"]


class Branch(Shop):
    pass


def test_an_inherited_method_needs_a_scope() -> None:
    with pytest.raises(eo.ConfigurationError, match="inherited"):
        Branch().charge("p1")


def test_class_methods_generators_and_classes_are_refused(store: eo.Store) -> None:
    once = eo.once(store, scope="s", key="k")

    def generator(k: str) -> Iterator[int]:
        yield 1

    async def async_generator(k: str) -> AsyncIterator[int]:
        yield 1

    for bad, why in (
        (generator, "generator"),
        (async_generator, "generator"),
        (classmethod(lambda cls, k: None), "class method"),
        (staticmethod(lambda k: None), "above @once"),
        (Shop, "not Shop"),
        (7, "functions and methods"),
    ):
        with pytest.raises(eo.ConfigurationError, match=why):
            once(bad)  # type: ignore[arg-type]
    with pytest.raises(eo.ConfigurationError, match="class method"):

        class Till:
            @classmethod
            @once
            def charge(cls, k: str) -> None: ...


def test_a_handler_without_key_and_message_is_refused_at_decoration(store: eo.Store) -> None:
    with pytest.raises(eo.ConfigurationError, match="key='payment_id'"):
        eo.once(store)(handler)
    with pytest.raises(eo.ConfigurationError, match="no argument"):
        eo.once(store, scope="s")(lambda: None)
    with pytest.raises(eo.ConfigurationError, match="payment_id"):
        eo.once(store, key="paymentid")(handler)


@pytest.mark.parametrize(
    "option",
    [
        {"lease": "soon"},
        {"lease": 0},
        {"retention": -1},
        {"wait": "5 parsecs"},
        {"max_attempts": 0},
        {"mode": "exactly-once"},
        {"on_error": "ignore"},
        {"on_lapse": "hope"},
        {"on_store_error": "shrug"},
        {"on_missing_key": "guess"},
        {"permanent": ValueError},
    ],
    ids=str,
)
def test_a_bad_option_is_refused_at_decoration(store: eo.Store, option: dict[str, Any]) -> None:
    with pytest.raises(eo.ConfigurationError):
        eo.once(store, key="payment_id", **option)


def test_house_defaults_are_a_partial(store: eo.Store) -> None:
    money = functools.partial(eo.once, store, retention="30d")

    @money(scope="charge", key="k")
    def charge(k: str) -> None: ...

    charge("p1")
    record = store.get("charge", "p1")
    assert record is not None
    assert record.expires_at is not None
    assert record.expires_at - record.changed_at == 30 * 86_400 * 1_000_000


def test_override_swaps_the_store_of_every_guard_for_a_while(store: eo.Store) -> None:
    runs: list[str] = []
    charge = eo.once(store, scope="charge", key="k")(lambda k: runs.append(k))
    with eo.connect("memory://") as other:
        with override(store, other):
            charge("p1")
            charge("p1")
            assert store.get("charge", "p1") is not None
        assert store.get("charge", "p1") is None
        charge("p1")
    assert runs == ["p1", "p1"]


class Unawaited:
    async def __call__(self, k: str) -> int:
        return 1


async def test_a_callable_object_with_an_async_call_is_async(store: eo.Store) -> None:
    guarded = eo.once(store, scope="s", key="k")(Unawaited())
    assert await guarded("k") == 1
    assert (await guarded.call("k")).replayed


# -- as an object among others


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
    assert (guarded.policy.lease, guarded.policy.max_attempts) == (7_000_000, 3)
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

    with pytest.raises(eo.ConfigurationError, match="does not tell its parameters"):
        eo.once(store, scope="s", key="k")(Silent())


def test_scopes_have_a_length(store: eo.Store) -> None:
    assert eo.once(store, scope="x" * 255, key="payment_id")(handler).scope == "x" * 255
    with pytest.raises(eo.ConfigurationError, match="1 to 255 bytes"):
        eo.once(store, scope="x" * 254 + "ü", key="payment_id")


def test_a_lease_that_could_not_be_renewed_is_refused(store: eo.Store) -> None:
    assert eo.once(store, scope="s", key="payment_id", lease="10ms")(handler).policy.lease == 10_000
    with pytest.raises(eo.ConfigurationError, match="too short to be renewed"):
        eo.once(store, scope="s", key="payment_id", lease="9ms")
