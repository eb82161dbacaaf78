"""The taints of values: marks that say where a value comes from, whatever was done with it since.

A taint is a text. Three kinds have a detail, which messages show: ``field:order_id``, ``unstable:the delivery tag``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

MESSAGE: Final = "message"
"""It comes from the message that is handled."""
PAYLOAD: Final = "payload"
"""It is the message's whole body, or made from it."""
DIGEST: Final = "digest"
"""It is a hash of the whole body."""

TaintKind = Literal["field", "unstable", "attempt"]

OFFSET: Final = "the offset"
STREAM_SEQUENCE: Final = "the stream sequence"
"""Two details of "unstable" that `checks.keys` treats in a way of its own."""


def field_taint(name: str) -> str:
    """The taint of a field of the message."""
    return f"field:{name}"


def unstable_taint(what: str) -> str:
    """The taint of what differs between deliveries of one message."""
    return f"unstable:{what}"


def attempt_taint(what: str) -> str:
    """The taint of what counts the attempts."""
    return f"attempt:{what}"


ATTEMPT_NUMBER: Final = attempt_taint("the attempt's number")
"""The taint of the variable of a retry loop."""


def taint_details(taints: Iterable[str], kind: TaintKind) -> list[str]:
    """The details of the taints of one kind, sorted: for "field", the names of the fields."""
    prefix = f"{kind}:"
    return sorted(taint.removeprefix(prefix) for taint in taints if taint.startswith(prefix))
