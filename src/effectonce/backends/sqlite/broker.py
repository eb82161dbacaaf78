"""Queues in a SQLite file, for several processes on one machine. It may be the file of the store.

The broker's clock is the machine's wall clock, which all processes that share the file have in common. A delivered
message stays in its table, invisible until its ack window ends; only the oldest message of an ordering key is ever
visible. The statements are in ``broker.sql``. Consumers poll every few milliseconds: SQLite cannot notify them.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from effectonce.backends.common.visibility_timeout import HeldDelivery, UnsettledDeliveries, give_back_unsettled
from effectonce.contracts import (
    BrokerBackend,
    BrokerCapabilities,
    Clock,
    Consumer,
    DeadLetter,
    DeadLetters,
    Delivery,
    Packet,
    Publisher,
)
from effectonce.core import sql_files
from effectonce.errors import BrokerUnavailable, SchemaMismatch, StoreUnavailable
from effectonce.values.clocks import MachineClock
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address

from .connection import SQLiteConnection, run_script
from .file import SQLiteFile, parse_prefix
from .threaded_connection import ThreadedConnection

T = TypeVar("T")

SCHEMA_VERSION: Final = 1
#: The pause between two polls of an empty queue doubles from the first to the second.
FIRST_PAUSE_S: Final = 0.002
MAX_PAUSE_S: Final = 0.03

_headers_decoder = msgspec.json.Decoder(dict[str, str])
_to_json = msgspec.json.Encoder().encode


class SQLiteBrokerBackend(BrokerBackend):
    """``sqlite:///file.db?ack_window=30s&synchronous=FULL&timeout=5s&prefix=effectonce``.

    ``ack_window``: how long an unsettled delivery stays with its consumer. ``synchronous``: with FULL (default) and
    EXTRA, confirmed messages survive a power cut; with NORMAL a power cut may lose the last of them, the death of a
    process none. ``timeout``: how long to wait for the write lock. ``prefix``: of the tables.
    """

    def __init__(self, address: Address, *, clock: Clock | None = None) -> None:
        self.file = SQLiteFile(address)
        self.window_us = round(address.seconds("ack_window", 30.0) * 1e6)
        prefix = address.take("prefix", parse_prefix, "effectonce")
        address.refuse_unknown_options()
        self.clock: Clock = clock if clock is not None else MachineClock()
        self._names = {
            "prefix": prefix,
            "messages": f"{prefix}_messages",
            "dead": f"{prefix}_dead_letters",
            "version": f"{prefix}_broker_version",
        }
        self.sql = sql_files.read_statements("backends/sqlite/broker.sql", **self._names)
        self.capabilities = BrokerCapabilities(
            name="sqlite",
            ordering="key",
            ordered_publish=True,
            ack_window_s=self.window_us / 1e6,
            extends=True,
            counts_attempts=True,
            max_delay_s=None,
            max_body=500_000_000,
            batch=500,
        )

    def publisher(self) -> Publisher:
        return SQLitePublisher(self)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Consumer:
        return SQLiteConsumer(self, require_name(queue), prefetch)

    def dead_letters(self, queue: str, *, group: str) -> DeadLetters:
        return SQLiteDeadLetters(self, require_name(queue))

    async def declare(self, queue: str, *, group: str) -> None:
        require_name(queue)
        connection = BrokerConnection(self)
        try:
            await connection.execute(lambda cursor: None)  # connecting creates the tables
        finally:
            await connection.close()

    def is_new(self) -> bool:
        return self.file.lacks(self._names["version"])

    def prepare(self, cursor: sqlite3.Cursor) -> None:
        """Create the tables where they are missing. Every new connection calls this first.

        Raises `SchemaMismatch` where a release with another schema has created them.
        """
        select = f"SELECT schema FROM {self._names['version']}"
        try:
            version = cursor.execute(select).fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            run_script(cursor, sql_files.read_script("backends/sqlite/broker_schema.sql", **self._names))
            version = cursor.execute(select).fetchone()
        if version != (SCHEMA_VERSION,):
            raise SchemaMismatch(
                f"{self!r} has queues of schema version {version and version[0]}, this release reads {SCHEMA_VERSION}; "
                "upgrade effectonce, or set the option prefix"
            )

    def __repr__(self) -> str:
        return str(self.file)


class BrokerConnection:
    """One connection, on a thread of its own. It raises `BrokerUnavailable` where a store would raise
    `StoreUnavailable`."""

    def __init__(self, backend: SQLiteBrokerBackend) -> None:
        self._connection = SQLiteConnection(backend.file, backend.prepare)
        self._threaded = ThreadedConnection(self._connection)

    async def execute(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Run ``work``, and return its result. Each of its statements is a transaction of its own."""
        with _as_broker_errors():
            return await self._threaded.execute(work)

    async def transaction(self, work: Callable[[sqlite3.Cursor], T], on_commit: Callable[[T], None] | None = None) -> T:
        """Run ``work`` in one transaction, and return its result. It may run more than once, while the file is locked.

        ``on_commit`` gets the result on the connection's thread after the commit, even if the caller was cancelled.
        """

        def commit() -> T:
            result = self._connection.transaction(work)
            if on_commit is not None:
                on_commit(result)
            return result

        with _as_broker_errors():
            return await self._threaded.run_on_thread(commit)

    async def close(self) -> None:
        await self._threaded.close()


