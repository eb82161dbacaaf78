"""One line guards a whole application: every Celery task, dramatiq actor, taskiq task and FastStream subscriber."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import celery.canvas
import dramatiq
import pytest
from celery import Celery, Task, shared_task
from celery.contrib.testing.worker import start_worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AsyncIO
from faststream import BaseMiddleware
from faststream.exceptions import HandlerException
from faststream.rabbit import RabbitBroker, TestRabbitBroker
from kombu import Connection
from taskiq import InMemoryBroker

import effectonce as eo
from effectonce.integrations import dramatiq as ours_dramatiq
from effectonce.integrations import faststream as ours_faststream
from effectonce.integrations.celery import guard_tasks
from effectonce.integrations.taskiq import IdempotencyMiddleware
from tests.harness.waiting import until
from tests.harness.web import Program, program

# -- Celery


@pytest.fixture
def app(store: eo.Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.broker_transport_options = {"polling_interval": 0.01}
    drain = Connection.drain_events
    # A worker asks only that often whether it is to stop; by itself, every two seconds.
    monkeypatch.setattr(Connection, "drain_events", lambda self, **_: drain(self, timeout=0.05))
    guard_tasks(app, store)
    yield app
    app.close()


def deliver(task: Any, *ids: str) -> Any:
    """Let a worker run a task once for each of the ids, and return the last result."""
    with start_worker(task.app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        results = [task.apply_async(("p1",), task_id=id).get(timeout=30, interval=0.01) for id in ids]
    return results[-1]


def test_every_celery_task_is_guarded_by_its_id_and_has_its_name_as_scope(
    app: Celery, store: eo.Store, charges: list[str]
) -> None:
    """They are defined after the line."""

    @app.task(shared=False, name="shop.charge")
    def charge(payment_id: str) -> str:
        charges.append(payment_id)
        return f"receipt {len(charges)}"

    assert deliver(charge, "t1", "t1", "t2") == "receipt 2"
    assert deliver(charge, "t1") == "receipt 1"
    assert {(record.scope, record.key) for record in store.list().records} == {
        ("shop.charge", "t1"),
        ("shop.charge", "t2"),
    }
    assert (charge.acks_late, charge.reject_on_worker_lost) == (True, True)


def test_shared_tasks_and_tasks_with_a_base_of_their_own_are_guarded(app: Celery, charges: list[str]) -> None:
    class Audited(Task):  # type: ignore[misc]
        abstract = True
        account = "acme"

    def charge(payment_id: str) -> None:
        charges.append(payment_id)

    shared_task(name="shop.shared")(charge)
    audited = app.task(shared=False, name="shop.audited", base=Audited)(charge)
    assert audited.account == "acme"
    for task in (app.tasks["shop.shared"], audited):
        deliver(task, "t1", "t1")
    assert charges == ["p1", "p1"]


def test_a_celery_task_names_its_key_or_opts_out_or_keeps_its_guard(
    app: Celery, store: eo.Store, charges: list[str]
) -> None:
    @app.task(shared=False, name="shop.by_payment", once="payment_id")
    def by_payment(payment_id: str) -> None:
        charges.append("by payment")

    @app.task(shared=False, name="shop.with_options", once={"key": "payment_id", "scope": "with options"})
    def with_options(payment_id: str) -> None:
        charges.append("with options")

    @app.task(shared=False, name="shop.unguarded", once=False)
    def unguarded(payment_id: str) -> None:
        charges.append("unguarded")

    @app.task(shared=False, name="shop.own")
    @eo.once(store, scope="own", key="payment_id")
    def own(payment_id: str) -> None:
        charges.append("own")

    for task in (by_payment, with_options, unguarded, own):
        deliver(task, f"{task.name} 1", f"{task.name} 2")
    assert charges == ["by payment", "with options", "unguarded", "unguarded", "own"]
    assert {record.scope for record in store.list().records} == {"shop.by_payment", "with options", "own"}


def test_a_celery_task_that_is_retried_keeps_its_id_and_runs_again(app: Celery, charges: list[str]) -> None:
    @app.task(shared=False, bind=True, autoretry_for=(RuntimeError,), default_retry_delay=0)
    def charge(self: Any, payment_id: str) -> int:
        charges.append(self.request.id)
        if len(charges) == 1:
            raise RuntimeError("card reader on fire")
        return eo.current().attempt

    assert deliver(charge, "retried", "retried") == 2
    assert charges == ["retried", "retried"]


def test_a_task_that_is_called_like_a_function_does_not_take_the_id_of_its_caller(
    app: Celery, charges: list[str]
) -> None:
    """Its second call would count as a duplicate of the first."""

    @app.task(shared=False)
    def charge(payment_id: str) -> None:
        charges.append(payment_id)

    @app.task(shared=False)
    def charge_all(payment_id: str) -> None:
        for number in (1, 2):
            charge(f"{payment_id}-{number}")

    deliver(charge_all, "t1", "t1")
    assert charges == ["p1-1", "p1-2"]


def test_a_task_may_call_itself_like_a_function(app: Celery, charges: list[str]) -> None:
    """The inner call has no message of its own, so it runs unguarded within the outer one."""

    @app.task(shared=False)
    def charge(payment_id: str, parts: int = 2) -> int:
        charges.append(f"{payment_id}-{parts}")
        return charge(payment_id, parts - 1) + 1 if parts else 0

    assert deliver(charge, "recursive", "recursive") == 2
    assert charges == ["p1-2", "p1-1", "p1-0"]


def test_an_app_is_guarded_once(app: Celery, store: eo.Store) -> None:
    """A second guard would not see ``once=False``, which the first one takes out."""
    with pytest.raises(eo.ConfigurationError, match="was called for this app before"):
        guard_tasks(app, store)


def test_celerys_own_tasks_are_left_alone(app: Celery, store: eo.Store, charges: list[str]) -> None:
    @app.task(shared=False)
    def charge(payment_id: str) -> None:
        charges.append(payment_id)

    @app.task(shared=False)
    def thank(results: Any) -> int:
        return len(results)

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        chord = celery.canvas.chord([charge.s("p1"), charge.s("p2")], thank.s(), app=app)
        assert chord.delay().get(timeout=30, interval=0.01) == 2
    assert sorted(charges) == ["p1", "p2"]
    assert not [record.scope for record in store.list().records if record.scope.startswith("celery.")]


@pytest.mark.parametrize("lazy", [True, False])
def test_the_line_stands_before_the_tasks(store: eo.Store, lazy: bool) -> None:
    app = Celery("late", set_as_current=False)

    @app.task(shared=False, lazy=lazy)
    def charge(payment_id: str) -> None: ...

    with pytest.raises(eo.ConfigurationError, match=r"right after app = Celery"):
        guard_tasks(app, store)


def test_a_task_with_a_class_of_its_own_is_refused_unless_it_is_guarded(app: Celery, store: eo.Store) -> None:
    class Charge(Task):  # type: ignore[misc]
        name = "shop.charge"

        def run(self, payment_id: str) -> None: ...

    class GuardedCharge(Charge):
        name = "shop.guarded_charge"
        run = eo.once(store, scope="charge", key="payment_id")(Charge.run)

    with pytest.raises(eo.ConfigurationError, match=r"put its run under @eo\.once"):
        app.register_task(Charge())
    assert app.register_task(GuardedCharge()).name == "shop.guarded_charge"
    Charge.once = False
    assert app.register_task(Charge()).name == "shop.charge"


# -- Dramatiq


@pytest.fixture
def stub(store: eo.Store) -> Iterator[StubBroker]:
    broker = StubBroker()
    broker.add_middleware(ours_dramatiq.Idempotency(store, every_actor=True))
    broker.add_middleware(AsyncIO())
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=2)
    worker.start()
    yield broker
    worker.stop()
    broker.flush_all()
    broker.close()


def deliver_twice(broker: StubBroker, actor: Any) -> None:
    message = actor.message("p1")
    for _ in range(2):
        broker.enqueue(message.copy())
        broker.join(actor.queue_name, fail_fast=True, timeout=20_000)


def test_every_actor_is_guarded_by_the_messages_id(stub: StubBroker, store: eo.Store, charges: list[str]) -> None:
    @dramatiq.actor(broker=stub)
    def charge(payment_id: str) -> None:
        charges.append(payment_id)

    @dramatiq.actor(broker=stub)
    async def charge_async(payment_id: str) -> None:
        charges.append(f"{payment_id} async")

    for actor in (charge, charge_async):
        deliver_twice(stub, actor)
    assert charges == ["p1", "p1 async"]
    assert {record.scope for record in store.list().records} == {"default:charge", "default:charge_async"}


def test_an_actor_names_its_key_or_opts_out_or_keeps_its_guard(
    stub: StubBroker, store: eo.Store, charges: list[str]
) -> None:
    @dramatiq.actor(broker=stub, once="payment_id")
    def by_payment(payment_id: str) -> None:
        charges.append("by payment")

    @dramatiq.actor(broker=stub, once=False)
    def unguarded(payment_id: str) -> None:
        charges.append("unguarded")

    @dramatiq.actor(broker=stub)
    @eo.once(store, scope="own", key="payment_id")
    def own(payment_id: str) -> None:
        charges.append("own")

    for actor in (by_payment, unguarded, own):
        deliver_twice(stub, actor)
    assert charges == ["by payment", "unguarded", "unguarded", "own"]
    assert {(record.scope, record.key) for record in store.list().records} == {
        ("default:by_payment", "p1"),
        ("own", "p1"),
    }


@pytest.mark.parametrize(
    ("once", "remedy"),
    [("paymnt_id", r"it has: payment_id"), ({"kye": "payment_id"}, "'kye'"), ({"lease": "soon"}, "lease")],
)
def test_an_actor_whose_guard_is_wrong_is_not_declared(stub: StubBroker, once: Any, remedy: str) -> None:
    """Of most errors of a middleware dramatiq only writes a log, and the actor would run unguarded."""
    with pytest.raises(eo.ConfigurationError, match=f"actor mistyped cannot be guarded: .*{remedy}"):

        @dramatiq.actor(broker=stub, once=once)
        def mistyped(payment_id: str) -> None: ...

    assert "mistyped" not in stub.actors


def test_an_actor_that_is_called_like_a_function_does_not_take_the_id_of_its_caller(
    stub: StubBroker, charges: list[str]
) -> None:
    @dramatiq.actor(broker=stub)
    def charge(payment_id: str) -> None:
        charges.append(payment_id)

    @dramatiq.actor(broker=stub)
    def charge_all(payment_id: str) -> None:
        for number in (1, 2):
            charge(f"{payment_id}-{number}")

    deliver_twice(stub, charge_all)
    assert charges == ["p1-1", "p1-2"]


def test_the_middleware_is_added_before_the_actors(store: eo.Store) -> None:
    broker = StubBroker()

    @dramatiq.actor(broker=broker)
    def charge(payment_id: str) -> None: ...

    with pytest.raises(eo.ConfigurationError, match="charge was declared before"):
        broker.add_middleware(ours_dramatiq.Idempotency(store, every_actor=True))


@pytest.mark.chaos
def test_f02_a_killed_worker_of_a_guarded_broker_loses_and_doubles_nothing(
    rabbitmq_url: str, redis_url: str, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ delivers what the dead worker held again; once it is done, another delivery of it is known."""
    store_url = f"{redis_url}?namespace={unique_name}"
    variables = {"BROKER": rabbitmq_url, "EFFECTONCE_STORE": store_url, "QUEUE": unique_name}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "tests.integrations.dramatiq_shop", raising=False)
    shop = importlib.import_module("tests.integrations.dramatiq_shop")

    def begun(worker: Program) -> list[str]:
        path = Path(worker.dir, "begun.txt")
        return path.read_text().splitlines() if path.exists() else []

    arguments = ("-m", "dramatiq", "--processes", "1", "--threads", "2", "tests.integrations.dramatiq_shop")
    with program(*arguments, ready="Worker process is ready for action", variables=variables) as worker:
        message = shop.broker.enqueue(shop.charge.message("p1"))
        until(lambda: begun(worker))
        worker.kill()
        worker.restart()
        until(lambda: begun(worker) == ["p1 1", "p1 2"])
        until(lambda: shop.store.list(state="done").records)
        shop.broker.enqueue(message)
        shop.charge.send("p2")
        until(lambda: len(shop.store.list(state="done").records) == 2)
        assert begun(worker) == ["p1 1", "p1 2", "p2 1"]
    shop.broker.close()
    shop.store.close()


