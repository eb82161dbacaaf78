"""Writing a packet into an SQS message, and reading it back.

A body on SQS is text without control characters, and not empty; other bodies travel in base64. A message has at most
ten attributes, with plain names, whose values are such text. Headers that fit become attributes, so that other
consumers can read them and filter by them. All other headers, the id and the ordering key are JSON in one attribute,
``eo``.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from effectonce.backends.common.packets import deduplication_id, fit_id, random_id, read_own_field
from effectonce.contracts import Packet

#: The attribute that is ours, and how many others SQS allows beside it.
OWN_ATTRIBUTE: Final = "eo"
MAX_OTHER_ATTRIBUTES: Final = 9

#: An empty body; SQS requires one character at least.
EMPTY_BODY: Final = "="

_ALLOWED_TEXT: Final = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_ALLOWED_NAME: Final = re.compile(r"(?!(?:aws|amazon)\.|eo$)[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE | re.ASCII)
_ALLOWED_ID: Final = re.compile(r"[!-~]{1,128}")


def make_entry(packet: Packet, *, fifo: bool = False) -> dict[str, Any]:
    """Make the entry of a batch call that sends ``packet``. SQS takes a delay in whole seconds, so it is rounded
    up."""
    delay_s = math.ceil(packet.delay_s)
    packet = packet.for_broker("sqs")
    own: dict[str, Any] = {"id": packet.id} if packet.id else {}
    if packet.ordering_key is not None:
        own["key"] = packet.ordering_key
    body = _body_text(packet.body)
    if body is None:
        body = base64.b64encode(packet.body).decode() or EMPTY_BODY
        own["base64"] = True
    attributes: dict[str, dict[str, str]] = {}
    unfit: dict[str, str] = {}
    for name, value in packet.headers.items():
        if (
            len(attributes) < MAX_OTHER_ATTRIBUTES
            and len(name) <= 256
            and _ALLOWED_NAME.fullmatch(name)
            and _ALLOWED_TEXT.fullmatch(value)
        ):
            data_type = "Number" if name in packet.numbers and value.isdecimal() else "String"
            attributes[name] = {"DataType": data_type, "StringValue": value}
        else:
            unfit[name] = value
    if unfit:
        own["headers"] = unfit
    if own:
        attributes[OWN_ATTRIBUTE] = {"DataType": "String", "StringValue": json.dumps(own)}
    entry: dict[str, Any] = {"MessageBody": body, "MessageAttributes": attributes}
    if delay_s:
        entry["DelaySeconds"] = delay_s
    if fifo:
        group = packet.ordering_key
        entry["MessageGroupId"] = random_id() if group is None else fit_id(group, _ALLOWED_ID)
        entry["MessageDeduplicationId"] = deduplication_id(packet, _ALLOWED_ID)  # SQS drops a second one for 5 minutes
    return entry


def message_size(entry: Mapping[str, Any]) -> int:
    """The size of a message in bytes, as SQS counts it."""
    attributes = entry["MessageAttributes"].items()
    return len(entry["MessageBody"].encode()) + sum(
        len(name) + len(value["DataType"]) + len(value["StringValue"].encode()) for name, value in attributes
    )


def read_packet(message: Mapping[str, Any]) -> Packet:
    """Read the packet in a message, which another producer may have sent."""
    headers: dict[str, str] = {}
    numbers: set[str] = set()
    for name, attribute in message.get("MessageAttributes", {}).items():
        if "StringValue" in attribute:
            headers[name] = attribute["StringValue"]
            if attribute.get("DataType") == "Number" and headers[name].isdecimal():
                numbers.add(name)
        else:
            headers[name] = base64.b64encode(attribute.get("BinaryValue", b"")).decode()
    own = read_own_field(headers.pop(OWN_ATTRIBUTE, None))
    headers.update(own.get("headers", {}))
    body = message["Body"].encode()
    if own.get("base64"):
        body = b"" if body == EMPTY_BODY.encode() else base64.b64decode(body)
    return Packet(
        body=body,
        headers=headers,
        id=own.get("id", ""),
        ordering_key=own.get("key"),
        numbers=frozenset(numbers),
    )


def _body_text(body: bytes) -> str | None:
    """``body`` as text; None where it is not text that SQS accepts."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if _ALLOWED_TEXT.fullmatch(text) else None
