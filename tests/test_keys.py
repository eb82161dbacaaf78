"""Keys: what is one operation, how it is written, where in a call it is found (F23, F24, F27, F65)."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import hashlib
import inspect
import operator
import time
from collections import defaultdict
from types import MappingProxyType, SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effectonce.errors import ConfigurationError, InvalidKey, KeyTooLong, MissingKey
from effectonce.keys import (
    MAX_KEY,
    RECEIVER_CLOCK,
    broker_made,
    composite,
    content_hash,
    digest,
    encode_key,
    extractor,
    time_window,
)
from effectonce.values.fingerprint import fingerprint


class Text(str):
    def __str__(self) -> str:
        return "something else"


class Number(enum.IntEnum):
    SEVEN = 7


# How a key is written


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("pay_7f3a", "pay_7f3a"),
        ("Order:1", "Order:1"),
        ("é e\u0301", "é e\u0301"),
        (-42, "-42"),
        (2**80, "1208925819614629174706176"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (("Order", 12345, UUID(int=5)), "Order:12345:00000000-0000-0000-0000-000000000005"),
        (("a",), "a"),
        (("a:b", "c\\"), "a\\:b:c\\\\"),
        (Text("a"), "a"),
        ((Text("a"), Number.SEVEN), "a:7"),
        (Number.SEVEN, "7"),
    ],
)
def test_a_key_is_written_in_one_pinned_way(key: Any, written: str) -> None:
    assert encode_key(key) == written
    assert type(encode_key(key)) is str


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "bc"), ("ab", "c")),
        (("a:b", "c"), ("a", "b:c")),
        (("a\\", "b"), ("a\\:b",)),
        (("a", "b"), ("a:b",)),
    ],
)
def test_f23_neighbouring_tuples_are_different_keys(one: Any, other: Any) -> None:
    assert encode_key(one) != encode_key(other)


parts = st.lists(st.text(alphabet="ab:\\", min_size=1, max_size=4), min_size=1, max_size=4).map(tuple)


@given(parts, parts)
def test_f23_different_tuples_are_never_written_alike(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert (encode_key(one) == encode_key(other)) == (one == other)


@given(parts)
def test_f23_a_written_tuple_can_be_read_back(key: tuple[str, ...]) -> None:
    read, escaped = [""], False
    for character in encode_key(key):
        if escaped or character not in "\\:":
            read[-1] += character
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            read.append("")
    assert tuple(read) == key


@pytest.mark.parametrize("key", [None, "", (), ("a", None), ("a", ""), ("",), Text("")])
def test_nothing_is_not_a_key(key: Any) -> None:
    with pytest.raises(MissingKey):
        encode_key(key)


@pytest.mark.parametrize("key", [True, False, 1.5, b"a", ["a"], {"a": 1}, object(), ("a", True), ("a", ("b",))])
def test_other_types_are_refused_and_the_message_says_what_to_give(key: Any) -> None:
    with pytest.raises(InvalidKey, match="str, int, UUID or a tuple"):
        encode_key(key)


@pytest.mark.parametrize("key", ["a\0b", "\ud800", ("a", "b\0"), ("a", "\udfff")], ids=["nul", "lone", "part", "tail"])
def test_what_a_store_cannot_keep_is_refused(key: Any) -> None:
    with pytest.raises(InvalidKey, match=r"NUL|surrogates") as refusal:
        encode_key(key)
    assert not isinstance(refusal.value, KeyTooLong)


def test_f27_the_cap_counts_bytes_of_utf_8() -> None:
    assert encode_key("a" * MAX_KEY) == "a" * MAX_KEY
    assert encode_key("é" * (MAX_KEY // 2)) == "é" * (MAX_KEY // 2)
    assert encode_key(("a" * 500, "b" * 523))
    for key in (
        "a" * (MAX_KEY + 1),
        "é" * (MAX_KEY // 2 + 1),
        ("a" * 500, "b" * 524),
        (":" * 513,),
        10**1024,
    ):
        with pytest.raises(KeyTooLong, match="1,024 bytes"):
            encode_key(key)
    assert encode_key("a" * 5000, limit=5000)
    with pytest.raises(KeyTooLong):
        encode_key("abc", limit=2)


def test_f27_a_key_of_a_megabyte_is_refused_with_a_remedy_and_without_being_repeated() -> None:
    for key in ("k" * 1_000_000, 10**1_000_000):
        with pytest.raises(KeyTooLong, match="content_hash") as refusal:
            encode_key(key)
        assert len(str(refusal.value)) < 250


@pytest.mark.parametrize(
    "key", ["\r\n\x1b[31m\u202e" * 500, "\r\n\x1b[31m\0", "\x1b\n\ud800"], ids=["long", "nul", "lone"]
)
def test_f65_control_characters_of_a_refused_key_are_escaped(key: str) -> None:
    with pytest.raises(InvalidKey) as refusal:
        encode_key(key)
    assert str(refusal.value).isprintable()


def test_an_identity_is_the_sha256_of_the_length_prefixed_pair() -> None:
    hashed = b"\x00\x00\x00\x07" + b"billing" + b"\x00\x00\x00\x02" + "é".encode()
    assert digest("billing", "é") == hashlib.sha256(hashed).digest()
    assert digest("billing", "pay_7f3a").hex() == "2c1897e53e1ce619dd0f722c399a700e82eb219e76ae271720f7ef67c2d6cfa4"


def test_f23_f24_scope_and_key_never_run_into_each_other() -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", ""), ("A", "bc"), ("a", "BC"), ("a", "bc ")]
    assert len({digest(scope, key) for scope, key in pairs}) == len(pairs)


@pytest.mark.parametrize(("scope", "key"), [("\ud800", "k"), ("s", "\ud800")], ids=["scope", "key"])
def test_an_identity_needs_valid_unicode(scope: str, key: str) -> None:
    with pytest.raises(InvalidKey, match="surrogates"):
        digest(scope, key)


# Where a key is found


def charge(payment_id: str, amount: int = 0, *, tenant: str = "main") -> None: ...
def handle(order: Any) -> None: ...


class Service:
    tenant = "acme"

    def charge(self, payment_id: str) -> None: ...


def found(spec: Any, handler: Any, *args: Any, **kwargs: Any) -> Any:
    return extractor(spec, handler)(args, kwargs)


def test_a_path_names_a_parameter_however_the_call_gives_it() -> None:
    assert found("payment_id", charge, "p1", 5) == "p1"
    assert found("payment_id", charge, payment_id="p1") == "p1"
    assert found("amount", charge, "p1", 5) == 5
    assert found("amount", charge, "p1", amount=5) == 5
    assert found("amount", charge, "p1") == 0
    assert found("tenant", charge, "p1", tenant="acme") == "acme"
    assert found("tenant", charge, "p1", 5) == "main"
    assert found("payment_id", inspect.signature(charge), "p1") == "p1"


def test_a_call_without_the_argument_fails_as_the_handler_would() -> None:
    with pytest.raises(TypeError, match="payment_id"):
        found("payment_id", charge, amount=5)

    def strict(a: int, *, required: int) -> None: ...

    with pytest.raises(TypeError, match="required"):
        found("required", strict, 1, 2)


def test_positional_only_parameters_are_not_confused_with_extra_keywords() -> None:
    def handler(key: str, /, default: int = 3, *rest: int, **extra: Any) -> None: ...

    assert found("key", handler, "k", 1, key="other") == "k"
    with pytest.raises(TypeError, match="key"):
        found("key", handler, key="other")
    assert found("rest", handler, "k", 1, 2, 3) == (2, 3)
    assert found("extra.key", handler, "k", default=1, key="other") == "other"
    with pytest.raises(MissingKey, match="default"):
        found("extra.default", handler, "k", default=1)


def test_self_is_a_parameter_like_another_but_no_key() -> None:
    assert found("payment_id", Service.charge, Service(), "p1") == "p1"
    assert found("payment_id", Service().charge, "p1") == "p1"
    assert found("self.tenant", Service.charge, Service(), "p1") == "acme"
    with pytest.raises(ConfigurationError, match=r"self\.tenant"):
        extractor("self", Service.charge)


@pytest.mark.parametrize("path", ["paymentid", "order.id", "Payment_id.x", "kwargs"])
def test_a_root_that_is_no_parameter_is_refused_when_built_and_the_parameters_are_named(path: str) -> None:
    with pytest.raises(ConfigurationError, match="payment_id, amount, tenant"):
        extractor(path, charge)


def test_a_name_that_only_kwargs_might_hold_is_refused_when_built() -> None:
    def handler(event: Any, **options: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="event, options"):
        extractor("order_id", handler)


@pytest.mark.parametrize("path", ["", ".", "order.", "order..id", ".id"])
def test_an_empty_step_is_refused_when_built(path: str) -> None:
    with pytest.raises(ConfigurationError, match="empty step"):
        extractor(path, handle)


@pytest.mark.parametrize(
    "order",
    [
        {"customer": {"id": 7}},
        {"customer": SimpleNamespace(id=7)},
        SimpleNamespace(customer={"id": 7}),
        MappingProxyType({"customer": MappingProxyType({"id": 7})}),
    ],
)
def test_a_step_is_a_mappings_key_or_an_attribute(order: Any) -> None:
    assert found("order.customer.id", handle, order) == 7


def test_in_a_mapping_a_step_is_never_a_method() -> None:
    assert found("order.items", handle, {"items": "i1"}) == "i1"
    with pytest.raises(MissingKey):
        found("order.items", handle, {})


def test_a_step_may_be_an_index() -> None:
    assert found("order.Records.1.body", handle, {"Records": [{}, {"body": "b"}]}) == "b"
    with pytest.raises(MissingKey, match="'2'"):
        found("order.Records.2.body", handle, {"Records": [{}, {"body": "b"}]})


@pytest.mark.parametrize(
    ("order", "step", "kind"),
    [
        ({}, "customer", "dict"),
        ({"customer": None}, "id", "NoneType"),
        ({"customer": {}}, "id", "dict"),
        (SimpleNamespace(), "customer", "SimpleNamespace"),
    ],
)
def test_an_absent_step_says_which_step_of_which_path(order: Any, step: str, kind: str) -> None:
    with pytest.raises(MissingKey, match=rf"'order\.customer\.id'.*'{step}'.*{kind}"):
        found("order.customer.id", handle, order)


def test_looking_for_a_key_does_not_put_one_there() -> None:
    order: Any = defaultdict(lambda: "invented")
    with pytest.raises(MissingKey):
        found("order.id", handle, order)
    assert not order


def test_a_tuple_of_paths_and_callables_is_a_composite() -> None:
    assert found(("tenant", "payment_id"), charge, "p1") == ("main", "p1")
    assert found(("tenant", "payment_id", lambda amount: amount + 1), charge, "p1", 4) == ("main", "p1", 5)
    assert found(composite("tenant", "payment_id"), charge, "p1") == ("main", "p1")
    assert found(("payment_id",), charge, "p1") == ("p1",)


@pytest.mark.parametrize("spec", [(), ("tenant", ("payment_id",)), ("tenant", time_window("amount", at="amount"))])
def test_empty_and_nested_tuples_are_refused_when_built(spec: Any) -> None:
    with pytest.raises(ConfigurationError):
        extractor(spec, charge)


def test_a_callables_parameters_are_the_handlers_by_name() -> None:
    assert found(lambda amount, payment_id: (payment_id, amount), charge, "p1", 5) == ("p1", 5)
    assert found(lambda payment_id, *, tenant: f"{tenant}/{payment_id}", charge, "p1", tenant="acme") == "acme/p1"
    assert found(lambda tenant: tenant, charge, "p1") == "main"
    assert found(lambda other=1, payment_id="x", /: (other, payment_id), charge, "p1") == (1, "p1")
    assert found(functools.partial(lambda salt, payment_id: salt + payment_id, "s-"), charge, "p1") == "s-p1"


def test_one_to_one_the_names_may_differ_and_self_does_not_count() -> None:
    assert found(lambda o: o["id"], handle, {"id": 7}) == 7
    assert found(lambda pid: pid, Service.charge, Service(), "p1") == "p1"
    assert found(operator.itemgetter("id"), handle, {"id": 7}) == 7
    assert found(str, handle, 7) == "7"


@pytest.mark.parametrize(
    ("function", "handler"),
    [
        (lambda p: p, charge),
        (lambda payment_id, missing: payment_id, charge),
        (lambda self: self, Service.charge),
        (lambda self, payment_id: payment_id, Service.charge),
        (lambda: "constant", handle),
        (lambda constant="constant": constant, handle),
        (lambda *args: args, handle),
        (operator.itemgetter("id"), charge),
    ],
    ids=["other-name", "one-more", "self", "self-too", "constant", "default", "star", "builtin"],
)
def test_a_callable_that_cannot_be_matched_is_refused_when_built(function: Any, handler: Any) -> None:
    with pytest.raises(ConfigurationError, match="by name"):
        extractor(function, handler)


async def later(order: Any) -> str:
    return "k"


def several(order: Any) -> Any:
    yield "k"


class Later:
    async def __call__(self, order: Any) -> str:
        return "k"


@pytest.mark.parametrize("function", [later, several, Later(), functools.partial(later)])
def test_a_coroutine_or_generator_function_is_refused_when_built(function: Any) -> None:
    with pytest.raises(ConfigurationError, match="coroutine or generator"):
        extractor(function, handle)


@pytest.mark.parametrize("spec", [None, 7, ["order"], b"order"])
def test_what_is_no_spec_is_refused_when_built(spec: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"order\.id"):
        extractor(spec, handle)


def test_the_same_forms_give_any_value_for_a_fingerprint_and_errors_name_the_option() -> None:
    assert extractor("order.body", handle, name="fingerprint")(({"body": [1.5]},), {}) == [1.5]
    with pytest.raises(ConfigurationError, match=r"^fingerprint="):
        extractor("body", handle, name="fingerprint")


# Names that brokers give to deliveries


@pytest.mark.parametrize(
    "path",
    [
        "m.delivery_tag",
        "m.deliveryTag",
        "m.DELIVERY-TAG",
        "m.ReceiptHandle",
        "m.receipt_handle",
        "m.offset",
        "m.partition_offset",
        "m.consumer_tag",
        "m.redelivered",
        "m.SequenceNumber",
        "m.MessageId",
        "m.Records.0.messageId",
        "record.messageId",
        "offset",
    ],
)
def test_what_the_broker_made_is_refused_unless_asked_for_by_name(path: str) -> None:
    def handler(m: Any, record: Any, offset: int) -> None: ...

    for spec in (
        path,
        ("m.id", path),
        content_hash(path),
        time_window(path, at="m.at"),
        time_window("m.id", at=path),
    ):
        with pytest.raises(ConfigurationError, match=r"(?s)made by the broker.*sender made.*broker_made"):
            extractor(spec, handler)
    extractor(("m.id", broker_made(path)), handler)
    extractor(path, handler, name="fingerprint")


def test_a_broker_made_path_that_was_asked_for_is_followed() -> None:
    assert found(broker_made("order.delivery_tag"), handle, {"delivery_tag": 9}) == 9


@pytest.mark.parametrize("path", ["m.message_id", "m.messageId", "m.id", "m.offset.id", "m.deliveries", "m.tag"])
def test_names_that_senders_use_pass(path: str) -> None:
    extractor(path, lambda m: None)


# Strategies


def test_a_content_hash_is_the_fingerprint_of_what_is_named() -> None:
    assert found(content_hash("order"), handle, {"b": 1, "a": 2.0}) == fingerprint({"a": 2, "b": 1}).hex()
    assert found(content_hash("payment_id", "amount"), charge, "p", 1) == fingerprint(["p", 1]).hex()
    assert len(encode_key(found(content_hash("order"), handle, "x" * 10_000))) == 66


def test_a_content_hash_without_paths_takes_all_arguments_but_self() -> None:
    one = found(content_hash(), Service.charge, Service(), "p1")
    assert one == found(content_hash(), Service.charge, Service(), payment_id="p1")
    assert one == fingerprint("p1").hex()
    assert one != found(content_hash(), Service.charge, Service(), "p2")
    assert found(content_hash(), charge, "p") == fingerprint(["p", 0, "main"]).hex()


def test_f23_parts_of_a_content_do_not_run_into_each_other() -> None:
    spec = content_hash("payment_id", "tenant")
    assert found(spec, charge, "a", tenant="bc") != found(spec, charge, "ab", tenant="c")


def test_no_content_is_no_key() -> None:
    with pytest.raises(MissingKey):
        found(content_hash("order"), handle, None)
    assert found(content_hash("payment_id", "amount"), charge, "p", None)


def test_the_warning_of_a_content_hash_is_where_people_look() -> None:
    assert "WARNING: two honest requests with the same content are one operation" in (content_hash.__doc__ or "")


@pytest.mark.parametrize(
    "at",
    [
        dt.datetime(2024, 1, 15, 10, 59, 59, 999_999, tzinfo=dt.UTC),
        dt.datetime(2024, 1, 15, 12, 0, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        dt.datetime(2024, 1, 15, 10, 30),
        "2024-01-15T10:30:00Z",
        "2024-01-15T05:30:00-05:00",
        "2024-01-15 10:30",
        1705312800,
        1705316399.999,
    ],
)
def test_a_time_window_is_the_messages_own_in_utc(at: Any) -> None:
    key = found(time_window("order.user", every="1h", at="order.at"), handle, {"user": 42, "at": at})
    assert key == (42, "2024-01-15T10:00")
    assert encode_key(key) == "42:2024-01-15T10:00"


@pytest.mark.parametrize(
    ("every", "start"),
    [
        ("1d", "2024-01-15T00:00"),
        ("15m", "2024-01-15T10:45"),
        (30, "2024-01-15T10:58:30"),
        (dt.timedelta(hours=6), "2024-01-15T06:00"),
    ],
)
def test_a_window_is_as_long_as_said(every: Any, start: str) -> None:
    order = {"user": 42, "at": "2024-01-15T10:58:59Z"}
    assert found(time_window("order.user", every=every, at="order.at"), handle, order) == (42, start)


def test_a_window_before_1970_begins_before_its_moment() -> None:
    order = {"user": 42, "at": -1e-7}
    assert found(time_window("order.user", at="order.at"), handle, order) == (42, "1969-12-31T23:00")


def test_a_time_without_a_zone_is_utc_and_not_the_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    order = {"user": 42, "at": dt.datetime(2024, 1, 15, 10, 30)}
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        key = found(time_window("order.user", at="order.at"), handle, order)
    time.tzset()
    assert key == (42, "2024-01-15T10:00")


def test_a_window_key_reads_as_one_would_write_it() -> None:
    metric = {"name": "cpu", "host": "host-789", "at": "2024-01-15T10:42:07Z"}
    spec = time_window((lambda order: "metric", "order.name", "order.host"), at="order.at")
    assert encode_key(found(spec, handle, metric)) == "metric:cpu:host-789:2024-01-15T10:00"


def test_f23_a_colon_before_the_window_does_not_merge_two_keys() -> None:
    spec = time_window(("order.a", "order.b"), at="order.at")
    keys = {
        encode_key(found(spec, handle, {"a": a, "b": b, "at": "2024-01-15T10:42:07Z"}))
        for a, b in [("x", "y:z"), ("x:y", "z"), ("x\\", "y"), ("x", "\\y"), ("x", "2024-01-15T10:00")]
    }
    assert len(keys) == 5


def test_a_time_window_takes_a_composite_and_callables() -> None:
    order = {"user": 42, "ms": 1705312800000}
    spec = time_window(("order.user", lambda order: "mail"), at=lambda order: order["ms"] / 1000)
    assert found(spec, handle, order) == (42, "mail", "2024-01-15T10:00")


def test_the_receivers_clock_must_be_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="RECEIVER_CLOCK"):
        time_window("order.user")
    window = extractor(time_window("order.user", at=RECEIVER_CLOCK), handle)
    monkeypatch.setattr("effectonce.keys.time.time_ns", lambda: 1705312800_000_000_000)
    assert window(({"user": 42},), {}) == (42, "2024-01-15T10:00")
    monkeypatch.setattr("effectonce.keys.time.time_ns", lambda: 1705316400_000_000_000)
    assert window(({"user": 42},), {}) == (42, "2024-01-15T11:00")


@pytest.mark.parametrize("every", ["soon", "500ms", 0, -1, "1.5ms"])
def test_a_window_that_is_no_whole_number_of_seconds_is_refused(every: Any) -> None:
    with pytest.raises(ConfigurationError, match="every="):
        time_window("order.user", every=every, at="order.at")


@pytest.mark.parametrize("at", [None, ""])
def test_a_message_without_a_timestamp_has_no_window(at: Any) -> None:
    with pytest.raises(MissingKey, match="timestamp"):
        found(time_window("order.user", at="order.at"), handle, {"user": 42, "at": at})


@pytest.mark.parametrize(
    "at",
    [
        1705312800000,
        float("nan"),
        float("inf"),
        True,
        "yesterday",
        "1705312800",
        "20240115",
        dt.date(2024, 1, 1),
        b"x",
    ],
)
def test_what_is_no_timestamp_is_refused_rather_than_guessed(at: Any) -> None:
    with pytest.raises(InvalidKey, match="seconds since 1970"):
        found(time_window("order.user", at="order.at"), handle, {"user": 42, "at": at})


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_timestamp_at_the_end_of_time_is_refused_and_breaks_nothing(at: str) -> None:
    with pytest.raises(InvalidKey, match="years 1 to 9999"):
        found(time_window("order.user", at="order.at"), handle, {"user": 42, "at": at})


def test_a_window_without_a_user_is_no_key() -> None:
    with pytest.raises(MissingKey):
        encode_key(found(time_window("order.user", at="order.at"), handle, {"user": None, "at": 0}))
