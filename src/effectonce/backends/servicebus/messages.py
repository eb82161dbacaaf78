"""A packet as a message of Azure Service Bus, and as a dead letter there.

Headers are application properties. The id is the MessageId, by which the queue detects duplicates; where it must not be
recognised (a delayed copy, a dead letter that is sent again) the MessageId is another, and the id a property.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, Final
from zlib import crc32

from effectonce.babelqueue import headers as bindings
from effectonce.backends.common.broker_errors import sent_again
from effectonce.contracts import Packet

#: Properties of ours that no packet shows. ``ATTEMPTS``: deliveries before the last delay.
ID: Final = "eo-id"
ORDERING_KEY: Final = "eo-ordering-key"
ATTEMPTS: Final = "eo-deliveries"
_OWN: Final = (ID, ORDERING_KEY, ATTEMPTS)

#: What the service itself writes on a dead letter.
REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"
#: How long the latter may be, in characters; and the sign that it holds our headers.
LONGEST: Final = 4000
GIVEN_UP: Final = "effectonce"

_LONGEST_ID: Final = 128
#: How many sessions those share that have no ordering key.
SPREAD: Final = 8


def message_of(packet: Packet, *, sessions: bool = False, before: int = 0) -> Any:
    """The SDK's message for ``packet``; ``before``: how often it was delivered before this copy of it was made."""
    from azure.servicebus import ServiceBusMessage

    fields: dict[str, Any] = {}
    properties: dict[str | bytes, Any] = dict(packet.headers.items())
    if bindings.is_babelqueue(packet.headers):
        fields = {"subject": packet.headers[bindings.JOB], "content_type": bindings.JSON}
        fields["correlation_id"] = packet.headers.get(bindings.TRACE)
        # The time of its creation is a number too, but the SDK writes none of more than 32 bits.
        if packet.headers[bindings.VERSION].isdecimal():
            properties[bindings.VERSION] = int(packet.headers[bindings.VERSION])
    known_as = packet.id if packet.id and not before and not sent_again(packet.headers) else ""
    fields["message_id"] = _plain(known_as) if known_as else os.urandom(16).hex()
    if fields["message_id"] != packet.id:
        properties[ID] = packet.id
    if packet.ordering_key is not None:
        properties[ORDERING_KEY] = packet.ordering_key
    if before:
        properties[ATTEMPTS] = before
    if sessions:
        key = packet.ordering_key
        other = crc32((packet.id or fields["message_id"]).encode()) % SPREAD
        fields["session_id"] = f"eo-{other}" if key is None else _plain(key)
    return ServiceBusMessage(packet.body, application_properties=properties, **fields)


def packet_of(message: Any) -> tuple[Packet, int]:
    """The packet of a received message, which may be another sender's, and how often it was delivered, this time
    included."""
    headers: dict[str, str] = {}
    own: dict[str, Any] = {}
    for raw, value in (message.application_properties or {}).items():
        name = raw.decode() if isinstance(raw, bytes) else raw
        if name in _OWN or name in (REASON, DESCRIPTION):
            own[name] = value.decode() if isinstance(value, bytes) else value
        elif (text := bindings.header_text(value)) is not None:
            headers[name] = text
    if bindings.VERSION in headers:  # others' messages have these in fields of their own only
        for name, value in ((bindings.JOB, message.subject), (bindings.TRACE, message.correlation_id)):
            if value is not None:
                headers.setdefault(name, str(value))
    if own.get(REASON) is not None:
        headers |= _why(own[REASON], own.get(DESCRIPTION) or "")
    id = own.get(ID, message.message_id or "")
    packet = Packet(body=_body(message), headers=headers, id=str(id), ordering_key=own.get(ORDERING_KEY))
    before = own.get(ATTEMPTS, 0)
    return packet, (before if isinstance(before, int) else 0) + (message.delivery_count or 0) + 1


def description_of(headers: Mapping[str, str]) -> str:
    """``headers`` as a dead letter's description: where they are too long, the longest are cut."""
    cut = dict(headers)
    while len(text := json.dumps(cut)) > LONGEST and any(cut.values()):
        name = max(cut, key=lambda each: len(cut[each]))
        cut[name] = cut[name][: len(cut[name]) // 2]
    return text


def _why(reason: str, description: str) -> dict[str, str]:
    """The headers that `description_of` has written, or what the service itself says, as a worker would."""
    if reason == GIVEN_UP:
        try:
            found = json.loads(description)
        except ValueError:
            found = None
        if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
            return found
    return {"eo-dead": json.dumps({"why": reason, "text": description})}


def _body(message: Any) -> bytes:
    from azure.servicebus.amqp import AmqpMessageBodyType

    if message.body_type == AmqpMessageBodyType.DATA:
        return b"".join(message.body)
    return str(message).encode()


def _plain(text: str) -> str:
    return text if len(text) <= _LONGEST_ID else hashlib.sha256(text.encode()).hexdigest()
