"""The relay behind a network that misbehaves, a pooler, and a pool; and how much work a lease is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

import effectonce as eo
from effectonce.contracts import Event, OutboxPort
from effectonce.contracts.outbox import BLOCKED_ROW_RECHECK_US, LeasedRows, LeaseRequest, RowOutcome
from effectonce.errors import StoreUnavailable
from tests.harness.proxy import FaultProxy
from tests.harness.waiting import auntil
from tests.relay.harness import Database, FakeBroker, lease, message

pytestmark = pytest.mark.quick_on("postgres")

A = b"a" * 16
HOUR = 3_600_000_000


@pytest.fixture
def proxy(database: Database) -> Iterator[FaultProxy]:
    if database.name == "sqlite":
        pytest.skip("there is no network to a file")
    with FaultProxy(urlsplit(database.url).port or 0) as proxy:
        yield proxy


async def test_every_reply_of_the_database_may_be_lost_once(
    database: Database, broker: FakeBroker, proxy: FaultProxy
) -> None:
    """F68, F42: a lease and a settlement that are repeated change nothing; each message leaves once."""
    with eo.connect(proxy.through(database.url)) as store:
        relay = eo.Relay(store, broker, batch=2)  # type: ignore[arg-type]
        for nth in range(1, 16):
            database.send_numbers([2 * nth, 2 * nth + 1], key=lambda n: "k")
            proxy.heal()
            proxy.drop_reply(nth)
            try:
                await relay.drain()
            except StoreUnavailable:  # while connecting
                await relay.drain()
    assert broker.numbers() == list(range(2, 32))
    assert database.states() == {"published": 30}


async def test_a_database_that_is_away_is_waited_for(database: Database, broker: FakeBroker, proxy: FaultProxy) -> None:
    """F36."""
    events: list[Event] = []
    with eo.connect(proxy.through(database.url), hooks=[events.append]) as store:
        relay = eo.Relay(store, broker)  # type: ignore[arg-type]
        database.send_numbers([1])
        serving = asyncio.create_task(relay.serve())
        await auntil(lambda: len(broker.sent) == 1)
        proxy.refuse = True
        proxy.reset()
        database.send_numbers([2])
        await auntil(lambda: any(event.kind == "relay_paused" for event in events))
        proxy.heal()
        await auntil(lambda: len(broker.sent) == 2)
        relay.stop()
        await serving


class LosesTheReplyToALease:
    """A port of an outbox, whose first lease that takes rows is granted and never heard of."""

    def __init__(self, port: OutboxPort) -> None:
        self._port = port
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def lease(self, lease: LeaseRequest) -> LeasedRows:
        leased = await self._port.lease(lease)
        if leased.rows and not self.lost:
            self.lost += 1
            raise StoreUnavailable("the connection broke, and there is no other")
        return leased


async def test_rows_whose_lease_was_never_heard_of_leave_before_it_is_over(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F36: the database comes back after a moment; its rows do not wait for the end of a lease that the relay has."""
    with eo.connect(database.url) as store:
        backend: Any = store.runtime.backend
        ports: list[LosesTheReplyToALease] = []

        def async_outbox(table: str | None, honest: Any = backend.async_outbox) -> LosesTheReplyToALease:
            ports.append(LosesTheReplyToALease(honest(table)))
            return ports[-1]

        monkeypatch.setattr(backend, "async_outbox", async_outbox)
        relay = eo.Relay(store, broker, lease="5m")  # type: ignore[arg-type]
        database.send_numbers([1, 2], key=lambda n: "k")
        serving = asyncio.create_task(relay.serve())
        await auntil(lambda: len(broker.sent) == 2, seconds=60)
        relay.stop()
        await serving
    assert sum(port.lost for port in ports) == 1
    assert broker.numbers() == [1, 2]
    assert database.execute("SELECT DISTINCT attempts FROM {outbox}") == [(1,)]


