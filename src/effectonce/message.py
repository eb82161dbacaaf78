"""A message: what a producer sends, with the id that every redelivery of it keeps."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from typing import Final, Generic, TypeVar

import msgspec

T = TypeVar("T")

REDRIVEN: Final = "eo-redriven"
"""The header of a message that a redrive has sent again, which stays through every retry; new with each redrive."""

BYPASS: Final = "bypass"
"""How that header begins where the redrive asks handlers to skip effects outside."""


class Traced(msgspec.Struct, frozen=True):
    """A place in a distributed trace, as W3C's trace context has it. Of a ``trace_id`` only the trace is known."""

    trace_id: str
    parent_id: str | None = None
    flags: str | None = None


_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")


class Message(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One message. ``id`` is minted by the producer, once; ``key`` (default: the id) is what duplicates share.

    ``ordering_key`` is what has to stay in order, ``trace_id`` what a chain of messages has in common; W3C trace
    context goes into ``headers`` as ``traceparent`` and ``tracestate``. ``source`` says who produced it and ``time``
    when, as far as the envelope keeps them. ``attempt`` is how often the broker has delivered it, where the broker
    says so; it is no part of the key.
    """

    data: T
    type: str = ""
    id: str = msgspec.field(default_factory=lambda: message_id())
    key: str = ""
    ordering_key: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    trace_id: str | None = None
    attempt: int = 1
    source: str = ""
    time: datetime | None = None

    def __post_init__(self) -> None:
        if not self.key:
            msgspec.structs.force_setattr(self, "key", self.id)

    def delivered(self, attempt: int) -> Message[T]:
        """The message as it was delivered for the ``attempt``-th time, by the broker's count. One that it brought with
        it, and is higher, stays."""
        return self if attempt <= self.attempt else msgspec.structs.replace(self, attempt=attempt)

    @property
    def traced(self) -> Traced | None:
        """The trace that it belongs to: by its header ``traceparent``, else by its ``trace_id``. One that is malformed
        counts as none."""
        found = _TRACEPARENT.fullmatch(self.headers.get("traceparent", ""))
        if found is not None:
            return Traced(*found.groups())
        plain = (self.trace_id or "").replace("-", "").lower()
        return Traced(plain) if _TRACE_ID.fullmatch(plain) else None

    @property
    def redriven(self) -> bool:
        """Whether it comes from a redrive."""
        return REDRIVEN in self.headers


def message_id() -> str:
    """A new UUIDv7: unique, and ordered by time, which keeps the indexes of dedup tables compact."""
    millis = time.time_ns() // 1_000_000
    bits = int.from_bytes(os.urandom(10), "big")
    value = (millis & (1 << 48) - 1) << 80 | 0x7 << 76 | (bits >> 68 & 0xFFF) << 64 | 0b10 << 62 | bits & (1 << 62) - 1
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
