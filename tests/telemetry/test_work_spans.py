"""Sagas and intents as spans: what ran, which attempt, how it ended; and no key and no payload."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

import effectonce as eo
from effectonce.providers import Verdict

from .test_opentelemetry import Broken, Watching, id_of, parent_of, trace_of, watching

__all__ = ["watching"]  # a fixture

SECRET = "ann@example.org"


@pytest.fixture(params=["plain", "private"])
def store(request: pytest.FixtureRequest, tmp_path: Path, watching: Watching) -> eo.Store:
    private = "s" * 32 if request.param == "private" else None
    store = eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None, private=private)
    watching.tracing.watch(store)
    return store


def facts(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("effectonce."): value for name, value in (span.attributes or {}).items()}


def everything(span: ReadableSpan) -> str:
    """All texts of a span, its errors without the lines of code."""
    events = [f"{event.name} {event.attributes}" for event in span.events]
    return f"{span.name} {dict(span.attributes or {})} {span.status.description} {events}"


def order_saga(store: eo.Store, *, is_async: bool, failures: int = 0, fails: bool = False) -> eo.Saga[str]:
    saga = eo.Saga("order", store, input=str)
    left = [LookupError("no funds")] * failures

    @saga.step()
    def reserve(order: str) -> str:
        return "shelf 4"

    @reserve.compensate
    def release(order: str) -> None: ...

    def charge_now(order: str) -> str:
        if left:
            raise left.pop()
        if fails:
            raise ValueError("declined")
        return "ch_1"

    async def charge_async(order: str) -> str:
        await asyncio.sleep(0)
        return charge_now(order)

    saga.step(name="charge", retry=eo.Retry(2, first="1ms"))(charge_async if is_async else charge_now)
    return saga


def run(saga: eo.Saga[str], id: str) -> Any:
    return asyncio.run(saga.arun(id, SECRET)) if saga.is_async else saga.run(id, SECRET)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_saga_is_a_span_with_one_for_each_call_of_a_step(store: eo.Store, watching: Watching, is_async: bool) -> None:
    with watching.tracer.start_as_current_span("checkout"):
        run(order_saga(store, is_async=is_async, failures=1), SECRET)
    (checkout,), (saga,) = watching.spans("checkout"), watching.spans("saga order")
    reserve, failed, charge = watching.spans("step")
    assert parent_of(saga) == id_of(checkout)
    assert {parent_of(span) for span in (reserve, failed, charge)} == {id_of(saga)}
    assert facts(saga) == {"scope": "saga/order", "attempt": 1, "outcome": "done"}
    assert [span.name for span in (reserve, failed, charge)] == ["step reserve", "step charge", "step charge"]
    assert facts(reserve) == {"scope": "saga/order", "step": "reserve", "attempt": 1}
    assert facts(failed) == {"scope": "saga/order", "step": "charge", "attempt": 1, "error.type": "LookupError"}
    assert facts(charge) == {"scope": "saga/order", "step": "charge", "attempt": 2}
    assert [span.status.status_code for span in (saga, reserve, failed, charge)] == [
        StatusCode.UNSET,
        StatusCode.UNSET,
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]
    assert not saga.links
    assert {span.kind for span in (saga, reserve, failed, charge)} == {SpanKind.INTERNAL}
    assert not [span for span in watching.spans() if SECRET in everything(span)]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_compensation_is_a_span_and_the_saga_has_failed(store: eo.Store, watching: Watching, is_async: bool) -> None:
    with pytest.raises(eo.SagaFailed):
        run(order_saga(store, is_async=is_async, fails=True), "o-1")
    (saga,), (undo,) = watching.spans("saga order"), watching.spans("compensate")
    assert (undo.name, parent_of(undo)) == ("compensate reserve", id_of(saga))
    assert (facts(saga)["outcome"], facts(saga)["error.type"]) == ("failed", "SagaFailed")
    text = "SagaFailed" if store.private else "SagaFailed: saga order 'o-1' failed at step charge: ValueError: declined"
    assert (saga.status.description or "").startswith(text)
    assert ("declined" in everything(saga)) is not store.private
    assert "in charge_now" in str(watching.spans("step charge")[-1].events[0].attributes), "the lines of code, always"


def test_a_saga_that_is_left_to_resume_is_linked_to_who_recorded_it(store: eo.Store, watching: Watching) -> None:
    saga = order_saga(store, is_async=False)
    with watching.tracer.start_as_current_span("checkout"):
        saga.start("o-1", "in")
    with watching.tracer.start_as_current_span("sweep"):
        assert saga.resume().done == 1
    (checkout,), (resumed,) = watching.spans("checkout"), watching.spans("saga order")
    (link,) = resumed.links
    assert (link.context.trace_id, link.context.span_id) == (trace_of(checkout), id_of(checkout))
    assert link.context.is_remote, "it may be a span of another process"
    assert dict(link.attributes or {}) == {"effectonce.link": "recorded-by"}
    assert trace_of(resumed) != trace_of(checkout)


def test_a_step_that_times_out_is_an_error_of_its_span(store: eo.Store, watching: Watching) -> None:
    saga = eo.Saga("slow", store, input=str)

    @saga.step(timeout="10ms", grace="20s")
    def charge(order: str) -> None:
        while not eo.current().lease_lost:  # it is told to stop
            time.sleep(0.001)

    @charge.compensate
    def refund(order: str) -> None: ...

    with pytest.raises(eo.SagaFailed):
        saga.run("o-1", "in")
    (step,), (undo,) = watching.spans("step"), watching.spans("compensate")
    assert facts(step)["error.type"] == "TimeoutError"
    assert undo.status.is_unset


def test_a_saga_in_doubt_says_so(store: eo.Store, watching: Watching) -> None:
    saga = eo.Saga("doubtful", store, input=str)

    @saga.step()
    def charge(order: str) -> None:
        raise eo.InDoubt("nobody knows")

    with pytest.raises(eo.InDoubt):
        saga.run("o-1", "in")
    (span,) = watching.spans("saga")
    assert facts(span)["outcome"] == "in_doubt"


@pytest.mark.parametrize(
    ("verdict", "outcome", "error"),
    [
        (None, "success", None),
        (Verdict.failure("the address bounces"), "failure", ValueError),
        (Verdict.not_executed("too busy"), "not_executed", eo.NotExecuted),
        (Verdict.unknown("no answer"), "in_doubt", eo.InDoubt),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_an_intent_is_a_span_with_its_outcome(
    store: eo.Store, watching: Watching, is_async: bool, verdict: Verdict | None, outcome: str, error: Any
) -> None:
    intents = eo.Intents(store, scope="billing")
    intents.classify("ses")(lambda response: verdict)

    def send_now(intent: eo.Intent[str]) -> str:
        with watching.tracer.start_as_current_span("http request"):
            if error is not None:
                raise ValueError(f"no such address: {intent.request}")
            return "sent"

    async def send_async(intent: eo.Intent[str]) -> str:
        return send_now(intent)

    register = intents.operation("ses", "send", returns=str, without_key="at-most-once")
    send: Any = register(send_async if is_async else send_now)

    def call() -> None:
        answer = send(SECRET, key=SECRET)
        assert (asyncio.run(answer) if is_async else answer) == "sent"

    if error is None:
        call()
        call()
    else:
        with pytest.raises(error):
            call()
    (span,), (request,) = watching.spans("intent"), watching.spans("http request")
    assert (span.name, span.kind) == ("intent ses send", SpanKind.CLIENT)
    assert parent_of(request) == id_of(span)
    expected = {"provider": "ses", "operation": "send", "scope": "intents/billing/ses/send", "attempt": 1}
    assert facts(span).items() >= {**expected, "outcome": outcome}.items()
    assert facts(span).get("error.type") == (None if error is None else error.__name__)
    assert span.status.is_unset is (error is None)
    if store.private:
        assert SECRET not in everything(span)
    assert SECRET not in str(facts(span)) + span.name


def test_an_intent_of_a_step_is_in_its_span(store: eo.Store, watching: Watching) -> None:
    intents = eo.Intents(store, scope="billing")

    @intents.operation("stripe", "charge")
    def charge(intent: eo.Intent[str]) -> str:
        return "ch_1"

    saga = eo.Saga("order", store, input=str)

    @saga.step(name="pay")
    def pay(order: str) -> str:
        return charge(order, key=eo.current().key)

    saga.run("o-1", "in")
    (step,), (intent,) = watching.spans("step pay"), watching.spans("intent stripe charge")
    assert parent_of(intent) == id_of(step)


@pytest.mark.parametrize("at", ["start", "end"])
def test_a_processor_that_raises_ends_no_saga(tmp_path: Path, watching: Watching, at: str) -> None:
    watching.provider.add_span_processor(Broken(at))
    store = eo.connect("memory://", sweep_every=None)
    watching.tracing.watch(store)
    run(order_saga(store, is_async=False), "o-1")
    record = store.get("saga/order", "o-1")
    assert record is not None
    assert record.state == "done"


def test_an_error_that_quotes_a_url_has_no_password_in_its_span(watching: Watching) -> None:
    with pytest.raises(RuntimeError), watching.tracing.span("work"):
        raise RuntimeError("postgresql://shop:s3cret@host/db?sslkey=k3y is away")
    (span,) = watching.spans("work")
    assert "RuntimeError: postgresql://host/db is away" in everything(span)
    assert not [secret for secret in ("s3cret", "k3y") if secret in everything(span)]
