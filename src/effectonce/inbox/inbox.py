"""`Inbox`: mode T. The record that a message was handled is a row in the caller's own transaction.

    with conn.transaction():
        if inbox.first(conn, message):
            conn.execute("UPDATE orders …")

The row and the effect are committed together or not at all, so nothing is lost and nothing is doubled: for effects in
that transaction, within retention, with durable commits.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from typing import Any, Literal, TypeVar, overload

from effectonce.backends.common.sql_files import bare, inbox_schema, quoted
from effectonce.contracts import AsyncConnection, AsyncpgConnection, ConnectionLost, Dialect, SyncConnection
from effectonce.core.codec import Codec, Unstorable
from effectonce.core.privacy import Privacy
from effectonce.core.run_sync import Pending, run_sync
from effectonce.errors import (
    InvalidOption,
    PayloadMismatch,
    ResultNotStored,
    SyncAsyncMismatch,
    TransactionConflict,
    show,
)
from effectonce.guard.introspection import LAZY, is_async, name_of, refuse_lazy, return_type
from effectonce.guard.once import Outcome
from effectonce.guard.options import check_scope
from effectonce.message import Message
from effectonce.sessions import Caller, session_on
from effectonce.store import DEFAULT_RETENTION, MAX_RESULT
from effectonce.values.durations import Duration, micros
from effectonce.values.fingerprint import fingerprints
from effectonce.values.identity import Key, encode_key

from .handler import Handling
from .rows import MAX_BATCH, MAX_NAME, Arrival, Found, Rows, rows_of
from .table import Inserted, OnTable

__all__ = ["Inbox", "Inserted", "OnTable"]

T = TypeVar("T")
SC = TypeVar("SC", bound=SyncConnection)
AC = TypeVar("AC", bound=AsyncConnection | AsyncpgConnection)
M = TypeVar("M", bound=Message[Any] | Key)


class Inbox:
    """Which messages were handled, as rows of a table beside your own; `first` says whether this one is new.

    - ``scope``: the consumer and its handler, so that two consumers of one message never hide it from each other.
      It has no default; `GLOBAL` is the word for one scope for all.
    - ``table``: its name, which may name a schema (``shop.inbox``). `migrate` and `schema_sql` create it.
    - ``retention``: for how long at least a duplicate is recognised; rows past it are, too, until `purge` deletes them.
    - ``fingerprint``: what of a message must be the same under one key, else `PayloadMismatch`: a function of it.
      Default: the data of a `Message`; False turns that off.
    - ``private``: a secret under which keys are hashed and results sealed.
    - ``max_result``: how large a stored result may be, in bytes; a larger one is left out.

    Every method takes the connection that the transaction is open on, and follows its colour: on an async one it gives
    something to await. It never begins, ends or repeats that transaction; `handler` is the form that owns one.
    """

    def __init__(
        self,
        *,
        scope: str,
        table: str = "effectonce_inbox",
        retention: Duration = DEFAULT_RETENTION,
        fingerprint: Callable[[Any], object] | Literal[False] | None = None,
        private: str | bytes | None = None,
        max_result: int = MAX_RESULT,
    ) -> None:
        check_scope(scope)
        quoted(table, "sqlite")
        if len(table.rpartition(".")[2]) > MAX_NAME:
            raise InvalidOption(f"table={table!r} is too long for the names that are made from it: up to {MAX_NAME}")
        if fingerprint and not callable(fingerprint):
            raise InvalidOption("fingerprint= takes a function of the message, or False")
        self.scope = scope
        self.table = table
        self._retention = micros(retention, "retention")
        self._fingerprint = fingerprint
        self._privacy = None if private is None else Privacy(private)
        self._max_result = max_result

    def __repr__(self) -> str:
        return f"<Inbox {show(self.scope)!r} in {self.table}>"

    # -- in the caller's transaction

    @overload
    def first(self, conn: SyncConnection, message: Message[Any] | Key, *, payload: Any = ...) -> bool: ...
    @overload
    def first(
        self, conn: AsyncConnection | AsyncpgConnection, message: Message[Any] | Key, *, payload: Any = ...
    ) -> Pending[bool]: ...
    def first(self, conn: Any, message: Any, *, payload: Any = ...) -> Any:
        """Whether this is the first time: its row is then in your transaction, and you do the work in the same one.

        One round trip; a second for a duplicate whose payload is compared. Where another transaction is handling the
        same key, it waits for the end of that, as long as your lock timeout allows (then: `InProgress`).

        ``message``: a `Message`, or a key. ``payload``: what must be the same under this key, where that is not the
        message's data. On an async connection the answer has to be awaited; testing it without is `NotAwaited`.
        """
        session = session_on(conn)
        arrival = self._arrival(message, payload)
        session.require_transaction()
        answer = self._first(session, arrival)
        return Pending(answer, "inbox.first(...)") if session.is_async else run_sync(answer)

    @overload
    def first_many(self, conn: SyncConnection, messages: Iterable[Message[Any] | Key]) -> list[bool]: ...
    @overload
    def first_many(
        self, conn: AsyncConnection | AsyncpgConnection, messages: Iterable[Message[Any] | Key]
    ) -> Pending[list[bool]]: ...
    def first_many(self, conn: Any, messages: Iterable[Any]) -> Any:
        """`first` for up to 5,000 messages in one round trip, answered in their order.

        Of those with the same key only the first can be. `PayloadMismatch`, if any of them has one: then none is
        recorded.
        """
        session = session_on(conn)
        arrivals = [self._arrival(message, ...) for message in messages]
        if len(arrivals) > MAX_BATCH:
            raise InvalidOption(f"first_many takes up to {MAX_BATCH} messages, not {len(arrivals)}; call it for slices")
        session.require_transaction()
        answer = self._first_many(session, arrivals)
        return Pending(answer, "inbox.first_many(...)") if session.is_async else run_sync(answer)

    @overload
    def call(
        self, conn: SC, message: M, fn: Callable[[SC, M], T], *, payload: Any = ..., returns: Any = ...
    ) -> Outcome[T]: ...
    @overload
    def call(
        self, conn: AC, message: M, fn: Callable[[AC, M], Awaitable[T]], *, payload: Any = ..., returns: Any = ...
    ) -> Pending[Outcome[T]]: ...
    def call(self, conn: Any, message: Any, fn: Callable[..., Any], *, payload: Any = ..., returns: Any = ...) -> Any:
        """Run ``fn(conn, message)`` if this is the first time, and keep its result; else give the kept one.

        What ``fn`` does on the connection, the row and the result are one: where it raises, all of it is undone to a
        savepoint, so that you may go on with your transaction and the message is not lost. Errors are not kept. Where
        the database has ended your whole transaction by that (a deadlock on MySQL), it is `TransactionConflict`: roll
        back, and run all of it again.
        """
        session = session_on(conn)
        if is_async(fn) and not session.is_async:
            raise SyncAsyncMismatch(
                f"{name_of(fn)} is `async def` and the connection is sync; give it an async connection"
            )
        codec = self._codec(return_type(fn, returns))
        arrival = self._arrival(message, payload)
        session.require_transaction()
        if session.is_async:
            return Pending(self._call_async(session, arrival, codec, message, fn), "inbox.call(...)")
        return self._call_sync(session, arrival, codec, message, fn)

    @overload
    def purge(self, conn: SyncConnection, *, limit: int = 1000) -> int: ...
    @overload
    def purge(self, conn: AsyncConnection | AsyncpgConnection, *, limit: int = 1000) -> Pending[int]: ...
    def purge(self, conn: Any, *, limit: int = 1000) -> Any:
        """Delete up to ``limit`` rows of the table that are past their retention, of whatever scope; how many there
        were. Locked rows are left for the next time. Call it now and then, in a transaction of its own."""
        session = session_on(conn)
        session.require_transaction()
        answer = self._rows(session).purge(session, limit)
        return Pending(answer, "inbox.purge(...)") if session.is_async else run_sync(answer)

    @overload
    def check(self, conn: SyncConnection) -> None: ...
    @overload
    def check(self, conn: AsyncConnection | AsyncpgConnection) -> Pending[None]: ...
    def check(self, conn: Any) -> Any:
        """`UnsafeStore` where this database may lose a commit that it has confirmed (the broker would not deliver the
        message again); `SchemaMissing` where the table is missing. It says what to change."""
        session = session_on(conn)
        answer = self._rows(session).check(session)
        return Pending(answer, "inbox.check(...)") if session.is_async else run_sync(answer)

    # -- the table

    def schema_sql(self, dialect: Dialect) -> str:
        """The table as a script, for people who run their own migrations."""
        if dialect not in ("sqlite", "postgresql", "mysql"):
            raise InvalidOption(f"{show(dialect)!r} is none of the dialects sqlite, postgresql and mysql (and MariaDB)")
        return inbox_schema(dialect, self.table)

    @overload
    def migrate(self, conn: SyncConnection) -> None: ...
    @overload
    def migrate(self, conn: AsyncConnection | AsyncpgConnection) -> Pending[None]: ...
    def migrate(self, conn: Any) -> Any:
        """Create the table where it is missing. MySQL and MariaDB commit an open transaction by that."""
        session = session_on(conn)
        answer = self._migrate(session)
        return Pending(answer, "inbox.migrate(...)") if session.is_async else run_sync(answer)

    def on_table(self, table: str, *, column: str) -> OnTable:
        """Recognise duplicates by a unique key on your own business table instead of a row in ours."""
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
    ) -> Handling:
        """Make ``fn(conn, message)`` a handler of messages, each in a transaction of its own: the row, what ``fn`` does
        on the connection, and the result are committed together, and a duplicate gets the result.

        - ``connect``: gives a connection for one message, or a context manager that does: ``pool.connection``,
          ``sessionmaker(engine)``, ``lambda: sqlite3.connect("shop.db")``, ``lambda: django.db.connection``. It is
          given back after the message: by leaving the context manager, else by closing it (never Django's).
        - A serialization failure, a deadlock or a lost connection starts the whole of it again on a new transaction,
          up to ``retries`` times, after a random time up to ``backoff``, doubled each time, at most ``max_backoff``.
          Where the answer to the COMMIT was lost, this finds out what became of it: the insert waits for the old
          transaction, and a committed one is answered with its stored result. The handler's own errors are never
          repeated.
        - ``max_attempts``: how often it may start before it is `AttemptsExhausted`, counted in a transaction of its
          own before each start, so that a message which takes the process down is counted too.
        - ``returns``: the type of the result, where the annotation does not say.
        - On first use it runs `check`, unless ``allow_unsafe``.
        """
        return Handling(
            self,
            connect=connect,
            max_attempts=max_attempts,
            retries=retries,
            backoff=micros(backoff, "backoff") / 1e6,
            max_backoff=micros(max_backoff, "max_backoff") / 1e6,
            returns=returns,
            allow_unsafe=allow_unsafe,
        )

    # -- how

    def _rows(self, session: Caller) -> Rows:
        return rows_of(session.dialect, self.table)

    def _arrival(self, message: Any, payload: Any) -> Arrival:
        """How ``message`` stands in the table. All that may be wrong with it is wrong here, before any statement."""
        carried = isinstance(message, Message)
        key = encode_key(message.key if carried else message)
        prints = b""
        if payload is not ...:
            prints = fingerprints(payload)
        elif self._fingerprint:
            prints = fingerprints(self._fingerprint(message))
        elif carried and self._fingerprint is None:
            prints = fingerprints(message.data)
        privacy = self._privacy
        if privacy is None:
            return Arrival(self.scope, key, key, prints, self._retention)
        hidden = privacy.hide(self.scope, key)
        return Arrival(self.scope, hidden, key, privacy.hide_fingerprints(self.scope, prints), self._retention)

    def _codec(self, type_: Any) -> Codec:
        try:
            return _codec(type_, self._max_result)
        except TypeError:  # a type that has no hash
            return Codec(type_, self._max_result)

    def _encoded(self, codec: Codec, arrival: Arrival, value: Any) -> bytes | None:
        """The result as stored; None where it cannot be: the message is handled all the same."""
        try:
            plain = codec.encode(value)
        except Unstorable:
            return None
        return plain if self._privacy is None else self._privacy.seal(plain, arrival.scope, arrival.key, 0)

    def _replayed(self, codec: Codec, arrival: Arrival, found: Found) -> Any:
        """What a duplicate gets: the stored result, or the error that says why there is none."""
        self._refuse_mismatch(arrival, found)
        stored = found.result
        if stored is not None and self._privacy is not None:
            stored = self._privacy.open(stored, arrival.scope, arrival.key, (0,))
        if stored is not None:
            return codec.decode(stored)
        if codec.discards:
            return None
        raise ResultNotStored(
            f"{_about(arrival)} is done, but its result was not stored (recorded by first(), too large, or not of the "
            "annotated type); the effect happened: ack this delivery"
        )

    def _refuse_mismatch(self, arrival: Arrival, found: Found) -> None:
        if found.mismatches(arrival):
            raise PayloadMismatch(
                f"{_about(arrival)} was used before with another payload; a retry must send the same payload, and a "
                "new operation must have a new key"
            )

    async def _first(self, session: Caller, arrival: Arrival) -> bool:
        _require_still(session)
        rows = self._rows(session)
        if session.is_async:
            found = await self._whole(
                session,
                lambda: rows.insert(session, arrival, result=False),
                lambda found: [arrival] if found is None else [],
            )
        else:  # nobody can cancel it
            found = await rows.insert(session, arrival, result=False)
        if found is None:
            return True
        self._refuse_mismatch(arrival, found)
        return False

    async def _first_many(self, session: Caller, arrivals: list[Arrival]) -> list[bool]:
        unique: dict[str, Arrival] = {}
        for arrival in arrivals:
            earlier = unique.setdefault(arrival.key, arrival)
            if earlier is not arrival:
                self._refuse_mismatch(arrival, Found(earlier.fingerprint, None))
        if not unique:
            return []
        _require_still(session)
        rows = self._rows(session)

        def new(found: dict[str, Found]) -> list[Arrival]:
            return [each for key, each in unique.items() if key not in found]

        found = await self._whole(session, lambda: rows.insert_many(session, list(unique.values())), new)
        try:
            for key, row in found.items():
                self._refuse_mismatch(unique[key], row)
        except PayloadMismatch:
            # Else a caller who goes on and commits would have the others recorded, and not done.
            await rows.forget_many(session, new(found))
            raise
        return [unique[arrival.key] is arrival and arrival.key not in found for arrival in arrivals]

    async def _whole(self, session: Caller, insert: Callable[[], Awaitable[T]], new: Callable[[T], list[Arrival]]) -> T:
        """What ``insert`` gives. Where it is cancelled and done all the same, what it has inserted is taken back, or
        the transaction made to fail: a caller who goes on and commits would have that recorded, and not done."""
        if not session.outlives_cancel:
            try:
                return await insert()
            except CancelledError:
                await session.spoil()
                raise
        place = await session.savepoint()
        try:
            found = await insert()
        except GeneratorExit:
            raise
        except BaseException as error:
            await self._undo(session, place, error)
            raise
        try:
            await session.release(place)
        except CancelledError:
            await self._rows(session).forget_many(session, new(found))
            raise
        return found

    def _call_sync(
        self, session: Caller, arrival: Arrival, codec: Codec, message: Any, fn: Callable[..., Any]
    ) -> Outcome[Any]:
        place, found = run_sync(self._enter(session, arrival))
        try:
            if found is None:
                value = fn(session.connection, message)  # outside of our coroutines: it may raise StopIteration
                if type(value) in LAZY or hasattr(value, "__await__"):
                    refuse_lazy(fn, value)
                run_sync(self._leave(session, arrival, place, self._encoded(codec, arrival, value)))
            else:
                value = self._replayed(codec, arrival, found)
        except BaseException as error:
            run_sync(self._undo(session, place, error))
            raise
        return _outcome(arrival, message, value, found is not None)

    async def _call_async(
        self, session: Caller, arrival: Arrival, codec: Codec, message: Any, fn: Callable[..., Any]
    ) -> Outcome[Any]:
        place, found = await self._enter(session, arrival)
        try:
            if found is None:
                pending = fn(session.connection, message)
                if not hasattr(pending, "__await__"):
                    raise SyncAsyncMismatch(
                        f"{name_of(fn)} is a plain `def` on an async connection, so that nothing it does there is "
                        "awaited; make it `async def`"
                    )
                value = await pending
                await self._leave(session, arrival, place, self._encoded(codec, arrival, value))
            else:
                value = self._replayed(codec, arrival, found)
        except GeneratorExit:
            raise  # nothing can be awaited any more: the transaction is its owner's to end
        except BaseException as error:
            await self._undo(session, place, error)
            raise
        return _outcome(arrival, message, value, found is not None)

    async def _enter(self, session: Caller, arrival: Arrival) -> tuple[Any, Found | None]:
        _require_still(session)
        place = await session.savepoint()
        try:
            found = await self._rows(session).insert(session, arrival, result=True)
        except GeneratorExit:
            raise
        except BaseException as error:  # cancelled, too: the insert may have been done all the same
            await self._undo(session, place, error)
            raise
        if found is not None:
            await session.release(place)
            place = None
        return place, found

    async def _leave(self, session: Caller, arrival: Arrival, place: Any, result: bytes | None) -> None:
        # Sent even where there is nothing to keep: in a transaction that has failed unnoticed, it fails here.
        await self._rows(session).store(session, arrival, result)
        await session.release(place)

    async def _undo(self, session: Caller, place: Any, error: BaseException) -> None:
        if place is None:
            return
        try:
            await session.roll_back_to(place)
        except ConnectionLost:  # nobody can go on with that; what it died of is raised
            pass
        except Exception as gone:
            if not isinstance(error, Exception) or isinstance(error, TransactionConflict | ConnectionLost):
                return
            raise TransactionConflict(
                f"your whole transaction is gone with what failed in it, not this call alone ({show(gone, 200)}); roll "
                "back, and run the whole of it again, the messages before this one too"
            ) from error

    async def _migrate(self, session: Caller) -> None:
        if session.dialect == "postgresql":  # two at once would both find no table, and one fail to create it
            await session.rows("SELECT pg_advisory_xact_lock(hashtext('effectonce migrate'))")
        for statement in bare(self.schema_sql(session.dialect)).split(";"):
            if statement.strip():
                await session.rows(statement)


def _outcome(arrival: Arrival, message: Any, value: Any, replayed: bool) -> Outcome[Any]:
    attempt = message.attempt if isinstance(message, Message) else 1
    return Outcome(value, replayed, arrival.plain_key, arrival.scope, attempt)


def _require_still(session: Caller) -> None:
    """An answer may be awaited long after it was asked for, when the transaction is over."""
    if session.is_async:
        session.require_transaction()


def _about(arrival: Arrival) -> str:
    return f"scope {show(arrival.scope)!r}, key {show(arrival.plain_key)!r}"


@lru_cache(maxsize=256)
def _codec(type_: Any, limit: int) -> Codec:
    return Codec(type_, limit)
