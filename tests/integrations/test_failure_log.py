"""Where a framework never sees the error, one log line has its traceback; `once` itself logs nothing."""

from __future__ import annotations

import logging
from typing import Any

import dramatiq
import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from dramatiq.brokers.stub import StubBroker

import effectonce as eo
from effectonce.core.store_clients import LocalClient
from effectonce.guard.dispatch import dispatcher
from effectonce.integrations.aws_lambda import sqs_batch
from effectonce.integrations.celery import OnceTask
from effectonce.integrations.dramatiq import Idempotency as DramatiqIdempotency
from effectonce.record import Claim
from tests.harness.failure_lines import facts, failures, raised
from tests.harness.waiting import until

from .test_tasks import app

__all__ = ["app"]  # a fixture


@pytest.fixture
def store() -> eo.Store:
    return eo.connect("memory://", sweep_every=None)


def failing(store: eo.Store, error: Exception, **options: Any) -> Any:
    @eo.once(store, scope="charge", key=lambda message: getattr(message, "key", message), **options)
    def charge(message: Any) -> None:
        raise error

    return charge


@pytest.mark.parametrize(
    ("permanent", "level", "then"),
    [((), "WARNING", "is retried in 1s"), ((ValueError,), "ERROR", "the message is rejected")],
)
def test_a_dispatcher_logs_what_it_does_not_raise(
    store: eo.Store, caplog: pytest.LogCaptureFixture, permanent: Any, level: str, then: str
) -> None:
    error = ValueError("declined")
    dispatch = dispatcher(failing(store, error, permanent=permanent), retry=eo.Retry(5, first="1s", jitter=False))
    dispatch(eo.Message(type="paid", data=1, id="m-1"))
    (line,) = failures(caplog)
    assert (line.levelname, raised(line)) == (level, error)
    assert {name: facts(line)[name] for name in ("handler", "message", "attempt", "next")} == {
        "handler": "charge",
        "message": "m-1",
        "attempt": 1,
        "next": then,
    }


def test_a_batch_of_sqs_logs_each_failed_record_once(store: eo.Store, caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("declined")
    handle = sqs_batch(failing(store, error))
    records = [{"messageId": id, "body": f'"{id}"', "attributes": {}} for id in ("a", "b")]
    assert len(handle({"Records": records}, None)["batchItemFailures"]) == 2
    assert [raised(line) for line in failures(caplog)] == [error, error]


def test_a_record_of_sqs_that_cannot_be_read_is_logged_once(store: eo.Store, caplog: pytest.LogCaptureFixture) -> None:
    def read(record: Any) -> Any:
        raise KeyError("order")

    handle = sqs_batch(failing(store, ValueError()), read=read)
    handle({"Records": [{"messageId": "a", "body": "a", "attributes": {}}]}, None)
    (line,) = failures(caplog)
    assert isinstance(raised(line), KeyError)
    assert (line.levelname, facts(line)["SQS record"]) == ("WARNING", "a")


def test_once_leaves_the_traceback_to_its_caller(store: eo.Store, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="declined"):
        failing(store, ValueError("declined"))("m-1")
    assert not failures(caplog)


def test_a_celery_task_that_waits_for_its_store_is_logged_once(
    app: Celery, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery counts the retry as one of its own, at INFO and without a traceback."""
    store = eo.connect("memory://", sweep_every=None)
    outages = [eo.StoreUnavailable("the store is away", 0.01)]

    @app.task(base=OnceTask, shared=False, name="shop.charge")
    @eo.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str) -> str:
        return payment_id

    async def claim(self: Any, op: Any) -> Any:
        if isinstance(op, Claim) and outages:
            raise outages.pop()
        return await run(self, op)

    run = LocalClient.claim
    monkeypatch.setattr(LocalClient, "claim", claim)
    monkeypatch.setattr(logging.getLogger("effectonce"), "handlers", [caplog.handler])  # Celery takes away the root's
    caplog.set_level(logging.WARNING, "effectonce")
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        assert charge.delay("p1").get(timeout=30, interval=0.01) == "p1"
    (line,) = [record for record in caplog.records if record.name == "effectonce"]
    assert line.levelname == "WARNING"
    assert isinstance(raised(line), eo.StoreUnavailable)
    assert facts(line)["handler"] == "shop.charge"
    assert facts(line)["next"].startswith("is retried in")


# -- an intent inside of the handler


@pytest.fixture
def intents(store: eo.Store) -> eo.Intents:
    return eo.Intents(store, scope="bank")


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
async def test_an_intent_leaves_its_error_to_the_dispatcher(
    store: eo.Store, intents: eo.Intents, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    """F79: its failure was logged by the intent, and once more by what called the handler."""
    silence = TimeoutError("silence")
    if is_async:

        @intents.operation("stripe", "charge")
        async def charge(intent: eo.Intent[int]) -> None:
            raise silence

        @eo.once(store, scope="pay")
        async def pay(message: eo.Message[int]) -> None:
            await charge(message.data, key=message.key)

        await dispatcher(pay)(eo.Message(type="paid", data=1))
    else:

        @intents.operation("stripe", "charge")
        def charge_now(intent: eo.Intent[int]) -> None:
            raise silence

        @eo.once(store, scope="pay")
        def pay_now(message: eo.Message[int]) -> None:
            charge_now(message.data, key=message.key)

        dispatcher(pay_now)(eo.Message(type="paid", data=1))
    (line,) = failures(caplog)
    error = raised(line)
    assert isinstance(error, eo.OutcomeUnknown)
    assert error.__cause__ is silence
    assert facts(line)["handler"] == "pay"


def test_an_intent_leaves_its_error_to_dramatiq(
    store: eo.Store, intents: eo.Intents, caplog: pytest.LogCaptureFixture
) -> None:
    """F79"""

    @intents.operation("stripe", "charge")
    def charge(intent: eo.Intent[int]) -> None:
        raise TimeoutError("silence")

    broker = StubBroker()
    broker.add_middleware(DramatiqIdempotency(store, every_actor=True))

    @dramatiq.actor(broker=broker)
    def pay(order: int) -> None:
        charge(order, key=str(order))

    pay.send(1)
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    try:
        until(lambda: [record for record in caplog.records if record.name == "effectonce"])
    finally:
        worker.stop()
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert {facts(line).get("handler") for line in lines} == {"default:pay"}


def test_an_intent_that_is_called_by_itself_logs_its_error(
    intents: eo.Intents, caplog: pytest.LogCaptureFixture
) -> None:
    @intents.operation("stripe", "charge")
    def charge(intent: eo.Intent[int]) -> None:
        raise TimeoutError("silence")

    with pytest.raises(eo.OutcomeUnknown):
        charge(1, key="k")
    (line,) = failures(caplog)
    assert isinstance(raised(line), TimeoutError)
