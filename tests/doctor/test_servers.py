"""Doctor on real servers: each finding is provoked there."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pymysql
import pytest
import redis

import effectonce as eo
from effectonce.doctor import Limits
from tests.conftest import skip_or_fail
from tests.harness import servers
from tests.harness.installed import Missing
from tests.harness.postgres_pair import PostgresPair, postgres_pair
from tests.harness.waiting import until

from .conftest import StoreOpener, findings_by_code, make_done_records

HOUR = 3_600_000_000


# -- PostgreSQL


def test_a_postgres_that_is_fine_has_no_findings(postgres_url: str, unique_name: str, open_store: StoreOpener) -> None:
    store = open_store(postgres_url, prefix=unique_name)
    store.migrate()
    make_done_records(store, "a")
    store.purge()
    assert findings_by_code(store) == {}


def test_missing_tables_are_the_only_finding(postgres_url: str, unique_name: str, open_store: StoreOpener) -> None:
    findings = findings_by_code(open_store(postgres_url, prefix=unique_name))
    assert list(findings) == ["schema-missing"]
    assert findings["schema-missing"].severity == "error"
    assert "effectonce migrate --store 'postgresql://" in findings["schema-missing"].run


def test_a_missing_outbox(postgres_url: str, unique_name: str, open_store: StoreOpener) -> None:
    store = open_store(postgres_url, prefix=unique_name)
    store.migrate()
    assert findings_by_code(store, outbox=f"{unique_name}_elsewhere")["schema-missing"].severity == "error"


def test_tables_of_another_version(postgres_url: str, unique_name: str, open_store: StoreOpener) -> None:
    """F38"""
    open_store(postgres_url, prefix=unique_name).migrate()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"UPDATE \"{unique_name}_meta\" SET value = 99 WHERE name = 'schema'")
    findings = findings_by_code(open_store(postgres_url, prefix=unique_name))
    assert list(findings) == ["schema-mismatch"]
    assert "99" in findings["schema-mismatch"].what


def test_a_postgres_without_synchronous_commits(postgres_url: str, unique_name: str, open_store: StoreOpener) -> None:
    open_store(postgres_url, prefix=unique_name).migrate()
    hasty = open_store(postgres_url, prefix=unique_name, options=quote("-c synchronous_commit=off"))
    findings = findings_by_code(hasty)
    assert list(findings) == ["unsafe-store"]
    assert "synchronous_commit = on" in findings["unsafe-store"].what


def test_f85_a_standby_that_commits_do_not_wait_for(open_store: StoreOpener) -> None:
    with started_pair(synchronous=False) as pair:
        store = open_store(pair.primary.url)
        store.migrate()
        finding = findings_by_code(store)["asynchronous-standby"]
        assert (finding.severity, finding.what) == ("warning", "standbys follow (1), and commits wait for none")
        assert "synchronous_standby_names" in finding.run


def test_f85_a_standby_that_commits_wait_for(open_store: StoreOpener) -> None:
    with started_pair(synchronous=True) as pair:
        store = open_store(pair.primary.url)
        store.migrate()
        assert findings_by_code(store) == {}
        pair.primary.query("ALTER SYSTEM SET synchronous_commit = 'local'")
        pair.primary.query("SELECT pg_reload_conf()")
        local = until(lambda: findings_by_code(open_store(pair.primary.url)).get("asynchronous-standby"))
        assert local.what == "commits wait for no standby: synchronous_commit=local"


def started_pair(*, synchronous: bool) -> PostgresPair:
    try:
        return postgres_pair(synchronous=synchronous)
    except Missing as missing:
        skip_or_fail(str(missing))


def test_an_old_transaction_that_holds_vacuum_back(
    postgres_url: str, unique_name: str, open_store: StoreOpener
) -> None:
    store = open_store(postgres_url, prefix=unique_name)
    store.migrate()
    with psycopg.connect(postgres_url) as idle:
        idle.execute("SELECT txid_current()")
        pid = idle.info.backend_pid
        findings = findings_by_code(store, limits=Limits(transaction=0.0))
        assert f"pid {pid}" in findings["long-transaction"].what
        assert "idle in transaction" in findings["long-transaction"].what
        assert "long-transaction" not in findings_by_code(store), "a minute is not a finding"
    assert "long-transaction" not in findings_by_code(store, limits=Limits(transaction=0.0))


def test_dead_rows(postgres_url: str, unique_name: str, open_store: StoreOpener) -> None:
    store = open_store(postgres_url, prefix=unique_name)
    store.migrate()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        run(admin, f'ALTER TABLE "{unique_name}_records" SET (autovacuum_enabled = off)')
        run(
            admin,
            f'INSERT INTO "{unique_name}_records" (scope, key, state, token, attempts, generation, created_at,'
            "changed_at, expires_at, expires_minute, doubt_on_lapse, owner) SELECT 's', g::text, 'done', 1, 1, 0, 1, 1,"
            f" {2**60}, {2**60 // 60_000_000}, false, '' FROM generate_series(1, 400) AS g",
        )
        run(admin, f"DELETE FROM \"{unique_name}_records\" WHERE key <> '1'")
        run(admin, f'ANALYZE "{unique_name}_records"')
    store.purge()
    few = findings_by_code(store, limits=Limits(dead_rows=300))
    assert "399 dead rows" in few["dead-rows"].what
    assert "dead-rows" not in findings_by_code(store), "few are not a finding, whatever their share"


def test_f37_a_sweeper_that_has_stopped_and_its_backlog(
    postgres_url: str, unique_name: str, open_store: StoreOpener
) -> None:
    store = open_store(postgres_url, prefix=unique_name)
    store.migrate()
    make_done_records(store, "a", "b")
    assert findings_by_code(store) == {}, "it is new, and its first sweep is not due"
    assert "never" in findings_by_code(store, limits=Limits(unswept=0.001))["sweeper-stale"].what
    store.purge()
    assert findings_by_code(store) == {}
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        run(admin, f"UPDATE \"{unique_name}_meta\" SET value = value - {2 * HOUR} WHERE name = 'swept_at'")
        assert "2 h ago" in findings_by_code(store)["sweeper-stale"].what
        run(
            admin,
            f'UPDATE "{unique_name}_records" SET expires_at = {store.now() - 2 * HOUR}, '
            f"expires_minute = {(store.now() - 2 * HOUR) // 60_000_000}",
        )
    findings = findings_by_code(store)
    assert "2 expired records" in findings["overdue-records"].what
    assert "effectonce records purge" in findings["overdue-records"].run
    store.purge()
    assert findings_by_code(store) == {}


def test_autovacuum_that_is_off(postgres_url: str, unique_name: str, open_store: StoreOpener) -> None:
    store = open_store(postgres_url, prefix=unique_name)
    store.migrate()
    with psycopg.connect(postgres_url, autocommit=True) as admin:

        def switch(word: str) -> None:
            run(admin, f"ALTER SYSTEM SET autovacuum = {word}")
            run(admin, "SELECT pg_reload_conf()")
            until(lambda: admin.execute("SHOW autovacuum").fetchone() == (word,))

        switch("off")
        try:
            until(lambda: "autovacuum-off" in findings_by_code(store))
        finally:
            switch("on")
        until(lambda: "autovacuum-off" not in findings_by_code(store))


def run(connection: psycopg.Connection[Any], sql: str) -> None:
    connection.execute(sql)


# -- MariaDB


@contextlib.contextmanager
def admin(url: str) -> Iterator[Any]:
    at = urlsplit(url)
    with pymysql.connect(
        host=at.hostname or "", port=at.port or 3306, user="root", database=at.path[1:], autocommit=True
    ) as connection:
        yield connection.cursor()


def test_mariadb(mariadb_url: str, unique_name: str, open_store: StoreOpener) -> None:
    """Fine; then with an old transaction, with a lapsed backlog, and with commits that may be lost (F37)."""
    store = open_store(mariadb_url, prefix=unique_name)
    store.migrate()
    make_done_records(store, "a", "b")
    store.purge()
    assert findings_by_code(store) == {}
    with admin(mariadb_url) as idle:
        idle.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        idle.execute(f"SELECT * FROM {unique_name}_records")
        deadline = time.monotonic() + 20  # InnoDB repeats its last answer until it was not asked for 100 ms
        while "long-transaction" not in (findings := findings_by_code(store, limits=Limits(transaction=0.0))):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert f"thread {idle.connection.thread_id()}" in findings["long-transaction"].what
        assert "long-transaction" not in findings_by_code(store)
    with admin(mariadb_url) as cursor:
        cursor.execute(f"UPDATE {unique_name}_records SET expires_at = {store.now() - 2 * HOUR}")
        assert "2 expired records" in findings_by_code(store)["overdue-records"].what
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        try:
            assert "innodb_flush_log_at_trx_commit" in findings_by_code(store)["unsafe-store"].what
        finally:
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    store.purge()
    assert findings_by_code(store) == {}


def test_mariadb_without_the_privilege_to_see_transactions(
    mariadb_url: str, unique_name: str, open_store: StoreOpener
) -> None:
    store = open_store(mariadb_url, prefix=unique_name)
    store.migrate()
    store.purge()
    user = unique_name[:30]
    with admin(mariadb_url) as cursor:
        cursor.execute(f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'secret'")
        cursor.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {urlsplit(mariadb_url).path[1:]}.* TO {user}@'127.0.0.1'"
        )
        try:
            plain = open_store(re.sub("//[^@]*@", f"//{user}:secret@", mariadb_url), prefix=unique_name)
            assert findings_by_code(plain, limits=Limits(transaction=0.0)) == {}
        finally:
            plain.close()
            cursor.execute(f"DROP USER {user}@'127.0.0.1'")


# -- Redis


def test_a_client_of_the_caller_is_examined_as_well(own_redis: servers.Redis, unique_name: str) -> None:
    with redis.Redis.from_url(own_redis.url) as client:
        store = eo.RedisStore(client=client, namespace=unique_name, sweep_every=None)
        assert findings_by_code(store) == {}
        own_redis.execute("CONFIG", "SET", "appendonly", "no")
        try:
            assert list(findings_by_code(store)) == ["persistence"]
        finally:
            own_redis.execute("CONFIG", "SET", "appendonly", "yes")
        store.close()


@pytest.mark.parametrize(
    ("setting", "value", "code", "says"),
    [
        ("maxmemory-policy", "allkeys-lru", "unsafe-store", "allkeys-lru"),
        ("appendonly", "no", "persistence", "nothing on disk"),
        ("maxmemory", "{nearly}", "memory", "MB (9"),
    ],
)
def test_a_redis_that_may_lose_records(
    own_redis: servers.Redis, unique_name: str, open_store: StoreOpener, setting: str, value: str, code: str, says: str
) -> None:
    """F29"""
    store = open_store(own_redis.url, namespace=unique_name)
    store.purge()
    assert findings_by_code(store) == {}
    before = own_redis.execute("CONFIG", "GET", setting)[setting]
    nearly = int(own_redis.execute("INFO", "memory")["used_memory"] * 1.07)
    own_redis.execute("CONFIG", "SET", setting, value.format(nearly=nearly))
    try:
        findings = findings_by_code(store)
    finally:
        own_redis.execute("CONFIG", "SET", setting, before)
    assert says in findings[code].what
    assert list(findings) == [code]


def test_a_redis_with_snapshots_only(own_redis: servers.Redis, unique_name: str, open_store: StoreOpener) -> None:
    own_redis.execute("CONFIG", "SET", "appendonly", "no")
    own_redis.execute("CONFIG", "SET", "save", "3600 1")
    try:
        findings = findings_by_code(open_store(own_redis.url, namespace=unique_name))
    finally:
        own_redis.execute("CONFIG", "SET", "save", "")
        own_redis.execute("CONFIG", "SET", "appendonly", "yes")
    assert "snapshots only" in findings["persistence"].what


def test_f85_a_redis_that_does_not_wait_for_its_replica(own_redis: servers.Redis, open_store: StoreOpener) -> None:
    with servers.redis("--replicaof", f"127.0.0.1 {own_redis.port}") as replica:
        until(lambda: replica.execute("INFO", "replication")["master_link_status"] == "up")
        findings = findings_by_code(open_store(own_redis.url))
        assert findings["asynchronous-replica"].severity == "note"
        assert findings["asynchronous-replica"].what == "replicas follow (1), and writes go on without them"
        own_redis.execute("CONFIG", "SET", "min-replicas-to-write", 1)
        try:
            assert "asynchronous-replica" not in findings_by_code(open_store(own_redis.url))
        finally:
            own_redis.execute("CONFIG", "SET", "min-replicas-to-write", 0)
    until(lambda: own_redis.execute("INFO", "replication")["connected_slaves"] == 0)


def test_a_redis_that_is_away_is_one_finding(open_store: StoreOpener) -> None:
    findings = findings_by_code(open_store("redis://:s3cret-canary@127.0.0.1:1"))
    assert list(findings) == ["store-unavailable"]
    assert "s3cret-canary" not in repr(findings)