# -- taskiq


async def kick(task: Any, *ids: str) -> list[Any]:
    """Send a task once for each of the ids, and return the results."""
    results = []
    for id in ids:
        result = await (await task.kicker().with_task_id(id).kiq("p1")).wait_result(timeout=30)
        results.append(result.return_value)
        assert not result.is_err
    return results


async def test_every_taskiq_task_is_guarded_by_its_id(store: eo.Store, charges: list[str]) -> None:
    broker = InMemoryBroker()

    @broker.task(task_name="before")
    def before(payment_id: str) -> str:
        charges.append("before")
        return "receipt"

    broker.add_middlewares(IdempotencyMiddleware(store, retention="30d"))
    await broker.startup()

    @broker.task(task_name="after")
    async def after(payment_id: str) -> str:
        charges.append("after")
        return "receipt"

    assert await kick(before, "t1", "t1") == ["receipt"] * 2
    assert await kick(after, "t2", "t2", "t3") == ["receipt"] * 3
    await broker.shutdown()
    assert charges == ["before", "after", "after"]
    found = {(record.scope, record.key) for record in store.list().records}
    assert found == {("before", "t1"), ("after", "t2"), ("after", "t3")}


async def test_a_taskiq_task_names_its_key_or_opts_out_or_keeps_its_guard(store: eo.Store, charges: list[str]) -> None:
    broker = InMemoryBroker().with_middlewares(IdempotencyMiddleware(store))

    @broker.task(once="payment_id")
    async def by_payment(payment_id: str) -> None:
        charges.append("by payment")

    @broker.task(once=False)
    async def unguarded(payment_id: str) -> None:
        charges.append("unguarded")

    @broker.task
    @eo.once(store, scope="own", key="payment_id")
    async def own(payment_id: str) -> None:
        charges.append("own")

    await broker.startup()
    for task in (by_payment, unguarded, own):
        await kick(task, f"{task.task_name} 1", f"{task.task_name} 2")
    await broker.shutdown()
    assert charges == ["by payment", "unguarded", "unguarded", "own"]


