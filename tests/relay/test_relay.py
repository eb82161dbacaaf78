"""The relay over each database, with a broker that does as it is told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import Event, Packet
from effectonce.contracts.outbox import LeasedRows, LeaseRequest
from effectonce.core.retry import Retry
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption, SchemaMismatch, SchemaMissing
from effectonce.relay.relay import Relay, ask_outbox
from tests.harness.waiting import auntil
from tests.relay.harness import Database, FakeBroker, FakePublisher, Refused, message

pytestmark = pytest.mark.quick_on("postgres")

AT_ONCE = Retry(3, first="1us", cap="1us")


def refusing(*numbers: int) -> Callable[[Packet], Exception | None]:
    return lambda packet: Refused("too ugly") if int(packet.id[1:]) in numbers else None


async def test_a_message_arrives_as_it_was_sent(database: Database, broker: FakeBroker) -> None:
    sent = eo.Message(
        data={"order": 42, "lines": [1, 2.5, None, "ü"], "big": 2**70},
        type="order.paid",
        id="m1",
        key="Order:42:paid",
        ordering_key="Order:42",
        headers={"tenant": "acme", "traceparent": "00-1-2-01"},
        trace_id="t1",
        source="shop",
        time=datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=UTC),
    )
    plain = eo.Message(data=b"\x00\xff", id="m2")
    database.send(sent, plain)
    assert await database.relay(broker).drain() == 2
    assert broker.messages() == [sent, eo.Message(data=b"\x00\xff", id="m2", source="effectonce")]
    packet = broker.sent[0][1]
    assert (packet.id, packet.ordering_key) == ("m1", "Order:42")
    assert database.states() == {"published": 2}


async def test_what_is_not_kept_is_gone(database: Database, broker: FakeBroker) -> None:
    database.send_numbers(range(5))
    assert await database.relay(broker, keep=0).drain() == 5
    assert database.states() == {}


async def test_many_leases_drain_an_outbox_in_order(database: Database, broker: FakeBroker) -> None:
    database.send_numbers(range(120), key=lambda n: f"k{n % 3}")
    assert await database.relay(broker, batch=25).drain() == 120
    assert all([n for n in broker.numbers() if n % 3 == k] == list(range(k, 120, 3)) for k in range(3))


async def test_several_queues_share_an_outbox(database: Database, broker: FakeBroker) -> None:
    database.send(message(1), message(2), to="orders")
    database.send(message(3), to="invoices")
    await database.relay(broker).drain()
    assert (broker.numbers("orders"), broker.numbers("invoices")) == ([1, 2], [3])


# -- order


async def test_rows_of_a_line_are_sent_one_after_the_other(database: Database, broker: FakeBroker) -> None:
    """A broker that may fail one packet and take the next gets no two of a line at once."""
    database.send_numbers(range(6), key=lambda n: "ab"[n % 2])
    await database.relay(broker).drain()
    assert broker.calls == [["m0", "m1"], ["m2", "m3"], ["m4", "m5"]]


async def test_a_broker_that_keeps_the_order_itself_gets_all_at_once(database: Database) -> None:
    broker = FakeBroker(ordered_publish=True)
    database.send_numbers(range(6), key=lambda n: "ab"[n % 2])
    await database.relay(broker).drain()
    assert broker.calls == [[f"m{n}" for n in range(6)]]


async def test_a_publish_never_holds_more_than_the_broker_takes(database: Database) -> None:
    broker = FakeBroker(batch=2)
    database.send_numbers(range(5))
    await database.relay(broker, order=None).drain()
    assert [len(call) for call in broker.calls] == [2, 2, 1]


@pytest.mark.parametrize("ordered_publish", [True, False])
async def test_a_refused_row_holds_up_its_line_and_nobody_else(database: Database, ordered_publish: bool) -> None:
    """F46, F44: 1 is refused; 3 and 5 stand behind it and are not tried."""
    broker = FakeBroker(ordered_publish=ordered_publish)
    broker.refuse = refusing(1, 3, 5) if ordered_publish else refusing(1)
    database.send_numbers(range(6), key=lambda n: "ab"[n % 2])
    relay = database.relay(broker, retry=Retry(3, first="1h", cap="1h"))
    assert await relay.drain() == 3
    assert broker.numbers() == [0, 2, 4]
    rows = database.execute("SELECT message_id, attempts FROM {outbox} WHERE state = 'waiting' ORDER BY seq")
    assert rows == [("m1", 1), ("m3", 0), ("m5", 0)]
    broker.refuse = refusing()
    database.send_numbers([7], key=lambda n: "b")
    assert await relay.drain() == 0, "7 stands behind them"
    database.execute("UPDATE {outbox} SET due_at = 1 WHERE state = 'waiting'")
    assert await relay.drain() == 4
    assert broker.numbers() == [0, 2, 4, 1, 3, 5, 7]


async def test_without_order_a_refused_row_holds_up_nobody(database: Database, broker: FakeBroker) -> None:
    database.send_numbers(range(6), key=lambda n: "k")
    broker.refuse = refusing(1)
    assert await database.relay(broker, order=None, retry=Retry(3, first="1h", cap="1h")).drain() == 5
    assert broker.numbers() == [0, 2, 3, 4, 5]


async def test_two_relays_share_the_work_and_keep_the_order(database: Database, broker: FakeBroker) -> None:
    """F43: every message once, those of a line in order, and some of the work done by each."""
    database.send_numbers(range(400), key=lambda n: f"k{n % 20}")
    relays = [database.relay(broker, batch=10) for _ in range(2)]
    running = [asyncio.create_task(relay.serve()) for relay in relays]
    await auntil(lambda: len(broker.sent) >= 400)
    for relay in relays:
        relay.stop()
    await asyncio.gather(*running)
    assert sorted(broker.numbers()) == list(range(400))
    assert all([n for n in broker.numbers() if n % 20 == k] == list(range(k, 400, 20)) for k in range(20))
    assert database.states() == {"published": 400}


# -- failures


async def test_a_poison_message_is_parked_after_its_last_attempt_with_its_error(
    database: Database, broker: FakeBroker
) -> None:
    """F46: shown to people, who free it and what waits behind it."""
    database.send_numbers(range(1, 4), key=lambda n: "k")
    database.send_numbers([4])
    broker.refuse = refusing(1)
    events: list[Event] = []
    relay = database.relay(broker, retry=AT_ONCE)
    relay.store.add_hook(events.append)
    for _ in range(4):
        await relay.drain()
    assert broker.numbers() == [4]
    assert relay.stats().counts == {"pending": 0, "waiting": 2, "parked": 1, "published": 1}
    (entry,) = relay.list().entries
    assert (entry.id, entry.attempts, entry.error) == ("m1", 3, "Refused: too ugly")
    assert [(event.kind, event.key, event.attempt) for event in events if event.key == "m1"] == [
        ("publish_failed", "m1", 1),
        ("publish_failed", "m1", 2),
        ("parked", "m1", 3),
    ]
    assert (relay.totals.published, relay.totals.failed, relay.totals.parked) == (1, 3, 1)
    broker.refuse = refusing()
    assert relay.unpark() == 1
    assert await relay.drain() == 3
    assert broker.numbers() == [4, 1, 2, 3]


async def test_a_discarded_message_never_leaves_and_lets_the_others_go(database: Database, broker: FakeBroker) -> None:
    database.send_numbers(range(1, 4), key=lambda n: "k")
    broker.refuse = refusing(1)
    relay = database.relay(broker, retry=Retry(1))
    await relay.drain()
    with pytest.raises(InvalidOption, match=r"numbers \(seq\) of the messages"):
        relay.discard()
    (entry,) = relay.list().entries
    assert relay.discard(entry.seq) == 1
    assert await relay.drain() == 2
    assert broker.numbers() == [2, 3]


async def test_a_broker_that_is_away_is_nobodys_fault(database: Database, broker: FakeBroker) -> None:
    """Attempts are given back, nothing is parked, and all of it leaves when the broker is back."""
    database.send_numbers(range(5), key=lambda n: "k")
    broker.raises = lambda packets: BrokerUnavailable("gone fishing")
    relay = database.relay(broker, retry=Retry(1))
    for _ in range(3):
        with pytest.raises(BrokerUnavailable, match="gone fishing"):
            await relay.drain()
    assert database.execute("SELECT state, attempts FROM {outbox}") == [("pending", 0)] * 5
    broker.raises = lambda packets: None
    assert await relay.drain() == 5


async def test_a_serving_relay_waits_for_its_broker(database: Database, broker: FakeBroker) -> None:
    database.send_numbers(range(3))
    broker.raises = lambda packets: BrokerUnavailable("gone fishing")
    events: list[Event] = []
    relay = database.relay(broker)
    relay.store.add_hook(events.append)
    assert (relay.phase, relay.outage) == ("stopped", None)
    serving = asyncio.create_task(relay.serve())
    await auntil(lambda: any(event.kind == "relay_paused" for event in events))
    assert (relay.phase, str(relay.outage)) == ("running", "gone fishing")
    broker.raises = lambda packets: None
    await auntil(lambda: len(broker.sent) == 3)
    await auntil(lambda: relay.outage is None)
    relay.stop()
    await asyncio.sleep(0)
    assert relay.phase == "draining"
    await serving
    assert (relay.phase, relay.outage) == ("stopped", None)
    assert "gone fishing" in next(event.detail for event in events if event.kind == "relay_paused")


async def test_the_pauses_of_an_outage_are_kept_and_grow(database: Database, broker: FakeBroker) -> None:
    """0.1 s at most before the second try, 0.2 s before the third: no hammering of a broker that restarts."""
    database.send_numbers([1])
    tries: list[float] = []
    broker.raises = lambda packets: tries.append(time.monotonic()) or BrokerUnavailable("gone fishing")  # type: ignore[func-returns-value]
    paused: list[float] = []
    relay = database.relay(broker)
    relay.store.add_hook(lambda event: paused.append(event.seconds or 0.0) if event.kind == "relay_paused" else None)
    serving = asyncio.create_task(relay.serve())
    await auntil(lambda: len(tries) == 5)
    relay.stop()
    await serving
    assert paused[0] <= 0.1 < 0.4 <= paused[3] <= 0.8
    assert all(after - before >= pause for before, after, pause in zip(tries, tries[1:], paused, strict=False))


async def test_one_outage_after_another_begins_with_a_short_pause(database: Database, broker: FakeBroker) -> None:
    paused: list[float] = []
    relay = database.relay(broker)
    relay.store.add_hook(lambda event: paused.append(event.seconds or 0.0) if event.kind == "relay_paused" else None)
    serving = asyncio.create_task(relay.serve())
    for number in range(2):
        broker.raises = lambda packets: BrokerUnavailable("gone fishing")
        database.send_numbers([number])
        pauses = len(paused)
        await auntil(lambda pauses=pauses: len(paused) == pauses + 3)  # type: ignore[misc]
        broker.raises = lambda packets: None
        await auntil(lambda number=number: len(broker.sent) == number + 1)  # type: ignore[misc]
        await auntil(lambda: relay.outage is None)
    relay.stop()
    await serving
    assert sum(pause <= 0.1 for pause in paused) == 2


async def test_an_outage_is_over_when_there_is_nothing_left_to_send(database: Database, broker: FakeBroker) -> None:
    """Somebody discarded the last message while the broker was away: the relay looks for new ones as it always does,
    instead of after the growing pauses of an outage."""
    database.send_numbers([1])
    broker.raises = lambda packets: BrokerUnavailable("gone fishing")
    relay = database.relay(broker)
    serving = asyncio.create_task(relay.serve())
    await auntil(lambda: relay.outage is not None)
    database.execute("DELETE FROM {outbox}")
    await auntil(lambda: relay.outage is None)
    relay.stop()
    await serving


@pytest.mark.parametrize(("leased_before", "outcome"), [(5, "published"), (6, "parked")])
async def test_f20_a_message_whose_relays_died_is_parked_after_twice_its_attempts(
    database: Database, broker: FakeBroker, leased_before: int, outcome: str
) -> None:
    """The message that was leased with it is not to blame, and goes."""
    database.send_numbers([1, 2])
    database.execute("UPDATE {outbox} SET attempts = ? WHERE message_id = 'm1'", leased_before)
    relay = database.relay(broker, retry=Retry(3))
    await relay.drain()
    assert dict(database.execute("SELECT message_id, state FROM {outbox}")) == {"m1": outcome, "m2": "published"}
    assert relay.totals.parked == (outcome == "parked")


async def test_a_queue_that_may_not_be_used_holds_up_its_own_rows_uncounted(
    database: Database, broker: FakeBroker
) -> None:
    database.send(message(1, "k"), message(2, "k"), to="forbidden")
    database.send(message(3))

    def forbid(packets: Sequence[Packet]) -> Exception | None:
        return ConfigurationError("no permission") if packets[0].id in ("m1", "m2") else None

    broker.raises = forbid
    relay = database.relay(broker, retry=Retry(1, cap="1h"))
    events: list[Event] = []
    relay.store.add_hook(events.append)
    assert await relay.drain() == 1
    rows = database.execute("SELECT state, attempts, error FROM {outbox} WHERE destination = 'forbidden'")
    assert rows == [("waiting", 0, "ConfigurationError: no permission")] * 2
    failures = [(event.scope, event.key, event.detail) for event in events if event.kind == "publish_failed"]
    assert failures == [("forbidden", "m1", "no permission")], "once for the queue, not once for each row"
    assert relay.totals.failed == 1


async def test_a_queue_that_may_not_be_used_is_tried_again_later_and_later_and_new_rows_wait_with_the_old(
    database: Database, broker: FakeBroker
) -> None:
    database.send_numbers([1])
    allowed = False
    broker.raises = lambda packets: None if allowed else ConfigurationError("no permission")
    relay = database.relay(broker, retry=Retry(1, first="1h", cap="1h"))
    serving = asyncio.create_task(relay.serve())
    await auntil(lambda: relay.totals.failed == 1)
    database.send_numbers([2])
    await auntil(lambda: database.states() == {"waiting": 2})
    assert broker.calls == [["m1"]], "the queue is not asked for each new row"
    await auntil(lambda: relay.totals.failed == 2)
    allowed = True
    await auntil(lambda: database.states() == {"published": 2})
    relay.stop()
    await serving
    assert sorted(broker.numbers()) == [1, 2]
    assert database.execute("SELECT DISTINCT attempts FROM {outbox}") == [(1,)]


async def test_a_row_that_upsets_the_publisher_harms_itself_only(database: Database, broker: FakeBroker) -> None:
    """The batch raised something unknown: each goes by itself."""
    database.send_numbers(range(4))
    broker.raises = lambda packets: ZeroDivisionError("oops") if any(p.id == "m2" for p in packets) else None
    relay = database.relay(broker, retry=Retry(1))
    assert await relay.drain() == 3
    (entry,) = relay.list().entries
    assert (entry.id, entry.error) == ("m2", "ZeroDivisionError: oops")


@pytest.mark.parametrize("error", [None, BrokerUnavailable("away")])
def test_an_operators_request_closes_its_connection(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class Port:
        async def close(self) -> None:
            closed.append(True)

    async def request(port: Any) -> int:
        if error is not None:
            raise error
        return 7

    monkeypatch.setattr(
        "effectonce.relay.relay.require_outboxes", lambda store: SimpleNamespace(sync_outbox=lambda table: Port())
    )
    with nullcontext() if error is None else pytest.raises(BrokerUnavailable):
        assert ask_outbox(eo.connect("memory://"), None, request) == 7
    assert closed == [True]


async def test_a_row_that_cannot_be_read_is_parked_with_the_reason(database: Database, broker: FakeBroker) -> None:
    """F60: somebody edited it."""
    database.send_numbers([1, 2])
    database.execute("UPDATE {outbox} SET payload = ? WHERE message_id = 'm1'", b"{not json")
    relay = database.relay(broker, retry=Retry(1))
    assert await relay.drain() == 1
    (entry,) = relay.list().entries
    assert entry.error is not None
    assert entry.error.startswith("DecodeError")


async def test_a_row_that_kills_relays_goes_alone_and_is_parked_in_the_end(
    database: Database, broker: FakeBroker
) -> None:
    """F20: leased so often without a word, it takes relays down; its innocent neighbours are not parked with it."""
    database.send_numbers(range(3))
    database.execute("UPDATE {outbox} SET attempts = 3")
    relay = database.relay(broker, retry=Retry(3))
    assert await relay.drain() == 3
    assert broker.calls == [["m0"], ["m1"], ["m2"]]
    database.send_numbers(range(3, 6))
    database.execute("UPDATE {outbox} SET attempts = 6 WHERE message_id = 'm4'")
    assert await relay.drain() == 2
    (entry,) = relay.list().entries
    assert entry.id == "m4"
    assert entry.error is not None
    assert "when its relay died" in entry.error


async def test_no_transaction_is_open_while_the_broker_is_spoken_to(database: Database, broker: FakeBroker) -> None:
    """F47: others may write, and no session sits in a transaction."""
    database.send_numbers(range(3))
    broker.gate = asyncio.Event()
    relay = database.relay(broker)
    draining = asyncio.create_task(relay.drain())
    await asyncio.wait_for(broker.entered.wait(), 60)
    if database.name == "postgres":
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%%' AND query LIKE ?"
        assert database.execute(sessions, f"%{database.table}%") == [(0,)]
    elif database.name == "mariadb":
        transactions = "information_schema.innodb_trx JOIN information_schema.processlist ON trx_mysql_thread_id = id"
        assert database.execute(f"SELECT count(*) FROM {transactions} WHERE db = database()") == [(0,)]
    database.execute('UPDATE {outbox} SET headers = \'{{"a":"b"}}\'')
    broker.gate.set()
    assert await draining == 3


async def test_a_publish_that_never_returns_is_given_up_before_the_lease_is_over(
    database: Database, broker: FakeBroker
) -> None:
    database.send_numbers([1])
    broker.gate = asyncio.Event()
    relay = database.relay(broker, lease="400ms")
    with pytest.raises(BrokerUnavailable, match="before the lease was over"):
        await relay.drain()
    broker.gate.set()
    assert await relay.drain() == 1


async def test_while_one_pump_waits_for_the_broker_another_publishes(database: Database) -> None:
    """Where the database has more than one connection for it. SQLite has one writer, and so its relay one pump."""
    broker = FakeBroker(batch=1)
    broker.gate = asyncio.Event()
    database.send_numbers(range(20))
    relay = database.relay(broker, batch=5)
    serving = asyncio.create_task(relay.serve())
    pumps = 1 if database.name == "sqlite" else 2
    await auntil(lambda: len(broker.calls) == pumps)
    await asyncio.sleep(0.1)
    assert len(broker.calls) == pumps
    broker.gate.set()
    await auntil(lambda: len(broker.sent) == 20)
    relay.stop()
    await serving
    assert sorted(broker.numbers()) == list(range(20))


# -- waking up and going to sleep


@pytest.fixture
def looks(database: Database, monkeypatch: pytest.MonkeyPatch) -> list[LeaseRequest]:
    """Every lease that a relay has asked for."""
    port_class = type(database.port())
    requests: list[LeaseRequest] = []
    lease = port_class.lease

    async def recorded(self: Any, request: LeaseRequest) -> LeasedRows:
        requests.append(request)
        return await lease(self, request)

    monkeypatch.setattr(port_class, "lease", recorded)
    return requests


async def test_a_second_pump_that_finds_nothing_does_not_look_again_and_again(
    database: Database, broker: FakeBroker, looks: list[LeaseRequest]
) -> None:
    """All rows are of one line, which the first pump has leased and waits for the broker with."""
    if database.name == "sqlite":
        pytest.skip("SQLite has one writer, and so its relay one pump")
    broker.gate = asyncio.Event()
    database.send_numbers(range(200), key=lambda n: "k")
    relay = database.relay(broker)
    serving = asyncio.create_task(relay.serve())
    await asyncio.wait_for(broker.entered.wait(), 30)
    await auntil(lambda: len(looks) == 2)
    await asyncio.sleep(0.5)
    assert len(looks) == 2
    broker.gate.set()
    await auntil(lambda: len(broker.sent) == 200)
    relay.stop()
    await serving
    assert broker.numbers() == list(range(200))


async def test_an_idle_relay_looks_less_and_less_often(
    database: Database, broker: FakeBroker, looks: list[LeaseRequest]
) -> None:
    """From every 5 ms to every ``poll``: 12 looks in the first second, not hundreds. A row makes it quick again."""
    relay = database.relay(broker, poll="10s")
    serving = asyncio.create_task(relay.serve())
    await asyncio.sleep(1.0)
    assert 2 <= len(looks) <= 16
    quiet = len(looks)
    database.send_numbers([1])
    await auntil(lambda: len(broker.sent) == 1)
    await auntil(lambda: len(looks) >= quiet + 4, seconds=5)
    relay.stop()
    await serving
    assert len({request.owner for request in looks}) == len(looks), "a lease without rows is over"


@pytest.fixture
def sleepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that looks again after 0.2 s, and then not for an hour."""
    monkeypatch.setattr("effectonce.relay.relay_run._MIN_POLL_S", 0.2)
    monkeypatch.setattr("effectonce.relay.relay_run._POLL_GROWTH", 1e9)


