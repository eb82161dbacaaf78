"""One message is one trace, from who creates it to who handles it; and a duplicate points to the first run."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import effectonce as eo
from effectonce.telemetry import opentelemetry
from effectonce.telemetry.opentelemetry import Tracing
from tests.worker.bench import paid, serving, until


class Watching:
    """A `Tracing`, and what it has recorded."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.tracing = Tracing(self.provider, MeterProvider([self._reader]))
        self.tracer = self.provider.get_tracer("shop")

    def spans(self, name: str = "") -> Sequence[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(name)]

    def metric(self, name: str, **attributes: Any) -> float:
        total = 0.0
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points if metric.name == name else ():
                        labels = {key.replace(".", "_"): value for key, value in (point.attributes or {}).items()}
                        if attributes.items() <= labels.items():
                            total += float(getattr(point, "value", getattr(point, "count", 0)))
        return total


@pytest.fixture
def watching() -> Watching:
    return Watching()


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return int(span.parent.span_id)


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


@pytest.mark.parametrize("kind", ["sqlite", "redis", "nats"])
async def test_one_trace_leads_from_producer_to_handler_through_outbox_relay_and_broker(
    kind: str, watching: Watching, tmp_path: Path, unique_name: str, request: pytest.FixtureRequest
) -> None:
    database = f"sqlite:///{tmp_path}/shop.db"
    url = f"sqlite:///{tmp_path}/queue.db" if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    store, broker = eo.connect(database, sweep_every=None), eo.connect_broker(url)
    store.migrate()
    outbox, relay = eo.Outbox(to=unique_name), eo.Relay(store, broker)
    worker = eo.Worker(broker, store=store, name=unique_name)
    watching.tracing.watch(outbox, relay, worker)

    @worker.handler(unique_name, scope="orders")
    async def handle(message: eo.Message[dict[str, int]]) -> None:
        with watching.tracer.start_as_current_span("charge the card"):
            pass

    await broker.backend.declare(unique_name, group=unique_name)
    with watching.tracer.start_as_current_span("checkout"), sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("BEGIN")
        outbox.send(connection, paid(id=f"{unique_name}-1"))
    connection.close()
    assert await relay.drain() == 1
    async with serving(worker):
        await until(lambda: watching.spans("process"))
    (checkout,), (create,), (send,) = (watching.spans(name) for name in ("checkout", "create", "send"))
    (process,), (charge,) = watching.spans("process"), watching.spans("charge the card")
    assert len({trace_of(span) for span in (checkout, create, send, process, charge)}) == 1
    assert parent_of(create) == id_of(checkout)
    assert parent_of(send) == parent_of(process) == id_of(create)
    assert parent_of(charge) == id_of(process)
    assert [span.kind for span in (create, send, process)] == [SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER]
    assert process.name == f"process {unique_name}"
    assert process.attributes is not None
    assert dict(process.attributes) == {
        "messaging.system": kind,
        "messaging.destination.name": unique_name,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": unique_name,
        "messaging.message.id": f"{unique_name}-1",
        "effectonce.scope": "orders",
        "effectonce.attempt": 1,
    }
    assert watching.metric("messaging.client.sent.messages", messaging_destination_name=unique_name) == 1
    assert watching.metric("messaging.client.consumed.messages", messaging_destination_name=unique_name) == 1
    assert watching.metric("messaging.process.duration") == 1
    assert watching.metric("effectonce.outcomes", effectonce_kind="completed", effectonce_scope="orders") == 1
    await broker.aclose()
    await store.aclose()


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "private"])
async def test_a_duplicate_has_a_link_to_the_first_run(
    kind: str, watching: Watching, tmp_path: Path, unique_name: str, request: pytest.FixtureRequest
) -> None:
    """Whichever store keeps the result: its trace is kept with it."""
    urls = {"memory": "memory://", "private": "memory://", "sqlite": f"sqlite:///{tmp_path}/records.db"}
    secret = "a secret of 32 characters or more" if kind == "private" else None
    url = urls.get(kind) or request.getfixturevalue(f"{kind}_url")
    store = eo.connect(url, sweep_every=None, private=secret)
    worker = eo.Worker(eo.connect_broker("memory://"), store=store, name=unique_name)
    watching.tracing.watch(worker)
    runs = []

    @worker.handler("orders", scope=unique_name)
    def handle(message: eo.Message[dict[str, int]]) -> None:
        runs.append(message.id)

    async with serving(worker):
        await until(lambda: worker.phase == "running")
        await worker.broker.apublish("orders", paid(id="1"))
        await until(lambda: worker.consumers[0].settler.settled["acked"] == 1)
        await worker.broker.apublish("orders", paid(id="1"))
        await until(lambda: worker.consumers[0].settler.settled["acked"] == 2)
    first, duplicate = watching.spans("process")
    assert runs == ["1"]
    assert [link.context.span_id for link in duplicate.links] == [id_of(first)]
    assert [link.context.trace_id for link in duplicate.links] == [trace_of(first)]
    assert duplicate.attributes is not None
    assert duplicate.attributes["effectonce.replayed"] is True
    assert not first.links
    settled = watching.spans("acked orders")
    assert sum(span.attributes["messaging.batch.message_count"] for span in settled if span.attributes) == 2  # type: ignore[misc]
    assert {span.attributes["messaging.operation.type"] for span in settled if span.attributes} == {"settle"}
    sends = watching.spans("send")
    assert [parent_of(first), parent_of(duplicate)] == [id_of(span) for span in sends]
    assert {span.kind for span in sends} == {SpanKind.PRODUCER}
    await store.aclose()


