"""The completion of an intent joins the caller's own transaction: it is done with the business rows, or not at all."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psycopg
import pymysql
import pytest

import effectonce as eo
from effectonce.intents.claimed_intent import ClaimedIntent
from effectonce.intents.intents import Intents
from effectonce.providers import Verdict

pytestmark = pytest.mark.quick_on("postgresql")

Connect = Callable[[], Any]


class Shop:
    """One database with a table of orders, and intents in it."""

    def __init__(self, url: str, connect: Connect, prefix: str) -> None:
        self.store = eo.connect(url, sweep_every=None)
        self.store.migrate()
        self.connect = connect
        self.orders = f"{prefix}_orders"
        self.sent: list[str] = []
        self.lost = False  # whether the reply is
        with self.transaction() as conn:
            self.execute(conn, f"CREATE TABLE {self.orders} (id VARCHAR(40) PRIMARY KEY)")
        intents = Intents(self.store, scope="billing")

        @intents.operation("stripe", "charge", lease="1s")
        def charge(intent: eo.Intent[str]) -> str:
            self.sent.append(intent.provider_key)
            if self.lost:
                raise TimeoutError
            return f"ch_{intent.request}"

        self.intents, self.charge = intents, charge

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        conn = self.connect()
        try:
            yield conn
            conn.commit()
        finally:
            conn.close()

    def execute(self, conn: Any, sql: str) -> list[Any]:
        cursor = conn.cursor()
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []

    def pay(self, order: str, *, fail: bool = False) -> Any:
        with self.charge.send(order, key=order) as sent, self.transaction() as conn:
            if not sent.replayed:
                self.execute(conn, f"INSERT INTO {self.orders} (id) VALUES ('{order}')")
            sent.complete(conn)
            if fail:
                raise OSError("killed before the commit")
        return sent

    def paid(self) -> int:
        with self.transaction() as conn:
            return int(self.execute(conn, f"SELECT COUNT(*) FROM {self.orders}")[0][0])

    def state(self, order: str) -> str:
        record = self.store.get(self.charge.scope, self.charge.rules.intent_id(order, "", ""))
        return "absent" if record is None else record.state


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Iterator[Shop]:
    if request.param == "sqlite":
        file = tmp_path / "shop.db"
        made = Shop(f"sqlite:///{file}", lambda: sqlite3.connect(file), unique_name)
    elif request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
        made = Shop(f"{url}?prefix={unique_name}", lambda: psycopg.connect(url), unique_name)
    else:
        url = request.getfixturevalue("mariadb_url")
        parts = urlsplit(url)
        options = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password or ""}
        made = Shop(
            f"{url}?prefix={unique_name}",
            lambda: pymysql.connect(database=parts.path[1:], **options),  # type: ignore[arg-type]
            unique_name,
        )
    with made.store:
        yield made


def test_the_completion_commits_with_the_rows(shop: Shop) -> None:
    """Rule 9."""
    sent = shop.pay("o1")
    assert (sent.result, sent.replayed) == ("ch_o1", False)
    assert (shop.paid(), shop.state("o1")) == (1, "done")
    again = shop.pay("o1")
    assert (again.result, again.replayed) == ("ch_o1", True)
    assert (shop.paid(), len(shop.sent)) == (1, 1)


def test_a_rollback_takes_the_completion_with_it_and_the_next_sends_the_same_key(shop: Shop) -> None:
    """F33: neither the row nor the record; the provider is asked again, under the key that it knows."""
    with pytest.raises(OSError, match="killed"):
        shop.pay("o1", fail=True)
    assert (shop.paid(), shop.state("o1")) == (0, "claimed")
    for _ in range(100):  # until its lease has ended
        with suppress(eo.InProgress):
            shop.pay("o1")
            break
        time.sleep(0.05)
    assert (shop.paid(), shop.state("o1")) == (1, "done")
    assert len(shop.sent) == 2
    assert len(set(shop.sent)) == 1


def test_what_is_not_completed_is_open_for_the_next_delivery(shop: Shop) -> None:
    with pytest.raises(ValueError, match="before"), shop.charge.send("o1", key="o1"):
        raise ValueError("before complete")
    assert shop.state("o1") == "free"
    shop.pay("o1")
    assert (shop.paid(), shop.state("o1")) == (1, "done")
    assert len(shop.sent) == 2
    assert len(set(shop.sent)) == 1


def test_a_completion_that_another_has_overtaken_is_refused(shop: Shop) -> None:
    """F08: the lease was lost, so the caller's transaction must not commit."""
    with shop.charge.send("o1", key="o1") as sent:
        shop.store.forget(shop.charge.scope, shop.charge.rules.intent_id("o1", "", ""))
        with pytest.raises(eo.LeaseLost, match="roll this back"), shop.transaction() as conn:  # noqa: PT012
            shop.execute(conn, f"INSERT INTO {shop.orders} (id) VALUES ('o1')")
            sent.complete(conn)
    assert shop.paid() == 0


