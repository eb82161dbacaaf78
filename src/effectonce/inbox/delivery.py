"""One message on its way through a handler that owns its transaction.

A delivery opens a connection, begins, inserts the row, lets the handler run, keeps the result and commits. Where the
database, and not the handler, is why that failed, it starts again from the very beginning.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from effectonce.contracts import ConnectionLost
from effectonce.errors import (
    AttemptsExhausted,
    ConfigurationError,
    InProgress,
    Reentered,
    SyncAsyncMismatch,
    TransactionConflict,
    show,
)
from effectonce.guard.introspection import name_of
from effectonce.guard.once import Outcome
from effectonce.message import Message
from effectonce.sessions import Caller, cannot_connect, knows, session_on

from .rows import Arrival, Rows

if TYPE_CHECKING:
    from .handler import Plan

log: Final = logging.getLogger("effectonce")

#: What this task or thread is handling: a handler that handles its own message again would wait for itself.
_handling: ContextVar[tuple[tuple[str, str, str], ...]] = ContextVar("effectonce_handling", default=())


class Transaction:
    """At most one open connection, and the transaction on it, which is begun and ended here."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        #: What to raise instead of the driver's error.
        self.surfaces: Exception | None = None
        self._session: Caller | None = None
        self._leave: Callable[..., Any] | None = None
        self._began = False
        self._marked = False
        self._tries = 0

    @property
    def session(self) -> Caller:
        assert self._session is not None
        return self._session

    async def open(self) -> Caller:
        """Open a connection and begin. The first time, see whether the database can keep its promise."""
        plan = self.plan
        session = self._session = await self._open()
        try:
            await session.begin()
        except ConfigurationError:
            self._session = None  # somebody else's transaction is there: neither ended nor closed by us
            raise
        self._began = True
        if plan.unchecked:
            await plan.inbox._rows(session).check(session)
            plan.unchecked = False
        return session

    async def mark(self) -> None:
        """The rows are in, and handlers come next: see `is_foreign`."""
        await self.session.mark()
        self._marked = True

    async def is_foreign(self) -> bool:
        """Whether a handler has ended the transaction that was marked. If not, all that was done since is undone."""
        session, marked, self._marked = self.session, self._marked, False
        try:
            return marked and (await session.has_ended() or not await session.is_marked(release=False))
        except Exception:  # nothing can be asked of it any more
            return False

    async def commit(self) -> None:
        """Commit, and give the connection back."""
        await self.session.commit()
        await self.give_back()

    async def abort(self, error: BaseException) -> float | None:
        """Undo it all. The seconds after which to start again; None: ``error``, or ``surfaces``, is raised."""
        session = self._session
        known = cannot_connect(error) if session is None else session.known(error)
        try:
            if session is not None and self._began:
                self._began = False
                try:
                    await self.roll_back()
                except ConfigurationError as ended:
                    known = ended
                except Exception:  # it is broken, and undone by that
                    pass
        finally:  # cancelled a second time, too
            await self.give_back(error)
        if isinstance(known, TransactionConflict | ConnectionLost) and self._tries < self.plan.options.retries:
            self._tries += 1
            return self.plan.pause(self._tries - 1)
        if known is not error:
            self.surfaces = known
        return None

    async def roll_back(self) -> None:
        await self.session.roll_back()

    async def _open(self) -> Caller:
        plan = self.plan
        given = plan.options.connect()
        kind = type(given)
        if not knows(given):
            manager = given
            if plan.is_async and hasattr(kind, "__aenter__"):
                given = await manager.__aenter__()
                self._leave = manager.__aexit__
            elif hasattr(kind, "__enter__"):
                given = manager.__enter__()
                self._leave = manager.__exit__
        if self._leave is None and hasattr(kind, "__await__"):
            if not plan.is_async:
                if inspect.iscoroutine(given):
                    given.close()
                raise self._wrong_colour("async")
            given = await given
        if not knows(given) and hasattr(type(given), "__aenter__"):
            raise self._wrong_colour("async")
        session = self._session = session_on(given)
        if session.is_async != plan.is_async:
            raise self._wrong_colour("async" if session.is_async else "sync")
        return session

    def _wrong_colour(self, colour: str) -> SyncAsyncMismatch:
        fn = self.plan.fn
        return SyncAsyncMismatch(
            f"{name_of(fn)} is {'`async def`' if self.plan.is_async else 'a plain `def`'}, and connect= gives {colour} "
            "connections; make both sync, or both async"
        )

    async def give_back(self, error: BaseException | None = None) -> None:
        """Leave the context manager, or close the connection. What fails by that changes nothing any more.

        The manager is told of ``error``: one that would commit what it gave out does not."""
        session, self._session = self._session, None
        leave, self._leave = self._leave, None
        try:
            if leave is None:
                if session is not None:
                    await session.close()
                return
            left = leave(None if error is None else type(error), error, error and error.__traceback__)
            if hasattr(left, "__await__"):
                await left
        except BaseException as raised:
            if raised is error:
                return
            if not isinstance(raised, Exception):
                raise
            log.warning("a connection of %s could not be given back: %s", self.plan.inbox, show(raised))


