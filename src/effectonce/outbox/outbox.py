"""`Outbox`: messages that leave if, and only if, the caller's own transaction commits.

    with conn.transaction():
        conn.execute("UPDATE orders …")
        outbox.send(conn, eo.Message(type="order.paid", data={"order": 42}))

The message is a row in that transaction. A `Relay` takes it to the broker afterwards, as often as it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, overload

import msgspec

from effectonce.backends.common.sql_files import outbox_schema, outbox_words, quoted
from effectonce.contracts import AsyncConnection, AsyncpgConnection, Dialect, Session, SyncConnection, Tracer
from effectonce.contracts.outbox import OutboxRow, hash_line, notify_channel
from effectonce.core.codec import to_json
from effectonce.core.drive import Pending, drive
from effectonce.core.hints import ring
from effectonce.errors import ConfigurationError, InvalidKey, InvalidOption, KeyTooLong, PayloadTooLarge, show
from effectonce.message import Message
from effectonce.sessions import session_on
from effectonce.values.queue_names import require_name

MAX_SIZE: Final = 256 * 1024
MAX_TEXT: Final = 4096  # characters of an id, a key, an ordering key and the like
_MAX_ROWS: Final = 500  # in one statement, which also keeps it under every server's limits ...
_MAX_BYTES: Final = 2 * 1024 * 1024  # ... for a packet


class Outbox:
    """Messages to the queue ``to``, as rows of a table beside your own.

    - ``table``: its name, which may name a schema (``shop.outbox``). `migrate` and `schema_sql` create it.
    - ``max_size``: the most bytes of a message's data and headers, as they are stored.
    - ``notify``: on PostgreSQL, wake the relay at the commit instead of at its next look, at most a second later. Such
      commits wait for each other: for few messages that are urgent, not for many.

    `send` takes the connection that the transaction is open on, and follows its colour: on an async one it gives
    something to await. It never begins or ends that transaction. A message that cannot be stored is refused before any
    statement is sent, and the transaction goes on; of many, all are sent or none.
    """

    def __init__(
        self, *, to: str, table: str = "effectonce_outbox", max_size: int = MAX_SIZE, notify: bool = False
    ) -> None:
        if type(max_size) is not int or max_size < 1:
            raise InvalidOption(f"max_size={max_size!r} must be a number of bytes, more than zero")
        outbox_words("postgresql", table)  # refuses what no database could name a table and its indexes
        self.to = require_name(to)
        self.table = table
        self.max_size = max_size
        self._notify = notify
        self.tracer: Tracer | None = None

    def __repr__(self) -> str:
        return f"<Outbox to {self.to!r} in {self.table}>"

    @overload
    def send(self, conn: SyncConnection, message: Message[Any]) -> None: ...
    @overload
    def send(self, conn: AsyncConnection | AsyncpgConnection, message: Message[Any]) -> Pending[None]: ...
    def send(self, conn: Any, message: Message[Any]) -> Any:
        """Write ``message`` into the transaction that is open on ``conn``. One round trip."""
        return self._send(conn, [message], "outbox.send(...)")

    @overload
    def send_many(self, conn: SyncConnection, messages: Iterable[Message[Any]]) -> None: ...
    @overload
    def send_many(
        self, conn: AsyncConnection | AsyncpgConnection, messages: Iterable[Message[Any]]
    ) -> Pending[None]: ...
    def send_many(self, conn: Any, messages: Iterable[Message[Any]]) -> Any:
        """`send` for several, in their order: one statement for every 500 messages, or 2 MB."""
        return self._send(conn, messages, "outbox.send_many(...)")

    def schema_sql(self, dialect: Dialect) -> str:
        """The table as a script for your own migrations: ``sqlite``, ``postgresql`` or ``mysql``. The relay needs the
        tables of its store as well: ``effectonce migrate URL --sql`` has them all."""
        if dialect not in _NOW:
            raise InvalidOption(f"an outbox can be in {', '.join(_NOW)}, not in {show(dialect)!r}")
        return outbox_schema(dialect, self.table)

    def _send(self, conn: Any, messages: Iterable[Message[Any]], what: str) -> Any:
        session = session_on(conn)
        if self.tracer is not None:
            messages = [self.tracer.created(self.to, message) for message in messages]
        rows = [self._row(message) for message in messages]
        session.require_transaction()
        sending = self._insert(session, rows)
        return Pending(sending, what) if session.is_async else drive(sending)

    async def _insert(self, session: Session, rows: Sequence[Row]) -> None:
        if session.is_async:  # it may be awaited long after it was asked for, when the transaction is over
            session.require_transaction()
        parts = list(_parts(rows))
        place = await session.savepoint() if len(parts) > 1 else None
        try:
            for part in parts:
                sql = _statement(session.dialect, self.table, len(part), self._notify)
                await session.rows(sql, _params(session.dialect, part))
        except GeneratorExit:
            raise
        except BaseException:  # a caller who goes on and commits would have sent some of them
            if place is not None:
                with suppress(Exception):
                    await session.roll_back_to(place)
            raise
        if place is not None:
            await session.release(place)
        ring(self.table)

    def _row(self, message: Message[Any]) -> Row:
        if not isinstance(message, Message):
            raise ConfigurationError(
                f"an outbox sends a Message, not {type(message).__name__}; write eo.Message(type=…, data=…)"
            )
        headers, payload, content = _encoded(message)
        if len(payload) + len(headers) > self.max_size:
            raise PayloadTooLarge(
                f"message {show(message.id)} has {len(payload) + len(headers)} bytes of data and headers, over the cap "
                f"of {self.max_size} (max_size); keep large data elsewhere and send a reference to it"
            )
        if message.time is not None and message.time.tzinfo is None:
            raise ConfigurationError(f"the time of message {show(message.id)} has no time zone: give it one")
        row = Row(
            message.key,
            message.id,
            self.to,
            message.ordering_key,
            hash_line(self.to, message.ordering_key),
            message.type,
            headers,
            payload,
            content,
            message.trace_id,
            message.source,
            None if message.time is None else msgspec.to_builtins(message.time),
        )
        _require_texts(row)
        return row


class Row(NamedTuple):
    """What a message becomes, by column. `message_of` is the way back."""

    id: str
    message_id: str
    destination: str
    ordering_key: str | None
    line: int | None
    type: str
    headers: str
    payload: bytes
    content: str
    trace_id: str | None
    source: str
    time: str | None


def message_of(row: OutboxRow) -> Message[Any]:
    """The message that was sent, its data as JSON reads it."""
    return Message(
        data=row.payload if row.content == "bytes" else msgspec.json.decode(row.payload),
        type=row.type,
        id=row.message_id,
        key=row.id,
        ordering_key=row.ordering_key,
        headers={} if row.headers == "{}" else msgspec.json.decode(row.headers, type=dict[str, str]),
        trace_id=row.trace_id,
        source=row.source,
        time=None if row.time is None else msgspec.convert(row.time, datetime),
    )


def _encoded(message: Message[Any]) -> tuple[str, bytes, str]:
    """Headers, payload, and what the payload is."""
    headers, data = message.headers, message.data
    if not all(type(name) is str and type(value) is str for name, value in headers.items()):
        raise ConfigurationError(f"message {show(message.id)} has headers that are no strings")
    try:
        header_text = to_json(headers).decode() if headers else "{}"
        if isinstance(data, bytes | bytearray | memoryview):
            return header_text, bytes(data), "bytes"
        return header_text, to_json(data), "json"
    except Exception as error:  # a value's own methods raise what they like
        raise ConfigurationError(
            f"the data or the headers of message {show(message.id)} have no JSON form: {show(error)}"
        ) from error


def _require_texts(row: Row) -> None:
    """Refuse what some database would refuse, or cut, in the middle of the transaction."""
    texts = {
        "id": row.message_id,
        "key": row.id,
        "ordering_key": row.ordering_key,
        "type": row.type,
        "trace_id": row.trace_id,
        "source": row.source,
    }
    for name, text in texts.items():
        if text is None:
            continue
        if type(text) is not str or "\0" in text or not (text.isascii() or _is_unicode(text)):
            raise InvalidKey(f"the {name} of a message must be valid Unicode without a zero character")
        if len(text) > MAX_TEXT:
            raise KeyTooLong(f"the {name} of a message has {len(text)} characters; {MAX_TEXT} are the most")
    if not row.message_id:
        raise InvalidKey("a message needs an id")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- the statement

#: The database's clock, without a time zone. SQLite's is the machine's.
_NOW: dict[Dialect, str] = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)",
    "postgresql": "(date_part('epoch', clock_timestamp()) * 1000000)::bigint",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
}
_TYPES = {"line": "bigint", "payload": "bytea"}


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    part: list[Row] = []
    size = 0
    for row in rows:
        weight = len(row.payload) + len(row.headers)
        if part and (len(part) == _MAX_ROWS or size + weight > _MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += weight
    if part:
        yield part


@lru_cache(256)
def _statement(dialect: Dialect, table: str, count: int, notify: bool) -> str:
    width = len(Row._fields)
    rows = []
    for start in range(1, count * width, width):
        values = [_value(dialect, name, f"${start + n}") for n, name in enumerate(Row._fields)]
        rows.append(f"({', '.join(values)}, {_NOW[dialect]})")
    columns = ", ".join((*Row._fields, "created_at"))
    insert = f"INSERT INTO {quoted(table, dialect)} ({columns}) VALUES {', '.join(rows)}"
    if notify and dialect == "postgresql":
        return f"WITH sent AS ({insert}) SELECT pg_notify('{notify_channel(table)}', '')"
    return insert


def _value(dialect: Dialect, column: str, mark: str) -> str:
    if dialect == "postgresql":
        return f"{mark}::{_TYPES.get(column, 'text')}"
    if dialect == "mysql" and column != "line":
        return f"UNHEX({mark})" if column == "payload" else f"CONVERT(UNHEX({mark}) USING utf8mb4)"
    return mark


def _params(dialect: Dialect, rows: Sequence[Row]) -> list[Any]:
    """On MySQL in hexadecimal: immune to the quoting mode and the character set of the caller's connection."""
    values = [value for row in rows for value in row]
    if dialect != "mysql":
        return values
    return [value.encode().hex() if type(value) is str else value.hex() if type(value) is bytes else value
            for value in values]  # fmt: skip
