"""A delay before delivery, as callers of `Broker.publish` and `Outbox.send` give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from effectonce.contracts import Packet
from effectonce.errors import InvalidOption, show
from effectonce.message import Message
from effectonce.values.durations import Duration, micros


def read_delay(delay: Duration | None, messages: Sequence[Message[Any]]) -> int:
    """Read the ``delay`` of ``messages`` in microseconds; 0: there is none.

    Raises `InvalidOption` if one of them has an ordering key: those behind it would have to wait as long, or overtake
    it.
    """
    if delay is None:
        return 0
    for message in messages:
        if message.ordering_key is not None:
            raise InvalidOption(
                f"message {show(message.id)} has the ordering key {show(message.ordering_key)}, so it cannot have a "
                "delay: those behind it would wait as long, or overtake it; send it without one of them"
            )
    return micros(delay, "delay")


def delay_packets(packets: Sequence[Packet], delay_s: float) -> list[Packet]:
    """Return ``packets`` with this delay."""
    return [replace(packet, delay_s=delay_s) for packet in packets]
