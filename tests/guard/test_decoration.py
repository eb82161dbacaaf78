"""What may be guarded, under which scope, and what a mistake is told."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import effectonce as eo
from effectonce.testing import override

if TYPE_CHECKING:
    from decimal import Decimal


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
    assert re.search(r"shop\.py:3: UserWarning: .*pass scope=", script.stderr), "the line of the decorator"
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


class Generates:
    def __call__(self, k: str) -> Iterator[int]:
        yield 1


def test_lazy_results_are_refused(store: eo.Store) -> None:
    with pytest.raises(eo.ConfigurationError, match="generator"):
        eo.once(store, scope="s", key="k")(Generates())
    handler = eo.once(store, scope="s", key="k")(lambda k: (n for n in range(3)))
    with pytest.raises(eo.SyncAsyncMismatch, match="nothing had happened"):
        handler("k")
    assert store.get("s", "k").state == "free"  # type: ignore[union-attr]


def test_a_bound_method_on_another_class_stays_bound(store: eo.Store) -> None:
    class Service:
        @eo.once(store, scope="service", key="k")
        def charge(self, k: str) -> str:
            return type(self).__name__

    class Worker:
        handler = Service().charge

    assert Worker().handler("k") == "Service"


def test_parameters_may_be_annotated_for_type_checkers_only(store: eo.Store) -> None:
    @eo.once(store, scope="s", key="k")
    def charge(k: str, amount: Decimal) -> int:
        return 1

    assert charge("k", None) == 1  # type: ignore[arg-type]

    def unknown(k: str) -> Decimal: ...

    with pytest.raises(eo.ConfigurationError, match="returns="):
        eo.once(store, scope="s2", key="k")(unknown)("k")


def test_two_closures_under_one_explicit_scope_are_refused(store: eo.Store) -> None:
    def make(name: str) -> Any:
        @eo.once(store, scope="notify", key="k")
        def send(k: str) -> str:
            return name

        return send

    mail = make("mail")
    with pytest.raises(eo.ScopeTaken):
        make("sms")
    assert mail("k") == "mail"


class SMSMessage:
    pass


def test_a_class_with_a_name_like_message_is_not_a_message(store: eo.Store) -> None:
    def handle(message: SMSMessage) -> None: ...

    with pytest.raises(eo.ConfigurationError, match="key="):
        eo.once(store, scope="s")(handle)


async def test_a_blocking_wait_in_a_loop_is_refused_at_every_call(store: eo.Store) -> None:
    charge = eo.once(store, scope="s", key="k", wait="1s")(lambda k: k)
    with pytest.raises(eo.SyncAsyncMismatch, match="event loop"):
        charge("k")


@pytest.mark.parametrize("option", [{"lease": "1us"}, {"max_attempts": 2.5}])
def test_settings_that_cannot_work_are_refused(store: eo.Store, option: dict[str, Any]) -> None:
    with pytest.raises(eo.ConfigurationError):
        eo.once(store, scope="s", key="k", **option)


def test_a_secret_is_text_or_bytes() -> None:
    with pytest.raises(eo.InvalidOption, match="str or bytes"):
        eo.connect("memory://", private=32)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:c4n4ry#x@h/db",
        "redis://u:12#c4n4ry@h",
        "redis://app:c4n4ry/x@db",
        "mysql://app:c4n4ry?x@db/y",
        "redis://app:1234/5c4n4ry@db",
        "postgresql://u:c4n4ry℀@h/db",
        "sqlite:////tmp/my#file.db",
    ],
)
def test_f66_a_password_that_was_not_encoded_is_not_printed(url: str) -> None:
    with pytest.raises(eo.InvalidOption, match="percent-encode") as caught:
        eo.connect(url)
    assert "c4n4ry" not in str(caught.value)
    assert caught.value.__context__ is None or "c4n4ry" not in str(caught.value.__context__)


def test_a_method_takes_its_key_from_the_message_behind_its_self(store: eo.Store) -> None:
    handled: list[str] = []

    class Billing:
        @eo.once(store, scope="billing")
        def handle(self, message: eo.Message[Any], note: str = "") -> None:
            handled.append(message.id)

    message = eo.Message(data={"amount": 7}, id="m1")
    for _ in range(2):
        Billing().handle(message)
    assert handled == ["m1"]
    with pytest.raises(eo.ConfigurationError, match="takes no argument that could carry a key"):

        class Empty:
            @eo.once(store, scope="empty")
            def handle(self) -> None: ...
