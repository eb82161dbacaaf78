"""What a replay gives back: the value of the first run, in its own type; and what a private store shows."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic
import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.record import Batchable, Settlement
from effectonce.testing import ManualClock
from tests.harness.faulty_store import FaultyBackend

from .conftest import HandlerForm

SECRET = "0123456789abcdef-a-secret"


@dataclass
class Receipt:
    id: str
    at: datetime
    total: Decimal


class Line(msgspec.Struct):
    sku: str
    count: int


class Order(TypedDict):
    id: uuid.UUID
    lines: list[Line]


@attrs.define
class Parcel:
    weight: float


class Customer(pydantic.BaseModel):
    name: str
    born: date


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Receipt, Receipt("r1", AT, Decimal("42.10"))),
        (list[Line], [Line("a", 1), Line("b", 2)]),
        (Order, {"id": uuid.UUID(int=7), "lines": [Line("a", 1)]}),
        (Parcel, Parcel(1.5)),
        (Customer, Customer(name="Ada", born=date(1815, 12, 10))),
        (list[Customer], [Customer(name="Ada", born=date(1815, 12, 10))]),
        (Customer | None, None),
        (Colour, Colour.RED),
        (Point, Point(1, 2)),
        (bytes, b"\x00\xff"),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (timedelta, timedelta(hours=1)),
        (dict[int, str], {1: "a"}),
        (Decimal, Decimal("0.10")),
        (None, None),
        (Any, {"json": [1, 2.5, None, True, "é"]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("private", [None, SECRET], ids=["plain", "private"])
def test_a_replay_gives_the_value_in_its_own_type(type_: Any, value: Any, private: str | None) -> None:
    store = eo.connect("memory://", private=private)
    handler = eo.once(store, scope="s", key="k", returns=type_)(lambda k: value)
    assert handler("k") is value
    replay = handler.call("k")
    assert (replay.value, type(replay.value), replay.replayed) == (value, type(value), True)


def test_the_annotation_may_name_what_is_defined_later() -> None:
    store = eo.connect("memory://")

    @eo.once(store, scope="s", key="k")
    def handler(k: str) -> Later:
        return Later(3)

    handler("k")
    assert handler("k") == Later(3)


@dataclass
class Later:
    x: int


def test_a_result_of_another_type_than_annotated_is_not_stored() -> None:
    store = eo.connect("memory://")

    @eo.once(store, scope="s", key="k")
    def handler(k: str) -> int:
        return "seven"  # type: ignore[return-value]

    assert handler("k") == "seven"
    with pytest.raises(eo.ResultNotStored):
        handler("k")


def test_a_return_type_that_cannot_be_read_back_is_refused_at_decoration() -> None:
    def handler(k: str) -> Line | Parcel: ...

    with pytest.raises(eo.ConfigurationError, match="returns="):
        eo.once(eo.connect("memory://"), scope="s", key="k")(handler)


@pytest.fixture
def private(clock: ManualClock) -> tuple[eo.Store, MemoryStoreBackend]:
    backend = MemoryStoreBackend(clock=clock)
    return eo.Store(backend, private=SECRET), backend


def charge_on(store: eo.Store) -> Callable[[str], str]:
    return eo.once(store, scope="charge", key="email", fingerprint="email")(lambda email: f"receipt for {email}")


def test_f62_a_private_store_shows_neither_key_nor_result_nor_payload(private: Any) -> None:
    store, backend = private
    charge_on(store)("ada@example.com")
    stored = repr(backend.scopes)
    assert "ada" not in stored
    assert "receipt" not in stored
    (row,) = backend.scopes["charge"].values()
    assert row.fingerprint not in eo.keys.fingerprint("ada@example.com")
    assert store.get("charge", "ada@example.com") is not None


def test_f62_a_private_result_is_bound_to_its_identity(private: Any) -> None:
    """Two rows swapped in the database: neither opens."""
    store, backend = private
    charge = charge_on(store)
    charge("ada@example.com")
    charge("bob@example.com")
    one, other = backend.scopes["charge"].values()
    one.result, other.result = other.result, one.result
    for email in ("ada@example.com", "bob@example.com"):
        with pytest.raises(eo.CorruptRecord, match="private"):
            charge(email)


def test_f62_a_private_result_of_an_older_generation_does_not_open(private: Any) -> None:
    store, backend = private
    charge = charge_on(store)
    charge("ada@example.com")
    (row,) = backend.scopes["charge"].values()
    older = row.result
    store.forget("charge", "ada@example.com")
    charge("ada@example.com")
    (row,) = backend.scopes["charge"].values()
    row.result = older
    with pytest.raises(eo.CorruptRecord):
        charge("ada@example.com")


def test_f62_another_secret_opens_nothing_and_a_short_one_is_refused(clock: ManualClock) -> None:
    backend = MemoryStoreBackend(clock=clock)
    charge_on(eo.Store(backend, private=SECRET))("ada@example.com")
    runs = charge_on(eo.Store(backend, private=SECRET + "x"))
    assert runs("ada@example.com") == "receipt for ada@example.com", "another secret is another key"
    with pytest.raises(eo.InvalidOption, match="token_hex"):
        eo.connect("memory://", private="short")


def test_a_private_store_keeps_failures_and_resolutions_private_too(clock: ManualClock) -> None:
    backend = MemoryStoreBackend(clock=clock)
    store = eo.Store(backend, private=SECRET)

    @eo.once(store, scope="charge", key="k", permanent=(ValueError,), on_error="doubt")
    def charge(k: str) -> str:
        raise (ValueError if k == "declined" else TimeoutError)("card of Ada")

    for key, error in (("declined", ValueError), ("lost", TimeoutError)):
        with pytest.raises(error):
            charge(key)
    assert "Ada" not in repr(backend.scopes)
    with pytest.raises(ValueError, match="card of Ada"):
        charge("declined")
    store.resolve("charge", "lost", "done", result="rcpt of Ada")
    assert "Ada" not in repr(backend.scopes)
    assert charge("lost") == "rcpt of Ada"


def test_seen_mode_is_private_too(clock: ManualClock) -> None:
    store = eo.Store(MemoryStoreBackend(clock=clock), private=SECRET)
    seen = eo.once(store, scope="s", key="k", mode="seen")(lambda k: "kept")
    assert (seen("k"), seen("k")) == ("kept", "kept")
    store.forget("s", "k")
    assert (seen("k"), seen("k")) == ("kept", "kept")


@dataclass
class Base:
    a: int


@dataclass
class Sub(Base):
    b: int


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (dict[str, Any], {"at": datetime(2026, 1, 1, tzinfo=UTC)}),
        (dict, {1: "a"}),
        (list, [(1, 2)]),
        (float | None, float("nan")),
        (Base, Sub(1, 2)),
        (list | None, {1, 2}),
    ],
    ids=str,
)
def test_a_value_that_would_read_back_as_another_is_not_stored(store: eo.Store, type_: Any, value: Any) -> None:
    handler = eo.once(store, scope="s", key="k", returns=type_)(lambda k: value)
    assert handler("k") is value
    with pytest.raises(eo.ResultNotStored):
        handler("k")


def test_a_handler_with_returns_none_stores_none(store: eo.Store) -> None:
    handler = eo.once(store, scope="s", key="k", returns=None)(lambda k: object())
    handler("k")
    assert handler("k") is None


class Declined(Exception):
    def __init__(self, code: int) -> None:
        self.number = code  # under another name than its parameter: it cannot be made again
        super().__init__(f"card declined ({code})")


def test_an_error_that_would_come_back_changed_is_a_permanent_failure(store: eo.Store) -> None:
    @eo.once(store, scope="s", key="k", permanent=(Declined,))
    def charge(k: str) -> None:
        raise Declined(51)

    with pytest.raises(Declined):
        charge("k")
    with pytest.raises(eo.PermanentFailure, match=r"card declined \(51\)"):
        charge("k")


def test_errors_of_ours_are_never_stored_as_permanent(store: eo.Store) -> None:
    @eo.once(store, scope="s", key="k", permanent=(Exception,))
    def outer(k: str) -> None:
        raise eo.InProgress("an inner guard is busy")

    for _ in range(2):
        with pytest.raises(eo.InProgress):
            outer("k")
    assert store.get("s", "k").state == "free"  # type: ignore[union-attr]


class Opaque:
    pass


@pytest.mark.parametrize(
    "value", [Opaque(), {1: "int key"}, float("nan"), (1, 2), {"deep": [Opaque()]}, b"raw", datetime(2026, 1, 1)]
)
def test_f18_a_result_that_cannot_be_stored_is_done_all_the_same(
    store: eo.Store, form: HandlerForm, value: Any, events: list[eo.Event]
) -> None:
    runs: list[int] = []

    @form.once(store, scope="charge", key="k")
    def charge(k: str):  # type: ignore[no-untyped-def]
        runs.append(1)
        return value

    assert charge("p1") is value
    with pytest.raises(eo.ResultNotStored, match="ack"):
        charge("p1")
    assert runs == [1]
    assert "result_not_stored" in [event.kind for event in events]


@pytest.mark.parametrize(("levels", "stored"), [(101, True), (102, False)])
def test_a_result_is_stored_up_to_a_hundred_levels_inside_its_own(
    store: eo.Store, form: HandlerForm, levels: int, stored: bool
) -> None:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    charge = form.once(store, scope="charge", key="k")(lambda k: value)
    assert charge("p1") is value
    with nullcontext() if stored else pytest.raises(eo.ResultNotStored):
        assert charge("p1") == value


@pytest.mark.parametrize("value", ["x" * 200, 10**200], ids=["text", "number"])
def test_f18_a_result_over_the_cap_is_done_too(clock: ManualClock, form: HandlerForm, value: str | int) -> None:
    store = eo.Store(MemoryStoreBackend(clock=clock), max_result=100)
    charge = form.once(store, scope="charge", key="k", returns=type(value))(lambda k: value)
    assert charge("p1") == value
    with pytest.raises(eo.ResultNotStored):
        charge("p1")


def test_f18_a_result_that_the_store_refuses_is_done_all_the_same(faulty: FaultyBackend, form: HandlerForm) -> None:
    store = eo.Store(faulty)

    def too_big(op: Batchable) -> Exception | None:
        return ValueError("item too large") if isinstance(op, Settlement) and op.result else None

    faulty.before = too_big
    runs: list[int] = []
    charge = form.once(store, scope="charge", key="k")(lambda k: runs.append(1))
    charge("p1")
    with pytest.raises(eo.ResultNotStored):
        charge("p1")
    assert runs == [1]
