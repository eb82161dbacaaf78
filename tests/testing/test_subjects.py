"""`assert_idempotent` on handlers of workers, Celery tasks and HTTP routes, each run as it is in production."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest
from celery import Celery
from fastapi import Depends, FastAPI, HTTPException

import effectonce as eo
from effectonce.http.asgi import IdempotencyMiddleware
from effectonce.integrations.celery import OnceTask, guard_tasks
from effectonce.integrations.fastapi import Idempotency, answer_problems, request_key
from effectonce.testing import HttpRequest, Report, aassert_idempotent, assert_idempotent, http_subject
from effectonce.testing.idempotence import make_subject
from effectonce.testing.trials import IdempotenceTrials
from effectonce.testing.worker_subject import POLL_S

ORDER = {"amount": 7}


@pytest.fixture
def charges() -> list[str]:
    return []


@pytest.fixture
def store() -> Iterator[eo.Store]:
    """It cannot be reached: what is tried must not use it."""
    with eo.connect("postgresql://127.0.0.1:1/nothing") as store:
        yield store


@pytest.fixture
def worker(store: eo.Store) -> eo.Worker:
    return eo.Worker(eo.connect_broker("amqp://127.0.0.1:1"), store=store, name="billing")


def report_on(handler: Any, *args: Any, effects: Callable[[], int]) -> Report:
    return IdempotenceTrials(make_subject(handler, args, {}), effects).run_blocking()


def verdicts(report: Report, scenario: str) -> set[str]:
    return {trial.verdict for trial in report.trials if trial.scenario == scenario}


# -- a worker with a store


@pytest.mark.parametrize("colour", ["def", "async def"])
def test_a_handler_runs_in_its_worker_and_repeats_only_where_mode_l_says(
    worker: eo.Worker, charges: list[str], colour: str
) -> None:
    def charge(message: eo.Message[dict[str, int]]) -> None:
        charges.append(f"{message.key} {message.data['amount']} {eo.current().scope}")

    async def charge_async(message: eo.Message[dict[str, int]]) -> None:
        await asyncio.sleep(0)
        charge(message)

    handler = worker.handler("orders", type="order")(charge if colour == "def" else charge_async)
    report = assert_idempotent(handler, eo.Message(data=ORDER, type="order"), effects=lambda: len(charges))

    assert {trial.step.partition("  ")[0] for trial in report.windows} <= {"complete: sent to the store"}
    killed_before = {trial.step for trial in report.trials if trial.scenario == "killed"}
    assert killed_before >= {
        "the worker has the message",
        "claim: sent to the store",
        "claim: done, and the reply is on its way",
        "complete: done, and the reply is on its way",
        "ack: sent to the broker",
        "ack: done, and the reply is on its way",
    }
    assert any("charges.append" in step for step in killed_before)
    assert "its end" not in killed_before, "each fault was met"
    assert all(charge.endswith(" 7 orders/order/billing") for charge in charges)


def test_what_a_redelivery_is_not_recognised_by_doubles(worker: eo.Worker, charges: list[str]) -> None:
    """A handler whose key is new with each delivery: its guard guards nothing."""
    deliveries = iter(range(1000))

    @worker.handler("orders", key=lambda message: f"delivery {next(deliveries)}")
    def charge(message: eo.Message[dict[str, int]]) -> None:
        charges.append(message.id)

    with pytest.raises(AssertionError, match=r"delivered twice: 2 effects instead of 1[\s\S]*let key= of the handler"):
        assert_idempotent(charge, eo.Message(data=ORDER), effects=lambda: len(charges))


def test_concurrent_duplicates_of_a_seen_set_run_side_by_side(worker: eo.Worker, charges: list[str]) -> None:
    @worker.handler("orders", mode="seen")
    async def charge(message: eo.Message[dict[str, int]]) -> None:
        charges.append(message.id)

    report = report_on(charge, eo.Message(data=ORDER), effects=lambda: len(charges))
    assert verdicts(report, "delivered 5 times at once") == {"may repeat"}


def test_an_error_of_the_handler_parks_the_message_and_loses_nothing(worker: eo.Worker, charges: list[str]) -> None:
    @worker.handler("orders", retry=eo.Retry(1))
    def charge(message: eo.Message[dict[str, int]]) -> None:
        charges.append(message.id)

    report = assert_idempotent(charge, eo.Message(data=ORDER), effects=lambda: len(charges))
    (raised,) = [trial for trial in report.trials if trial.scenario == "raises"]
    assert any("it became a dead letter" in line for line in raised.timeline)


def test_what_is_acked_first_is_lost_by_a_kill_and_its_drain_is_not_waited_for(
    store: eo.Store, charges: list[str]
) -> None:
    worker = eo.Worker(eo.connect_broker("amqp://127.0.0.1:1"), store=store, name="billing", drain="1h")

    @worker.handler("orders", ack="first")
    async def charge(message: eo.Message[dict[str, int]]) -> None:
        await asyncio.sleep(10 * POLL_S)  # the trial has seen the ack, and stops the worker
        charges.append(message.id)

    report = report_on(charge, eo.Message(data=ORDER), effects=lambda: len(charges))
    lost = [trial for trial in report.failures if trial.scenario == "killed"]
    assert {trial.verdict for trial in lost} == {"lost"}
    assert all("ack='first' promises no more" in trial.remedy for trial in lost)


def test_a_worker_is_tried_by_the_queue_of_the_message(worker: eo.Worker, charges: list[str]) -> None:
    @worker.handler("orders")
    def order(message: eo.Message[dict[str, int]]) -> None:
        charges.append("order")

    @worker.handler("refunds")
    def refund(message: eo.Message[dict[str, int]]) -> None:
        charges.append("refund")

    with pytest.raises(eo.ConfigurationError, match="has several queues, orders, refunds"):
        assert_idempotent(worker, eo.Message(data=ORDER), effects=lambda: len(charges))
    assert_idempotent(worker, eo.Message(data=ORDER), queue="refunds", effects=lambda: len(charges))
    assert set(charges) == {"refund"}


async def test_inside_a_running_loop_a_worker_is_awaited(worker: eo.Worker, charges: list[str]) -> None:
    @worker.handler("orders")
    async def charge(message: eo.Message[dict[str, int]]) -> None:
        charges.append(message.id)

    report = await aassert_idempotent(charge, eo.Message(data=ORDER), effects=lambda: len(charges))
    assert report.failures == []


# -- a worker with an inbox


@pytest.fixture
def sqlite_worker(tmp_path: Path) -> eo.Worker:
    path = tmp_path / "shop.db"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=10)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    inbox = eo.Inbox(scope="balances")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE balances (amount INTEGER)")
        connection.executescript(inbox.schema_sql("sqlite"))
    return eo.Worker(eo.connect_broker("amqp://127.0.0.1:1"), inbox=inbox, connect=connect, name="balances")


def count_balances(worker: eo.Worker) -> int:
    assert worker._connect is not None
    with closing(worker._connect()) as connection:
        return int(connection.execute("SELECT count(*) FROM balances").fetchone()[0])


def test_an_effect_in_the_transaction_of_its_worker_happens_once_wherever_it_is_killed(
    sqlite_worker: eo.Worker,
) -> None:
    @sqlite_worker.handler("orders")
    def balance(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        connection.execute("INSERT INTO balances VALUES (?)", (message.data["amount"],))

    report = assert_idempotent(balance, eo.Message(data=ORDER), effects=lambda: count_balances(sqlite_worker))
    assert report.windows == []
    killed_before = {trial.step for trial in report.trials if trial.scenario == "killed"}
    assert {"begin: sent to the database", "commit: sent to the database", "ack: sent to the broker"} <= killed_before
    assert "commit: done, and the reply is on its way" in killed_before
    assert "its end" not in killed_before, "each fault was met"


def test_an_effect_beside_the_transaction_of_its_worker_doubles(sqlite_worker: eo.Worker, charges: list[str]) -> None:
    @sqlite_worker.handler("orders")
    def charge(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        charges.append(message.key)

    report = report_on(charge, eo.Message(data=ORDER), effects=lambda: len(charges))
    doubled = {trial.step for trial in report.failures}
    assert "commit: sent to the database" in doubled
    assert "begin: sent to the database" not in doubled
    assert "on the connection that it is called with" in report.failures[0].remedy


def test_a_handler_that_commits_before_its_effect_is_found_out(sqlite_worker: eo.Worker) -> None:
    """The commit of its own records the message as handled; what follows is lost with the process."""

    @sqlite_worker.handler("orders")
    def balance(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        connection.commit()
        connection.execute("INSERT INTO balances VALUES (?)", (message.data["amount"],))
        connection.commit()

    with pytest.raises(eo.ConfigurationError, match=r"a clean delivery to .*balance was not done"):
        assert_idempotent(balance, eo.Message(data=ORDER), effects=lambda: count_balances(sqlite_worker))


@pytest.mark.quick_on("False")
@pytest.mark.parametrize("inside", [True, False])
def test_on_postgresql_an_async_handler_is_killed_at_each_of_its_statements(
    postgres_url: str, unique_name: str, charges: list[str], inside: bool
) -> None:
    inbox = eo.Inbox(scope="balances", table=f"{unique_name}_inbox")
    worker = eo.Worker(
        eo.connect_broker("amqp://127.0.0.1:1"),
        inbox=inbox,
        connect=lambda: psycopg.AsyncConnection.connect(postgres_url),
        name="balances",
    )

    @worker.handler("orders")
    async def balance(connection: psycopg.AsyncConnection[Any], message: eo.Message[dict[str, int]]) -> None:
        await connection.execute(f"INSERT INTO {unique_name} VALUES (1)".encode())
        if not inside:
            charges.append(message.key)

    with psycopg.connect(postgres_url, autocommit=True) as observer:
        observer.execute(f"CREATE TABLE {unique_name} (amount int)".encode())
        observer.execute(inbox.schema_sql("postgresql").encode())

        def count() -> int:
            if not inside:
                return len(charges)
            rows = observer.execute(f"SELECT count(*) FROM {unique_name}".encode()).fetchone()
            assert rows is not None
            return int(rows[0])

        report = report_on(balance, eo.Message(data=ORDER), effects=count)
        observer.execute(f"DROP TABLE {unique_name}".encode())
    assert verdicts(report, "killed") == ({"once"} if inside else {"once", "doubled"})
    assert len([trial for trial in report.trials if trial.scenario == "killed"]) > 10


# -- Celery


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("shop", broker="amqp://127.0.0.1:1", set_as_current=False)
    yield app
    app.close()


def test_a_celery_task_that_is_not_guarded_doubles(app: Celery, charges: list[str]) -> None:
    @app.task(shared=False, acks_late=True)
    def charge(payment_id: str) -> None:
        charges.append(payment_id)

    with pytest.raises(AssertionError, match="delivered twice: 2 effects instead of 1"):
        assert_idempotent(charge, "p1", effects=lambda: len(charges))


def test_a_celery_task_that_is_acked_before_it_runs_is_lost_with_its_worker(
    app: Celery, store: eo.Store, charges: list[str]
) -> None:
    @app.task(shared=False)
    @eo.once(store, scope="early", key="payment_id")
    def charge(payment_id: str) -> None:
        charges.append(payment_id)

    report = report_on(charge, "p1", effects=lambda: len(charges))
    assert {trial.scenario for trial in report.failures} == {"killed"}
    assert {trial.verdict for trial in report.failures} == {"lost"}
    assert "acks_late=True" in report.failures[0].remedy


@pytest.mark.parametrize("guard", ["task by task", "the whole app"])
def test_a_guarded_celery_task_loses_nothing_and_repeats_only_where_mode_l_says(
    app: Celery, store: eo.Store, charges: list[str], guard: str
) -> None:
    def charge(payment_id: str) -> str:
        charges.append(payment_id)
        return f"receipt {payment_id}"

    if guard == "task by task":
        task = app.task(shared=False, base=OnceTask)(eo.once(store, scope="charge", key="payment_id")(charge))
    else:
        guard_tasks(app, store)
        task = app.task(shared=False, autoretry_for=(OSError,))(charge)
    report = assert_idempotent(task, "p1", effects=lambda: len(charges), reset=charges.clear)
    assert report.handler.endswith("charge")
    assert report.windows
    assert verdicts(report, "delivered twice") == {"once"}


# -- HTTP


def make_app(charges: list[str], **fastapi: Any) -> FastAPI:
    app = FastAPI(**fastapi)

    @app.post("/orders", status_code=201)
    def place(order: dict[str, int]) -> dict[str, int]:
        charges.append("order")
        return {"amount": order["amount"]}

    @app.post("/refused")
    def refused() -> None:
        raise HTTPException(401, "who are you?")

    return app


def test_a_route_that_is_not_guarded_doubles(charges: list[str]) -> None:
    request = HttpRequest("POST", "/orders", ORDER)
    report = report_on(make_app(charges), request, effects=lambda: len(charges))
    assert verdicts(report, "delivered twice") == {"doubled"}
    assert verdicts(report, "killed") == {"once", "doubled"}, "its thread is killed at each of its lines, too"
    assert "its end" not in {trial.step for trial in report.trials}
    assert "Idempotency-Key" in report.failures[0].remedy


def test_routes_that_look_before_they_act_are_found_out_by_requests_at_once(charges: list[str]) -> None:
    """In their threads they go from line to line together."""
    app = FastAPI()

    @app.post("/orders")
    def place(order: dict[str, int]) -> None:
        if not charges:
            charges.append("order")

    report = IdempotenceTrials(
        make_subject(app, (HttpRequest("POST", "/orders", ORDER),), {}), lambda: len(charges), reset=charges.clear
    ).run_blocking()
    assert {trial.scenario for trial in report.failures} == {"delivered 5 times at once"}


def test_a_guarded_application_loses_and_doubles_nothing(store: eo.Store, charges: list[str]) -> None:
    """What may have happened is in doubt, and waits for an operator."""
    app = make_app(charges)
    app.add_middleware(IdempotencyMiddleware, store=store, principal=eo.GLOBAL)
    report = assert_idempotent(app, HttpRequest("POST", "/orders", ORDER), effects=lambda: len(charges), strict=True)
    assert report.handler == "POST /orders"
    assert any("it answered 409 in-doubt" in line for trial in report.trials for line in trial.timeline)


@pytest.mark.parametrize("colour", ["def", "async def"])
def test_a_guarded_route_that_reruns_repeats_only_where_it_says(
    store: eo.Store, charges: list[str], colour: str
) -> None:
    app = FastAPI()
    route = Idempotency(app, store).route(principal=eo.GLOBAL, on_error="release", on_lapse="rerun", required=True)

    def place(order: dict[str, int]) -> dict[str, int]:
        charges.append("order")
        return order

    async def place_async(order: dict[str, int]) -> dict[str, int]:
        return place(order)

    app.post("/orders", **route)(place if colour == "def" else place_async)
    report = assert_idempotent(app, HttpRequest("POST", "/orders", ORDER), effects=lambda: len(charges))
    assert report.windows
    assert verdicts(report, "delivered 5 times at once") == {"once"}


def test_an_inbox_in_the_transaction_of_a_route_makes_its_effect_happen_once(tmp_path: Path) -> None:
    path, inbox, app = tmp_path / "shop.db", eo.Inbox(scope="orders"), FastAPI()
    answer_problems(app)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE orders (amount INTEGER)")
        connection.executescript(inbox.schema_sql("sqlite"))

    @app.post("/orders")
    def place(order: dict[str, int], key: Annotated[str, Depends(request_key(eo.GLOBAL))]) -> None:
        with sqlite3.connect(path, timeout=30) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            if inbox.first(connection, key):
                connection.execute("INSERT INTO orders VALUES (?)", (order["amount"],))

    def count() -> int:
        with closing(sqlite3.connect(path)) as connection:
            return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])

    assert assert_idempotent(app, HttpRequest("POST", "/orders", ORDER), effects=count).windows == []


def test_the_application_is_started_before_and_shut_down_after_the_trials(charges: list[str]) -> None:
    phases: list[str] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        phases.append("started")
        yield {"pool": "open"}
        phases.append("shut down")

    report_on(make_app(charges, lifespan=lifespan), HttpRequest("POST", "/orders", ORDER), effects=lambda: len(charges))
    assert phases == ["started", "shut down"]


def test_the_host_is_the_one_that_the_request_names(charges: list[str]) -> None:
    hosts: list[list[str]] = []
    app = make_app(charges)

    @app.middleware("http")
    async def note_host(request: Any, call_next: Any) -> Any:
        hosts.append(request.headers.getlist("host"))
        return await call_next(request)

    request = HttpRequest("POST", "/orders", ORDER, {"Host": "shop.example"})
    report_on(app, request, effects=lambda: len(charges))
    assert set(map(tuple, hosts)) == {("shop.example",)}


def test_ctrl_c_ends_the_trials(charges: list[str]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        assert_idempotent(app, HttpRequest("POST", "/orders", ORDER), effects=lambda: len(charges))


def test_a_request_that_is_refused_cannot_be_tried(charges: list[str]) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"it answered 401: .*who are you"):
        assert_idempotent(make_app(charges), HttpRequest("POST", "/refused"), effects=lambda: len(charges))


@pytest.mark.parametrize(
    ("hangs_at", "remedy"), [("lifespan", "what does it wait for"), ("http", "does its route end")]
)
def test_an_application_that_does_not_end_is_given_up(
    charges: list[str], monkeypatch: pytest.MonkeyPatch, hangs_at: str, remedy: str
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == hangs_at:
            await asyncio.sleep(60)

    monkeypatch.setattr(http_subject, "ANSWER_TIMEOUT_S", 0.05)
    with pytest.raises(eo.ConfigurationError, match=remedy):
        assert_idempotent(app, HttpRequest("POST", "/orders", ORDER), effects=lambda: len(charges))


# -- what cannot be tried


def test_what_cannot_be_tried_says_what_can(worker: eo.Worker, charges: list[str]) -> None:
    @worker.handler("orders", type="order")
    def order(message: eo.Message[dict[str, int]]) -> None: ...

    worker.handler("copies", type="order")(order)

    def never_awaited(payment_id: str) -> Any:
        return asyncio.sleep(0)

    for handler, args, remedy in (
        (eo.connect("memory://"), (), "give a function, a worker or its handler"),
        (worker, (ORDER,), r"give it an eo\.Message"),
        (order, (eo.Message(data=ORDER, type="order"),), "name the worker and its queue"),
        (worker, (eo.Message(data=ORDER, type="order"),), "has several queues"),
        (never_awaited, ("p1",), "below the decorator of its framework"),
        (make_app(charges), (HttpRequest("POST", "orders"),), "begins with a slash"),
        (never_awaited, (HttpRequest("POST", "/orders"),), "is not an ASGI application"),
    ):
        with pytest.raises(eo.ConfigurationError, match=remedy):
            assert_idempotent(handler, *args, effects=lambda: 0)
