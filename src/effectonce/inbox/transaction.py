"""`InboxTransaction`: a transaction that the inbox begins and ends itself, on a connection that it opens for it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from effectonce.contracts import ConnectionLost
from effectonce.errors import ConfigurationError, SyncAsyncMismatch, TransactionConflict, show
from effectonce.guard.introspection import name_of
from effectonce.sessions import AwaitedCalls, BaseDriverSession, connect_error, is_connection, session_on
from effectonce.values.awaitables import maybe_await

if TYPE_CHECKING:
    from .handler import TransactionalHandler

log: Final = logging.getLogger("effectonce")


T = TypeVar("T")


class InboxTransaction:
    """At most one open connection, and one transaction on it. `open` may be called again after `abort`.

    A subclass that runs handlers in it calls `mark` before them and `release_mark` after them. If a handler has ended
    the transaction itself, `abort` calls its `after_foreign_end`.
    """

    def __init__(self, handler: TransactionalHandler) -> None:
        self.handler = handler
        #: After `abort`: the error to raise in place of the driver's; None: raise the driver's.
        self.translated_error: Exception | None = None
        self._session: BaseDriverSession | None = None
        self._leave_manager: Callable[..., Any] | None = None  # `__exit__` or `__aexit__` of what connect= returned
        self._is_open = False  # a transaction was begun and has not been ended
        self._is_marked = False  # `mark` was called in it
        self._calls = AwaitedCalls()  # what handlers wrote on an async connection
        self._retries = 0

    @property
    def session(self) -> BaseDriverSession:
        assert self._session is not None
        return self._session

    async def open(self) -> BaseDriverSession:
        """Open a connection and begin. The handler's first transaction also checks that the database is safe."""
        handler = self.handler
        session = self._session = await self._connect()
        try:
            await session.begin()
        except ConfigurationError:
            self._session = None  # other code has a transaction open there, so leave the connection alone
            raise
        self._is_open = True
        if handler.needs_check:
            await handler.inbox.table(session).check(session)
            handler.needs_check = False
        return session

    async def run_once(self, work: Callable[[BaseDriverSession], Awaitable[T]]) -> T:
        """Open, and do ``work``, which ends the transaction itself. The connection is given back in any case."""
        try:
            result = await work(await self.open())
        except GeneratorExit:
            raise  # nothing can be awaited any more; the connection's end undoes it
        except BaseException as error:
            await self.abort(error)
            if self.translated_error is not None:
                raise self.translated_error from error
            raise
        await self.give_back()
        return result

    async def mark(self) -> None:
        """Set a mark (a savepoint) after the rows were inserted and before a handler runs. If the handler ends the
        transaction, the mark is gone: so `release_mark` and `abort` notice."""
        await self.session.mark()
        self._is_marked = True
        self._calls.begin()

    async def release_mark(self) -> bool:
        """Release the mark before the commit. Returns False if it is gone, since the transaction was ended: raise an
        error then, so that `abort` is called, or clean up at once after `begin_anew`.

        Raises `NotAwaited` if a handler wrote ``outbox.send(…)`` without ``await``: the message would be lost."""
        self._calls.require_all()
        if not await self.session.is_marked(release=True):
            return False
        self._is_marked = False
        return True

    async def after_foreign_end(self) -> None:
        """A handler ended the marked transaction: delete the rows that it committed without their effects. Begin with
        `begin_anew`. A `ConfigurationError` that is raised here replaces the error of the abort."""
        await self.session.roll_back()

    async def begin_anew(self) -> None:
        """Begin another transaction on the connection, since a handler has ended the one that was marked."""
        self._is_marked = False
        await self.session.roll_back()  # also for the driver, which may not know that the transaction has ended
        await self.session.begin()

    async def _handler_ended_transaction(self) -> bool:
        """Whether a handler ended the transaction that was marked. If not, this rolls back to the mark."""
        session, was_marked, self._is_marked = self.session, self._is_marked, False
        try:
            return was_marked and (await session.has_ended() or not await session.is_marked(release=False))
        except Exception:  # the connection is broken, and the transaction with it
            return False

    async def commit_and_keep(self) -> None:
        """Commit, and keep the connection: the error that follows gives it back."""
        await self.session.commit()
        self._is_open = False

    async def roll_back_and_keep(self) -> None:
        """Roll back, and keep the connection: the error that follows gives it back."""
        await self.session.roll_back()
        self._is_open = False

    async def commit(self) -> None:
        """Commit, and give the connection back."""
        self._calls.end()
        await self.session.commit()
        await self.give_back()

    async def abort(self, error: BaseException) -> float | None:
        """Roll back because of ``error``, and give the connection back.

        Returns the seconds after which to start again, if the database and not the handler is the cause. None: raise
        `translated_error`, or ``error`` if that is None.
        """
        session = self._session
        self._calls.end()
        cause = connect_error(error) if session is None else session.database_failure(error)
        try:
            if session is not None and self._is_open:
                self._is_open = False
                try:
                    if await self._handler_ended_transaction():
                        await self.after_foreign_end()
                    else:
                        await session.roll_back()
                except ConfigurationError as ended_by_handler:
                    cause = ended_by_handler
                except Exception:  # the connection is broken, and the database rolls back for it
                    pass
        finally:  # even if a second cancellation interrupts the rollback
            await self.give_back(error)
        if isinstance(cause, TransactionConflict | ConnectionLost) and self._retries < self.handler.options.retries:
            pause = self.handler.backoff(self._retries)
            self._retries += 1
            return pause
        if cause is not error:
            self.translated_error = cause
        return None

    async def _connect(self) -> BaseDriverSession:
        """Call connect=, which returns a connection, an awaitable of one, or a context manager around one."""
        is_async = self.handler.is_async
        connection = self.handler.options.connect()
        kind = type(connection)
        if not is_connection(connection):
            manager = connection
            if is_async and hasattr(kind, "__aenter__"):
                connection = await manager.__aenter__()
                self._leave_manager = manager.__aexit__
            elif hasattr(kind, "__enter__"):
                connection = manager.__enter__()
                self._leave_manager = manager.__exit__
        if self._leave_manager is None and hasattr(kind, "__await__"):
            if not is_async:
                if inspect.iscoroutine(connection):
                    connection.close()
                raise self._mismatch("async")
            connection = await connection
        if not is_connection(connection) and hasattr(type(connection), "__aenter__"):
            raise self._mismatch("async")
        session = self._session = session_on(connection)
        if session.is_async != is_async:
            raise self._mismatch("async" if session.is_async else "sync")
        return session

    def _mismatch(self, connections: Literal["sync", "async"]) -> SyncAsyncMismatch:
        declared = "`async def`" if self.handler.is_async else "a plain `def`"
        return SyncAsyncMismatch(
            f"{name_of(self.handler.fn)} is {declared}, and connect= returns {connections} connections; make both "
            "sync, or both async"
        )

    async def give_back(self, error: BaseException | None = None) -> None:
        """Leave the context manager, or close the connection. If that fails it is logged: the transaction has ended.

        The manager is passed ``error``, since some managers commit when they are left without one.
        """
        session, self._session = self._session, None
        leave, self._leave_manager = self._leave_manager, None
        try:
            if leave is None:
                if session is not None:
                    await session.close()
                return
            await maybe_await(leave(None if error is None else type(error), error, error and error.__traceback__))
        except BaseException as raised:
            if raised is error:
                return
            if not isinstance(raised, Exception):
                raise
            log.warning("%s could not return a connection: %s", self.handler.inbox, show(raised))
