"""Stores that are wrong: fencing, lost replies, the record's life, expiry, mode S."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from effectonce.backends.memory import store as memory_store
from effectonce.backends.memory.store import MemoryPort
from effectonce.record import Answer, Remember, answer_for

from .base import mutant

_claim, _settle, _renew, _remember = MemoryPort._claim, MemoryPort._settle, MemoryPort._renew, MemoryPort._remember
_look, _sweep = MemoryPort._look, MemoryPort.sweep


def row_of(port: MemoryPort, op: Any) -> Any:
    return port._scopes.get(op.scope, {}).get(op.key)


def as_if_by_the_holder(port: MemoryPort, op: Any) -> Any:
    """Return ``op`` as if the record's holder had sent it, so that nothing fences it."""
    row = row_of(port, op)
    return op if row is None else replace(op, owner=row.owner, token=row.token)


# -- fencing


@mutant("F09", MemoryPort, "_settle", "guard-L+lapse+raise/2")
def unfenced_release(self: Any, op: Any, now: int) -> bool:
    """A release is not fenced: a zombie frees its successor's record."""
    row = row_of(self, op)
    if op.state == "free" and row is not None and row.owner != op.owner:
        row.state, row.changed_at, row.expires_at = "free", now, now + op.retention_us
        return True
    return _settle(self, op, now)


@mutant("F08", MemoryPort, "_settle", "guard-L+lapse/1")
def unfenced_complete(self: Any, op: Any, now: int) -> bool:
    """A completion is not fenced: a zombie's result is recorded."""
    return _settle(self, as_if_by_the_holder(self, op) if op.state == "done" else op, now)


@mutant("F08", MemoryPort, "_settle", "guard-O+raise+forget/2", promise=False)
def unfenced_doubt(self: Any, op: Any, now: int) -> bool:
    """A doubt is not fenced: a zombie that fails puts its successor's record in doubt."""
    row = row_of(self, op)
    if op.state == "in_doubt" and row is not None and row.owner != op.owner:
        row.state = "in_doubt"
        return True
    return _settle(self, op, now)


@mutant("F08", MemoryPort, "_renew", "guard-B+lapse+redeliver/2")
def unfenced_renewal(self: Any, op: Any, now: int) -> bool:
    """A renewal is not fenced: a zombie believes in its lease."""
    return _renew(self, as_if_by_the_holder(self, op), now)


@mutant("F14", MemoryPort, "_claim", "guard-L/0")
def owner_not_compared(self: Any, op: Any, now: int) -> Answer:
    """A claim does not compare the record's owner."""
    row = row_of(self, op)
    if row is not None and row.state == "claimed":
        return Answer("claimed", row.token, row.attempts, row.generation)
    return _claim(self, op, now)


@mutant("F14", memory_store, "answer_for", "guard-L/0")
def live_lease_ignored(row: Any, **others: Any) -> Any:
    """A live lease of another does not keep a claim out."""
    return None if row.state == "claimed" and not row.doubt_on_lapse else answer_for(row, **others)


@mutant("F69", MemoryPort, "_claim", "guard-B/0", promise=False)
def token_restarts(self: Any, op: Any, now: int) -> Answer:
    """Tokens restart at 1 with every new record."""
    fresh = row_of(self, op) is None
    answer = _claim(self, op, now)
    if fresh and answer.kind == "claimed":
        row_of(self, op).token = 1
        return Answer("claimed", 1, answer.attempts, answer.generation)
    return answer


def fenced_by_token_alone(self: Any, op: Any, now: int) -> bool:
    row = row_of(self, op)
    return _settle(self, op if row is None or row.token != op.token else replace(op, owner=row.owner), now)


@mutant("F69", MemoryPort, "_claim", "guard-B+age+redeliver/2", also=(MemoryPort, "_settle", fenced_by_token_alone))
def token_restarts_and_owner_ignored(self: Any, op: Any, now: int) -> Answer:
    """Tokens restart, and nothing else fences: after a purge the zombie's token is its successor's."""
    return token_restarts(self, op, now)  # type: ignore[no-any-return]


