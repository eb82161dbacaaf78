"""Celery, Dramatiq and taskiq: their own idioms on their own test brokers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import dramatiq
import pytest
from celery import Celery, chain, chord, group
from celery.contrib.testing.worker import start_worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AsyncIO
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend
from kombu import Connection
from kombu.exceptions import OperationalError
from pydantic import BaseModel
from taskiq import InMemoryBroker, NoResultError

import effectonce as eo
from effectonce.core.delivery_outcome import Reject, decide_delivery
from effectonce.integrations import dramatiq as ours_dramatiq
from effectonce.integrations.celery import OnceTask
from effectonce.integrations.taskiq import REDELIVERIES_LABEL, IdempotencyMiddleware


class Receipt(BaseModel):
    payment_id: str
    amount: int


# -- Celery


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.broker_transport_options = {"polling_interval": 0.01}
    drain = Connection.drain_events
    # A worker asks only that often whether it is to stop; by itself, every two seconds.
    monkeypatch.setattr(Connection, "drain_events", lambda self, **_: drain(self, timeout=0.05))
    yield app
    app.close()


def test_chains_groups_and_chords_fire_for_a_duplicate_too(app: Celery, store: eo.Store, charges: list[str]) -> None:
    """F52: a duplicate that is skipped must not break off what stands behind it."""
    thanked: list[str] = []

    @app.task(base=OnceTask, shared=False)
    @eo.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str) -> dict[str, Any]:
        charges.append(payment_id)
        return {"payment_id": payment_id, "amount": 7}

    @app.task(shared=False)
    def thank(receipt: dict[str, Any]) -> str:
        thanked.append(receipt["payment_id"])
        return f"thanks for {receipt['amount']}"

    @app.task(shared=False)
    def total(receipts: list[dict[str, Any]]) -> int:
        return sum(receipt["amount"] for receipt in receipts)

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        for _ in range(2):
            assert chain(charge.s("p1"), thank.s()).delay().get(timeout=30, interval=0.01) == "thanks for 7"
            results = group(charge.s("p1"), charge.s("p2")).delay()
            assert [each["payment_id"] for each in results.get(timeout=30, interval=0.01)] == ["p1", "p2"]
            summed = chord([charge.s("p1"), charge.s("p3"), charge.s("p1")], total.s()).delay()
            assert summed.get(timeout=30, interval=0.01) == 21
    assert (charges, thanked) == (["p1", "p2", "p3"], ["p1", "p1"])


def test_f06_a_duplicate_beside_the_first_comes_back_for_its_result(
    app: Celery, store: eo.Store, charges: list[str]
) -> None:
    """It is retried without using up its retries, and neither lost nor failed."""
    begun, over = threading.Event(), threading.Event()

    @app.task(base=OnceTask, shared=False, max_retries=0)
    @eo.once(store, scope="charge", key="payment_id", lease="10s")
    def charge(payment_id: str) -> str:
        charges.append(payment_id)
        begun.set()
        assert over.wait(30)
        return "receipt"

    waited: list[float] = []
    retry = charge.retry

    def noted(*args: Any, **kwargs: Any) -> Any:
        waited.append(kwargs["countdown"])
        if len(waited) == 3:
            over.set()
        return retry(*args, **{**kwargs, "countdown": 0.01})

    charge.retry = noted
    with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False, shutdown_timeout=30):
        first = charge.delay("p1")
        assert begun.wait(30)
        second = charge.delay("p1")
        assert [first.get(timeout=30, interval=0.01), second.get(timeout=30, interval=0.01)] == ["receipt", "receipt"]
    assert charges == ["p1"]
    assert waited[:3] == [0.2, 0.4, 0.8]


def test_a_task_without_a_guard_or_with_too_long_a_lease_is_refused(app: Celery, store: eo.Store) -> None:
    with pytest.raises(eo.ConfigurationError, match="under @once"):

        @app.task(base=OnceTask, shared=False, lazy=False)
        def unguarded(payment_id: str) -> None: ...

    for url, options, lease in (
        ("redis://localhost", {}, "1h"),
        ("sqs://", {}, "30m"),
        ("redis://localhost", {"visibility_timeout": 10}, "10s"),
    ):
        app.conf.update(broker_url=url, broker_transport_options=options)

        @eo.once(store, scope=f"charge {url} {lease}", key="payment_id", lease=lease)
        def charge(payment_id: str) -> None: ...

        with pytest.raises(eo.ConfigurationError, match="visibility"):
            app.task(base=OnceTask, shared=False, lazy=False, name=f"{url} {lease}")(charge)


def test_autoretry_is_for_what_the_task_raises_itself(app: Celery, store: eo.Store, charges: list[str]) -> None:
    """It would count what is to be retried later, and fail it in the end: a chain behind a duplicate would stop (F52).
    So would a store that is not migrated yet: what was sent meanwhile would be lost."""
    told = {
        "p1": eo.InProgress("first runs", 0.1),
        "p2": eo.LeaseLost("another took over"),
        "p3": eo.SchemaMissing("nobody has migrated"),
    }

    @app.task(base=OnceTask, shared=False, autoretry_for=(Exception,), max_retries=0)
    @eo.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str) -> str:
        charges.append(payment_id)
        if charges.count(payment_id) == 1:
            raise told[payment_id]
        return f"receipt {payment_id}"

    retry = charge.retry
    charge.retry = lambda **options: retry(**{**options, "countdown": 0.01})
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        results = [charge.delay(payment) for payment in told]
        assert [each.get(timeout=30, interval=0.01) for each in results] == [f"receipt {each}" for each in told]
    assert sorted(charges) == ["p1", "p1", "p2", "p2", "p3", "p3"]


def test_f06_a_duplicate_that_could_not_be_sent_again_goes_back_to_its_queue(
    app: Celery, store: eo.Store, charges: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery would take it from the queue, as failed; and should the first die then, the charge would be lost."""

    @app.task(base=OnceTask, shared=False)
    @eo.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str) -> str:
        charges.append(payment_id)
        if len(charges) == 1:
            raise eo.InProgress("first runs", 0.1)
        return "receipt"

    sign = charge.signature_from_request

    def cut_off(*args: Any, **kwargs: Any) -> Any:
        signature = sign(*args, **kwargs)

        def apply_async() -> None:
            raise OperationalError("the broker is restarting")

        signature.apply_async = apply_async
        return signature

    monkeypatch.setattr(charge, "signature_from_request", cut_off)
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        assert charge.delay("p1").get(timeout=30, interval=0.01) == "receipt"
    assert charges == ["p1", "p1"]


