"""PostgreSQL: the contract, directly and through PgBouncer, and what is particular to this store."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from msgspec.structs import replace
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from effectonce.backends.postgres.client import Statement
from effectonce.backends.postgres.statements import prepared_statements
from effectonce.backends.postgres.store import PostgresBackend, PostgresPoolBackend, PostgresPort
from effectonce.contracts import ConnectionLost, Contention, Port
from effectonce.core.run_sync import run_sync
from effectonce.errors import (
    ConfigurationError,
    EffectOnceError,
    InvalidKey,
    InvalidOption,
    KeyTooLong,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    SyncAsyncMismatch,
    UnsafeStore,
)
from effectonce.record import Claim, Look, Note, Query, Remember, Renewal, Resolution, Settlement
from effectonce.testing.suites import store_cases, store_suite
from effectonce.values.urls import Address
from tests.harness import servers
from tests.harness.proxy import FaultProxy
from tests.harness.waiting import until

T = TypeVar("T")
SECOND = 1_000_000
DAY = 86_400 * SECOND


@pytest.mark.quick_once
class TestDirectly:
    class TestContract(store_suite()):  # type: ignore[misc]
        @pytest.fixture
        def backend(self, postgres_url: str) -> PostgresBackend:
            return PostgresBackend(Address(postgres_url))


@pytest.mark.long
class TestBehindPgBouncer:
    # LISTEN belongs to a session, and a client of a transaction pooler has none: its waiters poll.
    class TestContract(store_suite(skip=("changes_report_the_settlement_of_a_flagged_record",))):  # type: ignore[misc]
        @pytest.fixture
        def backend(self, pgbouncer_url: str) -> PostgresBackend:
            return PostgresBackend(Address(pgbouncer_url))


class InCompany(PostgresBackend):
    """Its ports never send an operation by itself, so that the statements for many keep the contract, too."""

    def _port(self, source: Any) -> Any:
        port = super()._port(source)
        send = port.run

        async def together(batch: Sequence[Any]) -> Sequence[Any]:
            return (await send([*batch, Look("somebody", "else")]))[: len(batch)]

        port.run = together  # type: ignore[method-assign]
        return port


@pytest.mark.long
class TestInCompany:
    class TestContract(store_suite()):  # type: ignore[misc]
        @pytest.fixture
        def backend(self, postgres_url: str) -> PostgresBackend:
            return InCompany(Address(postgres_url))


def at(url: str, prefix: str, **options: str) -> PostgresBackend:
    given = "".join(f"&{name}={quote(value)}" for name, value in options.items())
    return PostgresBackend(Address(f"{url}{'&' if '?' in url else '?'}prefix={prefix}{given}"))


@contextmanager
def ports(backend: PostgresBackend, count: int = 1) -> Iterator[list[Port]]:
    """Sync ports on a migrated schema."""
    opened = [backend.sync_port() for _ in range(count)]
    run_sync(opened[0].migrate())
    try:
        yield opened
    finally:
        for port in opened:
            run_sync(port.close())


def claim(key: str = "k", owner: bytes | None = None, lease: int = 60 * SECOND, **options: Any) -> Claim:
    return Claim("s", key, owner or os.urandom(16), lease, DAY, **options)


def one(port: Port, op: Any) -> Any:
    (reply,) = run_sync(port.run([op]))
    return reply


def taken(port: Port, mine: Claim) -> int:
    answer = one(port, mine)
    assert answer.kind == "claimed"
    return int(answer.token)


def settlement(mine: Claim, token: int, state: Any = "done", **options: Any) -> Settlement:
    return Settlement(mine.scope, mine.key, mine.owner, token, state, DAY, **options)


def at_once(bodies: Sequence[Callable[[], T]]) -> list[T]:
    barrier = threading.Barrier(len(bodies))

    def run(body: Callable[[], T]) -> T:
        barrier.wait(30)
        return body()

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(run, bodies))


def sql(url: str, statement: str, *params: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, params or None)
        return cursor.fetchall() if cursor.description else []


# -- batches under contention --------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_overlapping_batches_answer_every_claim_and_grant_each_key_once(
    postgres_url: str, unique_name: str, isolation: str
) -> None:
    """F14, F70: 3,200 tries; the obvious statement (upsert UNION ALL select) left a third of them unanswered.

    Whatever isolation level the server defaults to, ours is READ COMMITTED.
    """
    backend = at(
        postgres_url, unique_name, options=f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}"
    )
    deadlocks = "SELECT sum(deadlocks) FROM pg_stat_database"
    before = sql(postgres_url, deadlocks)
    granted: list[str] = []

    def work(port: Port) -> list[str]:
        mine: list[str] = []
        for batch in range(8):
            keys = sorted(f"{batch}-{n}" for n in range(50))
            answers = run_sync(port.run([claim(key) for key in keys]))
            assert {answer.kind for answer in answers} <= {"claimed", "in_progress"}
            mine += [key for key, answer in zip(keys, answers, strict=True) if answer.kind == "claimed"]
        return mine

    with ports(backend, 8) as opened:
        for mine in at_once([lambda port=port: work(port) for port in opened]):
            granted += mine
    assert sorted(granted) == sorted(f"{batch}-{n}" for batch in range(8) for n in range(50))
    assert sql(postgres_url, deadlocks) == before


def test_retaking_free_and_expired_records_in_overlapping_batches(postgres_url: str, unique_name: str) -> None:
    """F70: rows that exist are locked in order, whatever becomes of them; a sweeper deletes some meanwhile."""
    with ports(at(postgres_url, unique_name), 6) as opened:
        *workers, sweeper = opened
        keys = sorted(f"k{n:02}" for n in range(40))
        stop = threading.Event()

        def sweep() -> int:
            while not stop.is_set():
                run_sync(sweeper.sweep(10))
            return 0

        def work(port: Port) -> int:
            grants = 0
            try:
                for turn in range(25):
                    claims = [claim(key) for key in keys]
                    answers = run_sync(port.run(claims))
                    mine = [
                        # half of them are gone at once, half are free again
                        Settlement(c.scope, c.key, c.owner, a.token, "free", 1 if (turn + n) % 2 else DAY)
                        for n, (c, a) in enumerate(zip(claims, answers, strict=True))
                        if a.kind == "claimed"
                    ]
                    assert {a.kind for a in answers} <= {"claimed", "in_progress"}
                    grants += len(mine)
                    if mine:
                        assert all(run_sync(port.run(mine))), "an owner could not settle what it was granted"
            finally:
                stop.set()
            return grants

        assert sum(at_once([sweep, *(lambda port=port: work(port) for port in workers)])) >= len(keys)


def test_a_settlement_is_applied_while_the_same_claim_is_renewed(postgres_url: str, unique_name: str) -> None:
    """The heartbeat and the completion meet on one row: neither may take the other's change for a lost lease."""
    with ports(at(postgres_url, unique_name), 2) as (settler, renewer):
        for n in range(60):
            mine = claim(f"k{n}")
            token = taken(settler, mine)
            renewal = Renewal(mine.scope, mine.key, mine.owner, token, SECOND, DAY)
            applied, _ = at_once(
                [partial(one, settler, settlement(mine, token)), partial(run_sync, renewing(renewer, renewal))]
            )
            assert applied is True


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("change", ["awaited = true", "lease_until = lease_until + 1", "owner = 'another'"])
def test_an_operation_goes_by_what_a_rival_has_left(
    postgres_url: str, unique_name: str, change: str, together: bool
) -> None:
    """It waited for the row: what it finds there then counts, and who began to wait meanwhile is told."""
    applied = "owner" not in change
    for settles in (False, True):
        with ports(at(postgres_url, unique_name), 2) as (port, listener), psycopg.connect(postgres_url) as rival:
            run_sync(listener.changes(0.0))
            mine = claim(f"{settles}")
            token = taken(port, mine)
            op = settlement(mine, token) if settles else Note(mine.scope, mine.key, mine.owner, token, b"n")
            batch: list[Any] = [op]
            if together:  # with one that is untouched
                other = claim(f"{settles} other")
                batch.append(replace(op, key=other.key, owner=other.owner, token=taken(port, other)))
            rival.execute(f'UPDATE "{unique_name}_records" SET {change} WHERE key = %s', (mine.key,))
            with ThreadPoolExecutor(1) as pool:
                waiter = pool.submit(run_sync, port.run(batch))
                until(lambda: blocked(postgres_url, unique_name))
                rival.commit()
                assert list(waiter.result(10)) == [applied, *[True] * together]
            told = settles and "awaited" in change
            assert list(run_sync(listener.changes(2.0 if told else 0.05))) == ([("s", mine.key)] if told else [])


