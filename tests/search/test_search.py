"""One search finds an order in every place, and each place answers for itself."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

import effectonce as eo
from effectonce.backends.sqlite import record_reader
from effectonce.errors import InvalidKey, MissingKey
from effectonce.search import messages, records
from effectonce.search.matches import PlaceResult
from effectonce.search.search import NO_QUEUES, SearchPlaces, search


class Shop:
    """A shop whose order 42 is in every place: done, called, fulfilled, handled, on its way out, and given up."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        self.store = eo.connect(f"sqlite:///{self.path}", sweep_every=None)
        self.store.migrate()
        self.broker = eo.connect_broker(f"sqlite:///{folder / 'queue.db'}")
        self.worker = eo.Worker(self.broker, store=self.store, name="billing")

        @self.worker.handler("orders", retry=eo.Retry(1))
        def fail(message: eo.Message[Any]) -> None:
            raise ConnectionError("the ledger did not answer")

    def live(self) -> None:
        self.charge("ORDER-42")
        self.charge("ORDER-42:refund")
        self.charge("ORDER-421")
        intents = eo.Intents(self.store, scope="mail")

        @intents.operation("ses", "receipt", without_key="at-most-once", returns=dict[str, Any])
        def receipt(intent: eo.Intent[dict[str, Any]]) -> Any:
            return {"sent": True}

        receipt({"to": "ann@example.org"}, key="ORDER-42")
        receipt({"to": "bob@example.org"}, key=("ORDER-42", "copy"), account="archive")
        saga = eo.Saga("fulfil", self.store, input=dict[str, Any])

        @saga.step()
        def ship(order: dict[str, Any]) -> str:
            return "parcel 7"

        saga.run("ORDER-42", {})
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            eo.Inbox(scope="stock").first(connection, "ORDER-42")
            message = eo.Message(type="order.paid", data={}, key="ORDER-42", id="m-out", ordering_key="customer-7")
            eo.Outbox(to="shipping").send(connection, message)
            connection.commit()
        asyncio.run(self._give_up(eo.Message(data={}, key="ORDER-42", id="m-dead")))

    def charge(self, key: str) -> None:
        with eo.block(self.store, scope="charge", key=key) as block:
            assert block.first

    async def _give_up(self, message: eo.Message[Any]) -> None:
        await self.broker.apublish("orders", [message])
        serving = asyncio.create_task(self.worker.serve())
        queue = eo.DeadLetterQueue(self.worker, "orders")
        while await queue.acount() < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        self.worker.stop()
        await serving
        await self.broker.aclose()
        await self.store.aclose()

    def places(self) -> SearchPlaces:
        queues = {"billing/orders": eo.DeadLetterQueue(self.worker, "orders")}
        return SearchPlaces(self.store, inbox=self.store, outbox=self.store, queues=queues)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchPlaces]:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    thread = threading.Thread(target=shop.live)
    thread.start()
    thread.join()
    yield shop.places()
    shop.broker.close()
    shop.store.close()


def found(answers: Sequence[PlaceResult]) -> set[tuple[str, str, str]]:
    return {(match.kind, match.scope, match.key) for answer in answers for match in answer.matches}


ORDER_42 = {
    ("record", "charge", "ORDER-42"),
    ("record", "charge", "ORDER-42:refund"),
    ("record", "orders/*/billing", "ORDER-42"),
    ("intent", "intents/mail/ses/receipt", "ORDER-42"),
    ("intent", "intents/mail/ses/receipt", "ORDER-42:copy"),
    ("saga", "saga/fulfil", "ORDER-42"),
    ("inbox", "stock", "ORDER-42"),
    ("outbox", "shipping", "ORDER-42"),
    ("dead letter", "billing/orders", "ORDER-42"),
}


def test_an_order_is_found_in_every_place(places: SearchPlaces) -> None:
    answers = search("ORDER-42", places)
    assert found(answers) == ORDER_42
    assert [(answer.place, answer.problem, answer.gap) for answer in answers] == [
        ("records", "", ""),
        ("inbox", "", ""),
        ("outbox", "", ""),
        ("dead letters", "", ""),
    ]
    states = {match.kind: match.state for answer in answers for match in answer.matches}
    assert (states["saga"], states["inbox"], states["outbox"]) == ("done", "handled", "pending")
    assert states["dead letter"] == "attempts-exhausted"


