"""Queues in a SQLite file: for one machine, several processes. May be the file of the store.

The machine's wall clock is the broker's clock: all processes that share the file share it. A delivered message stays in
its table, invisible until its ack window ends; of one ordering key only the oldest is ever visible. The statements are
in ``backends/sqlite/broker.sql``. Consumers poll every few milliseconds: SQLite cannot notify them.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from effectonce.backends.common import sql_files
from effectonce.backends.common.broker_errors import as_broker, take_leave
from effectonce.contracts import (
    BrokerCapabilities,
    Clock,
    Consumer,
    DeadLetter,
    DeadLetters,
    Delivery,
    Packet,
    Publisher,
)
from effectonce.errors import SchemaMismatch
from effectonce.values.clocks import MachineClock
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address

from .connection import SQLiteConnection, SQLiteFile, ThreadedAdapter, parse_prefix, run_script

T = TypeVar("T")

SCHEMA_VERSION: Final = 1
FIRST_POLL_PAUSE_S: Final = 0.002  # between two polls of an empty queue ...
MAX_POLL_PAUSE_S: Final = 0.03  # ... and after some of them

_headers = msgspec.json.Decoder(dict[str, str])
_to_json = msgspec.json.Encoder().encode


class SQLiteBrokerBackend:
    """``sqlite:///file.db?ack_window=30s&synchronous=FULL&timeout=5s&prefix=effectonce``.

    ``ack_window``: how long an unsettled delivery stays with its consumer. ``synchronous``: FULL (default) and EXTRA
    keep what was confirmed through a power cut; NORMAL may then lose the last of it, though never when a process dies.
    ``timeout``: how long to wait for the write lock.
    """

    def __init__(self, address: Address, *, clock: Clock | None = None) -> None:
        self.file = SQLiteFile(address)
        self.ack_window_us = round(address.seconds("ack_window", 30.0) * 1e6)
        prefix = address.take("prefix", parse_prefix, "effectonce")
        address.done()
        self.clock: Clock = clock if clock is not None else MachineClock()
        self._names = {
            "prefix": prefix,
            "messages": f"{prefix}_messages",
            "dead": f"{prefix}_dead_letters",
            "version": f"{prefix}_broker_version",
        }
        self.sql = sql_files.statements("backends/sqlite/broker.sql", **self._names)
        self.capabilities = BrokerCapabilities(
            name="sqlite",
            native_delay=True,
            native_dead_letters=True,
            ordering="key",
            ordered_publish=True,
            ack_window=self.ack_window_us / 1e6,
            extends=True,
            counts_attempts=True,
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
        connection = QueueConnection(self)
        try:
            await connection.step(lambda cursor: None)
        finally:
            await connection.close()

    async def check(self, queue: str, *, group: str) -> None:
        await self.declare(queue, group=group)

    async def close(self) -> None:
        return None

    def is_new(self) -> bool:
        return self.file.lacks(self._names["version"])

    def prepare(self, cursor: sqlite3.Cursor) -> None:
        """Prepare a new connection: create the tables where they are missing, and check their version."""
        select = f"SELECT schema FROM {self._names['version']}"
        try:
            version = cursor.execute(select).fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            run_script(cursor, sql_files.script("backends/sqlite/broker_schema.sql", **self._names))
            version = cursor.execute(select).fetchone()
        if version != (SCHEMA_VERSION,):
            raise SchemaMismatch(
                f"{self!r} has queues of schema version {version and version[0]}, this release reads {SCHEMA_VERSION}; "
                "upgrade effectonce, or set the option prefix"
            )

    def __repr__(self) -> str:
        return str(self.file)


class _SyncQueueConnection:
    """One connection. Its coroutines never suspend."""

    def __init__(self, backend: SQLiteBrokerBackend) -> None:
        self._connection = SQLiteConnection(backend.file, backend.prepare)

    async def step(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        return self._connection.step(work)

    async def transaction(self, work: Callable[[sqlite3.Cursor], T], on_commit: Callable[[T], None] | None) -> T:
        answer = self._connection.transaction(work)
        if on_commit is not None:
            on_commit(answer)
        return answer

    async def close(self) -> None:
        self._connection.close()


class QueueConnection(ThreadedAdapter[_SyncQueueConnection]):
    """One connection on a thread of its own. It raises the errors of a broker."""

    def __init__(self, backend: SQLiteBrokerBackend) -> None:
        super().__init__(_SyncQueueConnection(backend))

    async def step(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Call ``work``; each of its statements is a transaction of its own."""
        with as_broker():
            return await self._run_on_thread(self._port.step, work)

    async def transaction(self, work: Callable[[sqlite3.Cursor], T], on_commit: Callable[[T], None] | None = None) -> T:
        """Call ``work`` in one transaction; it may be called again. ``on_commit`` is called on the thread with its
        result after the commit, even if the caller was cancelled meanwhile."""
        with as_broker():
            return await self._run_on_thread(self._port.transaction, work, on_commit)