async def renewing(port: Port, renewal: Renewal) -> None:
    for _ in range(3):
        await port.run([renewal])


@pytest.mark.chaos
def test_overlapping_batches_of_all_kinds_whose_replies_get_lost(
    proxied: tuple[FaultProxy, str], postgres_url: str, unique_name: str
) -> None:
    """F68, F70: claims, notes, renewals and settlements on the same keys, alone and together, beside a sweeper.

    Every operation is answered, no token has two owners, and only a settlement that was sent twice may be refused.
    """
    proxy, url = proxied
    deadlocks = "SELECT sum(deadlocks) FROM pg_stat_database"
    before = sql(postgres_url, deadlocks)
    names = [f"k{n:02}" for n in range(40)]
    owners: dict[tuple[str, int], bytes] = {}
    end = time.monotonic() + 4

    def work(backend: PostgresBackend, seed: int) -> int:
        random = Random(seed)
        port = backend.sync_port()
        lost = 0

        def send(batch: Sequence[Any]) -> Sequence[Any]:
            nonlocal lost
            for _ in range(100):
                try:
                    return run_sync(port.run(batch))
                except (StoreUnavailable, Contention):
                    lost += 1
            raise AssertionError("never answered")

        while time.monotonic() < end:
            keys = sorted(random.sample(names, random.choice((1, 1, 2, 5, 20))))
            claims = [claim(key, waiting=random.random() < 0.2, note=random.choice((None, b"n"))) for key in keys]
            answers = send(claims)
            assert {answer.kind for answer in answers} <= {"claimed", "in_progress", "done"}
            mine = [(op, answer.token) for op, answer in zip(claims, answers, strict=True) if answer.kind == "claimed"]
            for op, token in mine:
                assert owners.setdefault((op.key, token), op.owner) == op.owner
            if mine and random.random() < 0.5:
                kind = random.choice((Note, Renewal))
                rest = (b"n",) if kind is Note else (60 * SECOND, DAY)
                assert all(send([kind(op.scope, op.key, op.owner, token, *rest) for op, token in mine]))
            if mine:
                known = lost
                spans = [random.choice((1, DAY)) for _ in mine]
                ends = [
                    Settlement(op.scope, op.key, op.owner, t, "free", s) for (op, t), s in zip(mine, spans, strict=True)
                ]
                assert all(send(ends)) or lost > known
        run_sync(port.close())
        return lost

    def disturb(backend: PostgresBackend) -> int:
        random, port = Random(0), backend.sync_port()
        while time.monotonic() < end:
            proxy.drop_reply(random.randint(1, 20))
            run_sync(port.sweep(50))
            time.sleep(0.02)
        proxy.heal()
        run_sync(port.close())
        return 0

    direct, through = at(postgres_url, unique_name, timeout="20s"), at(url, unique_name, timeout="20s")
    with ports(direct):
        bodies = [partial(work, through if n % 2 else direct, n) for n in range(6)]
        assert sum(at_once([partial(disturb, direct), *bodies])) > 0, "no reply was lost"
    assert len(owners) > 100
    assert sql(postgres_url, deadlocks) == before


def test_a_batchs_answers_belong_to_their_operations(postgres_url: str, unique_name: str) -> None:
    """New, taken, finished and free records in one batch: each gets its own token and result."""
    with ports(at(postgres_url, unique_name)) as (port,):
        for n in range(0, 128, 4):
            mine = claim(f"k{n:03}")
            one(port, settlement(mine, taken(port, mine), result=b"%d" % n))
            taken(port, claim(f"k{n + 1:03}"))
            mine = claim(f"k{n + 2:03}")
            one(port, settlement(mine, taken(port, mine), "free"))
        batch = [claim(f"k{n:03}") for n in range(128)]
        answers = run_sync(port.run(batch))
        assert [a.kind for a in answers] == ["done", "in_progress", "claimed", "claimed"] * 32
        for n, (op, answer) in enumerate(zip(batch, answers, strict=True)):
            record = run_sync(port.get("s", op.key))
            assert record is not None
            assert answer.token == record.token
            if n % 4 == 0:
                assert answer.result == b"%d" % n
            elif n % 4 > 1:
                assert (record.owner, answer.attempts) == (op.owner, 2 if n % 4 == 2 else 1)


