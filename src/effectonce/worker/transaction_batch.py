"""`TransactionBatch`: several jobs of one handler in one transaction.

The steps have an order: `begin`, then each handler and `check_still_open` after it, then `finish`; or `abort`, from any
of them. If the process dies in between, the database undoes rows and effects together.
"""

from __future__ import annotations

from collections.abc import Sequence

from effectonce.errors import ConfigurationError
from effectonce.inbox.handler import TransactionalHandler
from effectonce.inbox.table import InboxKey
from effectonce.inbox.transaction import InboxTransaction

from .jobs import Job


class TransactionBatch(InboxTransaction):
    """The transaction of several jobs. All of their rows are inserted first, then the handlers run.

    If a handler ends the transaction itself, `abort` deletes the rows that it committed for jobs whose effects it may
    not have committed.
    """

    def __init__(self, handler: TransactionalHandler) -> None:
        super().__init__(handler)
        #: The rows of the jobs whose effects a handler that ends the transaction may not have committed. Set before
        #: `mark`, and read only after it.
        self._uncertain_keys: dict[Job, InboxKey] = {}

    async def begin(self, jobs: Sequence[Job]) -> list[Job]:
        """Begin, and insert one row per key, sorted by key so that two batches never deadlock. Returns the jobs whose
        rows are new, in their own order."""
        session = await self.open()
        by_key = sorted(jobs, key=lambda job: job.key)
        keys = [self.handler.key_for(job) for job in by_key]
        answers = await self.handler.inbox.record_many(session, keys)
        firsts = {job: key for job, key, first in zip(by_key, keys, answers, strict=True) if first}
        self._uncertain_keys = {job: firsts[job] for job in jobs if job in firsts}
        await self.mark()
        return list(self._uncertain_keys)

    async def check_still_open(self, job: Job) -> None:
        """Check, when the handler of ``job`` has returned, that it left the transaction open. Raises
        `ConfigurationError` if not."""
        if await self.session.has_ended():
            for ran in list(self._uncertain_keys):  # these have run to their end: all of their effects are committed
                del self._uncertain_keys[ran]
                if ran is job:
                    break
            raise self._ended_error(job)

    async def finish(self) -> None:
        """Commit. Raises `ConfigurationError` if a handler has ended the transaction and begun another one."""
        if not await self.release_mark():
            raise self._ended_error(*list(self._uncertain_keys)[:1])
        await self.commit()

    async def after_foreign_end(self) -> None:
        """Delete the rows that were committed for jobs whose effects may not be: else their messages would be lost."""
        await self.begin_anew()
        session = self.session
        table = self.handler.inbox.table(session)
        committed = [key for key in self._uncertain_keys.values() if await table.is_ours(session, key)]
        await table.forget_many(session, committed)
        await session.commit()

    def _ended_error(self, *jobs: Job) -> ConfigurationError:
        name = jobs[0].route.name if jobs else self.handler.inbox.scope
        return ConfigurationError(
            f"{name} has ended the transaction that it shares with others (commit, rollback, begin, `with conn:`, or a "
            "statement that commits), which is the worker's to commit: leave that out, or use a savepoint"
        )
