"""`Inbox`: mode T. The record that a message was handled is a row in the caller's own transaction.

    with conn.transaction():
        if inbox.first(conn, message):
            conn.execute("UPDATE orders …")

The row and the effect are committed together or not at all, so nothing is lost and nothing is doubled: for effects in
that transaction, within retention, with durable commits.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeVar, overload

from effectonce.contracts import AsyncConnection, AsyncpgConnection, Dialect, DriverSession, Hook, SyncConnection
from effectonce.core.codec import Codec, Unstorable
from effectonce.core.events import Events
from effectonce.core.privacy import Privacy
from effectonce.core.run_sync import run_sync
from effectonce.core.sql_files import inbox_schema, quote_name, strip_comments
from effectonce.errors import (
    ConfigurationError,
    InProgress,
    InvalidOption,
    PayloadMismatch,
    ResultNotStored,
    SyncAsyncMismatch,
    show,
)
from effectonce.guard.introspection import is_async, name_of, return_type
from effectonce.guard.once import Outcome
from effectonce.guard.options import check_scope
from effectonce.message import Message
from effectonce.sessions import BaseDriverSession, Pending, session_on
from effectonce.store import DEFAULT_RETENTION, MAX_RESULT_BYTES, SCHEMES
from effectonce.values.durations import Duration, micros
from effectonce.values.fingerprint import fingerprints
from effectonce.values.identity import Key, encode_key

from .business_table import Inserted, OnTable
from .call_run import CallRun
from .events import attempt_of, emit_recognised, kind_of_failure
from .handler import HandlerDecorator
from .recording import describe, record, record_many, refuse_mismatch
from .run_loop import run_async_handler, run_handler
from .table import MAX_BATCH, MAX_TABLE_NAME, ExistingRow, InboxKey, InboxTable, inbox_table

__all__ = ["Inbox", "Inserted", "OnTable"]

T = TypeVar("T")
SC = TypeVar("SC", bound=SyncConnection)
AC = TypeVar("AC", bound=AsyncConnection | AsyncpgConnection)
M = TypeVar("M", bound=Message[Any] | Key)


class Inbox:
    """The messages that were handled, as rows of a table beside your own. `first` says whether a message is new.

    - ``scope``: the consumer and its handler, so that two consumers of one message never hide it from each other.
      It has no default; `GLOBAL` is one scope for all.
    - ``table``: its name, which may name a schema (``shop.inbox``). `migrate` and `schema_sql` create it.
    - ``retention``: how long a duplicate is recognised at least; in fact, until `purge` deletes its row.
    - ``fingerprint``: a function that returns the part of a message that must be the same under one key, otherwise
      `PayloadMismatch`. Default: the data of a `Message`; False turns that off.
    - ``private``: a secret under which keys are hashed and results sealed.
    - ``max_result``: how large a stored result may be, in bytes; a larger one is not stored.
    - ``hooks``: called with an `Event` for each message. What a worker handles are the worker's events.

    Every method takes the connection that the transaction is open on. On an async connection it returns something to
    await. It never begins, ends or repeats that transaction; `handler` is the form that owns one.
    """

    def __init__(
        self,
        *,
        scope: str,
        table: str = "effectonce_inbox",
        retention: Duration = DEFAULT_RETENTION,
        fingerprint: Callable[[Any], object] | Literal[False] | None = None,
        private: str | bytes | None = None,
        max_result: int = MAX_RESULT_BYTES,
        hooks: Sequence[Hook] = (),
    ) -> None:
        check_scope(scope)
        scheme, is_url, _ = scope.partition("://")
        if is_url and scheme in SCHEMES:
            raise ConfigurationError(
                "an Inbox takes no URL: it works on the connection of your transaction; write inbox = "
                "eo.Inbox(scope='billing') and inbox.first(conn, message) (eo.connect(url) opens a store, for eo.once)"
            )
        quote_name(table, "sqlite")
        if len(table.rpartition(".")[2]) > MAX_TABLE_NAME:
            raise InvalidOption(
                f"table={table!r} is too long for the names of its indexes: use up to {MAX_TABLE_NAME} characters"
            )
        if fingerprint and not callable(fingerprint):
            raise InvalidOption("fingerprint= takes a function of the message, or False")
        self.scope = scope
        self.table_name = table
        self.retention_us = micros(retention, "retention")
        self._fingerprint = fingerprint
        self._privacy = None if private is None else Privacy(private)
        self._max_result = max_result
        #: Where its events are emitted.
        self.events = Events(tuple(hooks))

    @property
    def private(self) -> bool:
        """Whether keys are hidden and results sealed."""
        return self._privacy is not None

    def add_hook(self, hook: Hook) -> None:
        """Call ``hook`` with every `Event` from now on. Adding it twice has no further effect."""
        self.events.add_hook(hook)

    def for_scope(self, scope: str, retention_us: int) -> Inbox:
        """This inbox (its table, its secret and the rest) under another scope, with a retention in microseconds: what
        a worker uses for each of its handlers. It has no hooks: the worker emits the events itself."""
        check_scope(scope)
        inbox = copy.copy(self)  # what both share is never changed
        inbox.scope, inbox.retention_us, inbox.events = scope, retention_us, Events()
        return inbox

    def __repr__(self) -> str:
        return f"<Inbox {show(self.scope)!r} in {self.table_name}>"

    # -- in the caller's transaction

    @overload
    def first(self, conn: SyncConnection, message: Message[Any] | Key, *, payload: Any = ...) -> bool: ...
    @overload
    def first(
        self, conn: AsyncConnection | AsyncpgConnection, message: Message[Any] | Key, *, payload: Any = ...
    ) -> Pending[bool]: ...
    def first(self, conn: Any, message: Any, *, payload: Any = ...) -> Any:
        """Return whether this message is new. If so, its row is now in your transaction: do the work in the same one.

        It takes one round trip, and a second one for a duplicate whose payload is compared. If another transaction is
        handling the same key, this waits for its end, as long as your lock timeout allows (then: `InProgress`).

        ``message``: a `Message`, or a key. ``payload``: what must be the same under this key, if that is not the
        message's data. On an async connection await the answer; testing it without `await` raises `NotAwaited`.
        """
        session = session_on(conn)
        key = self.key_for(message, payload)
        session.require_transaction()
        recording = self._first(session, key, attempt_of(message))
        return Pending(recording, "inbox.first(...)", writes_on=session) if session.is_async else run_sync(recording)

    @overload
    def first_many(self, conn: SyncConnection, messages: Iterable[Message[Any] | Key]) -> list[bool]: ...
    @overload
    def first_many(
        self, conn: AsyncConnection | AsyncpgConnection, messages: Iterable[Message[Any] | Key]
    ) -> Pending[list[bool]]: ...
    def first_many(self, conn: Any, messages: Iterable[Any]) -> Any:
        """Ask `first` about up to 5,000 messages in one round trip. The answers are in the order of the messages.

        Of messages with the same key only the first one can be new. Raises `PayloadMismatch`, and records none, if any
        of them has another payload than before.
        """
        session = session_on(conn)
        messages = list(messages)
        keys = [self.key_for(message) for message in messages]
        if len(keys) > MAX_BATCH:
            raise InvalidOption(f"first_many takes up to {MAX_BATCH} messages, not {len(keys)}; call it for slices")
        session.require_transaction()
        recording = self._first_many(session, keys, [attempt_of(message) for message in messages])
        return (
            Pending(recording, "inbox.first_many(...)", writes_on=session) if session.is_async else run_sync(recording)
        )

    @overload
    def call(
        self, conn: SC, message: M, fn: Callable[[SC, M], T], *, payload: Any = ..., returns: Any = ...
    ) -> Outcome[T]: ...
    @overload
    def call(
        self, conn: AC, message: M, fn: Callable[[AC, M], Awaitable[T]], *, payload: Any = ..., returns: Any = ...
    ) -> Pending[Outcome[T]]: ...
    def call(self, conn: Any, message: Any, fn: Callable[..., Any], *, payload: Any = ..., returns: Any = ...) -> Any:
        """Run ``fn(conn, message)`` if the message is new, and store its result. Otherwise return the stored result.

        If ``fn`` raises, its work, the row and the result are all undone to a savepoint: you may continue your
        transaction, and the message is not lost. Errors are not stored. If the database has ended your whole
        transaction (a deadlock on MySQL), this raises `TransactionConflict`: roll back, and run all of it again.
        """
        session = session_on(conn)
        if is_async(fn) and not session.is_async:
            raise SyncAsyncMismatch(
                f"{name_of(fn)} is `async def` and the connection is sync; give it an async connection"
            )
        codec = self.codec_for(return_type(fn, returns))
        key = self.key_for(message, payload)
        session.require_transaction()
        run = CallRun(self, session, key, codec, message)
        if session.is_async:
            return Pending(run_async_handler(run, fn, message), "inbox.call(...)", writes_on=session)
        return run_handler(run, fn, message)

    @overload
    def purge(self, conn: SyncConnection, *, limit: int = 1000) -> int: ...
    @overload
    def purge(self, conn: AsyncConnection | AsyncpgConnection, *, limit: int = 1000) -> Pending[int]: ...
    def purge(self, conn: Any, *, limit: int = 1000) -> Any:
        """Delete up to ``limit`` rows of the table that are past their retention, of every scope. Returns how many.
        Locked rows are left for the next time. Call it now and then, in a transaction of its own."""
        session = session_on(conn)
        session.require_transaction()
        purging = self.table(session).purge(session, limit)
        return Pending(purging, "inbox.purge(...)") if session.is_async else run_sync(purging)

    @overload
    def check(self, conn: SyncConnection) -> None: ...
    @overload
    def check(self, conn: AsyncConnection | AsyncpgConnection) -> Coroutine[Any, Any, None]: ...
    def check(self, conn: Any) -> Any:
        """Raise `UnsafeStore` if this database may lose a commit that it has confirmed (the broker would not deliver
        the message again), and `SchemaMissing` without the table. The error says what to change."""
        session = session_on(conn)
        checking = self.table(session).check(session)
        return Pending(checking, "inbox.check(...)") if session.is_async else run_sync(checking)

    # -- the table

    def schema_sql(self, dialect: Dialect) -> str:
        """Return the script that creates the table, for your own migrations."""
        return inbox_schema(dialect, self.table_name)

    @overload
    def migrate(self, conn: SyncConnection) -> None: ...
    @overload
    def migrate(self, conn: AsyncConnection | AsyncpgConnection) -> Coroutine[Any, Any, None]: ...
    def migrate(self, conn: Any) -> Any:
        """Create the table where it is missing. On MySQL and MariaDB this commits an open transaction."""
        session = session_on(conn)
        migrating = self._migrate(session)
        return Pending(migrating, "inbox.migrate(...)") if session.is_async else run_sync(migrating)

    def on_table(self, table: str, *, column: str) -> OnTable:
        """Recognise duplicates by a unique key on your own business table, without a row in the inbox's."""
        return OnTable(table, column)

    # -- in a transaction of its own

    def handler(
        self,
        *,
        connect: Callable[[], Any],
        max_attempts: int | None = None,
        retries: int = 5,
        backoff: Duration = "20ms",
        max_backoff: Duration = "1s",
        returns: Any = ...,
        allow_unsafe: bool = False,
    ) -> HandlerDecorator:
        """Make ``fn(conn, message)`` a handler of messages, each in a transaction of its own: the row, what ``fn`` does
        on the connection, and the result are committed together, and a duplicate gets the result.

        - ``connect``: returns a connection for one message, or a context manager around one: ``pool.connection``,
          ``sessionmaker(engine)``, ``lambda: sqlite3.connect("shop.db")``, ``lambda: django.db.connection``. It is
          given back after the message: by leaving the context manager, else by closing it (never Django's).
        - After a serialization failure, a deadlock or a lost connection all of it runs again in a new transaction, up
          to ``retries`` times, after a random time up to ``backoff``, doubled each time, at most ``max_backoff``. If
          the answer to the COMMIT was lost, this finds out what happened: the insert waits for the old transaction,
          and if that has committed, its stored result is returned. The handler's own errors are never repeated.
        - ``max_attempts``: how often it may start before `AttemptsExhausted` is raised. Starts are counted in a
          transaction of their own before the handler runs, so that a message that takes the process down is counted.
        - ``returns``: the type of the result, where the annotation does not say.
        - On first use it runs `check`, unless ``allow_unsafe``.
        """
        return HandlerDecorator(
            inbox=self,
            connect=connect,
            max_attempts=max_attempts,
            retries=retries,
            backoff=micros(backoff, "backoff") / 1e6,
            max_backoff=micros(max_backoff, "max_backoff") / 1e6,
            returns=returns,
            allow_unsafe=allow_unsafe,
        )

    # -- the seams for tools that have a session, such as a worker that runs several messages in one transaction

    def table(self, session: DriverSession) -> InboxTable:
        """The inbox's table in the database of ``session``."""
        return inbox_table(session.dialect, self.table_name)

    def key_for(self, message: Any, payload: Any = ...) -> InboxKey:
        """The key of the row of ``message``. Every error about the message itself is raised here, before any statement
        is sent."""
        is_message = isinstance(message, Message)
        key = encode_key(message.key if is_message else message)
        if payload is not ...:
            return self.make_key(key, fingerprints(payload))
        if self._fingerprint:
            return self.make_key(key, fingerprints(self._fingerprint(message)))
        if is_message and self._fingerprint is None:
            return self.make_key(key, fingerprints(message.data))
        return self.make_key(key, b"")

    def make_key(self, key: str, fingerprints: bytes) -> InboxKey:
        """The `InboxKey` of a key and its fingerprints; a private inbox hashes both."""
        stored_key = key
        if self._privacy is not None:
            stored_key = self._privacy.hide(self.scope, key)
            fingerprints = self._privacy.hide_fingerprints(self.scope, fingerprints)
        return InboxKey(self.scope, stored_key, key, fingerprints, self.retention_us)

    async def record(self, session: BaseDriverSession, key: InboxKey) -> bool:
        """`first`, for a tool that has made the key already."""
        return await record(self.table(session), session, key)

    async def record_many(self, session: BaseDriverSession, keys: Sequence[InboxKey]) -> list[bool]:
        """`first_many`, for a tool that has made the keys already."""
        return await record_many(self.table(session), session, keys)

    def codec_for(self, result_type: Any) -> Codec:
        try:
            return _cached_codec(result_type, self._max_result)
        except TypeError:  # a type that cannot be hashed
            return Codec(result_type, self._max_result)

    def encode_result(self, codec: Codec, key: InboxKey, value: Any) -> bytes | None:
        """Encode a result for the table. None if it cannot be stored: the message is handled all the same."""
        try:
            plain = codec.encode(value)
        except Unstorable:
            return None
        return plain if self._privacy is None else self._privacy.seal(plain, key.scope, key.key, 0)

    def replay(self, codec: Codec, key: InboxKey, existing: ExistingRow) -> Any:
        """The stored result, for a duplicate. Raises `PayloadMismatch` for another payload, and `ResultNotStored`
        without a result."""
        refuse_mismatch(key, existing)
        stored = existing.result
        if stored is not None and self._privacy is not None:
            stored = self._privacy.open(stored, key.scope, key.key, (0,))
        if stored is not None:
            return codec.decode(stored)
        if codec.discards:
            return None
        raise ResultNotStored(
            f"{describe(key)} is done, but its result was not stored (recorded by first(), too large, or not of the "
            "annotated type); the effect happened: ack this delivery"
        )

    async def _first(self, session: BaseDriverSession, key: InboxKey, attempt: int) -> bool:
        try:
            is_first = await self.record(session, key)
        except (PayloadMismatch, InProgress) as error:
            kind = kind_of_failure(error, was_called=False)
            self.events.emit(kind, key.scope, key.plain_key, attempt, detail=type(error).__name__)
            raise
        emit_recognised(self.events, session, key, attempt, is_first=is_first)
        return is_first

    async def _first_many(
        self, session: BaseDriverSession, keys: Sequence[InboxKey], attempts: Sequence[int]
    ) -> list[bool]:
        answers = await self.record_many(session, keys)
        for key, attempt, is_first in zip(keys, attempts, answers, strict=True):
            emit_recognised(self.events, session, key, attempt, is_first=is_first)
        return answers

    async def _migrate(self, session: BaseDriverSession) -> None:
        if session.dialect == "postgresql":  # two migrations at once would both create the table, and one would fail
            await session.rows("SELECT pg_advisory_xact_lock(hashtext('effectonce migrate'))")
        for statement in strip_comments(self.schema_sql(session.dialect)).split(";"):
            if statement.strip():
                await session.rows(statement)


_cached_codec = lru_cache(maxsize=256)(Codec)