def test_a_batch_that_is_repeated_is_recognised(postgres_url: str, unique_name: str) -> None:
    """F68, of several at once: the same tokens, and what was applied is applied; also notes and settlements mixed."""
    with ports(at(postgres_url, unique_name)) as (port,):
        batch = [claim(f"k{n}", note=b"draft" if n % 2 else None) for n in range(4)]
        first = run_sync(port.run(batch))
        assert [answer.note for answer in first] == [op.note for op in batch]
        assert [a.token for a in run_sync(port.run(batch))] == [a.token for a in first]
        notes: list[Any] = [Note(op.scope, op.key, op.owner, a.token, b"n") for op, a in zip(batch, first, strict=True)]
        ends = [settlement(op, a.token, result=b"r") for op, a in zip(batch, first, strict=True)]
        for ops in (notes, notes, [*ends[:2], *notes[2:]], [*ends[:2], *notes[2:]], ends):
            assert list(run_sync(port.run(ops))) == [True] * 4
        assert list(run_sync(port.run(notes))) == [False] * 4
        records = [run_sync(port.get("s", op.key)) for op in batch]
        assert [(record.state, record.result, record.note) for record in records] == [("done", b"r", b"n")] * 4


@pytest.fixture
def asked(postgres_url: str, unique_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Port, list[str]]]:
    """A port, and the names of the statements that it has sent since."""
    with ports(at(postgres_url, unique_name)) as (port,):
        assert isinstance(port, PostgresPort)
        names = {statement.name: name for name, statement in port.statements.items()}
        sent: list[str] = []
        execute = port._client.execute

        def record(statement: Statement, *args: Any) -> Any:
            sent.append(names[statement.name])
            return execute(statement, *args)

        monkeypatch.setattr(port._client, "execute", record)
        yield port, sent


def test_new_keys_and_duplicates_are_one_statement_and_those_to_take_over_another(
    asked: tuple[Port, list[str]],
) -> None:
    """Also in one batch. Only a record that the claim has to change is locked, and that is a statement of its own."""
    port, sent = asked
    for keys, kinds in (
        (["a", "b"], ["claimed", "claimed"]),
        (["a", "new"], ["in_progress", "claimed"]),
        (["a", "b"], ["in_progress", "in_progress"]),
    ):
        assert [answer.kind for answer in run_sync(port.run([claim(key) for key in keys]))] == kinds
    assert sent == ["claim"] * 3
    mine = claim("free")
    one(port, settlement(mine, taken(port, mine), "free"))
    sent.clear()
    assert [answer.attempts for answer in run_sync(port.run([claim("c"), claim("free")]))] == [1, 2]
    assert sent == ["claim", "claim_existing"]


def test_claims_and_settlements_are_one_round_trip_each(proxied: tuple[FaultProxy, str], unique_name: str) -> None:
    """Counted on the way to the server. A lone duplicate was two."""
    proxy, url = proxied
    with ports(at(url, unique_name)) as (port,):

        def claimed(*keys: str) -> list[Settlement]:
            """Claim the keys, and give what completes them."""
            batch = [claim(key) for key in keys]
            return [settlement(op, answer.token) for op, answer in zip(batch, run_sync(port.run(batch)), strict=True)]

        def round_trips(body: Callable[[], Any]) -> int:
            before = proxy.replies
            body()
            return proxy.replies - before

        for keys in (["warm"], ["warm1", "warm2"]):  # each statement is prepared once
            run_sync(port.run(claimed(*keys)))
        lone, batch = claimed("done"), claimed("a", "b", "c")
        counted = {
            "lone first claim": round_trips(lambda: claimed("first")),
            "lone completion": round_trips(lambda: run_sync(port.run(lone))),
            "lone duplicate of a done record": round_trips(lambda: claimed("done")),
            "lone duplicate of a record in progress": round_trips(lambda: claimed("first")),
            "batch of claims": round_trips(lambda: claimed("d", "e", "f")),
            "batch of completions": round_trips(lambda: run_sync(port.run(batch))),
            "batch of new keys and duplicates": round_trips(lambda: claimed("a", "d", "new")),
        }
        assert counted == dict.fromkeys(counted, 1)


# -- the server's side: clock, locks, dead rows --------------------------------------------------------------


def test_a_lease_is_counted_from_after_the_wait_for_a_lock(postgres_url: str, unique_name: str) -> None:
    """F32: now() is when the transaction began; a lease counted from it was over before it was granted."""
    with ports(at(postgres_url, unique_name)) as (port,), psycopg.connect(postgres_url) as holder:
        first = claim()
        one(port, settlement(first, taken(port, first), "free"))
        holder.execute(f'SELECT 1 FROM "{unique_name}_records" FOR UPDATE')
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(one, port, claim(lease=SECOND))
            until(lambda: blocked(postgres_url, unique_name))
            row = holder.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchone()
            holder.commit()
            assert waiter.result(10).kind == "claimed"
        record = run_sync(port.get("s", "k"))
        assert row is not None
        assert record is not None
        assert (record.lease_until or 0) - SECOND >= row[0]


def test_a_lock_that_is_never_released_is_contention(postgres_url: str, unique_name: str) -> None:
    """F32: somebody's open transaction must not hang ours, nor leave a statement behind that runs later."""
    with (
        ports(at(postgres_url, unique_name, timeout="1s")) as (port,),
        psycopg.connect(postgres_url) as holder,
    ):
        mine = claim()
        token = taken(port, mine)
        holder.execute(f'SELECT 1 FROM "{unique_name}_records" FOR UPDATE')
        with pytest.raises(Contention):
            one(port, settlement(mine, token))
        assert not blocked(postgres_url, unique_name)
        assert one(port, claim("other")).kind == "claimed"
        assert run_sync(port.sweep(100)).deleted == 0, "a sweep never waits"
        holder.rollback()
        assert one(port, settlement(mine, token)) is True