class SQLitePublisher:
    """See `contracts.Publisher`. A batch is one transaction: all of it is published, or none."""

    def __init__(self, backend: SQLiteBrokerBackend) -> None:
        self._backend = backend
        self._connection = BrokerConnection(backend)

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        require_name(queue)
        if packets:
            await self._connection.transaction(lambda cursor: self._insert(cursor, queue, packets))
        return [None] * len(packets)

    def _insert(self, cursor: sqlite3.Cursor, queue: str, packets: Sequence[Packet]) -> None:
        now, sql = self._backend.clock.now(), self._backend.sql["publish"]
        for packet in packets:
            headers = _to_json(packet.headers).decode()
            row = {"queue": queue, "id": packet.id, "key": packet.ordering_key, "headers": headers}
            cursor.execute(sql, {**row, "body": packet.body, "visible_at": now + round(packet.delay_s * 1e6)})

    async def close(self) -> None:
        await self._connection.close()


class SQLiteDelivery(HeldDelivery):
    """A `HeldDelivery` whose key is the number of its row. The token proves that the row is still this consumer's."""

    token: bytes
    ordering_key: str | None


class SQLiteConsumer:
    """See `contracts.Consumer`. Acks wait for the next poll of the queue, and are one transaction with it."""

    def __init__(self, backend: SQLiteBrokerBackend, queue: str, prefetch: int) -> None:
        self._backend = backend
        self._sql = backend.sql
        self._now = backend.clock.now
        self._window_us = backend.window_us
        self._queue = queue
        self._connection = BrokerConnection(backend)
        self._unsettled: UnsettledDeliveries[SQLiteDelivery] = UnsettledDeliveries(prefetch, backend.clock.now)
        self._acks: list[SQLiteDelivery] = []  # not yet sent
        self._arrived: list[Delivery] = []  # taken from the table, and not yet returned by `receive`

    # -- receiving

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait
        pause = FIRST_PAUSE_S
        while True:
            await self._poll(limit)
            if self._arrived:  # including what a cancelled receive had taken
                deliveries, self._arrived = self._arrived[:limit], self._arrived[limit:]
                return deliveries
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                return []
            await asyncio.sleep(min(seconds_left, pause))
            pause = min(pause * 2, MAX_PAUSE_S)

    async def _poll(self, limit: int) -> None:
        """Send the acks that wait, and take up to ``limit`` deliveries, in one transaction."""
        if not self._acks and not (self._room(limit) and await self._connection.execute(self._has_visible)):
            return
        acks, self._acks = self._acks, []
        try:
            await self._connection.transaction(
                lambda cursor: self._ack_and_take(cursor, acks, limit), self._add_deliveries
            )
        except BaseException:
            self._acks = acks + self._acks  # perhaps they were sent; an ack may be repeated
            raise

    def _room(self, limit: int) -> int:
        """How many of ``limit`` deliveries may be taken."""
        return max(min(limit - len(self._arrived), self._unsettled.room()), 0)

    def _has_visible(self, cursor: sqlite3.Cursor) -> bool:
        """Whether the queue has a visible message. This takes no write lock, which idle consumers would contend for."""
        return cursor.execute(self._sql["has_visible"], (self._queue, self._now())).fetchone() is not None

    def _ack_and_take(self, cursor: sqlite3.Cursor, acks: Sequence[SQLiteDelivery], limit: int) -> list[Delivery]:
        for held in acks:
            self._delete(cursor, held)
        room = self._room(limit)
        if not room:
            return []
        now, token = self._now(), os.urandom(16)
        ends_at = now + self._window_us
        rows = cursor.execute(self._sql["take"], (ends_at, token, self._queue, now, room)).fetchall()
        return [
            Delivery(
                packet=Packet(body=body, headers=_headers_decoder.decode(headers), id=id, ordering_key=key),
                queue=self._queue,
                attempt=attempts,
                handle=SQLiteDelivery(number, ends_at, token, key),
            )
            for number, attempts, id, key, headers, body in sorted(rows)
        ]

    def _add_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._unsettled.add(delivery.handle)
        self._arrived += deliveries

    def _delete(self, cursor: sqlite3.Cursor, held: SQLiteDelivery) -> bool:
        """Delete a settled message, and make the next one of its ordering key visible. False where another consumer has
        it now."""
        if cursor.execute(self._sql["delete"], (held.key, held.token)).rowcount == 0:
            return False
        if held.ordering_key is not None:
            cursor.execute(self._sql["make_next_visible"], (self._now(), self._queue, held.ordering_key))
        return True

    # -- settling

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        if not all(map(self._unsettled.owns, self._held_among(deliveries))):
            return await self._settle(self._delete, deliveries)  # the timeout of one is over: is the row still ours?
        self._acks += self._held_among(deliveries)
        return [self._unsettled.release(delivery.handle) for delivery in deliveries]

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return await self._settle(self._make_visible_after(delay), deliveries)

    def _make_visible_after(self, delay: float) -> Callable[[sqlite3.Cursor, SQLiteDelivery], bool]:
        def make_visible(cursor: sqlite3.Cursor, held: SQLiteDelivery) -> bool:
            at = self._now() + round(delay * 1e6)
            return cursor.execute(self._sql["make_visible"], (at, held.key, held.token)).rowcount > 0

        return make_visible

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        all_headers = _to_json({**delivery.packet.headers, **headers}).decode()

        def move(cursor: sqlite3.Cursor, held: SQLiteDelivery) -> bool:
            cursor.execute(self._sql["copy_to_dead_letters"], (all_headers, held.key, held.token))
            return self._delete(cursor, held)

        (answer,) = await self._settle(move, [delivery])
        return answer

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        def extend(cursor: sqlite3.Cursor, held: SQLiteDelivery) -> bool:
            ends_at = self._now() + round(seconds * 1e6)
            if cursor.execute(self._sql["extend"], (ends_at, held.key, held.token)).rowcount == 0:
                return False
            held.ends_at = ends_at
            return True

        return await self._unsettled.extend(deliveries, lambda held: self._apply(extend, held))

    async def _settle(
        self, work: Callable[[sqlite3.Cursor, SQLiteDelivery], bool], deliveries: Sequence[Delivery]
    ) -> list[bool]:
        """Apply ``work`` to every delivery that is unsettled, and release it. Returns which ones were still ours."""
        return await self._unsettled.settle(deliveries, lambda held: self._apply(work, held))

    def _held_among(self, deliveries: Sequence[Delivery]) -> list[SQLiteDelivery]:
        return [delivery.handle for delivery in deliveries if self._unsettled.holds(delivery.handle)]

    async def _apply(
        self, work: Callable[[sqlite3.Cursor, SQLiteDelivery], bool], held: Sequence[SQLiteDelivery]
    ) -> list[bool]:
        if not held:
            return []
        return await self._connection.transaction(lambda cursor: [work(cursor, delivery) for delivery in held])

    async def flush(self) -> None:
        await self._poll(0)

    async def close(self) -> None:
        try:
            await give_back_unsettled(self._give_back)
        finally:
            self._arrived.clear()
            self._unsettled.release_all()
            await self._connection.close()

    async def _give_back(self) -> None:
        await self.flush()
        await self._apply(self._make_visible_after(0.0), list(self._unsettled))


