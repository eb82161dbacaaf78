"""Trace contexts of OpenTelemetry: in the headers of messages, and in the records of results and sagas.

Errors of propagators are logged, and change no outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import DecodeError, json
from msgspec.structs import replace
from opentelemetry import context, propagate, trace
from opentelemetry.trace import Link, SpanContext, TraceFlags

from effectonce.contracts.outbox import OutboxRow
from effectonce.message import Message

TRACEPARENT_HEADER = "traceparent"

T = TypeVar("T")

log = logging.getLogger("effectonce")


def log_errors(work: Callable[[], T], otherwise: T) -> T:
    """Run ``work``. If it raises, log that and return ``otherwise``: tracing must not change an outcome."""
    try:
        return work()
    except Exception:
        log.exception("OpenTelemetry failed: this operation is not traced; its outcome is unaffected")
        return otherwise


# -- in headers


def with_trace_header(message: Message[Any]) -> Message[Any]:
    """``message`` with the current context in its headers, by the program's propagators. Unchanged if it brings one, or
    if there is none."""

    def inject() -> Message[Any]:
        if not isinstance(message, Message) or TRACEPARENT_HEADER in message.headers:
            return message
        headers = dict(message.headers)
        propagate.inject(headers)
        return replace(message, headers=headers) if headers != message.headers else message

    return log_errors(inject, message)


def extract_context(headers: Mapping[str, str]) -> context.Context:
    empty = context.Context()
    return log_errors(lambda: propagate.extract(headers, context=empty), empty)


def continue_trace(headers: Mapping[str, str]) -> None:
    """Make the trace in ``headers`` the current one. Without one, leave that of the message before."""
    if TRACEPARENT_HEADER in headers:
        context.attach(extract_context(headers))
    elif trace.get_current_span().get_span_context().is_remote:
        context.attach(context.Context())


def headers_of(row: OutboxRow) -> dict[str, str]:
    try:
        return json.decode(row.headers, type=dict[str, str])
    except DecodeError:  # another program wrote the row, and it cannot be published either
        return {}


def links_from_headers(headers: Mapping[str, str]) -> list[Link]:
    """Return a link to the span in the headers; [] if there is none."""
    if TRACEPARENT_HEADER not in headers:
        return []
    span = trace.get_current_span(extract_context(headers)).get_span_context()
    return [Link(span)] if span.is_valid else []


# -- in records


def encode_context(span: SpanContext) -> bytes:
    return f"{span.trace_id:032x}{span.span_id:016x}".encode() if span.is_valid else b""


def links_to_stored(encoded: bytes, what: str) -> list[Link]:
    """Return a link to the span that `encode_context` encoded; [] if there is none, or it cannot be read. ``what`` says
    which span that is."""
    try:
        span = SpanContext(int(encoded[:32], 16), int(encoded[32:], 16), True, TraceFlags(TraceFlags.SAMPLED))
    except ValueError:
        return []
    return [Link(span, {"effectonce.link": what})] if span.is_valid else []