def blocked(url: str, prefix: str) -> bool:
    found = sql(url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s", f"%{prefix}%")
    return bool(found)


def test_duplicates_of_finished_records_write_nothing(postgres_url: str, unique_name: str) -> None:
    """No new version, no lock on the row: duplicates leave nothing for the vacuum."""
    with ports(at(postgres_url, unique_name)) as (port,):
        for state in ("done", "failed", "in_doubt"):
            mine = claim(state)
            one(port, settlement(mine, taken(port, mine), state))
        taken(port, claim("claimed"))
        versions = f'SELECT key, ctid::text, xmin::text, xmax::text FROM "{unique_name}_records" ORDER BY key'
        before = sql(postgres_url, versions)
        for _ in range(3):
            batch = [claim(key) for key in ("claimed", "done", "failed", "in_doubt")]
            kinds = [answer.kind for answer in run_sync(port.run(batch))]
            assert kinds == ["in_progress", "done", "failed", "in_doubt"]
        assert sql(postgres_url, versions) == before


def test_completing_touches_no_index(postgres_url: str, unique_name: str) -> None:
    """The schema's one rule: claimed to done is a HOT update."""
    with ports(at(postgres_url, unique_name)) as (port,):
        for _ in range(5):
            batch = [claim(os.urandom(8).hex()) for _ in range(100)]
            batch.sort(key=lambda op: op.key)
            answers = run_sync(port.run(batch))
            done = [settlement(c, a.token, result=b"r" * 20) for c, a in zip(batch, answers, strict=True)]
            assert all(run_sync(port.run(done)))
    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = %s"
    until(lambda: sql(postgres_url, counts, f"{unique_name}_records")[0][0] >= 500)
    ((_, hot),) = sql(postgres_url, counts, f"{unique_name}_records")
    assert hot >= 400, "a batch may cross a minute; more than one cannot"


def partition(url: str, backend: PostgresBackend, prefix: str, count: int = 4) -> None:
    """Our schema, hash-partitioned by somebody with many records."""
    schema = backend.schema_sql().replace("WITH (fillfactor = 50)", "PARTITION BY HASH (scope, key)")
    parts = [
        f'CREATE TABLE "{prefix}_p{n}" PARTITION OF "{prefix}_records" FOR VALUES WITH (MODULUS {count}, REMAINDER {n})'
        for n in range(count)
    ]
    sql(url, ";".join([schema, *parts]))


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "claim_one",
        "claim",
        "claim_existing",
        "settle_one",
        "settle",
        "settle_locked",
        "remember",
    ],
)
def test_statements_never_scan_the_table(postgres_url: str, unique_name: str, name: str, partitioned: bool) -> None:
    """`UPDATE … FROM unnest` chose a sequential scan on a young table, and the prepared plan kept it."""
    if partitioned:
        partition(postgres_url, at(postgres_url, unique_name), unique_name)
    with ports(at(postgres_url, unique_name)):
        pass
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f'ANALYZE "{unique_name}_records"')  # known to be empty
        text = prepared_statements(unique_name)[name].sql.decode()
        count = max(n for n in range(1, 13) if f"${n}" in text)
        connection.execute(f"SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan; PREPARE p AS {text}")
        arguments = ", ".join(["'0'" if name.endswith("_one") else "'{}'"] * count)
        plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN EXECUTE p ({arguments})").fetchall())
    assert "Seq Scan" not in plan
    assert ("Index Scan" if name == "claim" or name.endswith("_one") else "Tid Scan") in plan
    if not partitioned:
        assert "Sort" not in plan, "the order of the batch is the order of the locks"


def test_small_batches_are_planned_once_and_lists_for_what_they_ask(postgres_url: str, unique_name: str) -> None:
    """Left to itself the server plans anew for each batch of few, half of its work; a list has a plan of its own."""
    plans = Statement("SELECT statement, custom_plans FROM pg_prepared_statements")
    mode = Statement("SELECT current_setting('plan_cache_mode')")
    with ports(at(postgres_url, unique_name)) as (port,):
        assert isinstance(port, PostgresPort)
        for _ in range(8):
            batch = [claim(key, note=b"1") for key in sorted(os.urandom(8).hex() for _ in range(2))]
            tokens = [answer.token for answer in run_sync(port.run(batch))]
            run_sync(
                port.run([Note("s", op.key, op.owner, token, b"2") for op, token in zip(batch, tokens, strict=True)])
            )
            assert all(run_sync(port.run([settlement(op, token) for op, token in zip(batch, tokens, strict=True)])))
        found = run_sync(port._client.execute(plans, prepare=False))
        assert len(found) == 2
        assert {often for _, often in found} == {0}
        assert len(run_sync(port.list(Query(scope="s", limit=5))).records) == 5
        assert run_sync(port._client.execute(mode, prepare=False)) == [("auto",)]
        assert one(port, claim()).kind == "claimed"


def test_an_operation_on_a_partitioned_table_changes_its_own_record_only(postgres_url: str, unique_name: str) -> None:
    """Each partition has a row at place (0,1); a settlement by place alone completed one record in each."""
    backend = at(postgres_url, unique_name)
    partition(postgres_url, backend, unique_name)
    keys = [f"k{n:02}" for n in range(24)]
    changes: list[Callable[[Port, Claim, int], Any]] = [
        lambda port, mine, token: one(port, settlement(mine, token, result=b"r")),
        lambda port, mine, token: one(port, settlement(mine, token, "in_doubt")),
        lambda port, mine, token: one(port, Renewal("s", mine.key, mine.owner, token, 90 * SECOND, DAY)),
        lambda port, mine, token: run_sync(port.forget("s", mine.key, DAY)),
        lambda port, mine, token: one(port, claim(mine.key, waiting=True)).kind == "in_progress",
    ]
    with ports(backend) as (port,):
        run_sync(port.check())
        claims = {key: claim(key) for key in keys}
        tokens = {key: taken(port, mine) for key, mine in claims.items()}
        versions = f'SELECT key, tableoid, ctid::text FROM "{unique_name}_records" ORDER BY key'

        def changed(body: Callable[[], Any]) -> list[str]:
            before = dict.fromkeys(sql(postgres_url, versions))
            assert body()
            return sorted({row[0] for row in before.keys() ^ dict.fromkeys(sql(postgres_url, versions)).keys()})

        for n, change in enumerate(changes):
            for key in keys[n * 4 : n * 4 + 4]:
                assert changed(partial(change, port, claims[key], tokens[key])) == [key]
        resolution = Resolution(state="done", retention_us=DAY)
        assert changed(lambda: run_sync(port.resolve("s", keys[4], resolution))) == [keys[4]]
        assert changed(lambda: one(port, claim(keys[12])).kind == "claimed") == [keys[12]]
        assert changed(lambda: one(port, Remember("s", keys[13], DAY, result=b"m"))) == [keys[13]]
        gone = settlement(claims[keys[20]], tokens[keys[20]])
        gone.retention_us = 1
        assert one(port, gone) is True
        assert changed(lambda: run_sync(port.sweep(100)).deleted == 1) == [keys[20]]
        taken(port, claim("lapsing", lease=1, doubt_on_lapse=True))
        assert changed(lambda: run_sync(port.sweep(100)).lapsed == 1) == ["lapsing"]


