"""The SQLite broker keeps the contract, in one process and in several."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

import effectonce as eo
from effectonce.backends.sqlite.broker import FIRST_PAUSE_S, MAX_PAUSE_S, SQLiteBrokerBackend
from effectonce.contracts import Packet
from effectonce.testing import ManualClock
from effectonce.testing.suites import broker_cases, broker_suite
from effectonce.values.urls import Address


def backend_at(path: Path, clock: ManualClock | None = None, **options: str) -> SQLiteBrokerBackend:
    extra = "&".join(f"{name}={value}" for name, value in {"synchronous": "NORMAL", **options}.items())
    return SQLiteBrokerBackend(Address(f"sqlite:///{path}?{extra}"), clock=clock)


@pytest.fixture
def site(tmp_path: Path) -> SQLiteBrokerBackend:
    return backend_at(tmp_path / "queue.db", ManualClock())


TestContract = broker_suite()


@pytest.mark.parametrize(
    "name",
    [
        "a_delay_keeps_a_delivery_back_that_long",
        "an_attempt_that_was_never_settled_counts",
        "extend_keeps_a_delivery_past_the_window",
        "a_cancelled_receive_loses_nothing",
        "a_nacked_delivery_is_redelivered_before_those_behind_it",
    ],
)
def test_time_goes_by_on_the_machines_clock_too(tmp_path: Path, name: str) -> None:
    case = {str(case): case for case in broker_cases()}[name]
    case.run(backend_at(tmp_path / "queue.db", ack_window="0.5"), quiet=0.05)


async def test_what_a_cancelled_receive_has_taken_is_returned_before_more_is_taken(site: SQLiteBrokerBackend) -> None:
    """Else their windows would run, with other consumers idle."""
    await site.declare("q", group="g")
    outcomes = await site.publisher().publish("q", [Packet(body=b"%d" % number) for number in range(4)])
    assert outcomes == [None] * 4
    consumer, other = (site.consumer("q", group="g", prefetch=9) for _ in range(2))
    consumer._arrived = list(await consumer.receive(2, 1.0))  # as a receive leaves them that is cancelled
    assert [delivery.packet.body for delivery in await consumer.receive(2, 1.0)] == [b"0", b"1"]
    assert [delivery.packet.body for delivery in await other.receive(9, 1.0)] == [b"2", b"3"]
    for each in (consumer, other):
        await each.close()


# -- several processes

WORK = """
import asyncio, os, sys
from pathlib import Path
from types import SimpleNamespace
from effectonce.backends.sqlite.broker import FIRST_PAUSE_S, MAX_PAUSE_S, SQLiteBrokerBackend
from effectonce.values.urls import Address

async def main(path, log, role):
    backend = SQLiteBrokerBackend(Address(f"sqlite:///{path}?synchronous=NORMAL&ack_window=0.8"))
    consumer = backend.consumer("q", group="g", prefetch=7)
    with open(log, "ab", buffering=0) as out:
        while True:
            found = await consumer.receive(7, 2.0)
            if not found:
                break
            for delivery in found:
                out.write(b"%s %d\\n" % (delivery.packet.body, delivery.attempt))
            if role == "hangs":
                print("holding", len(found), flush=True)
                await asyncio.sleep(60)
            await consumer.ack(found)
    await consumer.close()