def test_a_connection_to_another_kind_of_database_is_refused(tmp_path: Path, shop: Shop) -> None:
    if "sqlite" in repr(shop.store):
        pytest.skip("the other connection would be the same kind")
    with shop.charge.send("o1", key="o1") as sent:
        other = sqlite3.connect(":memory:")
        with pytest.raises(eo.ConfigurationError, match="they must be in one database"):
            sent.complete(other)
        other.close()


def test_a_store_that_is_no_database_is_refused(tmp_path: Path) -> None:
    intents = Intents(eo.connect("memory://"), scope="billing")

    @intents.operation("stripe", "charge")
    def charge(intent: eo.Intent[str]) -> None:
        return None

    with charge.send("o1", key="o1") as sent:
        conn = sqlite3.connect(":memory:")
        with pytest.raises(eo.ConfigurationError, match="not an SQL database"):
            sent.complete(conn)
        conn.close()


# -- others must not complete it, since they have no rows


def recovered(shop: Shop) -> Any:
    """What a recovery comes to, once the lease of who died has ended."""
    for _ in range(200):
        came = shop.intents.recover(idle="1ms")
        if came != type(came)():
            return came
        time.sleep(0.02)
    raise AssertionError("it was never seen")


def test_a_recovery_leaves_the_completion_to_the_delivery_that_has_the_rows(shop: Shop) -> None:
    """Rule 9: completed without its rows, the redelivery would take it for done, and they would never be written."""
    with pytest.raises(OSError, match="killed"):
        shop.pay("o1", fail=True)
    assert recovered(shop).later == 1
    assert (shop.paid(), shop.state("o1"), len(set(shop.sent))) == (0, "free", 1)
    sends = len(shop.sent)
    assert recovered(shop).later == 1, "its result is known, so the provider is not asked again"
    sent = shop.pay("o1")
    assert (sent.result, sent.replayed, shop.paid(), shop.state("o1")) == ("ch_o1", False, 1, "done")
    assert len(shop.sent) == sends


def in_doubt(shop: Shop) -> str:
    shop.lost = True
    with pytest.raises(eo.OutcomeUnknown):
        shop.pay("o1")
    shop.lost = False
    shop.intents.reconcile("stripe")(lambda intent: Verdict.unknown("their search is down"))
    shop.charge.rules = msgspec.structs.replace(shop.charge.rules, window_us=0, margin_us=0)  # it is over
    with pytest.raises(eo.InDoubt):
        shop.pay("o1")
    (record,) = shop.intents.in_doubt()
    return record.key


def test_an_operators_word_is_completed_with_the_rows_too(shop: Shop) -> None:
    id = in_doubt(shop)
    with pytest.raises(eo.ConfigurationError, match="give it with 'done'"):
        shop.intents.resolve(id, "done")
    assert shop.state("o1") == "in_doubt"
    shop.intents.resolve(id, "done", result="ch_by_hand")
    assert (shop.paid(), shop.state("o1")) == (0, "free")
    sent = shop.pay("o1")
    assert (sent.result, sent.replayed, shop.paid(), shop.state("o1")) == ("ch_by_hand", False, 1, "done")
    assert len(shop.sent) == 1


def test_an_operators_word_that_did_not_get_to_the_log_has_to_be_said_again(shop: Shop) -> None:
    """Killed between the two commits of a resolve: it must not go out as if it had never been sent."""
    id = in_doubt(shop)
    shop.store.resolve(shop.charge.scope, id, "retry")
    with pytest.raises(eo.InDoubt):
        shop.pay("o1")
    assert len(shop.sent) == 1
    shop.intents.resolve(id, "retry")
    assert shop.pay("o1").result == "ch_o1"
    assert len(set(shop.sent)) == 2, "under a new key"


def test_an_operators_word_that_could_not_be_recorded_keeps_no_lease(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def record_nothing(claimed: ClaimedIntent) -> bool:
        return False

    id = in_doubt(shop)
    monkeypatch.setattr(ClaimedIntent, "record_retry", record_nothing)
    with pytest.raises(eo.StoreUnavailable, match="make it again"):
        shop.intents.resolve(id, "retry")
    assert not shop.store.runtime.leased_runs


def test_an_operator_gives_it_up(shop: Shop) -> None:
    shop.intents.resolve(in_doubt(shop), "abandon")
    with pytest.raises(eo.PermanentFailure, match="abandoned it"):
        shop.pay("o1")
    assert shop.paid() == 0
