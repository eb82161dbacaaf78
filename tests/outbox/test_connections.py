"""The outbox on every kind of connection, sync and async, against real servers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

import effectonce as eo
from effectonce.contracts import Event
from effectonce.outbox import outbox as outboxes
from effectonce.outbox.outbox import Outbox
from effectonce.values.awaitables import maybe_await
from tests.inbox.kinds import KINDS, Kind, run
from tests.outbox.conftest import Office
from tests.relay.harness import FakeBroker

pytestmark = pytest.mark.quick_on("sqlite3", "psycopg", "psycopg, async", "asyncpg", "pymysql", "aiomysql")

ONE_EACH = ("sqlite3", "aiosqlite", "psycopg", "asyncpg", "pymysql", "aiomysql")


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def paid(id: str = "m1", **fields: Any) -> eo.Message[Any]:
    return eo.Message(**{"type": "order.paid", "data": {"amount": 4200}, "id": id, **fields})


async def test_a_message_is_there_with_the_commit_and_gone_with_a_rollback(office: Office) -> None:
    """F33, F34."""
    caller = await office.caller()
    assert await maybe_await(office.outbox.send(caller.conn, paid("m1"))) is None
    await caller.run(office.effect("one"))
    assert office.ids == [], "not before the commit"
    await caller.commit()
    assert (office.ids, office.effects) == (["m1"], ["one"])
    await caller.begin()
    await maybe_await(office.outbox.send(caller.conn, paid("m2")))
    await caller.run(office.effect("two"))
    await caller.roll_back()
    assert (office.ids, office.effects) == (["m1"], ["one"])


async def test_a_message_is_stored_whole(office: Office) -> None:
    """Nothing that a driver would escape, or a character set would change, is changed."""
    strange = "ü → 😀 ' \" \\ % $1 :x ? ; -- \n {a}"
    message = paid(
        key=f"Order:42 {strange}",
        type=strange,
        ordering_key=strange,
        headers={"a": strange, strange: "b"},
        trace_id=strange,
        source=strange,
        time=datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=UTC),
        data={"s": strange, "n": [1.5, None, True, 2**70], "e": {}},
    )
    others = [paid("m2", data=bytes(range(256))), paid("m3", data=None), paid("m4", data=b"")]
    caller = await office.caller()
    await maybe_await(office.outbox.send_many(caller.conn, [message, *others]))
    await caller.commit()
    assert office.sent == [message, *others]


async def test_many_messages_keep_their_order(office: Office) -> None:
    caller = await office.caller()
    messages = [paid(f"m{n}", ordering_key=f"k{n % 3}" if n % 2 else None) for n in range(600)]
    await maybe_await(office.outbox.send_many(caller.conn, iter(messages)))
    await maybe_await(office.outbox.send_many(caller.conn, []))
    await caller.commit()
    assert office.sent == messages


async def test_a_delay_is_stored_by_the_clock_of_the_database(office: Office) -> None:
    caller = await office.caller()
    await maybe_await(office.outbox.send(caller.conn, paid("now")))
    await maybe_await(office.outbox.send(caller.conn, paid("later"), delay="10m"))
    await maybe_await(office.outbox.send_many(caller.conn, [paid("l2"), paid("l3")], delay=3600))
    await caller.commit()
    assert office.delays == {"now": None, "later": 600.0, "l2": 3600.0, "l3": 3600.0}


async def test_what_cannot_be_stored_is_refused_and_the_transaction_goes_on(office: Office) -> None:
    caller = await office.caller()
    await caller.run(office.effect("before"))
    small = Outbox(to=office.name, table="outbox_tests", max_size=100)
    with pytest.raises(eo.ConfigurationError, match="no JSON form"):
        await maybe_await(office.outbox.send(caller.conn, paid(data=object())))
    with pytest.raises(eo.PayloadTooLarge, match="send a reference"):
        await maybe_await(small.send_many(caller.conn, [paid(), paid(data="x" * 100)]))
    await maybe_await(small.send(caller.conn, paid("m2")))
    await caller.commit()
    assert (office.ids, office.effects) == (["m2"], ["before"])


async def test_inbox_effect_and_outbox_are_one_commit_and_a_duplicate_sends_nothing_new(office: Office) -> None:
    async def handle(order: eo.Message[Any]) -> bool:
        caller = await office.caller()
        first = await maybe_await(office.inbox.first(caller.conn, order))
        if first:
            await caller.run(office.effect(order.id))
            await maybe_await(office.outbox.send(caller.conn, paid(f"paid-{order.id}")))
        await caller.commit()
        return bool(first)

    order = eo.Message(type="order.placed", data={"order": 1}, id="o1")
    assert [await handle(order) for _ in range(3)] == [True, False, False]
    assert (office.ids, office.effects) == (["paid-o1"], ["o1"])


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.autocommit is not None])
async def test_a_connection_that_commits_by_itself_is_refused(office: Office, kind: Kind) -> None:
    assert kind.autocommit is not None
    async with kind.autocommit(office.place) as caller:
        with pytest.raises(eo.NotInTransaction, match="begin a transaction"):
            await maybe_await(office.outbox.send(caller.conn, paid()))
    assert office.ids == []


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.is_async])
async def test_an_async_send_that_is_not_awaited_is_not_silent(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    """F71."""
    caller = await office.caller()
    with pytest.raises(eo.NotAwaited, match=r"await outbox\.send"):
        bool(office.outbox.send(caller.conn, paid()))  # type: ignore[call-overload, unused-ignore]
    with pytest.warns(RuntimeWarning, match=r"outbox\.send\(\.\.\.\) was never awaited, so it did nothing") as warned:
        office.outbox.send(caller.conn, paid())
    assert [warning.filename for warning in warned] == [__file__]
    (logged,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert f"{__file__}, line {warned[0].lineno}: outbox.send(...) was never awaited" in logged.getMessage()
    assert office.ids == []


@pytest.mark.parametrize("dialect", ["sqlite+aiosqlite", "postgresql+asyncpg"])
@pytest.mark.parametrize("of", ["session", "connection"])
@pytest.mark.filterwarnings("ignore:outbox.send")
async def test_sqlalchemy_does_not_commit_a_send_that_was_not_awaited(
    request: pytest.FixtureRequest, tmp_path: Path, dialect: str, of: str
) -> None:
    """F71: the message would be lost, and only a line in the log would say so."""
    url = f"sqlite:///{tmp_path}/shop.db" if dialect.startswith("sqlite") else request.getfixturevalue("empty_postgres")
    with eo.connect(url, sweep_every=None) as store:
        store.migrate()
        engine = create_async_engine(url.replace(url.partition(":")[0], dialect, 1))
        outbox = eo.Outbox(to="orders")
        async with async_sessionmaker(engine)() if of == "session" else engine.connect() as conn:
            await outbox.send(conn, paid("lost"))
            outbox.send(conn, paid("forgotten"))
            with pytest.raises(eo.NotAwaited, match=r"not committed: outbox\.send\(\.\.\.\) in .*line \d+"):
                await conn.commit()
            await conn.rollback()
            async with conn.begin():
                await outbox.send(conn, paid("kept"))
            await outbox.send(conn, paid("given up"))
            outbox.send(conn, paid("forgotten"))
            await conn.rollback()
            await outbox.send(conn, paid("kept, too"))
            await conn.commit()
            rows = await conn.execute(text("SELECT message_id FROM effectonce_outbox ORDER BY message_id"))
            assert [row[0] for row in rows] == ["kept", "kept, too"]
        await engine.dispose()


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.is_async and kind.connect])
@pytest.mark.filterwarnings("ignore:outbox.send")
async def test_a_handler_that_does_not_await_a_send_is_not_committed(office: Office, kind: Kind) -> None:
    """F71: the message would be lost, and nothing would deliver it again."""
    is_corrected = False

    async def handle(conn: Any, message: eo.Message[Any]) -> None:
        await run(conn, office.effect(message.key))
        sending = office.outbox.send(conn, paid(f"paid-{message.key}"))
        if is_corrected:
            await sending

    assert kind.connect is not None
    place = r"not committed: outbox\.send\(\.\.\.\) in .*test_connections\.py, line \d+"
    opened = kind.connect(office.place)
    async with AsyncExitStack() as stack:
        is_async = hasattr(opened, "__aenter__")
        connect = await stack.enter_async_context(opened) if is_async else stack.enter_context(opened)
        handler = office.inbox.handler(connect=connect)(handle)
        with pytest.raises(eo.NotAwaited, match=place):
            await handler(paid("o1"))
        assert (office.ids, office.effects) == ([], [])
        is_corrected = True
        await handler(paid("o1"))
    assert (office.ids, office.effects) == (["paid-o1"], ["o1"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name == "asyncpg"])
async def test_a_send_that_is_awaited_after_the_transaction_is_refused(office: Office) -> None:
    """By then it would be committed by itself."""
    caller = await office.caller()
    late = office.outbox.send(caller.conn, paid())
    await caller.run(office.effect("paid"))
    await caller.commit()
    with pytest.raises(eo.NotInTransaction):
        await maybe_await(late)
    assert office.ids == []


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.name in ONE_EACH])
async def test_of_many_all_are_sent_or_none(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second statement fails, and the caller goes on and commits."""
    caller = await office.caller()
    await caller.run(office.effect("paid"))
    monkeypatch.setattr("effectonce.outbox.outbox._MAX_STATEMENT_ROWS", 2)
    params = outboxes._params

    def second_fails(dialect: Any, rows: Any, delay_us: int) -> Any:
        written = params(dialect, rows, delay_us)
        return written[:-1] if rows[0].message_id == "m2" else written

    monkeypatch.setattr("effectonce.outbox.outbox._params", second_fails)
    with pytest.raises(Exception):  # noqa: B017  (each driver has its own words for it)
        await maybe_await(office.outbox.send_many(caller.conn, [paid(f"m{n}") for n in range(4)]))
    await caller.commit()
    assert (office.ids, office.effects) == ([], ["paid"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in ("sqlite3", "psycopg", "pymysql")])
async def test_what_the_first_delivery_wrote_still_leaves_after_the_second_was_skipped(
    office: Office, unique_name: str
) -> None:
    """F52: the consumer died after its commit; its redelivery is skipped, and the message goes all the same."""
    place = office.place
    url = f"{place.url}{'&' if '?' in place.url else '?'}prefix={unique_name}"
    table = f"{unique_name}_outbox"
    events: list[Event] = []
    with eo.connect(url, hooks=[events.append]) as store:
        store.migrate()
        outbox = Outbox(to="orders", table=table)
        for expected in (True, False):
            caller = await office.caller()
            first = office.inbox.first(caller.conn, eo.Message(data=1, id="o1"))
            assert first is expected
            if first:
                outbox.send(caller.conn, paid("paid-o1"))
            await caller.commit()
        broker = FakeBroker()
        assert await eo.Relay(store, broker).drain() == 1  # type: ignore[arg-type, unused-ignore]
        assert [packet.id for _, packet in broker.sent] == ["paid-o1"]
        assert [(event.kind, event.scope, event.key) for event in events] == [("published", "orders", "paid-o1")]
