"""F74: in transactions, too, attempts are starts. What a process had only prefetched when it died has used none."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo

from . import prefetcher

MESSAGES = 40
KILLS = 5


class Shop:
    """A queue of a real broker, a table of effects and an inbox beside it, and worker processes."""

    def __init__(self, broker: str, database: str, queue: str, starts: Path) -> None:
        self.broker_url, self.database, self.queue, self.starts_file = broker, database, queue, starts
        starts.touch()
        self.processes: list[subprocess.Popen[str]] = []
        self.broker = eo.connect_broker(broker)
        self.dead = eo.DeadLetterQueue(self.broker, queue, group=prefetcher.NAME)
        inbox = eo.Inbox(scope=prefetcher.NAME, table=f"{queue}_inbox")
        with closing(prefetcher.connect(database)) as connection:
            if not database.startswith("postgresql"):
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"CREATE TABLE {queue} (number int)")
            inbox.migrate(connection)
            connection.commit()

    def send(self, numbers: range) -> None:
        self.broker.declare(self.queue, group=prefetcher.NAME)
        self.broker.publish(self.queue, [eo.Message(type="paid", data=number) for number in numbers])

    def start(self, mode: str) -> subprocess.Popen[str]:
        places = [self.broker_url, self.queue, self.database, str(self.starts_file)]
        command = [sys.executable, "-m", "tests.worker.prefetcher", mode, *places]
        process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def handled(self) -> list[int]:
        with closing(prefetcher.connect(self.database)) as connection:
            return sorted(row[0] for row in connection.execute(f"SELECT number FROM {self.queue}").fetchall())

    def starts(self) -> list[tuple[int, ...]]:
        """Of each start of the handler: the message, its `Message.attempt`, and that of `current()`."""
        return [tuple(map(int, line.split())) for line in self.starts_file.read_text().splitlines()]


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


@pytest.fixture(params=["sqlite-sqlite", "redis-postgres", "redis-sqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Iterator[Shop]:
    broker, _, database = request.param.partition("-")
    url = f"sqlite:///{tmp_path}/queue.db" if broker == "sqlite" else request.getfixturevalue("redis_url")
    path = request.getfixturevalue("postgres_url") if database == "postgres" else str(tmp_path / "shop.db")
    shop = Shop(f"{url}?ack_window=1s", path, unique_name, tmp_path / "starts")
    yield shop
    for process in shop.processes:  # those that a failed test has left
        process.kill()
        process.wait()
    shop.broker.close()
    with closing(prefetcher.connect(path)) as connection:
        for table in (unique_name, f"{unique_name}_inbox", f"{unique_name}_inbox_starts"):
            connection.execute(f"DROP TABLE {table}")
        connection.commit()


@pytest.mark.quick_on("sqlite-sqlite")
def test_f74_five_kills_use_up_no_attempt_of_what_was_only_prefetched(shop: Shop) -> None:
    shop.send(range(MESSAGES))
    for _ in range(KILLS):
        process = shop.start("stall")
        assert process.stdout is not None
        assert process.stdout.readline() == "stalled\n"
        process.kill()
        process.communicate()
    last = shop.start("work")
    try:
        wait_until(lambda: len(shop.handled()) == MESSAGES)
    finally:
        last.send_signal(signal.SIGTERM)
        last.communicate(timeout=30)
    assert shop.dead.count() == 0
    assert shop.handled() == list(range(MESSAGES))
    starts = shop.starts()
    assert len(starts) <= MESSAGES + KILLS, "each process that was killed had started on one message more"
    assert all(message_attempt == attempt for _, message_attempt, attempt in starts)
    first_starts = {number: attempt for number, _, attempt in reversed(starts)}
    assert first_starts == dict.fromkeys(range(MESSAGES), 1)


@pytest.mark.quick_on("sqlite-sqlite")
def test_f74_what_always_fails_has_its_attempts_and_no_more_over_all_restarts(shop: Shop) -> None:
    shop.send(range(1))
    restarts = 0
    while not shop.dead.count():
        process = shop.start("fail")
        try:
            assert process.wait(timeout=60) == 0, "each attempt asks its worker to stop"
        finally:
            process.kill()
            process.communicate()
        restarts += 1
    assert restarts > 1
    assert shop.starts() == [(0, attempt, attempt) for attempt in range(1, 5)]
    (dead,) = shop.dead.list()
    assert (dead.cause.why, dead.cause.attempts) == ("attempts-exhausted", 4)
    assert "no such account" in dead.cause.text


@pytest.mark.quick_on("sqlite-sqlite")
def test_f20_poison_is_a_dead_letter_after_two_counted_starts(shop: Shop) -> None:
    shop.send(range(1))
    for _ in range(10):
        process = shop.start("die")
        wait_until(lambda: process.poll() is not None or shop.dead.count())  # noqa: B023
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        if shop.dead.count():
            break
    (dead,) = shop.dead.list()
    assert (dead.cause.why, dead.cause.attempts) == ("poison", 2)
    assert len(shop.starts()) == 3, "the start of the first delivery is not counted"
