"""Queues in a SQLite file: for one machine, several processes. May be the file of the store.

The machine's wall clock is the broker's clock, since all who share the file share it. What is delivered stays in its
table, invisible until its ack window ends; of one ordering key only the oldest is ever visible. The statements are in
``sql/backends/sqlite/broker.sql``. Consumers look every few milliseconds: SQLite cannot call them.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from effectonce.backends.common import sql_files as sqlfiles
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
from effectonce.errors import InvalidOption, SchemaMismatch
from effectonce.values.clocks import MachineClock
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address

from .connection import Connection, File, Hopping, run_script

T = TypeVar("T")

SCHEMA: Final = 1
#: Between two looks at a queue that was empty, in seconds: the first, and the longest.
QUICK, SLOW = 0.002, 0.03

_headers = msgspec.json.Decoder(dict[str, str])
_to_json = msgspec.json.Encoder().encode


class SQLiteBackend:
    """``sqlite:///file.db?ack_window=30s&synchronous=FULL&timeout=5s&prefix=effectonce``.

    ``ack_window``: how long an unsettled delivery stays with its consumer. ``synchronous``: FULL (default) and EXTRA
    keep what was confirmed through a power cut; NORMAL may then lose the last of it, though never through the death of
    a process. ``timeout``: how long to wait for the write lock.
    """

    def __init__(self, address: Address, *, clock: Clock | None = None) -> None:
        self.file = File(address)
        self.window = round(address.seconds("ack_window", 30.0) * 1e6)
        prefix = address.take("prefix", _prefix, "effectonce")
        address.done()
        self.clock: Clock = clock if clock is not None else MachineClock()
        self._names = {
            "prefix": prefix,
            "messages": f"{prefix}_messages",
            "dead": f"{prefix}_dead_letters",
            "version": f"{prefix}_broker_version",
        }
        self.sql = sqlfiles.statements("backends/sqlite/broker.sql", **self._names)
        self.capabilities = BrokerCapabilities(
            name="sqlite",
            native_delay=True,
            native_dead_letters=True,
            ordering="key",
            ordered_publish=True,
            ack_window=self.window / 1e6,
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
        table = Table(self)
        try:
            await table.step(lambda cursor: None)
        finally:
            await table.close()

    async def check(self, queue: str, *, group: str) -> None:
        await self.declare(queue, group=group)

    async def close(self) -> None:
        return None

    def is_new(self) -> bool:
        return self.file.lacks(self._names["version"])

    def prepare(self, cursor: sqlite3.Cursor) -> None:
        """What a new connection does first: see that the tables are there in our version, or create them."""
        select = f"SELECT schema FROM {self._names['version']}"
        try:
            found = cursor.execute(select).fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            run_script(cursor, sqlfiles.script("backends/sqlite/broker_schema.sql", **self._names))
            found = cursor.execute(select).fetchone()
        if found != (SCHEMA,):
            raise SchemaMismatch(
                f"{self!r} has queues of schema version {found and found[0]}, this release reads {SCHEMA}; upgrade "
                "effectonce, or set the option prefix"
            )

    def __repr__(self) -> str:
        return str(self.file)


def _prefix(text: str) -> str:
    if f"{text}_".lower().startswith("sqlite_"):
        raise InvalidOption("SQLite keeps names that begin with sqlite_ for itself; take another prefix")
    return sqlfiles.table_prefix(text)


class _Table:
    """One connection. Its coroutines never suspend."""

    def __init__(self, backend: SQLiteBackend) -> None:
        self._connection = Connection(backend.file, backend.prepare)

    async def step(self, do: Callable[[sqlite3.Cursor], T]) -> T:
        return self._connection.step(do)

    async def transaction(self, do: Callable[[sqlite3.Cursor], T], then: Callable[[T], None] | None) -> T:
        answer = self._connection.transaction(do)
        if then is not None:
            then(answer)
        return answer

    async def close(self) -> None:
        self._connection.close()


class Table(Hopping[_Table]):
    """One connection, on a thread of its own, and the errors of a broker."""

    def __init__(self, backend: SQLiteBackend) -> None:
        super().__init__(_Table(backend))

    async def step(self, do: Callable[[sqlite3.Cursor], T]) -> T:
        """What ``do`` returns; each of its statements is a transaction of its own."""
        with as_broker():
            return await self._hop(self._port.step, do)

    async def transaction(self, do: Callable[[sqlite3.Cursor], T], then: Callable[[T], None] | None = None) -> T:
        """What ``do`` returns, all of it or nothing; it may be run again. ``then`` is told on the thread, once it is
        committed, though nobody may wait for it any more."""
        with as_broker():
            return await self._hop(self._port.transaction, do, then)


class SQLitePublisher:
    """See `contracts.Publisher`. A batch is one transaction: all of it is there, or none."""

    def __init__(self, backend: SQLiteBackend) -> None:
        self._backend = backend
        self._table = Table(backend)

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        require_name(queue)
        if packets:
            await self._table.transaction(lambda cursor: self._insert(cursor, queue, packets))
        return [None] * len(packets)

    def _insert(self, cursor: sqlite3.Cursor, queue: str, packets: Sequence[Packet]) -> None:
        now, sql = self._backend.clock.now(), self._backend.sql["publish"]
        for packet in packets:
            headers = _to_json(packet.headers).decode()
            row = {"queue": queue, "now": now, "id": packet.id, "key": packet.ordering_key, "headers": headers}
            cursor.execute(sql, {**row, "body": packet.body})

    async def close(self) -> None:
        await self._table.close()


class _Held(msgspec.Struct, gc=False):
    """A delivery that this consumer has not settled."""

    number: int
    token: bytes
    key: str | None
    ends: int


class SQLiteConsumer:
    """See `contracts.Consumer`. Acks wait for the next look at the queue, and are one transaction with it."""

    def __init__(self, backend: SQLiteBackend, queue: str, prefetch: int) -> None:
        self._backend = backend
        self._sql = backend.sql
        self._now = backend.clock.now
        self._window = backend.window
        self._queue = queue
        self._prefetch = prefetch
        self._table = Table(backend)
        self._held: dict[int, _Held] = {}
        self._acks: list[_Held] = []
        self._arrived: list[Delivery] = []  # taken from the table, and not yet returned to anyone

    # -- receiving

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait
        pause = QUICK
        while True:
            await self._look(limit)
            if self._arrived:  # what a cancelled receive had taken is among them
                found, self._arrived = self._arrived[:limit], self._arrived[limit:]
                return found
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            await asyncio.sleep(min(left, pause))
            pause = min(pause * 2, SLOW)

    async def _look(self, limit: int) -> None:
        """Send the acks that wait, and take up to ``limit`` deliveries."""
        if not self._acks and not (self._room(limit) and await self._table.step(self._anything)):
            return
        acks, self._acks = self._acks, []
        try:
            await self._table.transaction(lambda cursor: self._turn(cursor, acks, limit), self._took)
        except BaseException:
            self._acks = acks + self._acks  # perhaps sent, perhaps not: an ack may be repeated
            raise

    def _room(self, limit: int) -> int:
        """How many more may be taken, of ``limit``."""
        if len(self._held) >= self._prefetch:  # what has lapsed is no longer held, though nobody said so
            now = self._now()
            for held in list(self._held.values()):
                if held.ends <= now:
                    self._held.pop(held.number, None)
        return max(min(limit - len(self._arrived), self._prefetch - len(self._held)), 0)

    def _anything(self, cursor: sqlite3.Cursor) -> bool:
        """Without the write lock, which many who find nothing would pass around."""
        return cursor.execute(self._sql["anything"], (self._queue, self._now())).fetchone() is not None

    def _turn(self, cursor: sqlite3.Cursor, acks: Sequence[_Held], limit: int) -> list[Delivery]:
        for held in acks:
            self._drop(cursor, held)
        room = self._room(limit)
        if not room:
            return []
        now, token = self._now(), os.urandom(16)
        ends = now + self._window
        rows = cursor.execute(self._sql["take"], (ends, token, self._queue, now, room)).fetchall()
        return [
            Delivery(
                packet=Packet(body=body, headers=_headers.decode(headers), id=id, ordering_key=key),
                queue=self._queue,
                attempt=attempts,
                handle=_Held(number, token, key, ends),
            )
            for number, attempts, id, key, headers, body in sorted(rows)
        ]

    def _took(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._held[delivery.handle.number] = delivery.handle
        self._arrived += deliveries

    def _drop(self, cursor: sqlite3.Cursor, held: _Held) -> bool:
        """It is settled: the next of its ordering key becomes visible."""
        if cursor.execute(self._sql["drop"], (held.number, held.token)).rowcount == 0:
            return False
        if held.key is not None:
            cursor.execute(self._sql["next_of_key"], (self._now(), self._queue, held.key))
        return True

    # -- settling

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        now = self._now()
        ours = [self._release(delivery.handle) for delivery in deliveries]
        mine = [delivery.handle for delivery, our in zip(deliveries, ours, strict=True) if our]
        if all(held.ends > now for held in mine):
            self._acks += mine
            return ours
        proven = iter(await self._each(self._drop, mine))
        return [our and next(proven) for our in ours]

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return await self._settle(self._showing(delay), deliveries)

    def _showing(self, delay: float) -> Callable[[sqlite3.Cursor, _Held], bool]:
        def show(cursor: sqlite3.Cursor, held: _Held) -> bool:
            at = self._now() + round(delay * 1e6)
            return cursor.execute(self._sql["show"], (at, held.number, held.token)).rowcount > 0

        return show

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        written = _to_json({**delivery.packet.headers, **headers}).decode()

        def bury(cursor: sqlite3.Cursor, held: _Held) -> bool:
            cursor.execute(self._sql["bury"], (written, held.number, held.token))
            return self._drop(cursor, held)

        (answer,) = await self._settle(bury, [delivery])
        return answer

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        def extend(cursor: sqlite3.Cursor, held: _Held) -> bool:
            ends = self._now() + round(seconds * 1e6)
            if cursor.execute(self._sql["extend"], (ends, held.number, held.token)).rowcount == 0:
                return False
            held.ends = ends
            return True

        ours = [self._held.get(d.handle.number) is d.handle for d in deliveries]
        proven = iter(await self._each(extend, [d.handle for d, our in zip(deliveries, ours, strict=True) if our]))
        return [our and next(proven) for our in ours]

    def _release(self, mine: _Held) -> bool:
        """Whether it was ours and unsettled; it is settled now."""
        if self._held.get(mine.number) is not mine:
            return False
        del self._held[mine.number]
        return True

    async def _settle(self, do: Callable[[sqlite3.Cursor, _Held], bool], deliveries: Sequence[Delivery]) -> list[bool]:
        ours = [self._release(delivery.handle) for delivery in deliveries]
        mine = [delivery.handle for delivery, our in zip(deliveries, ours, strict=True) if our]
        try:
            proven = iter(await self._each(do, mine))
        except BaseException:
            self._held.update((held.number, held) for held in mine)  # it may be tried again
            raise
        return [our and next(proven) for our in ours]

    async def _each(self, do: Callable[[sqlite3.Cursor, _Held], bool], mine: Sequence[_Held]) -> list[bool]:
        if not mine:
            return []
        return await self._table.transaction(lambda cursor: [do(cursor, held) for held in mine])

    async def flush(self) -> None:
        await self._look(0)

    async def close(self) -> None:
        try:
            await take_leave(self._give_back)
        finally:
            self._arrived.clear()
            self._held.clear()
            await self._table.close()

    async def _give_back(self) -> None:
        await self.flush()
        await self._each(self._showing(0.0), list(self._held.values()))


class SQLiteDeadLetters:
    """See `contracts.DeadLetters`. Ids grow, so the cursor is the last id of a page."""

    def __init__(self, backend: SQLiteBackend, queue: str) -> None:
        self._sql = backend.sql
        self._queue = queue
        self._table = Table(backend)

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
        numbers = [int(each) for each in dict.fromkeys(ids) if each.isdigit()]

        def remove(cursor: sqlite3.Cursor) -> int:
            return sum(cursor.execute(self._sql["remove"], (self._queue, number)).rowcount for number in numbers)

        return await self._table.transaction(remove) if numbers else 0

    async def count(self) -> int:
        ((count,),) = await self._rows("count", self._queue)
        return int(count)

    async def _rows(self, name: str, *values: object) -> list[tuple[Any, ...]]:
        return await self._table.step(lambda cursor: cursor.execute(self._sql[name], values).fetchall())

    async def close(self) -> None:
        await self._table.close()
