"""`IntentRecovery`: resumes the intents that other processes left unfinished.

Several processes, and the workers, may do so at once: the claim decides who resumes an intent, and the others count it
as ``later``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from effectonce.core.failure_log import log_failed_attempt
from effectonce.core.store_clients import StoreClient
from effectonce.core.unfinished import UnfinishedRecords, aresume_all, check_limit, resume_all
from effectonce.errors import InDoubt, LeaseLost, PermanentFailure, ResultNotStored, Retryable
from effectonce.record import Record

if TYPE_CHECKING:
    from .intents import Intents


class RecoveryCounts(Struct, frozen=True):
    """The result of one recovery: the number of intents with each outcome."""

    done: int = 0
    failed: int = 0
    in_doubt: int = 0
    later: int = 0  # not finished now: unknown, not executed, or run by another process
    broken: int = 0  # could not be resumed: see the log


class IntentRecovery:
    """Finds unfinished intents and resumes them. See `Intents.recover`. ``_unfinished`` keeps, by scope, where a call
    with a limit goes on."""

    def __init__(self, intents: Intents) -> None:
        self._intents = intents
        self._unfinished: dict[str, UnfinishedRecords] = {}  # by scope

    def recover(self, idle: int, limit: int | None, stop: Callable[[], bool]) -> RecoveryCounts:
        client = self._intents.store.runtime.sync_client()
        records = self._find(idle, limit, is_async=False)
        return RecoveryCounts(**resume_all(records, lambda record: self._recover_one(record, client), stop))

    async def arecover(self, idle: int, limit: int | None, stop: Callable[[], bool]) -> RecoveryCounts:
        client = self._intents.store.runtime.async_client()
        records = self._find(idle, limit, is_async=True)
        return RecoveryCounts(**await aresume_all(records, lambda record: self._recover_one(record, client), stop))

    def _find(self, idle: int, limit: int | None, is_async: bool) -> Iterator[Record]:
        """Yield unfinished intents of the sync or of the async operations, up to ``limit`` in all."""
        check_limit(limit)
        records_left = limit
        for scope, operation in self._intents.operations.items():
            if operation.is_async is not is_async:
                continue
            unfinished = self._unfinished.setdefault(scope, UnfinishedRecords(self._intents.store, scope))
            for page in unfinished.pages(records_left, idle):
                if records_left is not None:
                    records_left -= len(page)
                yield from page
            if records_left == 0:
                return

    async def _recover_one(self, record: Record, client: StoreClient) -> str:
        """Resume one intent. Returns a field name of `RecoveryCounts`, and raises no error of the intent: the others
        must not wait for it."""
        operation = self._intents.operations[record.scope]
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
            what, private = {"recovery": "of an intent"}, self._intents.store.private
            log_failed_attempt(
                what, defect, "is left as it is", last=False, scope=record.scope, key=record.key, private=private
            )
            return "broken"
        if error is None or isinstance(error, ResultNotStored):
            return "done"
        if isinstance(error, InDoubt):
            return "in_doubt"
        return "later" if isinstance(error, Retryable | LeaseLost) else "failed"
