"""The seam to telemetry: events, and the hooks, meters and tracers that receive them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from msgspec import Struct

from effectonce.message import Message

from .brokers import Delivery
from .outbox import OutboxRow


class Event(Struct, frozen=True):
    """One thing that happened to one operation. A hook takes it and returns fast.

    Kinds of mode T, where no store is asked: ``first``, the row of the message was committed, and its effect with it;
    ``recorded``, the row is in a transaction of the caller's, whose end the inbox does not see; ``duplicate``, the
    message was handled before; ``replayed``, the same, and the caller got the stored result.

    ``seconds``: for ``claimed``, how long the claim took (0 for a store in this process); for an event that ends a run,
    how long the run took; for ``relay_paused``, how long the relay waits.
    """

    kind: Literal[
        "claimed",
        "completed",
        "first",
        "recorded",
        "duplicate",
        "replayed",
        "in_progress",
        "in_doubt",
        "failed",
        "exhausted",
        "mismatch",
        "released",
        "lease_lost",
        "fenced",
        "missing_key",
        "unprotected",
        "result_not_stored",
        "unrecorded",
        "dead_lettered",
        "redriven",
        "swept",
        "sweep_failed",
        "resolved",
        "forgotten",
        "published",
        "publish_failed",
        "parked",
        "relay_paused",
    ]
    scope: str = ""
    key: str = ""
    attempt: int = 0
    token: int = 0
    seconds: float = 0.0
    detail: str = ""


#: Receives every event.
Hook = Callable[[Event], Any]


class WorkSpan(Protocol):
    """The span of a piece of work. Its methods never raise."""

    def set(self, name: str, value: str | int) -> None:
        """Set an attribute."""

    def record_error(self, error: BaseException) -> None:
        """Mark the work as failed with ``error``."""


class Tracer(Protocol):
    """Connects the traces of senders, handlers and duplicates. Tracing never makes a call fail. ``system`` is the name
    of the broker."""

    def current_context(self) -> bytes:
        """Trace and span of the caller, 48 hexadecimal digits, to be stored with a result; b"": there is none."""

    def link_replay(self, run: Any) -> None:
        """Link the caller's span to the run whose result it gets, by ``run.trace``."""

    def trace_work(
        self, name: str, facts: Mapping[str, str | int], *, private: bool, recorded_by: bytes, outside: bool
    ) -> AbstractContextManager[WorkSpan]:
        """A span around a saga, a step of one, or an intent, with ``facts`` as attributes. ``private``: an error may
        quote a key, and goes into it without its text. ``recorded_by``: the context, as `current_context` returns it,
        of the caller that recorded the work; b"": it is not known. ``outside``: another service does the work."""

    def inject_context(self, queue: str, message: Message[Any]) -> Message[Any]:
        """``message`` for an outbox, with the caller's trace in its headers."""

    def trace_publish(
        self, system: str, queue: str, messages: Sequence[Message[Any]]
    ) -> AbstractContextManager[Sequence[Message[Any]]]:
        """A span around a `publish`. Entering it returns the messages to send, with the trace in their headers."""

    def trace_relay(self, system: str, row: OutboxRow, seconds: float, error: Exception | None) -> None:
        """Record that a relay has sent a row of an outbox, or failed to; it began ``seconds`` ago."""


class HandlerTracer(Protocol):
    """The tracer of one worker."""

    def trace_handler(self, queue: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``function``, a handler whose last argument is the message, so that each call runs in a span."""

    def trace_duplicate(self, queue: str, message: Message[Any], run: Any) -> None:
        """Record that a duplicate was acked, linked to the run whose result it has, by ``run.trace``."""

    def trace_settlement(self, queue: str, how: str, deliveries: Sequence[Delivery], seconds: float) -> None:
        """Record that deliveries were settled in ``seconds``. ``how``: ``acked``, ``redelivered`` or ``dead``."""
