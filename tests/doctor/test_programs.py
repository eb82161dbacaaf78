"""Doctor on files, outboxes, workers, intents and brokers: what piles up, and what its settings cannot keep."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.doctor import Limits, examine
from effectonce.intents.intents import Intents
from effectonce.testing import override
from effectonce.worker.jobs import CAUSE, Cause

from .conftest import Open, codes, handled

HOUR = 3_600_000_000


@pytest.fixture
def store(tmp_path: Path, open_store: Open) -> eo.Store:
    """A store that is fine."""
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    store.purge()
    return store


@pytest.fixture
def broker(tmp_path: Path) -> eo.Broker:
    broker = eo.connect_broker(f"sqlite:///{tmp_path}/queue.db?ack_window=10s")
    broker.declare("orders", group="billing")
    return broker


def sql(tmp_path: Path, statement: str, *values: Any, file: str = "store.db") -> None:
    with sqlite3.connect(tmp_path / file) as db:
        db.execute(statement, values)
    db.close()


# -- a store


def test_a_new_file_has_no_findings(store: eo.Store) -> None:
    assert codes(store) == {}


def test_f37_a_file_that_nobody_sweeps(store: eo.Store, tmp_path: Path) -> None:
    """A backlog of expired records, and the sweeper that should have deleted it."""
    handled(store, "a", "b", "c", retention="1ms")
    sql(tmp_path, "UPDATE effectonce_meta SET value = value - ? WHERE name = 'swept_at'", 2 * HOUR)
    handled(store, "alive")
    assert "2h ago" in codes(store)["sweeper-stale"].what
    found = codes(store, limits=Limits(unswept=0.001, overdue=0.001))
    assert "3 expired records" in found["overdue-records"].what
    store.purge()
    assert codes(store) == {}


def test_a_power_cut_may_lose_what_a_hasty_file_has_confirmed(tmp_path: Path, open_store: Open) -> None:
    hasty = open_store(f"sqlite:///{tmp_path}/hasty.db", synchronous="normal")
    hasty.migrate()
    found = codes(hasty)
    assert found["synchronous"].severity == "warning"


def test_a_clock_that_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: eo.Store) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 60)
    assert "ahead of" in codes(store)["clock-skew"].what
    monkeypatch.setattr(time, "time", lambda: real() + 60)
    assert "behind" in codes(store)["clock-skew"].what


def test_what_is_in_doubt_becomes_a_warning_with_time(store: eo.Store, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="who knows"), eo.block(store, scope="mail", key="1", on_error="doubt"):
        raise ValueError("who knows")
    assert codes(store)["in-doubt"].severity == "note"
    sql(tmp_path, "UPDATE effectonce_records SET changed_at = changed_at - ?", 30 * HOUR)
    assert codes(store)["in-doubt"].severity == "warning"


def test_a_file_in_no_folder_is_one_finding(open_store: Open, tmp_path: Path) -> None:
    assert list(codes(open_store(f"sqlite:///{tmp_path}/nowhere/store.db"))) == ["schema-missing"]


# -- an outbox


def test_parked_keys_and_messages_that_do_not_leave(store: eo.Store, tmp_path: Path) -> None:
    store.migrate()
    with sqlite3.connect(tmp_path / "store.db") as db:
        db.execute("BEGIN")
        for number in range(3):
            eo.Outbox(to="orders").send(db, eo.Message(type="order.paid", data=number, ordering_key="k"))
    db.close()
    assert codes(store) == {}
    sql(tmp_path, "UPDATE effectonce_outbox SET state = 'parked' WHERE seq = 1")
    sql(tmp_path, "UPDATE effectonce_outbox SET created_at = created_at - ?", HOUR)
    found = codes(store)
    assert list(found) == ["outbox-parked", "outbox-lag"]
    assert found["outbox-parked"].what.startswith("parked: 1,")
    assert "effectonce outbox list --store 'sqlite:///" in found["outbox-parked"].run


# -- workers


def shop(broker: eo.Broker, store: eo.Store, **options: Any) -> eo.Worker:
    worker = eo.Worker(broker, store=store, name="billing")

    @worker.handler("orders", **options)
    def charge(message: eo.Message[Any]) -> None: ...

    return worker


def test_a_worker_that_is_fine_brings_its_store_along(broker: eo.Broker, store: eo.Store) -> None:
    worker = shop(broker, store)
    assert codes(programs=[worker]) == {}
    handled(store, "a")
    assert examine(store, programs=[worker]) == examine(programs=[worker]) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"retention": "1m", "retry": eo.Retry(20)}, "set retention= to more than that"),
        ({"lease": "1h"}, "set lease= below that"),
    ],
)
def test_f25_f55_spans_that_a_worker_refuses_to_start_with(
    broker: eo.Broker, store: eo.Store, options: dict[str, Any], says: str
) -> None:
    finding = codes(programs=[shop(broker, store, **options)])["configuration"]
    assert finding.severity == "error"
    assert says in finding.what
    assert finding.run.startswith("set "), "the remedy alone"
    assert "charge" in finding.about


def test_mode_t_on_a_connection_that_loses_commits(broker: eo.Broker, tmp_path: Path) -> None:
    def connect() -> sqlite3.Connection:
        db = sqlite3.connect(tmp_path / "shop.db", isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        return db

    eo.connect(f"sqlite:///{tmp_path}/shop.db").migrate()
    worker = eo.Worker(broker, inbox=eo.Inbox(scope="billing"), connect=connect, name="billing")

    @worker.handler("orders")
    def charge(connection: sqlite3.Connection, message: eo.Message[Any]) -> None: ...

    assert "PRAGMA synchronous = FULL" in codes(programs=[worker])["unsafe-store"].what


def test_dead_letters_by_their_age(broker: eo.Broker, store: eo.Store) -> None:
    worker = shop(broker, store)
    now = time.time()
    for age, severity in ((60, "note"), (2 * 86_400, "warning"), (20 * 86_400, "error")):
        bury(broker, Cause(why="attempts-exhausted", last=now - age))
        finding = codes(programs=[worker])["dead-letters"]
        assert finding.severity == severity
        assert finding.what.startswith("dead letters: 1, the oldest for")
        by_hand = codes(store, broker=broker, queues=["orders"], group="billing")["dead-letters"]
        assert by_hand.what == finding.what
        eo.DeadLetterQueue(worker, "orders").purge()
    assert "the record of the oldest is gone" in finding.why.lower()


def bury(broker: eo.Broker, cause: Cause) -> None:
    import msgspec

    async def dead() -> None:
        consumer = broker.backend.consumer("orders", group="billing", prefetch=1)
        try:
            (delivery,) = await consumer.receive(1, 5.0)
            assert await consumer.dead_letter(delivery, {CAUSE: msgspec.json.encode(cause).decode()})
        finally:
            await consumer.close()

    broker.publish("orders", eo.Message(type="order.paid", data=1))
    broker.run_blocking(dead)


# -- a broker, and providers


class Horizon:
    """A broker that may deliver again after 30 days."""

    def __init__(self, broker: eo.Broker) -> None:
        import msgspec

        self._backend = broker.backend
        self.capabilities = msgspec.structs.replace(broker.capabilities, redelivery_horizon=30 * 86_400.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def __repr__(self) -> str:
        return "horizon://"


def test_f25_records_that_do_not_outlive_redeliveries(broker: eo.Broker, store: eo.Store) -> None:
    """The retention is read off the records themselves; without any, it is the default."""
    slow = eo.Broker(Horizon(broker))
    assert "by default" in codes(store, broker=slow)["retention"].what
    handled(store, "a", retention="60d", scope="long")
    store.purge()
    assert codes(store, broker=slow) == {}
    handled(store, "b", retention="7d", scope="short")
    assert "'short' are kept for 7d" in codes(store, broker=slow)["retention"].what


def test_a_provider_that_forgets_its_keys_first(broker: eo.Broker, store: eo.Store) -> None:
    intents = Intents(store, scope="billing")

    @intents.operation("stripe", "charge", retention="90d")
    def charge(intent: eo.Intent[dict[str, Any]]) -> dict[str, Any]:
        return {}

    slow = eo.Broker(Horizon(broker))
    assert "add a reconciler" in codes(broker=slow, programs=[intents])["configuration"].what


def test_an_overridden_store_is_the_one_that_is_looked_at(store: eo.Store, tmp_path: Path) -> None:
    other = eo.connect(f"sqlite:///{tmp_path}/other.db", sweep_every=None)
    handled(other, "a")
    with override(store, other):
        assert "other.db" in codes(store, limits=Limits(unswept=0.001))["sweeper-stale"].about
    other.close()