@mutant("F69", MemoryPort, "_claim", "guard-L+raise/1", promise=False)
def token_does_not_grow(self: Any, op: Any, now: int) -> Answer:
    """The token of a new claim is that of the old one."""
    old = row_of(self, op)
    answer = _claim(self, op, now)
    if old is not None and answer.kind == "claimed":
        row_of(self, op).token = old.token
        return Answer("claimed", old.token, answer.attempts, answer.generation)
    return answer


@mutant("F08", MemoryPort, "_settle", "guard-L+lapse/1", promise=False)
def complete_refused_after_lease(self: Any, op: Any, now: int) -> bool:
    """A completion is refused once the lease has ended, although no claim took over."""
    row = row_of(self, op)
    return not (row is not None and row.state == "claimed" and row.lease_until <= now) and _settle(self, op, now)


@mutant("F08", MemoryPort, "_settle", "guard-D+lapse/1", promise=False)
def no_completion_from_doubt(self: Any, op: Any, now: int) -> bool:
    """The owner of a lapsed claim cannot complete it from in doubt."""
    row = row_of(self, op)
    return not (row is not None and row.state == "in_doubt" and op.state == "done") and _settle(self, op, now)


# -- lost replies


@mutant("F68", MemoryPort, "_claim", "guard-L+mute-retry/1", promise=False)
def resent_claim_not_recognised(self: Any, op: Any, now: int) -> Answer:
    """A claim that is sent again finds its own key taken."""
    row = row_of(self, op)
    if row is not None and row.state == "claimed" and row.owner == op.owner and now < row.lease_until:
        return Answer("in_progress", retry_after=(row.lease_until - now) / 1e6)
    return _claim(self, op, now)


@mutant("F68", MemoryPort, "_claim", "guard-L+mute-retry/1", promise=False)
def resent_claim_counts_twice(self: Any, op: Any, now: int) -> Answer:
    """A claim that is sent again counts as another attempt."""
    row = row_of(self, op)
    if row is not None and row.state == "claimed" and row.owner == op.owner:
        row.attempts += 1
    return _claim(self, op, now)


@mutant("F68", MemoryPort, "_settle", "guard-L+mute-retry/1", promise=False)
def resent_settlement_refused(self: Any, op: Any, now: int) -> bool:
    """A settlement that is sent again is refused."""
    row = row_of(self, op)
    return row is not None and row.state in ("claimed", "in_doubt") and _settle(self, op, now)


# -- the record's life


@mutant("F20", MemoryPort, "_claim", "guard-A+crash/3")
def attempts_counted_after(self: Any, op: Any, now: int) -> Answer:
    """Attempts are counted when they end, so that one that kills its process is not."""
    answer = _claim(self, op, now)
    if answer.kind == "claimed" and answer.attempts > 1:
        row = row_of(self, op)
        if answer.lapsed:
            row.attempts -= 1
            return Answer("claimed", answer.token, answer.attempts - 1, answer.generation, lapsed=True)
    return answer


@mutant("F20", MemoryPort, "_claim", "guard-A+raise/3")
def one_attempt_too_many(self: Any, op: Any, now: int) -> Answer:
    """One attempt more than allowed."""
    raised = replace(op, max_attempts=op.max_attempts + 1) if op.max_attempts else op
    return _claim(self, raised, now)


@mutant("F19", MemoryPort, "_settle", "guard-L+raise/1")
def failure_stored_as_done(self: Any, op: Any, now: int) -> bool:
    """A failure is stored as done."""
    row = row_of(self, op)
    applied = _settle(self, op, now)
    if applied and op.state == "free" and not op.refund and row is not None and row.owner == op.owner:
        row_of(self, op).state = "done"
    return applied


@mutant("F07", memory_store, "answer_for", "guard-D+crash/1")
def lapse_is_free_under_doubt(row: Any, *, now: int, **others: Any) -> Any:
    """A lapsed lease that is in doubt is taken as free."""
    if row.state == "claimed" and row.lease_until <= now:
        return None
    return answer_for(row, now=now, **others)


@mutant("F07", memory_store, "answer_for", "guard-D+raise/1")
def doubt_is_free(row: Any, **others: Any) -> Any:
    """A record in doubt is run again blindly."""
    return None if row.state == "in_doubt" else answer_for(row, **others)


