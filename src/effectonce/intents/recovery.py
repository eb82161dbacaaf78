"""`IntentRecovery`: resumes the intents that other processes left unfinished."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from effectonce.core.error_text import describe_error
from effectonce.core.interrupts import remember_signal_handlers
from effectonce.core.run_sync import run_sync
from effectonce.core.store_clients import StoreClient
from effectonce.core.unfinished import MAX_CONCURRENT_RESUMES, UnfinishedRecords
from effectonce.errors import InDoubt, LeaseLost, PermanentFailure, ResultNotStored, Retryable, show
from effectonce.record import Record

from .operations import IntentOperation

if TYPE_CHECKING:
    from .intents import Intents

logger = logging.getLogger("effectonce")


class RecoveryCounts(Struct, frozen=True):
    """The result of one recovery: the number of intents with each outcome."""

    done: int = 0
    failed: int = 0
    in_doubt: int = 0
    later: int = 0  # still unknown, not executed, or run by another process
    broken: int = 0  # could not be resumed: see the log


class IntentRecovery:
    """Finds unfinished intents and resumes them. See `Intents.recover`."""

    def __init__(self, intents: Intents) -> None:
        self._intents = intents
        self._unfinished: dict[str, UnfinishedRecords] = {}  # by scope

    def recover(self, idle: int, limit: int | None, stop: Callable[[], bool]) -> RecoveryCounts:
        remember_signal_handlers()
        client = self._intents.store.runtime.sync_client()
        results: Counter[str] = Counter()
        for operation, record in self._find(idle, limit, is_async=False):
            if stop():
                break
            results[run_sync(self._recover_one(operation, record, client))] += 1
        return RecoveryCounts(**results)

    async def arecover(self, idle: int, limit: int | None, stop: Callable[[], bool]) -> RecoveryCounts:
        remember_signal_handlers()
        client = self._intents.store.runtime.async_client()
        results: Counter[str] = Counter()
        unfinished = self._find(idle, limit, is_async=True)

        def read_chunk() -> list[tuple[IntentOperation[Any, Any], Record]]:
            return list(islice(unfinished, MAX_CONCURRENT_RESUMES))

        while not stop() and (chunk := await asyncio.to_thread(read_chunk)):
            recoveries = (self._recover_one(operation, record, client) for operation, record in chunk)
            results.update(await asyncio.gather(*recoveries))
        return RecoveryCounts(**results)

    def _find(self, idle: int, limit: int | None, is_async: bool) -> Iterator[tuple[IntentOperation[Any, Any], Record]]:
        """Yield unfinished intents of all operations, up to ``limit`` in all. With limit=0 or less the first operation
        refuses it."""
        left = limit
        for scope, operation in self._intents.operations.items():
            if operation.is_async is is_async and (left is None or left > 0 or left == limit):
                unfinished = self._unfinished.setdefault(scope, UnfinishedRecords(self._intents.store, scope))
                for page in unfinished.pages(left, idle):
                    if left is not None:
                        left -= len(page)
                    for record in page:
                        yield operation, record

    async def _recover_one(self, operation: IntentOperation[Any, Any], record: Record, client: StoreClient) -> str:
        """Resume one intent. Returns a field name of `RecoveryCounts`: one that is broken must not keep the others
        waiting."""
        error: BaseException | None
        try:
            log = self._intents.log(record)
            if log.outcome is not None or log.in_saga:
                return "later"
            run = operation.prepare_run(self._intents.id_of(record))
            _, error = await operation.run_intent(run, client, "recover")
        except (Retryable, InDoubt, LeaseLost, PermanentFailure, ResultNotStored) as raised:
            error = raised
        except Exception as defect:
            text = show(describe_error(defect), 500)
            logger.warning("could not recover an intent in %s: %s", show(record.scope), text)
            return "broken"
        if error is None or isinstance(error, ResultNotStored):
            return "done"
        if isinstance(error, InDoubt):
            return "in_doubt"
        return "later" if isinstance(error, Retryable | LeaseLost) else "failed"
