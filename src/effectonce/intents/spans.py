"""The span of an intent: one for each call of an operation that is not a replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from effectonce.contracts import WorkSpan
from effectonce.core.guarded_call.run import StoreRun
from effectonce.core.tracing import trace_work
from effectonce.errors import InDoubt, LeaseLost, NotExecuted, Retryable

if TYPE_CHECKING:
    from .operation import IntentOperation


@contextmanager
def intent_span(operation: IntentOperation[Any, Any], run: StoreRun) -> Iterator[WorkSpan]:
    """A span around the call of a provider, its lookups and its settlement.

    Before a normal end call `record_outcome`; otherwise the span has no outcome.
    """
    provider, name = operation.provider.name, operation.rules.operation
    facts = {"effectonce.provider": provider, "effectonce.operation": name, "effectonce.scope": run.scope}
    with trace_work(run.runtime, f"intent {provider} {name}", facts, outside=True) as span:
        try:
            yield span
        except BaseException as error:
            span.set("effectonce.outcome", _outcome_of(error))
            raise


def record_outcome(span: WorkSpan, error: BaseException | None) -> None:
    """Note how the intent ended: with ``error``, or as a success."""
    span.set("effectonce.outcome", _outcome_of(error))
    if error is not None:
        span.record_error(error)


def _outcome_of(error: BaseException | None) -> str:
    """The kind of a verdict, or ``in_doubt``."""
    if error is None:
        return "success"
    if isinstance(error, InDoubt):
        return "in_doubt"
    if isinstance(error, NotExecuted):
        return "not_executed"
    if isinstance(error, Retryable | LeaseLost) or not isinstance(error, Exception):
        return "unknown"
    return "failure"
