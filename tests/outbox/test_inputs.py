"""What the outbox refuses, and what it says."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.outbox.outbox import Outbox


@pytest.fixture
def conn(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    conn = sqlite3.connect(tmp_path / "shop.db")
    conn.executescript(Outbox(to="orders").schema_sql("sqlite"))
    yield conn
    conn.close()


def message(**fields: Any) -> eo.Message[Any]:
    return eo.Message(**{"data": {"amount": 4200}, **fields})


@pytest.mark.parametrize("name", ["", "a b", "-a", "ä", "a\n", "x" * 201, None, 7])
def test_only_names_that_every_broker_takes_are_queues(name: Any) -> None:
    with pytest.raises(eo.InvalidOption, match="is not a name for a queue"):
        Outbox(to=name)


@pytest.mark.parametrize("name", ["", 'a"', "a'; --", "a.b.c", "x" * 64, "{outbox}", "$1", None])
def test_only_plain_names_are_names_of_tables(name: Any) -> None:
    """F61: they go into statements as they are."""
    with pytest.raises((eo.InvalidOption, AttributeError)):
        Outbox(to="orders", table=name)


@pytest.mark.parametrize("size", [0, -1, 1.5, "1k", True])
def test_a_cap_is_a_number_of_bytes(size: Any) -> None:
    with pytest.raises(eo.InvalidOption, match="max_size"):
        Outbox(to="orders", max_size=size)


def test_a_dialect_is_one_of_three() -> None:
    with pytest.raises(eo.InvalidOption, match="sqlite, postgresql or mysql"):
        Outbox(to="orders").schema_sql("oracle")  # type: ignore[arg-type]


@pytest.mark.parametrize("foreign", [None, 7, "postgresql://", object(), []], ids=lambda each: type(each).__name__)
def test_a_foreign_object_is_no_connection(foreign: Any) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"pass one of sqlite3\.Connection"):
        Outbox(to="orders").send(foreign, message())


def test_a_closed_connection_says_so(conn: sqlite3.Connection) -> None:
    conn.close()
    with pytest.raises(eo.StoreUnavailable, match="closed"):
        Outbox(to="orders").send(conn, message())


def test_a_missing_table_names_the_command(conn: sqlite3.Connection) -> None:
    conn.execute("CREATE TABLE effects (name TEXT)")
    conn.execute("INSERT INTO effects VALUES ('kept')")
    with pytest.raises(eo.SchemaMissing, match="effectonce migrate"):
        Outbox(to="orders", table="nowhere").send(conn, message())
    conn.commit()
    assert conn.execute("SELECT name FROM effects").fetchall() == [("kept",)]


def test_a_table_may_name_its_schema_and_be_a_word_of_the_language(conn: sqlite3.Connection) -> None:
    outbox = Outbox(to="orders", table="main.order")
    conn.executescript(outbox.schema_sql("sqlite"))
    outbox.send(conn, message())
    assert conn.execute('SELECT count(*) FROM "order"').fetchone() == (1,)


@pytest.mark.parametrize("wrong", [None, {"amount": 1}, "text", b"bytes"])
def test_only_messages_are_sent(conn: sqlite3.Connection, wrong: Any) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"eo\.Message"):
        Outbox(to="orders").send(conn, wrong)


class Awkward:
    def model_dump(self, mode: str) -> Any:
        raise ZeroDivisionError("my own")


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"data": {1, object()}}, eo.ConfigurationError, "no JSON form"),
        ({"data": Awkward()}, eo.ConfigurationError, "my own"),
        ({"data": "\ud800"}, eo.ConfigurationError, "no JSON form"),
        ({"data": "x" * 300_000}, eo.PayloadTooLarge, "max_size"),
        ({"headers": {"a": "x" * 300_000}}, eo.PayloadTooLarge, "max_size"),
        ({"headers": {"a": 1}}, eo.ConfigurationError, "not strings"),
        ({"headers": {"a": "\ud800"}}, eo.ConfigurationError, "no JSON form"),
        ({"id": ""}, eo.InvalidKey, "needs an id"),
        ({"id": "a\0"}, eo.InvalidKey, "the id of"),
        ({"key": "\ud800"}, eo.InvalidKey, "the key of"),
        ({"ordering_key": 7}, eo.InvalidKey, "ordering_key"),
        ({"type": "x" * 5000}, eo.KeyTooLong, "type"),
        ({"trace_id": "\0"}, eo.InvalidKey, "trace_id"),
        ({"time": datetime(2024, 5, 1)}, eo.ConfigurationError, "time zone"),
    ],
)
def test_a_message_that_no_database_could_keep_is_refused_before_any_statement(
    conn: sqlite3.Connection, fields: dict[str, Any], error: type[Exception], says: str
) -> None:
    statements: list[str] = []
    conn.set_trace_callback(statements.append)
    with pytest.raises(error, match=says):
        Outbox(to="orders").send(conn, message(**fields))
    assert statements == []
    assert not conn.in_transaction


def test_several_messages_are_one_statement_and_large_ones_several(conn: sqlite3.Connection) -> None:
    statements: list[str] = []
    conn.set_trace_callback(lambda sql: statements.append(sql) if sql.startswith("INSERT") else None)
    outbox = Outbox(to="orders", max_size=2_000_000)
    outbox.send_many(conn, [message() for _ in range(500)])
    assert len(statements) == 1
    outbox.send_many(conn, [message(data="x" * 1_500_000) for _ in range(2)])
    assert len(statements) == 3


def test_of_more_than_five_hundred_messages_one_statement_has_five_hundred(conn: sqlite3.Connection) -> None:
    inserts: list[int] = []
    conn.set_trace_callback(lambda sql: inserts.append(sql.count("'{}'")) if sql.startswith("INSERT") else None)
    Outbox(to="orders").send_many(conn, [message() for _ in range(1001)])
    assert inserts == [500, 500, 1]


def test_data_and_headers_together_are_up_to_the_cap(conn: sqlite3.Connection) -> None:
    large = message(data="x" * 10, headers={"a": "b"})  # 12 bytes and 9
    Outbox(to="orders", max_size=21).send(conn, large)
    with pytest.raises(eo.PayloadTooLarge, match="has 21 bytes of data and headers, over the cap of 20"):
        Outbox(to="orders", max_size=20).send(conn, large)
    assert Outbox(to="orders").max_size == 256 * 1024


def test_a_text_of_a_message_has_up_to_4096_characters(conn: sqlite3.Connection) -> None:
    outbox = Outbox(to="orders")
    outbox.send(conn, message(id="x" * 4096))
    with pytest.raises(eo.KeyTooLong, match="the id of a message has 4097 characters; at most 4096"):
        outbox.send(conn, message(id="x" * 4097))


def test_no_driver_is_imported_but_the_one_that_came_in() -> None:
    code = (
        "import sys, sqlite3, effectonce as eo; c = sqlite3.connect(':memory:'); o = eo.Outbox(to='orders'); "
        "c.executescript(o.schema_sql('sqlite')); o.send(c, eo.Message(data=1)); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    tops = {name.partition(".")[0] for name in done.stdout.split()}
    assert tops.isdisjoint({"psycopg", "asyncpg", "pymysql", "aiomysql", "sqlalchemy", "django", "aiosqlite"})
