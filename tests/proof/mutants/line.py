"""Lines of a worker that are wrong: acked too early, blocks mixed up, messages in hand that nobody keeps."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from effectonce.core.store_runtime import release
from effectonce.worker import leases
from effectonce.worker.leases import Leases
from effectonce.worker.line import Line

from .base import mutant

_ended, _answers, _refused, _recorded = Leases._ended, Leases._answers, Leases._refused, Leases._recorded
_abort, _send, _close, _extend = Leases._abort, Leases._send, Line.close, Line.extend


@mutant("F05", Leases, "_ended", "line-L+crash/1")
def acked_before_recorded(self: Any, job: Any) -> None:
    """The ack goes out with the next fetch as soon as the handler has returned."""
    self._line._ack([job])
    _ended(self, job)


@mutant("F06", Leases, "_refused", "line-L+crash/1")
def line_acks_what_is_in_progress(self: Any, job: Any, answer: Any) -> None:
    """A duplicate of what another worker runs is acked."""
    if answer.kind == "in_progress":
        self._line.done([job])
    else:
        _refused(self, job, answer)


@mutant("F36", Leases, "_unanswered", "line-L+lose/1")
def line_acks_what_was_not_answered(self: Any, job: Any, reply: Any) -> None:
    """A message whose claim the store has not answered is acked."""
    self._line.done([job])


@mutant("F36", Leases, "_recorded", "line-L+lose/1")
def block_recorded_unseen(self: Any, jobs: Any, replies: Any) -> None:
    """What the store says of a block of completions is not looked at."""
    _recorded(self, jobs, [True for _ in replies])


@mutant("F70", Leases, "_answers", "line-B+raise+crash/2")
def block_answers_mixed_up(self: Any, jobs: Any, ops: Any, ends: Any, replies: Any) -> None:
    """The answers to a block of claims are given to the wrong ones."""
    _answers(self, jobs, ops, ends, replies[::-1])


@mutant("F08", Leases, "_unrecorded", "line-L+lapse/1")
def lost_lease_acked(self: Any, job: Any, error: Exception) -> None:
    """A success that came after its lease is acked, although another runs it again."""
    self._runtime.leased_runs.discard(job.run)
    self.ending -= 1
    self._line.done([job])


@mutant("F20", leases, "release", "line-L+crash/1", promise=False)
def suspect_pays_for_waiting(claim: Any, answer: Any) -> Any:
    """What is given back until it can run alone has lost an attempt for it."""
    return replace(release(claim, answer), refund=False)


@mutant("F54", Line, "extend", "line-E/0")
async def prefetched_not_extended(self: Any) -> None:
    """Only what runs is kept from being delivered again, not what waits behind it."""
    hand, self.hand = self.hand, {job for job in self.hand if job.run is not None}
    try:
        await _extend(self)
    finally:
        self.hand = hand


@mutant("F58", Line, "close", "line-L+stop/1")
async def stop_acks_all_in_hand(self: Any, over: Any) -> None:
    """Told to stop, it acks what it has in hand."""
    self._acks += [job.delivery for job in self.hand]
    await _close(self, over)


@mutant("F58", Leases, "_abort", "line-E+stop/1")
async def cancelled_counts_as_done(self: Any, job: Any, error: BaseException, failed: bool) -> None:
    """A handler that did not end in time and was cancelled is acked."""
    if isinstance(error, asyncio.CancelledError):
        self._line._ack([job])
    await _abort(self, job, error, failed)


@mutant("F52", Leases, "_send", "line-to+crash/1")
async def acked_before_sent_on(self: Any, job: Any) -> None:
    """The ack does not wait for what the handler sends on."""
    self._line._ack([job])
    await _send(self, job)


@mutant("F52", Leases, "_refused", "line-to+crash/1")
def duplicate_sends_nothing_on(self: Any, job: Any, answer: Any) -> None:
    """A duplicate of what is done is acked, whether or not that was sent on."""
    if answer.kind == "done":
        self._line.done([job])
        self._isolation.left(job)
    else:
        _refused(self, job, answer)