async def test_a_taskiq_task_that_is_called_like_a_function_does_not_take_the_id_of_its_caller(
    store: eo.Store, charges: list[str]
) -> None:
    broker = InMemoryBroker().with_middlewares(IdempotencyMiddleware(store))

    @broker.task
    async def charge(payment_id: str) -> None:
        charges.append(payment_id)

    @broker.task
    async def charge_all(payment_id: str) -> None:
        for number in (1, 2):
            await charge(f"{payment_id}-{number}")

    await broker.startup()
    await kick(charge_all, "t1", "t1")
    await broker.shutdown()
    assert charges == ["p1-1", "p1-2"]


def test_options_for_guards_need_a_store() -> None:
    with pytest.raises(eo.ConfigurationError, match=r"IdempotencyMiddleware\(store, …\)"):
        IdempotencyMiddleware(retention="30d")


# -- FastStream


async def test_a_handler_that_is_guarded_or_left_alone_is_not_guarded_by_the_broker(
    store: eo.Store, charges: list[str]
) -> None:
    broker = RabbitBroker(middlewares=[ours_faststream.Idempotency(store, scope="billing", key="payment-id")])

    @broker.subscriber("unguarded")
    @ours_faststream.unguarded
    async def unguarded(payment_id: str) -> None:
        charges.append("unguarded")

    @broker.subscriber("own")
    @eo.once(store, scope="own", key="payment_id", fingerprint="payment_id")
    async def own(payment_id: str) -> None:
        charges.append("own")

    async with TestRabbitBroker(broker) as delivering:
        for queue in ("unguarded", "own"):
            for _ in range(2):
                await delivering.publish("p1", queue)  # no header: the middleware's own guard would refuse it
    assert charges == ["unguarded", "unguarded", "own"]
    assert [record.scope for record in store.list().records] == ["own"]


