"""Fingerprints: equal payloads hash alike everywhere and for ever, other payloads do not (F21, F22)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import hashlib
import ipaddress
import json
import math
import random
import subprocess
import sys
import types
from collections import deque
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effectonce.errors import InvalidKey
from effectonce.values.fingerprint import (
    FINGERPRINT_SIZE,
    _normalized_json,
    canonical_json,
    fingerprint,
    fingerprints,
    split_fingerprints,
)


class Status(enum.Enum):
    PAID = "paid"


# A release that changes one of these makes honest retries of older records look like other payloads:
# that is a new version of the algorithm, not a new vector.
GOLDEN: list[tuple[str, Any, bytes, str]] = [
    (
        "names in order",
        {"b": 1, "a": 2, "B": 3},
        b'{"B":3,"a":2,"b":1}',
        "01dc90221191d2b22a8989ea4861ef4e166dbadb94b59c1275c1a5bf361475ce17",
    ),
    (
        "names by UTF-8, not UTF-16",
        {"\U00010000": 1, "\uffff": 2},
        b'{"\xef\xbf\xbf":2,"\xf0\x90\x80\x80":1}',
        "010056eda596b63aaf104150e181dfd804c88761f267ce050f6bc04bf05d947511",
    ),
    ("integral float", 1.0, b"1", "016b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"),
    ("negative zero", -0.0, b"0", "015feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9"),
    (
        "floats",
        [0.1, 1e-7, 5e-324, 1e16, 1e22, -2.5],
        b"[0.1,1e-07,5e-324,10000000000000000,10000000000000000000000,-2.5]",
        "012dbbeae4f517e7b54542e1acc6d94fb956cc15dacd08ec54583f754989d3c052",
    ),
    (
        "big integers",
        [2**53 + 1, 2**64, -(2**70)],
        b"[9007199254740993,18446744073709551616,-1180591620717411303424]",
        "01cde35a502388e33bef1ddeebccb9da109801488e47178d8ac6033d5b9e99af57",
    ),
    (
        "composed é",
        "\u00e9",
        b'"\xc3\xa9"',
        "01f2886017e9c7abacf804b54d64787dce2b611c9544ba21f3affdd126a6e50086",
    ),
    (
        "decomposed é",
        "e\u0301",
        b'"e\xcc\x81"',
        "013d68ce21f2899a475713cdbe7562ba9bdb6b1dfde8af1f221bdff4a0935b53b2",
    ),
    (
        "escapes",
        '"\\\n\x1b\x7f\u2028</',
        b'"\\"\\\\\\n\\u001b\x7f\xe2\x80\xa8</"',
        "01894cd1a2d811d5f157128f3a158f7bc5c9d1f27abb43d069565ef77c6b54c364",
    ),
    (
        "nested",
        {"z": [{"b": None, "a": True}, []], "a": {"d": 1.0, "c": [1, 2.5]}},
        b'{"a":{"c":[1,2.5],"d":1},"z":[{"a":true,"b":null},[]]}',
        "012c408f061ecb85faac31a28c19846fa9b4e05ab51151c3bae1bbc1acb70721aa",
    ),
    (
        "moments",
        [
            dt.datetime(2024, 1, 15, 10, tzinfo=dt.UTC),
            dt.datetime(2024, 1, 15, 12, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            dt.datetime(2024, 1, 15, 10, 0, 0, 5),
            dt.date(2024, 1, 15),
        ],
        b'["2024-01-15T10:00:00Z","2024-01-15T12:00:00+02:00","2024-01-15T10:00:00.000005","2024-01-15"]',
        "01ae6477e090c7fe6b23e1d56aa9de0b6927f951253b60b6183f2108d09a98b243",
    ),
    (
        "decimals as written",
        [Decimal("1.10"), Decimal("1.1")],
        b'["1.10","1.1"]',
        "01a7c8a56cf26604dda9c89584333a8392eb00665fea6be6b5a47f879098a431d5",
    ),
    (
        "uuid, enum, bytes, set",
        [UUID(int=5), Status.PAID, b"ab\xff", {3, 1, 2}],
        b'["00000000-0000-0000-0000-000000000005","paid","YWL/",[1,2,3]]',
        "016a3da9ba486332246adb7f8cbff777e4476075b617350e2d1e4e45803a0df616",
    ),
]


@pytest.mark.parametrize(("value", "text", "mark"), [case[1:] for case in GOLDEN], ids=[case[0] for case in GOLDEN])
def test_f22_golden_vectors_never_change(value: Any, text: bytes, mark: str) -> None:
    assert canonical_json(value) == text
    assert fingerprint(value).hex() == mark


def test_f22_raw_bytes_are_hashed_as_they_stand_and_apart_from_json() -> None:
    assert fingerprint(b"{}").hex() == "0104f013847a6d761b2a45a2bdaa3aa7b3ced77038e7a34b0fc076c69fdfbb4a78"
    assert fingerprint(b"{}") == fingerprint(bytearray(b"{}")) == fingerprint(memoryview(b"{}"))
    assert len({fingerprint(b"{}"), fingerprint({}), fingerprint("{}"), fingerprint("e30=")}) == 4


def test_a_fingerprint_is_its_version_and_the_sha256_of_the_canonical_payload() -> None:
    value = {"amount": 4200}
    assert fingerprint(value) == b"\x01" + hashlib.sha256(b'{"amount":4200}').digest()
    assert len(fingerprint(value)) == FINGERPRINT_SIZE


def test_the_first_of_all_versions_is_the_one_that_is_stored() -> None:
    sent = fingerprints({"amount": 4200})
    assert sent[:FINGERPRINT_SIZE] == fingerprint({"amount": 4200})
    assert len(sent) % FINGERPRINT_SIZE == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
values_without_floats = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.uuids()
    | st.datetimes(timezones=st.none() | st.just(dt.UTC))
    | st.decimals()
    | st.sets(st.integers() | st.booleans())
    | st.frozensets(st.text()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=20,
)


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, list):
        return tuple(shuffled(member, rng) for member in value)
    if isinstance(value, dict):
        names = list(value)
        rng.shuffle(names)
        return {name: shuffled(value[name], rng) for name in names}
    return value


@given(json_values, st.randoms(use_true_random=False))
def test_f22_the_order_of_members_does_not_matter(value: Any, rng: random.Random) -> None:
    assert canonical_json(shuffled(value, rng)) == canonical_json(value)


@given(json_values)
def test_f22_a_trip_through_json_changes_nothing(value: Any) -> None:
    assert canonical_json(json.loads(json.dumps(value))) == canonical_json(value)
    assert canonical_json(json.loads(canonical_json(value))) == canonical_json(value)


@given(json_values, json_values)
def test_f21_other_payloads_have_other_bytes(one: Any, other: Any) -> None:
    assert (canonical_json(one) == canonical_json(other)) == (json_equal(one, other))


def json_equal(one: Any, other: Any) -> bool:
    """Python's ``==``, but for ``True == 1``."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(json_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(one[name], other[name]) for name in one)
    return bool(one == other)