asyncio.run(main(*sys.argv[1:]))
"""


def start(path: Path, log: Path, role: str = "works") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(WORK), str(path), str(log), role]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)


def test_several_processes_share_a_queue_and_a_killed_one_loses_nothing(tmp_path: Path) -> None:
    """F58: kill -9 of a consumer that holds messages."""
    path, log = tmp_path / "queue.db", tmp_path / "log"
    with eo.connect_broker(f"sqlite:///{path}?synchronous=NORMAL") as broker:
        keyed = [eo.Message(data=n, ordering_key=f"k{n % 5}" if n % 2 else None) for n in range(200)]
        publish_numbers(broker, keyed)
    victim = start(path, log, "hangs")
    assert victim.stdout is not None
    held = int(victim.stdout.readline().split()[1])
    workers = [start(path, log) for _ in range(2)]
    victim.send_signal(signal.SIGKILL)
    for process in (victim, *workers):
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
    attempts = defaultdict(list)
    for number, attempt in (map(int, line.split()) for line in log.read_text().splitlines()):
        attempts[number].append(attempt)
    assert set(attempts) == set(range(200))
    assert sum(len(each) > 1 for each in attempts.values()) >= held  # what the victim held was redelivered
    assert all(sorted(each) == list(range(1, len(each) + 1)) for each in attempts.values())


def publish_numbers(broker: eo.Broker, messages: list[eo.Message[int]]) -> None:
    """Bodies that are plain numbers, so that another process needs no envelope to read them."""

    class Plain:
        def encode(self, message: eo.Message[int], queue: str = "") -> Packet:
            return Packet(body=b"%d" % message.data, id=message.id, ordering_key=message.ordering_key)

        def decode(self, packet: Packet, data_type: object = None) -> eo.Message[int]:
            raise NotImplementedError

    broker.publish("q", messages, envelope=Plain())


# -- the file


async def test_queues_and_records_may_share_a_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with eo.connect(url) as store:
        charge = eo.once(store, scope="s", key="k")(lambda k: 7)
        broker = eo.connect_broker(url)
        async with broker:
            await broker.apublish("orders", eo.Message(data=1))
            consumer = broker.backend.consumer("orders", group="g", prefetch=1)
            assert charge("k") == 7
            assert len(await consumer.receive(1, 1.0)) == 1
            await consumer.close()


async def test_what_was_published_outlives_the_process(tmp_path: Path) -> None:
    for n in range(2):
        publisher = backend_at(tmp_path / "queue.db").publisher()
        await publisher.publish("q", [Packet(body=b"%d" % n)])
        await publisher.close()
    consumer = backend_at(tmp_path / "queue.db").consumer("q", group="g", prefetch=5)
    assert [delivery.packet.body for delivery in await consumer.receive(5, 1.0)] == [b"0", b"1"]
    await consumer.close()


async def test_a_file_that_stays_locked_is_unavailable(tmp_path: Path) -> None:
    backend = backend_at(tmp_path / "queue.db", timeout="0.1")
    publisher = backend.publisher()
    await publisher.publish("q", [Packet(body=b"x")])
    rival = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    with pytest.raises(eo.BrokerUnavailable, match="locked"):
        await publisher.publish("q", [Packet(body=b"y")])
    rival.execute("ROLLBACK")
    assert list(await publisher.publish("q", [Packet(body=b"y")])) == [None]
    rival.close()
    await publisher.close()


async def test_an_ack_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    backend = backend_at(tmp_path / "queue.db", timeout="0.1")
    publisher, consumer = backend.publisher(), backend.consumer("q", group="g", prefetch=5)
    await publisher.publish("q", [Packet(body=b"x")])
    await consumer.ack(await consumer.receive(1, 1.0))
    rival = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    with pytest.raises(eo.BrokerUnavailable):
        await consumer.flush()
    rival.execute("ROLLBACK")
    await consumer.flush()
    assert rival.execute("SELECT count(*) FROM effectonce_messages").fetchone() == (0,)
    rival.close()
    await consumer.close()
    await publisher.close()


async def test_tables_of_another_version_are_refused(tmp_path: Path) -> None:
    backend = backend_at(tmp_path / "queue.db")
    await backend.declare("q", group="g")
    with sqlite3.connect(tmp_path / "queue.db") as rival:
        rival.execute("UPDATE effectonce_broker_version SET schema = 9")
    rival.close()
    with pytest.raises(eo.SchemaMismatch, match="version 9"):
        await backend_at(tmp_path / "queue.db").check("q", group="g")


async def test_a_long_line_behind_one_key_costs_nothing(tmp_path: Path) -> None:
    """Only the oldest of a key is in the index of what is due, so that the others are not looked through."""
    backend = backend_at(tmp_path / "queue.db")
    publisher, consumer = backend.publisher(), backend.consumer("q", group="g", prefetch=500)
    await publisher.publish("q", [Packet(body=b"%d" % n, ordering_key="hot") for n in range(1000)])
    await publisher.publish("q", [Packet(body=b"cold-%d" % n) for n in range(3)])
    found = await consumer.receive(500, 1.0)
    assert [delivery.packet.body for delivery in found] == [b"0", b"cold-0", b"cold-1", b"cold-2"]
    rival = sqlite3.connect(tmp_path / "queue.db")
    assert rival.execute("SELECT count(*) FROM effectonce_messages WHERE visible_at IS NOT NULL").fetchone() == (4,)
    plan = rival.execute(f"EXPLAIN QUERY PLAN {backend.sql['take']}", (1, b"", "q", 1, 1)).fetchall()
    assert "effectonce_due (queue=? AND visible_at<?)" in str(plan)
    assert "TEMP B-TREE" not in str(plan)
    rival.close()
    await consumer.close()
    await publisher.close()


async def test_two_consumers_never_get_the_same_delivery(tmp_path: Path) -> None:
    backend = backend_at(tmp_path / "queue.db")
    publisher = backend.publisher()
    await publisher.publish("q", [Packet(body=b"%d" % n) for n in range(500)])
    found: list[bytes] = []

    async def consume() -> None:
        consumer = backend.consumer("q", group="g", prefetch=50)
        while page := await consumer.receive(5, 0.1):
            found.extend(delivery.packet.body for delivery in page)
            await consumer.ack(page)
        await consumer.close()

    async with asyncio.timeout(30):
        await asyncio.gather(*(consume() for _ in range(4)))
    assert sorted(map(int, found)) == list(range(500))
    await publisher.close()


async def test_one_that_waits_for_a_message_looks_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look is a read of the file, of every consumer that has nothing to do."""
    consumer = backend_at(tmp_path / "queue.db").consumer("q", group="g", prefetch=5)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("effectonce.backends.sqlite.broker.asyncio", SimpleNamespace(sleep=note))
    await consumer.receive(1, 0.5)
    await consumer.close()
    doubled = pauses[: pauses.index(MAX_PAUSE_S)]
    assert doubled == [FIRST_PAUSE_S * 2**n for n in range(len(doubled))]
    assert len(doubled) > 1


