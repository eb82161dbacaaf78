"""Traces without a tracer, and with one: the trace that messages carry, and spans of what a tool does.

A program that has no tracer attached to its outbox, broker or worker may trace all the same: then its messages carry
the trace on, and its handlers continue it. OpenTelemetry is not imported for that; only a program that has imported it
itself can have a trace.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from effectonce.contracts import WorkSpan
from effectonce.message import Message

if TYPE_CHECKING:
    from .store_runtime import StoreRuntime

log = logging.getLogger("effectonce")


def carry_trace(message: Message[Any]) -> Message[Any]:
    """``message`` with the trace of the caller in its headers. Unchanged if it brings one, or if there is none."""
    if sys.modules.get("opentelemetry.trace") is None or (trace_context := _load_trace_context()) is None:
        return message
    with_header: Message[Any] = trace_context.with_trace_header(message)
    return with_header


def continue_trace(headers: Mapping[str, str]) -> None:
    """Make the trace in ``headers`` the current one, for a handler that starts in a context of its own."""
    if sys.modules.get("opentelemetry.trace") is not None and (trace_context := _load_trace_context()) is not None:
        trace_context.continue_trace(headers)


@cache
def _load_trace_context() -> ModuleType | None:
    try:
        from effectonce.telemetry import trace_context  # above the core, for those who trace
    except Exception:  # a propagator is named that is not installed, for example
        log.exception("OpenTelemetry cannot be used: messages leave without their trace; nothing else is affected")
        return None
    return trace_context


class _NoSpan:
    def set(self, name: str, value: str | int) -> None:
        pass

    def record_error(self, error: BaseException) -> None:
        pass


_NO_SPAN: Final = nullcontext(_NoSpan())


def trace_work(
    runtime: StoreRuntime,
    name: str,
    facts: Mapping[str, str | int],
    *,
    recorded_by: bytes = b"",
    outside: bool = False,
) -> AbstractContextManager[WorkSpan]:
    """See `contracts.Tracer.trace_work`. Does nothing where no tracer is attached to the store."""
    if runtime.tracer is None:
        return _NO_SPAN
    private = runtime.privacy is not None
    return runtime.tracer.trace_work(name, facts, private=private, recorded_by=recorded_by, outside=outside)
