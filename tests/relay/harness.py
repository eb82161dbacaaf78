"""A database with an outbox, seen from its callers, and a broker that does as it is told."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import effectonce as eo
from effectonce.contracts import BrokerCapabilities, OutboxPort, Packet
from effectonce.contracts.outbox import LeasedRows, LeaseRequest
from effectonce.envelopes import CloudEvents
from effectonce.outbox.outbox import Outbox
from effectonce.relay.relay import Relay
from effectonce.store import open_backend


class Database:
    """One of the three, with tables of its own prefix."""

    def __init__(self, name: str, server: str, prefix: str) -> None:
        self.name = name
        self.prefix = prefix
        self.url = f"{server}{'&' if '?' in server else '?'}prefix={prefix}"
        self.table = f"{prefix}_outbox"
        self._server = server
        self._people: Any = None
        self._stores: list[eo.Store] = []

    def connect(self) -> Any:
        """A connection as a caller has it: its transactions are its own."""
        if self.name == "sqlite":
            return sqlite3.connect(self._server.removeprefix("sqlite:///"), timeout=10)
        if self.name == "postgres":
            import psycopg

            return psycopg.connect(self._server)
        import pymysql

        address = urlsplit(self._server)
        return pymysql.connect(
            host=address.hostname, port=address.port or 3306, user=address.username, database=address.path[1:]
        )

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        connection = self.connect()
        try:
            yield connection
            connection.commit()
        finally:
            connection.close()

    def execute(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """One statement by itself; {outbox} stands for the table, ? for a parameter."""
        if self._people is None:
            self._people = self.connect()
        cursor = self._people.cursor()
        sql = sql.format(outbox=self.table, meta=f"{self.prefix}_meta", inbox=f"{self.prefix}_inbox")
        cursor.execute(sql if self.name == "sqlite" else sql.replace("?", "%s"), params)
        rows = list(cursor.fetchall()) if cursor.description else []
        self._people.commit()
        return rows

    def vacuum(self) -> None:
        """As PostgreSQL does it by itself, now and then."""
        connection = self.connect()
        connection.autocommit = True
        connection.execute(f"VACUUM {self.table}")
        connection.close()

    def close(self) -> None:
        if self._people is not None:
            self._people.close()
        for store in self._stores:
            store.close()

    # -- senders

    def outbox(self, to: str = "orders", **options: Any) -> Outbox:
        return Outbox(to=to, table=self.table, **options)

    def send(self, *messages: eo.Message[Any], to: str = "orders") -> None:
        with self.transaction() as connection:
            self.outbox(to).send_many(connection, messages)

    def send_numbers(self, numbers: Sequence[int], *, key: Callable[[int], str | None] = lambda n: None) -> None:
        """Messages whose data and id are these numbers."""
        self.send(*(message(n, key(n)) for n in numbers))

    # -- relays

    def store(self) -> eo.Store:
        store = eo.connect(self.url)
        self._stores.append(store)
        return store

    def relay(self, broker: Any, **options: Any) -> Relay:
        return Relay(self.store(), broker, **options)

    def port(self) -> OutboxPort:
        backend: Any = open_backend(self.url)
        port: OutboxPort = backend.async_outbox()
        return port

    def states(self) -> dict[str, int]:
        return dict(self.execute("SELECT state, count(*) FROM {outbox} GROUP BY state"))


def message(number: int, key: str | None = None) -> eo.Message[Any]:
    return eo.Message(data={"n": number}, type="numbered", id=f"m{number}", ordering_key=key)


async def lease(
    port: OutboxPort, owner: bytes, limit: int = 100, span: float = 30.0, ordered: bool = True
) -> LeasedRows:
    return await port.lease(LeaseRequest(owner=owner, limit=limit, lease_us=round(span * 1e6), ordered=ordered))


def numbers(leased: LeasedRows) -> list[int]:
    return [int(row.message_id[1:]) for row in leased.rows]


class Refused(Exception):
    """What the fake broker says to a packet that it does not take."""


class FakeBroker:
    """Keeps what it was sent. ``refuse`` answers each packet, ``raises`` is raised by the next publish calls."""

    def __init__(self, **capabilities: Any) -> None:
        self.capabilities = BrokerCapabilities(name="fake", **{"batch": 1000, **capabilities})
        self.sent: list[tuple[str, Packet]] = []
        self.calls: list[list[str]] = []
        self.refuse: Callable[[Packet], Exception | None] = lambda packet: None
        self.raises: Callable[[Sequence[Packet]], Exception | None] = lambda packets: None
        self.entered = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.closed = 0

    def publisher(self) -> FakePublisher:
        return FakePublisher(self)

    def numbers(self, queue: str = "orders") -> list[int]:
        return [int(packet.id[1:]) for to, packet in self.sent if to == queue]

    def messages(self) -> list[eo.Message[Any]]:
        return [CloudEvents().decode(packet) for _, packet in self.sent]


class FakePublisher:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        broker = self._broker
        broker.calls.append([packet.id for packet in packets])
        broker.entered.set()
        if broker.gate is not None:
            await broker.gate.wait()
        error = broker.raises(packets)
        if error is not None:
            raise error
        outcomes = [broker.refuse(packet) for packet in packets]
        broker.sent += [(queue, packet) for packet, outcome in zip(packets, outcomes, strict=True) if outcome is None]
        return outcomes

    async def close(self) -> None:
        self._broker.closed += 1