async def test_a_settlement_is_repeated_until_the_lease_is_nearly_over(
    database: Database, broker: FakeBroker, proxy: FaultProxy
) -> None:
    """The database goes away between publish and mark, and comes back in time: no message leaves twice."""
    database.send_numbers([1])
    broker.gate = asyncio.Event()
    with eo.connect(proxy.through(database.url)) as store:
        draining = asyncio.create_task(eo.Relay(store, broker).drain())  # type: ignore[arg-type]
        await asyncio.wait_for(broker.entered.wait(), 60)
        proxy.refuse = True
        proxy.reset()
        broker.gate.set()
        await asyncio.sleep(0.3)
        proxy.heal()
        assert await draining == 1
    assert database.states() == {"published": 1}


async def test_it_works_behind_a_pooler(
    postgres: Database, pgbouncer_url: str, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PgBouncer in transaction mode: nothing of a session is used; there are no wake-ups, looking does it."""
    with eo.connect(f"{pgbouncer_url}?prefix={postgres.prefix}") as store:
        relay = eo.Relay(store, broker, poll="50ms", batch=10)  # type: ignore[arg-type]
        monkeypatch.setattr("effectonce.outbox.outbox.notify", lambda table: None)
        serving = asyncio.create_task(relay.serve())
        postgres.send_numbers(range(50), key=lambda n: f"k{n % 5}")
        await auntil(lambda: len(broker.sent) == 50)
        relay.stop()
        await serving
    assert all([n for n in broker.numbers() if n % 5 == k] == list(range(k, 50, 5)) for k in range(5))


async def test_it_works_on_a_pool_of_the_callers(postgres: Database, broker: FakeBroker) -> None:
    from psycopg_pool import AsyncConnectionPool

    async with AsyncConnectionPool(postgres._server, min_size=1, max_size=4, open=False) as pool:
        relay = eo.Relay(eo.PostgresStore(pool=pool, prefix=postgres.prefix), broker)  # type: ignore[arg-type]
        postgres.send_numbers(range(50), key=lambda n: f"k{n % 5}")
        assert await relay.drain() == 50


# -- how much work a lease is


class Meter:
    """What a lease makes the database do: rows that MariaDB reads, steps that SQLite takes."""

    def __init__(self, database: Database, port: Any) -> None:
        self._database = database
        self._port = port

    async def of_lease(self, ordered: bool) -> float:
        """And of all ways to settle it."""
        await self._port.stats()  # so that the connection is there
        before = await self._read()
        rows = (await lease(self._port, A, 20, ordered=ordered)).rows
        assert len(rows) >= 18
        await self._port.settle(A, [RowOutcome(row.seq, "published") for row in rows[:6]], HOUR)
        await self._port.settle(A, [RowOutcome(row.seq, "published") for row in rows[6:12]], 0)
        await self._port.settle(
            A, [RowOutcome(row.seq, "waiting", wait_us=HOUR, error="no") for row in rows[12:]], HOUR
        )
        return await self._read() - before

    async def _read(self) -> float:
        if self._database.name == "sqlite":
            return await self._steps()
        [rows] = await self._port.tables.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return float(sum(int(value) for _, value in rows))

    async def _steps(self) -> float:
        cursor = await self._port.connection.execute(lambda cursor: cursor)
        counted: list[int] = self.__dict__.setdefault("_counted", [])
        cursor.connection.set_progress_handler(lambda: counted.append(1) and None, 10)
        return float(len(counted))


FILLED = (2_000, 20_000)  # by the first, indexes have grown as deep as they are with the second


def fill(database: Database, state: str, count: int) -> None:
    """``count`` rows in ``state`` (those that wait are all of one line), and after them 100 that are to be leased, of
    which some stand at the end of that line."""
    database.execute("DELETE FROM {outbox}")
    line = "NULL" if state == "published" else "777"
    select = (
        f"SELECT 'x', 'x', 'orders', 'parked', {line}, '', '{{{{}}}}', '', 'json', '', 1, '{state}', "
        f"{10**18 if state in ('published', 'waiting') else 0}"
    )
    columns = (
        "id, message_id, destination, ordering_key, line, type, headers, payload, content, source, created_at, state, "
        "due_at"
    )
    numbers = {
        "sqlite": f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) {select} FROM n",
        "postgres": f"{select} FROM generate_series(1, {count})",
        "mariadb": f"{select} FROM seq_1_to_{count}",
    }[database.name]
    database.execute(f"INSERT INTO {{outbox}} ({columns}) {numbers}")
    database.send_numbers(range(100), key=lambda n: f"k{n % 25}")
    database.execute("UPDATE {outbox} SET line = 777 WHERE ordering_key IN ('k0', 'k1')")


@pytest.mark.parametrize("state", ["published", "waiting"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
async def test_a_lease_is_as_much_work_however_many_rows_it_is_not_about(
    database: Database, ordered: bool, state: str
) -> None:
    """Claim time stays flat: ten times as many rows that were published, or that wait, are not even looked at."""
    if database.name == "postgres":
        pytest.skip("PostgreSQL tells its pages late; its plan is looked at below")
    port = database.port()
    meter = Meter(database, port)
    figures = []
    for count in FILLED:
        fill(database, state, count)
        figures.append(await meter.of_lease(ordered))
    await port.close()
    assert 0 < figures[1] <= 1.5 * figures[0]


@pytest.mark.quick_on("custom")
@pytest.mark.parametrize("plan", ["custom", "generic"])
@pytest.mark.parametrize("state", ["published", "waiting"])
@pytest.mark.parametrize("name", ["lease", "lease_in_order"])
async def test_postgresql_touches_as_many_pages_however_many_rows_it_is_not_about(
    postgres: Database, name: str, state: str, plan: str
) -> None:
    """Also by the plan for any parameters, which a serving relay has from its sixth lease on: that one walked over the
    whole table by its primary key."""
    port: Any = postgres.port()
    statement = port.statements[name].sql.decode()
    values = ["'\\x00'", "1", "20", "0", "20", "'{}'", f"{BLOCKED_ROW_RECHECK_US}"]
    given = ", ".join(values[: 7 if name == "lease_in_order" else 6])

    def pages() -> int:
        with postgres.transaction() as connection:
            connection.execute(f"SET LOCAL enable_seqscan = off; SET LOCAL plan_cache_mode = force_{plan}_plan")
            connection.execute(f"PREPARE asked AS {statement}")
            found = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked ({given})").fetchone()
            connection.rollback()
            connection.execute("DEALLOCATE asked")
        used = found[0][0]["Plan"]
        assert used["Actual Rows"] >= 18
        return int(used["Shared Hit Blocks"] + used["Shared Read Blocks"])

    # The planner believes that all rows are there to be leased, as they were when it last looked.
    postgres.execute("ALTER TABLE {outbox} SET (autovacuum_enabled = off)")
    fill(postgres, "pending", FILLED[1])
    postgres.execute("ANALYZE {outbox}")
    figures = []
    for count in FILLED:
        fill(postgres, state, count)
        postgres.vacuum()
        figures.append(pages())
    await port.close()
    assert 0 < figures[1] <= 1.5 * figures[0]


async def test_mariadb_changes_rows_by_their_numbers_and_walks_over_no_table(mariadb: Database) -> None:
    """500 numbers of 520 rows: the optimizer would rather read them all, and wait for others' locks on the way."""
    mariadb.send_numbers(range(520))
    mariadb.execute("ANALYZE TABLE {outbox}")
    port: Any = mariadb.port()
    packets: list[str] = []
    execute = port.tables.connection.execute

    async def recorded(packet: str) -> Any:
        packets.append(packet)
        return await execute(packet)

    port.tables.connection.execute = recorded
    rows = (await lease(port, A, 500)).rows
    parts = [
        [RowOutcome(row.seq, "published") for row in rows[:250]],
        [RowOutcome(row.seq, "parked", error="no") for row in rows[250:]],
    ]
    await port.settle(A, parts[0], HOUR)
    await port.settle(A, parts[0], 0)
    await port.settle(A, parts[1], HOUR)
    await port.unpark(None, 1000)
    await port.close()
    changes = [each.strip() for packet in packets for each in packet.split(";")]
    changes = [each for each in changes if each.startswith(("UPDATE", "DELETE"))]
    assert len(changes) == 5
    for change in changes:
        (read,) = [row for row in mariadb.execute(f"EXPLAIN {change}") if row[2] in (mariadb.table, "o")]
        assert (read[3], read[5]) in (("range", "PRIMARY"), ("eq_ref", "PRIMARY")), change[:60]


async def test_rows_behind_a_leased_one_do_not_hide_other_lines(database: Database, broker: FakeBroker) -> None:
    """The relay turns the page: 30 rows stand behind what another is sending, and then comes another line."""
    database.send_numbers(range(31), key=lambda n: "hot")
    database.send(message(99, "cold"))
    port = database.port()
    await lease(port, A, 1)
    assert await database.relay(broker, batch=5).drain() == 1
    assert broker.numbers() == [99]
    await port.close()


class GrantsLate:
    """A port of an outbox whose first lease does not arrive before its repetition has been answered: the connection of
    the first one broke, and its server was slow. The repetition skipped the rows that the first one had locked."""

    def __init__(self, port: OutboxPort) -> None:
        self._port = port
        self.requests: list[LeaseRequest] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def lease(self, lease: LeaseRequest) -> LeasedRows:
        self.requests.append(replace(lease))
        if len(self.requests) == 1:
            raise StoreUnavailable("the connection broke, and there is no other")
        if len(self.requests) == 2:
            await self._port.lease(self.requests[0])
            return LeasedRows([])
        return await self._port.lease(lease)


async def test_rows_that_a_lost_lease_took_late_leave_before_it_is_over(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F36: the repetition of the lease found nothing, since the first one was just taking the rows."""
    with eo.connect(database.url) as store:
        backend: Any = store.runtime.backend
        ports: list[GrantsLate] = []

        def async_outbox(table: str | None, honest: Any = backend.async_outbox) -> GrantsLate:
            ports.append(GrantsLate(honest(table)))
            return ports[-1]

        monkeypatch.setattr(backend, "async_outbox", async_outbox)
        relay = eo.Relay(store, broker, lease="5m")  # type: ignore[arg-type]
        database.send_numbers([1, 2], key=lambda n: "k")
        serving = asyncio.create_task(relay.serve())
        await auntil(lambda: len(broker.sent) == 2, seconds=60)
        relay.stop()
        await serving
    assert broker.numbers() == [1, 2]
    assert database.execute("SELECT DISTINCT attempts FROM {outbox}") == [(1,)]


class BreaksWithItsLease(LosesTheReplyToALease):
    """A port whose connection is gone for good after a lease that takes rows."""

    async def lease(self, lease: LeaseRequest) -> LeasedRows:
        if self.lost:
            raise StoreUnavailable("there is no connection")
        return await super().lease(lease)


async def test_rows_that_the_second_pump_was_granted_unheard_leave_before_their_lease_is_over(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F36: the second pump works only while there are many rows, and may not ask again: the first one does."""
    if database.name == "sqlite":
        pytest.skip("a file has one connection, and a relay one pump")
    with eo.connect(database.url) as store:
        backend: Any = store.runtime.backend
        ports: list[Any] = []

        def async_outbox(table: str | None, honest: Any = backend.async_outbox) -> Any:
            port = honest(table)
            ports.append(BreaksWithItsLease(port) if len(ports) == 1 else port)
            return ports[-1]

        monkeypatch.setattr(backend, "async_outbox", async_outbox)
        relay = eo.Relay(store, broker, lease="5m", batch=2)  # type: ignore[arg-type]
        database.send_numbers(range(40))
        serving = asyncio.create_task(relay.serve())
        await auntil(lambda: len(broker.sent) == 40, seconds=60)
        relay.stop()
        await serving
    assert ports[1].lost == 1
