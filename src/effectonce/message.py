"""`Message`: what a producer sends and a handler receives. Every redelivery has the same id."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from typing import Final, Generic, TypeVar
from uuid import UUID

import msgspec

T = TypeVar("T")

REDRIVEN_HEADER: Final = "eo-redriven"
"""The header of a message that a redrive has published again. It stays through every retry; each redrive sets another
value."""

BYPASS_PREFIX: Final = "bypass"
"""How the value of that header begins if the redrive asks handlers to skip external effects."""

CAUSE_HEADER: Final = "eo-dead"
"""The header of a dead letter that says why it is one, as JSON: a `worker.dead_letter_cause.Cause`. Brokers that have
words of their own for a reason read and write its ``why``, ``text`` and ``traceback``."""


class TraceContext(msgspec.Struct, frozen=True):
    """A span of a distributed trace, by the names of W3C's trace context. Without ``parent_id``: the whole trace."""

    trace_id: str
    parent_id: str | None = None
    flags: str | None = None


_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")


class Message(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One message. The producer makes its ``id`` once. Duplicates share its ``key``, which is the id by default.

    Messages of one ``ordering_key`` stay in order; a chain of messages has one ``trace_id``. W3C trace context goes
    into ``headers`` as ``traceparent`` and ``tracestate``. ``source`` is who produced the message and ``time`` when, as
    far as the envelope keeps them. ``attempt`` is how often a worker has started on it; outside of a worker, how often
    the broker has delivered it, where that counts. It is not part of the key.
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

    def with_attempt(self, attempt: int) -> Message[T]:
        """The message with the broker's count of deliveries, unless it brought a higher count with it."""
        return self if attempt <= self.attempt else msgspec.structs.replace(self, attempt=attempt)

    @property
    def trace_context(self) -> TraceContext | None:
        """The trace of the message: from its header ``traceparent``, otherwise from its ``trace_id``. None if it has
        neither, or if they are malformed."""
        traceparent = _TRACEPARENT.fullmatch(self.headers.get("traceparent", ""))
        if traceparent is not None:
            return TraceContext(*traceparent.groups())
        trace_id = (self.trace_id or "").replace("-", "").lower()
        return TraceContext(trace_id) if _TRACE_ID.fullmatch(trace_id) else None

    @property
    def redriven(self) -> bool:
        """Whether the message comes from a redrive."""
        return REDRIVEN_HEADER in self.headers


def message_id() -> str:
    """A new UUIDv7: unique, and ordered by time, which keeps the indexes of dedup tables compact."""
    milliseconds = time.time_ns() // 1_000_000
    version_4 = UUID(bytes=milliseconds.to_bytes(6, "big") + os.urandom(10), version=4)
    return str(UUID(int=version_4.int | 0b0111 << 76))  # Python 3.11 makes no version 7; a 4 has the bits 0100
