"""The options of a worker and of its handlers: what is refused, and what holds where nothing is said."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

import effectonce as eo
from effectonce.worker.routes import HandlerRoute, data_type_of

from .bench import Bench


async def handle(message: eo.Message[Any]) -> None: ...


async def handle_in_transaction(connection: Any, message: eo.Message[Any]) -> None: ...


def connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:")


def route_of(worker: eo.Worker, function: Any = handle, **options: Any) -> HandlerRoute:
    worker.handler("orders", **options)(function)
    return worker.routes[-1]


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def transactional(bench: Bench) -> eo.Worker:
    return eo.Worker(bench.broker, inbox=eo.Inbox(scope="billing", retention="3d"), connect=connect)


@pytest.mark.parametrize("prefetch", [1, 100_000])
def test_a_worker_holds_one_message_or_up_to_a_hundred_thousand(bench: Bench, prefetch: int) -> None:
    assert bench.worker(prefetch=prefetch).prefetch == prefetch


@pytest.mark.parametrize("prefetch", [0, -1, 100_001])
def test_any_other_number_of_messages_is_refused(bench: Bench, prefetch: int) -> None:
    with pytest.raises(eo.ConfigurationError, match="give 1 to 100000"):
        bench.worker(prefetch=prefetch)


STORE = eo.connect("memory://", sweep_every=None)
INBOX = eo.Inbox(scope="billing")


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({}, "needs either store="),
        ({"store": STORE, "inbox": INBOX, "connect": connect}, "needs either store="),
        ({"inbox": INBOX}, "inbox= and connect= go together"),
        ({"store": STORE, "connect": connect}, "inbox= and connect= go together"),
        ({"store": STORE, "unknown": "ignore"}, "none of 'dead', 'delete', 'retry' and 'fail'"),
        ({"store": STORE, "recover": ["payments"]}, "give a list of Intents and sagas"),
        ({"store": STORE, "name": "a b"}, "is not a name for a worker"),
    ],
)
def test_options_of_a_worker_that_contradict_each_other_are_refused(
    bench: Bench, options: dict[str, Any], hint: str
) -> None:
    with pytest.raises(eo.ConfigurationError, match=hint):
        eo.Worker(bench.broker, **options)


@pytest.mark.parametrize("concurrency", [0, -1, "2", 1.5])
def test_a_handler_runs_at_least_once_at_a_time(bench: Bench, concurrency: Any) -> None:
    with pytest.raises(eo.ConfigurationError, match="is not a number of handlers"):
        route_of(bench.worker(), concurrency=concurrency)
    assert route_of(bench.worker(), concurrency=1, scope="one").concurrency == 1


def test_a_message_has_one_handler(bench: Bench) -> None:
    worker = bench.worker()
    worker.handler("orders", type="order.paid")(handle)
    worker.handler("orders", scope="others")(handle)
    worker.handler("refunds", type="order.paid")(handle)
    with pytest.raises(eo.ConfigurationError, match=r"has a handler for type 'order\.paid' already"):
        worker.handler("orders", type="order.paid", scope="again")(handle)
    with pytest.raises(eo.ConfigurationError, match="has a handler for messages of other types already"):
        worker.handler("orders", scope="again")(handle)


def test_what_a_handler_with_a_store_has_unless_it_says_otherwise(bench: Bench) -> None:
    route = route_of(bench.worker())
    assert (route.policy.scope, route.type, route.to, route.batch) == ("orders/*/billing", None, None, False)
    assert (route.policy.lease_us, route.policy.max_run_s) == (30_000_000, 3600.0)
    assert route.policy.retention_us == 15 * 86_400_000_000
    assert (route.retry.max_attempts, route.retry.max_crashes) == (5, 2)
    assert (route.policy.seen_set, route.policy.doubt_on_error, route.policy.doubt_on_lapse) == (False, False, False)
    assert not route.policy.run_on_store_error
    assert route.has_default_lease
    assert not route_of(bench.worker(), lease="7s", scope="other").has_default_lease


def test_what_a_handler_with_an_inbox_has_unless_it_says_otherwise(transactional: eo.Worker) -> None:
    route = route_of(transactional, handle_in_transaction)
    assert (route.policy.scope, route.policy.retention_us) == ("orders/*/billing", 3 * 86_400_000_000)
    (runner,) = transactional.transaction_runners.values()
    assert (runner.inbox.scope, runner.inbox.retention_us) == ("orders/*/billing", 3 * 86_400_000_000)


@pytest.mark.parametrize(
    "options", [{"mode": "seen"}, {"on_error": "doubt"}, {"on_lapse": "doubt"}, {"to": "invoices"}], ids=repr
)
def test_in_a_transaction_nothing_is_leased_in_doubt_or_sent_on(
    transactional: eo.Worker, options: dict[str, Any]
) -> None:
    with pytest.raises(eo.ConfigurationError, match="in a transaction"):
        route_of(transactional, handle_in_transaction, **options)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"batch": True}, "batch=True of .* needs inbox="),
        ({"to": "invoices", "mode": "seen"}, "cannot have to="),
        ({"to": "in voices"}, "is not a name for a queue"),
        ({"retry": 3}, r"give Retry\(…\)"),
        ({"scope": ""}, "scope="),
    ],
)
def test_options_of_a_handler_that_cannot_work_are_refused(bench: Bench, options: dict[str, Any], hint: str) -> None:
    with pytest.raises(eo.ConfigurationError, match=hint):
        route_of(bench.worker(), **options)


@pytest.mark.parametrize(
    "function",
    [lambda: None, lambda message, more: None, lambda *, message: None, lambda message, **more: None],
    ids=["none", "two", "keyword", "any keywords"],
)
def test_a_handler_takes_the_message_and_nothing_else(bench: Bench, function: Any) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"it must take \(message\)"):
        route_of(bench.worker(), function, scope="s")


def test_a_handler_in_a_transaction_takes_the_connection_too(transactional: eo.Worker) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"it must take \(connection, message\)"):
        route_of(transactional, handle)


def test_a_handler_may_have_parameters_with_defaults(bench: Bench) -> None:
    assert route_of(bench.worker(), lambda message, at=None: None, scope="s").function is not None


def test_a_handlers_type_that_is_not_there_yet_is_refused_by_its_name() -> None:
    def handle(message: eo.Message[Later]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(eo.ConfigurationError, match=r"(?s)'message' in .*handle.*Later.*above the handler"):
        data_type_of(handle, "message")
