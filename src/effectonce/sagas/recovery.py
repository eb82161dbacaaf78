"""`SagaRecovery`: resumes the sagas of one definition that were only started, or left behind by a process that died."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from effectonce.core.guarded_call.run import Run
from effectonce.core.interrupts import is_own_exit, remember_signal_handlers
from effectonce.core.run_sync import run_sync
from effectonce.core.store_runtime import StoreClient
from effectonce.core.store_runtime import log as logger
from effectonce.core.unfinished import MAX_CONCURRENT_RESUMES, UnfinishedRecords
from effectonce.errors import (
    CorruptRecord,
    InDoubt,
    LeaseLost,
    PermanentFailure,
    ResultNotStored,
    Retryable,
    show,
)
from effectonce.record import Record

from .runner import run_saga

if TYPE_CHECKING:
    from .saga import Saga


class Resumed(Struct, frozen=True):
    """The result of one `Saga.resume`, in numbers of sagas."""

    done: int = 0
    failed: int = 0  # and compensated
    in_doubt: int = 0
    later: int = 0  # a step's outcome is not known yet, the store did not answer, or another process runs it
    refused: int = 0  # begun under another definition, or not readable: the log says why


class SagaRecovery:
    """Finds unfinished sagas and runs them on. See `Saga.resume`."""

    def __init__(self, saga: Saga[Any]) -> None:
        self._saga = saga
        self._unfinished = UnfinishedRecords(saga.store, saga.scope)

    def resume(self, limit: int | None, stop: Callable[[], bool]) -> Resumed:
        remember_signal_handlers()
        client = self._saga.store.runtime.sync_client()
        results: Counter[str] = Counter()
        for page in self._pages(limit):
            results.update(run_sync(self._resume_one(id, claimed_at, client)) for id, claimed_at in page if not stop())
            if stop():
                break
        return Resumed(**results)

    async def aresume(self, limit: int | None, stop: Callable[[], bool]) -> Resumed:
        remember_signal_handlers()
        client = self._saga.store.runtime.async_client()
        results: Counter[str] = Counter()
        pages = self._pages(limit)
        while (page := await asyncio.to_thread(next, pages, None)) is not None:
            for start in range(0, len(page), MAX_CONCURRENT_RESUMES):
                if stop():
                    return Resumed(**results)
                chunk = page[start : start + MAX_CONCURRENT_RESUMES]
                results.update(
                    await asyncio.gather(*(self._resume_one(id, claimed_at, client) for id, claimed_at in chunk))
                )
        return Resumed(**results)

    def _pages(self, limit: int | None) -> Iterator[list[tuple[str, int]]]:
        """Yield ids with the time of the first claim. A record with more than one attempt only shows when it was
        created, which is earlier: then a step counts as older than it is, and is in doubt rather than repeated."""
        for page in self._unfinished.pages(limit):
            ids = [(self._read_id(record), record) for record in page]
            yield [
                (id, record.changed_at if record.attempts <= 1 else record.created_at)
                for id, record in ids
                if id is not None
            ]

    def _read_id(self, record: Record) -> str | None:
        """Read the saga's id from its log: with ``private=`` the record's key is a hash. None: it is not readable."""
        try:
            return self._saga.log(record).id
        except CorruptRecord as error:
            logger.warning("could not resume saga %s %s: %s", self._saga.name, show(record.key), error)
            return None

    async def _resume_one(self, id: str, claimed_at: int, client: StoreClient) -> str:
        """Resume one saga. Returns a field name of `Resumed`: an error of one saga must not keep the others waiting."""
        run: Run | None = None
        try:
            run = self._saga.prepare_run(id)
            await run_saga(self._saga, run, client, claimed_at=claimed_at)
        except InDoubt:
            return "in_doubt"
        except PermanentFailure:
            return "failed"
        except ResultNotStored:
            return "done"
        except (Retryable, LeaseLost):
            return "later"
        except (SystemExit, asyncio.CancelledError) as error:
            forked_child = run is not None and not run.protected  # of a step: it has to end
            if not is_own_exit(error) or run is None or forked_child:
                raise
            text = "saga %s %s: a step ended with %s, so its outcome is unknown; it will be resumed again"
            logger.warning(text, self._saga.name, show(id), type(error).__name__)
            return "later"
        except Exception as error:
            logger.warning(
                "could not resume saga %s %s: %s: %s", self._saga.name, show(id), type(error).__name__, error
            )
            return "refused"
        return "done"
