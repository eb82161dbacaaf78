"""CloudEvents 1.0: both modes, what a message keeps, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest
from msgspec.structs import replace

import effectonce as eo
from effectonce.contracts import Packet
from effectonce.envelopes import CloudEvents

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MODES = pytest.mark.parametrize("envelope", [CloudEvents(), CloudEvents("binary")], ids=["structured", "binary"])


class Paid(msgspec.Struct):
    order: int
    amount: Decimal
    at: datetime


@dataclasses.dataclass
class PaidData:
    order: int


class PaidModel(pydantic.BaseModel):
    order: int


FULL: eo.Message[Any] = eo.Message(
    type="order.paid",
    data={"order": 7, "naïve": "☕"},
    id="id-1",
    key="Order:7",
    ordering_key="customer ü/7",
    trace_id="chain-1",
    source="/shop/ünïcode",
    time=datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=UTC),
    headers={"traceparent": TRACE, "tracestate": "a=b", "x-own": "kept", "ce-subject": "o/7", "ce-sourcece": "1"},
)


# -- there and back


@MODES
def test_all_that_a_message_has_comes_back(envelope: CloudEvents) -> None:
    assert envelope.decode(envelope.encode(FULL)) == FULL


@MODES
@pytest.mark.parametrize("data_type", [Any, dict[str, int]])
@pytest.mark.parametrize("headers", [{"traceparent": TRACE}, {"traceparent": TRACE, "tracestate": "a=b"}])
def test_the_trace_of_a_message_comes_back(envelope: CloudEvents, data_type: Any, headers: dict[str, str]) -> None:
    message = eo.Message(type="order.paid", data={"order": 7}, headers=headers)
    assert envelope.decode(envelope.encode(message), data_type).headers == headers


@MODES
def test_the_least_message_comes_back(envelope: CloudEvents) -> None:
    message = eo.Message(data=None)
    found = envelope.decode(envelope.encode(message))
    assert (found.type, found.data, found.id, found.key, found.headers) == ("", None, message.id, message.id, {})
    assert found.source == "effectonce"


@MODES
@pytest.mark.parametrize(
    "data", [{}, [], "", 0, False, 1.5, 2**70, "☕\0\u2028", [{"a": [None]}], b"", b"\0\xff", bytes(range(256))]
)
def test_data_of_every_kind_comes_back(envelope: CloudEvents, data: Any) -> None:
    found = envelope.decode(envelope.encode(eo.Message(data=data))).data
    assert found == data
    assert type(found) is type(data)


@MODES
@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (Paid(order=7, amount=Decimal("4200.10"), at=datetime(2026, 1, 1, tzinfo=UTC)), Paid),
        (PaidData(order=7), PaidData),
        (PaidModel(order=7), PaidModel),
        ({"a": Paid(order=1, amount=Decimal(1), at=datetime(2026, 1, 1, tzinfo=UTC))}, dict[str, Paid]),
        (b"raw", bytes),
    ],
)
def test_typed_data_comes_back_as_its_type(envelope: CloudEvents, data: Any, kind: Any) -> None:
    assert envelope.decode(envelope.encode(eo.Message(data=data)), kind).data == data


@MODES
def test_encoding_again_gives_the_same_bytes(envelope: CloudEvents) -> None:
    assert envelope.encode(FULL) == envelope.encode(FULL)


@MODES
def test_either_mode_is_read_whichever_is_written(envelope: CloudEvents) -> None:
    for reader in (CloudEvents(), CloudEvents("binary")):
        assert reader.decode(envelope.encode(FULL)) == FULL


# -- as the specification has it


def test_structured_mode_is_the_json_format() -> None:
    packet = CloudEvents().encode(FULL)
    assert json.loads(packet.body) == {
        "specversion": "1.0",
        "id": "id-1",
        "source": "/shop/ünïcode",
        "type": "order.paid",
        "time": "2026-02-03T04:05:06.789000Z",
        "idempotencykey": "Order:7",
        "partitionkey": "customer ü/7",
        "correlationid": "chain-1",
        "traceparent": TRACE,
        "tracestate": "a=b",
        "subject": "o/7",
        "sourcece": "1",
        "data": {"order": 7, "naïve": "☕"},
    }
    assert packet.headers == {"x-own": "kept", "content-type": "application/cloudevents+json"}
    assert (packet.id, packet.ordering_key) == ("id-1", "customer ü/7")


def test_bytes_are_data_base64_in_structured_mode_and_the_body_in_binary_mode() -> None:
    message = eo.Message(data=b"\0\xff", type="t")
    document = json.loads(CloudEvents().encode(message).body)
    assert (document["data_base64"], document["datacontenttype"]) == ("AP8=", "application/octet-stream")
    assert "data" not in document
    packet = CloudEvents("binary").encode(message)
    assert packet.body == b"\0\xff"
    assert packet.headers["content-type"] == "application/octet-stream"
    assert packet.headers["ce-specversion"] == "1.0"


def test_an_event_of_another_sdk_is_read() -> None:
    """The example of the specification's JSON format, with what only others write."""
    body = {
        "specversion": "1.0",
        "type": "com.example.someevent",
        "source": "/mycontext",
        "subject": None,
        "id": "C234-1234-1234",
        "time": "2018-04-05T17:31:00+02:00",
        "comexampleextension1": "value",
        "comexampleothervalue": 5,
        "comexampleflag": True,
        "datacontenttype": "application/vnd.apache+json; charset=utf-8",
        "dataschema": "https://example.com/schema",
        "data": {"appinfoA": "abc", "appinfoB": 123, "appinfoC": True},
    }
    found = CloudEvents().decode(Packet(body=json.dumps(body).encode(), headers={"content-type": CONTENT}))
    assert (found.id, found.key, found.type, found.source) == (body["id"], body["id"], body["type"], "/mycontext")
    assert found.time == datetime(2018, 4, 5, 15, 31, tzinfo=UTC)
    assert found.data == body["data"]
    assert found.headers == {
        "ce-comexampleextension1": "value",
        "ce-comexampleothervalue": "5",
        "ce-comexampleflag": "true",
        "ce-datacontenttype": "application/vnd.apache+json; charset=utf-8",
        "ce-dataschema": "https://example.com/schema",
    }
    again = json.loads(CloudEvents().encode(found).body)
    assert again["dataschema"] == body["dataschema"]
    assert again["datacontenttype"] == body["datacontenttype"]