def test_what_no_redelivery_can_mend_fails_with_its_own_error(app: Celery, store: eo.Store, charges: list[str]) -> None:
    @app.task(base=OnceTask, shared=False)
    @eo.once(store, scope="charge", key="payment_id", fingerprint="amount")
    def charge(payment_id: str, amount: int) -> None:
        charges.append(payment_id)

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        charge.delay("p1", 7).get(timeout=30, interval=0.01)
        with pytest.raises(eo.PayloadMismatch):
            charge.delay("p1", 8).get(timeout=30, interval=0.01)
    assert charges == ["p1"]


@pytest.mark.parametrize("url", ["redis://localhost", "rediss://localhost", "sentinel://localhost", "sqs://"])
def test_a_lease_that_is_over_before_the_visibility_timeout_is_accepted(app: Celery, store: eo.Store, url: str) -> None:
    app.conf.update(broker_url=url, broker_transport_options={})

    @app.task(base=OnceTask, shared=False, lazy=False)
    @eo.once(store, scope="charge", key="payment_id", lease="29m" if url == "sqs://" else "59m")
    def charge(payment_id: str) -> None: ...

    assert charge.acks_late


def test_models_are_passed_and_returned(app: Celery, store: eo.Store, charges: list[str]) -> None:
    """With Celery's own pydantic=True, which stands between the task and its guard."""

    @app.task(base=OnceTask, shared=False, pydantic=True)
    @eo.once(store, scope="charge", key="receipt.payment_id")
    def charge(receipt: Receipt) -> Receipt:
        charges.append(receipt.payment_id)
        return Receipt(payment_id=receipt.payment_id, amount=receipt.amount + 1)

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        for _ in range(2):
            result = charge.delay(Receipt(payment_id="p1", amount=7)).get(timeout=30, interval=0.01)
            assert result == {"payment_id": "p1", "amount": 8}
    assert charges == ["p1"]