async def test_a_hint_in_the_same_process_wakes_an_idle_relay(
    database: Database, broker: FakeBroker, sleepy: None
) -> None:
    """It comes before the commit: the relay looks at once, and again a little later."""
    relay = database.relay(broker, poll="1h")
    serving = asyncio.create_task(relay.serve())
    await asyncio.sleep(0.5)
    with database.transaction() as connection:
        database.outbox().send(connection, message(1))
        await asyncio.sleep(0.01)
    await auntil(lambda: len(broker.sent) == 1)
    relay.stop()
    await serving


async def test_a_notification_wakes_an_idle_relay(
    postgres: Database, broker: FakeBroker, sleepy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from another process: no hint is given here."""
    monkeypatch.setattr("effectonce.outbox.outbox.notify", lambda table: None)
    monkeypatch.setattr("effectonce.relay.relay_run._NOTIFY_WAIT_S", 3600.0)
    relay = postgres.relay(broker, poll="1h")
    serving = asyncio.create_task(relay.serve())
    await asyncio.sleep(0.5)
    with postgres.transaction() as connection:
        postgres.outbox(notify=True).send(connection, message(1))
    await auntil(lambda: len(broker.sent) == 1)
    relay.stop()
    await serving


async def test_stopping_settles_what_is_on_its_way_and_gives_back_the_rest(database: Database) -> None:
    """F58: 0 and 1 were handed to the broker; 2 and 3 were leased and not sent, and are there for others at once."""
    broker = FakeBroker(batch=2)
    database.send_numbers(range(4))
    broker.gate = asyncio.Event()
    relay = database.relay(broker)
    serving = asyncio.create_task(relay.serve())
    await asyncio.wait_for(broker.entered.wait(), 60)
    relay.stop()
    await asyncio.sleep(0.05)
    broker.gate.set()
    await serving
    assert broker.numbers() == [0, 1]
    rows = database.execute("SELECT message_id, state, attempts, leased_until FROM {outbox} ORDER BY seq")
    assert [row[1:3] for row in rows] == [("published", 1)] * 2 + [("pending", 0)] * 2
    assert {row[3] for row in rows} == {0}
    assert broker.closed > 0


async def test_a_relay_that_is_cancelled_ends_at_once_and_not_when_its_grace_is_over(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effectonce.relay.relay_run._CANCEL_GRACE_S", 600.0)
    database.send_numbers(range(2))
    serving = asyncio.create_task(database.relay(broker).serve())
    await auntil(lambda: database.states() == {"published": 2})
    serving.cancel()
    await asyncio.wait([serving], timeout=60)
    assert serving.cancelled()


async def test_a_cancelled_relay_settles_what_it_knows(database: Database, broker: FakeBroker) -> None:
    database.send_numbers(range(3))
    broker.gate = asyncio.Event()
    draining = asyncio.create_task(database.relay(broker).drain())
    await asyncio.wait_for(broker.entered.wait(), 60)
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert database.execute("SELECT state, attempts, leased_until FROM {outbox}") == [("pending", 0, 0)] * 3


@pytest.mark.parametrize("cancellations", [1, 2, 3, 4])
@pytest.mark.parametrize("way", ["serve", "drain"])
async def test_a_relay_cancelled_again_while_it_closes_leaves_nothing_open(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, cancellations: int, way: str
) -> None:
    """Neither a task nor a connection; and what it has sent is settled, or given back."""
    opened: list[Any] = []

    class SlowPublisher(FakePublisher):
        async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
            try:
                return await super().publish(queue, packets)
            finally:
                await asyncio.sleep(0.05)

        async def close(self) -> None:
            await asyncio.sleep(0.05)
            await super().close()

    def open_publisher() -> SlowPublisher:
        opened.append(SlowPublisher(broker))
        return opened[-1]

    monkeypatch.setattr(broker, "publisher", open_publisher)
    database.send_numbers(range(3))
    broker.gate = asyncio.Event()
    before = asyncio.all_tasks()
    task = asyncio.create_task(getattr(database.relay(broker), way)())
    await asyncio.wait_for(broker.entered.wait(), 60)
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0.03)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert broker.closed == len(opened)
    await auntil(lambda: asyncio.all_tasks() <= before)
    assert database.execute("SELECT state, attempts, leased_until FROM {outbox}") == [("pending", 0, 0)] * 3


async def test_a_relay_can_be_stopped_from_another_thread_and_serve_again(
    database: Database, broker: FakeBroker
) -> None:
    relay = database.relay(broker)
    for n in range(2):
        serving = asyncio.create_task(relay.serve())
        database.send_numbers([n])
        await auntil(lambda n=n: len(broker.sent) == n + 1)  # type: ignore[misc]
        with pytest.raises(ConfigurationError, match="already serving"):
            await relay.serve()
        threading.Thread(target=relay.stop).start()
        await asyncio.wait_for(serving, 60)


async def test_a_serving_relay_cleans_up(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again and again: a row that another statement has locked for a moment is left for the next time."""
    monkeypatch.setattr("effectonce.relay.relay_run._CLEANUP_INTERVAL_S", 0.1)
    database.send_numbers(range(3))
    relay = database.relay(broker, keep="1us")
    await relay.drain()
    serving = asyncio.create_task(relay.serve())
    await auntil(lambda: database.states() == {})
    await auntil(lambda: relay.stats().cleaned_at is not None)
    relay.stop()
    await serving


async def test_cleaning_up_that_fails_is_reported(
    database: Database, broker: FakeBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F37."""
    events: list[Event] = []
    relay = database.relay(broker)
    relay.store.add_hook(events.append)

    async def broken(self: Any, limit: int) -> Any:
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(type(database.port()), "clean", broken)
    serving = asyncio.create_task(relay.serve())
    await auntil(lambda: any(event.kind == "sweep_failed" for event in events))
    relay.stop()
    await serving
    assert "disk on fire" in caplog.text


# -- what cannot work


async def test_a_store_without_outboxes_says_which_have_them(broker: FakeBroker) -> None:
    relay = Relay(eo.connect("memory://"), broker)
    for ask in (relay.serve, relay.drain):
        with pytest.raises(ConfigurationError, match=r"postgresql://, mysql://"):
            await ask()


async def test_a_missing_table_names_the_command(database: Database, broker: FakeBroker) -> None:
    if database.name == "sqlite":
        pytest.skip("SQLite makes its tables when first used")
    relay = database.relay(broker, table="nowhere")
    for ask in (relay.serve, relay.drain):
        with pytest.raises(SchemaMissing, match="effectonce migrate"):
            await ask()
    with pytest.raises(SchemaMissing, match="effectonce migrate"):
        relay.check()


@pytest.mark.parametrize(
    "options", [{"order": "queue"}, {"batch": 0}, {"batch": 10_001}, {"lease": "0s"}, {"keep": -1}, {"poll": "soon"}]
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        Relay(eo.connect("memory://"), FakeBroker(), **options)


# -- two releases on the same tables


async def test_this_release_runs_on_the_tables_of_the_next(database: Database, broker: FakeBroker) -> None:
    """F38: it has added columns and a table, and says that this release may go on."""
    default = "''" if database.name != "mariadb" else "('')"
    database.execute(f"ALTER TABLE {{outbox}} ADD COLUMN tenant VARCHAR(40) NOT NULL DEFAULT {default}")
    database.execute("ALTER TABLE {outbox} ADD COLUMN priority INTEGER")
    database.execute("UPDATE {meta} SET value = 2 WHERE name = 'schema'")
    database.execute("INSERT INTO {meta} (name, value) VALUES ('oldest', 1)")
    database.send_numbers(range(3), key=lambda n: "k")
    relay = database.relay(broker)
    relay.check()
    assert await relay.drain() == 3
    assert relay.stats().counts["published"] == 3


async def test_the_tables_of_the_release_after_next_are_refused(database: Database, broker: FakeBroker) -> None:
    """F38: it has removed what this release reads."""
    database.execute("UPDATE {meta} SET value = 3 WHERE name = 'schema'")
    database.execute("INSERT INTO {meta} (name, value) VALUES ('oldest', 2)")
    with pytest.raises(SchemaMismatch, match="upgrade effectonce"):
        await database.relay(broker).drain()


async def test_the_tables_of_the_last_release_name_the_command(database: Database, broker: FakeBroker) -> None:
    """F38: a column is missing that this release reads."""
    if database.name == "sqlite":
        database.execute("ALTER TABLE {outbox} RENAME COLUMN source TO origin")
    else:
        database.execute("ALTER TABLE {outbox} DROP COLUMN source")
    with pytest.raises(SchemaMissing, match="effectonce migrate"):
        await database.relay(broker).drain()
    with pytest.raises(SchemaMissing, match="effectonce migrate"):
        database.send_numbers([1])