def test_a_replayed_call_links_the_callers_span_to_the_first_and_gives_the_same_value(watching: Watching) -> None:
    store = eo.connect("memory://", sweep_every=None)
    watching.tracing.watch(store)

    @eo.once(store, scope="charge", key="id")
    def charge(id: str) -> dict[str, int]:
        return {"amount": 42}

    untraced = charge("before")
    for name in ("first request", "second request"):
        with watching.tracer.start_as_current_span(name):
            assert charge("a") == {"amount": 42}
    first, second = watching.spans()
    assert [link.context.span_id for link in second.links] == [id_of(first)]
    assert charge("before") == untraced == {"amount": 42}, "what was done outside of any trace is replayed all the same"


def test_a_process_without_tracing_reads_traced_results(watching: Watching, tmp_path: Path) -> None:
    """One process traces and the other does not: both replay."""
    url = f"sqlite:///{tmp_path}/records.db"
    with eo.connect(url, sweep_every=None) as traced, eo.connect(url, sweep_every=None) as plain:
        watching.tracing.watch(traced)
        calls: list[str] = []

        def charge(id: str) -> int:
            calls.append(id)
            return len(calls)

        with watching.tracer.start_as_current_span("request"):
            assert eo.once(traced, scope="charge", key="id")(charge)("a") == 1
        assert eo.once(plain, scope="charge", key="id")(charge)("a") == 1


async def test_a_handler_that_raises_is_an_error_in_its_span(watching: Watching) -> None:
    store = eo.connect("memory://", sweep_every=None)
    worker = eo.Worker(eo.connect_broker("memory://"), store=store, name="w")

    @worker.handler("orders", retry=eo.Retry(2, first=0.01))
    async def handle(message: eo.Message[dict[str, int]]) -> None:
        if message.attempt == 1:
            raise LookupError("no such order")

    watching.tracing.watch(worker).watch(worker)
    async with serving(worker):
        await until(lambda: worker.phase == "running")
        await worker.broker.apublish("orders", paid())
        await until(lambda: worker.consumers[0].settler.settled["acked"] == 1)
    failed, done = watching.spans("process")
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "LookupError"
    assert not failed.status.is_ok
    assert done.status.is_unset
    assert trace_of(failed) == trace_of(done)
    assert watching.metric("messaging.process.duration", error_type="LookupError") == 1


