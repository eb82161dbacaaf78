"""Writing a packet into a message of Azure Service Bus, and reading it back, also from a dead letter.

Headers are application properties. The packet's id is the MessageId, by which the queue detects duplicates. A delayed
copy and a redriven dead letter must not be taken for duplicates: so they have another MessageId, and the packet's id is
a property.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from zlib import crc32

from effectonce.backends.common.packets import deduplication_id, fit_id, random_id
from effectonce.contracts import Packet
from effectonce.message import CAUSE_HEADER

#: Properties of ours that packets do not show. ``ATTEMPTS_PROPERTY``: how often the message was delivered before its
#: last delay.
ID_PROPERTY: Final = "eo-id"
ORDERING_KEY: Final = "eo-ordering-key"
ATTEMPTS_PROPERTY: Final = "eo-deliveries"
_OWN_PROPERTIES: Final = (ID_PROPERTY, ORDERING_KEY, ATTEMPTS_PROPERTY)
#: Fields of a message beside its properties, which a packet keeps in `Packet.fields`.
_FIELDS: Final = ("subject", "correlation_id", "content_type")

#: Properties that the service itself writes into a dead letter.
REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"
#: The longest description that the service accepts.
MAX_DESCRIPTION_CHARS: Final = 4000
#: The reason of a dead letter whose description holds our headers.
OWN_REASON: Final = "effectonce"

_ALLOWED_ID: Final = re.compile(r".{0,128}", re.DOTALL)
#: The SDK writes numbers of 32 bits only.
MAX_INT: Final = (1 << 31) - 1
#: How many sessions the messages without an ordering key are spread over.
UNORDERED_SESSIONS: Final = 8


def make_message(packet: Packet, *, sessions: bool = False, attempts: int = 0) -> Any:
    """Make the SDK's message that carries ``packet``. For a delayed copy, ``attempts`` is how often the message was
    delivered before. A delay ends at a time on this machine's clock, which the service compares with its own."""
    from azure.servicebus import ServiceBusMessage

    delay_s = packet.delay_s
    packet = packet.for_broker("servicebus")
    fields: dict[str, Any] = {name: packet.fields[name] for name in _FIELDS if name in packet.fields}
    if delay_s:
        fields["scheduled_enqueue_time_utc"] = datetime.now(UTC) + timedelta(seconds=delay_s)
    properties: dict[str | bytes, Any] = {
        name: int(value) if name in packet.numbers and value.lstrip("-").isdecimal() else value
        for name, value in packet.headers.items()
    }
    fields["message_id"] = random_id() if attempts else deduplication_id(packet, _ALLOWED_ID)
    if fields["message_id"] != packet.id:
        properties[ID_PROPERTY] = packet.id
    if packet.ordering_key is not None:
        properties[ORDERING_KEY] = packet.ordering_key
    if attempts:
        properties[ATTEMPTS_PROPERTY] = attempts
    if sessions:
        fields["session_id"] = _session_id(packet.ordering_key, packet.id or fields["message_id"])
    return ServiceBusMessage(packet.body, application_properties=properties, **fields)


def _session_id(ordering_key: str | None, id: str) -> str:
    if ordering_key is None:
        return f"eo-{crc32(id.encode()) % UNORDERED_SESSIONS}"
    return fit_id(ordering_key, _ALLOWED_ID)


class ReceivedMessage(NamedTuple):
    """A packet as it was received, and how often it was delivered, this time included."""

    packet: Packet
    attempt: int


def read_packet(message: Any) -> ReceivedMessage:
    """Read the packet in a received message, which another sender may have sent."""
    headers: dict[str, str] = {}
    numbers: set[str] = set()
    own: dict[str, Any] = {}
    for raw, value in (message.application_properties or {}).items():
        name = raw.decode() if isinstance(raw, bytes) else raw
        if name in _OWN_PROPERTIES or name in (REASON, DESCRIPTION):
            own[name] = value.decode() if isinstance(value, bytes) else value
        elif (text := property_text(value)) is not None:
            headers[name] = text
            if type(value) is int and -MAX_INT <= value <= MAX_INT:
                numbers.add(name)
    if own.get(REASON) is not None:
        headers |= _read_cause(own[REASON], own.get(DESCRIPTION) or "")
    packet = Packet(
        body=_read_body(message),
        headers=headers,
        id=str(own.get(ID_PROPERTY, message.message_id or "")),
        ordering_key=own.get(ORDERING_KEY),
        numbers=frozenset(numbers),
        fields={name: str(getattr(message, name)) for name in _FIELDS if getattr(message, name, None) is not None},
    )
    attempts = own.get(ATTEMPTS_PROPERTY, 0)
    attempts_before_delay = attempts if isinstance(attempts, int) else 0
    return ReceivedMessage(packet, attempts_before_delay + (message.delivery_count or 0) + 1)


def property_text(value: Any) -> str | None:
    """Turn a property's value into the text of a header; None: leave the header out."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def write_description(headers: Mapping[str, str]) -> str:
    """Write ``headers`` into the description of a dead letter, as JSON. Where they are too long, the beginning of the
    traceback in a worker's cause is cut, and then the longest headers."""
    cut = dict(headers)
    while len(json.dumps(cut)) > MAX_DESCRIPTION_CHARS and (shorter := _shorten_traceback(cut.get(CAUSE_HEADER, ""))):
        cut[CAUSE_HEADER] = shorter
    while len(text := json.dumps(cut)) > MAX_DESCRIPTION_CHARS and any(cut.values()):
        name = max(cut, key=lambda name: len(cut[name]))
        cut[name] = cut[name][: len(cut[name]) // 2]
    return text


def _shorten_traceback(cause: str) -> str:
    """Return ``cause`` with the last half of its traceback; "" where it has none."""
    try:
        fields = json.loads(cause)
        traceback = fields.pop("traceback")
    except (ValueError, KeyError, AttributeError, TypeError):
        return ""
    kept = traceback[(len(traceback) + 1) // 2 :]
    return json.dumps({**fields, "traceback": kept} if kept else fields)


def _read_cause(reason: str, description: str) -> dict[str, str]:
    """Read the headers that `write_description` wrote. Where the service itself has dead-lettered the message, put its
    reason into the header in which a worker writes the cause."""
    if reason == OWN_REASON:
        try:
            headers = json.loads(description)
        except ValueError:
            headers = None
        if isinstance(headers, dict) and all(isinstance(value, str) for value in headers.values()):
            return headers
    return {CAUSE_HEADER: json.dumps({"why": reason, "text": description})}


def _read_body(message: Any) -> bytes:
    from azure.servicebus.amqp import AmqpMessageBodyType

    if message.body_type == AmqpMessageBodyType.DATA:
        return b"".join(message.body)
    return str(message).encode()
