"""Writing a packet into a Kafka record, and reading it back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from effectonce.contracts import Packet

#: A record gets the time at which its message was made as its timestamp, if that is at most so long ago.
MAX_TIMESTAMP_AGE_S: Final = 3600.0
#: Headers of ours that packets do not show.
ID_HEADER: Final = "eo-id"
ORDERING_KEY: Final = "eo-ordering-key"


class KafkaRecord(NamedTuple):
    """A record as it is sent. ``value`` None is a tombstone; ``timestamp`` is in milliseconds, 0: now."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp: int = 0


def make_record(packet: Packet) -> KafkaRecord:
    """Make the record that carries ``packet``."""
    packet = packet.for_broker("kafka")
    headers = [(name, value.encode()) for name, value in packet.headers.items()]
    if packet.id:
        headers.append((ID_HEADER, packet.id.encode()))
    key = None if packet.ordering_key is None else packet.ordering_key.encode()
    return KafkaRecord(key, packet.body, headers, _recent_timestamp(packet.fields.get("timestamp", 0)))


def _recent_timestamp(milliseconds: str | int) -> int:
    """``milliseconds``, or 0 (now) where that is long ago: retention counts from the timestamp, so Kafka would delete
    an old record soon."""
    milliseconds = int(milliseconds)
    return milliseconds if abs(time.time() * 1000 - milliseconds) < MAX_TIMESTAMP_AGE_S * 1000 else 0


def read_packet(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]] | None) -> Packet:
    """Read the packet in a record. Another producer may have written it, so bytes that are not UTF-8 are escaped."""
    texts = {name: _escape(text) for name, text in headers or () if text is not None}
    id = texts.pop(ID_HEADER, "")
    ordering_key = texts.pop(ORDERING_KEY, None) if key is None else _escape(key)
    return Packet(body=value or b"", headers=texts, id=id, ordering_key=ordering_key)


def _escape(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