def test_a_claim_from_a_lapsed_lease_says_so_again_when_repeated(postgres_url: str, unique_name: str) -> None:
    """F68: the first answer may have been lost, and work that took the process down must run alone."""
    with ports(at(postgres_url, unique_name)) as (port,):
        taken(port, claim(lease=1))
        mine = claim()
        first = one(port, mine)
        assert (first.kind, first.lapsed, first.attempts) == ("claimed", True, 2)
        assert one(port, mine) == first
        one(port, settlement(mine, first.token, "free"))
        after = claim()
        assert one(port, after).lapsed is False
        assert one(port, after).lapsed is False


def test_a_sweep_says_more_only_where_there_is_more(postgres_url: str, unique_name: str) -> None:
    with ports(at(postgres_url, unique_name)) as (port,):
        for kind in ("expired", "lapsed"):
            for n in range(4):
                mine = claim(f"{kind}{n}", lease=1 if kind == "lapsed" else SECOND, doubt_on_lapse=kind == "lapsed")
                token = taken(port, mine)
                if kind == "expired":
                    gone = settlement(mine, token)
                    gone.retention_us = 1
                    one(port, gone)
        swept = [run_sync(port.sweep(2)) for _ in range(2)]
        assert [(s.deleted, s.lapsed, s.more) for s in swept] == [(2, 2, True), (2, 2, False)]
        assert run_sync(port.stats()).swept_at is not None


# -- connections that break, hang, restart (F36) -------------------------------------------------------------


@pytest.fixture
def proxied(postgres_url: str) -> Iterator[tuple[FaultProxy, str]]:
    parts = urlsplit(postgres_url)
    with FaultProxy(parts.port or 5432, parts.hostname or "127.0.0.1") as proxy:
        yield proxy, proxy.through(postgres_url)


def test_a_hung_server_ends_in_store_unavailable(proxied: tuple[FaultProxy, str], unique_name: str) -> None:
    """F36: open connections, and new ones."""
    proxy, url = proxied
    with ports(at(url, unique_name, timeout="300ms", connect_timeout="300ms")) as (port,):
        taken(port, claim())
        proxy.blackhole = True
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable) as caught:
                one(port, claim("other"))
            assert not isinstance(caught.value, ConnectionLost)
            assert time.monotonic() - began < 3
        proxy.heal()
        assert one(port, claim()).kind == "in_progress"


async def test_a_hung_server_ends_in_store_unavailable_on_a_loop(
    proxied: tuple[FaultProxy, str], unique_name: str
) -> None:
    """F36, async: the loop goes on meanwhile."""
    proxy, url = proxied
    port = at(url, unique_name, timeout="300ms", connect_timeout="300ms").async_port()
    await port.migrate()
    proxy.blackhole = True
    for _ in range(2):
        waiting = asyncio.ensure_future(port.run([claim()]))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(waiting, 3)
    proxy.heal()
    ((answer),) = await port.run([claim("after")])
    assert answer.kind == "claimed"
    await port.close()


def test_an_address_that_hangs_does_not_hide_the_next(postgres_url: str, unique_name: str) -> None:
    """F36: connecting has a time of its own; it used up the operation's, each time anew."""
    with ports(at(postgres_url, unique_name)), socket.socket() as hole:
        server = urlsplit(postgres_url)
        if server.hostname != "127.0.0.1":
            pytest.skip("needs a server on 127.0.0.1")
        hole.bind(("127.0.0.2", server.port))
        hole.listen(5)  # the kernel accepts, and no server ever answers
        both = postgres_url.replace("127.0.0.1", "127.0.0.2,127.0.0.1")
        port = at(both, unique_name, timeout="2s", connect_timeout="2s").sync_port()
        assert one(port, claim()).kind == "claimed"
        run_sync(port.close())


def test_a_slow_way_to_the_server_is_not_a_dead_one(proxied: tuple[FaultProxy, str], unique_name: str) -> None:
    """F36: connecting, greeting and preparing take many round trips; an operation's time is for its own."""
    proxy, url = proxied
    with ports(at(url, unique_name)):
        pass
    proxy.delay = 0.05  # each way
    port = at(url, unique_name, timeout="180ms", connect_timeout="10s").sync_port()
    assert one(port, claim()).kind == "claimed"
    run_sync(port.close())


def test_nobody_at_the_port_is_store_unavailable(unique_name: str) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        port = at(f"postgresql://127.0.0.1:{unheard.getsockname()[1]}/x", unique_name).sync_port()
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            one(port, claim())


@pytest.mark.parametrize("cut", [0, 7])
def test_a_claim_whose_reply_was_lost_is_recognised_when_repeated(
    proxied: tuple[FaultProxy, str], unique_name: str, cut: int
) -> None:
    """F68: the server did it, the client never heard, or heard half of it."""
    proxy, url = proxied
    with ports(at(url, unique_name)) as (port,):
        taken(port, claim("warm"))
        mine = claim()
        if cut:
            proxy.cut_reply_after(cut)
        else:
            proxy.drop_reply()
        with pytest.raises(ConnectionLost):
            one(port, mine)
        stored = run_sync(port.get("s", "k"))
        assert stored is not None
        assert taken(port, mine) == stored.token
        proxy.drop_reply(2)  # the greeting's
        done = settlement(mine, stored.token, result=b"r")
        proxy.drop_reply()
        with pytest.raises(ConnectionLost):
            one(port, done)
        assert one(port, done) is True


@pytest.mark.chaos
def test_a_restarted_server_is_found_again(unique_name: str) -> None:
    with servers.postgres() as server, ports(at(server.url, unique_name), 2) as (port, listener):
        mine = claim()
        token = taken(port, mine)
        run_sync(listener.changes(0.0))
        server.restart()
        with pytest.raises(ConnectionLost):
            one(port, settlement(mine, token))
        assert one(port, settlement(mine, token)) is True
        with pytest.raises(ConnectionLost):
            run_sync(listener.changes(1.0))
        assert list(run_sync(listener.changes(0.0))) == []
        server.kill()
        with pytest.raises(StoreUnavailable):
            one(port, claim())


def test_a_backend_ended_by_an_administrator_is_a_lost_connection(postgres_url: str, unique_name: str) -> None:
    with ports(at(postgres_url, unique_name, application_name=unique_name)) as (port,):
        taken(port, claim())
        sql(
            postgres_url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
            unique_name,
        )
        with pytest.raises(ConnectionLost):
            one(port, claim("other"))
        assert one(port, claim("other")).kind == "claimed"


