"""The events of mode T: each is emitted when its fact is known, and what is rolled back is never `first`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

import effectonce as eo
from effectonce.telemetry.logging import EventLogger
from effectonce.telemetry.opentelemetry import Tracing
from effectonce.telemetry.prometheus import Metrics
from effectonce.values.awaitables import maybe_await
from tests.inbox.conftest import Shop, place_of
from tests.inbox.kinds import KINDS, Kind
from tests.inbox.test_connections import paid

#: Sync and async, each database, and the one framework that tells of its commits.
NAMES = ("sqlite3", "psycopg", "asyncpg", "pymysql", "SQLAlchemy Session, psycopg", "Django, postgresql")


@pytest.fixture(params=NAMES)
def kind(request: pytest.FixtureRequest) -> Kind:
    return next(kind for kind in KINDS if kind.name == request.param)


@pytest.fixture
async def shop(request: pytest.FixtureRequest, kind: Kind, unique_name: str) -> AsyncIterator[Shop]:
    opened = Shop(place_of(request, kind.dialect), unique_name, kind)
    yield opened
    await opened.stack.aclose()


@pytest.fixture
def kinds(shop: Shop) -> Callable[[], list[str]]:
    """The kinds of the events since it was last asked."""
    events: list[eo.Event] = []
    shop.inbox.add_hook(events.append)

    def kinds() -> list[str]:
        assert {(event.scope, event.key) for event in events} <= {(shop.scope, "order-1")}
        seen = [event.kind for event in events]
        events.clear()
        return seen

    return kinds


def tells_of_commits(shop: Shop) -> bool:
    return shop.kind is not None and shop.kind.name.startswith("Django")


def handler(shop: Shop, connect: Any, work: Callable[[], Any], **options: Any) -> Any:
    assert shop.kind is not None
    if shop.kind.is_async:

        @shop.inbox.handler(connect=connect, allow_unsafe=True, **options)
        async def handle_async(conn: Any, message: eo.Message[Any]) -> Any:
            return work()

        return handle_async

    @shop.inbox.handler(connect=connect, allow_unsafe=True, **options)
    def handle(conn: Any, message: eo.Message[Any]) -> Any:
        return work()

    return handle


def called(shop: Shop, work: Callable[[], Any]) -> Any:
    assert shop.kind is not None
    if shop.kind.is_async:

        async def function_async(conn: Any, message: eo.Message[Any]) -> Any:
            return work()

        return function_async

    def function(conn: Any, message: eo.Message[Any]) -> Any:
        return work()

    return function


def fail() -> None:
    raise ValueError("no stock")


# -- in the caller's transaction


async def test_a_row_in_the_callers_transaction_is_first_once_that_is_known(
    shop: Shop, kinds: Callable[[], list[str]]
) -> None:
    caller = await shop.caller()
    assert await maybe_await(shop.inbox.first(caller.conn, paid()))
    assert kinds() == ([] if tells_of_commits(shop) else ["recorded"])
    await caller.commit()
    assert kinds() == (["first"] if tells_of_commits(shop) else [])
    await caller.begin()
    assert not await maybe_await(shop.inbox.first(caller.conn, paid()))
    assert kinds() == ["duplicate"]


async def test_a_row_that_is_rolled_back_is_never_first(shop: Shop, kinds: Callable[[], list[str]]) -> None:
    caller = await shop.caller()
    await maybe_await(shop.inbox.call(caller.conn, paid(), called(shop, lambda: {"state": "paid"})))
    await caller.roll_back()
    assert shop.rows == []
    assert "first" not in kinds()


async def test_a_call_reports_its_first_run_its_replay_and_its_failure(
    shop: Shop, kinds: Callable[[], list[str]]
) -> None:
    caller = await shop.caller()
    with pytest.raises(ValueError, match="no stock"):
        await maybe_await(shop.inbox.call(caller.conn, paid(), called(shop, fail)))
    assert kinds() == ["released"]
    await maybe_await(shop.inbox.call(caller.conn, paid(), called(shop, lambda: {"state": "paid"})))
    await caller.commit()
    assert kinds() == ["first" if tells_of_commits(shop) else "recorded"]
    await caller.begin()
    await maybe_await(shop.inbox.call(caller.conn, paid(), called(shop, fail)))
    assert kinds() == ["replayed"]
    with pytest.raises(eo.PayloadMismatch):
        await maybe_await(shop.inbox.call(caller.conn, paid(amount=1), called(shop, fail)))
    with pytest.raises(eo.PayloadMismatch):
        await maybe_await(shop.inbox.first(caller.conn, paid(amount=1)))
    assert kinds() == ["mismatch", "mismatch"]


async def test_many_at_once_are_reported_one_by_one(shop: Shop, kinds: Callable[[], list[str]]) -> None:
    caller = await shop.caller()
    await maybe_await(shop.inbox.first_many(caller.conn, [paid(), paid()]))
    await caller.commit()
    assert sorted(kinds()) == ["duplicate", "first" if tells_of_commits(shop) else "recorded"]


# -- in a transaction of the inbox's


async def test_a_handler_reports_its_commit_its_replay_and_its_rollback(
    shop: Shop, kinds: Callable[[], list[str]]
) -> None:
    async with shop.connect() as connect:
        with pytest.raises(ValueError, match="no stock"):
            await maybe_await(handler(shop, connect, fail)(paid()))
        assert kinds() == ["released"]
        handle = handler(shop, connect, lambda: "paid")
        assert await maybe_await(handle(paid())) == await maybe_await(handle(paid())) == "paid"
        assert kinds() == ["first", "replayed"]
        with pytest.raises(eo.PayloadMismatch):
            await maybe_await(handle(paid(amount=1)))
        assert kinds() == ["mismatch"]


async def test_a_duplicate_without_a_stored_result_is_not_replayed(shop: Shop, kinds: Callable[[], list[str]]) -> None:
    caller = await shop.caller()
    await maybe_await(shop.inbox.first(caller.conn, paid()))
    await caller.commit()
    kinds()
    async with shop.connect() as connect:
        with pytest.raises(eo.ResultNotStored):
            await maybe_await(handler(shop, connect, lambda: "paid")(paid()))
    assert kinds() == ["duplicate"]


async def test_a_message_without_an_attempt_left_is_exhausted(shop: Shop, kinds: Callable[[], list[str]]) -> None:
    async with shop.connect() as connect:
        handle = handler(shop, connect, fail, max_attempts=1)
        with pytest.raises(ValueError, match="no stock"):
            await maybe_await(handle(paid()))
        with pytest.raises(eo.AttemptsExhausted):
            await maybe_await(handle(paid()))
    assert kinds() == ["released", "exhausted"]


# -- where they go


async def test_sinks_watch_an_inbox(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    metrics: Any = Metrics(CollectorRegistry()).watch(shop.inbox)
    reader = InMemoryMetricReader()
    Tracing(meter_provider=MeterProvider([reader])).watch(shop.inbox)
    EventLogger(level=logging.DEBUG).watch(shop.inbox)
    with caplog.at_level(logging.DEBUG, "effectonce.events"):
        async with shop.connect() as connect:
            handle = handler(shop, connect, lambda: "paid")
            await maybe_await(handle(paid()))
            await maybe_await(handle(paid()))
    text = metrics.text().decode()
    for kind in ("first", "replayed"):
        assert f'effectonce_outcomes_total{{kind="{kind}",scope="{shop.scope}"}} 1.0' in text
        assert f"{kind} scope={shop.scope} key=order-1" in caplog.text
    assert f'effectonce_run_seconds_count{{outcome="first",scope="{shop.scope}"}} 1.0' in text
    data: Any = reader.get_metrics_data()
    (outcomes,) = [
        metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "effectonce.outcomes"
    ]
    assert {point.attributes["effectonce.kind"]: point.value for point in outcomes.data.data_points} == {
        "first": 1,
        "replayed": 1,
    }


async def test_the_log_of_a_private_inbox_has_no_keys(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    private = eo.Inbox(scope=shop.scope, table=shop.place.table, private="a secret of sixteen bytes")
    EventLogger(level=logging.DEBUG).watch(private)
    caller = await shop.caller()
    with caplog.at_level(logging.DEBUG, "effectonce.events"):
        await maybe_await(private.first(caller.conn, paid()))
        await caller.commit()
    assert "order-1" not in caplog.text
    assert shop.scope in caplog.text
