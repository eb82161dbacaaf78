"""Which names of OpenTelemetry's conventions spans and metrics have: 1.44.0, and on request 1.24.0 beside them."""

from __future__ import annotations

import pytest

import effectonce as eo
from tests.worker.bench import paid, serving, until

from .test_opentelemetry import Watching

OLD = {"messaging.operation", "messaging.kafka.consumer.group"}


async def work(watching: Watching, url: str, name: str) -> None:
    """Publish a message, and handle it."""
    store, broker = eo.connect("memory://", sweep_every=None), eo.connect_broker(url)
    worker = eo.Worker(broker, store=store, name=name)
    watching.tracing.watch(worker)

    @worker.handler(name)
    async def handle(message: eo.Message[dict[str, int]]) -> None: ...

    async with serving(worker):
        await until(lambda: worker.phase == "running")
        await broker.apublish(name, paid())
        await until(lambda: watching.spans("acked"))
    await broker.aclose()


@pytest.mark.parametrize("opt_in", [None, "", "messaging", "http/dup, database"])
async def test_by_default_and_on_request_they_are_the_current_ones(
    monkeypatch: pytest.MonkeyPatch, redis_url: str, unique_name: str, opt_in: str | None
) -> None:
    monkeypatch.delenv("OTEL_SEMCONV_STABILITY_OPT_IN", raising=False)
    if opt_in is not None:
        monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    watching = Watching()
    await work(watching, redis_url, unique_name)
    assert not [span for span in watching.spans() if OLD & set(span.attributes or {})]
    assert watching.metric("messaging.client.sent.messages") == 1
    assert watching.metric("messaging.publish.messages") == 0


@pytest.mark.parametrize("opt_in", ["messaging/dup", "http, messaging/dup,messaging"])
@pytest.mark.parametrize("kind", ["redis", "kafka"])
async def test_dup_adds_the_old_ones(
    monkeypatch: pytest.MonkeyPatch, unique_name: str, request: pytest.FixtureRequest, kind: str, opt_in: str
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    watching = Watching()
    await work(watching, request.getfixturevalue(f"{kind}_url"), unique_name)
    (send,), (process,), (ack,) = (watching.spans(name) for name in ("send", "process", "acked"))
    assert send.name == f"send {unique_name}", "of what can only be one, the current one"
    operations = [(span.attributes or {}).get("messaging.operation") for span in (send, process, ack)]
    assert operations == ["publish", "deliver", None]
    types = [(span.attributes or {}).get("messaging.operation.type") for span in (send, process, ack)]
    assert types == ["send", "process", "settle"]
    groups = [(span.attributes or {}).get("messaging.kafka.consumer.group") for span in (process, ack)]
    assert groups == ([unique_name] * 2 if kind == "kafka" else [None] * 2)
    for name in ("client.sent.messages", "publish.messages", "client.consumed.messages", "deliver.messages"):
        assert watching.metric(f"messaging.{name}", messaging_system=kind) == 1, name
    for name in ("client.operation.duration", "process.duration", "publish.duration", "deliver.duration"):
        assert watching.metric(f"messaging.{name}", messaging_destination_name=unique_name) >= 1, name