async def test_the_messages_of_a_handler_with_a_guard_of_its_own_are_settled_like_all_others(
    store: eo.Store, charges: list[str]
) -> None:
    """A payload mismatch is rejected: no redelivery can mend it."""
    seen: list[Any] = []

    class Watching(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            seen.append(msg)
            return await call_next(msg)

    broker = RabbitBroker(middlewares=[Watching, ours_faststream.Idempotency(store, scope="billing", key="payment-id")])

    @broker.subscriber("payments")
    @eo.once(store, scope="own", key="payment_id", fingerprint="amount")
    async def charge(payment_id: str, amount: int) -> None:
        charges.append(payment_id)

    async with TestRabbitBroker(broker) as delivering:
        for amount in (7, 7, 8):
            with suppress(HandlerException):
                await delivering.publish({"payment_id": "p1", "amount": amount}, "payments")
    assert charges == ["p1"]
    assert [message.committed.name for message in seen] == ["ACKED", "ACKED", "REJECTED"]


# -- The line itself


@pytest.mark.parametrize(
    "guard_app",
    [
        lambda store, **options: guard_tasks(Celery("shop", set_as_current=False), store, **options),
        lambda store, **options: ours_dramatiq.Idempotency(store, every_actor=True, **options),
        lambda store, **options: IdempotencyMiddleware(store, **options),
        lambda store, **options: ours_faststream.Idempotency(store, scope="shop", key="id", **options),
    ],
    ids=["celery", "dramatiq", "taskiq", "faststream"],
)
def test_wrong_options_are_refused_at_the_line_not_at_the_first_task(guard_app: Any, store: eo.Store) -> None:
    with pytest.raises(eo.ConfigurationError, match="lease='soon' is not a span of time"):
        guard_app(store, lease="soon")
    with pytest.raises(TypeError, match="unexpected keyword argument 'retenton'"):
        guard_app(store, retenton="30d")
