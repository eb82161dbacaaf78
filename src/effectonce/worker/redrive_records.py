"""The records of a redrive: what would happen to a dead letter that is redriven now (F51), and the change that lets it
run.

`StoreRedrive` and `InboxRedrive` have the same three methods, for a `DeadLetterQueue`. A prediction changes nothing. It
may be wrong by the time of the redrive, which is safe: the delivery itself claims, and finds out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Literal, TypeVar

from effectonce.core.guarded_call import begin
from effectonce.core.run_sync import run_sync
from effectonce.errors import InProgress, PayloadMismatch
from effectonce.record import Look
from effectonce.sessions import BaseDriverSession
from effectonce.store import Store

from .jobs import Job
from .routes import HandlerRoute
from .transaction_runner import TransactionRunner

T = TypeVar("T")

Fate = Literal["execute", "resume", "no-op", "in-progress", "in-doubt", "failed", "mismatch", "unreadable", "unknown"]
"""What would happen to a message that is redriven.

``execute``: it was never tried, and would run. ``resume``: it was tried, and would run as the next attempt. ``no-op``:
it is done, and would be acked. ``in-progress``: another delivery of it runs. ``in-doubt``, ``failed``, ``mismatch``,
``unreadable``: it would come back to the dead letters. ``unknown``: only its worker could tell.
"""

_FATES: dict[str, Fate] = {
    "done": "no-op",
    "failed": "failed",
    "exhausted": "failed",
    "in_progress": "in-progress",
    "in_doubt": "in-doubt",
    "mismatch": "mismatch",
}


class StoreRedrive:
    """Modes L and S: the records of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def predict(self, job: Job) -> tuple[Fate, int]:
        """What a redrive would do, and how many attempts the store has counted."""
        return await asyncio.to_thread(self._predict, job)

    def _predict(self, job: Job) -> tuple[Fate, int]:
        runtime = self._store.runtime
        run = begin.prepare_run(runtime, job.route.policy, job.key, job.fingerprints)
        answer = run_sync(runtime.sync_client().claim(Look(run.scope, run.stored_key, run.fingerprints)))
        record = self._store.get(job.route.policy.scope, job.key)
        attempts = 0 if record is None else record.attempts
        if answer.kind != "absent":
            return _FATES[answer.kind], attempts
        return ("execute" if record is None else "resume"), attempts

    async def reopen(self, job: Job, fate: Fate) -> bool:
        """Let the next delivery of a finished or doubtful record run, as a new generation. Returns whether there was
        one. Commit this before the message is published: a delivery that comes first would be a no-op."""
        scope, retention = job.route.policy.scope, job.route.policy.retention_us / 1e6
        if fate == "in-doubt":
            await asyncio.to_thread(self._store.resolve, scope, job.key, "retry", retention=retention)
            return True  # else it has raised: the record is not in doubt any more
        return await asyncio.to_thread(self._store.forget, scope, job.key, retention=retention)

    async def reset_crash_count(self, job: Job) -> None:
        """Do nothing: the redriven message itself says how many attempts were counted before."""


class InboxRedrive:
    """Mode T: the rows of an inbox. A prediction inserts one in a transaction that is rolled back."""

    def __init__(self, runners: Mapping[HandlerRoute, TransactionRunner]) -> None:
        self._runners = runners

    async def predict(self, job: Job) -> tuple[Fate, int]:
        """What a redrive would do, and 0: an inbox does not say how many attempts there were."""
        runner = self._runners[job.route]

        async def look(session: BaseDriverSession) -> Fate:
            first = await runner.inbox.record(session, runner.key_for(job))
            await session.roll_back()
            return "execute" if first else "no-op"

        try:
            return await runner.run_beside(look), 0
        except PayloadMismatch:
            return "mismatch", 0
        except InProgress:
            return "in-progress", 0

    async def reopen(self, job: Job, fate: Fate) -> bool:
        """Delete the row that makes the message a duplicate, and the count of its starts. Always True."""
        runner = self._runners[job.route]

        async def forget(session: BaseDriverSession) -> bool:
            key, table = runner.key_for(job), runner.inbox.table(session)
            await table.forget_many(session, [key])
            await table.forget_attempts(session, key)
            await session.commit()
            return True

        return await runner.run_beside(forget)

    async def reset_crash_count(self, job: Job) -> None:
        """Count the starts of ``job`` from 0 again, so that it is not given up as poison at once."""
        runner = self._runners[job.route]
        await runner.run_beside(partial(runner.forget_attempts, job))
