"""Results and errors as bytes: how large they may be, and what is kept of an error."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import effectonce as eo
from effectonce.core.codec import (
    Codec,
    Unstorable,
    decode_error,
    encode_error,
    encode_untyped,
    with_trace,
    without_trace,
)


def test_a_result_is_stored_up_to_its_limit() -> None:
    assert Codec(str, 5).encode("abc") == b'1"abc"'
    with pytest.raises(Unstorable, match="6 bytes are over the limit of 5"):
        Codec(str, 5).encode("abcd")


@pytest.mark.parametrize("type_", [None, type(None)])
def test_where_results_are_discarded_any_value_is_stored_as_none(type_: Any) -> None:
    assert Codec(type_, 0).encode(object()) == b"1null"
    assert Codec(type_, 0).decode(b"1null") is None


def test_a_result_of_another_format_is_not_guessed_at() -> None:
    with pytest.raises(eo.CorruptRecord, match="has format b'3', this release reads b'1'"):
        Codec(Any, 100).decode(b"3null")


@pytest.mark.parametrize("value", [(1, 2), {1: "a"}, float("nan"), [float("inf")], {"a": {"b": (1,)}}, b"x", {1}])
def test_without_a_type_only_what_json_keeps_is_stored(value: Any) -> None:
    with pytest.raises(Unstorable):
        Codec(Any, 1000).encode(value)


def test_without_a_type_json_of_a_hundred_levels_is_stored() -> None:
    value: Any = 1
    for _ in range(100):
        value = [value]
    codec = Codec(Any, 1000)
    assert codec.decode(codec.encode(value)) == value
    with pytest.raises(Unstorable, match="nested too deeply"):
        codec.encode([[{"a": value}]])


def test_a_trace_is_kept_before_a_result_if_it_is_one() -> None:
    trace = b"0123456789abcdef" * 3
    assert without_trace(with_trace(b"1null", trace)) == (b"1null", trace)
    assert without_trace(with_trace(b"1null", b"short")) == (b"1null", b"")


def test_an_error_keeps_its_name_its_text_and_its_arguments() -> None:
    kept = decode_error(encode_error(ValueError("no funds", 42)))
    assert (kept.type, kept.message, kept.args) == ("builtins:ValueError", "('no funds', 42)", ["no funds", 42])


@pytest.mark.parametrize("argument", [object(), (1, 2), "x" * 10_000])
def test_an_error_is_kept_without_arguments_that_cannot_be_or_are_too_long(argument: Any) -> None:
    kept = decode_error(encode_error(ValueError(argument)))
    assert (kept.type, kept.args) == ("builtins:ValueError", None)
    assert 0 < len(kept.message) <= 4096


def test_the_text_of_an_error_is_cut() -> None:
    assert decode_error(encode_error(ValueError("x" * 5000), limit=10)).message == "x" * 10


def test_an_error_whose_text_cannot_be_made_says_so() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert decode_error(encode_error(Silent())).message == "<Silent without a text>"
    assert decode_error(encode_error(ValueError("\ud800"))).message == "\\ud800"


@pytest.mark.parametrize("stored", [b"", b"1", b'2{"code":"x"}', b"1[]"])
def test_an_error_that_cannot_be_read_is_a_corrupt_record(stored: bytes) -> None:
    with pytest.raises(eo.CorruptRecord, match="a stored error cannot be read"):
        decode_error(stored)


def test_a_type_that_cannot_be_read_back_is_refused_when_the_guard_is_made() -> None:
    with pytest.raises(eo.ConfigurationError, match=r"a result of type .* cannot be read back"):
        Codec(int | msgspec.Raw | dict[str, int] | list[Any] | set[int], 100)


class Money:
    """A class that neither JSON nor pydantic knows."""


def test_a_value_of_a_class_that_json_does_not_know_is_named_in_the_error() -> None:
    codec = Codec(Money, 100)
    with pytest.raises(Unstorable, match="Money cannot be stored"):
        codec.encode(Money())
    with pytest.raises(eo.CorruptRecord, match="Money cannot be read back"):
        codec.decode(b"1{}")


@pytest.mark.parametrize("declared", [bool, str, int, float, list[int], dict[str, int]])
@pytest.mark.parametrize("value", [None, True, "a", 7, [7], {"a": 7}])
def test_a_result_is_stored_only_if_it_is_of_the_declared_type(declared: Any, value: Any) -> None:
    codec = Codec(declared, 100)
    if type(value) is getattr(declared, "__origin__", declared) or (declared is float and value == 7):
        assert codec.decode(codec.encode(value)) == value
    else:
        with pytest.raises(Unstorable):
            codec.encode(value)


def test_what_an_operator_entered_is_read_as_the_handlers_type() -> None:
    assert Codec(list[int], 100).decode(encode_untyped([1, 2])) == [1, 2]


@pytest.mark.parametrize("type_", [object, dict[str, object]])
def test_object_is_any_json_value(type_: Any) -> None:
    codec = Codec(type_, 1000)
    value = {"order": "o-1", "lines": [1, None, 2.5]}
    assert codec.decode(codec.encode(value)) == value
    with pytest.raises(Unstorable):
        codec.encode({"when": (1, 2)})