async def test_waiting_for_a_message_does_not_hold_the_write_lock(tmp_path: Path) -> None:
    backend = backend_at(tmp_path / "queue.db", timeout="0.05")
    consumer = backend.consumer("q", group="g", prefetch=5)
    waiting = asyncio.ensure_future(consumer.receive(1, 5.0))
    await asyncio.sleep(0.05)
    publisher = backend.publisher()
    began = time.monotonic()
    for n in range(20):
        await publisher.publish("other", [Packet(body=b"%d" % n)])
    assert time.monotonic() - began < 5
    await publisher.publish("q", [Packet(body=b"x")])
    assert len(await waiting) == 1
    await consumer.close()
    await publisher.close()


@pytest.mark.parametrize(
    ("url", "error", "hint"),
    [
        ("sqlite:///q.db?nope=1", eo.InvalidOption, "ack_window"),
        ("sqlite:///q.db?prefix=sqlite_x", eo.InvalidOption, "prefix"),
        ("sqlite:///q.db?prefix=x;drop", eo.InvalidOption, "prefix"),
        ("sqlite://", eo.InvalidOption, "names no file"),
    ],
)
def test_a_wrong_option_is_refused(url: str, error: type[Exception], hint: str) -> None:
    with pytest.raises(error, match=hint):
        eo.connect_broker(url)


def test_its_capabilities_follow_its_options(tmp_path: Path) -> None:
    capabilities = backend_at(tmp_path / "queue.db", ack_window="1.5s").capabilities
    assert (capabilities.name, capabilities.ack_window_s, capabilities.ordering) == ("sqlite", 1.5, "key")
    assert capabilities.ordered_publish
    assert capabilities.extends
    assert capabilities.counts_attempts
    assert backend_at(tmp_path / "queue.db").capabilities.ack_window_s == 30.0


def open_files(path: Path) -> list[str]:
    names = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir() if link.exists()]
    return [name for name in names if name.startswith(str(path))]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells which files are open")
async def test_what_is_closed_leaves_no_file_open(tmp_path: Path) -> None:
    backend = backend_at(tmp_path / "queue.db")
    await backend.declare("q", group="g")
    assert open_files(tmp_path) == []
    publisher, consumer = backend.publisher(), backend.consumer("q", group="g", prefetch=5)
    dead_letters = backend.dead_letters("q", group="g")
    await publisher.publish("q", [Packet(body=b"x")])
    assert await consumer.receive(1, 1.0)
    assert await dead_letters.count() == 0
    assert open_files(tmp_path)
    for port in (publisher, consumer, dead_letters):
        await port.close()
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("verb", ["nack", "dead_letter", "extend"])
async def test_a_settlement_that_could_not_be_written_may_be_tried_again(tmp_path: Path, verb: str) -> None:
    backend = backend_at(tmp_path / "queue.db", timeout="0.1")
    publisher, consumer = backend.publisher(), backend.consumer("q", group="g", prefetch=1)
    await publisher.publish("q", [Packet(body=b"x")])
    (delivery,) = await consumer.receive(1, 1.0)

    async def settle() -> bool:
        if verb == "dead_letter":
            return await consumer.dead_letter(delivery, {})
        (answer,) = await (consumer.nack([delivery]) if verb == "nack" else consumer.extend([delivery], 5.0))
        return answer

    rival = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    with pytest.raises(eo.BrokerUnavailable, match="locked"):
        await settle()
    rival.execute("ROLLBACK")
    rival.close()
    assert await settle() is True
    await consumer.close()
    await publisher.close()


