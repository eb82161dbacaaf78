"""Effects that have happened, and whose completion commits with rows of the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from effectonce.contracts import DriverSession, Joinable
from effectonce.core.guarded_call.finish import completion_of, encode_result, leave
from effectonce.core.guarded_call.run import Run
from effectonce.core.run_sync import Pending, run_sync
from effectonce.core.store_runtime import StoreClient
from effectonce.errors import ConfigurationError, LeaseLost, SyncAsyncMismatch
from effectonce.record import Settlement
from effectonce.sessions import session_on

Res = TypeVar("Res")


class Sender(Protocol):
    """What this needs of an `Operation`."""

    is_async: bool

    async def through(
        self, run: Run, client: StoreClient, complete: bool | None
    ) -> tuple[Any, BaseException | None]: ...


class Sent(Generic[Res]):
    """An effect that has happened and is not recorded yet: its completion commits with rows of yours.

        with charge.send(payment, key=message.key) as sent:
            with conn.transaction():
                if not sent.replayed:
                    conn.execute("UPDATE orders SET paid = true …")
                    outbox.send(conn, …)
                sent.complete(conn)

    Until that commits the intent is open: after a crash the next delivery sends it again with the same key, gets the
    provider's answer once more, and comes to this block again. ``replayed``: it was completed before, rows and all, so
    a message would be sent a second time.
    """

    def __init__(self, operation: Sender, run: Run) -> None:
        self._operation = operation
        self._run = run
        self._result: Any = None
        self._completed = False

    @property
    def result(self) -> Res:
        return self._result  # type: ignore[no-any-return]

    @property
    def replayed(self) -> bool:
        return self._run.replayed

    def complete(self, connection: Any, result: Any = ...) -> Any:
        """Record the success, with its result, in the transaction that is open on ``connection``; on an async one
        `await` it. `LeaseLost` where another goes on with this intent: roll back. Nothing to do for a replay."""
        session = session_on(connection)
        session.require_transaction()
        done = self._complete(session, self._result if result is ... else result)
        return Pending(done, "complete(…)") if session.is_async else run_sync(done)

    async def _complete(self, session: DriverSession, result: Any) -> None:
        run = self._run
        if run.replayed:
            return
        backend = run.runtime.backend
        op = completion_of(run, encode_result(run, result))
        if not isinstance(backend, Joinable) or not isinstance(op, Settlement):
            raise ConfigurationError(
                f"{backend!r} is no SQL database, so no transaction of yours can complete an intent there"
            )
        dialect, statements = backend.completion(op)
        if dialect != session.dialect:
            raise ConfigurationError(
                f"the intents are in {backend!r}, and this connection speaks {session.dialect}: they must be in one "
                "database"
            )
        rows: Sequence[Any] = ()
        for sql, params in statements:
            rows = await session.rows(sql, params)
        if not rows:
            raise LeaseLost(f"intent {run.key}: its lease ended and another goes on with it: roll this back")
        self._completed = True
        run.runtime.leased_runs.discard(run)  # a renewal would be refused once this commits

    # -- the block

    def __enter__(self) -> Sent[Res]:
        if self._operation.is_async:
            raise SyncAsyncMismatch("this operation is async: write `async with`")
        return self._entered(run_sync(self._operation.through(self._run, self._run.runtime.sync_client(), False)))

    async def __aenter__(self) -> Sent[Res]:
        return self._entered(await self._operation.through(self._run, self._run.runtime.async_client(), False))

    def _entered(self, came: tuple[Any, BaseException | None]) -> Sent[Res]:
        self._result, error = came
        if error is not None:
            raise error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        run_sync(self._exited(self._run.runtime.sync_client()))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._exited(self._run.runtime.async_client())

    async def _exited(self, client: StoreClient) -> None:
        """What was completed is settled by the commit, or by nobody: only the database knows whether that happened."""
        run = self._run
        if not run.replayed and run.active:
            if self._completed:
                run.active = False
            else:
                await leave(run, client, "free", "it was not completed")
        run.end()