@given(values_without_floats)
def test_f22_the_fast_and_the_slow_way_write_the_same_bytes(value: Any) -> None:
    assert _normalized_json(value) == canonical_json(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_f22_equal_numbers_are_written_alike_and_a_float_is_never_rounded(number: float) -> None:
    text = canonical_json([number])
    assert json.loads(text) == [number]
    if number.is_integer():
        assert text == canonical_json([int(number)])


def test_true_and_one_and_their_text_are_three_payloads() -> None:
    assert len({canonical_json(value) for value in (True, 1, "1", Decimal(1))}) == 3  # a Decimal is its text


@dataclasses.dataclass
class Order:
    id: int
    price: float


@dataclasses.dataclass
class Line:
    sku: str
    amount: int


class OrderStruct(msgspec.Struct):
    price: float
    id: int


def test_dataclasses_structs_and_mappings_of_the_same_content_are_one_payload() -> None:
    plain = canonical_json({"id": 7, "price": 2.0})
    assert plain == b'{"id":7,"price":2}'
    assert canonical_json(Order(7, 2.0)) == plain
    assert canonical_json(OrderStruct(2.0, 7)) == plain
    assert canonical_json(Line("s", 1)) == b'{"amount":1,"sku":"s"}'
    assert canonical_json(types.MappingProxyType({"price": 2, "id": 7})) == plain


def test_attrs_classes_are_objects() -> None:
    attrs = pytest.importorskip("attrs")
    order = attrs.make_class("Order", ["price", "id"])
    assert canonical_json(order(2.0, 7)) == b'{"id":7,"price":2}'


def test_pydantic_models_are_what_they_dump_as_json() -> None:
    pydantic = pytest.importorskip("pydantic")
    order = pydantic.create_model("Order", price=(float, ...), sender=(ipaddress.IPv4Address, ...))
    assert canonical_json([order(price=2, sender="10.0.0.1")]) == b'[{"price":2,"sender":"10.0.0.1"}]'


def test_f22_sets_in_pydantic_models_have_one_order() -> None:
    """It dumps them in the order of their hashes: that of their making, and of text another in each process."""
    pydantic = pytest.importorskip("pydantic")
    some = set[int]
    point = pydantic.create_model("Point", __config__={"frozen": True}, at=(frozenset[int], ...))
    fields: dict[str, Any] = {
        "plain": (some, ...),
        "aliased": (some, pydantic.Field(serialization_alias="Tags")),
        "numbered": (dict[int, some], ...),
        "points": (set[point], ...),  # type: ignore[valid-type]
        "pairs": (list[tuple[str, some]], ...),
        "at": (dataclasses.make_dataclass("At", [("tags", some)]), ...),
        "named": (pydantic.RootModel[dict[str, some]], ...),
        "none": (some | None, None),
    }
    order = pydantic.create_model("Order", __config__={"extra": "allow", "serialize_by_alias": True}, **fields)

    def made(*members: int) -> Any:
        points = [{"at": [*members, each]} for each in members]
        given = {"plain": members, "aliased": members, "numbered": {1: members}, "points": points}
        given |= {"pairs": [("p", members)], "at": {"tags": members}, "named": {"n": members}}
        return order(**given, extra=set(members))

    one, other = made(0, 8), made(8, 0)
    assert list(one.plain) != list(other.plain), "they collide, so their order is that of their making"
    assert canonical_json(one) == canonical_json(other) == canonical_json([one])[1:-1]
    assert json.loads(canonical_json(one))["points"] == [{"at": [0, 8]}]
    assert canonical_json(made(0, 8)) != canonical_json(made(0, 9))


def test_a_field_that_is_called_as_another_ones_alias_is_no_set() -> None:
    pydantic = pytest.importorskip("pydantic")
    fields: dict[str, Any] = {"a": (set[int], pydantic.Field(serialization_alias="b")), "b": (list[int], ...)}
    clash = pydantic.create_model("Clash", **fields)
    assert canonical_json(clash(a={1}, b=[5, 3])) == b'{"a":[1],"b":[5,3]}'


def test_subclasses_of_plain_types_are_the_plain_value() -> None:
    class Text(str):
        def __str__(self) -> str:
            return "something else"

    class Count(int): ...

    class Price(float): ...

    assert canonical_json([Text("a"), Count(3), Price(2.0), Price(0.5)]) == b'["a",3,2,0.5]'
    assert canonical_json([deque([1]), {"b": 1, "a": 2}.keys(), range(2)]) == b'[[1],["a","b"],[0,1]]'


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda n: n, lambda n: {"a": [n]}, lambda n: Order(1, n), lambda n: [None, 2**80, n]])
def test_f22_nan_and_infinity_are_refused_and_never_become_null(number: float, wrap: Any) -> None:
    with pytest.raises(InvalidKey, match="not a JSON number"):
        canonical_json(wrap(number))