def test_a_message_id_leads_to_the_key_and_so_to_the_records(places: SearchPlaces) -> None:
    for message_id, kind in (("m-out", "outbox"), ("m-dead", "dead letter")):
        answers = search(message_id, places)
        (by_id,) = [match for answer in answers for match in answer.matches if match.by == "message id"]
        assert (by_id.kind, by_id.message_id) == (kind, message_id)
        assert found(answers) >= {("record", "charge", "ORDER-42"), ("inbox", "stock", "ORDER-42")}


def test_a_record_tells_the_error_of_its_last_attempt() -> None:
    store = eo.connect("memory://")
    for _ in range(2):
        with pytest.raises(KeyError), eo.block(store, scope="charge", key="ORDER-9"):
            raise KeyError("currency")
    (match,) = [match for answer in search("ORDER-9", SearchPlaces(store)) for match in answer.matches]
    assert (match.state, match.detail) == ("released", "2 attempts; KeyError: 'currency'")


def test_an_ordering_key_and_a_prefix_are_found(places: SearchPlaces) -> None:
    assert found(search("customer-7", places)) == {("outbox", "shipping", "ORDER-42")}
    assert found(search(" ORDER-4* ", places)) == ORDER_42 | {("record", "charge", "ORDER-421")}
    assert found(search("ORDER", places)) == set()


def test_each_place_returns_a_bounded_number(places: SearchPlaces) -> None:
    for answer in search("ORDER-42", places, limit=1):
        assert len(answer.matches) == 1
        assert "there may be more than these 1" in answer.gap