def test_an_eager_duplicate_beside_the_first_raises(app: Celery, store: eo.Store) -> None:
    """No broker would deliver it later."""
    app.conf.task_always_eager = True
    errors: list[Any] = []

    @app.task(base=OnceTask, shared=False)
    @eo.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str) -> str:
        beside = threading.Thread(target=lambda: errors.append(charge.delay(payment_id).result))
        beside.start()
        beside.join(30)
        return "receipt"

    assert charge.delay("p1").get() == "receipt"
    assert [type(error) for error in errors] == [eo.InProgress]


# -- Dramatiq


@pytest.fixture
def stub() -> Iterator[StubBroker]:
    broker = StubBroker()
    broker.add_middleware(Results(backend=StubBackend()))
    broker.emit_after("process_boot")
    yield broker
    broker.flush_all()
    broker.close()


@pytest.fixture
def worker(stub: StubBroker) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(stub, worker_timeout=50, worker_threads=4)
    worker.start()
    yield worker
    worker.stop()


def join(stub: StubBroker, worker: dramatiq.Worker, actor: Any) -> None:
    stub.join(actor.queue_name, fail_fast=False, timeout=20_000)
    worker.join()


@pytest.mark.parametrize("key", ["payment_id", True, {"key": "payment_id", "retention": "30d"}])
def test_a_message_delivered_twice_has_one_effect_and_pipelines_go_on(
    stub: StubBroker, worker: dramatiq.Worker, store: eo.Store, charges: list[str], key: Any
) -> None:
    stub.add_middleware(ours_dramatiq.Idempotency(store))
    thanked: list[int] = []

    @dramatiq.actor(broker=stub, once=key, store_results=True)
    def charge(payment_id: str) -> int:
        charges.append(payment_id)
        return eo.current().attempt

    @dramatiq.actor(broker=stub)
    def thank(attempt: int) -> None:
        thanked.append(attempt)

    first = dramatiq.pipeline([charge.message("p1"), thank.message()]).messages[0]
    for _ in range(2):
        stub.enqueue(first.copy())
        join(stub, worker, charge)
        join(stub, worker, thank)
    assert (charges, thanked) == (["p1"], [1, 1])


