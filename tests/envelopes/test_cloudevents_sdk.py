"""Events of the official CloudEvents SDK are read, and it reads ours: eleven events, four bindings, both modes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings import amqp, http, kafka, rabbitmq
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

import effectonce as eo
from effectonce.backends.servicebus.messages import property_text
from effectonce.contracts import Packet
from effectonce.envelopes import CloudEvents

Mode = Literal["structured", "binary"]
FORMAT = JSONFormat()
HEAD = {"id": "C234-1234", "source": "/shop", "type": "order.paid", "time": datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)}
EVENTS: dict[str, tuple[dict[str, Any], Any]] = {
    "least": ({}, {"order": 7}),
    "without-data": ({}, None),
    "every-attribute": (
        {"subject": "o/7", "dataschema": "https://shop.example/paid.json", "datacontenttype": "application/json"},
        {"order": 7},
    ),
    "milliseconds": ({"time": datetime(2026, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)}, {"order": 7}),
    "before-1970": ({"time": datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)}, {"order": 7}),
    "unicode": ({"subject": "Zürich ☕", "source": "/shop/ünïcode"}, {"naïve": "☕"}),
    "percent": ({"subject": "100% sure"}, {"order": 7}),
    "extensions": ({"partitionkey": "customer-7", "traceparent": "00-4bf9-00f0-01", "own": "1"}, {"order": 7}),
    "typed-extensions": ({"number": 5, "flag": True}, {"order": 7}),
    "bytes": ({"datacontenttype": "application/octet-stream"}, b"\0\xff"),
    "text": ({"datacontenttype": "text/plain"}, "hello"),
}


class Binding(NamedTuple):
    """One binding of the SDK: to a packet as our broker's adapter reads it, and from a packet of ours."""

    prefix: str
    write: Callable[[BaseCloudEvent, Mode], Packet]
    read: Callable[[Packet], BaseCloudEvent]


def call(module: Any, mode: Mode, event: BaseCloudEvent) -> Any:
    return getattr(module, f"to_{mode}")(event, FORMAT)


def write_http(event: BaseCloudEvent, mode: Mode) -> Packet:
    message = call(http, mode, event)
    return Packet(body=message.body, headers={name.lower(): value for name, value in message.headers.items()})


def read_http(packet: Packet) -> BaseCloudEvent:
    return http.from_http(http.HTTPMessage(headers=dict(packet.headers), body=packet.body), FORMAT)


def write_kafka(event: BaseCloudEvent, mode: Mode) -> Packet:
    message = call(kafka, mode, event)
    return Packet(body=message.value, headers={name: value.decode() for name, value in message.headers.items()})


def read_kafka(packet: Packet) -> BaseCloudEvent:
    headers = {name: value.encode() for name, value in packet.headers.items()}
    return kafka.from_kafka(kafka.KafkaMessage(headers=headers, key=packet.ordering_key, value=packet.body), FORMAT)


def write_amqp(event: BaseCloudEvent, mode: Mode) -> Packet:
    message = call(amqp, mode, event)
    headers = {name: property_text(value) or "" for name, value in message.application_properties.items()}
    fields = {"content_type": message.properties["content-type"]} if "content-type" in message.properties else {}
    return Packet(body=message.application_data, headers=headers, fields=fields)


def read_amqp(packet: Packet) -> BaseCloudEvent:
    headers: dict[str, Any] = dict(packet.headers)
    properties = {"content-type": headers.pop("content-type")}
    return amqp.from_amqp(amqp.AMQPMessage(properties, headers, packet.body), FORMAT)


def write_rabbitmq(event: BaseCloudEvent, mode: Mode) -> Packet:
    message = call(rabbitmq, mode, event)
    content_type = {"content-type": message.content_type} if message.content_type else {}
    return Packet(body=message.body, headers={**message.headers, **content_type})


def read_rabbitmq(packet: Packet) -> BaseCloudEvent:
    headers = dict(packet.headers)
    content_type = headers.pop("content-type")
    return rabbitmq.from_rabbitmq(rabbitmq.RabbitMQMessage(headers, content_type, packet.body), FORMAT)


BINDINGS = {
    "http": Binding("ce-", write_http, read_http),
    "kafka": Binding("ce_", write_kafka, read_kafka),
    "amqp": Binding("cloudEvents_", write_amqp, read_amqp),
    "rabbitmq": Binding("ce-", write_rabbitmq, read_rabbitmq),
}