CONTENT = "application/cloudevents+json; charset=UTF-8"


def test_json_inside_data_base64_is_read_where_it_says_so() -> None:
    head = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "datacontenttype": "application/json"}
    packet = Packet(body=json.dumps({**head, "data_base64": "eyJhIjoxfQ=="}).encode())
    assert CloudEvents().decode(packet).data == {"a": 1}
    assert CloudEvents().decode(packet, bytes).data == b'{"a":1}'


@pytest.mark.parametrize("prefix", ["ce-", "ce_", "cloudEvents:", "cloudEvents_"])
def test_the_spelling_of_every_binding_is_written_and_read(prefix: str) -> None:
    packet = CloudEvents("binary", prefix=prefix).encode(FULL)
    assert packet.headers[f"{prefix}id"] == "id-1"
    assert CloudEvents().decode(packet) == FULL
    bare = {name: value for name, value in packet.headers.items() if name != "content-type"}
    assert CloudEvents().decode(replace(packet, headers=bare)) == FULL


def test_a_queue_without_headers_is_read() -> None:
    packet = CloudEvents().encode(eo.Message(data=1, type="t", id="i"))
    assert CloudEvents().decode(Packet(body=packet.body)).data == 1
    assert CloudEvents().decode(Packet(body=packet.body, headers={"x": "y"})).data == 1


# -- refused


def structured(**members: Any) -> Packet:
    document = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": {}, **members}
    written = {name: value for name, value in document.items() if value is not ...}
    return Packet(body=json.dumps(written).encode(), headers={"content-type": "application/cloudevents+json"})


