"""No envelope at all: any JSON, any bytes, and a key that is somewhere in it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import effectonce as eo
from effectonce.contracts import Packet
from effectonce.envelopes import Raw

BODY = b'{"payment":{"id":"pay_1","n":7},"tenant":"acme"}'


class Payment(msgspec.Struct):
    id: str


class Body(msgspec.Struct):
    payment: Payment


@pytest.mark.parametrize(
    ("key", "headers", "wanted"),
    [
        ("data.payment.id", {}, "pay_1"),
        ("data.payment.n", {}, "7"),
        ("headers.x-request-id", {"x-request-id": "r-9"}, "r-9"),
        (lambda data, headers: data["tenant"], {}, "acme"),
    ],
)
def test_the_key_is_where_it_is_said_to_be(key: Any, headers: dict[str, str], wanted: str) -> None:
    message = Raw(key=key).decode(Packet(body=BODY, headers=headers, id="broker-1"))
    assert (message.key, message.id) == (wanted, "broker-1")


def test_a_tuple_is_a_composite_key() -> None:
    two = Raw(key=("data.tenant", "data.payment.id")).decode(Packet(body=BODY))
    assert two.key == eo.keys.encode_key(("acme", "pay_1"))


def test_without_a_key_the_producers_id_is_it() -> None:
    assert Raw().decode(Packet(body=BODY, id="m-1")).key == "m-1"
    assert Raw().decode(Packet(body=BODY)).key == ""  # and the guard says MissingKey


@pytest.mark.parametrize("key", ["data.payment.nope", "headers.x-none", "data.payment", lambda data, headers: 1 / 0])
def test_a_key_that_is_not_there_is_undecodable(key: Any) -> None:
    with pytest.raises(eo.Undecodable, match="key"):
        Raw(key=key).decode(Packet(body=BODY, id="broker-1"))


def test_typed_data_works_for_paths_too() -> None:
    message = Raw(key="data.payment.id").decode(Packet(body=BODY), Body)
    assert (message.key, message.data) == ("pay_1", Body(payment=Payment(id="pay_1")))


def test_bytes_are_bytes_where_the_content_type_says_so() -> None:
    assert Raw().decode(Packet(body=b"\0\xff", headers={"content-type": "image/png"})).data == b"\0\xff"
    with pytest.raises(eo.ConfigurationError, match="give 'json', 'bytes', or None"):
        Raw(content="JSON")
    assert Raw(content="bytes").decode(Packet(body=b"{}")).data == b"{}"
    assert Raw(content="json").decode(Packet(body=b"{}", headers={"content-type": "text/plain"})).data == {}
    assert Raw().decode(Packet(body=b"{}"), bytes).data == b"{}"


@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b"NaN", b"[" * 100_000])
def test_what_is_not_json_is_undecodable(body: bytes) -> None:
    with pytest.raises(eo.Undecodable):
        Raw().decode(Packet(body=body))


@pytest.mark.parametrize("data", [{"a": 1}, [1], "text", None, b"", b"\0\xff"])
def test_what_is_written_is_read(data: Any) -> None:
    envelope = Raw(key="headers.x-key")
    message = eo.Message(data=data, type="t", key="k-1", ordering_key="o", headers={"traceparent": "00-a-b-01"})
    found = envelope.decode(envelope.encode(message))
    assert (found.data, found.type, found.key, found.id, found.ordering_key) == (data, "t", "k-1", message.id, "o")
    assert found.headers["traceparent"] == "00-a-b-01"


def test_the_body_is_the_data_and_nothing_else() -> None:
    assert Raw().encode(eo.Message(data={"a": 1})).body == b'{"a":1}'
    assert Raw().encode(eo.Message(data=b"\0")).body == b"\0"


def test_the_type_is_a_header_or_the_same_for_all() -> None:
    envelope = Raw(type="order.paid", type_header="event")
    assert envelope.decode(Packet(body=b"{}")).type == "order.paid"
    assert envelope.decode(Packet(body=b"{}", headers={"event": "order.lost"})).type == "order.lost"


def test_a_path_is_checked_when_it_is_written() -> None:
    with pytest.raises(eo.ConfigurationError, match="data"):
        Raw(key="payment.id")
