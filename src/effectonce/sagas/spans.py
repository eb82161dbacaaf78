"""The spans of a saga: one for each run of it, and in it one for each call of a step or of a compensation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from effectonce.contracts import WorkSpan
from effectonce.core.tracing import trace_work
from effectonce.errors import InDoubt, SagaFailed

from .claimed_saga import ClaimedSaga
from .parts import SagaPart
from .steps import StepCall


@contextmanager
def saga_span(claimed: ClaimedSaga) -> Iterator[None]:
    """A span around one run of a saga. If it was recorded in another trace, it has a link to that."""
    run = claimed.run
    facts: dict[str, str | int] = {"effectonce.scope": run.scope, "effectonce.attempt": run.attempt}
    with trace_work(run.runtime, f"saga {claimed.name}", facts, recorded_by=claimed.log.trace) as span:
        try:
            yield
        except BaseException as error:
            span.set("effectonce.outcome", _outcome_of(error))
            raise
        span.set("effectonce.outcome", "done")


def _outcome_of(error: BaseException) -> str:
    if isinstance(error, SagaFailed):
        return "failed"
    return "in_doubt" if isinstance(error, InDoubt) else "unfinished"


@contextmanager
def step_span(claimed: ClaimedSaga, part: SagaPart) -> Iterator[WorkSpan]:
    """A span around one call of a step or of its compensation."""
    run, verb = claimed.run, "compensate" if part.undoes else "step"
    facts: dict[str, str | int] = {
        "effectonce.scope": run.scope,
        "effectonce.step": part.name,
        "effectonce.attempt": part.progress.attempts,
    }
    with trace_work(run.runtime, f"{verb} {part.name}", facts) as span:
        yield span


def record_end(span: WorkSpan, call: StepCall) -> None:
    """Note the error that ended a call, or that it has exceeded its timeout."""
    if not call.finished:
        span.record_error(TimeoutError("it has exceeded its timeout"))
    elif call.error is not None:
        span.record_error(call.error)