class SQLitePublisher:
    """See `contracts.Publisher`. A batch is one transaction."""

    def __init__(self, backend: SQLiteBrokerBackend) -> None:
        self._backend = backend
        self._connection = QueueConnection(backend)

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        require_name(queue)
        if packets:
            await self._connection.transaction(lambda cursor: self._insert(cursor, queue, packets))
        return [None] * len(packets)

    def _insert(self, cursor: sqlite3.Cursor, queue: str, packets: Sequence[Packet]) -> None:
        now, sql = self._backend.clock.now(), self._backend.sql["publish"]
        for packet in packets:
            headers = _to_json(packet.headers).decode()
            row = {"queue": queue, "now": now, "id": packet.id, "key": packet.ordering_key, "headers": headers}
            cursor.execute(sql, {**row, "body": packet.body})

    async def close(self) -> None:
        await self._connection.close()


class UnsettledRow(msgspec.Struct, gc=False):
    """A row that was delivered to this consumer, which has not settled it."""

    number: int
    token: bytes  # of this delivery: a later one has another
    key: str | None
    window_ends_at: int


class SQLiteConsumer:
    """See `contracts.Consumer`. Acks wait for the next poll of the queue, and are one transaction with it."""

    def __init__(self, backend: SQLiteBrokerBackend, queue: str, prefetch: int) -> None:
        self._backend = backend
        self._sql = backend.sql
        self._now = backend.clock.now
        self._ack_window_us = backend.ack_window_us
        self._queue = queue
        self._prefetch = prefetch
        self._connection = QueueConnection(backend)
        self._unsettled: dict[int, UnsettledRow] = {}
        self._pending_acks: list[UnsettledRow] = []
        self._received: list[Delivery] = []  # taken from the table, and not returned by `receive` yet

    # -- receiving

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait
        pause = FIRST_POLL_PAUSE_S
        while True:
            await self._poll(limit)
            if self._received:  # also what a cancelled receive had taken
                page, self._received = self._received[:limit], self._received[limit:]
                return page
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return []
            await asyncio.sleep(min(remaining, pause))
            pause = min(pause * 2, MAX_POLL_PAUSE_S)

    async def _poll(self, limit: int) -> None:
        """Send the pending acks, and take up to ``limit`` deliveries."""
        if not self._pending_acks and not (self._room(limit) and await self._connection.step(self._has_visible)):
            return
        acks, self._pending_acks = self._pending_acks, []
        try:
            await self._connection.transaction(
                lambda cursor: self._ack_and_take(cursor, acks, limit), self._add_received
            )
        except BaseException:
            self._pending_acks = acks + self._pending_acks  # they may have been sent; an ack may be repeated
            raise

    def _room(self, limit: int) -> int:
        """How many of ``limit`` may be taken now."""
        if len(self._unsettled) >= self._prefetch:  # drop those whose window has ended: they are another's by now
            now = self._now()
            for row in list(self._unsettled.values()):
                if row.window_ends_at <= now:
                    self._unsettled.pop(row.number, None)
        return max(min(limit - len(self._received), self._prefetch - len(self._unsettled)), 0)

    def _has_visible(self, cursor: sqlite3.Cursor) -> bool:
        """Whether a message is visible. Asked without the write lock, for which idle consumers would compete."""
        return cursor.execute(self._sql["anything"], (self._queue, self._now())).fetchone() is not None

    def _ack_and_take(self, cursor: sqlite3.Cursor, acks: Sequence[UnsettledRow], limit: int) -> list[Delivery]:
        for row in acks:
            self._delete(cursor, row)
        room = self._room(limit)
        if not room:
            return []
        now, token = self._now(), os.urandom(16)
        window_ends_at = now + self._ack_window_us
        rows = cursor.execute(self._sql["take"], (window_ends_at, token, self._queue, now, room)).fetchall()
        return [
            Delivery(
                packet=Packet(body=body, headers=_headers.decode(headers), id=id, ordering_key=key),
                queue=self._queue,
                attempt=attempts,
                handle=UnsettledRow(number, token, key, window_ends_at),
            )
            for number, attempts, id, key, headers, body in sorted(rows)
        ]

    def _add_received(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._unsettled[delivery.handle.number] = delivery.handle
        self._received += deliveries

    def _delete(self, cursor: sqlite3.Cursor, row: UnsettledRow) -> bool:
        """Delete a settled row, and make the next one of its ordering key visible."""
        if cursor.execute(self._sql["drop"], (row.number, row.token)).rowcount == 0:
            return False
        if row.key is not None:
            cursor.execute(self._sql["next_of_key"], (self._now(), self._queue, row.key))
        return True

    # -- settling

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        now = self._now()
        is_owned = [self._release(delivery.handle) for delivery in deliveries]
        owned = [delivery.handle for delivery, own in zip(deliveries, is_owned, strict=True) if own]
        if all(row.window_ends_at > now for row in owned):
            self._pending_acks += owned
            return is_owned
        applied = iter(await self._apply(self._delete, owned))
        return [own and next(applied) for own in is_owned]

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return await self._settle(self._make_visible(delay), deliveries)

    def _make_visible(self, delay: float) -> Callable[[sqlite3.Cursor, UnsettledRow], bool]:
        def show(cursor: sqlite3.Cursor, row: UnsettledRow) -> bool:
            at = self._now() + round(delay * 1e6)
            return cursor.execute(self._sql["show"], (at, row.number, row.token)).rowcount > 0

        return show

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        all_headers = _to_json({**delivery.packet.headers, **headers}).decode()

        def bury(cursor: sqlite3.Cursor, row: UnsettledRow) -> bool:
            cursor.execute(self._sql["bury"], (all_headers, row.number, row.token))
            return self._delete(cursor, row)

        (answer,) = await self._settle(bury, [delivery])
        return answer

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        def extend(cursor: sqlite3.Cursor, row: UnsettledRow) -> bool:
            window_ends_at = self._now() + round(seconds * 1e6)
            if cursor.execute(self._sql["extend"], (window_ends_at, row.number, row.token)).rowcount == 0:
                return False
            row.window_ends_at = window_ends_at
            return True

        is_owned = [self._unsettled.get(delivery.handle.number) is delivery.handle for delivery in deliveries]
        owned = [delivery.handle for delivery, own in zip(deliveries, is_owned, strict=True) if own]
        applied = iter(await self._apply(extend, owned))
        return [own and next(applied) for own in is_owned]

    def _release(self, row: UnsettledRow) -> bool:
        """Give up a row. Returns whether this consumer owned it."""
        if self._unsettled.get(row.number) is not row:
            return False
        del self._unsettled[row.number]
        return True

    async def _settle(
        self, work: Callable[[sqlite3.Cursor, UnsettledRow], bool], deliveries: Sequence[Delivery]
    ) -> list[bool]:
        is_owned = [self._release(delivery.handle) for delivery in deliveries]
        owned = [delivery.handle for delivery, own in zip(deliveries, is_owned, strict=True) if own]
        try:
            applied = iter(await self._apply(work, owned))
        except BaseException:
            self._unsettled.update((row.number, row) for row in owned)  # the caller may try again
            raise
        return [own and next(applied) for own in is_owned]

    async def _apply(
        self, work: Callable[[sqlite3.Cursor, UnsettledRow], bool], rows: Sequence[UnsettledRow]
    ) -> list[bool]:
        """Apply ``work`` to each row in one transaction."""
        if not rows:
            return []
        return await self._connection.transaction(lambda cursor: [work(cursor, row) for row in rows])

    async def flush(self) -> None:
        await self._poll(0)

    async def close(self) -> None:
        try:
            await take_leave(self._give_back)
        finally:
            self._received.clear()
            self._unsettled.clear()
            await self._connection.close()

    async def _give_back(self) -> None:
        await self.flush()
        await self._apply(self._make_visible(0.0), list(self._unsettled.values()))


class SQLiteDeadLetters:
    """See `contracts.DeadLetters`. Ids grow, so the cursor is the last id of a page."""

    def __init__(self, backend: SQLiteBrokerBackend, queue: str) -> None:
        self._sql = backend.sql
        self._queue = queue
        self._connection = QueueConnection(backend)

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        rows = await self._rows("browse", self._queue, int(cursor) if cursor else 0, limit + 1)
        page = [
            DeadLetter(
                id=str(number),
                packet=Packet(body=body, headers=_headers.decode(headers), id=id, ordering_key=key),
                queue=self._queue,
            )
            for number, id, key, headers, body in rows[:limit]
        ]
        return page, page[-1].id if len(rows) > limit else None

    async def remove(self, ids: Sequence[str]) -> int:
        numbers = [int(letter_id) for letter_id in dict.fromkeys(ids) if letter_id.isdigit()]

        def remove(cursor: sqlite3.Cursor) -> int:
            return sum(cursor.execute(self._sql["remove"], (self._queue, number)).rowcount for number in numbers)

        return await self._connection.transaction(remove) if numbers else 0

    async def count(self) -> int:
        ((count,),) = await self._rows("count", self._queue)
        return int(count)

    async def _rows(self, name: str, *values: object) -> list[tuple[Any, ...]]:
        return await self._connection.step(lambda cursor: cursor.execute(self._sql[name], values).fetchall())

    async def close(self) -> None:
        await self._connection.close()