def binary(body: bytes = b"{}", **headers: str) -> Packet:
    own = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "content-type": "application/json"}
    return Packet(body=body, headers={**own, **headers})


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        (Packet(body=b""), "JSON"),
        (Packet(body=b"not json"), "JSON"),
        (Packet(body=b"\xff\xfe"), "JSON"),
        (Packet(body=b"[1]"), "JSON"),
        (Packet(body=b"null"), "JSON"),
        (Packet(body=b'{"a":' * 100_000), "JSON"),
        (Packet(body=b"{} {}"), "JSON"),
        (structured(specversion="0.3"), "0.3"),
        (structured(specversion=1.0), "specversion"),
        (structured(specversion=...), "specversion"),
        (structured(id=...), "no id"),
        (structured(id=""), "no id"),
        (structured(id=5), "id"),
        (structured(id=None), "no id"),
        (structured(type=...), "no type"),
        (structured(source=...), "no source"),
        (structured(time="yesterday"), "RFC 3339"),
        (structured(time="2018-04-05T17:31:00"), "RFC 3339"),
        (structured(ext={"a": 1}), "ext"),
        (structured(data_base64="AA=="), "not both"),
        (structured(data=..., data_base64="%%%"), "data_base64"),
        (structured(data=..., data_base64=7), "data_base64"),
        (binary(b"{"), "data"),
        (binary(**{"ce-id": ""}), "no id"),
        (binary(**{"ce-specversion": "2.0"}), "2.0"),
        (Packet(body=b"{}", headers={"content-type": "text/plain"}), "text/plain"),
        (Packet(body=b"[]", headers={"content-type": "application/cloudevents-batch+json"}), "batch"),
    ],
)
def test_what_is_no_cloudevent_is_undecodable_and_says_why(packet: Packet, why: str) -> None:
    with pytest.raises(eo.Undecodable, match=why):
        CloudEvents().decode(packet)


@MODES
def test_data_of_another_type_is_undecodable(envelope: CloudEvents) -> None:
    packet = envelope.encode(eo.Message(data={"order": "seven"}))
    for kind in (Paid, PaidData, PaidModel):
        with pytest.raises(eo.Undecodable, match="data"):
            envelope.decode(packet, kind)


def test_a_validator_that_raises_anything_is_undecodable() -> None:
    class Odd(pydantic.BaseModel):
        order: int

        @pydantic.field_validator("order")
        @classmethod
        def odd(cls, value: int) -> int:
            raise ZeroDivisionError

    with pytest.raises(eo.Undecodable):
        CloudEvents().decode(structured(data={"order": 1}), Odd)


@MODES
def test_a_body_over_the_limit_is_neither_sent_nor_read(envelope: CloudEvents) -> None:
    large = eo.Message(data="x" * 2_000_000)
    with pytest.raises(eo.ConfigurationError, match="max_body"):
        envelope.encode(large)
    packet = CloudEvents(envelope.mode, max_body=1 << 22).encode(large)
    with pytest.raises(eo.Undecodable, match="limit"):
        envelope.decode(packet)


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (eo.Message(data=object()), "JSON"),
        (eo.Message(data=1, time=datetime(2026, 1, 1)), "time zone"),
        (eo.Message(data=1, headers={"ce-not-allowed": "x"}), "attribute"),
        (eo.Message(data=1, headers={"ce-data": "x"}), "attribute"),
        (eo.Message(data=1, headers={"n": 5}), "strings"),  # type: ignore[dict-item]
        (eo.Message(data=1, id="", key="k"), "id"),
    ],
)
@MODES
def test_what_cannot_be_written_says_why(envelope: CloudEvents, message: eo.Message[Any], hint: str) -> None:
    with pytest.raises(eo.ConfigurationError, match=hint):
        envelope.encode(message)


def test_a_header_cannot_take_the_place_of_a_field() -> None:
    """What a handler copies from one message's headers into another's does not change whose it is."""
    message = eo.Message(data=1, type="t", headers={"ce-id": "forged", "ce-type": "forged", "content-type": "x/y"})
    for envelope in (CloudEvents(), CloudEvents("binary")):
        found = envelope.decode(envelope.encode(message))
        assert (found.id, found.type) == (message.id, "t")


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(eo.InvalidOption):
        CloudEvents("both")  # type: ignore[arg-type]
    with pytest.raises(eo.InvalidOption):
        CloudEvents(source="")
    with pytest.raises(eo.InvalidOption, match="ce_"):
        CloudEvents(prefix="x-")


def test_another_time_zone_is_the_same_moment() -> None:
    east = datetime(2026, 1, 1, 9, tzinfo=timezone(timedelta(hours=9)))
    assert CloudEvents().decode(CloudEvents().encode(eo.Message(data=1, time=east))).time == east
