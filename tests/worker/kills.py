"""Workers killed at random while messages flow, some of them twice; the effects are counted.

``python -m tests.worker.kills [--messages 10000] [--kills 40]`` shows it at full size, on SQLite, Redis and RabbitMQ.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import effectonce as eo
from tests.harness import servers
from tests.harness.rabbitmq import rabbitmq

from . import mortal


@dataclass
class Count:
    messages: int
    deliveries: int
    kills: int
    effects: int
    distinct: int
    unrecorded: int  # mode L: runs whose success was not recorded when their process was killed
    fenced: int  # mode L: runs that had lost their lease when they wanted to record it
    dead: int
    in_doubt: int  # mode first: messages that have no effect and are in doubt
    seconds: float

    @property
    def lost(self) -> int:
        return self.messages - self.distinct

    @property
    def doubled(self) -> int:
        return self.effects - self.distinct

    def __str__(self) -> str:
        return (
            f"{self.deliveries} deliveries of {self.messages} messages, {self.kills} kills: {self.lost} lost, "
            f"{self.doubled} doubled, {self.unrecorded} unrecorded at the kills, {self.fenced} fenced, "
            f"{self.dead} dead, {self.in_doubt} in doubt; {self.seconds:.1f} s"
        )


class Show:
    """One run: ``workers`` processes, of which one after another is killed when it has done some work."""

    def __init__(self, mode: str, broker: str, store: str, folder: Path, seed: int, queue: str = "orders") -> None:
        self.mode = mode
        self.queue = queue
        self.scope = f"{queue}/*/{mortal.NAME}"
        self.broker_url = broker
        self.store_url = store
        self.path = str(folder / "effects.db")
        self.random = random.Random(seed)
        self.broker = eo.connect_broker(broker)
        self.store = eo.connect(store, sweep_every=None) if mode in ("L", "first") else None
        self.effects = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        self.effects.executescript(
            "PRAGMA journal_mode = WAL; CREATE TABLE effects (key TEXT, pid INTEGER);"
            "CREATE TABLE fenced (key TEXT, pid INTEGER)"
        )
        if self.store is None:
            self.effects.executescript(eo.Inbox(scope=mortal.NAME).schema_sql("sqlite"))
        self.unrecorded = 0

    def start(self, mode: str = "") -> subprocess.Popen[bytes]:
        urls = [self.broker_url, self.store_url, self.path]
        command = [sys.executable, "-m", "tests.worker.mortal", mode or self.mode, self.queue, *urls]
        return subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)

    def count(self, sql: str, *params: object) -> int:
        return int(self.effects.execute(sql, params).fetchone()[0])

    def publish(self, messages: Sequence[eo.Message[Any]]) -> None:
        self.broker.declare(self.queue, group=mortal.NAME)
        for start in range(0, len(messages), 100):
            self.broker.publish(self.queue, messages[start : start + 100])

    def run(self, messages: int, kills: int, workers: int = 2) -> Count:
        began = time.monotonic()
        sent = [eo.Message(type="paid", data={"n": number}) for number in range(messages)]
        flow = sent + self.random.sample(sent, messages // 10)
        self.random.shuffle(flow)
        self.publish(flow)
        running = [self.start() for _ in range(workers)]
        killed = 0
        try:
            while killed < kills:
                enough = self.random.randint(1, max(2, messages // (2 * kills)))
                victim = self.worked(running, enough, messages)
                if victim is None:
                    break
                running[victim].kill()
                running[victim].wait()
                killed += 1
                self.look_back(running[victim].pid)
                running[victim] = self.start()
            self.wait(lambda: self.done() + self.in_doubt() == messages, 60 + messages / 50)
        finally:
            end(*running)
        dlq = eo.DeadLetterQueue(self.broker, self.queue, group=mortal.NAME)
        count = Count(
            messages,
            len(flow),
            killed,
            self.count("SELECT count(*) FROM effects"),
            self.done(),
            self.unrecorded,
            self.count("SELECT count(*) FROM fenced"),
            dlq.count(),
            self.in_doubt(),
            time.monotonic() - began,
        )
        self.close()
        return count

    def close(self) -> None:
        self.broker.close()
        self.effects.close()
        if self.store is not None:
            self.store.close()

    def done(self) -> int:
        return self.count("SELECT count(DISTINCT key) FROM effects")

    def in_doubt(self) -> int:
        """How many messages are in doubt and had no effect. Only with ``ack="first"`` are there any."""
        if self.mode != "first" or self.store is None:
            return 0
        self.store.purge()  # what was left claimed is in doubt once its lease is over
        keys = [record.key for record in self.store.list(scope=self.scope, state="in_doubt", limit=1000).records]
        return sum(self.count("SELECT count(*) FROM effects WHERE key = ?", key) == 0 for key in keys)

    def worked(self, running: list[subprocess.Popen[bytes]], enough: int, messages: int) -> int | None:
        """Which of them is the first to have got so far; None when there is nothing left to do."""

        def effects() -> list[int]:
            return [self.count("SELECT count(*) FROM effects WHERE pid = ?", each.pid) for each in running]

        before, found = effects(), list[int]()

        def got_there() -> bool:
            found[:] = [
                at for at, (then, now) in enumerate(zip(before, effects(), strict=True)) if now >= then + enough
            ]
            return bool(found) or self.done() == messages

        self.wait(got_there, 60)
        return None if self.done() == messages else found[0]

    def look_back(self, pid: int) -> None:
        """How many effects of the killed process are not recorded: these may happen again."""
        if self.store is None:
            return
        # The latest first: those that are not recorded are among them, and run again when their leases have ended.
        latest = "SELECT key FROM effects WHERE pid = ? GROUP BY key ORDER BY max(rowid) DESC"
        for (key,) in self.effects.execute(latest, (pid,)).fetchall():
            record = self.store.get(self.scope, key)
            self.unrecorded += record is None or record.state != "done"

    @staticmethod
    def wait(condition: object, seconds: float) -> None:
        assert callable(condition)
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not come to its end"
            time.sleep(0.005)


def end(*processes: subprocess.Popen[bytes]) -> None:
    for each in processes:
        each.send_signal(signal.SIGTERM)
    for each in processes:
        try:
            each.wait(20)
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()


@contextlib.contextmanager
def places(kind: str, folder: Path) -> Iterator[tuple[str, str]]:
    """URLs of a broker and a store, on servers of their own."""
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            yield f"sqlite:///{folder}/queue.db?ack_window=2s&synchronous=FULL", f"sqlite:///{folder}/store.db"
            return
        redis = stack.enter_context(servers.redis())
        if kind == "redis":
            yield f"{redis.url}?ack_window=2s", redis.url
            return
        yield stack.enter_context(rabbitmq()).url, redis.url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("sqlite", "redis", "rabbitmq"))
    options = parser.parse_args()
    for kind in (options.only,) if options.only else ("sqlite", "redis", "rabbitmq"):
        for mode in ("L", "T", "T-batch"):
            with tempfile.TemporaryDirectory() as folder, places(kind, Path(folder)) as (broker, store):
                count = Show(mode, broker, store, Path(folder), options.seed).run(options.messages, options.kills)
            print(f"{kind:9} {mode:8} {count}", flush=True)
            assert count.lost == 0
            assert count.doubled <= count.unrecorded + count.fenced if mode == "L" else count.doubled == 0


if __name__ == "__main__":
    main()
