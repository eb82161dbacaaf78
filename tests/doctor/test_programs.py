"""Doctor on files, outboxes, workers, intents and brokers: backlogs, and settings that cannot keep a promise."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.doctor import Limits, examine
from effectonce.intents.intents import Intents
from effectonce.message import CAUSE_HEADER
from effectonce.testing import override
from effectonce.worker.dead_letter_cause import Cause

from .conftest import StoreOpener, findings_by_code, make_done_records

HOUR = 3_600_000_000


@pytest.fixture
def store(tmp_path: Path, open_store: StoreOpener) -> eo.Store:
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
    assert findings_by_code(store) == {}


def test_f37_a_file_without_a_sweeper(store: eo.Store, tmp_path: Path) -> None:
    """A backlog of expired records, and the sweeper that should have deleted it."""
    make_done_records(store, "a", "b", "c", retention="1ms")
    sql(tmp_path, "UPDATE effectonce_meta SET value = value - ? WHERE name = 'swept_at'", 2 * HOUR)
    make_done_records(store, "alive")
    assert "2 h ago" in findings_by_code(store)["sweeper-stale"].what
    findings = findings_by_code(store, limits=Limits(unswept=0.001, overdue=0.001))
    assert "3 expired records" in findings["overdue-records"].what
    store.purge()
    assert findings_by_code(store) == {}


def test_a_file_without_synchronous_commits_is_a_warning(tmp_path: Path, open_store: StoreOpener) -> None:
    hasty = open_store(f"sqlite:///{tmp_path}/hasty.db", synchronous="normal")
    hasty.migrate()
    findings = findings_by_code(hasty)
    assert findings["synchronous"].severity == "warning"


def test_a_clock_that_is_ahead_or_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: eo.Store) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 60)
    assert "ahead of" in findings_by_code(store)["clock-skew"].what
    monkeypatch.setattr(time, "time", lambda: real() + 60)
    assert "behind" in findings_by_code(store)["clock-skew"].what


def test_a_record_in_doubt_becomes_a_warning_with_time(store: eo.Store, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="who knows"), eo.block(store, scope="mail", key="1", on_error="doubt"):
        raise ValueError("who knows")
    assert findings_by_code(store)["in-doubt"].severity == "note"
    sql(tmp_path, "UPDATE effectonce_records SET changed_at = changed_at - ?", 30 * HOUR)
    assert findings_by_code(store)["in-doubt"].severity == "warning"


def test_a_file_in_a_missing_folder_is_one_finding(open_store: StoreOpener, tmp_path: Path) -> None:
    assert list(findings_by_code(open_store(f"sqlite:///{tmp_path}/nowhere/store.db"))) == ["schema-missing"]


# -- an outbox


def test_parked_keys_and_unpublished_messages(store: eo.Store, tmp_path: Path) -> None:
    store.migrate()
    with sqlite3.connect(tmp_path / "store.db") as db:
        db.execute("BEGIN")
        for number in range(3):
            eo.Outbox(to="orders").send(db, eo.Message(type="order.paid", data=number, ordering_key="k"))
    db.close()
    assert findings_by_code(store) == {}
    sql(tmp_path, "UPDATE effectonce_outbox SET state = 'parked' WHERE seq = 1")
    sql(tmp_path, "UPDATE effectonce_outbox SET created_at = created_at - ?", HOUR)
    findings = findings_by_code(store)
    assert list(findings) == ["outbox-parked", "outbox-lag"]
    assert findings["outbox-parked"].what.startswith("parked: 1,")
    assert "effectonce outbox list --store 'sqlite:///" in findings["outbox-parked"].run


# -- workers


def shop(broker: eo.Broker, store: eo.Store, **options: Any) -> eo.Worker:
    worker = eo.Worker(broker, store=store, name="billing")

    @worker.handler("orders", **options)
    def charge(message: eo.Message[Any]) -> None: ...

    return worker


def test_the_store_of_a_worker_is_examined_as_well(broker: eo.Broker, store: eo.Store) -> None:
    worker = shop(broker, store)
    assert findings_by_code(programs=[worker]) == {}
    make_done_records(store, "a")
    reports = examine(store, programs=[worker]), examine(programs=[worker])
    assert [report.findings for report in reports] == [[], []]
    names = [[(check.about, check.name) for check in report.checks] for report in reports]
    assert names[0] == names[1], "and once"


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
    finding = findings_by_code(programs=[shop(broker, store, **options)])["configuration"]
    assert finding.severity == "error"
    assert says in finding.what
    assert finding.run.startswith("set "), "the remedy alone"
    assert "charge" in finding.about


def test_a_connection_of_mode_t_that_loses_commits(broker: eo.Broker, tmp_path: Path) -> None:
    def connect() -> sqlite3.Connection:
        db = sqlite3.connect(tmp_path / "shop.db", isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        return db

    eo.connect(f"sqlite:///{tmp_path}/shop.db").migrate()
    worker = eo.Worker(broker, inbox=eo.Inbox(scope="billing"), connect=connect, name="billing")

    @worker.handler("orders")
    def charge(connection: sqlite3.Connection, message: eo.Message[Any]) -> None: ...

    assert "PRAGMA synchronous = FULL" in findings_by_code(programs=[worker])["unsafe-store"].what


def test_dead_letters_by_their_age(broker: eo.Broker, store: eo.Store) -> None:
    worker = shop(broker, store)
    now = time.time()
    for age, severity in ((600, "note"), (2 * 86_400, "warning"), (20 * 86_400, "error")):
        bury(broker, Cause(why="attempts-exhausted", given_up_at=now - age))
        finding = findings_by_code(programs=[worker])["dead-letters"]
        assert finding.severity == severity
        assert finding.what.startswith("dead letters: 1, the oldest for")
        by_hand = findings_by_code(store, broker=broker, queues=["orders"], group="billing")["dead-letters"]
        assert by_hand.what == finding.what
        eo.DeadLetterQueue(worker, "orders").purge()
    assert "the record of the oldest is gone" in finding.why.lower()


def bury(broker: eo.Broker, cause: Cause) -> None:
    import msgspec

    async def dead() -> None:
        consumer = broker.backend.consumer("orders", group="billing", prefetch=1)
        try:
            (delivery,) = await consumer.receive(1, 5.0)
            assert await consumer.dead_letter(delivery, {CAUSE_HEADER: msgspec.json.encode(cause).decode()})
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
        self.capabilities = msgspec.structs.replace(broker.capabilities, redelivery_horizon_s=30 * 86_400.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def __repr__(self) -> str:
        return "horizon://"


def test_f25_records_that_do_not_outlive_redeliveries(broker: eo.Broker, store: eo.Store) -> None:
    """The retention is that of the stored records; without any, it is the default."""
    slow = eo.Broker(Horizon(broker))
    assert "by default" in findings_by_code(store, broker=slow)["retention"].what
    make_done_records(store, "a", retention="60d", scope="long")
    store.purge()
    assert findings_by_code(store, broker=slow) == {}
    make_done_records(store, "b", retention="7d", scope="short")
    assert "'short' are kept for 7d" in findings_by_code(store, broker=slow)["retention"].what


def test_a_provider_whose_key_window_is_too_short(broker: eo.Broker, store: eo.Store) -> None:
    intents = Intents(store, scope="billing")

    @intents.operation("stripe", "charge", retention="90d")
    def charge(intent: eo.Intent[dict[str, Any]]) -> dict[str, Any]:
        return {}

    slow = eo.Broker(Horizon(broker))
    assert "add a reconciler" in findings_by_code(broker=slow, programs=[intents])["configuration"].what


def test_an_overridden_store_is_examined(store: eo.Store, tmp_path: Path) -> None:
    other = eo.connect(f"sqlite:///{tmp_path}/other.db", sweep_every=None)
    make_done_records(other, "a")
    with override(store, other):
        assert "other.db" in findings_by_code(store, limits=Limits(unswept=0.001))["sweeper-stale"].about
    other.close()


def test_a_broker_that_never_ran_against_its_service_is_noted_as_experimental(store: eo.Store) -> None:
    with eo.connect_broker("servicebus://Root:key@shop.servicebus.windows.net?retention=5d") as azure:
        worker = eo.Worker(azure, store=store, name="billing")
        findings = examine(store, broker=azure, programs=[worker]).findings
    (finding,) = findings
    assert (finding.code, finding.severity) == ("experimental", "note")
    assert "key@" not in str(finding)


def test_a_nats_that_may_confirm_before_it_writes_to_disk_is_warned_of() -> None:
    with eo.connect_broker("nats://127.0.0.1:1") as nats:
        finding = findings_by_code(broker=nats)["sync-interval"]
    assert finding.severity == "warning"
    assert "two minutes" in finding.what
    assert "sync_interval: always" in finding.run
    assert "monitoring=" in finding.run


@pytest.mark.parametrize(("seconds", "said"), [(0.0, ""), (5.0, "up to 5 s after")])
def test_a_nats_that_says_when_it_writes_is_believed(
    monkeypatch: pytest.MonkeyPatch, seconds: float, said: str
) -> None:
    monkeypatch.setattr("effectonce.backends.nats.broker.read_sync_interval", lambda endpoint: seconds)
    with eo.connect_broker("nats://127.0.0.1:1") as nats:
        findings = findings_by_code(broker=nats)
    assert ("sync-interval" in findings) == bool(said)
    assert not said or said in findings["sync-interval"].what


def test_the_outbox_of_a_relay_is_examined(tmp_path: Path) -> None:
    with eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None) as store:
        store.migrate()
        with sqlite3.connect(tmp_path / "shop.db") as connection:
            connection.executescript(eo.Outbox(to="orders", table="shop_outbox").schema_sql("sqlite"))
            eo.Outbox(to="orders", table="shop_outbox").send(connection, eo.Message(data=1))
        relay = eo.Relay(store, eo.connect_broker("memory://"), table="shop_outbox")
        findings = examine(programs=[relay], limits=Limits(outbox=0.0)).findings
    assert [(finding.code, finding.about) for finding in findings] == [
        ("outbox-lag", f"sqlite:///{tmp_path}/shop.db shop_outbox")
    ]


def test_what_could_not_be_checked_of_intents_without_a_broker_is_said(store: eo.Store) -> None:
    """Silence would read as a check that was passed."""
    checks = examine(store, programs=[Intents(store, scope="billing")]).checks
    skipped = [(check.about, check.name, check.detail) for check in checks if check.result == "skipped"]
    assert ("intents billing", "key windows", "no broker is given that limits its redeliveries") in skipped
