"""`Sent`: a transactional intent. Its effect has happened, and its completion commits with the caller's own rows."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from effectonce.contracts import AsyncConnection, AsyncpgConnection, DriverSession, Joinable, SyncConnection
from effectonce.core.guarded_call.finish import encode_result, make_completion, settle_unfinished
from effectonce.core.guarded_call.run import StoreRun
from effectonce.core.run_sync import run_sync
from effectonce.core.store_clients import StoreClient
from effectonce.errors import ConfigurationError, LeaseLost, SyncAsyncMismatch
from effectonce.record import Settlement
from effectonce.sessions import Pending, session_on

if TYPE_CHECKING:
    from .operation import IntentOperation
    from .runner import IntentResult

Res = TypeVar("Res")


class Sent(Generic[Res]):
    """An effect that has happened and is not recorded yet: its completion commits with your own rows.

        with charge.send(payment, key=message.key) as sent:
            with conn.transaction():
                if not sent.replayed:
                    conn.execute("UPDATE orders SET paid = true …")
                    outbox.send(conn, …)
                sent.complete(conn)

    Until that commits the intent is unfinished: after a crash the next delivery sends it again with the same key, gets
    the provider's answer once more, and enters this block again. ``replayed``: it was completed before, with its rows,
    so writing them again would double them.
    """

    def __init__(self, operation: IntentOperation[Any, Any], run: StoreRun) -> None:
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

    @overload
    def complete(self, connection: SyncConnection, result: Any = ...) -> None: ...
    @overload
    def complete(
        self, connection: AsyncConnection | AsyncpgConnection, result: Any = ...
    ) -> Coroutine[Any, Any, None]: ...
    def complete(self, connection: Any, result: Any = ...) -> Any:
        """Record the success, with its result, in the transaction that is open on ``connection``. Await it if that is
        async. Raises `LeaseLost` if another process has resumed this intent: roll back then. A replay records nothing.
        """
        session = session_on(connection)
        session.require_transaction()
        written = self._write_completion(session, self._result if result is ... else result)
        return Pending(written, "complete(…)", writes_on=session) if session.is_async else run_sync(written)

    async def _write_completion(self, session: DriverSession, result: Any) -> None:
        run = self._run
        if run.replayed:
            return
        backend = run.runtime.backend
        op = make_completion(run, encode_result(run, result))
        if not isinstance(backend, Joinable) or not isinstance(op, Settlement):
            raise ConfigurationError(
                f"{backend!r} is not an SQL database, so your transaction cannot complete an intent there; keep the "
                "intents in your own database"
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
            raise LeaseLost(f"intent {run.key}: its lease ended and another process resumed it: roll this back")
        self._completed = True
        run.runtime.leased_runs.discard(run)  # a renewal would be refused once this commits

    # -- the block

    def __enter__(self) -> Sent[Res]:
        if self._operation.is_async:
            raise SyncAsyncMismatch("this operation is async: write `async with`")
        return self._enter(run_sync(self._operation.run_intent(self._run, self._run.runtime.sync_client(), "leave")))

    async def __aenter__(self) -> Sent[Res]:
        return self._enter(await self._operation.run_intent(self._run, self._run.runtime.async_client(), "leave"))

    def _enter(self, result: IntentResult) -> Sent[Res]:
        if result.error is not None:
            raise result.error
        self._result = result.value
        return self

    def __exit__(self, *exception: object) -> None:
        run_sync(self._exit(self._run.runtime.sync_client()))

    async def __aexit__(self, *exception: object) -> None:
        await self._exit(self._run.runtime.async_client())

    async def _exit(self, client: StoreClient) -> None:
        """Release the intent if `complete` was not called. Otherwise the caller's commit settles it, and only the
        database knows whether that happened."""
        run = self._run
        if not run.replayed and run.active and not self._completed:
            await settle_unfinished(run, client, "free", "it was not completed")
        run.end()