def test_what_no_retry_can_mend_is_dead_at_once(
    stub: StubBroker,
    worker: dramatiq.Worker,
    store: eo.Store,
    charges: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stub.add_middleware(ours_dramatiq.Idempotency(store, on_error="doubt"))

    @dramatiq.actor(broker=stub, once="payment_id", max_retries=5, min_backoff=1, max_backoff=1)
    def charge(payment_id: str) -> None:
        charges.append(payment_id)
        raise RuntimeError("card reader on fire")

    charge.send("p1")
    join(stub, worker, charge)
    assert charges == ["p1"]
    assert [message.args for message in stub.dead_letters] == [("p1",)]
    assert "handler default:charge failed and the message is rejected: " in caplog.text
    assert "in doubt" in caplog.text


def test_dramatiq_retries_no_error_that_is_rejected_elsewhere() -> None:
    """One error means the same to every consumer: what `decide_delivery` rejects, dramatiq dead-letters at once."""

    def subclasses(kind: type[eo.EffectOnceError]) -> Iterator[type[eo.EffectOnceError]]:
        yield kind
        for inner in kind.__subclasses__():
            yield from subclasses(inner)

    for kind in subclasses(eo.EffectOnceError):
        if kind is not eo.EffectOnceError and kind.__module__ == "effectonce.errors":
            try:
                rejected = isinstance(decide_delivery(kind("it failed")), Reject)
            except eo.ConfigurationError:
                rejected = False
            assert issubclass(kind, ours_dramatiq.REJECTED_ERRORS) == rejected, kind


def test_a_record_that_cannot_be_read_is_dead_at_once(
    stub: StubBroker, worker: dramatiq.Worker, store: eo.Store, charges: list[str]
) -> None:
    """Another attempt would read the same bytes; as a dead letter, with its bytes, it waits for who can mend it."""
    stub.add_middleware(ours_dramatiq.Idempotency(store))

    @dramatiq.actor(broker=stub, once="payment_id", max_retries=5, min_backoff=1, max_backoff=1)
    def charge(payment_id: str) -> None:
        charges.append(payment_id)
        raise eo.CorruptRecord("the stored result is of a newer release")

    charge.send("p1")
    join(stub, worker, charge)
    assert charges == ["p1"]
    assert [message.args for message in stub.dead_letters] == [("p1",)]


def test_f60_while_the_store_is_down_messages_are_put_off_and_the_log_says_why(
    stub: StubBroker, charges: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with eo.connect("postgresql://127.0.0.1:1/nothing") as store:
        stub.add_middleware(ours_dramatiq.Idempotency(store))

        @dramatiq.actor(broker=stub, once="payment_id")
        def charge(payment_id: str) -> None:
            charges.append(payment_id)

        with pytest.raises(ours_dramatiq.UncountedRetry):
            charge.fn("p1")
    assert charges == []
    assert "handler default:charge failed and is retried in 1s: StoreUnavailable: cannot connect to" in caplog.text


def test_f06_a_message_beside_the_first_comes_back(
    stub: StubBroker,
    worker: dramatiq.Worker,
    store: eo.Store,
    charges: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stub.add_middleware(ours_dramatiq.Idempotency(store, lease="30s"))
    begun, over = threading.Event(), threading.Event()

    @dramatiq.actor(broker=stub, once="payment_id", max_retries=1)
    def charge(payment_id: str) -> None:
        charges.append(payment_id)
        begun.set()
        assert over.wait(30)

    charge.send("p1")
    assert begun.wait(30)
    retried = threading.Semaphore(0)
    delays: list[int] = []
    enqueue = stub.enqueue

    def noted(message: Any, *, delay: int | None = None) -> Any:
        if delay is not None:
            delays.append(delay)
            retried.release()
        return enqueue(message, delay=None if delay is None else 10)

    stub.enqueue = noted  # type: ignore[method-assign]
    charge.send("p1")
    for _ in range(4):  # more often than it may be retried after an error of its own
        assert retried.acquire(timeout=30)
    over.set()
    join(stub, worker, charge)
    assert (charges, list(stub.dead_letters)) == (["p1"], [])
    assert delays[:4] == [200, 400, 800, 1600]
    assert "a message was" not in caplog.text, "that is as it should be"


@dataclass
class Payment:
    id: str
    amount: int


@pytest.mark.parametrize("colour", ["def", "async def"])
def test_an_actor_gets_and_gives_models(
    stub: StubBroker, worker: dramatiq.Worker, store: eo.Store, charges: list[str], colour: str
) -> None:
    """Sent as models, handled as models, replayed as models; what is wrong with one is an error of the message."""
    results = next(each for each in stub.middleware if isinstance(each, Results))
    results.backend.encoder = ours_dramatiq.ModelEncoder()  # it had been made before
    loops = AsyncIO()
    stub.add_middleware(loops)
    loops.before_worker_boot(stub, worker)
    stub.add_middleware(ours_dramatiq.Idempotency(store))

    def charge(payment: Payment) -> Receipt:
        charges.append(payment.id)
        return Receipt(payment_id=payment.id, amount=payment.amount)

    async def charge_async(payment: Payment) -> Receipt:
        return charge(payment)

    function: Any = charge if colour == "def" else charge_async
    before = dramatiq.get_encoder()
    dramatiq.set_encoder(ours_dramatiq.ModelEncoder())
    try:
        actor = dramatiq.actor(broker=stub, once="payment.id", store_results=True, max_retries=0)(function)
        for _ in range(2):
            message = actor.send(Payment("p1", 7))
            join(stub, worker, actor)
            result = message.get_result(backend=results.backend, block=True, timeout=20_000)
            assert result == {"payment_id": "p1", "amount": 7}
        actor.send({"id": 7})
        join(stub, worker, actor)
    finally:
        dramatiq.set_encoder(before)
    assert (charges, [message.args for message in stub.dead_letters]) == (["p1"], [({"id": 7},)])


def test_an_actor_that_does_not_ask_is_left_alone(
    stub: StubBroker, worker: dramatiq.Worker, store: eo.Store, charges: list[str]
) -> None:
    stub.add_middleware(ours_dramatiq.Idempotency(store))

    @dramatiq.actor(broker=stub)
    def charge(payment_id: str) -> None:
        charges.append(payment_id)

    for _ in range(2):
        charge.send("p1")
    join(stub, worker, charge)
    assert charges == ["p1", "p1"]


# -- taskiq


async def test_f06_a_task_beside_the_first_is_sent_again_and_gets_its_result(
    store: eo.Store, charges: list[str]
) -> None:
    broker = InMemoryBroker().with_middlewares(IdempotencyMiddleware(longest=0.2))
    await broker.startup()
    begun, over = asyncio.Event(), asyncio.Event()

    @broker.task
    @eo.once(store, scope="charge", key="payment_id", lease="30s")
    async def charge(payment_id: str) -> Receipt:
        charges.append(payment_id)
        begun.set()
        await over.wait()
        return Receipt(payment_id=payment_id, amount=7)

    first = await charge.kiq("p1")
    await begun.wait()
    second = await charge.kiq("p1")
    await asyncio.sleep(0.1)
    over.set()
    results = [await task.wait_result(timeout=30) for task in (first, second)]
    await broker.shutdown()
    assert [(result.is_err, result.return_value) for result in results] == [
        (False, Receipt(payment_id="p1", amount=7))
    ] * 2
    assert charges == ["p1"]


async def test_f06_a_task_that_is_sent_again_stores_no_result_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be the error of a task that is not done yet."""
    sent: list[Any] = []

    class Kicker:
        def __init__(self, **options: Any) -> None:
            sent.append(options["labels"])

        def with_task_id(self, id: str) -> Kicker:
            sent.append(id)
            return self

        async def kiq(self, *args: Any, **kwargs: Any) -> None:
            sent.append((args, kwargs))

    monkeypatch.setattr("effectonce.integrations.taskiq.AsyncKicker", Kicker)
    middleware = IdempotencyMiddleware(longest=0.01)
    middleware.set_broker(InMemoryBroker())
    message = SimpleNamespace(task_name="charge", task_id="t1", args=["p1"], kwargs={"x": 1}, labels={"a": "b"})
    for error, is_sent in ((eo.InProgress("beside the first"), True), (eo.PayloadMismatch("other"), False)):
        sent.clear()
        result = SimpleNamespace(error=error)
        await middleware.on_error(message, result, error)
        assert isinstance(result.error, NoResultError) is is_sent
        assert sent == ([{"a": "b", REDELIVERIES_LABEL: 1}, "t1", (("p1",), {"x": 1})] if is_sent else [])


async def test_other_errors_are_taskiqs_own(store: eo.Store) -> None:
    broker = InMemoryBroker(await_inplace=True).with_middlewares(IdempotencyMiddleware())

    @broker.task
    @eo.once(store, scope="charge", key="payment_id")
    async def charge(payment_id: str) -> None:
        raise RuntimeError

    assert (await (await charge.kiq("p1")).wait_result(timeout=30)).is_err
