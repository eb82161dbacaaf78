"""OpenTelemetry: traces and metrics by its conventions for messaging. Without an SDK it does nothing.

    Tracing().watch(worker)          # also its broker and its store; or a Store, a Broker, an Outbox, a Relay

    create orders ──(outbox)── send orders ──(broker)── process orders ◄──link── process orders, of a duplicate

The trace travels in the headers of the message (``traceparent``), so a message and everything it causes is one trace,
across every broker and outbox. A duplicate has a link to the run whose result it gets: the trace of that run is
stored with the result. There is no such link in a transaction (`Inbox`), nor if no result was stored; the duplicate is
then only in the trace of its message. A retry and a redrive have a link to who created the message.

    saga order-fulfilment ── step reserve ── step charge ── intent stripe charge ── compensate reserve

Errors of processors, propagators and exporters are logged, and change no outcome. No span has a key, a payload or a
result. Of an error it has class, text and traceback, without the secrets of URLs; of a private store's only the class
and the lines of code.
"""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from effectonce.errors import ConfigurationError, MissingDriver, scrub_urls

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ImportError as missing:
    raise MissingDriver("traces need opentelemetry-api: pip install 'effectonce[opentelemetry]'") from missing

from effectonce.broker import Broker
from effectonce.contracts import Delivery, Event
from effectonce.contracts.outbox import OutboxRow
from effectonce.core.error_text import describe_error, error_text
from effectonce.core.failure_log import traceback_tail
from effectonce.core.guarded_call.run import Run, current_run
from effectonce.guard.introspection import is_async
from effectonce.inbox.inbox import Inbox
from effectonce.message import Message
from effectonce.outbox.outbox import Outbox
from effectonce.relay.relay import Relay
from effectonce.store import Store
from effectonce.worker.worker import Worker

from .hooks import MAX_SCOPES, OTHER_SCOPES, hook_into
from .messaging_conventions import Attributes, MessagingMetrics, describe_operation, emits_old_names, old_attributes
from .trace_context import (
    TRACEPARENT_HEADER,
    encode_context,
    extract_context,
    headers_of,
    links_from_headers,
    links_to_stored,
    log_errors,
    with_trace_header,
)

MAX_LINKS_PER_SPAN = 100
MAX_STATUS_CHARACTERS = 300


