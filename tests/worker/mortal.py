"""A worker process that may be killed at any moment: ``python -m tests.worker.mortal MODE QUEUE BROKER STORE EFFECTS``.

Mode L: every run of the handler leaves a row in the database of effects, with the process it ran in. Mode first: the
same, with ``ack="first"``. Mode halting: as L, and no handler returns once it has had its effect. Mode T: as L, in the
transaction of the message.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from typing import Any

import effectonce as eo

NAME = "mortal"
CONCURRENCY = 8
HALT_S = 3600.0
RETRY = eo.Retry(None, first="100ms", cap="1s", max_crashes=1000)  # it is not the messages that are to blame here


def connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def leased(
    broker: eo.Broker, queue: str, store: eo.Store, effects: str, *, at_most_once: bool, pause: float
) -> eo.Worker:
    worker = eo.Worker(broker, store=store, name=NAME)
    rows = sqlite3.connect(effects, timeout=30, isolation_level=None)
    pid = os.getpid()

    def fenced(event: eo.Event) -> None:
        """On a machine that is too busy a lease may end while its process lives, and so may what was done under it."""
        if event.kind == "fenced":
            rows.execute("INSERT INTO fenced VALUES (?, ?)", (event.key, pid))

    store.add_hook(fenced)

    options: dict[str, Any] = {"ack": "first"} if at_most_once else {"retry": RETRY}

    @worker.handler(queue, concurrency=CONCURRENCY, lease="1s", **options)
    async def charge(message: eo.Message[dict[str, Any]]) -> None:
        await asyncio.sleep(0.005)
        rows.execute("INSERT INTO effects VALUES (?, ?)", (message.key, pid))
        await asyncio.sleep(pause)

    return worker


def transactional(broker: eo.Broker, queue: str, effects: str, batch: bool) -> eo.Worker:
    inbox = eo.Inbox(scope=NAME)
    worker = eo.Worker(broker, inbox=inbox, connect=lambda: connect(effects), name=NAME)
    pid = os.getpid()

    @worker.handler(queue, retry=RETRY, batch=batch, concurrency=2)
    def charge(connection: sqlite3.Connection, message: eo.Message[dict[str, Any]]) -> None:
        connection.execute("INSERT INTO effects VALUES (?, ?)", (message.key, pid))
        time.sleep(0.002)

    return worker


def main() -> None:
    mode, queue, broker_url, store_url, effects = sys.argv[1:]
    broker = eo.connect_broker(broker_url)
    if mode in ("L", "first", "halting"):
        pause = HALT_S if mode == "halting" else 0.002
        leased(broker, queue, eo.connect(store_url), effects, at_most_once=mode == "first", pause=pause).run()
    else:
        transactional(broker, queue, effects, batch=mode == "T-batch").run()


if __name__ == "__main__":
    main()
