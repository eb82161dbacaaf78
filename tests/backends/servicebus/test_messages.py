"""Messages of other senders, and of the service itself, as packets: the edges of the mapping."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus.amqp import AmqpMessageBodyType

from effectonce.backends.servicebus.messages import (
    MAX_DESCRIPTION_CHARS,
    MAX_INT,
    make_message,
    property_text,
    read_packet,
    write_description,
)
from effectonce.contracts import Packet


class ReceivedMessage:
    """What the SDK returns for a received message, as far as it is read."""

    def __init__(self, properties: dict[Any, Any] | None = None, *, body: Any = b"x", **fields: Any) -> None:
        self.application_properties = properties
        self.message_id = fields.get("message_id", "id")
        self.delivery_count = fields.get("delivery_count", 0)
        self.body_type = fields.get("body_type", AmqpMessageBodyType.DATA)
        self.body = [body]
        self.subject = fields.get("subject")

    def __str__(self) -> str:
        return str(self.body[0])


def headers_of(**properties: Any) -> Mapping[str, str]:
    return read_packet(ReceivedMessage(properties)).packet.headers


def test_a_body_in_several_sections_is_joined() -> None:
    message = ReceivedMessage()
    message.body = [b"a", b"b"]
    assert read_packet(message).packet.body == b"ab"


@pytest.mark.parametrize("body_type", [AmqpMessageBodyType.VALUE, AmqpMessageBodyType.SEQUENCE])
def test_a_body_that_is_a_value_of_amqp_is_read_as_its_text(body_type: AmqpMessageBodyType) -> None:
    assert read_packet(ReceivedMessage(body="an order", body_type=body_type)).packet.body == b"an order"


def test_a_message_without_properties_or_id_is_a_packet_without_them() -> None:
    message = ReceivedMessage(None, message_id=None, delivery_count=None)
    received = read_packet(message)
    assert (received.packet.headers, received.packet.id, received.attempt) == ({}, "", 1)
    assert received.packet.ordering_key is None


def test_names_and_own_values_in_bytes_are_text() -> None:
    properties = {b"a": b"\xff1", b"eo-id": b"own-id", b"eo-ordering-key": b"key"}
    packet = read_packet(ReceivedMessage(properties)).packet
    assert (packet.headers, packet.id, packet.ordering_key) == ({"a": "\\xff1"}, "own-id", "key")


@pytest.mark.parametrize(
    ("value", "text"), [("a", "a"), (b"b", "b"), (0.1, "0.1"), (1e16, "1e+16"), (7, "7"), (True, "true"), (None, None)]
)
def test_a_property_of_any_type_is_the_text_of_a_header(value: Any, text: str | None) -> None:
    assert property_text(value) == text


@pytest.mark.parametrize(
    ("value", "is_number"),
    [(MAX_INT, True), (MAX_INT + 1, False), (-MAX_INT, True), (-MAX_INT - 1, False), (True, False), ("7", False)],
)
def test_whole_numbers_that_the_sdk_can_send_again_stay_numbers(value: Any, is_number: bool) -> None:
    packet = read_packet(ReceivedMessage({"n": value})).packet
    assert packet.numbers == ({"n"} if is_number else set())


@pytest.mark.parametrize(("text", "sent"), [("7", 7), ("-7", -7), ("7a", "7a"), ("", "")])
def test_a_number_is_sent_as_a_number_if_its_text_still_is_one(text: str, sent: Any) -> None:
    message = make_message(Packet(body=b"x", headers={"n": text, "other": "7"}, numbers=frozenset({"n"})))
    assert message.application_properties == {"n": sent, "other": "7", **_id_property(message)}


def _id_property(message: Any) -> dict[str, Any]:
    return {name: value for name, value in message.application_properties.items() if name == "eo-id"}


def test_an_attempt_count_that_is_no_number_counts_as_none() -> None:
    assert read_packet(ReceivedMessage({"eo-deliveries": "many"}, delivery_count=2)).attempt == 3
    assert read_packet(ReceivedMessage({"eo-deliveries": 4}, delivery_count=2)).attempt == 7


def test_our_own_properties_are_no_headers_and_those_of_others_are() -> None:
    assert headers_of(**{"eo-id": "a", "eo-deliveries": 1, "eo-ordering-key": "k", "shop": "b"}) == {"shop": "b"}


def test_a_session_is_the_packets_id_if_it_has_no_ordering_key() -> None:
    first, second = (make_message(Packet(body=b"x", id="same"), sessions=True, attempts=n) for n in (0, 1))
    assert first.session_id == second.session_id  # a delayed copy, which has another MessageId
    assert make_message(Packet(body=b"x", id="same")).session_id is None


def test_an_ordering_key_that_is_too_long_has_a_session_of_its_own() -> None:
    sessions = {make_message(Packet(body=b"x", ordering_key=key * 129), sessions=True).session_id for key in ("a", "b")}
    assert len(sessions) == 2
    assert all(len(session) <= 128 for session in sessions)


# -- the cause of a dead letter


def dead_lettered(reason: str, description: str | None) -> Mapping[str, str]:
    properties = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    return headers_of(**{name: value for name, value in properties.items() if value is not None})


def test_headers_that_fit_into_a_description_are_not_cut() -> None:
    frame = len(json.dumps({"a": ""}))
    for headers in ({"a": "x" * (MAX_DESCRIPTION_CHARS - frame)}, {"a": "1", "b": "2"}, {}):
        assert dead_lettered("effectonce", write_description(headers)) == headers


def test_only_the_longest_headers_are_cut() -> None:
    headers = {"short": "s" * 500, "long": "l" * 5000}
    cut = dead_lettered("effectonce", write_description(headers))
    assert cut == {"short": "s" * 500, "long": "l" * 2500}


def test_names_that_are_too_long_by_themselves_end_in_a_description_all_the_same() -> None:
    name = "n" * (MAX_DESCRIPTION_CHARS + 1)
    assert json.loads(write_description({name: "abc"})) == {name: ""}


@pytest.mark.parametrize("description", ['"text"', "[]", '{"n": 3}', "{", None])
def test_a_description_that_is_not_ours_is_kept_as_text(description: str | None) -> None:
    cause = {"why": "effectonce", "text": description or ""}
    assert json.loads(dead_lettered("effectonce", description)["eo-dead"]) == cause


def test_a_live_message_has_no_cause() -> None:
    assert headers_of(DeadLetterErrorDescription="left over") == {}


def test_fields_that_are_not_set_are_left_out() -> None:
    message: Any = SimpleNamespace(**vars(ReceivedMessage({}, subject="urn:x")))
    assert read_packet(message).packet.fields == {"subject": "urn:x"}


def test_a_delayed_message_is_scheduled_for_its_time() -> None:
    message = make_message(Packet(body=b"x", id="1", delay_s=3600.0))
    assert 3590 < (message.scheduled_enqueue_time_utc - datetime.now(UTC)).total_seconds() <= 3600
    assert message.message_id == "1", "it is deduplicated as any other"
    assert make_message(Packet(body=b"x")).scheduled_enqueue_time_utc is None
