"""What the inbox refuses, and what it says."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from typing import Any

import pytest

import effectonce as eo
from effectonce.core.sql_files import inbox_schema
from tests.harness import servers
from tests.inbox.conftest import Shop, sqlite_file
from tests.inbox.kinds import Place


@pytest.mark.parametrize(
    "foreign", [None, 7, "postgresql://", object(), sqlite3, []], ids=lambda each: type(each).__name__
)
def test_a_foreign_object_is_no_connection(foreign: Any) -> None:
    with pytest.raises(
        eo.ConfigurationError, match=r"pass one of sqlite3\.Connection.*psycopg.*django\.db\.connection"
    ):
        eo.Inbox(scope="s").first(foreign, "k")


def test_a_cursor_or_an_engine_is_no_connection(sqlite_place: Place) -> None:
    from sqlalchemy import create_engine

    conn = sqlite3.connect(sqlite_place.path)
    for wrong in (conn.cursor(), create_engine("sqlite://")):
        with pytest.raises(eo.ConfigurationError, match="not a cursor, engine or pool"):
            eo.Inbox(scope="s").first(wrong, "k")  # type: ignore[arg-type, call-overload, unused-ignore]
    conn.close()


def test_a_subclass_of_a_connection_is_one(sqlite_place: Place, unique_name: str) -> None:
    class Mine(sqlite3.Connection):
        pass

    conn = sqlite3.connect(sqlite_place.path, factory=Mine)
    assert eo.Inbox(scope=unique_name).first(conn, "k")
    conn.close()


def test_no_driver_is_imported_but_the_one_that_came_in() -> None:
    code = (
        "import sys, sqlite3, effectonce as eo; c = sqlite3.connect(':memory:'); i = eo.Inbox(scope='s'); "
        "i.migrate(c); assert i.first(c, 'k'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    tops = {name.partition(".")[0] for name in done.stdout.split()}
    assert tops.isdisjoint({"psycopg", "asyncpg", "pymysql", "aiomysql", "sqlalchemy", "django", "aiosqlite"})


BAD_NAMES = [
    "",
    "a b",
    'a"',
    "a`",
    "a'",
    "a;DROP TABLE x",
    "a.b.c",
    ".a",
    "a.",
    "1a",
    "ä",
    "a\0",
    "a\n",
    "x" * 64,
    "a--",
    "{inbox}",
    "$1",
    "%s",
    None,
    7,
    b"a",
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_only_plain_names_are_names_of_tables_and_columns(name: Any) -> None:
    """F61: they go into statements as they are."""
    with pytest.raises(eo.InvalidOption, match="a table is named by"):
        eo.Inbox(scope="s", table=name)
    with pytest.raises(eo.InvalidOption, match="a table is named by"):
        eo.Inbox(scope="s").on_table(name, column="key")
    with pytest.raises(eo.InvalidOption, match="a column is named"):
        eo.Inbox(scope="s").on_table("payments", column=name)


def test_the_names_of_values_are_checked_as_well(sqlite_place: Place) -> None:
    conn = sqlite3.connect(sqlite_place.path)
    payments = eo.Inbox(scope="s").on_table("payments", column="idempotency_key")
    for name in ['amount" = 0; --', "payments.amount", ""]:
        with pytest.raises(eo.InvalidOption):
            payments.insert(conn, "k", {name: 1})
    with pytest.raises(eo.ConfigurationError, match="leave it out of the values"):
        payments.insert(conn, "k", {"idempotency_key": "other"})
    assert not conn.in_transaction
    conn.close()


def test_names_are_quoted_so_that_words_of_the_language_work(tmp_path: Any) -> None:
    conn = sqlite3.connect(tmp_path / "shop.db")
    inbox = eo.Inbox(scope="s", table="main.order")
    conn.execute('CREATE TABLE "group" ("select" TEXT UNIQUE, "from" INTEGER)')
    conn.executescript(inbox.schema_sql("sqlite"))
    assert inbox.first(conn, "k")
    assert inbox.on_table("group", column="select").insert(conn, "k", {"from": 1}).was_inserted
    conn.close()


def test_a_scope_is_asked_for() -> None:
    with pytest.raises(TypeError, match="scope"):
        eo.Inbox()  # type: ignore[call-arg]
    with pytest.raises(eo.ConfigurationError, match="GLOBAL"):
        eo.Inbox(scope="")
    assert eo.Inbox(scope=eo.GLOBAL).scope == "*"


@pytest.mark.parametrize(
    "options",
    [
        {"table": "x" * 48},
        {"retention": "soon"},
        {"retention": 0},
        {"fingerprint": "data"},
        {"fingerprint": True},
        {"private": "short"},
    ],
    ids=repr,
)
def test_options_are_checked_when_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(eo.ConfigurationError):
        eo.Inbox(scope="s", **options)


def test_two_scopes_never_hide_a_message_from_each_other(sqlite_place: Place, unique_name: str) -> None:
    """F24."""
    conn = sqlite3.connect(sqlite_place.path)
    assert all(eo.Inbox(scope=f"{unique_name}{each}").first(conn, "k") for each in ("", "-a", "-b"))
    conn.close()


def test_an_inbox_for_another_scope_shares_all_but_scope_and_retention(sqlite_place: Place, unique_name: str) -> None:
    conn = sqlite3.connect(sqlite_place.path)
    private = eo.Inbox(scope=unique_name, private="a secret of at least 16 bytes", fingerprint=False)
    other = private.for_scope(f"{unique_name}/other", 60_000_000)
    assert private.first(conn, "k")
    assert other.first(conn, "k"), "the scopes are apart"
    same_as_other = eo.Inbox(
        scope=f"{unique_name}/other", private="a secret of at least 16 bytes", retention="1m", fingerprint=False
    )
    message = eo.Message(data=1, key="k")
    assert not other.first(conn, message)
    assert same_as_other.key_for(message) == other.key_for(message)
    assert (private.scope, private.retention_us) == (unique_name, 15 * 86_400_000_000)
    with pytest.raises(eo.ConfigurationError):
        private.for_scope("", 60_000_000)
    conn.close()


def test_what_must_be_the_same_under_a_key_can_be_chosen(sqlite_place: Place, unique_name: str) -> None:
    conn = sqlite3.connect(sqlite_place.path)
    message = eo.Message(data={"amount": 1, "at": "now"}, key="k")
    later = eo.Message(data={"amount": 1, "at": "later"}, key="k")

    by_amount = eo.Inbox(scope=f"{unique_name}-amount", fingerprint=lambda message: message.data["amount"])
    assert by_amount.first(conn, message)
    assert not by_amount.first(conn, later)

    off = eo.Inbox(scope=f"{unique_name}-off", fingerprint=False)
    assert off.first(conn, message)
    assert not off.first(conn, eo.Message(data=2, key="k"))

    inbox = eo.Inbox(scope=unique_name)
    assert inbox.first(conn, "k", payload={"amount": 1})
    assert not inbox.first(conn, "k", payload={"amount": 1.0})
    assert not inbox.first(conn, "k")  # nothing to compare
    with pytest.raises(eo.PayloadMismatch):
        inbox.first(conn, "k", payload={"amount": 2})
    conn.close()


def test_a_batch_is_bounded(sqlite_place: Place, unique_name: str) -> None:
    conn = sqlite3.connect(sqlite_place.path)
    inbox = eo.Inbox(scope=unique_name)
    assert inbox.first_many(conn, range(1, 5001)) == [True] * 5000
    assert inbox.first_many(conn, range(1, 5001)) == [False] * 5000
    with pytest.raises(eo.InvalidOption, match="slices"):
        inbox.first_many(conn, range(1, 5002))
    conn.close()


async def test_a_key_of_ones_own_table_must_be_unique(shop: Shop) -> None:
    """Without it MySQL would insert every duplicate."""
    from effectonce.sessions import session_on

    with shop.place.connected() as run:
        run(f"CREATE TABLE {shop.scope} (k varchar(20), j varchar(20), UNIQUE (k, j))")
        conn: Any = opened(shop.place)
        with pytest.raises(eo.ConfigurationError, match="CREATE UNIQUE INDEX"):
            shop.inbox.on_table(shop.scope, column="k").insert(conn, "a", {"j": "b"})
        conn.rollback()
        with pytest.raises(eo.ConfigurationError):
            shop.inbox.on_table("not_there", column="k").insert(conn, "a", {})
        assert session_on(conn).dialect == shop.place.dialect
        conn.rollback()
        conn.close()
        assert run(f"SELECT * FROM {shop.scope}") == []
        run(f"DROP TABLE {shop.scope}")


async def test_another_constraint_is_raised_as_the_driver_raises_it(shop: Shop) -> None:
    conn: Any = opened(shop.place)
    payments = shop.inbox.on_table("payments", column="idempotency_key")
    with pytest.raises(Exception, match=r"(?i)null") as raised:
        payments.insert(conn, shop.scope, {"amount": None})
    assert not isinstance(raised.value, eo.EffectOnceError)
    conn.rollback()
    taken = payments.insert(conn, shop.scope, {"amount": 1})
    with pytest.raises(Exception, match=r"(?i)unique|duplicate") as raised:
        payments.insert(conn, f"{shop.scope}-2", {"amount": 1, "id": taken.row["id"]})
    assert not isinstance(raised.value, eo.EffectOnceError)
    conn.close()


def opened(place: Place) -> Any:
    """A plain sync connection in a transaction."""
    from tests.inbox.kinds import pymysql_conn, sqlite

    if place.dialect == "sqlite":
        return sqlite(place)
    if place.dialect == "mysql":
        return pymysql_conn(place)
    import psycopg

    return psycopg.connect(place.url)


# -- durability


def test_sqlite_that_may_lose_a_commit_is_refused(tmp_path: Any) -> None:
    place = sqlite_file(tmp_path)
    inbox = eo.Inbox(scope="s")
    conn = sqlite3.connect(place.path)
    inbox.check(conn)
    for pragma, found in {
        "synchronous = NORMAL": "journal_mode=wal and synchronous=1",
        "synchronous = OFF": "synchronous=0",
    }.items():
        conn.execute(f"PRAGMA {pragma}")
        with pytest.raises(eo.UnsafeStore, match=f"{found}.*PRAGMA synchronous = FULL"):
            inbox.check(conn)
    for mode in ("DELETE", "MEMORY"):
        conn.execute(f"PRAGMA journal_mode = {mode}")
        conn.execute("PRAGMA synchronous = NORMAL")
        if mode == "DELETE":
            inbox.check(conn)
        else:
            with pytest.raises(eo.UnsafeStore, match="half a transaction"):
                inbox.check(conn)
    conn.close()


def test_postgresql_that_may_lose_a_commit_is_refused(postgres_place: Place, unique_name: str) -> None:
    conn: Any = opened(postgres_place)
    inbox = eo.Inbox(scope="s", table=postgres_place.table)
    inbox.check(conn)
    conn.execute("SET LOCAL synchronous_commit = off")
    with pytest.raises(eo.UnsafeStore, match="ALTER ROLE"):
        inbox.check(conn)
    conn.execute("SET LOCAL synchronous_commit = local")
    inbox.check(conn)
    unlogged = eo.Inbox(scope="s", table=unique_name)
    conn.execute(f"CREATE UNLOGGED TABLE {unique_name} (k int)")
    with pytest.raises(eo.SchemaMissing, match=f"{unique_name}_starts; create it: effectonce migrate"):
        unlogged.check(conn)
    conn.execute(f"CREATE TABLE {unique_name}_starts (k int)")
    with pytest.raises(eo.UnsafeStore, match="SET LOGGED"):
        unlogged.check(conn)
    conn.execute("SELECT 1")  # and the transaction is still there
    conn.close()


def test_mysql_that_may_lose_a_commit_is_refused(own_mariadb: servers.MariaDB, unique_name: str) -> None:
    place = Place("mysql", own_mariadb.url, f"{unique_name}_inbox")
    inbox = eo.Inbox(scope="s", table=place.table)
    place.build(inbox.schema_sql(place.dialect))
    conn: Any = opened(place)
    inbox.check(conn)
    with place.connected() as run:
        try:
            run("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
            with pytest.raises(eo.UnsafeStore, match="innodb_flush_log_at_trx_commit = 1"):
                inbox.check(conn)
        finally:
            run("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        run(f"CREATE TABLE {unique_name} (k int) ENGINE = MyISAM")
        run(f"CREATE TABLE {unique_name}_starts (k int)")
        with pytest.raises(eo.UnsafeStore, match="ENGINE = InnoDB"):
            eo.Inbox(scope="s", table=unique_name).check(conn)
        conn.close()
        run(f"DROP TABLE {unique_name}, {unique_name}_starts")


def test_the_schema_is_there_for_those_who_migrate_by_themselves() -> None:
    inbox = eo.Inbox(scope="s", table="shop.inbox")
    assert 'CREATE TABLE IF NOT EXISTS "shop"."inbox" (' in inbox.schema_sql("postgresql")
    assert 'CREATE INDEX IF NOT EXISTS "inbox_expiry" ON "shop"."inbox"' in inbox.schema_sql("postgresql")
    assert "CREATE TABLE IF NOT EXISTS `shop`.`inbox_starts` (" in inbox.schema_sql("mysql")
    assert inbox.schema_sql("sqlite") == inbox_schema("sqlite", "shop.inbox")
    assert "{" not in inbox.schema_sql("sqlite") + inbox.schema_sql("mysql") + inbox.schema_sql("postgresql")
    with pytest.raises(eo.InvalidOption, match="is not a dialect"):
        inbox.schema_sql("oracle")  # type: ignore[arg-type]
