"""Writing a packet into a Pub/Sub message, and reading it back.

A message has a body of bytes and up to a hundred attributes, which are short texts. Headers that fit become attributes,
so that other consumers can read them and subscriptions can filter by them. All other headers, the id, and an ordering
key that is too long are JSON in attributes of ours: ``eo``, continued in ``eo.1``, ``eo.2`` and so on.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from effectonce.backends.common.packets import fit_id, read_own_field
from effectonce.contracts import Packet
from effectonce.errors import ConfigurationError

OWN_ATTRIBUTE: Final = "eo"
#: How many attributes are ours, and how many others there may be: a message has a hundred.
MAX_OWN_ATTRIBUTES: Final = 20
MAX_OTHER_ATTRIBUTES: Final = 80
MAX_NAME_BYTES: Final = 256
MAX_VALUE_BYTES: Final = 1024

_RESERVED_NAME: Final = re.compile(r"goog.*|eo(\.\d+)?", re.DOTALL)
_ALLOWED_KEY: Final = re.compile(r".{1,256}", re.DOTALL)  # of at most four bytes each


def make_message(packet: Packet) -> Any:
    """Make the message, a protocol buffer, that carries ``packet``. `ConfigurationError` where its headers are too
    large."""
    from google.pubsub_v1.types import PubsubMessage

    packet = packet.for_broker("pubsub")
    own: dict[str, Any] = {"id": packet.id} if packet.id else {}
    ordering_key = ""
    if packet.ordering_key is not None:
        ordering_key = fit_id(packet.ordering_key, _ALLOWED_KEY)
        if ordering_key != packet.ordering_key:
            own["key"] = packet.ordering_key
    attributes: dict[str, str] = {}
    unfit: dict[str, str] = {}
    for name, value in packet.headers.items():
        if (
            len(attributes) < MAX_OTHER_ATTRIBUTES
            and not _RESERVED_NAME.fullmatch(name)
            and 0 < _encoded_size(name) <= MAX_NAME_BYTES
            and 0 < _encoded_size(value) <= MAX_VALUE_BYTES
        ):
            attributes[name] = value
        else:
            unfit[name] = value
    if unfit:
        own["headers"] = unfit
    if own or not packet.body:  # a message without a body has an attribute
        attributes |= _split_own(json.dumps(own))
    message: Any = PubsubMessage.pb()(data=packet.body, attributes=attributes, ordering_key=ordering_key)
    return message


def _encoded_size(text: str) -> int:
    """The size of ``text`` in bytes; -1 where it cannot be encoded."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:  # a lone surrogate
        return -1


def _split_own(text: str) -> dict[str, str]:
    """The attributes that hold ``text``, which is ASCII."""
    pieces = [text[start : start + MAX_VALUE_BYTES] for start in range(0, len(text), MAX_VALUE_BYTES)]
    if len(pieces) > MAX_OWN_ATTRIBUTES:
        limit = MAX_OWN_ATTRIBUTES * MAX_VALUE_BYTES
        raise ConfigurationError(
            f"the message's headers take {len(text)} bytes on Pub/Sub, beside those that are its attributes, and the "
            f"limit is {limit}; send less in headers"
        )
    return {_own_name(index): piece for index, piece in enumerate(pieces)}


def _own_name(index: int) -> str:
    return f"{OWN_ATTRIBUTE}.{index}" if index else OWN_ATTRIBUTE


def read_message(message: Any) -> Packet:
    """Read the packet in a message, which another producer may have sent."""
    headers = dict(message.attributes)
    own = read_own_field(_take_own(headers))
    headers.update(own.get("headers", {}))
    return Packet(
        body=message.data,
        headers=headers,
        id=own.get("id", ""),
        ordering_key=own.get("key", message.ordering_key or None),
    )


def _take_own(attributes: dict[str, str]) -> str | None:
    """Take our attributes out of ``attributes``, and return their text."""
    pieces = []
    for index in range(MAX_OWN_ATTRIBUTES):
        piece = attributes.pop(_own_name(index), None)
        if piece is None:
            break
        pieces.append(piece)
    return "".join(pieces) or None


def sent_at(message: Any) -> float:
    """When Pub/Sub took the message, in seconds since 1970."""
    return float(message.publish_time.ToMicroseconds() / 1e6)
