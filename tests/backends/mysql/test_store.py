"""MySQL and MariaDB keep the contract, each in its own way, and through what only they can do to us.

``returning=off`` asks MariaDB exactly what MySQL is asked: the same statements, read back in a transaction.
Sync ports never suspend, so the async tests below drive both kinds of port.
"""

import asyncio
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from effectonce.backends.mysql import store as mysql
from effectonce.backends.mysql.statements import load_statements, upserts_with_alias
from effectonce.backends.mysql.store import MySQLBackend
from effectonce.contracts import ConnectionLost, Contention, Port
from effectonce.errors import (
    ConfigurationError,
    CorruptRecord,
    InvalidOption,
    MissingDriver,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    UnsafeStore,
)
from effectonce.keys import digest
from effectonce.record import Answer, Claim, Look, Note, Query, Remember, Renewal, Settlement, SweepResult
from effectonce.testing.suites import store_suite
from effectonce.values.urls import Address
from tests.conftest import skip_or_fail
from tests.harness import installed, servers
from tests.harness.proxy import FaultProxy

pytestmark = pytest.mark.quick_on("sync")

SECOND = 1_000_000
LONG, KEEP = 60 * SECOND, 3600 * SECOND


def open_backend(url: str, **options: object) -> MySQLBackend:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return MySQLBackend(Address(f"{url}{'&' if '?' in url else '?'}{query}"))


@pytest.fixture(scope="module", params=["auto", "off"])
def backend(request: pytest.FixtureRequest, mariadb_url: str) -> MySQLBackend:
    return open_backend(mariadb_url, returning=request.param, prefix=f"suite_{request.param}_{time.time_ns()}")


TestContract = pytest.mark.quick_once(store_suite())


# -- words


PortMaker = Callable[..., Port]