@mutant("F07", MemoryPort, "_claim", "guard-L+crash/1")
def lease_as_long_as_retention(self: Any, op: Any, now: int) -> Answer:
    """The lease is the retention: a crash wedges the key for as long as results are kept."""
    return _claim(self, replace(op, lease_us=op.retention_us), now)


@mutant("F13", memory_store, "answer_for", "guard-L+lapse/1")
def lease_holds_at_its_end(row: Any, *, now: int, **others: Any) -> Any:
    """At the microsecond at which it ends, a lease still holds, for 0 s more."""
    if row.state == "claimed" and now == row.lease_until:
        return Answer("in_progress", row.token, row.attempts, row.generation, retry_after=0.0)
    return answer_for(row, now=now, **others)


@mutant("F02", memory_store, "answer_for", "guard-L+crash/1")
def lease_never_ends(row: Any, *, now: int, **others: Any) -> Any:
    """A lease never ends."""
    if row.state == "claimed":
        return Answer("in_progress", row.token, row.attempts, row.generation, retry_after=1.0)
    return answer_for(row, now=now, **others)


@mutant("F04", MemoryPort, "_settle", "guard-L+lapse/1")
def done_kept_for_a_lease(self: Any, op: Any, now: int) -> bool:
    """A done record is kept for a lease only."""
    return _settle(self, replace(op, retention_us=30_000_000) if op.state == "done" else op, now)


@mutant("F33", MemoryPort, "_settle", "guard-A+raise/3")
def release_deletes(self: Any, op: Any, now: int) -> bool:
    """A release deletes the record, and its attempts with it."""
    applied = _settle(self, op, now)
    if applied and op.state == "free":
        del self._scopes[op.scope][op.key]
    return applied


def complete_anyway(self: Any, op: Any, now: int) -> bool:
    row = row_of(self, op)
    if op.state == "done" and row is not None and row.state == "done" and row.owner == op.owner:
        row.result = op.result
    return _settle(self, op, now)


@mutant("peer", MemoryPort, "_claim", "guard-L+crash/1", also=(MemoryPort, "_settle", complete_anyway))
def marked_before_handling(self: Any, op: Any, now: int) -> Answer:
    """Marked as done before it is handled (Watermill): a crash loses the message."""
    answer = _claim(self, op, now)
    if answer.kind == "claimed":
        row_of(self, op).state = "done"
    return answer


@mutant("F26", MemoryPort, "sweep", "guard-L-3x3/6")
async def sweeper_deletes_live_claims(self: Any, limit: int) -> Any:
    """The sweeper deletes live claims."""
    for rows in self._scopes.values():
        for key in [key for key, row in rows.items() if row.state == "claimed"]:
            del rows[key]
    return await _sweep(self, limit)


@mutant("F26", MemoryPort, "sweep", "guard-D+crash/1")
async def sweeper_deletes_doubt(self: Any, limit: int) -> Any:
    """The sweeper deletes records in doubt."""
    swept = await _sweep(self, limit)
    for rows in self._scopes.values():
        for key in [key for key, row in rows.items() if row.state == "in_doubt"]:
            del rows[key]
    return swept


# -- mode S


def remember_anyway(self: Any, op: Any, now: int) -> bool:
    row = row_of(self, op)
    if row is not None and row.result is None:
        row.result = op.result
    return _remember(self, op, now)


@mutant("F01", MemoryPort, "_look", "guard-S+crash/1", also=(MemoryPort, "_remember", remember_anyway))
def remembered_before(self: Any, op: Any, now: int) -> Answer:
    """Mode S: remembered before it has run."""
    answer = _look(self, op, now)
    if answer.kind == "absent":
        _remember(self, Remember(op.scope, op.key, 120_000_000), now)
    return answer


@mutant("peer", MemoryPort, "_remember", "guard-S/0")
def remember_overwrites(self: Any, op: Any, now: int) -> bool:
    """Mode S: a later run overwrites the first result."""
    self._scopes.get(op.scope, {}).pop(op.key, None)
    return _remember(self, op, now)


@mutant("peer", MemoryPort, "_remember", "guard-S/0")
def nothing_remembered(self: Any, op: Any, now: int) -> bool:
    """Mode S: nothing is remembered."""
    return True
