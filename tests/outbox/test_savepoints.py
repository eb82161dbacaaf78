"""Many messages take several statements, in a savepoint that is gone afterwards whatever happens."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

import effectonce as eo
from effectonce.core.sql_files import outbox_schema
from effectonce.outbox import outbox as module


@pytest.fixture
def conn(monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    monkeypatch.setattr(module, "_MAX_STATEMENT_ROWS", 2)
    conn = sqlite3.connect(":memory:", isolation_level=None)
    conn.executescript(outbox_schema("sqlite", "effectonce_outbox"))
    conn.execute("BEGIN")
    yield conn
    conn.close()


def savepoints(conn: sqlite3.Connection, count: int) -> list[str]:
    """Send ``count`` messages. Returns the statements about savepoints, each with its name left out."""
    statements: list[str] = []
    conn.set_trace_callback(statements.append)
    try:
        eo.Outbox(to="orders").send_many(conn, [eo.Message(data={}, id=f"m{n}") for n in range(count)])
    except sqlite3.Error:
        pass
    finally:
        conn.set_trace_callback(None)
    return [" ".join(words[:-1]) for words in map(str.split, statements) if "SAVEPOINT" in words]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_what_fits_into_one_statement_needs_none(conn: sqlite3.Connection, count: int) -> None:
    assert savepoints(conn, count) == []


def test_several_statements_have_one_that_is_released(conn: sqlite3.Connection) -> None:
    assert savepoints(conn, 5) == ["SAVEPOINT", "RELEASE SAVEPOINT"]
    assert conn.execute("SELECT count(*) FROM effectonce_outbox").fetchone() == (5,)


def test_where_one_of_them_fails_nothing_of_them_is_left_in_the_transaction(
    conn: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = module._params

    def second_fails(dialect: Any, rows: Any, delay_us: int) -> Any:
        written = params(dialect, rows, delay_us)
        return written[:-1] if rows[0].message_id == "m2" else written

    monkeypatch.setattr(module, "_params", second_fails)
    assert savepoints(conn, 5) == ["SAVEPOINT", "ROLLBACK TO SAVEPOINT", "RELEASE SAVEPOINT"]
    assert conn.execute("SELECT count(*) FROM effectonce_outbox").fetchone() == (0,)
    assert conn.in_transaction
