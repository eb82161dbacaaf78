"""What happens, for hooks, metrics and traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from msgspec import Struct

from effectonce.message import Message

from .brokers import Delivery
from .outbox import OutboxRow


class Event(Struct, frozen=True):
    """One thing that happened to one operation. Sinks are callables that take it and return fast.

    ``seconds``: of ``claimed`` how long the claim took (0 inside of this process), of what ends a run how long that
    was, of ``relay_paused`` how long it waits.
    """

    kind: Literal[
        "claimed",
        "completed",
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


Hook = Callable[[Event], Any]
Meter = Callable[[float], Any]


class Tracer(Protocol):
    """What connects the traces of those who send, those who handle, and duplicates. Its methods never raise what is not
    raised without it. ``system`` is the name of the broker."""

    def context(self) -> bytes:
        """Trace and span of the caller, 48 hexadecimal digits, to be kept with a result; b"": there is none."""
        ...

    def replayed(self, run: Any) -> None:
        """The caller gets the result of the run whose trace is ``run.trace``."""
        ...

    def created(self, queue: str, message: Message[Any]) -> Message[Any]:
        """``message`` as an outbox keeps it, with the trace in its headers."""
        ...

    def sending(
        self, system: str, queue: str, messages: Sequence[Message[Any]]
    ) -> AbstractContextManager[Sequence[Message[Any]]]:
        """Around a `publish`; gives the messages as they are sent."""
        ...

    def relayed(self, system: str, row: OutboxRow, seconds: float, error: Exception | None) -> None:
        """A relay has sent what an outbox kept, or failed to; it began ``seconds`` ago."""
        ...


class HandlerTracer(Protocol):
    """The same of one worker."""

    def handling(self, queue: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A handler, whose last argument is the message, inside of a span."""
        ...

    def skipped(self, queue: str, message: Message[Any], run: Any) -> None:
        """A duplicate is acked, whose result is that of the run with ``run.trace``."""
        ...

    def settled(self, queue: str, how: str, deliveries: Sequence[Delivery], seconds: float) -> None:
        """The broker was told what became of these: ``acked``, ``delayed`` or ``dead``; that took ``seconds``."""
        ...


class Selective(Protocol):
    """What a `Hook` may also have, so that it costs nothing for events that it does not want. Asked once for each kind
    and scope."""

    def wants(self, kind: str, scope: str) -> bool | Meter:
        """Whether it is called with such events; or what is called with their ``seconds`` alone, for those who count:
        then no `Event` is made."""
        ...