async def test_in_a_transaction_handlers_are_traced_too(watching: Watching, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    eo.connect(f"sqlite:///{path}").migrate()
    worker = eo.Worker(
        eo.connect_broker("memory://"),
        inbox=eo.Inbox(scope="billing"),
        connect=lambda: sqlite3.connect(path, timeout=10),
        name="w",
    )
    watching.tracing.watch(worker)

    @worker.handler("orders")
    def handle(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS paid (id TEXT)")

    async with serving(worker):
        await until(lambda: worker.phase == "running")
        await worker.broker.apublish("orders", paid())
        await until(lambda: worker.consumers[0].settler.settled["acked"] == 1)
    (send,), (process,) = watching.spans("send"), watching.spans("process")
    assert parent_of(process) == id_of(send)


async def test_a_context_that_a_message_brings_is_kept(watching: Watching) -> None:
    """Of a message that is forwarded: its trace goes on, and the sender's span has a link to it."""
    broker = eo.connect_broker("memory://")
    watching.tracing.watch(broker)
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    await broker.apublish("orders", paid(headers={"traceparent": parent}))
    consumer = broker.backend.consumer("orders", group="g", prefetch=1)
    await broker.backend.declare("orders", group="g")
    (delivery,) = await consumer.receive(1, 5)
    assert broker.envelope.decode(delivery.packet).headers["traceparent"] == parent
    (send,) = watching.spans("send")
    assert send.kind is SpanKind.CLIENT
    assert [link.context.span_id for link in send.links] == [int("cd" * 8, 16)]


async def test_an_unreadable_row_is_parked_and_the_relay_continues(
    watching: Watching, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F46: of a row that another program has written, with headers that are none."""
    store, broker = eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None), eo.connect_broker("memory://")
    store.migrate()
    relay = eo.Relay(store, broker, retry=eo.Retry(1))
    watching.tracing.watch(relay)
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("BEGIN")
        eo.Outbox(to="orders").send_many(connection, [paid(id="1"), paid(id="2")])
        connection.execute("UPDATE effectonce_outbox SET headers = '[' WHERE message_id = '1'")
    connection.close()
    assert await relay.drain() == 1
    refused, sent = watching.spans("send")
    assert (refused.status.status_code, sent.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert relay.totals.parked == 1
    assert "OpenTelemetry failed" not in caplog.text
    store.close()


def test_without_an_sdk_nothing_is_traced_and_nothing_breaks() -> None:
    store = eo.connect("memory://", sweep_every=None)
    Tracing(trace.NoOpTracerProvider()).watch(store)
    handle = eo.once(store, scope="s", key="id")(_double)
    assert [handle(2), handle(2)] == [4, 4]
    record = store.get("s", "2")
    assert record is not None
    assert record.result == b"14", "no trace is kept where there is none"


def _double(id: int) -> int:
    return 2 * id


def test_without_the_package_the_error_names_it() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; import effectonce.telemetry.opentelemetry"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'effectonce[opentelemetry]'" in done.stderr


def test_tracing_other_objects_is_refused(watching: Watching) -> None:
    with pytest.raises(eo.ConfigurationError, match="can be traced, not dict"):
        watching.tracing.watch({})  # type: ignore[arg-type]


class Broken(SpanProcessor):
    """A processor with a defect: it raises when a span starts, or when it ends."""

    def __init__(self, at: str) -> None:
        self._at = at

    def on_start(self, span: object, parent_context: object = None) -> None:
        if self._at == "start":
            raise RuntimeError("a processor's defect")

    def on_end(self, span: object) -> None:
        if self._at == "end":
            raise RuntimeError("a processor's defect")


@pytest.mark.parametrize("at", ["start", "end"])
async def test_a_processor_that_raises_changes_no_outcome(at: str) -> None:
    """Raised into a handler that had run, it would have run again; into a settlement, it ended the worker."""
    provider = TracerProvider()
    provider.add_span_processor(Broken(at))
    store, broker = eo.connect("memory://"), eo.connect_broker("memory://")
    worker = eo.Worker(broker, store=store, name="billing")
    ran: list[str] = []

    @worker.handler("orders")
    def handle(message: eo.Message[Any]) -> None:
        ran.append(message.id)

    Tracing(provider).watch(worker)
    once = paid(1)
    await broker.apublish("orders", [once, once, paid(2)])
    async with serving(worker):
        await until(lambda: worker.consumers and worker.consumers[0].settler.settled["acked"] == 3)
    assert len(ran) == len(set(ran)) == 2
    store.close()


def test_names_made_of_data_do_not_fill_the_metrics(watching: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opentelemetry, "MAX_SCOPES", 3)
    with eo.connect("memory://") as store:
        watching.tracing.watch(store)
        for number in range(10):
            with eo.block(store, scope=f"tenant-{number}", key="k") as block:
                assert block.first
    labels = {"effectonce_kind": "completed", "effectonce_scope": "(other)"}
    assert watching.metric("effectonce.outcomes", **labels) == 7