def as_text(value: Any) -> Any:
    """Attributes have no types in headers, and text is bytes in binary mode."""
    if isinstance(value, bool | int):
        return str(value).lower()
    return value.decode("latin-1") if isinstance(value, bytes) else value


MATRIX = [(name, binding, mode) for name in EVENTS for binding in BINDINGS for mode in ("structured", "binary")]


def test_the_matrix_has_88_cases() -> None:
    assert len(MATRIX) == 88


@pytest.mark.parametrize(("name", "binding", "mode"), MATRIX)
def test_an_event_of_the_sdk_is_read(name: str, binding: str, mode: Mode) -> None:
    changed, data = EVENTS[name]
    attributes = {**HEAD, **changed}
    sent = CloudEvent(dict(attributes), data)
    message = CloudEvents().decode(BINDINGS[binding].write(sent, mode))
    assert (message.id, message.key, message.type) == ("C234-1234", "C234-1234", "order.paid")
    assert (message.source, message.time) == (attributes["source"], attributes["time"])
    assert as_text(message.data) == as_text(data)
    assert message.ordering_key == attributes.get("partitionkey")
    for attribute in changed.keys() - {"source", "time", "partitionkey", "datacontenttype"}:
        header = attribute if attribute == "traceparent" else f"ce-{attribute}"
        written = message.headers[header]
        # The SDK's own text of a boolean is Python's, except where the binding has types.
        assert written.lower() == as_text(attributes[attribute]).lower()


@pytest.mark.parametrize(("name", "binding", "mode"), MATRIX)
def test_the_sdk_reads_an_event_of_ours(name: str, binding: str, mode: Mode) -> None:
    changed, data = EVENTS[name]
    attributes = {**HEAD, **changed}
    message = CloudEvents().decode(write_kafka(CloudEvent(dict(attributes), data), "structured"))
    message.headers.pop("traceparent", None)  # ours is the broker's header of that name, which the SDK does not read
    attributes.pop("traceparent", None)
    encoded = CloudEvents(mode, prefix=BINDINGS[binding].prefix).encode(message)
    event = BINDINGS[binding].read(encoded)
    found = {"datacontenttype": "application/json", **event.get_attributes()}  # a JSON event leaves the default out
    for attribute, value in attributes.items():
        assert as_text(found[attribute]) == as_text(value), attribute
    assert as_text(event.get_data()) == as_text(data)


@given(key=st.text(alphabet=st.sampled_from('%25aF "ü/:~\x7f0'), min_size=1))
def test_a_key_comes_back_whatever_looks_percent_encoded_in_it(key: str) -> None:
    """A key that changes on its way guards another operation."""
    message = eo.Message(data=1, type="t", key=key)
    packet = CloudEvents("binary").encode(message)
    assert CloudEvents().decode(packet).key == key
    event = read_http(packet)
    assert event.get_extension("idempotencykey") == key


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),  # the example of the specification
        ("100%25", "100%"),
        ("%e2%82%ac", "€"),
        ("100%", "100%"),
        ("%zz", "%zz"),
        ("%ff", "%ff"),  # not UTF-8
        ("50%20 off", "50%20 off"),  # an encoder leaves no space
    ],
)
def test_a_value_is_decoded_if_it_is_percent_encoded(written: str, read: str) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-subject": written}
    assert CloudEvents().decode(Packet(body=b"{}", headers=headers)).headers["ce-subject"] == read
    kafka_headers = {name.replace("ce-", "ce_"): value for name, value in headers.items()}
    assert CloudEvents().decode(Packet(body=b"{}", headers=kafka_headers)).headers["ce-subject"] == written


@pytest.mark.parametrize("time", ["99999999999999999", "-99999999999999999", "1e9", ""])
def test_a_timestamp_that_is_no_time_is_undecodable(time: str) -> None:
    headers = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "time": time}
    packet = Packet(body=b"{}", headers={f"cloudEvents_{name}": value for name, value in headers.items()})
    with pytest.raises(eo.Undecodable, match="RFC 3339"):
        CloudEvents().decode(packet)


def test_attributes_of_another_prefix_do_not_replace_those_as_ce() -> None:
    packet = CloudEvents("binary").encode(eo.Message(data=1, type="t", id="i", headers={"cloudEvents:id": "other"}))
    message = CloudEvents().decode(packet)
    assert (message.id, message.headers) == ("i", {"cloudEvents:id": "other"})