async def test_a_cancelled_operation_drops_its_connection(postgres_url: str, unique_name: str) -> None:
    """F16: half a conversation is never continued by the next caller."""
    port = at(postgres_url, unique_name, application_name=unique_name).async_port()
    await port.migrate()
    with psycopg.connect(postgres_url) as holder:
        await port.run([claim()])
        holder.execute(f'SELECT 1 FROM "{unique_name}_records" FOR UPDATE')
        stuck = asyncio.ensure_future(port.forget("s", "k", DAY))
        await asyncio.to_thread(until, lambda: blocked(postgres_url, unique_name))
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
        holder.rollback()
    (answer,) = await port.run([Look("s", "never")])
    assert answer.kind == "absent"
    await port.close()


# -- wake-ups ------------------------------------------------------------------------------------------------


def test_behind_pgbouncer_changes_report_nothing_and_do_not_fail(pgbouncer_url: str, unique_name: str) -> None:
    """LISTEN does not work there: the poll covers for it, and no server connection is left listening."""
    with ports(at(pgbouncer_url, unique_name), 2) as (port, listener):
        mine = claim()
        token = taken(port, mine)
        assert list(run_sync(listener.changes(0.0))) == []
        assert one(port, claim(waiting=True)).kind == "in_progress"
        assert one(port, settlement(mine, token)) is True
        began = time.monotonic()
        assert list(run_sync(listener.changes(0.2))) == []
        assert 0.15 < time.monotonic() - began < 3


def test_a_key_too_long_to_announce_is_settled_all_the_same(postgres_url: str, unique_name: str) -> None:
    """NOTIFY refuses 8,000 bytes, and would take the settlement with it."""
    with ports(at(postgres_url, unique_name), 2) as (port, listener):
        run_sync(listener.changes(0.0))
        for scope, told in (("s", True), ("\x1b" * 400, False)):
            mine = Claim(scope, "\x1b" * 1024, os.urandom(16), 60 * SECOND, DAY)
            token = taken(port, mine)
            other = Claim(scope, mine.key, os.urandom(16), 60 * SECOND, DAY, waiting=True)
            assert one(port, other).kind == "in_progress"
            assert one(port, settlement(mine, token)) is True
            assert list(run_sync(listener.changes(2.0 if told else 0.05))) == ([(scope, mine.key)] if told else [])


@pytest.fixture
def full_queue(postgres_url: str, unique_name: str) -> Iterator[Callable[[str], PostgresBackend]]:
    """A backend for whose connections a function of PostgreSQL is replaced. The real queue holds 8 GB."""

    def replaced(function: str) -> PostgresBackend:
        sql(postgres_url, f"CREATE FUNCTION {unique_name}.{function}")
        return at(postgres_url, unique_name, options=f"-c search_path={unique_name},pg_catalog")

    sql(postgres_url, f"CREATE SCHEMA {unique_name}")
    yield replaced
    sql(postgres_url, f"DROP SCHEMA {unique_name} CASCADE")


def test_a_full_queue_of_notifications_does_not_refuse_a_settlement(
    full_queue: Callable[[str], PostgresBackend],
) -> None:
    """Some listener in a forgotten transaction fills it; every NOTIFY fails then, at the commit."""
    backend = full_queue("pg_notification_queue_usage() RETURNS float8 LANGUAGE sql AS 'SELECT 1.0::float8'")
    with ports(backend, 2) as (port, listener):
        run_sync(listener.changes(0.0))
        mine = claim()
        token = taken(port, mine)
        assert one(port, claim(waiting=True)).kind == "in_progress"
        assert one(port, settlement(mine, token)) is True
        assert list(run_sync(listener.changes(0.05))) == []


def test_a_limit_that_is_not_an_indexs_is_not_the_keys_fault(full_queue: Callable[[str], PostgresBackend]) -> None:
    """A full queue, and a server out of transaction ids, have the SQLSTATE of a key too long for its index."""
    raising = "BEGIN RAISE EXCEPTION ''too many notifications'' USING ERRCODE = ''54000''; END"
    backend = full_queue(f"pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS '{raising}'")
    with ports(backend) as (port,):
        mine = claim()
        token = taken(port, mine)
        one(port, claim(waiting=True))
        with pytest.raises(StoreUnavailable, match="too many notifications"):
            one(port, settlement(mine, token))
        for size in (4_000, 40_000):
            with pytest.raises(KeyTooLong):
                one(port, claim(os.urandom(size).hex()))


