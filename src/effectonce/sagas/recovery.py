"""Resumes sagas that were only recorded, or left behind by a process that died: once, or repeatedly in a thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from effectonce.core.failure_log import log_failed_attempt
from effectonce.core.interrupts import is_own_exit
from effectonce.core.shared_loop import shared_loop
from effectonce.core.store_clients import StoreClient
from effectonce.core.unfinished import UnfinishedRecords, aresume_all, resume_all
from effectonce.errors import InDoubt, LeaseLost, PermanentFailure, ResultNotStored, Retryable
from effectonce.record import Record
from effectonce.values.durations import Duration, micros

from .runner import run_saga

if TYPE_CHECKING:
    from .saga import Saga


class ResumeCounts(Struct, frozen=True):
    """The result of one `Saga.resume`: the number of sagas with each outcome."""

    done: int = 0
    failed: int = 0  # and compensated
    in_doubt: int = 0
    later: int = 0  # a step's outcome is not known yet, the store did not answer, or another process runs it
    refused: int = 0  # started under another definition, or not readable: the log says why


class SagaRecovery:
    """Finds unfinished sagas and resumes them. See `Saga.resume`."""

    def __init__(self, saga: Saga[Any]) -> None:
        self._saga = saga
        self._unfinished = UnfinishedRecords(saga.store, saga.scope)

    def resume(self, limit: int | None, stop: Callable[[], bool]) -> ResumeCounts:
        client = self._saga.store.runtime.sync_client()
        records = chain.from_iterable(self._unfinished.pages(limit))
        return ResumeCounts(**resume_all(records, lambda record: self._resume_one(record, client), stop))

    async def aresume(self, limit: int | None, stop: Callable[[], bool]) -> ResumeCounts:
        client = self._saga.store.runtime.async_client()
        records = chain.from_iterable(self._unfinished.pages(limit))
        return ResumeCounts(**await aresume_all(records, lambda record: self._resume_one(record, client), stop))

    async def _resume_one(self, record: Record, client: StoreClient) -> str:
        """Resume one saga. Returns a field name of `ResumeCounts`, and raises no error of the saga: the others must not
        wait for it."""
        # The time of the first claim, which a record shows only while that claim lasts: later it shows its last change
        # (a release, also one that gave a takeover back uncounted). Before the first claim nothing has run. Otherwise
        # take when it was created, which is earlier: a step counts as older than it is, and is in doubt rather than
        # repeated.
        is_first_claim = record.attempts == 1 and record.state == "claimed"
        claimed_at = record.changed_at if record.attempts == 0 or is_first_claim else record.created_at
        id, run = record.key, None
        try:
            id = self._saga.log(record).id  # with ``private=`` the record's key is a hash
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
            self._log_failed(record, id, error, "will be resumed again, since a step that ends itself has no outcome")
            return "later"
        except Exception as error:
            self._log_failed(record, id, error, "is left as it is")
            return "refused"
        return "done"

    def _log_failed(self, record: Record, id: str, error: BaseException, then: str) -> None:
        """See `log_failed_attempt`."""
        what, private = {"recovery": f"of saga {self._saga.name}"}, self._saga.store.private
        log_failed_attempt(what, error, then, last=False, scope=record.scope, key=id, private=private)


class SagaSweeper:
    """The thread of `Saga.sweeper`. Leaving its ``with`` ends it, after the saga that it is running (in an event loop:
    after those few); the others are left to the next sweep."""

    def __init__(self, saga: Saga[Any], every: Duration) -> None:
        self._saga = saga
        self._interval_s = micros(every, "every") / 1e6
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sweep, name="effectonce-sagas", daemon=True)

    def _sweep(self) -> None:
        process = os.getpid()
        while True:
            try:
                if self._saga.is_async:
                    shared_loop.run(self._saga.aresume(stop=self._stopping.is_set))
                else:
                    self._saga.resume(stop=self._stopping.is_set)
            except BaseException as error:  # F37: a sweeper that fails in silence; this one reports it and continues
                if os.getpid() != process:  # a step has forked, and this is its child
                    raise
                log_failed_attempt({"sweeper": f"of saga {self._saga.name}"}, error, "is tried again", last=False)
                detail = str(error) or type(error).__name__
                self._saga.store.runtime.emit("sweep_failed", self._saga.scope, detail=detail)
            if self._stopping.wait(self._interval_s):
                return

    def __enter__(self) -> SagaSweeper:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join()