class Tracing:
    """Makes spans and metrics of watched objects. It is the `contracts.Tracer` of stores, brokers and outboxes.

    Spans and metrics go to the providers that are passed, or to the global ones of OpenTelemetry. Whether the older
    names of the conventions are emitted as well is read from the environment when it is made.
    """

    def __init__(
        self, tracer_provider: trace.TracerProvider | None = None, meter_provider: metrics.MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer("effectonce", tracer_provider=tracer_provider)
        meter = metrics.get_meter("effectonce", meter_provider=meter_provider)
        self._old_names = emits_old_names()
        self._metrics = MessagingMetrics(meter, old_names=self._old_names)
        self._scopes: set[str] = set()
        self._outcomes = meter.create_counter("effectonce.outcomes", "{event}", "What happened to operations, by kind.")

    def watch(self, *watched: Store | Broker | Inbox | Outbox | Worker | Relay) -> Tracing:
        """Trace these from now on. With a worker its store and its broker are traced, too; with a relay its store. An
        inbox makes no spans; its events are counted."""
        for source in watched:
            if isinstance(source, Worker):
                self._watch_worker(source)
            elif isinstance(source, Relay):
                self.watch(source.store)
            elif isinstance(source, Store):
                source.runtime.tracer = self
                hook_into(source, self)
            elif isinstance(source, Inbox):
                hook_into(source, self)
            elif isinstance(source, Broker | Outbox):
                source.tracer = self
            else:
                raise ConfigurationError(
                    "a Store, a Broker, an Inbox, an Outbox, a Worker or a Relay can be traced, not "
                    f"{type(source).__name__}"
                )
        return self

    def _watch_worker(self, worker: Worker) -> None:
        self.watch(worker.broker)
        if worker.store is not None:
            self.watch(worker.store)
        else:
            hook_into(worker, self)
        if worker.tracer is None:
            worker.tracer = tracer = _WorkerTracer(self, worker)
            for route in worker.routes:
                route.function = tracer.trace_handler(route.queue, route.function)

    # -- a hook

    def __call__(self, event: Event) -> None:
        scope = event.scope
        if scope not in self._scopes and len(self._scopes) >= MAX_SCOPES:
            scope = OTHER_SCOPES
        self._scopes.add(scope)
        self._outcomes.add(1, {"effectonce.kind": event.kind, "effectonce.scope": scope})

    # -- results

    def current_context(self) -> bytes:
        return log_errors(lambda: encode_context(trace.get_current_span().get_span_context()), b"")

    def link_replay(self, run: Run) -> None:
        def link_to_first() -> None:
            span = trace.get_current_span()
            if span.is_recording():
                for link in links_to_stored(run.trace, "first-run"):
                    span.add_link(link.context, {"effectonce.scope": run.scope, "effectonce.replayed": True})

        log_errors(link_to_first, None)

    # -- sagas and intents

    @contextmanager
    def trace_work(
        self,
        name: str,
        facts: Mapping[str, str | int],
        *,
        private: bool,
        recorded_by: bytes,
        outside: bool,
    ) -> Iterator[_WorkSpan]:
        current = trace.get_current_span().get_span_context()
        links = [
            link
            for link in links_to_stored(recorded_by, "recorded-by")
            if not current.is_valid or link.context.trace_id != current.trace_id
        ]
        kind = SpanKind.CLIENT if outside else SpanKind.INTERNAL
        with self.span(name, private=private, kind=kind, attributes=dict(facts), links=links) as span:
            yield _WorkSpan(span, private)

    # -- sending

    def inject_context(self, queue: str, message: Message[Any]) -> Message[Any]:
        if not isinstance(message, Message) or TRACEPARENT_HEADER in message.headers:
            return message
        about = describe_operation("effectonce", queue, "create", "create")
        with self.operation_span(about, SpanKind.PRODUCER, {"messaging.message.id": message.id}):
            return with_trace_header(message)

    @contextmanager
    def trace_publish(
        self, system: str, queue: str, messages: Sequence[Message[Any]]
    ) -> Iterator[Sequence[Message[Any]]]:
        links = [link for message in messages for link in links_from_headers(message.headers)]
        about = describe_operation(system, queue, "send", "send")
        facts: Attributes = {"messaging.batch.message_count": len(messages)}
        if len(messages) == 1:
            facts = {"messaging.message.id": messages[0].id}
        kind = SpanKind.CLIENT if len(links) == len(messages) else SpanKind.PRODUCER
        with self.measure_block(about, len(messages)), self.operation_span(about, kind, facts, links=links):
            yield [with_trace_header(message) for message in messages]

    def trace_relay(self, system: str, row: OutboxRow, seconds: float, error: Exception | None) -> None:
        about = describe_operation(system, row.destination, "send", "send")
        facts: Attributes = {"messaging.message.id": row.message_id, "effectonce.attempt": row.attempts}
        self.record_operation(about, facts, 1, seconds, error, context=extract_context(headers_of(row)))

    # -- spans and counters that never raise

    @contextmanager
    def span(self, name: str, *, private: bool = False, **options: Any) -> Iterator[trace.Span]:
        """Make a span around the block, and make it the current one there. ``private``: of an error it has no text."""
        invalid: trace.Span = trace.INVALID_SPAN
        span = log_errors(lambda: self._tracer.start_span(name, **options), invalid)
        token = context.attach(trace.set_span_in_context(span))
        try:
            yield span
        except Exception as error:
            log_errors(functools.partial(_mark_failed, span, error, private), None)
            raise
        finally:
            context.detach(token)
            log_errors(span.end, None)

    @contextmanager
    def operation_span(
        self, about: Attributes, kind: SpanKind, facts: Attributes, **options: Any
    ) -> Iterator[trace.Span]:
        """`span`, for an operation of messaging."""
        with self.span(_name_of(about), kind=kind, attributes=self._attributes_of(about, facts), **options) as span:
            yield span

    def record_operation(
        self,
        about: Attributes,
        facts: Attributes,
        messages: int,
        seconds: float,
        error: Exception | None = None,
        **options: Any,
    ) -> None:
        """Make a client span of an operation that ends now and took ``seconds``, and count it."""
        now = time.time_ns()
        error_type = "" if error is None else type(error).__qualname__

        def record_span() -> None:
            span = self._tracer.start_span(
                _name_of(about),
                kind=SpanKind.CLIENT,
                start_time=now - round(seconds * 1e9),
                attributes=self._attributes_of(about, facts),
                **options,
            )
            if error is not None:
                span.set_attribute("error.type", error_type)
                span.set_status(Status(StatusCode.ERROR, error_text(error, MAX_STATUS_CHARACTERS)))
            span.end(now)

        log_errors(record_span, None)
        log_errors(lambda: self._metrics.record(about, messages, seconds, error_type), None)

    def _attributes_of(self, about: Attributes, facts: Attributes) -> Attributes:
        return {**about, **facts, **(old_attributes(about) if self._old_names else {})}

    @contextmanager
    def measure_block(self, about: Attributes, messages: int) -> Iterator[None]:
        """Count the messages of the block, and record how long it took, with the class of the error that it raises."""
        error_type, started_at = "", time.perf_counter()
        try:
            yield
        except Exception as error:
            error_type = type(error).__qualname__
            raise
        finally:
            seconds = time.perf_counter() - started_at
            log_errors(lambda: self._metrics.record(about, messages, seconds, error_type), None)


class _WorkSpan:
    """The span of a saga, of a step or of an intent. It is a `contracts.WorkSpan`."""

    def __init__(self, span: trace.Span, private: bool) -> None:
        self._span = span
        self._private = private

    def set(self, name: str, value: str | int) -> None:
        log_errors(lambda: self._span.set_attribute(name, value), None)

    def record_error(self, error: BaseException) -> None:
        log_errors(lambda: _mark_failed(self._span, error, self._private), None)


class _WorkerTracer:
    """The tracer of one worker: makes the spans of its handlers and settlements."""

    def __init__(self, tracing: Tracing, worker: Worker) -> None:
        self._tracing = tracing
        self._private = worker.store is not None and worker.store.private
        self._system = worker.broker.capabilities.name
        self._group = worker.name

    def trace_handler(self, queue: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if is_async(function):

            @functools.wraps(function)
            async def handle_async(*args: Any) -> Any:
                with self._span_around(queue, args[-1]):
                    return _with_trace_headers(await function(*args))

            return handle_async

        @functools.wraps(function)
        def handle(*args: Any) -> Any:
            with self._span_around(queue, args[-1]):
                return _with_trace_headers(function(*args))

        return handle

    @contextmanager
    def _span_around(self, queue: str, message: Message[Any]) -> Iterator[None]:
        run = current_run.get()
        facts: Attributes = {} if run is None else {"effectonce.scope": run.scope, "effectonce.attempt": run.attempt}
        links: Sequence[Link] = ()
        if message.redriven or message.attempt > 1 or (run is not None and run.attempt > 1):
            links = [Link(link.context, {"effectonce.link": "message"}) for link in links_from_headers(message.headers)]
        if message.redriven:
            facts["effectonce.redriven"] = True
        with self._process_span(queue, message, links, facts) as span:
            if run is not None:
                run.trace = encode_context(span.get_span_context())
            yield

    def trace_duplicate(self, queue: str, message: Message[Any], run: Run) -> None:
        facts: Attributes = {"effectonce.scope": run.scope, "effectonce.replayed": True}
        with self._process_span(queue, message, links_to_stored(run.trace, "first-run"), facts):
            pass

    @contextmanager
    def _process_span(
        self, queue: str, message: Message[Any], links: Sequence[Link], facts: Attributes
    ) -> Iterator[trace.Span]:
        """Make a span around the processing of ``message``, in the trace of the message."""
        about = describe_operation(self._system, queue, "process", "process", self._group)
        facts = {"messaging.message.id": message.id, "effectonce.attempt": message.attempt, **facts}
        with (
            self._tracing.measure_block(about, 1),
            self._tracing.operation_span(
                about,
                SpanKind.CONSUMER,
                facts,
                private=self._private,
                context=extract_context(message.headers),
                links=links,
            ) as span,
        ):
            yield span

    def trace_settlement(self, queue: str, how: str, deliveries: Sequence[Delivery], seconds: float) -> None:
        """Make a span of a settlement, with links to the messages that have their trace in their headers. (Structured
        CloudEvents have it in the body, which is not decoded again for this.)"""
        self._tracing.record_operation(
            describe_operation(self._system, queue, how, "settle", self._group),
            {"messaging.batch.message_count": len(deliveries)},
            len(deliveries),
            seconds,
            context=context.Context(),
            links=[
                link
                for delivery in deliveries[:MAX_LINKS_PER_SPAN]
                for link in links_from_headers(delivery.packet.headers)
            ],
        )


def _name_of(about: Attributes) -> str:
    return f"{about['messaging.operation.name']} {about['messaging.destination.name']}"


def _with_trace_headers(returned: Any) -> Any:
    """What a handler returned. If that is messages to send on (``to=``), they get the trace of the handler."""
    if isinstance(returned, Message):
        return with_trace_header(returned)
    if isinstance(returned, list):
        return [with_trace_header(message) for message in returned]
    return returned


def _mark_failed(span: trace.Span, error: BaseException, private: bool) -> None:
    name = type(error).__qualname__
    message = "" if private else error_text(error)
    if private:
        stacktrace = traceback_tail(error, frames_only=True)
    else:
        stacktrace = scrub_urls("".join(traceback.format_exception(error)))
    span.set_attribute("error.type", name)
    span.record_exception(error, {"exception.message": message, "exception.stacktrace": stacktrace})
    span.set_status(Status(StatusCode.ERROR, name if private else describe_error(error, MAX_STATUS_CHARACTERS)))
