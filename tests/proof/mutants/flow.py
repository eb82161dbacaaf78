"""Guards that are wrong: when a store fails, when they are cancelled, and about the leases of their handlers."""

from __future__ import annotations

import asyncio
from typing import Any

from effectonce.core import heartbeat, store_clients, store_runtime
from effectonce.core.group_commit import batches, tasks
from effectonce.core.guarded_call import begin as beginning
from effectonce.core.guarded_call import finish as finishing
from effectonce.core.guarded_call.run import StoreRun
from effectonce.core.run_sync import run_sync
from effectonce.errors import LeaseLost, StoreUnavailable
from effectonce.guard import block as guard
from effectonce.record import Answer, Claim, Settlement

from .base import mutant

_abort, _begin, _finish = finishing.abort, beginning.begin, finishing.finish
_replay, _take_answer = beginning._replay, beginning.take_answer
_beat_renew, _release, _take = heartbeat.Heartbeat._renew, store_clients.release_with_refund, batches.take_batch


@mutant("F36", beginning, "run_without_store", "guard-L+lose/1")
def store_error_runs(run: Any, error: Exception) -> None:
    """A store that does not answer a claim lets the handler run."""
    beginning.run_unprotected(run, "unprotected", str(error))


@mutant("F36", guard, "finish", "guard-L+lose/1")
async def unrecorded_is_success(run: Any, client: Any, value: Any) -> None:
    """A success that could not be recorded is a success."""
    try:
        await _finish(run, client, value)
    except StoreUnavailable:
        pass


@mutant("F57", finishing, "confirm_reply", "guard-L+lapse+crash/2")
def fenced_is_success(run: Any, reply: Any) -> None:
    """A fenced completion is a success: the zombie acks."""
    if isinstance(reply, Exception):
        raise reply


@mutant("F16", guard, "abort", "guard-L+cancel/1", promise=False)
async def cancelled_keeps_claim(run: Any, client: Any, error: BaseException) -> None:
    """A cancelled handler keeps its claim."""
    if not isinstance(error, asyncio.CancelledError):
        await _abort(run, client, error)


@mutant("F16", store_clients.LoopClient, "_give_back", "guard-L+cancel-after/1", promise=False)
def grant_not_given_back(self: Any, op: Any, future: Any) -> None:
    """Cancelled in the turn in which its claim is granted, a call keeps it."""
    return None


@mutant("F70", store_runtime.StoreRuntime, "_release_from_loop", "guard-L+cancel/1", promise=False)
def orphan_not_given_back(self: Any, claim: Any, answer: Any) -> None:
    """A grant whose caller was cancelled while the claim was sent is never released."""
    return None


@mutant("F16", guard, "begin", "guard-L+cancel/1")
async def cancellation_swallowed(run: Any, client: Any) -> None:
    """A cancellation while claiming is swallowed."""
    try:
        await _begin(run, client)
    except asyncio.CancelledError:
        run.replayed = True


@mutant("F17", guard, "abort", "guard-L+raise+lapse/2")
async def release_error_surfaces(run: Any, client: Any, error: BaseException) -> None:
    """A release that fails hides the handler's error."""
    if not await client.settle(Settlement(run.scope, run.stored_key, run.owner, run.token, "free", 1)):
        raise LeaseLost("the release was refused")


@mutant("F16", guard, "abort", "guard-L+raise/1", promise=False)
async def failure_not_released(run: Any, client: Any, error: BaseException) -> None:
    """A handler that failed is not released."""
    if isinstance(error, asyncio.CancelledError):
        await _abort(run, client, error)


@mutant("peer", beginning, "_replay", "guard-L/0")
def replay_is_empty(run: Any, answer: Any) -> None:
    """The replayed result is empty: a falsy result is taken for none."""
    _replay(run, answer)
    run.value = None


@mutant("F10", beginning, "take_answer", "guard-L-3x3+half+lapse/6")
def lease_counted_from_reply(run: Any, answer: Any) -> None:
    """A lease counts from the reply, not from when the claim was sent."""
    _take_answer(run, answer)
    run.lease_requested_at = run.runtime.monotonic()


@mutant("F10", heartbeat.Heartbeat, "_renew", "guard-L-3x3+half+beat-slow/6")
def renewal_counted_from_reply(self: Any, port: Any, due: Any, now: float) -> None:
    """A renewed lease counts from the reply."""
    _beat_renew(self, port, due, now)
    for run in due:
        if run.lease_requested_at == now:
            run.lease_requested_at = self._monotonic()


@mutant("F10", StoreRun, "mark_lease_lost", "guard-B+half+lapse+redeliver/3")
def refused_renewal_not_reported(self: Any) -> None:
    """A refused renewal is not reported to the handler."""
    self.lease_requested_at = self.runtime.monotonic()


@mutant("F16", store_clients, "release_with_refund", "guard-A+cancel/2")
def refund_forgotten(claim: Claim, answer: Answer) -> Any:
    """Work that never started counts as an attempt when it is given back."""
    settlement = _release(claim, answer)
    settlement.refund = False
    return settlement


# -- group commit


@mutant("F70", batches, "share_reply", "guard-G+raise/1")
def grant_shared(entry: Any, reply: Any) -> Any:
    """A grant is shared with the claims that wait behind it."""
    return entry.behind or [], []


@mutant("F70", tasks, "take_batch", "guard-G2+cancel/1", promise=False)
def cancelled_settlement_dropped(queue: Any, limit: int, *others: Any) -> Any:
    """A settlement whose caller was cancelled is never sent."""
    for entry in [entry for entry in queue if entry.future is not None and entry.future.cancelled()]:
        queue.remove(entry)
    return _take(queue, limit, *others)


@mutant("F37", heartbeat.Heartbeat, "sweep", "guard-L+sweep-fails/1")
def sweeper_error_swallowed(self: Any, port: Any) -> bool:
    """A sweep that fails emits no event."""
    try:
        run_sync(port.sweep(500))
    except Exception:
        pass
    return False
