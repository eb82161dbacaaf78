"""The caller's trace travels with every message: also where no tracer of ours is attached, and through redeliveries."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan

import effectonce as eo
from tests.worker.bench import paid, serving, until

from .test_opentelemetry import Watching, id_of, parent_of, trace_of, watching

__all__ = ["watching"]  # a fixture


def links_of(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


async def receive(broker: eo.Broker, queue: str, group: str) -> eo.Message[Any]:
    consumer = broker.backend.consumer(queue, group=group, prefetch=1)
    (delivery,) = await consumer.receive(1, 10)
    message = broker.envelope.decode(delivery.packet)
    await consumer.ack([delivery])
    await consumer.close()
    return message


@pytest.mark.parametrize("kind", ["rabbitmq", "redis"])
async def test_the_trace_goes_through_an_outbox_and_a_broker_that_no_tracer_watches(
    kind: str, watching: Watching, empty_postgres: str, unique_name: str, request: pytest.FixtureRequest
) -> None:
    store, broker = (
        eo.connect(empty_postgres, sweep_every=None),
        eo.connect_broker(request.getfixturevalue(f"{kind}_url")),
    )
    store.migrate()
    await broker.backend.declare(unique_name, group=unique_name)
    with watching.tracer.start_as_current_span("checkout"):
        with psycopg.connect(empty_postgres) as connection:
            eo.Outbox(to=unique_name).send(connection, paid(1, id=f"{unique_name}-1"))
        await broker.apublish(unique_name, paid(2, id=f"{unique_name}-2"))
    assert await eo.Relay(store, broker).drain() == 1
    worker = eo.Worker(broker, store=store, name=unique_name)
    watching.tracing.watch(worker)

    @worker.handler(unique_name)
    async def handle(message: eo.Message[dict[str, int]]) -> None: ...

    async with serving(worker):
        await until(lambda: len(watching.spans("process")) == 2)
    (checkout,) = watching.spans("checkout")
    for process in watching.spans("process"):
        assert (trace_of(process), parent_of(process)) == (trace_of(checkout), id_of(checkout))
    await broker.aclose()
    await store.aclose()


async def test_baggage_travels_too_and_a_trace_that_a_message_brings_is_kept(watching: Watching) -> None:
    broker = eo.connect_broker("memory://")
    await broker.backend.declare("orders", group="g")
    brought = f"00-{'ab' * 16}-{'cd' * 8}-01"
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        with watching.tracer.start_as_current_span("checkout") as span:
            await broker.apublish("orders", paid(1))
            await broker.apublish("orders", paid(2, headers={"traceparent": brought}))
    finally:
        context.detach(token)
    first, second = [await receive(broker, "orders", "g") for _ in range(2)]
    assert first.headers["traceparent"].split("-")[2] == f"{span.get_span_context().span_id:016x}"
    assert first.headers["baggage"] == "tenant=acme"
    assert second.headers["traceparent"] == brought


async def test_outside_of_a_trace_a_message_leaves_as_it_is() -> None:
    broker = eo.connect_broker("memory://")
    await broker.backend.declare("orders", group="g")
    await broker.apublish("orders", paid(1, headers={"a": "b"}))
    assert (await receive(broker, "orders", "g")).headers == {"a": "b"}


PUBLISH = """
import sqlite3, sys, effectonce as eo
{before}
with eo.connect_broker("memory://") as broker:
    broker.publish("orders", [eo.Message(type="paid", data=n) for n in (1, 2)])
{after}
"""


def run_program(before: str, after: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PUBLISH.format(before=before, after=after)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=True,
    )


def test_a_program_without_opentelemetry_does_not_import_it() -> None:
    run_program("", "assert not [name for name in sys.modules if name.startswith('opentelemetry')]")


def test_a_propagator_that_is_not_installed_is_reported_once_and_stops_no_message() -> None:
    done = run_program("import logging, opentelemetry.trace; logging.basicConfig()", "", OTEL_PROPAGATORS="nope")
    assert done.stderr.count("OpenTelemetry cannot be used: messages leave without their trace") == 1


@pytest.mark.parametrize("kind", ["rabbitmq", "redis"])
async def test_retries_and_redrives_are_in_the_trace_and_linked_to_the_message(
    kind: str, watching: Watching, unique_name: str, request: pytest.FixtureRequest
) -> None:
    store = eo.connect("memory://", sweep_every=None)
    broker = eo.connect_broker(request.getfixturevalue(f"{kind}_url"))
    worker = eo.Worker(broker, store=store, name=unique_name)
    watching.tracing.watch(worker)
    mended: list[bool] = []

    @worker.handler(unique_name, retry=eo.Retry(2, first="10ms"))
    async def handle(message: eo.Message[dict[str, int]]) -> None:
        if not mended:
            raise LookupError("no such order")

    await broker.backend.declare(unique_name, group=unique_name)
    await broker.apublish(unique_name, paid(id=f"{unique_name}-1"))
    dead_letters = eo.DeadLetterQueue(worker, unique_name)
    async with serving(worker):
        await until(lambda: watching.spans("dead"))
        mended.append(True)
        await dead_letters.aredrive()
        await until(lambda: watching.spans("acked"))
    (send,) = watching.spans("send")
    first, retry, redriven = watching.spans("process")
    assert {trace_of(span) for span in (first, retry, redriven)} == {trace_of(send)}
    assert [links_of(span) for span in (first, retry, redriven)] == [[], [id_of(send)], [id_of(send)]]
    assert [bool((span.attributes or {}).get("effectonce.redriven")) for span in (first, retry, redriven)] == [
        False,
        False,
        True,
    ]
    await broker.aclose()


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_handler_sends_on_is_in_its_trace(watching: Watching, is_async: bool) -> None:
    broker, store = eo.connect_broker("memory://"), eo.connect("memory://", sweep_every=None)
    worker = eo.Worker(broker, store=store, name="w")
    watching.tracing.watch(worker)
    await broker.backend.declare("invoices", group="g")

    def charge(message: eo.Message[Any]) -> list[eo.Message[Any]]:
        return [eo.Message(type="invoice", data=n) for n in (1, 2)]

    async def charge_async(message: eo.Message[Any]) -> list[eo.Message[Any]]:
        return charge(message)

    worker.handler("orders", to="invoices")(charge_async if is_async else charge)
    async with serving(worker):
        await until(lambda: worker.phase == "running")
        await broker.apublish("orders", paid())
        await until(lambda: watching.spans("send invoices"))
    (process,) = watching.spans("process orders")
    for _ in range(2):
        invoice = await receive(broker, "invoices", "g")
        assert invoice.headers["traceparent"].split("-")[2] == f"{id_of(process):016x}"


def current_span_id() -> int:
    return trace.get_current_span().get_span_context().span_id


@pytest.mark.parametrize("kind", ["async", "thread", "to"])
async def test_the_handlers_of_a_worker_that_no_tracer_watches_continue_the_trace(
    watching: Watching, kind: str
) -> None:
    """Each that of its own message, or none; and what they publish goes on in it."""
    broker, store = eo.connect_broker("memory://"), eo.connect("memory://", sweep_every=None)
    worker = eo.Worker(broker, store=store, name="w")
    seen: dict[str, int] = {}

    def note(message: eo.Message[Any]) -> eo.Message[Any]:
        seen[message.id] = current_span_id()
        return eo.Message(type="invoice", data={})

    async def note_async(message: eo.Message[Any]) -> eo.Message[Any]:
        await asyncio.sleep(0)
        return note(message)

    to = "invoices" if kind == "to" else None
    worker.handler("orders", concurrency=1, to=to)(note if kind == "thread" else note_async)
    await broker.backend.declare("invoices", group="g")
    async with serving(worker):
        await until(lambda: worker.phase == "running")
        with watching.tracer.start_as_current_span("checkout") as span:
            await broker.apublish("orders", paid(1, id="traced"))
        await broker.apublish("orders", paid(2, id="untraced"))
        await until(lambda: len(seen) == 2)
        assert seen == {"traced": span.get_span_context().span_id, "untraced": 0}
        if to is not None:
            invoices = [await receive(broker, "invoices", "g") for _ in range(2)]
            parents = [invoice.headers.get("traceparent", "--").split("-")[2] for invoice in invoices]
            assert sorted(parents) == ["", f"{span.get_span_context().span_id:016x}"]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_handlers_in_transactions_continue_the_trace_of_their_own_message(
    watching: Watching, tmp_path: Path, batch: bool, is_async: bool
) -> None:
    """Also where they share a transaction, and so a context."""
    path = tmp_path / "shop.db"
    eo.connect(f"sqlite:///{path}").migrate()
    connect: Any = (lambda: aiosqlite.connect(path)) if is_async else (lambda: sqlite3.connect(path, timeout=10))
    broker = eo.connect_broker("memory://")
    worker = eo.Worker(broker, inbox=eo.Inbox(scope="billing"), connect=connect, name="w")
    seen: dict[str, int] = {}

    def note(connection: Any, message: eo.Message[Any]) -> None:
        seen[message.id] = current_span_id()

    async def note_async(connection: Any, message: eo.Message[Any]) -> None:
        note(connection, message)

    worker.handler("orders", concurrency=1, batch=batch)(note_async if is_async else note)
    await broker.backend.declare("orders", group="w")
    with watching.tracer.start_as_current_span("checkout") as span:
        await broker.apublish("orders", paid(1, id="traced"))
    await broker.apublish("orders", paid(2, id="untraced"))
    async with serving(worker):
        await until(lambda: len(seen) == 2)
    assert seen == {"traced": span.get_span_context().span_id, "untraced": 0}
