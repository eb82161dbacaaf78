"""`effectonce find`, in this process."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo

from .conftest import Cli

WORKER = """\
import sqlite3

import effectonce as eo

broker = eo.connect_broker("sqlite:///queue.db")
inbox = eo.Inbox(scope="stock", table="stock_inbox")
worker = eo.Worker(broker, inbox=inbox, connect=lambda: sqlite3.connect("shop.db"), name="stock")


@worker.handler("sales")
def sell(connection, message):
    pass
"""


@pytest.fixture
def cli(inline: Cli) -> Cli:
    """A shop with order 42 among its records, in its inbox and in its outbox."""
    with eo.connect("sqlite:///shop.db", sweep_every=None) as store:
        store.migrate()
        for key in ("ORDER-42", "ORDER-42:refund", "ORDER-421"):
            with eo.block(store, scope="charge", key=key) as block:
                assert block.first
    with closing(sqlite3.connect("shop.db", isolation_level=None)) as connection:
        connection.execute("BEGIN")
        eo.Inbox(scope="stock").first(connection, "ORDER-42")
        eo.Outbox(to="shipping").send(connection, eo.Message(data={}, key="ORDER-42", id="m-1", type="order.paid"))
        connection.commit()
    return inline


def matches(cli: Cli, *words: str) -> set[tuple[str, str, str]]:
    done = cli("find", *words, "--json")
    assert done.code == 0
    return {(match["kind"], match["scope"], match["key"]) for match in done.json["matches"]}


def test_one_search_finds_the_order_everywhere(cli: Cli) -> None:
    expected = {
        ("record", "charge", "ORDER-42"),
        ("record", "charge", "ORDER-42:refund"),
        ("inbox", "stock", "ORDER-42"),
        ("outbox", "shipping", "ORDER-42"),
    }
    assert matches(cli, "ORDER-42", "--store", "sqlite:///shop.db") == expected
    assert matches(cli, "ORDER-4*", "--store", "sqlite:///shop.db") == {*expected, ("record", "charge", "ORDER-421")}
    assert matches(cli, "m-1", "--store", "sqlite:///shop.db") >= {("record", "charge", "ORDER-42")}


def test_a_table_for_people(cli: Cli) -> None:
    done = cli("find", "ORDER-42", "--store", "sqlite:///shop.db")
    assert (done.code, done.err) == (0, "")
    for word in ("found", "where", "charge", "handled", "pending", "m-1"):
        assert word in done.out


def test_nothing_is_exit_code_1(cli: Cli) -> None:
    done = cli("find", "ORDER-99", "--store", "sqlite:///shop.db")
    assert (done.code, done.out) == (1, "nothing found for ORDER-99\n")
    empty = cli("find", " ", "--store", "sqlite:///shop.db")
    assert (empty.code, "[missing-key]" in empty.err) == (2, True)


def test_a_place_that_cannot_be_asked_is_named(cli: Cli) -> None:
    away = "postgresql://nobody:secret@127.0.0.1:1/shop?connect_timeout=1s"
    done = cli("find", "ORDER-42", "--store", "sqlite:///shop.db", "--outbox", away, "--inbox-table", "no_inbox")
    assert done.code == 0
    assert "ORDER-42:refund" in done.out
    lines = done.err.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["inbox", "outbox"]
    assert all("could not be searched" in line for line in lines)
    assert "secret" not in done.err


@pytest.mark.parametrize(
    "words",
    [
        ("--store", "sqlite:///shop.db", "--inbox", "memory://"),
        ("--store", "sqlite:///shop.db", "--outbox", "memory://"),
        ("--store", "memory://", "--inbox-table", "stock_inbox"),
        ("--store", "memory://", "--table", "mails"),
    ],
)
def test_a_store_that_cannot_hold_what_it_is_named_for_says_so(cli: Cli, words: tuple[str, ...]) -> None:
    place = "inbox" if "--inbox" in words or "--inbox-table" in words else "outbox"
    done = cli("find", "ORDER-42", *words)
    assert f"{place} (memory://): could not be searched: memory:// cannot hold an {place}; those in sqlite" in done.err


def test_a_worker_names_its_inbox_and_its_queues(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stock_worker.py").write_text(WORKER)
    with closing(sqlite3.connect("shop.db", isolation_level=None)) as connection:
        inbox = eo.Inbox(scope="sales/*/stock", table="stock_inbox")
        inbox.migrate(connection)
        connection.execute("BEGIN")
        inbox.first(connection, "ORDER-43")
        connection.commit()
    options = ("--store", "sqlite:///shop.db", "--worker", "stock_worker:worker", "--json")
    done: Any = cli("find", "ORDER-43", *options).json
    assert [(match["kind"], match["scope"]) for match in done["matches"]] == [("inbox", "sales/*/stock")]
    assert [place["place"] for place in done["places"]] == ["records", "inbox", "outbox", "dead letters"]
    assert [place["problem"] for place in done["places"]] == ["", "", "", ""]


def test_the_dead_letters_of_a_broker_need_a_queue(cli: Cli) -> None:
    with eo.connect_broker("sqlite:///queue.db") as broker:
        broker.declare("sales")
    options = ("--store", "sqlite:///shop.db", "--broker", "sqlite:///queue.db")
    assert "no queue is named" in cli("find", "ORDER-42", *options).err
    assert cli("find", "ORDER-42", *options, "--queue", "sales").err == ""