@pytest.fixture(params=["sync", "async"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[PortMaker]:
    """A maker of sync or of async ports, which are closed in the end."""
    opened: list[Port] = []

    def port(url: str, **options: object) -> Port:
        made = open_backend(url, **options)
        opened.append(made.sync_port() if request.param == "sync" else made.async_port())
        return opened[-1]

    yield port
    for each in opened:
        await each.close()


@pytest.fixture
async def port(make: PortMaker, mariadb_url: str, unique_name: str) -> Port:
    made = make(mariadb_url, prefix=unique_name)
    await made.migrate()
    return made


@pytest.fixture(scope="module")
def own() -> Iterator[servers.MariaDB]:
    """A server of our own, in another time zone and with small packets, to be tormented."""
    try:
        with servers.mariadb("--default-time-zone=-07:00", "--max-allowed-packet=1M") as server:
            yield server
    except installed.Missing as missing:
        skip_or_fail(str(missing))


def claim(key: str = "k", **options: Any) -> Claim:
    return Claim(
        **{"scope": "s", "key": key, "owner": os.urandom(16), "lease_us": LONG, "retention_us": KEEP, **options}
    )


def settlement(of: Claim, answer: Answer, **options: Any) -> Settlement:
    return Settlement(**{
        "scope": of.scope, "key": of.key, "owner": of.owner, "token": answer.token, "state": "done",
        "retention_us": KEEP, **options,
    })  # fmt: skip


def note(of: Claim, answer: Answer, text: bytes = b"n") -> Note:
    return Note(of.scope, of.key, of.owner, answer.token, text)


async def answer(port: Port, op: Claim | Look) -> Answer:
    [reply] = await port.run([op])
    assert isinstance(reply, Answer)
    return reply


async def settle(port: Port, of: Claim, granted: Answer, **options: Any) -> bool:
    [reply] = await port.run([settlement(of, granted, **options)])
    assert isinstance(reply, bool)
    return reply


@contextmanager
def admin(url: str) -> Iterator[Any]:
    """A cursor of a plain client, in a transaction that is rolled back in the end."""
    parts = urlsplit(url)
    assert parts.hostname
    with pymysql.connect(
        host=parts.hostname, port=parts.port or 3306, user=parts.username, database=parts.path[1:]
    ) as connection:
        yield connection.cursor()


@contextmanager
def locked(url: str, prefix: str, *keys: str, wait: str = "") -> Iterator[None]:
    """The rows of these keys, held by somebody else's transaction."""
    with admin(url) as cursor:
        for key in keys:
            select = f"SELECT 1 FROM {prefix}_records WHERE id = %s FOR UPDATE {wait}"
            found = cursor.execute(select, (digest("s", key),))
            assert found == 1, f"there is no row of {key} to lock"
        yield
        cursor.execute("ROLLBACK")  # hanging up would let go of them in the server's own time


async def wait_a_second_for_locks(port: Port) -> None:
    """The server gives up soon, and the client late: on a busy machine the server's word must still come first."""
    await port.tables.connection.execute("SET innodb_lock_wait_timeout = 1")  # type: ignore[attr-defined]


# -- what is asked


@pytest.mark.parametrize("returning", ["auto", "off"])
async def test_mariadb_returns_and_mysql_reads_back(
    make: PortMaker, mariadb_url: str, unique_name: str, returning: str
) -> None:
    port: Any = make(mariadb_url, prefix=unique_name, returning=returning)
    await port.migrate()
    used = returning == "auto" and (await port.tables.connection.connect()).flavour == "MariaDB"
    asked: list[str] = []
    ask = port.tables.connection.execute

    async def listen(sql: str) -> Any:
        asked.append(sql)
        return await ask(sql)

    port.tables.connection.execute = listen
    assert (await answer(port, claim())).kind == "claimed"
    [sql] = [sql for sql in asked if "INSERT" in sql]
    assert ("RETURNING" in sql) is used
    assert ("BEGIN" in sql) is not used


def test_mysql_is_asked_without_what_it_deprecates(unique_name: str) -> None:
    """``VALUES(column)`` costs a warning at every statement there; each new value has a name instead."""
    for name, sql in upserts_with_alias(unique_name).items():
        assert "VALUES(" in load_statements(unique_name)[name]
        assert "VALUES(" not in sql
        _, named, update = re.split(r" AS fresh\((.*?)\) ", sql)
        assert set(re.findall(r"new_\w+", update)) <= set(named.split(", "))


async def test_a_claim_and_a_settlement_are_one_round_trip_each(
    make: PortMaker, mariadb_url: str, unique_name: str
) -> None:
    with FaultProxy(urlsplit(mariadb_url).port or 3306) as proxy:
        port = make(proxy.through(mariadb_url), prefix=unique_name)
        await port.migrate()
        mine, other = claim(), claim("other")
        granted = await answer(port, mine)
        before = proxy.replies
        await answer(port, other)
        assert proxy.replies - before == 1
        assert await settle(port, mine, granted)
        assert proxy.replies - before == 2


async def test_notes_and_settlements_that_wait_together_share_a_round_trip_and_a_commit(
    make: PortMaker, mariadb_url: str, unique_name: str
) -> None:
    with FaultProxy(urlsplit(mariadb_url).port or 3306) as proxy:
        port: Any = make(proxy.through(mariadb_url), prefix=unique_name)
        await port.migrate()
        claims = [claim(f"k{n}") for n in range(8)]
        granted = await port.run(claims)
        batch = [(settlement, note)[n % 2](c, g) for n, (c, g) in enumerate(zip(claims, granted, strict=True))]

        async def commits() -> int:
            [[[_, count]]] = await port.tables.connection.execute("SHOW SESSION STATUS LIKE 'Com_commit'")
            return int(count)

        committed, before = await commits(), proxy.replies
        assert await port.run(batch) == [True] * 8
        assert proxy.replies - before == 1
        assert await commits() - committed == 1


async def test_keys_that_a_collation_would_merge_are_two(port: Port) -> None:
    """F23: `Order:a` and `ORDER:A ` became one on MariaDB."""
    assert (await answer(port, claim("Order:a"))).kind == "claimed"
    assert (await answer(port, claim("ORDER:A "))).kind == "claimed"
    page = await port.list(Query(scope="s"))
    assert sorted(record.key for record in page.records) == ["ORDER:A ", "Order:a"]


@pytest.mark.parametrize(
    "key", ["'", "\\", "\\'", "';--", "x' OR '1'='1", "%s", "{rows}", "{now}", "\x00", "\x1a", "\u5b57\\", "/*", "`"]
)
async def test_a_key_is_data_in_every_quoting_mode(port: Port, key: str) -> None:
    """F61: hexadecimal literals know no quotes."""
    mine = claim(key, scope=key)
    granted = await answer(port, mine)
    assert granted.kind == "claimed"
    assert await settle(port, mine, granted, result=key.encode())
    record = await port.get(key, key)
    assert record is not None
    assert (record.scope, record.key, record.result) == (key, key, key.encode())


async def test_results_beyond_64_kib_survive_a_batch(port: Port) -> None:
    """F18: MariaDB cuts hexadecimal literals in a UNION to their length modulo 65536, without a warning."""
    claims = [claim(f"k{n}") for n in range(3)]
    granted = await port.run(claims)
    results = [os.urandom(size) for size in (65_536, 65_537, 100_000)]
    batch = [settlement(c, g, result=r) for c, g, r in zip(claims, granted, results, strict=True)]  # type: ignore[arg-type]
    assert await port.run(batch) == [True] * 3
    assert [(await answer(port, Look("s", c.key))).result for c in claims] == results


@pytest.mark.parametrize("returning", ["auto", "off"])
async def test_duplicates_write_nothing(make: PortMaker, mariadb_url: str, unique_name: str, returning: str) -> None:
    """A herd of duplicates (F15) must not cost the server a flush each."""
    port: Any = make(mariadb_url, prefix=unique_name, returning=returning)
    await port.migrate()
    done, busy, again = claim("done"), claim("busy"), claim("again")
    assert await settle(port, done, await answer(port, done), result=b"r")
    await answer(port, busy)
    assert await settle(port, again, await answer(port, again), state="free")
    again = claim("again")
    assert await settle(port, again, await answer(port, again), state="failed")

    async def written() -> Any:
        return await port.tables.connection.execute("SHOW SESSION STATUS LIKE 'Handler_update'")

    before = await written()
    for _ in range(5):
        kinds = [(await answer(port, claim(key))).kind for key in ("done", "busy", "again")]
        assert kinds == ["done", "in_progress", "failed"]
    assert await written() == before
    assert await port.forget("s", "done", KEEP)
    assert await written() != before, "the counter does not count"


# -- time


async def test_the_servers_time_zone_does_not_matter(make: PortMaker, own: servers.MariaDB, unique_name: str) -> None:
    """F12: the server runs at -07:00; DATETIMEs are folded twice a year in zones with summer time."""
    port: Any = make(own.url, prefix=unique_name)
    assert await port.tables.connection.execute("SELECT @@session.time_zone, @@global.time_zone") == [
        (("+00:00", "-07:00"),)
    ]
    assert abs(await port.now() / SECOND - time.time()) < 5
    await port.migrate()
    await answer(port, claim())
    record = await port.get("s", "k")
    assert record is not None
    assert record.lease_until is not None
    assert abs(record.lease_until - record.created_at - LONG) < SECOND
    assert abs(record.created_at / SECOND - time.time()) < 5


async def test_a_lease_counts_from_the_end_of_a_wait_for_a_lock(
    make: PortMaker, mariadb_url: str, unique_name: str
) -> None:
    """F13: counted from the statement's beginning, a lease shorter than the wait would be over when granted."""
    port = make(mariadb_url, prefix=unique_name)
    await port.migrate()
    first = claim()
    await settle(port, first, await answer(port, first), state="free")
    held = threading.Event()

    def hold() -> None:
        with locked(mariadb_url, unique_name, "k"):
            held.set()
            time.sleep(0.6)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    began = time.monotonic()
    granted = await answer(port, claim(lease_us=SECOND // 2))
    waited = time.monotonic() - began
    record = await port.get("s", "k")
    left = (record.lease_until or 0) - await port.now() if record else 0
    thread.join()
    assert granted.kind == "claimed"
    assert waited > 0.5, "the claim did not wait for the lock"
    assert left > 0, "the lease was over when it was granted"


# -- locks


async def test_a_lock_that_is_not_given_up_is_contention(make: PortMaker, mariadb_url: str, unique_name: str) -> None:
    """F32: nothing of the batch was applied, the connection goes on, and the repetition is answered."""
    port = make(mariadb_url, prefix=unique_name, timeout="30s")
    await port.migrate()
    await wait_a_second_for_locks(port)
    first = claim("a")
    granted = await answer(port, first)
    batch = [claim(key) for key in ("a", "b", "c")]
    with locked(mariadb_url, unique_name, "a"):
        for operations in (batch, [settlement(first, granted)], [Renewal("s", "a", first.owner, granted.token, 1, 1)]):
            with pytest.raises(Contention):
                await port.run(operations)
        assert [(await answer(port, Look("s", key))).kind for key in ("b", "c")] == ["absent", "absent"]
    replies = await port.run(batch)
    assert [reply.kind for reply in replies if isinstance(reply, Answer)] == ["in_progress", "claimed", "claimed"]
    assert await settle(port, first, granted)


@pytest.mark.quick_on("sync-auto")
@pytest.mark.parametrize("returning", ["auto", "off"])
async def test_contention_leaves_no_lock_behind(
    make: PortMaker, mariadb_url: str, unique_name: str, returning: str
) -> None:
    """F32: a lock timeout ends the statement, not the transaction; an idle port must not hold what it got."""
    port = make(mariadb_url, prefix=unique_name, timeout="30s", returning=returning)
    await port.migrate()
    await wait_a_second_for_locks(port)
    claims = [claim(f"k{n}") for n in range(4)]
    granted = await port.run(claims)
    *others, last = sorted((c.key for c in claims), key=lambda key: digest("s", key))
    ends = [settlement(c, g) for c, g in zip(claims, granted, strict=True)]  # type: ignore[arg-type]
    with locked(mariadb_url, unique_name, last):
        for batch in (ends, [claim(c.key) for c in claims]):
            with pytest.raises(Contention):
                await port.run(batch)
            with locked(mariadb_url, unique_name, *others, wait="NOWAIT"):
                pass


@pytest.mark.parametrize("order", [(note, settlement), (settlement, note)])
async def test_notes_and_settlements_lock_in_one_order(
    mariadb_url: str, unique_name: str, order: tuple[Callable[..., Any], Callable[..., Any]]
) -> None:
    """F70: who waits for the first row holds no later one, else two batches could wait for each other."""
    port: Any = open_backend(mariadb_url, prefix=unique_name).async_port()
    await port.migrate()
    claims = sorted((claim(f"k{n}") for n in range(2)), key=lambda c: digest("s", c.key))
    batch = [make(c, g) for make, c, g in zip(order, claims, await port.run(claims), strict=True)]
    [[[thread]]] = await port.tables.connection.execute("SELECT CONNECTION_ID()")
    waits = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id = %s"
    first, later = (c.key for c in claims)
    with locked(mariadb_url, unique_name, first), admin(mariadb_url) as cursor:
        task = asyncio.create_task(port.run(batch))
        while not cursor.execute(waits, (thread,)):
            assert not task.done()
            await asyncio.sleep(0.12)  # the view stays as it is while it is read more than every 0.1 s
        with locked(mariadb_url, unique_name, later, wait="NOWAIT"):
            pass
    assert await task == [True, True]
    await port.close()


@pytest.mark.parametrize("returning", ["auto", "off"])
async def test_what_has_expired_is_not_ones_own_any_more(
    make: PortMaker, mariadb_url: str, unique_name: str, returning: str
) -> None:
    """F08: the row is still there, with our owner and token; a settlement of the shortest retention is applied."""
    port = make(mariadb_url, prefix=unique_name, returning=returning)
    await port.migrate()
    gone = claim("gone", lease_us=1, retention_us=1)
    expired = await answer(port, gone)
    assert await port.run([Renewal("s", "gone", gone.owner, expired.token, LONG, KEEP)]) == [False]
    assert not await settle(port, gone, expired)
    brief = claim("brief")
    granted = await answer(port, brief)
    assert await settle(port, brief, granted, retention_us=1)
    assert not await settle(port, brief, granted, retention_us=1)


async def test_a_sweep_waits_for_nobody(make: PortMaker, mariadb_url: str, unique_name: str) -> None:
    """F26: what another holds is left for the next sweep."""
    port = make(mariadb_url, prefix=unique_name)
    await port.migrate()
    claims = [claim(f"k{n}", lease_us=1, retention_us=1) for n in range(3)] + [
        claim(f"d{n}", lease_us=1, doubt_on_lapse=True) for n in range(3)
    ]
    await port.run(claims)
    with locked(mariadb_url, unique_name, "k1", "d1"):
        began = time.monotonic()
        swept = await port.sweep(100)
        assert time.monotonic() - began < 2.5
        assert (swept.deleted, swept.lapsed) == (2, 2)
    swept = await port.sweep(100)
    assert (swept.deleted, swept.lapsed) == (1, 1)


async def test_a_sweep_that_finds_only_what_others_hold_has_no_more(
    make: PortMaker, mariadb_url: str, unique_name: str
) -> None:
    """F26: `purge` and the heartbeat call again while there is more; they must not spin until a lock is given up."""
    port = make(mariadb_url, prefix=unique_name)
    await port.migrate()
    claims = [claim(f"k{n}", lease_us=1, retention_us=1) for n in range(4)] + [
        claim(f"d{n}", lease_us=1, doubt_on_lapse=True) for n in range(4)
    ]
    await port.run(claims)
    with locked(mariadb_url, unique_name, *(c.key for c in claims)):
        assert await port.sweep(2) == SweepResult(0, 0, False)
    assert await port.sweep(2) == SweepResult(2, 2, True)
    assert await port.sweep(2) == SweepResult(2, 2, False)


@pytest.mark.quick_on("auto")
@pytest.mark.parametrize("returning", ["auto", "off"])
async def test_overlapping_batches_of_many_ports_lose_no_answer(
    mariadb_url: str, unique_name: str, returning: str
) -> None:
    """F70: claims, renewals and settlements of overlapping keys, half of which expire at once, and a sweeper."""
    made = open_backend(mariadb_url, prefix=unique_name, returning=returning)
    ports = [made.async_port() for _ in range(9)]
    await ports[0].migrate()
    contended = 0
    asked: set[str] = set()
    ran: dict[str, int] = {}

    async def insist(port: Port, batch: list[Any]) -> list[Any]:
        nonlocal contended
        for _ in range(20):
            try:
                return list(await port.run(batch))
            except Contention:
                contended += 1
        raise AssertionError("contended twenty times")

    async def work(port: Port, seed: int) -> None:
        choice = random.Random(seed)
        for turn in range(12):
            claims = [claim(f"{turn}-{n:03}") for n in choice.sample(range(80), 48)]
            asked.update(c.key for c in claims)
            answers = await insist(port, claims)
            assert all(a.kind in ("claimed", "in_progress", "done") for a in answers), answers
            mine = [(c, a) for c, a in zip(claims, answers, strict=True) if a.kind == "claimed"]
            for c, _ in mine:
                ran[c.key] = ran.get(c.key, 0) + 1
            renewals = [Renewal(c.scope, c.key, c.owner, a.token, LONG, KEEP) for c, a in mine]
            assert await insist(port, renewals) == [True] * len(mine)
            ends = [settlement(c, a, retention_us=1 if c.key[-1] in "02468" else KEEP) for c, a in mine]
            assert await insist(port, ends) == [True] * len(mine)

    async def sweep(port: Port) -> None:
        while not stop.is_set():
            try:
                await port.sweep(50)
            except Contention:
                pass
            await asyncio.sleep(0.005)

    stop = asyncio.Event()
    sweeper = asyncio.create_task(sweep(ports[-1]))
    try:
        await asyncio.gather(*(work(port, seed) for seed, port in enumerate(ports[:-1])))
    finally:
        stop.set()
        await sweeper
        for port in ports:
            await port.close()
    assert set(ran) == asked
    assert all(times == 1 for key, times in ran.items() if key[-1] in "13579"), "a key that was done ran again"
    assert contended < 12, f"{contended} batches were contended: they do not lock in one order"


async def test_a_cancelled_wait_for_a_lock_leaves_no_half_read_connection(mariadb_url: str, unique_name: str) -> None:
    """F16: the reply of the cancelled claim must not answer the next call."""
    port = open_backend(mariadb_url, prefix=unique_name).async_port()
    await port.migrate()
    first, second = claim("a"), claim("b")
    await port.run([first, second])
    with locked(mariadb_url, unique_name, "a"):
        task = asyncio.create_task(answer(port, claim("a")))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await answer(port, second)).kind == "claimed"
    assert (await answer(port, first)).kind == "claimed"
    await port.close()


# -- failures of the network and the server


async def test_a_server_that_hangs_is_unavailable_in_time(make: PortMaker, mariadb_url: str, unique_name: str) -> None:
    """F36: hanging at connecting, and hanging in the middle; both end, and both heal."""
    with FaultProxy(urlsplit(mariadb_url).port or 3306) as proxy:
        port = make(proxy.through(mariadb_url), prefix=unique_name, timeout="0.5s", connect_timeout="0.5s")
        await port.migrate()
        for _ in range(2):  # first on the open connection, then on a new one
            proxy.blackhole = True
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match="no answer within") as caught:
                await port.run([claim()])
            assert not isinstance(caught.value, ConnectionLost)
            assert time.monotonic() - began < 3
        proxy.heal()
        assert (await answer(port, claim("after"))).kind == "claimed"
        proxy.refuse = True
        proxy.reset()
        with pytest.raises(ConnectionLost):
            await port.run([claim()])
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            await port.run([claim()])
        proxy.heal()
        assert (await answer(port, claim("again"))).kind == "claimed"


@pytest.mark.parametrize("returning", ["auto", "off"])
async def test_a_lost_reply_is_made_up_for_by_repeating(
    make: PortMaker, mariadb_url: str, unique_name: str, returning: str
) -> None:
    """F68, F30: the server did it, or did half of it; the repetition is answered as the first would have been."""
    with FaultProxy(urlsplit(mariadb_url).port or 3306) as proxy:
        port = make(proxy.through(mariadb_url), prefix=unique_name, returning=returning)
        await port.migrate()
        mine = claim(max_attempts=1)
        await port.now()
        proxy.drop_reply(to=b"INSERT")
        with pytest.raises(ConnectionLost):
            await port.run([mine])
        granted = await answer(port, mine)
        assert (granted.kind, granted.attempts) == ("claimed", 1)
        proxy.drop_reply(to=b"UPDATE")
        with pytest.raises(ConnectionLost):
            await settle(port, mine, granted, result=b"r")
        assert await settle(port, mine, granted, result=b"r")
        proxy.cut_reply_after(40)
        with pytest.raises(ConnectionLost):
            await port.run([claim()])
        again = await answer(port, claim())
        assert (again.kind, again.result) == ("done", b"r")


async def test_a_killed_connection_is_lost_and_made_anew(port: Port, mariadb_url: str) -> None:
    connection: Any = port.tables.connection  # type: ignore[attr-defined]
    [[[thread]]] = await connection.execute("SELECT CONNECTION_ID()")
    with admin(mariadb_url) as cursor:
        cursor.execute(f"KILL {thread}")
    with pytest.raises(ConnectionLost):
        await port.run([claim()])
    assert (await answer(port, claim())).kind == "claimed"


@pytest.mark.chaos
async def test_records_outlive_a_crash_of_the_server(make: PortMaker, unique_name: str) -> None:
    try:
        server = servers.mariadb(durable=True)
    except installed.Missing as missing:
        skip_or_fail(str(missing))
    with server:
        port = make(server.url, prefix=unique_name)
        await port.migrate()
        mine = claim()
        granted = await answer(port, mine)
        assert await settle(port, mine, granted, result=b"r")
        server.kill()
        with pytest.raises(ConnectionLost):
            await port.run([claim()])
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            await port.run([claim()])
        server.restart()
        again = await answer(port, claim())
        assert (again.kind, again.result) == ("done", b"r")


# -- the schema and the server's settings


async def test_a_missing_schema_names_the_command(make: PortMaker, mariadb_url: str, unique_name: str) -> None:
    port = make(mariadb_url, prefix=unique_name)
    for ask in (lambda: port.run([claim()]), port.check, port.stats, lambda: port.get("s", "k")):
        with pytest.raises(SchemaMissing, match=rf"effectonce migrate --store '{urlsplit(mariadb_url).scheme}://root@"):
            await ask()
    missing = make(mariadb_url.rpartition("/")[0] + "/nowhere")
    with pytest.raises(SchemaMissing, match="create the database"):
        await missing.migrate()


@pytest.mark.parametrize(("version", "remedy"), [(2, "upgrade effectonce"), (0, "effectonce migrate")])
async def test_a_schema_of_another_version_is_refused(
    port: Port, mariadb_url: str, unique_name: str, version: int, remedy: str, make: PortMaker
) -> None:
    """F38: on every new connection, by `check` and by `migrate`."""
    with admin(mariadb_url) as cursor:
        cursor.execute(f"UPDATE {unique_name}_meta SET value = {version} WHERE name = 'schema'")
        cursor.execute("COMMIT")
    fresh = make(mariadb_url, prefix=unique_name)
    for ask in (lambda: fresh.run([claim()]), fresh.check, fresh.migrate):
        with pytest.raises(SchemaMismatch, match=remedy):
            await ask()


async def test_the_schema_as_a_script_is_what_migrate_makes(
    make: PortMaker, mariadb_url: str, unique_name: str
) -> None:
    made = open_backend(mariadb_url, prefix=unique_name)
    with admin(mariadb_url) as cursor:
        for statement in made.schema_sql().split(";\n"):
            if any(line and not line.startswith("--") for line in statement.splitlines()):
                cursor.execute(statement)
        cursor.execute("COMMIT")
    port = make(mariadb_url, prefix=unique_name)
    await port.check()
    assert (await answer(port, claim())).kind == "claimed"


async def test_a_server_that_may_lose_records_fails_the_check(
    make: PortMaker, own: servers.MariaDB, unique_name: str
) -> None:
    port = make(own.url, prefix=unique_name)
    await port.migrate()
    await port.check()
    with admin(own.url) as cursor:
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        try:
            with pytest.raises(UnsafeStore, match="innodb_flush_log_at_trx_commit"):
                await port.check()
        finally:
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        cursor.execute(f"ALTER TABLE {unique_name}_meta ENGINE = MyISAM")
    with pytest.raises(UnsafeStore, match="not InnoDB"):
        await port.check()


async def test_packets_too_small_for_results_fail_the_check(
    make: PortMaker, own: servers.MariaDB, unique_name: str
) -> None:
    """F18: and without a check, what does fit is stored all the same."""
    port = make(own.url, prefix=unique_name)
    await port.migrate()
    with admin(own.url) as cursor:
        cursor.execute("SET GLOBAL max_allowed_packet = 65536")
        try:
            with pytest.raises(UnsafeStore, match="max_allowed_packet"):
                await port.check()
            fresh = make(own.url, prefix=unique_name)
            mine = claim()
            assert await settle(fresh, mine, await answer(fresh, mine), result=b"ok")
            assert (await answer(fresh, claim())).result == b"ok"
            many = [claim(f"k{n:03}" * 100) for n in range(100)]
            assert {reply.kind for reply in await fresh.run(many) if isinstance(reply, Answer)} == {"claimed"}
        finally:
            cursor.execute("SET GLOBAL max_allowed_packet = 1048576")
    await port.check()


async def test_f60_a_poisoned_row_harms_itself_only(port: Port, mariadb_url: str, unique_name: str) -> None:
    await answer(port, claim("bad"))
    with admin(mariadb_url) as cursor:
        cursor.execute(f"UPDATE {unique_name}_records SET state = 'maybe'")
        cursor.execute("COMMIT")
    for make_op in (claim, lambda key: Look("s", key), lambda key: Remember("s", key, KEEP)):
        poisoned, fine = await port.run([make_op("bad"), make_op(f"good {make_op}")])
        assert isinstance(poisoned, CorruptRecord)
        assert not isinstance(fine, Exception)


async def test_a_read_only_server_is_unavailable_and_says_so(
    make: PortMaker, own: servers.MariaDB, unique_name: str
) -> None:
    """F35: a replica."""
    await make(own.url, prefix=unique_name).migrate()
    user = f"u{unique_name}"
    with admin(own.url) as cursor:
        cursor.execute(f"CREATE USER {user}@'127.0.0.1'")
        cursor.execute(f"GRANT ALL ON test.* TO {user}@'127.0.0.1'")
        port = make(own.url.replace("root@", f"{user}@"), prefix=unique_name)
        cursor.execute("SET GLOBAL read_only = 1")
        try:
            with pytest.raises(StoreUnavailable, match="read-only"):
                await port.run([claim()])
            with pytest.raises(StoreUnavailable, match="read-only"):
                await port.check()
        finally:
            cursor.execute("SET GLOBAL read_only = 0")
    assert (await answer(port, claim())).kind == "claimed"


async def test_a_refused_user_is_told_at_once_and_without_the_password(
    make: PortMaker, own: servers.MariaDB, unique_name: str
) -> None:
    """F66: and a password beyond Latin-1 works."""
    await make(own.url, prefix=unique_name).migrate()
    user, password = f"u{unique_name}", "pa%C3%9F-%E2%82%AC-%F0%9F%94%91"
    with admin(own.url) as cursor:
        cursor.execute("SET NAMES utf8mb4")
        cursor.execute(f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'paß-€-🔑'".encode())
        cursor.execute(f"GRANT ALL ON test.* TO {user}@'127.0.0.1'")
    right = make(own.url.replace("root@", f"{user}:{password}@"), prefix=unique_name)
    assert (await answer(right, claim())).kind == "claimed"
    canary = "hunter2-canary"
    wrong = make(own.url.replace("root@", f"{user}:{canary}@"), prefix=unique_name)
    with pytest.raises(ConfigurationError, match="refuses this user") as caught:
        await wrong.run([claim()])
    said = "".join(map(repr, (caught.value, caught.value.__cause__, wrong, *caught.value.args)))
    assert canary not in said
    assert canary not in repr(open_backend(own.url.replace("root@", f"{user}:{canary}@")))


async def test_small_packets_split_batches_and_drop_only_what_never_fits(
    make: PortMaker, own: servers.MariaDB, unique_name: str
) -> None:
    """F18: the server takes packets of 1 MiB."""
    port = make(own.url, prefix=unique_name)
    await port.migrate()
    claims = [claim(f"k{n}") for n in range(5)]
    granted = await port.run(claims)
    results = [os.urandom(200_000) for _ in range(4)] + [os.urandom(2_000_000)]
    batch = [settlement(c, g, result=r) for c, g, r in zip(claims, granted, results, strict=True)]  # type: ignore[arg-type]
    assert await port.run(batch) == [True] * 5
    found = [await answer(port, Look("s", c.key)) for c in claims]
    assert [a.kind for a in found] == ["done"] * 5
    assert [a.result for a in found] == [*results[:4], None]


# -- TLS; the rest is in tests/backends/test_tls.py


async def test_tls_is_not_given_up_where_the_server_lacks_it(make: PortMaker, own: servers.MariaDB) -> None:
    with pytest.raises(ConfigurationError, match="TLS"):
        await make(own.url, tls="yes").check()


# -- URLs and drivers


@pytest.mark.parametrize("prefix", ["", "1a", "a-b", "a b", "a`b", "a;b", "a.b", "é", "a" * 42, "a%00b", "a'b"])
def test_a_prefix_is_a_plain_name(prefix: str) -> None:
    """F61."""
    with pytest.raises(InvalidOption, match="prefix"):
        MySQLBackend(Address(f"mysql://localhost/db?prefix={prefix}"))


@pytest.mark.parametrize(
    "url",
    [
        "mysql://localhost",
        "mysql://localhost/a/b",
        "mysql://localhost/db?timeout=never",
        "mysql://localhost/db?nope=1",
        "mysql://localhost/db?returning=maybe",
        "mysql://localhost/db?tls=yes&ca_file=/no/such/file.pem",
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption):
        MySQLBackend(Address(url))


async def test_a_cursor_of_another_store_is_refused(port: Port) -> None:
    for cursor in ("", "1", "1:zz", "1:" + "0" * 63, "x' OR 1=1"):
        with pytest.raises(InvalidOption, match="cursor"):
            await port.list(Query(cursor=cursor))


async def test_a_long_list_goes_on_past_what_one_page_may_read(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """F27: a rare state among many records costs pages, never an unbounded scan."""
    monkeypatch.setattr(mysql, "SCAN_ENTRIES", 5)
    monkeypatch.setattr(mysql, "MAX_SCAN_ROUNDS", 2)
    claims = [claim(f"k{n:02}") for n in range(30)]
    granted = await port.run(claims)
    assert await settle(port, claims[0], granted[0])  # type: ignore[arg-type]
    found, pages, cursor = [], 0, None
    while True:
        page = await port.list(Query(scope="s", state="done", limit=2, cursor=cursor))
        found += [record.key for record in page.records]
        pages, cursor = pages + 1, page.cursor
        if cursor is None:
            break
    assert found == ["k00"]
    assert pages > 1


@pytest.mark.parametrize(("module", "kind"), [("pymysql", "sync"), ("aiomysql", "async")])
async def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch, module: str, kind: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDriver, match=r"effectonce\[mysql\]"):  # noqa: PT012
        made = open_backend("mysql://localhost/db")  # where even the sync driver is missing, at once
        port = made.sync_port() if kind == "sync" else made.async_port()
        await port.now()


def test_the_module_imports_no_driver() -> None:
    code = "import sys, effectonce.backends.mysql.store; print({'pymysql', 'aiomysql'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
