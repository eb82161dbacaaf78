"""A handler between the steps of its run.

``begin`` inserts the row: where it is new, the handler is to run now; a duplicate's ``outcome`` is set. ``finish``
stores the handler's result and sets ``outcome``. ``abort`` undoes what the run has done, and gives the seconds after
which to begin again; None: the run is over, with ``translated_error`` in place of the handler's where there is one.

The handler is called between these coroutines, never inside one: its ``StopIteration`` would become a
``RuntimeError``. So there is a loop for sync handlers and one for async handlers, and the steps are written once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from effectonce.core.run_sync import run_sync
from effectonce.errors import SyncAsyncMismatch
from effectonce.guard.introspection import name_of, refuse_lazy
from effectonce.guard.once import Outcome

if TYPE_CHECKING:
    from .call_run import CallRun
    from .handler_run import HandlerRun


def run_handler(run: HandlerRun | CallRun, fn: Callable[[Any, Any], Any], message: Any) -> Outcome[Any]:
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


async def run_async_handler(run: HandlerRun | CallRun, fn: Callable[[Any, Any], Any], message: Any) -> Outcome[Any]:
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
            raise  # nothing can be awaited any more; the transaction is undone with its connection, or by its owner
        except BaseException as error:
            pause = await run.abort(error)
            if pause is None:
                if run.translated_error is not None:
                    raise run.translated_error from error
                raise
        await asyncio.sleep(pause)
