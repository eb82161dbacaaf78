"""A worker in transactions that prefetches everything.

``python -m tests.worker.prefetcher MODE BROKER QUEUE DATABASE STARTS``: each start adds a line to the file STARTS.
``stall``: after two messages it prints "stalled" in its handler, to be killed there. ``work``: it handles all.
``fail``: every attempt fails, and asks its process to stop. ``die``: every attempt ends the process.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from typing import Any

import psycopg

import effectonce as eo

NAME = "prefetcher"


def connect(database: str) -> Any:
    if database.startswith("postgresql://"):
        return psycopg.connect(database)
    connection = sqlite3.connect(database, timeout=30)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def main() -> None:
    mode, broker_url, queue, database, starts = sys.argv[1:]
    worker = eo.Worker(
        eo.connect_broker(broker_url),
        inbox=eo.Inbox(scope=NAME, table=f"{queue}_inbox"),
        connect=lambda: connect(database),
        name=NAME,
        prefetch=200,
    )
    handled = 0

    @worker.handler(queue, retry=eo.Retry(4, first="50ms", cap="50ms"), concurrency=1)
    def handle(connection: Any, message: eo.Message[int]) -> None:
        nonlocal handled
        with open(starts, "a") as file:
            file.write(f"{message.data} {message.attempt} {eo.current().attempt}\n")
        if mode == "die":
            os._exit(1)
        if mode == "fail":
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("no such account")
        if mode == "stall" and handled == 2:
            print("stalled", flush=True)
            threading.Event().wait()
        handled += 1
        connection.execute(f"INSERT INTO {queue} VALUES ({message.data})")

    worker.run()


if __name__ == "__main__":
    main()