class Delivery(Transaction):
    """One message on its way through a handler."""

    def __init__(self, plan: Plan, message: Any) -> None:
        super().__init__(plan)
        self.message = message
        self.codec = plan.codec
        self.arrival: Arrival = plan.inbox._arrival(message, ...)
        self.identity = (plan.inbox.table, self.arrival.scope, self.arrival.key)
        if self.identity in _handling.get():
            raise Reentered(
                f"scope {show(self.arrival.scope)!r} is already handling key {show(self.arrival.plain_key)!r} in this "
                "call: a handler that calls itself with its own message would wait for itself"
            )
        self.outcome: Outcome[Any]
        self._attempts: int | None = None

    # -- while the handler runs

    def __enter__(self) -> None:
        self._before = _handling.set((*_handling.get(), self.identity))

    def __exit__(self, *_: object) -> None:
        _handling.reset(self._before)

    # -- before and after it

    async def begin(self) -> bool:
        """Open a connection, begin, insert the row. True: the handler is to run now. Else ``outcome`` is there."""
        plan, arrival = self.plan, self.arrival
        session = await self.open()
        rows = plan.inbox._rows(session)
        most = plan.options.max_attempts
        if most is not None and self._attempts is None:
            # Before it runs, and committed: the row itself is gone with an attempt that fails (F20).
            self._attempts = await rows.count(session, arrival) or 0
            await session.commit()
            await session.begin()
        try:
            found = await rows.insert(session, arrival, result=True)
        except InProgress:
            await self._refund(rows)
            raise
        if found is None:
            # Only now: the insert has waited for another delivery, which may have been the last one needed.
            if most is not None and (self._attempts or 0) > most:
                raise AttemptsExhausted(
                    f"scope {show(arrival.scope)!r}, key {show(arrival.plain_key)!r} used all of its {most} attempts; "
                    f"mend the cause, then delete its row in {plan.inbox.table}_attempts to let it run again",
                    "attempts-exhausted",
                )
            await self.mark()
            return True
        await self._conclude(plan.inbox._replayed(self.codec, arrival, found), replayed=True)
        return False

    async def _refund(self, rows: Rows) -> None:
        """It did not get its turn, so that was no attempt. Where that cannot be written, it stays counted."""
        if not self._attempts:
            return
        session = self.session
        try:
            await session.roll_back()
            await session.begin()
            await rows.refund(session, self.arrival)
            await session.commit()
            self._began = False
        except Exception as error:
            log.debug("an attempt that was none stays counted: %s", error)

    async def finish(self, value: Any) -> None:
        """Keep the result and commit."""
        inbox, session, arrival = self.plan.inbox, self.session, self.arrival
        rows, result = inbox._rows(session), inbox._encoded(self.codec, arrival, value)
        if await session.has_ended():
            await self._refuse_ended(rows, result)
        # Sent even where there is nothing to keep: in a transaction that has failed unnoticed, it fails here.
        await rows.store(session, arrival, result)
        if not await session.is_marked(release=True):
            self._marked = False
            await self._renounce(rows)
            raise _rolled_back()
        self._marked = False
        await self._conclude(value, replayed=False)

    async def _refuse_ended(self, rows: Rows, result: bytes | None) -> None:
        """The handler has ended the transaction, and done nothing since. A row that it has committed is true."""
        session, self._marked = self.session, False
        await session.roll_back()  # for the driver, which may not know
        await session.begin()
        if not await rows.ours(session, self.arrival):
            raise _rolled_back()
        await rows.store(session, self.arrival, result)
        await session.commit()
        self._began = False
        raise ConfigurationError(
            f"{self._ended()} The message is recorded as handled, since all of it was committed; a crash before the "
            "handler's end would have lost the rest"
        )

    async def roll_back(self) -> None:
        if await self.is_foreign():
            await self._renounce(self.plan.inbox._rows(self.session))
        else:
            await self.session.roll_back()

    async def _renounce(self, rows: Rows) -> None:
        """The transaction is not ours any more: undo what is open. Where the handler had committed the row, that goes,
        else the message would be lost."""
        session = self.session
        await session.roll_back()
        await session.begin()
        if await rows.ours(session, self.arrival):
            await rows.forget_many(session, [self.arrival])
            await session.commit()
            self._began = False
            raise ConfigurationError(
                f"{self._ended()} What it committed stays, what it did after that is undone, and the message is not "
                "recorded: it will run again from the beginning"
            )
        await session.roll_back()
        self._began = False

    def _ended(self) -> str:
        return (
            f"{name_of(self.plan.fn)} has ended the transaction it runs in (commit, rollback, begin, `with conn:`, "
            "executescript, or a statement that commits), which is the inbox's to commit: leave that out, or use a "
            "savepoint."
        )

    async def _conclude(self, value: Any, *, replayed: bool) -> None:
        if self._attempts:
            await self.plan.inbox._rows(self.session).uncount(self.session, self.arrival)
        attempt = self._attempts or (self.message.attempt if isinstance(self.message, Message) else 1)
        self.outcome = Outcome(value, replayed, self.arrival.plain_key, self.arrival.scope, attempt)
        await self.commit()


def _rolled_back() -> TransactionConflict:
    return TransactionConflict(
        "the transaction was rolled back while the handler ran, and the handler went on: by the database (a deadlock "
        "whose error was caught: let it out), or by the handler (use a savepoint instead); all of it is undone"
    )
