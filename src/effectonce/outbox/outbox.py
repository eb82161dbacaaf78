"""`Outbox`: messages that leave if, and only if, the caller's own transaction commits.

    with conn.transaction():
        conn.execute("UPDATE orders …")
        outbox.send(conn, eo.Message(type="order.paid", data={"order": 42}))

The message is a row in that transaction. A `Relay` takes it to the broker afterwards, as often as it takes.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, overload

import msgspec

from effectonce.contracts import AsyncConnection, AsyncpgConnection, Dialect, DriverSession, SyncConnection, Tracer
from effectonce.contracts.outbox import OutboxRow, hash_line, notify_channel
from effectonce.core.codec import to_json
from effectonce.core.delays import read_delay
from effectonce.core.interrupts import raise_interrupt
from effectonce.core.run_sync import run_sync
from effectonce.core.sql_files import CLOCK_EXPRESSIONS, outbox_schema, outbox_words, quote_name
from effectonce.core.tracing import carry_trace
from effectonce.errors import ConfigurationError, InvalidKey, InvalidOption, KeyTooLong, PayloadTooLarge, show
from effectonce.message import Message
from effectonce.sessions import Pending, session_on
from effectonce.values.durations import Duration
from effectonce.values.queue_names import require_name

from .notifications import notify

MAX_MESSAGE_BYTES: Final = 256 * 1024
MAX_TEXT_CHARS: Final = 4096  # of an id, a key, an ordering key and the like
# Limits of one INSERT. Every server takes so many placeholders, and a packet of this size.
_MAX_STATEMENT_ROWS: Final = 500
_MAX_STATEMENT_BYTES: Final = 2 * 1024 * 1024


class Outbox:
    """Messages to the queue ``to``, as rows of a table beside your own.

    - ``table``: its name, which may name a schema (``shop.outbox``). `migrate` and `schema_sql` create it.
    - ``max_size``: the most bytes of a message's data and headers, as they are stored.
    - ``notify``: on PostgreSQL, wake the relay at the commit instead of at its next poll, at most a second later. Such
      commits wait for each other: use it for few urgent messages, not for many.

    `send` takes the connection that the transaction is open on. It never begins or ends that transaction. A message
    that cannot be stored is refused before any statement is sent, so that the transaction stays usable; of many, all
    are sent or none.

    On an async connection await it: otherwise nothing is sent. Type checkers flag that, since its type is a coroutine.
    While it runs, an ERROR is logged with the line of the call, and a handler whose transaction effectonce commits
    (`Inbox.handler`, `Worker`) gets `NotAwaited` instead of the commit.
    """

    def __init__(
        self, *, to: str, table: str = "effectonce_outbox", max_size: int = MAX_MESSAGE_BYTES, notify: bool = False
    ) -> None:
        if type(max_size) is not int or max_size < 1:
            raise InvalidOption(f"max_size={max_size!r} must be a number of bytes, more than zero")
        outbox_words("postgresql", table)  # refuses a name that is not valid for a table and its indexes
        self.to = require_name(to)
        self.table = table
        self.max_size = max_size
        self._notify = notify
        self.tracer: Tracer | None = None

    def __repr__(self) -> str:
        return f"<Outbox to {self.to!r} in {self.table}>"

    @overload
    def send(self, conn: SyncConnection, message: Message[Any], *, delay: Duration | None = None) -> None: ...
    @overload
    def send(
        self, conn: AsyncConnection | AsyncpgConnection, message: Message[Any], *, delay: Duration | None = None
    ) -> Coroutine[Any, Any, None]: ...
    def send(self, conn: Any, message: Message[Any], *, delay: Duration | None = None) -> Any:
        """Write ``message`` into the transaction that is open on ``conn``. One round trip.

        ``delay``: the row stays in the outbox for so long, on the database's clock, and is published then. So it may be
        any time, on any broker. `InvalidOption` for a message with an ordering key.
        """
        return self._send(conn, [message], delay, "outbox.send(...)")

    @overload
    def send_many(
        self, conn: SyncConnection, messages: Iterable[Message[Any]], *, delay: Duration | None = None
    ) -> None: ...
    @overload
    def send_many(
        self,
        conn: AsyncConnection | AsyncpgConnection,
        messages: Iterable[Message[Any]],
        *,
        delay: Duration | None = None,
    ) -> Coroutine[Any, Any, None]: ...
    def send_many(self, conn: Any, messages: Iterable[Message[Any]], *, delay: Duration | None = None) -> Any:
        """Write several messages, in their order, with one statement for every 500 messages or 2 MB. ``delay``: see
        `send`."""
        return self._send(conn, list(messages), delay, "outbox.send_many(...)")

    def schema_sql(self, dialect: Dialect) -> str:
        """Return the script that creates the table, for your own migrations on ``sqlite``, ``postgresql`` or
        ``mysql``. The relay needs the tables of its store as well: ``effectonce migrate --store URL --sql`` prints
        them all."""
        return outbox_schema(dialect, self.table)

    def _send(self, conn: Any, messages: Sequence[Message[Any]], delay: Duration | None, call: str) -> Any:
        session = session_on(conn)
        rows = [self.row_for(self._with_trace(message)) for message in messages]
        delay_us = read_delay(delay, messages)
        session.require_transaction()
        sending = self._insert(session, rows, delay_us)
        return Pending(sending, call, writes_on=session) if session.is_async else run_sync(sending)

    def _with_trace(self, message: Message[Any]) -> Message[Any]:
        return carry_trace(message) if self.tracer is None else self.tracer.inject_context(self.to, message)

    async def _insert(self, session: DriverSession, rows: Sequence[NewOutboxRow], delay_us: int) -> None:
        if session.is_async:  # this may be awaited long after `send`, when the transaction is over
            session.require_transaction()
        batches = list(_statement_batches(rows))
        savepoint = await session.savepoint() if len(batches) > 1 else None
        try:
            for batch in batches:
                sql = _statement(session.dialect, self.table, len(batch), self._notify, delay_us > 0)
                await session.rows(sql, _params(session.dialect, batch, delay_us))
        except GeneratorExit:
            raise  # a coroutine that is closed may await nothing any more, and its transaction is not committed
        except BaseException:  # if the caller continues and commits, only some of them would be sent
            if savepoint is not None:
                with suppress(Exception):
                    await session.roll_back_to(savepoint)
            raise
        if savepoint is not None:
            await session.release(savepoint)
        if not delay_us:
            notify(self.table)

    def row_for(self, message: Message[Any]) -> NewOutboxRow:
        """Make the row of ``message``. Raises an error for a message that cannot be stored."""
        if not isinstance(message, Message):
            raise ConfigurationError(
                f"an outbox sends a Message, not {type(message).__name__}; write eo.Message(type=…, data=…)"
            )
        headers, payload, content = _encode(message)
        if len(payload) + len(headers) > self.max_size:
            raise PayloadTooLarge(
                f"message {show(message.id)} has {len(payload) + len(headers)} bytes of data and headers, over the cap "
                f"of {self.max_size} (max_size); keep large data elsewhere and send a reference to it"
            )
        if message.time is not None and message.time.tzinfo is None:
            raise ConfigurationError(f"the time of message {show(message.id)} has no time zone; use an aware datetime")
        row = NewOutboxRow(
            id=message.key,
            message_id=message.id,
            destination=self.to,
            ordering_key=message.ordering_key,
            line=hash_line(self.to, message.ordering_key),
            type=message.type,
            headers=headers,
            payload=payload,
            content=content,
            trace_id=message.trace_id,
            source=message.source,
            time=None if message.time is None else msgspec.to_builtins(message.time),
        )
        _require_texts(row)
        return row


class NewOutboxRow(NamedTuple):
    """The columns that a message is stored in, without its times, which the database fills in. `message_of` reads them
    back. A column that is not text is in `_COLUMN_KINDS`, too."""

    id: str  # the message's key
    message_id: str
    destination: str
    ordering_key: str | None
    line: int | None  # a hash of destination and ordering key: rows of one line are published in their order
    type: str
    headers: str
    payload: bytes
    content: str  # the kind of payload: "json" or "bytes"
    trace_id: str | None
    source: str
    time: str | None  # RFC 3339


_COLUMN_KINDS: Final = {"line": "integer", "due_at": "integer", "payload": "bytes"}  # the other columns are text


def message_of(row: OutboxRow) -> Message[Any]:
    """Read the message back from its row. Its data is what JSON gives, not the original type."""
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


def _encode(message: Message[Any]) -> tuple[str, bytes, str]:
    """Encode the headers and the payload. The last value is the column ``content``."""
    headers, data = message.headers, message.data
    if not all(type(name) is str and type(value) is str for name, value in headers.items()):
        raise ConfigurationError(
            f"message {show(message.id)} has headers that are not strings: give names and values as str"
        )
    try:
        header_text = to_json(headers).decode() if headers else "{}"
        if isinstance(data, bytes | bytearray | memoryview):
            return header_text, bytes(data), "bytes"
        return header_text, to_json(data), "json"
    except Exception as error:  # a value's own methods raise what they like
        raise_interrupt(error)
        raise ConfigurationError(
            f"the data or the headers of message {show(message.id)} have no JSON form: {show(error)}"
        ) from error


def _require_texts(row: NewOutboxRow) -> None:
    """Raise an error for texts that some database would refuse, or truncate, in the middle of the transaction."""
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
        if type(text) is not str or "\0" in text or not _is_unicode(text):
            raise InvalidKey(f"the {name} of a message must be valid Unicode without a zero character")
        if len(text) > MAX_TEXT_CHARS:
            raise KeyTooLong(
                f"the {name} of a message has {len(text)} characters; at most {MAX_TEXT_CHARS} can be stored"
            )
    if not row.message_id:
        raise InvalidKey("a message needs an id")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- the statement

_POSTGRES_TYPES: Final = {"text": "text", "integer": "bigint", "bytes": "bytea"}


def _statement_batches(rows: Sequence[NewOutboxRow]) -> Iterator[Sequence[NewOutboxRow]]:
    """Split ``rows``, in their order, into what one statement takes."""
    batch: list[NewOutboxRow] = []
    batch_size = 0
    for row in rows:
        size = len(row.payload) + len(row.headers)
        if batch and (len(batch) == _MAX_STATEMENT_ROWS or batch_size + size > _MAX_STATEMENT_BYTES):
            yield batch
            batch, batch_size = [], 0
        batch.append(row)
        batch_size += size
    if batch:
        yield batch


@lru_cache(256)
def _statement(dialect: Dialect, table: str, count: int, notify: bool, is_delayed: bool) -> str:
    """The INSERT of ``count`` rows. Delayed rows wait, as others do for their next attempt; the last parameter is for
    how long. They count as written when they are due: only from then on they are late."""
    width = len(NewOutboxRow._fields)
    columns: tuple[str, ...] = (*NewOutboxRow._fields, "created_at")
    times = [CLOCK_EXPRESSIONS[dialect]]
    if is_delayed:
        columns += ("state", "due_at")
        due_at = f"{CLOCK_EXPRESSIONS[dialect]} + {_value(dialect, 'due_at', f'${count * width + 1}')}"
        times = [due_at, "'waiting'", due_at]
    rows = []
    for start in range(1, count * width, width):
        values = [_value(dialect, column, f"${start + n}") for n, column in enumerate(NewOutboxRow._fields)]
        rows.append(f"({', '.join(values + times)})")
    insert = f"INSERT INTO {quote_name(table, dialect)} ({', '.join(columns)}) VALUES {', '.join(rows)}"
    if notify and not is_delayed and dialect == "postgresql":
        return f"WITH sent AS ({insert}) SELECT pg_notify('{notify_channel(table)}', '')"
    return insert


def _value(dialect: Dialect, column: str, placeholder: str) -> str:
    """The expression of a column's value. On MySQL, text and bytes come in hexadecimal: see `_hex`."""
    kind = _COLUMN_KINDS.get(column, "text")
    if dialect == "postgresql":
        return f"{placeholder}::{_POSTGRES_TYPES[kind]}"
    if dialect == "mysql" and kind != "integer":
        return f"UNHEX({placeholder})" if kind == "bytes" else f"CONVERT(UNHEX({placeholder}) USING utf8mb4)"
    return placeholder


def _params(dialect: Dialect, rows: Sequence[NewOutboxRow], delay_us: int) -> list[Any]:
    values: list[Any] = [value for row in rows for value in row]
    if delay_us:
        values.append(delay_us)
    return [_to_hex(value) for value in values] if dialect == "mysql" else values


def _to_hex(value: Any) -> Any:
    """Write ``value`` in hexadecimal, which no quoting mode or character set of the caller's connection changes."""
    if isinstance(value, str):
        return value.encode().hex()
    return value.hex() if isinstance(value, bytes) else value
