"""A worker process that may be killed at any moment: ``python -m tests.worker.mortal MODE QUEUE BROKER STORE EFFECTS``.

Mode L: every run of the handler leaves a row in the database of effects, with the process it ran in. Mode T: the same,
in the transaction of the message.
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
RETRY = eo.Retry(None, first="100ms", cap="1s", max_crashes=1000)  # it is not the messages that are to blame here


def connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def leased(broker: eo.Broker, queue: str, store: eo.Store, effects: str) -> eo.Worker:
    worker = eo.Worker(broker, store=store, name=NAME)
    rows = sqlite3.connect(effects, timeout=30, isolation_level=None)
    pid = os.getpid()

    def fenced(event: eo.Event) -> None:
        """On a machine that is too busy a lease may end while its process lives, and so may what was done under it."""
        if event.kind == "fenced":
            rows.execute("INSERT INTO fenced VALUES (?, ?)", (event.key, pid))

    store.add_hook(fenced)

    @worker.handler(queue, retry=RETRY, concurrency=8, lease="1s")
    async def charge(message: eo.Message[dict[str, Any]]) -> None:
        await asyncio.sleep(0.005)
        rows.execute("INSERT INTO effects VALUES (?, ?)", (message.key, pid))
        await asyncio.sleep(0.002)

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
    if mode == "L":
        leased(broker, queue, eo.connect(store_url), effects).run()
    else:
        transactional(broker, queue, effects, batch=mode == "T-batch").run()


if __name__ == "__main__":
    main()
