"""Celery, Dramatiq, FastStream and taskiq: their own idioms on their own test brokers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dramatiq
import pytest
from celery import Celery, chain, group
from celery.contrib.testing.worker import start_worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AsyncIO
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend
from faststream import AckPolicy
from faststream.exceptions import NackMessage
from faststream.rabbit import RabbitBroker, RabbitResponse, RabbitRouter, TestRabbitBroker
from pydantic import BaseModel
from taskiq import InMemoryBroker

import effectonce as eo
from effectonce.integrations import dramatiq as ours_dramatiq
from effectonce.integrations import faststream as ours_faststream
from effectonce.integrations.celery import OnceTask
from effectonce.integrations.taskiq import IdempotencyMiddleware


@pytest.fixture
def store() -> Iterator[eo.Store]:
    with eo.connect("memory://") as store:
        yield store


@pytest.fixture
def charges() -> list[str]:
    return []


class Receipt(BaseModel):
    payment_id: str
    amount: int


# -- Celery


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.broker_transport_options = {"polling_interval": 0.01}
    yield app
    app.close()


def test_chains_and_groups_fire_for_a_duplicate_too(app: Celery, store: eo.Store, charges: list[str]) -> None:
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

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        for _ in range(2):
            assert chain(charge.s("p1"), thank.s()).delay().get(timeout=30, interval=0.01) == "thanks for 7"
            results = group(charge.s("p1"), charge.s("p2")).delay()
            assert [each["payment_id"] for each in results.get(timeout=30, interval=0.01)] == ["p1", "p2"]
    assert (charges, thanked) == (["p1", "p2"], ["p1", "p1"])


def test_f06_a_duplicate_beside_the_first_comes_back_for_its_result(
    app: Celery, store: eo.Store, charges: list[str]
) -> None:
    """It is retried without using up its retries, and neither lost nor failed."""
    begun, over = threading.Event(), threading.Event()

    @app.task(base=OnceTask, shared=False, max_retries=0)
    @eo.once(store, scope="charge", key="payment_id", lease="1s")
    def charge(payment_id: str) -> str:
        charges.append(payment_id)
        begun.set()
        assert over.wait(30)
        return "receipt"

    waited: list[float] = []
    retry = charge.retry

    def noted(*args: Any, **kwargs: Any) -> Any:
        waited.append(kwargs["countdown"])
        over.set()
        return retry(*args, **{**kwargs, "countdown": 0.1})

    charge.retry = noted
    with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False, shutdown_timeout=30):
        first = charge.delay("p1")
        assert begun.wait(30)
        second = charge.delay("p1")
        assert [first.get(timeout=30, interval=0.01), second.get(timeout=30, interval=0.01)] == ["receipt", "receipt"]
    assert charges == ["p1"]
    assert all(0.1 <= each <= 1 for each in waited)
    assert waited


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
    """It would count what is told to come back, and fail it in the end: a chain behind a duplicate would stop (F52).
    So would a store that nobody has migrated yet: what was sent meanwhile would be lost."""
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
    """There is nobody to come back later."""
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
    stub: StubBroker, worker: dramatiq.Worker, store: eo.Store, charges: list[str]
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


def test_f06_a_message_beside_the_first_comes_back(
    stub: StubBroker, worker: dramatiq.Worker, store: eo.Store, charges: list[str]
) -> None:
    stub.add_middleware(ours_dramatiq.Idempotency(store, lease="400ms"))
    begun, over = threading.Event(), threading.Event()

    @dramatiq.actor(broker=stub, once="payment_id", max_retries=1)
    def charge(payment_id: str) -> None:
        charges.append(payment_id)
        begun.set()
        assert over.wait(30)

    charge.send("p1")
    assert begun.wait(30)
    retried = threading.Semaphore(0)
    enqueue = stub.enqueue

    def noted(message: Any, *, delay: int | None = None) -> Any:
        if delay is not None:
            retried.release()
        return enqueue(message, delay=None if delay is None else 10)

    stub.enqueue = noted  # type: ignore[method-assign]
    charge.send("p1")
    for _ in range(4):  # more often than it may be retried after an error of its own
        assert retried.acquire(timeout=30)
    over.set()
    join(stub, worker, charge)
    assert (charges, list(stub.dead_letters)) == (["p1"], [])


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


# -- FastStream


async def test_a_message_delivered_twice_is_handled_once_and_answered_twice(
    store: eo.Store, charges: list[str]
) -> None:
    """Its models are stored, and what it publishes is published for the duplicate too (F52)."""
    once = ours_faststream.Idempotency(store, scope="billing", key="payment-id")
    broker = RabbitBroker()
    receipts: list[Receipt] = []

    @broker.subscriber("receipts")
    async def receipt(receipt: Receipt) -> None:
        receipts.append(receipt)

    router = RabbitRouter(middlewares=[once])

    @router.subscriber("payments")
    @router.publisher("receipts")
    async def charge(amount: int) -> Receipt:
        charges.append(eo.current().key)
        return Receipt(payment_id=eo.current().key, amount=amount)

    broker.include_router(router)
    async with TestRabbitBroker(broker) as delivering:
        for _ in range(2):
            await delivering.publish(7, "payments", headers={"payment-id": "p1"})
    assert (charges, receipts) == (["p1"], [Receipt(payment_id="p1", amount=7)] * 2)


@pytest.fixture
def rabbit(store: eo.Store, charges: list[str]) -> RabbitBroker:
    """A broker with one subscriber that fails at first when told to."""
    once = ours_faststream.Idempotency(store, scope="billing", key=lambda msg: msg.headers.get("payment-id"))
    broker = RabbitBroker(middlewares=[once])

    @broker.subscriber("payments", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def charge(body: str) -> str:
        charges.append(body)
        if body == "fail" and len(charges) == 1:
            raise RuntimeError("card reader on fire")
        return "receipt"

    return broker


async def test_what_a_handler_raised_lets_the_next_delivery_run(rabbit: RabbitBroker, charges: list[str]) -> None:
    async with TestRabbitBroker(rabbit) as delivering:
        with pytest.raises(RuntimeError, match="on fire"):
            await delivering.publish("fail", "payments", headers={"payment-id": "p1"})
        for _ in range(2):
            await delivering.publish("fail", "payments", headers={"payment-id": "p1"})
    assert charges == ["fail", "fail"]


async def test_f24_two_handlers_of_one_message_do_not_hide_it_from_each_other(store: eo.Store) -> None:
    """One middleware on the broker, and the same message in two queues."""
    handled: list[str] = []
    broker = RabbitBroker(middlewares=[ours_faststream.Idempotency(store, scope="billing", key="payment-id")])

    @broker.subscriber("payments")
    async def charge(body: str) -> None:
        handled.append("charge")

    @broker.subscriber("ledger")
    def book(body: str) -> RabbitResponse:  # a result that cannot be kept
        handled.append("book")
        return RabbitResponse("booked")

    async with TestRabbitBroker(broker) as delivering:
        for queue in ("payments", "ledger", "payments", "ledger"):
            await delivering.publish("one", queue, headers={"payment-id": "p1"})
    assert handled == ["charge", "book"]
    scopes = sorted(record.scope for record in store.list().records)
    assert [scope.rpartition(".")[2] for scope in scopes] == ["book", "charge"]
    assert all(scope.startswith("billing:tests.integrations.test_tasks:") for scope in scopes)


@pytest.mark.parametrize("kind", ["list", "stream", "kafka"])
async def test_a_batch_is_given_back_and_never_handled_under_its_first_key(store: eo.Store, kind: str) -> None:
    """What stands behind the first would be taken for done with it."""
    from faststream.confluent import KafkaBroker, TestKafkaBroker
    from faststream.redis import ListSub, RedisBroker, StreamSub, TestRedisBroker

    handled: list[Any] = []
    once = ours_faststream.Idempotency(store, scope="billing", key="payment-id")
    broker: Any = (KafkaBroker if kind == "kafka" else RedisBroker)(middlewares=[once])
    told = {"list": {"list": ListSub("payments", batch=True)}, "stream": {"stream": StreamSub("payments", batch=True)}}

    @broker.subscriber(**told[kind]) if kind != "kafka" else broker.subscriber("payments", batch=True)
    async def charge(payments: list[str]) -> None:
        handled.append(payments)

    where = {"topic" if kind == "kafka" else kind: "payments"}
    async with (TestKafkaBroker if kind == "kafka" else TestRedisBroker)(broker) as delivering:
        with pytest.raises(NackMessage):
            await delivering.publish("p1", headers={"payment-id": "p1"}, **where)
    assert (handled, store.list().records) == ([], [])


@pytest.mark.parametrize("kind", ["redis list", "redis stream", "redis channel", "nats", "kafka"])
async def test_the_middleware_is_the_same_for_all_brokers(store: eo.Store, kind: str) -> None:
    from faststream.confluent import KafkaBroker, TestKafkaBroker
    from faststream.nats import NatsBroker, TestNatsBroker
    from faststream.redis import RedisBroker, TestRedisBroker

    library, _, place = kind.partition(" ")
    made, tested = {
        "redis": (RedisBroker, TestRedisBroker),
        "nats": (NatsBroker, TestNatsBroker),
        "kafka": (KafkaBroker, TestKafkaBroker),
    }[library]
    where = {place or ("subject" if library == "nats" else "topic"): "payments"}
    broker: Any = made(middlewares=[ours_faststream.Idempotency(store, scope="billing", key="payment-id")])
    handled: list[Receipt] = []

    @broker.subscriber(**where) if library == "redis" else broker.subscriber("payments")
    async def charge(receipt: Receipt) -> None:
        handled.append(receipt)

    async with tested(broker) as delivering:
        for payment in ("p1", "p1", "p2"):
            receipt = Receipt(payment_id=payment, amount=7)
            await delivering.publish(receipt, headers={"payment-id": payment}, **where)
    assert [receipt.payment_id for receipt in handled] == ["p1", "p2"]


async def test_a_store_without_its_tables_loses_no_message(postgres_url: str, unique_name: str) -> None:
    """A program that is wrong acks nothing: what came before somebody migrated comes again."""

    class Message:
        headers = {"payment-id": "p1"}  # noqa: RUF012
        body = b"{}"

    async def handler(msg: Any) -> None:
        raise AssertionError("it ran unprotected")

    async with eo.connect(f"{postgres_url}?prefix={unique_name}") as store:
        once = ours_faststream.Idempotency(store, scope="billing", key="payment-id")
        with pytest.raises(NackMessage):
            await once(Message(), context=None).consume_scope(handler, Message())


async def test_another_body_under_one_key_and_no_key_at_all_are_not_handled(
    rabbit: RabbitBroker, charges: list[str]
) -> None:
    """F21."""
    async with TestRabbitBroker(rabbit) as delivering:
        await delivering.publish("one", "payments", headers={"payment-id": "p1"})
        await delivering.publish("other", "payments", headers={"payment-id": "p1"})
        await delivering.publish("keyless", "payments")
    assert charges == ["one"]


async def test_f06_a_message_beside_the_first_is_given_back(store: eo.Store) -> None:
    once = ours_faststream.Idempotency(store, scope="billing", key="payment-id", lease="200ms")
    begun, over = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    class Message:
        headers = {"payment-id": "p1"}  # noqa: RUF012
        body = b"{}"

    async def handler(msg: Any) -> str:
        runs.append(1)
        begun.set()
        await over.wait()
        return "receipt"

    first = asyncio.create_task(once(Message(), context=None).consume_scope(handler, Message()))
    await begun.wait()
    with pytest.raises(NackMessage):
        await once(Message(), context=None).consume_scope(handler, Message())
    over.set()
    assert (await first, await once(Message(), context=None).consume_scope(handler, Message())) == (
        "receipt",
        "receipt",
    )
    assert runs == [1]


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


async def test_other_errors_are_taskiqs_own(store: eo.Store) -> None:
    broker = InMemoryBroker(await_inplace=True).with_middlewares(IdempotencyMiddleware())

    @broker.task
    @eo.once(store, scope="charge", key="payment_id")
    async def charge(payment_id: str) -> None:
        raise RuntimeError

    assert (await (await charge.kiq("p1")).wait_result(timeout=30)).is_err
