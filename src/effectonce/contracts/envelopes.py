"""The seam to envelopes: how a message becomes a packet, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from effectonce.message import Message

from .brokers import Packet


class Envelope(Protocol):
    """How a message is written into a packet, and read back."""

    def encode(self, message: Message[Any], queue: str = "") -> Packet:
        """The packet for ``queue``: the same bytes however often it is encoded. `ConfigurationError` where the message
        cannot be written."""
        ...

    def decode(self, packet: Packet, data_type: Any = Any) -> Message[Any]:
        """The message in ``packet``, its data read as ``data_type``. `Undecodable`, which says why, for anything else
        that may have been sent; nothing but that."""
        ...


@runtime_checkable
class StableHeaders(Protocol):
    """An optional power of an `Envelope` whose headers brokers rename or leave out: it knows those that arrive as they
    were written. Only these can be signed."""

    def stable_headers(self, packet: Packet) -> Mapping[str, str]:
        """The same of a packet that was encoded, and of the packet that a broker then delivers."""
        ...
