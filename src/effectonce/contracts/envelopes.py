"""The seam to envelopes: how a message becomes a packet, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from effectonce.message import Message

from .brokers import Packet


class Envelope(Protocol):
    """How a message is written into a packet, and read back."""

    def encode(self, message: Message[Any], queue: str = "") -> Packet:
        """Write ``message`` into a packet for ``queue``. The same message always gives the same bytes. Raises
        `ConfigurationError` where the message cannot be written."""

    def decode(self, packet: Packet, data_type: Any = Any) -> Message[Any]:
        """Read the message in ``packet``, with its data as ``data_type``.

        A packet may hold anything that some program has sent. Raises `Undecodable` with the reason for every packet
        that is not such a message, and never another exception: the worker makes a dead letter of an `Undecodable`.
        """


@runtime_checkable
class StableHeaders(Protocol):
    """An optional ability of an `Envelope`: to name the headers that arrive as they were written, where brokers rename
    or leave out some of its others. Only stable headers can be signed."""

    def stable_headers(self, packet: Packet) -> Mapping[str, str]:
        """The headers of ``packet`` that no broker changes. The result must be the same for an encoded packet and for
        the packet that a broker then delivers, or signatures will not match."""