def test_a_listener_notices_a_server_that_went_away_without_a_word(
    proxied: tuple[FaultProxy, str], unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F36: nothing is ever sent on a listening connection, so nothing ever failed on it."""
    monkeypatch.setattr("effectonce.backends.postgres.client.LISTEN_AGAIN_S", 0.1)
    proxy, url = proxied
    with ports(at(url, unique_name, timeout="300ms", connect_timeout="300ms")) as (listener,):
        for _ in range(3):
            assert list(run_sync(listener.changes(0.15))) == []
        proxy.blackhole = True
        with pytest.raises(StoreUnavailable):
            run_sync(listener.changes(0.15))
        proxy.heal()
        assert list(run_sync(listener.changes(0.0))) == []


def test_forget_and_resolve_wake_waiters(postgres_url: str, unique_name: str) -> None:
    with ports(at(postgres_url, unique_name), 2) as (port, listener):
        run_sync(listener.changes(0.0))
        for name in ("forget", "resolve"):
            lease = 60 * SECOND if name == "forget" else 300_000
            taken(port, claim(name, lease=lease, doubt_on_lapse=True))
            assert one(port, claim(name, waiting=True)).kind == "in_progress"
            if name == "forget":
                assert run_sync(port.forget("s", name, DAY))
            else:
                until(lambda: run_sync(port.resolve("s", "resolve", Resolution(state="done", retention_us=DAY))))
            assert list(run_sync(listener.changes(2.0))) == [("s", name)]


# -- errors that name the remedy -----------------------------------------------------------------------------


def test_missing_tables_name_the_command(postgres_url: str, unique_name: str) -> None:
    port = at(postgres_url, unique_name).sync_port()
    for ask in (lambda: one(port, claim()), lambda: run_sync(port.check()), lambda: run_sync(port.stats())):
        with pytest.raises(SchemaMissing, match="effectonce migrate --store postgresql://"):
            ask()
    assert run_sync(port.now()) > 0, "the clock needs no tables"
    run_sync(port.migrate())
    assert one(port, claim()).kind == "claimed"
    run_sync(port.close())


@pytest.mark.parametrize(("version", "remedy"), [(99, "upgrade effectonce"), (0, "effectonce migrate")])
def test_tables_of_another_version_are_refused(postgres_url: str, unique_name: str, version: int, remedy: str) -> None:
    """F38."""
    backend = at(postgres_url, unique_name)
    with ports(backend):
        sql(postgres_url, f"UPDATE \"{unique_name}_meta\" SET value = %s WHERE name = 'schema'", version)
    port = backend.sync_port()
    for ask in (lambda: one(port, claim()), lambda: run_sync(port.check())):
        with pytest.raises(SchemaMismatch, match=remedy):
            ask()
    run_sync(port.close())


def test_settings_that_lose_commits_are_refused(postgres_url: str, unique_name: str) -> None:
    """Each refusal names what to change; `allow_unsafe` is the explicit word for "I know"."""
    with ports(at(postgres_url, unique_name)) as (port,):
        run_sync(port.check())
        early = at(postgres_url, unique_name, options="-c synchronous_commit=off")
        with ports(early) as (hasty,), pytest.raises(UnsafeStore, match="SET synchronous_commit = on"):
            run_sync(hasty.check())
        sql(postgres_url, f'ALTER TABLE "{unique_name}_records" SET UNLOGGED')
        with pytest.raises(UnsafeStore, match=f"SET LOGGED for {unique_name}_records"):
            run_sync(port.check())
        with ports(at(postgres_url, unique_name, allow_unsafe="true")) as (accepted,):
            run_sync(accepted.check())


def test_an_unlogged_partition_is_refused(postgres_url: str, unique_name: str) -> None:
    """Its parent is logged, and has nothing to lose."""
    backend = at(postgres_url, unique_name)
    partition(postgres_url, backend, unique_name)
    with ports(backend) as (port,):
        sql(postgres_url, f'ALTER TABLE "{unique_name}_p2" SET UNLOGGED')
        with pytest.raises(UnsafeStore, match=f"{unique_name}_p2\n"):
            run_sync(port.check())


def test_a_server_that_does_not_sync_is_refused(unique_name: str) -> None:
    """Some servers have their durability from elsewhere, so that there is a way past it."""
    with servers.postgres(durable=False) as server:
        with ports(at(server.url, unique_name)) as (port,), pytest.raises(UnsafeStore, match="set fsync=on"):
            run_sync(port.check())
        with ports(at(server.url, unique_name, allow_unsafe="true")) as (port,):
            run_sync(port.check())


def test_the_schema_script_is_plain_sql(postgres_url: str, unique_name: str) -> None:
    backend = at(postgres_url, unique_name)
    for _ in range(2):
        sql(postgres_url, backend.schema_sql())
    port = backend.sync_port()
    run_sync(port.check())
    assert one(port, claim()).kind == "claimed"
    run_sync(port.close())


def test_a_read_only_server_is_told_apart(postgres_url: str, unique_name: str) -> None:
    """F35: claims go to the primary only."""
    with ports(at(postgres_url, unique_name)):
        pass
    port = at(postgres_url, unique_name, options="-c default_transaction_read_only=on").sync_port()
    with pytest.raises(StoreUnavailable, match="target_session_attrs=read-write"):
        one(port, claim())
    run_sync(port.close())


@pytest.mark.parametrize("bad", ["a\0b", "\ud800"])
def test_a_key_that_text_cannot_hold_is_an_invalid_key(postgres_url: str, unique_name: str, bad: str) -> None:
    with ports(at(postgres_url, unique_name)) as (port,):
        for ask in (lambda: one(port, claim(bad)), lambda: run_sync(port.get("s", bad))):
            with pytest.raises(InvalidKey):
                ask()
        assert one(port, claim("good")).kind == "claimed"


def test_an_identity_too_long_for_the_index_is_too_long(postgres_url: str, unique_name: str) -> None:
    """F27: where a scope leaves no room for its keys."""
    with ports(at(postgres_url, unique_name)) as (port,):
        with pytest.raises(KeyTooLong):
            one(port, claim(os.urandom(4000).hex()))
        assert one(port, claim("good")).kind == "claimed"


@pytest.mark.parametrize(
    "query",
    [
        "prefix=a%22b",
        "prefix=a;b",
        "prefix=",
        "prefix=" + "x" * 42,
        "prepare=maybe",
        "timeout=soon",
        "replication=database",
        "client_encoding=LATIN1",
        "nope=1",
    ],
)
def test_a_bad_option_is_refused_before_anything_is_opened(query: str) -> None:
    """F61: table names come from an allow-list of characters."""
    with pytest.raises(InvalidOption):
        PostgresBackend(Address(f"postgresql://127.0.0.1:1/x?{query}"))


def test_no_message_contains_the_password(postgres_url: str, unique_name: str) -> None:
    """F66: with a canary in every error this store can be made to raise."""
    canary = "c4n4ry"
    parts = urlsplit(postgres_url)
    reachable = f"postgresql://postgres:{canary}@{parts.hostname}:{parts.port}{parts.path}"
    shown = []
    for url in (reachable, reachable + "_missing", f"postgresql://u:{canary}@127.0.0.1:1/x"):
        backend = at(url, unique_name, timeout="1s")
        shown.append(repr(backend))
        for ask in (Port.check, Port.stats):
            with pytest.raises(EffectOnceError) as caught:
                run_sync(getattr(backend.sync_port(), ask.__name__)())
            error: BaseException | None = caught.value
            while error is not None:
                shown += [str(error), repr(error)]
                error = error.__cause__ or error.__context__
    with pytest.raises(InvalidOption) as refused:
        PostgresBackend(Address(f"postgresql://u:{canary}@h/x?sslmode=sometimes&nope=1"))
    shown += [str(refused.value), repr(refused.value)]
    assert not [text for text in shown if canary in text]


# -- somebody else's pool ------------------------------------------------------------------------------------


@pytest.fixture
def pool(postgres_url: str) -> Iterator[ConnectionPool]:
    """Not in autocommit, serializable by default, three connections: as an application may have it."""
    options = "-c default_transaction_isolation=serializable"
    with ConnectionPool(postgres_url, min_size=3, max_size=3, kwargs={"options": options}) as pool:
        yield pool


POOLED = [
    case
    for case in store_cases()
    if "sync" in case.port_kinds
    and case.name.startswith(
        ("one_of_many", "a_claim", "a_settlement", "settle", "sweep", "every_key", "concurrent", "changes")
    )
]


@pytest.mark.parametrize("case", POOLED, ids=str)
def test_the_contract_on_a_pool(pool: ConnectionPool, case: Any, unique_name: str) -> None:
    case.run(PostgresPoolBackend(pool, prefix=unique_name), "sync")


def test_a_pools_connections_go_back_to_it(pool: ConnectionPool, unique_name: str) -> None:
    """After answers, clean refusals and breaks alike; and they are left as they were."""
    backend = PostgresPoolBackend(pool, prefix=unique_name)
    port = backend.sync_port()
    with pytest.raises(SchemaMissing):
        one(port, claim())
    run_sync(port.migrate())
    for n in range(8):
        taken(port, claim(f"k{n}"))
    with pytest.raises(KeyTooLong):
        one(port, claim(os.urandom(4000).hex()))
    with pool.connection() as connection:
        pids = [idle.pgconn.backend_pid for idle in pool._pool]
        connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::integer[]) AS t (pid)", (pids,))
        assert connection.execute("SHOW lock_timeout").fetchone() == ("0",)
        assert connection.execute("SHOW default_transaction_isolation").fetchone() == ("serializable",)
    worked = [still_works(port, f"after{n}") for n in range(6)]
    assert False in worked, "the broken connections were never met"
    assert worked[-1], "a broken connection was given back as a good one"
    run_sync(port.close())
    assert not pool.closed
    until(lambda: pool.get_stats()["pool_available"] == 3)


def still_works(port: Port, key: str) -> bool:
    try:
        return one(port, claim(key)).kind in ("claimed", "in_progress")
    except ConnectionLost:
        return False


async def test_an_async_pool_serves_async_calls_and_says_where_sync_ones_go(
    postgres_url: str, unique_name: str
) -> None:
    async with AsyncConnectionPool(postgres_url, min_size=2, open=False) as pool:
        backend = PostgresPoolBackend(pool, prefix=unique_name)
        first, second = backend.async_port(), backend.async_port()
        await first.migrate()
        (answer,) = await first.run([claim()])
        (other,) = await second.run([claim()])
        assert (answer.kind, other.kind) == ("claimed", "in_progress")
        assert len((await first.list(Query())).records) == 1
        heartbeat = backend.sync_port()
        assert one(heartbeat, claim()).kind == "in_progress"
        run_sync(heartbeat.close())
        await first.close()
        await second.close()


def test_a_pool_that_does_not_say_where_it_connects_serves_sync_or_async_only() -> None:
    with pytest.raises(SyncAsyncMismatch, match="URL"):
        PostgresPoolBackend(ConnectionPool(lambda: "host=elsewhere", open=False)).async_port()
    with pytest.raises(InvalidOption, match="is not a psycopg_pool"):
        PostgresPoolBackend(object())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("opened", ["before the store", "after the store", "in the child"])
def test_a_pool_opened_before_a_fork_is_refused_in_the_child(postgres_url: str, unique_name: str, opened: str) -> None:
    """Two processes on one socket read each other's answers."""
    with ports(at(postgres_url, unique_name)):
        pass
    pool = ConnectionPool(postgres_url, min_size=1, max_size=1, open=opened == "before the store")
    backend = PostgresPoolBackend(pool, prefix=unique_name)
    if opened == "after the store":
        pool.open(wait=True)
    child = os.fork()
    if child == 0:
        said = 3
        try:
            backend.after_fork()  # as the store's engine does
            if opened == "in the child":
                pool.open(wait=True)
            said = 0 if one(backend.sync_port(), claim()).kind == "claimed" else 1
        except ConfigurationError as error:
            said = 2 if "open the pool after the fork" in str(error) else 3
        finally:
            os._exit(said)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if opened == "in the child" else 2)
    if opened != "in the child":
        assert taken(backend.sync_port(), claim()) > 0, "the parent's own use is as before"
    pool.close()


