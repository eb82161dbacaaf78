"""Lines in mode T that are wrong: acked before the commit, batches that are half undone, lanes out of their order."""

from __future__ import annotations

from typing import Any

from effectonce.contracts import ConnectionLost
from effectonce.worker import transaction_runner as plans
from effectonce.worker.queue_consumer import Line
from effectonce.worker.transaction_executor import Transactions
from effectonce.worker.transaction_runner import Batch, Unit

from .base import mutant

_unit, _begin, _finish, _hold = Transactions._unit, Batch.begin, Batch.finish, Line._hold


@mutant("F05", Transactions, "_unit", "line-TB+crash/1")
def batch_acked_before_commit(self: Any, slots: Any) -> Any:
    """The acks of a batch go out with the next fetch, whether or not its transaction is committed by then."""
    unit = _unit(self, slots)
    if unit is not None:
        self._line._ack(unit.jobs)
    return unit


@mutant("F33", Batch, "begin", "line-TB+crash/1")
async def batch_rows_committed_first(self: Any, jobs: Any) -> Any:
    """The rows of a batch are committed before its handlers run."""
    firsts = await _begin(self, jobs)
    await self.session.commit()
    await self.session.begin()
    await self.session.mark()
    return firsts


@mutant("F33", Batch, "roll_back", "line-TB+raise/1")
async def batch_redone_without_rollback(self: Any) -> None:
    """A batch in which one fails is redone one by one on top of what it has done, instead of from the beginning."""
    await self.session.commit()


@mutant("F33", plans, "_all_failed", "line-TB+raise/1")
def batch_not_redone(unit: Any, batch: Any, error: BaseException) -> bool:
    """A batch in which one fails is undone, and that is all."""
    return True


@mutant("F30", Batch, "finish", "line-TB+lose/1")
async def lost_commit_of_a_batch_is_success(self: Any) -> None:
    """The COMMIT of a batch without a reply is taken for a success."""
    try:
        await _finish(self)
    except ConnectionLost:
        await self.give_back()


@mutant("F14", Batch, "begin", "line-TB/0")
async def batch_runs_its_duplicates(self: Any, jobs: Any) -> Any:
    """Whose row was there before runs with the others."""
    firsts = await _begin(self, jobs)
    return firsts + [job for job in jobs if job not in firsts]


@mutant("F43", Line, "put_back", "line-TO+raise/2")
def behind_a_failure_forgotten(self: Any, jobs: Any) -> None:
    """Those of a batch behind the one of their ordering key that failed are in nobody's hand any more."""


@mutant("F43", Unit, "waits", "line-TO+raise/2")
def batch_goes_on_behind_a_failure(self: Any, at: int) -> bool:
    """Redone one by one, those behind the one of their ordering key that failed do not wait for it."""
    return False


@mutant("F43", Line, "_is_held", "line-O+raise/1")
def delayed_key_not_held(self: Any, job: Any) -> bool:
    """What comes again before the first of its ordering key is handled before it."""
    return False


@mutant("F43", Line, "_hold", "line-O+raise/2")
def second_retry_forgets_those_behind(self: Any, lane: str, delay: float, ids: Any) -> None:
    """A message that fails again is held without those that were given back behind it the first time (seen here)."""
    self._held.pop(lane, None)
    _hold(self, lane, delay, ids)
