"""The results that operators enter as JSON: checked against the type that the operation gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest

import effectonce as eo
from effectonce.core.codec import Codec
from effectonce.core.operator_results import describe_type, encode_entered_result


@dataclass
class Receipt:
    id: str
    amount: int = 0


class Place(NamedTuple):
    row: int
    seat: str


class Ticket(msgspec.Struct, array_like=True, rename="camel"):
    seat_number: int


class Empty(msgspec.Struct):
    pass


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (str, 'a text, in quotes: "ch_1"'),
        (int, "a whole number"),
        (float, "a number"),
        (bool, "true or false"),
        (Any, "JSON"),
        (Receipt, 'Receipt, an object with "id", "amount" (optional)'),
        (Place, 'Place, a list of "row", "seat"'),
        (Ticket, 'Ticket, a list of "seatNumber"'),
        (Empty, "Empty, an object with nothing"),
        (list[int], "list"),
        (int | None, "int | None"),
    ],
)
def test_a_type_is_described_to_who_has_to_write_a_value_of_it(type_: Any, text: str) -> None:
    assert describe_type(type_) == text


@pytest.mark.parametrize(
    ("type_", "entered", "stored"),
    [
        (Any, {"id": 7}, b'1{"id":7}'),
        (str, "ch_1", b'1"ch_1"'),
        (Receipt, {"id": "ch_1"}, b'1{"id":"ch_1"}'),
        (Place, [3, "A"], b'1[3,"A"]'),
    ],
)
def test_a_value_of_the_type_is_stored(type_: Any, entered: Any, stored: bytes) -> None:
    assert encode_entered_result(Codec(type_, 100), entered, "step pay") == (entered, stored)


def test_where_results_are_discarded_none_is_stored_whatever_was_entered() -> None:
    assert encode_entered_result(Codec(None, 100), {"id": 7}, "step pay") == (None, b"1null")


@pytest.mark.parametrize(
    ("type_", "entered"), [(int, "7"), (Receipt, {"amount": 7}), (Receipt, "ch_1"), (Any, object()), (Any, (1, 2))]
)
def test_another_value_is_refused_with_what_is_expected(type_: Any, entered: Any) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"this is not a result of step pay, which gives .*nothing was"):
        encode_entered_result(Codec(type_, 100), entered, "step pay")


def test_a_value_may_be_as_large_as_the_limit() -> None:
    assert encode_entered_result(Codec(str, 5), "abc", "step pay")[1] == b'1"abc"'
    with pytest.raises(eo.ConfigurationError, match="6 bytes are over the limit of 5"):
        encode_entered_result(Codec(str, 5), "abcd", "step pay")