def test_an_exhausted_pool_is_store_unavailable(pool: ConnectionPool, unique_name: str) -> None:
    port = PostgresPoolBackend(pool, prefix=unique_name, timeout=0.2).sync_port()
    held = [pool.getconn() for _ in range(3)]
    with pytest.raises(StoreUnavailable, match="pool"):
        run_sync(port.now())
    for connection in held:
        pool.putconn(connection)
    assert run_sync(port.now()) > 0


# -- lists and counts ----------------------------------------------------------------------------------------


def test_a_list_does_bounded_work_and_still_reaches_all(
    postgres_url: str, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claimed records have no index: a page that passed over too many others ends early, with a cursor."""
    monkeypatch.setattr("effectonce.backends.postgres.store.MAX_ROWS_PER_PAGE", 20)
    with ports(at(postgres_url, unique_name)) as (port,):
        batch = [claim(f"k{n:04}") for n in range(3000)]
        for start in range(0, 3000, 100):
            some = batch[start : start + 100]
            answers = run_sync(port.run(some))
            done = [settlement(c, a.token) for c, a in zip(some, answers, strict=True) if c.key != "k2345"]
            run_sync(port.run(done))
        cursor, pages, found = None, 0, []
        while True:
            page = run_sync(port.list(Query(state="claimed", limit=10, cursor=cursor)))
            pages, cursor = pages + 1, page.cursor
            found += [record.key for record in page.records]
            if cursor is None:
                break
        assert found == ["k2345"]
        assert 2 < pages < 50
        with pytest.raises(InvalidOption):
            run_sync(port.list(Query(cursor="made up")))


def test_counts_that_leave_records_out_say_so(
    postgres_url: str, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claimed and done have no index: records of a long retention hid every claim of a short one."""
    with ports(at(postgres_url, unique_name)) as (port,):
        for n in range(5):
            mine = claim(f"k{n}")
            if n:
                mine.retention_us = 9 * DAY
            token = taken(port, mine)
            if n:
                done = settlement(mine, token)
                done.retention_us = 9 * DAY
                assert one(port, done)
        stats = run_sync(port.stats())
        assert (stats.counts["claimed"], stats.counts["done"], stats.approximate) == (1, 4, ())
        monkeypatch.setattr("effectonce.backends.postgres.store.MAX_ROWS_PER_COUNT", 4)
        stats = run_sync(port.stats())
        assert (stats.counts["claimed"], stats.approximate) == (0, ("claimed", "done"))
        monkeypatch.setattr("effectonce.backends.postgres.store.MAX_COUNT", 3)
        assert run_sync(port.stats()).approximate == ("claimed",), "a count at the cap is what was promised"
