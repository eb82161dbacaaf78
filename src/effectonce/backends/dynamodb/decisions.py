"""Deciding an operation on a record that was read: its answer, and the record to write. Pure: no clock, no I/O.

`operations` then writes the new record on the condition that the stored one has not changed since it was read; if it
has, it decides again. Decisions are the second way: most claims and settlements are one conditional write without one.
"""

from __future__ import annotations

from msgspec.structs import replace

from effectonce.record import Answer, Claim, Look, Remember, Reply, Resolution, answer_for, exhausted_error
from effectonce.values.fingerprint import first_fingerprint

from .clock import Time
from .items import StoredItem

#: The answer, and the record to put in place of the one that was read (None: leave it).
Decision = tuple[Reply, StoredItem | None]


def drop_expired(stored: StoredItem | None, past: int) -> StoredItem | None:
    """Return the record; None where it is absent or expired."""
    if stored is None or (stored.expires_at is not None and stored.expires_at <= past):
        return None
    return stored


def answer_look(op: Look, stored: StoredItem | None, time: Time) -> Answer:
    return _answer_of(drop_expired(stored, time.past), time, op.fingerprints) or Answer("absent")


def decide_claim(op: Claim, stored: StoredItem | None, time: Time) -> Decision:
    """Decide a claim of a record that the first write could not take, by the steps of `contracts.Port.run`."""
    now = time.now
    record = drop_expired(stored, time.past)
    answer = _answer_of(record, time, op.fingerprints, claimant=op.owner)
    if record is not None and answer is not None:
        if answer.kind == "in_doubt" and record.state == "claimed":
            return answer, replace(record, state="in_doubt", changed_at=now, lease_until=None)
        return answer, None
    previous = record or _new_record(op, now)
    if 0 < op.max_attempts <= previous.attempts:
        counts = (previous.token, previous.attempts, previous.generation)
        error = exhausted_error(previous.error)
        return Answer("exhausted", *counts, error=error), replace(
            previous,
            state="failed",
            error=error,
            result=None,
            changed_at=now,
            lease_until=None,
            expires_at=now + op.retention_us,
        )
    lease_until = now + op.lease_us
    claimed = replace(
        previous,
        state="claimed",
        owner=op.owner,
        token=_next_token(stored, now),
        attempts=previous.attempts + 1,
        lapsed=previous.state == "claimed",
        doubt_on_lapse=op.doubt_on_lapse,
        lease_until=lease_until,
        fingerprint=first_fingerprint(op.fingerprints) or previous.fingerprint,
        result=None,
        changed_at=now,
        expires_at=None if op.doubt_on_lapse else lease_until + op.retention_us,
    )
    counts = (claimed.token, claimed.attempts, claimed.generation)
    return Answer("claimed", *counts, error=claimed.error, lapsed=claimed.lapsed), claimed


def decide_remember(op: Remember, stored: StoredItem | None, time: Time) -> Decision:
    now = time.now
    record = drop_expired(stored, time.past)
    answer = _answer_of(record, time, op.fingerprints)
    if answer is not None:
        return answer.kind == "done", None
    return True, replace(
        record or _new_record(op, now),
        state="done",
        owner=b"",
        token=_next_token(stored, now),
        doubt_on_lapse=False,
        lease_until=None,
        fingerprint=first_fingerprint(op.fingerprints) or None,
        result=op.result,
        error=None,
        changed_at=now,
        expires_at=now + op.retention_us,
    )


def decide_forget(retention_us: int, stored: StoredItem | None, time: Time) -> Decision:
    record = drop_expired(stored, time.past)
    if record is None:
        return False, None
    return True, replace(_reopen(record, time.now, retention_us), fingerprint=None)


def decide_resolve(resolution: Resolution, stored: StoredItem | None, time: Time) -> Decision:
    record = drop_expired(stored, time.past)
    answer = _answer_of(record, time)
    if record is None or answer is None or answer.kind != "in_doubt":
        return False, None
    reopened = _reopen(record, time.now, resolution.retention_us)
    if resolution.state == "free":
        return True, reopened
    return True, replace(
        reopened,
        state=resolution.state,
        attempts=record.attempts,
        generation=record.generation,
        result=resolution.result,
        error=resolution.error,
    )


def _answer_of(
    record: StoredItem | None, time: Time, fingerprints: bytes = b"", claimant: bytes | None = None
) -> Answer | None:
    """The answer of an unexpired record, by the rules that all stores share; None: it may be claimed."""
    return None if record is None else answer_for(record, fingerprints=fingerprints, now=time.past, claimant=claimant)


def _new_record(op: Claim | Remember, now: int) -> StoredItem:
    """An empty record, from which that of a first claim is made."""
    return StoredItem(scope=op.scope, key=op.key, created_at=now, changed_at=now, expires_at=None)


def _reopen(record: StoredItem, now: int, retention_us: int) -> StoredItem:
    """Free the record: a new generation, its owner fenced out."""
    return replace(
        record,
        state="free",
        owner=b"",
        token=_next_token(record, now),
        attempts=0,
        generation=record.generation + 1,
        changed_at=now,
        lease_until=None,
        expires_at=now + retention_us,
        result=None,
        error=None,
    )


def _next_token(stored: StoredItem | None, now: int) -> int:
    """A token above every earlier one, also that of an expired record, even if it is ahead of the clock."""
    return now if stored is None else max(stored.token + 1, now)