@pytest.mark.parametrize(("text", "error"), [("", MissingKey), (" * ", MissingKey), ("a\0b", InvalidKey)])
def test_what_no_key_can_be_is_refused(places: SearchPlaces, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        search(text, places)


def test_a_walk_that_ends_early_says_so(places: SearchPlaces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_DEAD_LETTERS", 1)
    monkeypatch.setattr(messages, "MAX_OUTBOX_ROWS", 0)
    monkeypatch.setattr(records, "MAX_SCOPES", 1)
    gaps = {answer.place: answer.gap for answer in search("ORDER-42", places)}
    assert "only the first 1 scopes" in gaps["records"]
    assert "only the 0 newest messages" in gaps["outbox"]
    assert "only the 1 oldest dead letters" in gaps["dead letters"]


def test_expired_records_that_wait_for_a_sweep_hide_no_key(tmp_path: Path) -> None:
    with eo.connect(f"sqlite:///{tmp_path / 'shop.db'}", sweep_every=None) as store:
        for number in range(30):
            with eo.block(store, scope="charge", key=f"ORDER-42:{number:02}", retention="1ms") as block:
                assert block.first
        with eo.block(store, scope="charge", key="ORDER-42:99") as block:
            assert block.first
        time.sleep(0.01)
        (answer,) = search("ORDER-42", SearchPlaces(store))
        assert [match.key for match in answer.matches] == ["ORDER-42:99"]


def test_a_backlog_of_expired_records_hides_no_key_and_a_long_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of a store may be empty and have a cursor: it reads a bounded number of expired records."""
    with eo.connect(f"sqlite:///{tmp_path / 'shop.db'}", sweep_every=None) as store:
        for number in range(30):
            with eo.block(store, scope="charge", key=f"ORDER-42:{number:02}", retention="1ms") as block:
                assert block.first
        with eo.block(store, scope="charge", key="ORDER-42:99") as block:
            assert block.first
        time.sleep(0.01)
        monkeypatch.setattr(record_reader, "MAX_PAGE_VISITS", 10)
        (answer,) = search("ORDER-42", SearchPlaces(store))
        assert ([match.key for match in answer.matches], answer.gap) == (["ORDER-42:99"], "")
        monkeypatch.setattr(record_reader, "MAX_PAGE_VISITS", 2)
        (answer,) = search("ORDER-42", SearchPlaces(store, scopes=["charge"]))
        assert answer.matches == []
        assert "only the first 0 scopes were searched; expired records" in answer.gap
        assert "not all of charge was searched; expired records" in answer.gap


# -- places that cannot answer


def test_a_server_that_is_away_hides_no_other_place(places: SearchPlaces) -> None:
    away = eo.connect("postgresql://nobody@127.0.0.1:1/shop?connect_timeout=1s", sweep_every=None)
    answers = {answer.place: answer for answer in search("ORDER-42", replace(places, store=away, outbox=away))}
    assert "127.0.0.1" in answers["records"].problem
    assert answers["outbox"].problem
    assert answers["inbox"].matches
    assert answers["dead letters"].matches


def test_a_missing_table_is_named(places: SearchPlaces) -> None:
    answers = {answer.place: answer for answer in search("ORDER-42", replace(places, inbox_table="no_inbox"))}
    assert "no_inbox" in answers["inbox"].problem
    assert answers["records"].matches


def test_a_place_that_hangs_is_not_waited_for(places: SearchPlaces) -> None:
    released = threading.Event()

    class Hanging(eo.DeadLetterQueue):
        def list(self, **options: Any) -> Any:
            released.wait(10)
            return []

    hanging = Hanging(eo.connect_broker("memory://"), "orders", group="billing")
    try:
        answers = {
            answer.place: answer for answer in search("ORDER-42", replace(places, queues={"q": hanging}), timeout=0.5)
        }
        assert "not answered within 0.5 s" in answers["dead letters"].problem
        assert answers["records"].matches
    finally:
        released.set()


def test_a_place_that_hangs_takes_no_time_from_the_search_for_the_keys_of_messages(places: SearchPlaces) -> None:
    """A message id leads to a key, which is searched for after the first answers."""
    released = threading.Event()

    class Hanging(eo.DeadLetterQueue):
        def list(self, **options: Any) -> Any:
            released.wait(20)
            return []

    hanging = Hanging(eo.connect_broker("memory://"), "orders", group="billing")
    try:
        answers = search("m-out", replace(places, queues={"q": hanging}), timeout=1)
    finally:
        released.set()
    assert [answer.place for answer in answers if answer.problem] == ["dead letters"]
    assert found(answers) >= {("record", "charge", "ORDER-42"), ("inbox", "stock", "ORDER-42")}


def test_a_broker_without_a_named_queue_is_told(places: SearchPlaces) -> None:
    answer = search("ORDER-42", replace(places, queues={}, no_queues=NO_QUEUES))[-1]
    assert (answer.place, answer.problem) == ("dead letters", NO_QUEUES)


# -- stores that differ


def own_store(request: pytest.FixtureRequest, server: str, name: str) -> str:
    """The URL of a store on ``server`` that no other test has."""
    if server == "memory":
        return "memory://"
    url: str = request.getfixturevalue(server)
    if server == "dynamodb_url":
        return url.replace("dynamodb://effectonce", f"dynamodb://{name}")
    return f"{url}{'&' if '?' in url else '?'}{'namespace' if server == 'redis_url' else 'prefix'}={name}"


@pytest.mark.parametrize("server", ["postgres_url", "mariadb_url", "redis_url", "dynamodb_url", "memory"])
def test_every_store_finds_a_key_in_scopes_that_nobody_named(
    request: pytest.FixtureRequest, server: str, unique_name: str
) -> None:
    with eo.connect(own_store(request, server, unique_name[-20:]), sweep_every=None) as store:
        store.migrate()
        for scope in ("charge", "mail"):
            for key in ("ORDER-42", "ORDER-42:refund", "ORDER-421"):
                with eo.block(store, scope=scope, key=key) as block:
                    assert block.first
        (answer,) = search("ORDER-42", SearchPlaces(store))
        assert (answer.problem, answer.gap) == ("", "")
        assert {(match.scope, match.key) for match in answer.matches} == {
            (scope, key) for scope in ("charge", "mail") for key in ("ORDER-42", "ORDER-42:refund")
        }


def test_a_store_without_an_order_of_keys_says_what_it_did_not_read(
    redis_url: str, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_LISTED_RECORDS", 2)
    monkeypatch.setattr(records, "PAGE_SIZE", 1)
    with eo.connect(f"{redis_url}{'&' if '?' in redis_url else '?'}namespace={unique_name[-20:]}") as store:
        for number in range(200):
            with eo.block(store, scope="other", key=f"pay-{number}") as block:
                assert block.first
        with eo.block(store, scope="charge", key="ORDER-42") as block:
            assert block.first
        (answer,) = search("ORDER-42", SearchPlaces(store, scopes=["charge"]))
        assert found([answer]) == {("record", "charge", "ORDER-42")}
        assert "redis keeps keys in no order" in answer.gap


def test_a_private_store_is_searched_by_its_secret(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'private.db'}"
    with eo.connect(url, private="a secret of sixteen bytes", sweep_every=None) as store:
        with eo.block(store, scope="charge", key="ORDER-42") as block:
            assert block.first
        (known,) = search("ORDER-42", SearchPlaces(eo.connect(url), privacy=store.runtime.privacy))
        assert [(match.scope, match.state) for match in known.matches] == [("charge", "done")]
        assert known.matches[0].key != "ORDER-42"
        assert known.gap == ""
        (unknown,) = search("ORDER-42", SearchPlaces(eo.connect(url)))
        assert (unknown.matches, unknown.gap) == ([], records.HIDDEN_KEYS)


def test_a_private_inbox_says_that_it_was_not_searched(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'private.db'}"
    inbox = eo.Inbox(scope="billing", private="a secret of sixteen bytes")
    with eo.connect(url, sweep_every=None) as store, closing(sqlite3.connect(tmp_path / "private.db")) as connection:
        store.migrate()
        with connection:
            assert inbox.first(connection, "ORDER-42")
        answers = search("ORDER-42", SearchPlaces(store, inbox=store))
    assert [answer.gap for answer in answers if answer.place == "inbox"] == [messages.HIDDEN_INBOX_KEYS]


# -- at scale


def test_a_search_reads_few_rows_of_large_tables(postgres_url: str, unique_name: str) -> None:
    """PostgreSQL's own counters, with 100,000 records and as many rows in the inbox: no scan, and few rows by index."""
    prefix = unique_name[-20:]
    with eo.connect(f"{postgres_url}{'&' if '?' in postgres_url else '?'}prefix={prefix}", sweep_every=None) as store:
        store.migrate()
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            numbers = "FROM generate_series(1, 100000) n"
            connection.execute(
                f"INSERT INTO {prefix}_records (scope, key, state, token, attempts, generation, created_at, "
                "changed_at, doubt_on_lapse, owner, expires_at) "
                "SELECT 'scope ' || n % 7, 'ORDER-' || n, 'done', n, 1, 0, n, n, "
                f"false, '', {2**62} {numbers}".encode()
            )
            connection.execute(
                f"INSERT INTO {prefix}_inbox (scope, key, created_at, expires_at) "
                f"SELECT 'scope ' || n % 7, 'ORDER-' || n, n, {2**62} + n {numbers}".encode()
            )
            connection.execute(f"ANALYZE {prefix}_records, {prefix}_inbox".encode())
        for text in ("ORDER-4242", "ORDER-4242*"):
            answers = search(text, SearchPlaces(store, inbox=store))
            assert {answer.place for answer in answers if answer.matches} == {"records", "inbox"}
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for table in ("records", "inbox"):
            scanned, by_index = _tuples_read(connection, f"{prefix}_{table}")
            assert scanned == 0, table
            assert 0 < by_index < 2000, table
            connection.execute(f"DROP TABLE {prefix}_{table}".encode())


def _tuples_read(connection: Any, table: str) -> tuple[int, int]:
    """How many rows of ``table`` were read by scans, and by its indexes. It is counted when a session ends."""
    for _ in range(100):
        ((scanned, by_index),) = connection.execute(
            "SELECT seq_tup_read, (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes i WHERE i.relid = t.relid) "
            "FROM pg_stat_user_tables t WHERE relname = %s",
            (table,),
        )
        if by_index:
            break
        time.sleep(0.1)
    return int(scanned), int(by_index)
