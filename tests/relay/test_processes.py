"""Real processes, really killed, between real servers."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import Packet
from tests.harness.waiting import until
from tests.relay import victims
from tests.relay.harness import Database

pytestmark = [pytest.mark.chaos, pytest.mark.quick_on("postgres")]


@pytest.fixture(scope="module")
def processes() -> Any:
    """Fresh ones that need not import everything again."""
    forkserver.set_forkserver_preload([victims.__name__])
    return multiprocessing.get_context("forkserver")


class Crew:
    """Starts the victims and kills them where they were told to halt."""

    def __init__(self, processes: Any, database: Database, broker_url: str) -> None:
        self._processes = processes
        self.database = database
        self.broker_url = broker_url
        self._started: list[Any] = []

    def _start(self, *work: Any) -> tuple[Any, Any]:
        ours, theirs = self._processes.Pipe()
        process = self._processes.Process(target=victims.main, args=(work[0], theirs, *work[1:]), daemon=True)
        process.start()
        theirs.close()
        self._started.append(process)
        return process, ours

    def _told(self, pipe: Any) -> Any:
        assert pipe.poll(30), "a process did not answer"
        return pipe.recv()

    def kill(self, point: str, *work: Any) -> None:
        """Let it reach ``point``, then SIGKILL: no exception, no release, no goodbye."""
        process, pipe = self._start(*work, point)
        assert self._told(pipe) == point
        process.kill()
        process.join()

    def finish(self, *work: Any) -> Any:
        process, pipe = self._start(*work, "")
        answer = self._told(pipe)
        process.join()
        return answer

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.join()


@pytest.fixture
def crew(processes: Any, database: Database, redis_url: str, unique_name: str) -> Iterator[Crew]:
    database.execute(f"CREATE TABLE {database.prefix}_payments (name VARCHAR(40))")
    database.close()
    database._people = None  # a connection does not travel to another process
    crew = Crew(processes, database, f"{redis_url}?namespace={unique_name}")
    yield crew
    crew.close()


def downstream(url: str, queue: str) -> list[Packet]:
    """All that was published to ``queue``, in order."""

    async def read() -> list[Packet]:
        broker = eo.connect_broker(url)
        await broker.backend.declare(queue, group="readers")
        consumer = broker.backend.consumer(queue, group="readers", prefetch=10_000)
        found: list[Packet] = []
        while deliveries := await consumer.receive(1000, 0.05):
            found += [delivery.packet for delivery in deliveries]
            await consumer.ack(deliveries)
        await consumer.close()
        await broker.aclose()
        return found

    return asyncio.run(read())


def test_killed_between_every_two_steps_nothing_is_lost_and_nothing_doubled(crew: Crew) -> None:
    """F03, F04, F33, F42, F52: business rows = inbox rows = events seen downstream after dedup by id."""
    database = crew.database
    orders = []
    for n, point in enumerate(victims.CONSUMER):
        order = f"o{n}"
        orders.append(order)
        crew.kill(point, "consume", database, order)
        assert crew.finish("consume", database, order) == "ack", "the same delivery, again"
    for n, point in enumerate(victims.RELAY):
        orders.append(f"r{n}")
        assert crew.finish("consume", database, f"r{n}") == "ack"
        crew.kill(point, "relay", database, crew.broker_url)
        assert crew.finish("consume", database, f"r{n}") == "ack", "a late duplicate sends nothing new"
    deadline = time.monotonic() + 30
    while database.execute("SELECT count(*) FROM {outbox} WHERE state <> 'published'") != [(0,)]:
        assert time.monotonic() < deadline
        database.close()
        database._people = None
        crew.finish("relay", database, crew.broker_url)
    key = "`key`" if database.name == "mariadb" else "key"
    inbox = sorted(name for (name,) in database.execute(f"SELECT {key} FROM {{inbox}}"))
    payments = sorted(name for (name,) in database.execute(f"SELECT name FROM {database.prefix}_payments"))
    packets = downstream(crew.broker_url, "paid")
    events = sorted({packet.id.removeprefix("paid-") for packet in packets})
    assert inbox == payments == events == sorted(orders)
    assert len(packets) > len(events), "the relay that died between publish and mark left a duplicate: same id (F42)"


class Command:
    """`effectonce relay` as people run it."""

    def __init__(self, database: Database, broker_url: str, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "effectonce",
            "relay",
            "--store",
            database.url,
            "--broker",
            broker_url,
            *options,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self, how: signal.Signals) -> tuple[int, str, str]:
        os.kill(self.process.pid, how)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


def published(database: Database) -> int:
    return int(database.execute("SELECT count(*) FROM {outbox} WHERE state = 'published'")[0][0])


def test_sigterm_lets_a_relay_settle_and_give_back(database: Database, redis_url: str, unique_name: str) -> None:
    """F58: what left is marked, nothing stays leased, and the exit is clean."""
    broker_url = f"{redis_url}?namespace={unique_name}"
    database.send_numbers(range(3000), key=lambda n: f"k{n % 50}")
    command = Command(database, broker_url, "--batch", "20", "--json", "--every", "0.2")
    until(lambda: published(database) > 100)
    code, out, err = command.end(signal.SIGTERM)
    assert (code, err) == (0, "")
    first, *_, last = map(json.loads, out.splitlines())
    assert first["event"] == "started"
    assert last["event"] == "ended"
    left = database.execute("SELECT count(*) FROM {outbox} WHERE leased_until > 0 AND state = 'pending'")
    assert left == [(0,)]
    sent = [packet.id for packet in downstream(broker_url, "orders")]
    assert len(sent) == len(set(sent)) == published(database) == last["published"]


@pytest.mark.quick_on("sqlite")
def test_relays_that_are_killed_at_any_time_lose_nothing_and_keep_the_order(
    database: Database, redis_url: str, unique_name: str
) -> None:
    """F42, F43: two at once, each killed in turn; by first arrival every line is in order."""
    broker_url = f"{redis_url}?namespace={unique_name}"
    database.send_numbers(range(4000), key=lambda n: f"k{n % 40}")
    options = ("--batch", "50", "--lease", "1s")
    first, second = Command(database, broker_url, *options), Command(database, broker_url, *options)
    until(lambda: published(database) > 200)
    first.end(signal.SIGKILL)
    mark = published(database)
    until(lambda: published(database) > min(3900, mark + 200))
    second.end(signal.SIGKILL)
    third = Command(database, broker_url, *options)
    until(lambda: published(database) == 4000)
    assert third.end(signal.SIGINT)[0] == 130, "as after every Ctrl-C"
    seen = list(dict.fromkeys(int(packet.id[1:]) for packet in downstream(broker_url, "orders")))
    assert sorted(seen) == list(range(4000))
    assert all([n for n in seen if n % 40 == k] == list(range(k, 4000, 40)) for k in range(40))
