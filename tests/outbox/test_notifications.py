"""``Outbox(notify=True)`` wakes a relay on PostgreSQL when the transaction is committed."""

from __future__ import annotations

import psycopg
import pytest

import effectonce as eo
from effectonce.outbox.outbox import _statement, notify_channel


@pytest.fixture
def database(empty_postgres: str) -> str:
    with eo.connect(empty_postgres, sweep_every=None) as store:
        store.migrate()
    return empty_postgres


@pytest.mark.parametrize("notify", [True, False])
def test_a_commit_notifies_those_who_listen_where_it_was_asked_for(database: str, notify: bool) -> None:
    outbox = eo.Outbox(to="orders", notify=notify)
    with psycopg.connect(database, autocommit=True) as listener, psycopg.connect(database) as conn:
        listener.execute(f'LISTEN "{notify_channel("effectonce_outbox")}"'.encode())
        outbox.send(conn, eo.Message(data={}, type="paid"))
        assert list(listener.notifies(timeout=0.05)) == [], "not before the commit"
        conn.commit()
        timeout = 20 if notify else 0.2
        assert len(list(listener.notifies(timeout=timeout, stop_after=1))) == notify
        assert conn.execute("SELECT count(*) FROM effectonce_outbox").fetchone() == (1,)


@pytest.mark.parametrize("dialect", ["sqlite", "mysql"])
def test_a_database_that_cannot_notify_is_sent_the_insert_alone(dialect: str) -> None:
    told, silent = (_statement(dialect, "effectonce_outbox", 1, notify, False) for notify in (True, False))  # type: ignore[arg-type]
    assert told == silent
