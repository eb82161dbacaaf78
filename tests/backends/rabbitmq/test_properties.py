"""The properties of a message on the wire, as another implementation of AMQP writes and reads them."""

from __future__ import annotations

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effectonce.backends.rabbitmq.properties import make_properties, read_properties

NAMES = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=20).map("h-{}".format)
VALUES = st.text(max_size=50) | st.integers(-(2**63), 2**63 - 1)
PROPERTIES = st.sampled_from(["content-type", "content-encoding", "correlation-id", "reply-to", "type", "app-id"])


@given(
    id=st.text(max_size=40),
    headers=st.dictionaries(NAMES, VALUES, max_size=5),
    properties=st.dictionaries(PROPERTIES, st.text(min_size=1, max_size=40)),
)
def test_another_driver_reads_what_is_sent(id: str, headers: dict[str, str | int], properties: dict[str, str]) -> None:
    written = make_properties(id, {**headers, **properties}.items())
    read = pika.BasicProperties().decode(written)
    assert (read.message_id or "", read.delivery_mode, read.headers or {}) == (id, 2, headers)
    assert {name: getattr(read, name.replace("-", "_")) for name in properties} == properties


@given(
    id=st.text(max_size=40),
    headers=st.dictionaries(NAMES, VALUES, max_size=5),
    properties=st.dictionaries(PROPERTIES, st.text(min_size=1, max_size=40)),
)
def test_what_another_driver_sends_is_read(id: str, headers: dict[str, str | int], properties: dict[str, str]) -> None:
    fields = {name.replace("-", "_"): value for name, value in properties.items()}
    sent = pika.BasicProperties(message_id=id, headers=headers, priority=3, timestamp=1, expiration="1000", **fields)
    read = read_properties(bytes(12) + b"".join(sent.encode()))  # after class, weight and size of the body
    assert read.id == id
    assert read.headers == {**{name: str(value) for name, value in headers.items()}, **properties}
    assert read.numbers == {name for name, value in headers.items() if isinstance(value, int)}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"T" + (2**63).to_bytes(8, "big"), "\\x80" + 7 * "\0"),  # a time that no calendar has
        (b"?" + len(b"odd").to_bytes(4, "big") + b"odd", "\0\0\0\x03odd"),  # a type that the driver does not know
    ],
    ids=["time", "type"],
)
def test_a_header_that_the_driver_cannot_decode_is_kept_as_its_bytes(value: bytes, text: str) -> None:
    table = b"\x03bad" + value + b"\x04goodS" + len(b"yes").to_bytes(4, "big") + b"yes"
    header = bytes(12) + (1 << 13).to_bytes(2, "big") + len(table).to_bytes(4, "big") + table
    assert read_properties(header).headers == {"bad": text, "good": "yes"}
