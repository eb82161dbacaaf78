"""The loops that run a handler between the steps of an inbox run: one for sync handlers, one for async handlers.

A handler is called between the coroutines of its run, never inside one: there its ``StopIteration`` would become a
``RuntimeError``. So the loop is written twice, and the steps, in `CallRun` and `HandlerRun`, once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from effectonce.core.run_sync import run_sync
from effectonce.errors import SyncAsyncMismatch
from effectonce.guard.introspection import name_of, refuse_lazy
from effectonce.guard.once import Outcome
from effectonce.sessions import BaseDriverSession


class InboxRun(Protocol):
    """One message through a handler, in steps: `begin`, the handler, `finish`. After an error in any of them `abort`,
    and then the error is raised, or `begin` is called again."""

    outcome: Outcome[Any]  # set by `finish`, and by `begin` for a duplicate

    @property
    def session(self) -> BaseDriverSession: ...

    @property
    def translated_error(self) -> Exception | None:
        """After `abort`: the error to raise in place of the handler's; None: raise the handler's."""

    async def begin(self) -> bool:
        """Insert the row of the message. Returns whether it is new, so that the handler must run now."""

    async def finish(self, value: Any) -> None:
        """Store the handler's result."""

    async def abort(self, error: BaseException) -> float | None:
        """Undo what the run has done. Returns the seconds after which to begin again; None: the run is over."""


def run_handler(run: InboxRun, fn: Callable[[Any, Any], Any], message: Any) -> Outcome[Any]:
    while True:
        try:
            if run_sync(run.begin()):
                value = fn(run.session.connection, message)
                refuse_lazy(fn, value)
                run_sync(run.finish(value))
            return run.outcome
        except BaseException as error:
            pause = run_sync(run.abort(error))
            if pause is None:
                if run.translated_error is not None:
                    raise run.translated_error from error
                raise
        time.sleep(pause)


async def run_async_handler(run: InboxRun, fn: Callable[[Any, Any], Any], message: Any) -> Outcome[Any]:
    while True:
        try:
            if await run.begin():
                pending = fn(run.session.connection, message)
                if not hasattr(pending, "__await__"):
                    raise SyncAsyncMismatch(
                        f"{name_of(fn)} is a plain `def` on an async connection, so that nothing it does there is "
                        "awaited; make it `async def`"
                    )
                await run.finish(await pending)
            return run.outcome
        except GeneratorExit:
            raise  # nothing can be awaited any more; the transaction ends with its connection
        except BaseException as error:
            pause = await run.abort(error)
            if pause is None:
                if run.translated_error is not None:
                    raise run.translated_error from error
                raise
        await asyncio.sleep(pause)