async def test_an_extended_delivery_still_takes_up_its_room(tmp_path: Path) -> None:
    """Also when its first window is over: the consumer has it until the second one is."""
    clock = ManualClock()
    backend = backend_at(tmp_path / "queue.db", clock, ack_window="10s")
    publisher, consumer = backend.publisher(), backend.consumer("q", group="g", prefetch=1)
    await publisher.publish("q", [Packet(body=b"0"), Packet(body=b"1")])
    (first,) = await consumer.receive(1, 1.0)
    assert list(await consumer.extend([first], 15.0)) == [True]
    clock.advance("14s")
    assert list(await consumer.receive(1, 0.0)) == []
    clock.advance("2s")
    (second,) = await consumer.receive(1, 1.0)
    assert (second.packet.body, second.attempt) == (b"1", 1)
    assert list(await consumer.ack([first])) == [False], "its window is over"
    assert list(await consumer.extend([first, second], 15.0)) == [False, True]
    await consumer.close()
    await publisher.close()


async def test_a_closed_consumer_hands_out_nothing_that_it_gave_back(tmp_path: Path) -> None:
    backend = backend_at(tmp_path / "queue.db")
    publisher, consumer = backend.publisher(), backend.consumer("q", group="g", prefetch=2)
    await publisher.publish("q", [Packet(body=b"0"), Packet(body=b"1")])
    assert len(await consumer.receive(2, 1.0)) == 2
    await consumer.close()
    again = await consumer.receive(2, 1.0)
    assert [(delivery.packet.body, delivery.attempt) for delivery in again] == [(b"0", 2), (b"1", 2)]
    assert list(await consumer.ack(again)) == [True, True]
    await consumer.close()
    await publisher.close()


async def test_a_wait_for_a_message_ends_in_time(tmp_path: Path) -> None:
    consumer = backend_at(tmp_path / "queue.db").consumer("q", group="g", prefetch=2)
    started = time.monotonic()
    assert list(await consumer.receive(1, 0.2)) == []
    assert 0.2 <= time.monotonic() - started < 30
    assert list(await consumer.receive(1, 0.0)) == []
    await consumer.close()


async def test_dead_letters_are_browsed_page_by_page_and_removed_once(tmp_path: Path) -> None:
    backend = backend_at(tmp_path / "queue.db")
    publisher, consumer = backend.publisher(), backend.consumer("q", group="g", prefetch=9)
    await publisher.publish("q", [Packet(body=b"%d" % n, headers={"n": str(n)}) for n in range(5)])
    for delivery in await consumer.receive(9, 1.0):
        await consumer.dead_letter(delivery, {"why": "never"})
    dead_letters = backend.dead_letters("q", group="g")
    pages, cursor = [], None
    while True:
        page, cursor = await dead_letters.browse(2, cursor)
        pages.append([letter.packet.body for letter in page])
        if cursor is None:
            break
    assert pages == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    (letter,), _ = await dead_letters.browse(1)
    assert letter.packet.headers == {"n": "0", "why": "never"}
    assert await dead_letters.remove([letter.id, letter.id, "no number"]) == 1
    assert await dead_letters.remove([]) == 0
    assert await dead_letters.count() == 4
    for port in (publisher, consumer, dead_letters):
        await port.close()


@pytest.mark.parametrize("queue", ["", "a\0b", "x" * 1000])
async def test_a_bad_name_of_a_queue_is_refused_everywhere(tmp_path: Path, queue: str) -> None:
    backend = backend_at(tmp_path / "queue.db")
    publisher = backend.publisher()
    with pytest.raises(eo.ConfigurationError):
        await publisher.publish(queue, [Packet(body=b"x")])
    with pytest.raises(eo.ConfigurationError):
        await backend.declare(queue, group="g")
    with pytest.raises(eo.ConfigurationError):
        backend.consumer(queue, group="g", prefetch=1)
    with pytest.raises(eo.ConfigurationError):
        backend.dead_letters(queue, group="g")
    await publisher.close()
