"""A packet as a message of SQS.

A body there is text without control characters, and not empty: others travel in base64. A message has at most ten
attributes, of plain names and of values that are such text: headers that fit are attributes, so that others can read
and filter by them. What does not fit, the id and the ordering key are JSON in one attribute, ``eo``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from effectonce.babelqueue import headers as bindings
from effectonce.backends.common.broker_errors import sent_again
from effectonce.contracts import Packet

#: The attribute that is ours, and how many others there may be beside it.
OWN: Final = "eo"
OTHERS: Final = 9

#: What BabelQueue's contract has as numbers.
NUMBERS: Final = (bindings.VERSION, bindings.CREATED)
#: A body in base64 that has no bytes; SQS wants one character at least.
EMPTY: Final = "="

_TEXT: Final = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_NAME: Final = re.compile(r"(?!(?:aws|amazon)\.|eo$)[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE | re.ASCII)
_PLAIN: Final = re.compile(r"[!-~]{1,128}")

#: What is asked for with every message.
SYSTEM: Final = ["ApproximateReceiveCount", "SentTimestamp"]


def entry_of(packet: Packet, *, fifo: bool = False) -> dict[str, Any]:
    """The entry of a batch that sends ``packet``."""
    own: dict[str, Any] = {"id": packet.id} if packet.id else {}
    if packet.ordering_key is not None:
        own["key"] = packet.ordering_key
    body = _text(packet.body)
    if body is None:
        body = base64.b64encode(packet.body).decode() or EMPTY
        own["base64"] = True
    attributes: dict[str, dict[str, str]] = {}
    rest: dict[str, str] = {}
    for name, value in packet.headers.items():
        if len(attributes) < OTHERS and len(name) <= 256 and _NAME.fullmatch(name) and _TEXT.fullmatch(value):
            kind = "Number" if name in NUMBERS and value.isdecimal() else "String"
            attributes[name] = {"DataType": kind, "StringValue": value}
        else:
            rest[name] = value
    if rest:
        own["headers"] = rest
    if own:
        attributes[OWN] = {"DataType": "String", "StringValue": json.dumps(own)}
    entry: dict[str, Any] = {"MessageBody": body, "MessageAttributes": attributes}
    if fifo:
        entry["MessageGroupId"] = _plain(packet.ordering_key) if packet.ordering_key is not None else unique()
        entry["MessageDeduplicationId"] = deduplication_id(packet)
    return entry


def deduplication_id(packet: Packet) -> str:
    """What SQS drops a second message by, for five minutes: the id."""
    return _plain(packet.id) if packet.id and not sent_again(packet.headers) else unique()


def size_of(entry: Mapping[str, Any]) -> int:
    """The size of a message as SQS counts it."""
    attributes = entry["MessageAttributes"].items()
    return len(entry["MessageBody"].encode()) + sum(
        len(name) + len(value["DataType"]) + len(value["StringValue"].encode()) for name, value in attributes
    )


def packet_of(message: Mapping[str, Any]) -> Packet:
    """The packet of a message, which may be another producer's."""
    headers: dict[str, str] = {}
    for name, attribute in message.get("MessageAttributes", {}).items():
        if "StringValue" in attribute:
            headers[name] = attribute["StringValue"]
        else:
            headers[name] = base64.b64encode(attribute.get("BinaryValue", b"")).decode()
    own = _own(headers.pop(OWN, None))
    headers.update(own.get("headers", {}))
    body = message["Body"].encode()
    if own.get("base64"):
        body = b"" if body == EMPTY.encode() else base64.b64decode(body)
    return Packet(body=body, headers=headers, id=own.get("id", ""), ordering_key=own.get("key"))


def unique() -> str:
    return os.urandom(16).hex()


def _text(body: bytes) -> str | None:
    """``body`` as a text that SQS takes."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if _TEXT.fullmatch(text) else None


def _plain(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def _own(text: str | None) -> dict[str, Any]:
    """What we have written there; nothing, where somebody else has."""
    try:
        own = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(own, dict) or not all(isinstance(own.get(name, ""), str) for name in ("id", "key")):
        return {}
    headers = own.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        return {}
    return own
