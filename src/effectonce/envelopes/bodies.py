"""Writing and reading the bodies of packets, for all envelopes: JSON or bytes, content types, the limit of their
size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from effectonce.contracts import Packet
from effectonce.core.codec import json_decoder, to_json
from effectonce.core.interrupts import raise_interrupt
from effectonce.errors import ConfigurationError, Undecodable, show
from effectonce.message import Message

#: The longest body that is written or read by default: what most brokers accept without being configured.
DEFAULT_MAX_BODY_BYTES: Final = 1 << 20
JSON_CONTENT: Final = "application/json"
BYTES_CONTENT: Final = "application/octet-stream"
BYTES_TYPES: Final = (bytes, bytearray, memoryview)


def body_too_large(packet: Packet, limit: int) -> Undecodable:
    """The error for a packet whose body is longer than ``limit`` bytes, and therefore not parsed."""
    return Undecodable(
        f"the body has {len(packet.body)} bytes, over the limit of {limit}; raise the envelope's max_body"
    )


def is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == JSON_CONTENT or media_type.endswith("+json")


def make_packet(
    message: Message[Any], body: bytes, headers: Mapping[str, str], limit: int, kind: type[Packet] = Packet
) -> Packet:
    """Make the packet of ``message``. `ConfigurationError` where it cannot be sent."""
    if len(body) > limit:
        raise ConfigurationError(
            f"message {show(message.id)} has a body of {len(body)} bytes, over the limit of {limit}; keep large data "
            "elsewhere and send a reference to it, or raise max_body here and at the consumers"
        )
    if not message.id or not all(type(name) is str and type(value) is str for name, value in message.headers.items()):
        raise ConfigurationError(f"message {show(message.id)!r} needs an id, and headers that are strings")
    return kind(body=body, headers=headers, id=message.id, ordering_key=message.ordering_key)


def write_json(value: Any, message: Message[Any]) -> bytes:
    """Write ``value``, which is or holds the data of ``message``, as JSON."""
    try:
        return to_json(value)
    except Exception as error:
        raise_interrupt(error)
        raise ConfigurationError(f"the data of message {show(message.id)} has no JSON form: {show(error)}") from error


def write_data(message: Message[Any]) -> tuple[bytes, str]:
    """Write the data of ``message`` as a body: bytes as they are, all else as JSON. Returns its content type, too."""
    if isinstance(message.data, BYTES_TYPES):
        return bytes(message.data), BYTES_CONTENT
    return write_json(message.data, message), JSON_CONTENT


def read_json(body: bytes | msgspec.Raw, type_: Any, what: str) -> Any:
    """Read ``body`` as ``type_``. Every defect of it raises `Undecodable`, whose message calls it ``what``."""
    decode = _decoder(type_)
    try:
        return decode(body)
    except Exception as error:  # a model's own validators may raise anything, and the nesting may be too deep
        raise_interrupt(error)
        raise Undecodable(f"{what} cannot be read: {show(error, 300) or type(error).__name__}") from error


@lru_cache(512)
def _decoder(type_: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    try:
        return json_decoder(type_)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"messages cannot be read as {type_!r}: {error}; name another type") from error
