"""OpenTelemetry: traces and metrics by its conventions for messaging. Without an SDK it does nothing.

    Tracing().watch(worker)          # also its broker and its store; or a Store, a Broker, an Outbox, a Relay

    create orders ──(outbox)── send orders ──(broker)── process orders ◄──link── process orders, of a duplicate

The trace travels in the headers of the message (``traceparent``), so a message and everything it causes is one trace,
across every broker and outbox. A duplicate has a link to the run whose result it gets: the trace of that run is
stored with the result. There is no such link in a transaction (`Inbox`), nor if no result was stored; the duplicate is
then only in the trace of its message.

Errors of processors, propagators and exporters are logged, and change no outcome.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec import DecodeError, json
from msgspec.structs import replace

from effectonce.errors import ConfigurationError, MissingDriver, show

try:
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
except ImportError as missing:
    raise MissingDriver("traces need opentelemetry-api: pip install 'effectonce[opentelemetry]'") from missing

from effectonce.broker import Broker
from effectonce.contracts import Delivery, Event
from effectonce.contracts.outbox import OutboxRow
from effectonce.core.guarded_call.run import Run, current_run
from effectonce.guard.introspection import is_async
from effectonce.message import Message
from effectonce.outbox.outbox import Outbox
from effectonce.relay.relay import Relay
from effectonce.store import Store
from effectonce.worker.worker import Worker

from .hooks import MAX_SCOPES, OTHER_SCOPES, hook_into

#: The conventions' names of brokers, where they differ from ours.
MESSAGING_SYSTEMS = {"sqs": "aws_sqs", "redis+babelqueue": "redis"}
#: The buckets that the conventions advise for durations.
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
TRACEPARENT_HEADER = "traceparent"
MAX_LINKS_PER_SPAN = 100

Attributes = dict[str, str | int | bool]
T = TypeVar("T")

log = logging.getLogger("effectonce")


class Tracing:
    """Makes spans and metrics of watched objects. It is the `contracts.Tracer` of stores, brokers and outboxes.

    Spans and metrics go to the providers that are passed, or to the global ones of OpenTelemetry.
    """

    def __init__(
        self, tracer_provider: trace.TracerProvider | None = None, meter_provider: metrics.MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer("effectonce", tracer_provider=tracer_provider)
        meter = metrics.get_meter("effectonce", meter_provider=meter_provider)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self.consumed = meter.create_counter("messaging.client.consumed.messages", "{message}")
        self.operation_time = meter.create_histogram(
            "messaging.client.operation.duration", "s", explicit_bucket_boundaries_advisory=BUCKETS_S
        )
        self.process_time = meter.create_histogram(
            "messaging.process.duration", "s", explicit_bucket_boundaries_advisory=BUCKETS_S
        )
        self._scopes: set[str] = set()
        self._outcomes = meter.create_counter("effectonce.outcomes", "{event}", "What happened to operations, by kind.")

    def watch(self, *watched: Store | Broker | Outbox | Worker | Relay) -> Tracing:
        """Trace these from now on. With a worker its store and its broker are traced, too; with a relay its store."""
        for source in watched:
            if isinstance(source, Worker):
                self._watch_worker(source)
            elif isinstance(source, Relay):
                self.watch(source.store)
            elif isinstance(source, Store):
                source.runtime.tracer = self
                hook_into(source, self)
            elif isinstance(source, Broker | Outbox):
                source.tracer = self
            else:
                raise ConfigurationError(
                    f"a Store, a Broker, an Outbox, a Worker or a Relay can be traced, not {type(source).__name__}"
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
        return _log_errors(lambda: _encode_context(trace.get_current_span().get_span_context()), b"")

    def link_replay(self, run: Run) -> None:
        def link_to_first() -> None:
            span = trace.get_current_span()
            if span.is_recording():
                for link in _links_to_first_run(run.trace):
                    span.add_link(link.context, {"effectonce.scope": run.scope, "effectonce.replayed": True})

        _log_errors(link_to_first, None)

    # -- sending

    def inject_context(self, queue: str, message: Message[Any]) -> Message[Any]:
        if not isinstance(message, Message) or TRACEPARENT_HEADER in message.headers:
            return message
        attributes = {"messaging.message.id": message.id, **_attributes("effectonce", queue, "create")}
        with self.span(f"create {queue}", kind=SpanKind.PRODUCER, attributes=attributes):
            return _with_trace_header(message)

    @contextmanager
    def trace_publish(
        self, system: str, queue: str, messages: Sequence[Message[Any]]
    ) -> Iterator[Sequence[Message[Any]]]:
        links = [link for message in messages for link in _links_from_headers(message.headers)]
        about = _attributes(system, queue, "send")
        attributes: Attributes = {**about, "messaging.batch.message_count": len(messages)}
        if len(messages) == 1:
            attributes = {**about, "messaging.message.id": messages[0].id}
        kind = SpanKind.CLIENT if len(links) == len(messages) else SpanKind.PRODUCER
        with (
            self.measure_block(self._sent, len(messages), self.operation_time, about),
            self.span(f"send {queue}", kind=kind, attributes=attributes, links=links),
        ):
            yield [
                message if TRACEPARENT_HEADER in message.headers else _with_trace_header(message)
                for message in messages
            ]

    def trace_relay(self, system: str, row: OutboxRow, seconds: float, error: Exception | None) -> None:
        about = _attributes(system, row.destination, "send")
        if error is not None:
            about["error.type"] = type(error).__qualname__
        self.record_span(
            f"send {row.destination}",
            seconds,
            status=Status(StatusCode.ERROR, show(error, 300)) if error is not None else None,
            context=_extract_context(_headers(row)),
            attributes={**about, "messaging.message.id": row.message_id, "effectonce.attempt": row.attempts},
        )
        self._count(self._sent, 1, self.operation_time, seconds, about)

    # -- spans and counters that never raise

    @contextmanager
    def span(self, name: str, **options: Any) -> Iterator[trace.Span]:
        """Make a span around the block, and make it the current one there."""
        invalid: trace.Span = trace.INVALID_SPAN
        span = _log_errors(lambda: self._tracer.start_span(name, **options), invalid)
        token = context.attach(trace.set_span_in_context(span))
        try:
            yield span
        except Exception as error:
            _log_errors(functools.partial(_mark_failed, span, error), None)
            raise
        finally:
            context.detach(token)
            _log_errors(span.end, None)

    def record_span(self, name: str, seconds: float, *, status: Status | None = None, **options: Any) -> None:
        """Make a client span of something that ends now and took ``seconds``."""
        now = time.time_ns()

        def record() -> None:
            span = self._tracer.start_span(name, kind=SpanKind.CLIENT, start_time=now - round(seconds * 1e9), **options)
            if status is not None:
                span.set_status(status)
            span.end(now)

        _log_errors(record, None)

    @contextmanager
    def measure_block(
        self, counter: metrics.Counter, number: int, timer: metrics.Histogram, about: Attributes
    ) -> Iterator[None]:
        """Add ``number`` to ``counter``, and record how long the block took, with the type of the error that it
        raises."""
        labels, started_at = dict(about), time.perf_counter()
        try:
            yield
        except Exception as error:
            labels["error.type"] = type(error).__qualname__
            raise
        finally:
            self._count(counter, number, timer, time.perf_counter() - started_at, labels)

    def _count(
        self, counter: metrics.Counter, number: int, timer: metrics.Histogram, seconds: float, labels: Attributes
    ) -> None:
        def count() -> None:
            counter.add(number, labels)
            timer.record(seconds, labels)

        _log_errors(count, None)


class _WorkerTracer:
    """The tracer of one worker: makes the spans of its handlers and settlements."""

    def __init__(self, tracing: Tracing, worker: Worker) -> None:
        self._tracing = tracing
        self._system = worker.broker.capabilities.name
        self._group = worker.name

    def trace_handler(self, queue: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if is_async(function):

            @functools.wraps(function)
            async def handle_async(*args: Any) -> Any:
                with self._span_around(queue, args[-1]):
                    return await function(*args)

            return handle_async

        @functools.wraps(function)
        def handle(*args: Any) -> Any:
            with self._span_around(queue, args[-1]):
                return function(*args)

        return handle

    @contextmanager
    def _span_around(self, queue: str, message: Message[Any]) -> Iterator[None]:
        run = current_run.get()
        more: Attributes = {} if run is None else {"effectonce.scope": run.scope, "effectonce.attempt": run.attempt}
        with self._process_span(queue, message, (), more) as span:
            if run is not None:
                run.trace = _encode_context(span.get_span_context())
            yield

    def trace_duplicate(self, queue: str, message: Message[Any], run: Run) -> None:
        more: Attributes = {"effectonce.scope": run.scope, "effectonce.replayed": True}
        with self._process_span(queue, message, _links_to_first_run(run.trace), more):
            pass

    @contextmanager
    def _process_span(
        self, queue: str, message: Message[Any], links: Sequence[Link], more: Attributes
    ) -> Iterator[trace.Span]:
        """Make a span around the processing of ``message``, in the trace of the message."""
        about = _attributes(self._system, queue, "process") | {"messaging.consumer.group.name": self._group}
        with (
            self._tracing.measure_block(self._tracing.consumed, 1, self._tracing.process_time, about),
            self._tracing.span(
                f"process {queue}",
                context=_extract_context(message.headers),
                kind=SpanKind.CONSUMER,
                attributes={**about, "messaging.message.id": message.id, "effectonce.attempt": message.attempt, **more},
                links=links,
            ) as span,
        ):
            yield span

    def trace_settlement(self, queue: str, how: str, deliveries: Sequence[Delivery], seconds: float) -> None:
        """Make a span of a settlement, with links to the messages that have their trace in their headers. (Structured
        CloudEvents have it in the body, which is not decoded again for this.)"""
        about = _attributes(self._system, queue, how, "settle")
        counts: Attributes = {
            "messaging.consumer.group.name": self._group,
            "messaging.batch.message_count": len(deliveries),
        }
        self._tracing.record_span(
            f"{how} {queue}",
            seconds,
            context=context.Context(),
            attributes={**about, **counts},
            links=[
                link
                for delivery in deliveries[:MAX_LINKS_PER_SPAN]
                for link in _links_from_headers(delivery.packet.headers)
            ],
        )
        _log_errors(lambda: self._tracing.operation_time.record(seconds, about), None)


def _attributes(system: str, queue: str, name: str, kind: str = "") -> Attributes:
    return {
        "messaging.system": MESSAGING_SYSTEMS.get(system, system),
        "messaging.destination.name": queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind or name,
    }


def _log_errors(work: Callable[[], T], otherwise: T) -> T:
    """Run ``work``. If it raises, log that and return ``otherwise``: tracing must not change an outcome."""
    try:
        return work()
    except Exception:
        log.exception("OpenTelemetry failed: this operation is not traced; its outcome is unaffected")
        return otherwise


def _mark_failed(span: trace.Span, error: Exception) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__qualname__}: {show(error, 300)}"))


# -- contexts, in headers and in records


def _with_trace_header(message: Message[Any]) -> Message[Any]:
    headers = dict(message.headers)
    _log_errors(lambda: propagate.inject(headers), None)
    return replace(message, headers=headers) if headers != message.headers else message


def _extract_context(headers: Mapping[str, str]) -> context.Context:
    empty = context.Context()
    return _log_errors(lambda: propagate.extract(headers, context=empty), empty)


def _headers(row: OutboxRow) -> dict[str, str]:
    try:
        return json.decode(row.headers, type=dict[str, str])
    except DecodeError:  # another program wrote the row, and it cannot be published either
        return {}


def _links_from_headers(headers: Mapping[str, str]) -> list[Link]:
    """Return a link to the span in the headers; [] if there is none."""
    if TRACEPARENT_HEADER not in headers:
        return []
    span = trace.get_current_span(_extract_context(headers)).get_span_context()
    return [Link(span)] if span.is_valid else []


def _encode_context(span: SpanContext) -> bytes:
    return f"{span.trace_id:032x}{span.span_id:016x}".encode() if span.is_valid else b""


def _links_to_first_run(encoded: bytes) -> list[Link]:
    """Return a link to the span that `_encode_context` encoded; [] if there is none, or it cannot be read."""
    try:
        span = SpanContext(int(encoded[:32], 16), int(encoded[32:], 16), True, TraceFlags(TraceFlags.SAMPLED))
    except ValueError:
        return []
    return [Link(span, {"effectonce.link": "first-run"})] if span.is_valid else []
