"""Processes that are killed: a consumer in mode T, and a relay. Each tells its parent where it is, and waits there.

Run by `multiprocessing`, which forks every child from a process that has imported this module.
"""

from __future__ import annotations

import asyncio
import os
import signal
from multiprocessing.connection import Connection
from typing import Any, Final

import effectonce as eo
import effectonce.public  # once, and not in every child
from effectonce.relay.pump import RelayPump
from tests.relay.harness import Database

CONSUMER: Final = ("begun", "recorded", "paid", "sent", "committed")
RELAY: Final = ("starting", "leased", "published", "settled")


def halt(pipe: Connection, point: str, at: str) -> None:
    """Say that ``point`` is reached, where it is the one to die at, and wait for the end."""
    if point == at:
        pipe.send(point)
        signal.pause()


def consume(pipe: Connection, database: Database, order: str, at: str) -> None:
    """Handle one delivery of ``order``: record it, pay it, announce it, commit, acknowledge."""
    inbox = eo.Inbox(scope="payments", table=f"{database.prefix}_inbox")
    outbox = database.outbox("paid")
    connection = database.connect()
    halt(pipe, "begun", at)
    if inbox.first(connection, eo.Message(data={"order": order}, id=order)):
        halt(pipe, "recorded", at)
        connection.cursor().execute(f"INSERT INTO {database.prefix}_payments (name) VALUES ('{order}')")
        halt(pipe, "paid", at)
        outbox.send(connection, eo.Message(data={"order": order}, id=f"paid-{order}", ordering_key=order[:2]))
        halt(pipe, "sent", at)
    connection.commit()
    halt(pipe, "committed", at)
    connection.close()
    pipe.send("ack")


class _Watched:
    """A port or a publisher that halts after one of its methods."""

    def __init__(self, inner: Any, method: str, point: str, pipe: Connection, at: str) -> None:
        self._inner = inner

        async def watched(*args: Any, **kwargs: Any) -> Any:
            answer = await getattr(inner, method)(*args, **kwargs)
            if getattr(answer, "rows", answer):  # a lease of no rows does not count
                halt(pipe, point, at)
            return answer

        setattr(self, method, watched)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def relay(pipe: Connection, database: Database, broker_url: str, at: str) -> None:
    """Send what is due until nothing is, with leases that end soon."""
    honest = RelayPump.__init__

    def watch(self: Any, settings: Any, state: Any, port: Any, publisher: Any) -> None:
        port = _Watched(_Watched(port, "lease", "leased", pipe, at), "settle", "settled", pipe, at)
        honest(self, settings, state, port, _Watched(publisher, "publish", "published", pipe, at))

    RelayPump.__init__ = watch  # type: ignore[method-assign]
    halt(pipe, "starting", at)
    with eo.connect(database.url) as store, eo.connect_broker(broker_url) as broker:
        count = asyncio.run(eo.Relay(store, broker, lease="1s", batch=2).drain())
    pipe.send(count)


def main(work: str, pipe: Connection, *args: Any) -> None:
    try:
        {"consume": consume, "relay": relay}[work](pipe, *args)
    except BaseException as error:
        pipe.send(f"failed: {error!r}")
    finally:
        pipe.close()
        os._exit(0)
