"""The seam to envelopes: how a message becomes a packet, and back."""

from __future__ import annotations

from typing import Any, Protocol

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