class SQLiteDeadLetters:
    """See `contracts.DeadLetters`. Ids grow, so the cursor is the last id of a page."""

    def __init__(self, backend: SQLiteBrokerBackend, queue: str) -> None:
        self._sql = backend.sql
        self._queue = queue
        self._connection = BrokerConnection(backend)

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        rows = await self._fetch("browse", self._queue, int(cursor) if cursor else 0, limit + 1)
        page = [
            DeadLetter(
                id=str(number),
                packet=Packet(body=body, headers=_headers_decoder.decode(headers), id=id, ordering_key=key),
                queue=self._queue,
            )
            for number, id, key, headers, body in rows[:limit]
        ]
        return page, page[-1].id if len(rows) > limit else None

    async def remove(self, ids: Sequence[str]) -> int:
        numbers = [int(id) for id in dict.fromkeys(ids) if id.isdigit()]

        def remove(cursor: sqlite3.Cursor) -> int:
            return sum(cursor.execute(self._sql["remove"], (self._queue, number)).rowcount for number in numbers)

        return await self._connection.transaction(remove) if numbers else 0

    async def count(self) -> int:
        ((count,),) = await self._fetch("count", self._queue)
        return int(count)

    async def _fetch(self, name: str, *values: object) -> list[tuple[Any, ...]]:
        return await self._connection.execute(lambda cursor: cursor.execute(self._sql[name], values).fetchall())

    async def close(self) -> None:
        await self._connection.close()


@contextmanager
def _as_broker_errors() -> Iterator[None]:
    """Raise `BrokerUnavailable` where the connection raises `StoreUnavailable`, with the same ``retry_after``.

    SQLite's store and broker share their connection; a broker's callers handle brokers' errors.
    """
    try:
        yield
    except StoreUnavailable as error:
        raise BrokerUnavailable(str(error), error.retry_after) from error