itself: list[Any] = []
itself.append(itself)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({1: "a"}, "str keys"),
        ({"a": {None: 1}, "f": 0.5}, "str keys"),
        ("\ud800", "surrogates"),
        ({"\ud800": 1}, "surrogates"),
        (object(), "object has no canonical form"),
        ([1j], "complex has no canonical form"),
        ({1, "a"}, "not supported between"),
        (10**5000, "4300"),
        (itself, "in itself"),
    ],
    ids=[
        "int-names",
        "deep-names",
        "surrogate",
        "surrogate-name",
        "object",
        "complex",
        "mixed-set",
        "huge-int",
        "cycle",
    ],
)
def test_f22_what_has_no_faithful_form_is_refused_with_the_reason_and_a_remedy(value: Any, why: str) -> None:
    with pytest.raises(InvalidKey, match=why) as refusal:
        canonical_json(value)
    assert "fingerprint=" in str(refusal.value)


def test_f65_a_refusal_is_one_bounded_line() -> None:
    hostile = type("\x1b[2J\n" * 100, (), {})
    with pytest.raises(InvalidKey) as refusal:
        canonical_json(hostile())
    message = str(refusal.value)
    assert message.isprintable()
    assert len(message) < 1000


def test_f22_another_process_with_another_hash_seed_agrees() -> None:
    program = (
        "from effectonce.values.fingerprint import *; print(fingerprint({'s': set('cab'), 'f': [1.5, -0.0]}).hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    assert seen == {fingerprint({"f": [1.5, 0], "s": ["a", "b", "c"]}).hex()}


def test_a_model_that_writes_a_member_in_its_own_way_has_a_fingerprint() -> None:
    pydantic = pytest.importorskip("pydantic")
    place = pydantic.PlainSerializer(lambda value: {"x": value.real, "y": value.imag})
    Parcel = pydantic.create_model("Parcel", place=(Annotated[Any, place], ...), weights=(dict[Any, Any], ...))
    parcel = Parcel(place=1 + 2j, weights={1: {"a"}, "1": {"b"}})  # two names that are one in JSON
    assert fingerprint(parcel) == fingerprint({"place": {"x": 1.0, "y": 2.0}, "weights": {"1": ["b"]}})


def test_several_fingerprints_are_kept_as_one_and_split_again() -> None:
    each = [fingerprint(number) for number in range(3)]
    assert split_fingerprints(b"".join(each)) == each
    assert split_fingerprints(b"") == []
