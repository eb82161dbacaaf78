"""The names that OpenTelemetry's conventions give to spans and metrics of messaging.

Those of version 1.44.0; with ``OTEL_SEMCONV_STABILITY_OPT_IN=messaging/dup`` also those of 1.24.0, which older
instrumentations have, so that one dashboard shows both. ``messaging`` is what is emitted anyway.
"""

from __future__ import annotations

import os
from typing import Final, Literal

from opentelemetry.metrics import Counter, Histogram, Meter

Attributes = dict[str, str | int | bool]
OperationType = Literal["create", "send", "process", "settle"]

OPT_IN_VARIABLE: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
#: The names of brokers, where the conventions' differ from ours.
_SYSTEMS: Final = {"sqs": "aws_sqs", "pubsub": "gcp_pubsub", "redis+babelqueue": "redis"}
#: What version 1.24.0 called operations. It had none for settlements.
_OLD_OPERATIONS: Final = {"create": "create", "send": "publish", "process": "deliver"}
_OLD_LABELS: Final = ("messaging.system", "messaging.destination.name", "error.type")
#: The buckets that the conventions advise for durations.
_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


def emits_old_names() -> bool:
    """Whether the environment asks for the names of version 1.24.0 beside the current ones."""
    return "messaging/dup" in [value.strip() for value in os.environ.get(OPT_IN_VARIABLE, "").split(",")]


def describe_operation(system: str, queue: str, name: str, kind: OperationType, group: str = "") -> Attributes:
    """The attributes of an operation, for its span and its metrics. ``group``: the name of the worker."""
    about: Attributes = {
        "messaging.system": _SYSTEMS.get(system, system),
        "messaging.destination.name": queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    return about | {"messaging.consumer.group.name": group} if group else about


def old_attributes(about: Attributes) -> Attributes:
    """The attributes of version 1.24.0 that a span has beside ``about``."""
    old: Attributes = {}
    operation = _OLD_OPERATIONS.get(str(about["messaging.operation.type"]))
    if operation is not None:
        old["messaging.operation"] = operation
    if about["messaging.system"] == "kafka" and "messaging.consumer.group.name" in about:
        old["messaging.kafka.consumer.group"] = about["messaging.consumer.group.name"]
    return old


class MessagingMetrics:
    """Counts messages and measures operations."""

    def __init__(self, meter: Meter, *, old_names: bool) -> None:
        def counter(name: str) -> Counter:
            return meter.create_counter(f"messaging.{name}.messages", "{message}")

        def timer(name: str) -> Histogram:
            return meter.create_histogram(
                f"messaging.{name}.duration", "s", explicit_bucket_boundaries_advisory=_BUCKETS_S
            )

        operation_time = timer("client.operation")
        self._counters = {"send": counter("client.sent"), "process": counter("client.consumed")}
        self._timers = {"send": operation_time, "settle": operation_time, "process": timer("process")}
        old_kinds = [_OLD_OPERATIONS[kind] for kind in self._counters] if old_names else []
        self._old_counters = {kind: counter(kind) for kind in old_kinds}
        self._old_timers = {kind: timer(kind) for kind in old_kinds}

    def record(self, about: Attributes, messages: int, seconds: float, error_type: str = "") -> None:
        """Record an operation on so many messages, which took ``seconds``, and the class of the error that ended it."""
        kind = str(about["messaging.operation.type"])
        labels = about | {"error.type": error_type} if error_type else about
        _record(self._counters.get(kind), self._timers[kind], messages, seconds, labels)
        old_kind = _OLD_OPERATIONS.get(kind, "")
        if old_kind in self._old_timers:
            old_labels: Attributes = {name: labels[name] for name in _OLD_LABELS if name in labels}
            _record(self._old_counters[old_kind], self._old_timers[old_kind], messages, seconds, old_labels)


def _record(counter: Counter | None, timer: Histogram, messages: int, seconds: float, labels: Attributes) -> None:
    if counter is not None:
        counter.add(messages, labels)
    timer.record(seconds, labels)
