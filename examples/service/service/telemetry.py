"""Metrics for Prometheus, and traces for OpenTelemetry.

OTEL_TRACES_EXPORTER says where the traces go: ``console``; ``otlp``, to OTEL_EXPORTER_OTLP_ENDPOINT; or ``none``.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.trace import SpanKind

import effectonce as eo
from effectonce.telemetry.opentelemetry import Tracing
from effectonce.telemetry.prometheus import Metrics

provider = TracerProvider()  # named by OTEL_SERVICE_NAME
tracing = Tracing(provider)
metrics = Metrics()

match os.environ.get("OTEL_TRACES_EXPORTER", "none"):
    case "none":
        pass
    case "console":
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    case "otlp":
        # pip install opentelemetry-exporter-otlp-proto-http
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    case other:
        raise SystemExit(f"OTEL_TRACES_EXPORTER={other!r} is none of console, otlp and none")


def watch(watched: eo.Store | eo.Worker | eo.Relay) -> None:
    """Count and trace what happens to ``watched``."""
    metrics.watch(watched)
    tracing.watch(watched)


def trace(*outboxes: eo.Outbox) -> None:
    """Give the messages that leave by ``outboxes`` the trace in which they were sent."""
    tracing.watch(*outboxes)


@contextmanager
def server_span(name: str, headers: Mapping[str, str]) -> Iterator[None]:
    """Make a span around the answer to a request, in the trace that its headers name."""
    tracer = provider.get_tracer("service")
    with tracer.start_as_current_span(name, context=propagate.extract(headers), kind=SpanKind.SERVER):
        yield
