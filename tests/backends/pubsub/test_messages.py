"""A packet in a Pub/Sub message, and back."""

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from effectonce.backends.pubsub.messages import MAX_NAME_BYTES, MAX_VALUE_BYTES, make_message, read_message
from effectonce.contracts import Packet
from effectonce.errors import ConfigurationError

TEXTS = st.text(max_size=60) | st.sampled_from(["", "x" * 1024, "é" * 1024, "\udcff", "goog", "eo", "eo.1"])


@given(
    packet=st.builds(
        Packet,
        body=st.binary(max_size=50),
        headers=st.dictionaries(TEXTS, TEXTS, max_size=5),
        id=st.text(max_size=50),
        ordering_key=st.none() | st.text(min_size=1, max_size=300),
    )
)
def test_a_packet_survives_the_journey(packet: Packet) -> None:
    message = make_message(packet)
    again = read_message(type(message).FromString(message.SerializeToString()))
    assert again == packet


@given(headers=st.dictionaries(TEXTS, TEXTS, max_size=120))
def test_attributes_are_such_as_pubsub_takes(headers: dict[str, str]) -> None:
    try:
        message = make_message(Packet(body=b"", headers=headers, ordering_key="é" * 500))
    except ConfigurationError:
        reject()  # too large in all
    assert 1 <= len(message.attributes) <= 100
    for name, value in message.attributes.items():
        assert 0 < len(name.encode()) <= MAX_NAME_BYTES
        assert 0 < len(value.encode()) <= MAX_VALUE_BYTES
        assert not name.startswith("goog")
    assert len(message.ordering_key.encode()) <= 1024


def test_a_header_that_fits_is_an_attribute() -> None:
    """So that other consumers can read it, and a subscription can filter by it."""
    message = make_message(Packet(body=b"x", headers={"kind": "order", "blank": ""}))
    assert message.attributes["kind"] == "order"
    assert "blank" not in message.attributes


def test_headers_that_take_too_much_room_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="send less in headers"):
        make_message(Packet(body=b"x", headers={f"h{number}": "x" * 2000 for number in range(20)}))


def test_a_message_of_another_producer_is_read() -> None:
    from google.pubsub_v1.types import PubsubMessage

    message = PubsubMessage.pb()(data=b"x", attributes={"eo": "not ours", "kind": "order"}, ordering_key="ann")
    packet = read_message(message)
    assert (packet.body, packet.id, packet.ordering_key, packet.headers) == (b"x", "", "ann", {"kind": "order"})
