"""Records as DynamoDB items, and what a record means for an operation. Pure: no clock, no I/O."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from effectonce.errors import CorruptRecord
from effectonce.record import (
    EXHAUSTED,
    Answer,
    Claim,
    Record,
    Remember,
    Reply,
    Resolution,
)
from effectonce.values.fingerprint import first_fingerprint, split_fingerprints
from effectonce.values.identity import digest

from .clock import Time
from .connection import Item

SHARDS = 8
FAR = 253_402_300_799  # the year 9999, in seconds: never, to DynamoDB's time to live


# -- values and expressions --------------------------------------------------------------------------------------

Value = bool | int | str | bytes


def wrap(value: Value) -> Item:
    """``value`` with DynamoDB's name of its type."""
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int):
        return {"N": str(value)}
    return {"S": value} if isinstance(value, str) else {"B": value}


def unwrap(item: Item) -> dict[str, Any]:
    """The attributes of ``item`` as Python values. Raises ValueError for a type that we never write."""
    plain: dict[str, Any] = {}
    for name, typed in item.items():
        ((kind, value),) = typed.items()
        if kind not in ("B", "S", "N", "BOOL"):
            raise ValueError(f"attribute {name} is of type {kind}")
        plain[name] = int(value) if kind == "N" else bytes(value) if kind == "B" else value
    return plain


def expressions(values: dict[str, Value], **texts: str) -> dict[str, Any]:
    """The parameters for some expressions: their texts, with the names and just those ``values`` that they use.

    Every attribute is written ``#name`` and every value ``:name``: DynamoDB reserves 573 words, and refuses a
    name or value that no expression uses.
    """
    names, used = _placeholders(" ".join(texts.values()))
    parameters: dict[str, Any] = {**texts, "ExpressionAttributeNames": names}
    if used:
        parameters["ExpressionAttributeValues"] = {f":{name}": wrap(values[name]) for name in used}
    return parameters


@lru_cache(maxsize=256)
def _placeholders(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    names = {name: name[1:] for name in re.findall(r"#\w+", text)}
    return names, tuple(dict.fromkeys(name[1:] for name in re.findall(r":\w+", text)))


# -- records and items -------------------------------------------------------------------------------------------


class Row(Struct, frozen=True, gc=False):
    """A record as read, the version that a write must find in order to replace it, and, of a claim, whether it was
    taken from a lapsed lease."""

    record: Record
    version: int
    lapsed: bool


def bucket(state: str, doubt: bool, identity: bytes) -> str:
    """Where the index keeps it. Claims that lapse into doubt are apart, so that a sweep reads nothing else."""
    return f"{state}{'?' if doubt and state == 'claimed' else ''}/{identity[0] % SHARDS}"


def encode(record: Record, version: int, *, lapsed: bool, write: bytes) -> Item:
    """``write`` is the name of the write, by which whoever made it finds that it was applied."""
    identity = digest(record.scope, record.key)
    claimed = record.state == "claimed"
    forever = claimed and record.doubt_on_lapse
    values: dict[str, Value | None] = {
        "id": identity,
        "scope": record.scope,
        "key": record.key,
        "state": record.state,
        "owner": record.owner or None,
        "token": record.token,
        "version": version,
        "write": write,
        "attempts": record.attempts,
        "generation": record.generation,
        "doubt": record.doubt_on_lapse,
        "created": record.created_at,
        "changed": record.changed_at,
        "lease_until": record.lease_until if claimed else None,
        "expires_at": record.expires_at,
        "expires": FAR if forever else None if record.expires_at is None else seconds(record.expires_at),
        "keep": FAR if forever else None,
        "since": record.changed_at if claimed and not forever else None,
        "was": "claimed" if lapsed else None,
        "fingerprint": record.fingerprint or None,
        "result": record.result,
        "error": record.error,
    }
    if record.state != "done":
        values["bucket"] = bucket(record.state, record.doubt_on_lapse, identity)
        values["rank"] = record.lease_until if forever else record.changed_at
    return {name: wrap(value) for name, value in values.items() if value is not None}


def decode(item: Item | None) -> Row | None:
    if not item:
        return None
    try:
        at = unwrap(item)
        state, doubt = at["state"], at["doubt"]
        if state not in ("claimed", "done", "failed", "in_doubt", "free"):
            raise ValueError(f"state {state!r}")
        record = Record(
            scope=at["scope"],
            key=at["key"],
            state=state,
            token=at["token"],
            attempts=at["attempts"],
            generation=at["generation"],
            doubt_on_lapse=doubt,
            created_at=at["created"],
            changed_at=at["changed"],
            lease_until=at["lease_until"] if state == "claimed" else None,
            expires_at=None if state == "in_doubt" or (doubt and state == "claimed") else at["expires_at"],
            owner=at.get("owner", b""),
            fingerprint=at.get("fingerprint"),
            result=at.get("result"),
            error=at.get("error"),
        )
        return Row(record, at["version"], at.get("was") == "claimed")
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(
            f"an item of the table is no record that this version reads ({type(error).__name__}: {error}); "
            "look at it, and delete it if nothing needs it"
        ) from error


def seconds(micros: int) -> int:
    return -(-micros // 1_000_000)


# -- decisions, pure ---------------------------------------------------------------------------------------------


def live(row: Row | None, past: int) -> Record | None:
    """The record, or None where it is absent or expired."""
    if row is None or (row.record.expires_at is not None and row.record.expires_at <= past):
        return None
    return row.record


def standing(record: Record | None, fingerprints: bytes, past: int) -> Answer | None:
    """What an unexpired record answers to anyone but its owner; None: it is there to be taken."""
    if record is None:
        return None
    if fingerprints and record.fingerprint and record.fingerprint not in split_fingerprints(fingerprints):
        return Answer("mismatch")
    known = record.token, record.attempts, record.generation
    if record.state == "done":
        return Answer("done", *known, record.result)
    if record.state == "failed":
        return Answer("exhausted" if record.error == EXHAUSTED else "failed", *known, None, record.error)
    if record.state == "in_doubt":
        return Answer("in_doubt", *known)
    if record.state == "claimed":
        left = (record.lease_until or 0) - past
        if left > 0:
            return Answer("in_progress", *known, retry_after=left / 1e6)
        if record.doubt_on_lapse:
            return Answer("in_doubt", *known)
    return None


#: What to answer, and the record to put in place of the one that was read (None: leave it).
Decision = tuple[Reply, Record | None]


def claim(op: Claim, row: Row | None, time: Time) -> Decision:
    """The steps of a claim, for a record that the first write could not take."""
    now = time.now
    record = live(row, time.past)
    answer = standing(record, op.fingerprints, time.past)
    if row is not None and record is not None:
        if record.state == "claimed" and record.owner == op.owner and (answer is None or answer.kind != "mismatch"):
            return Answer("claimed", record.token, record.attempts, record.generation, lapsed=row.lapsed), None
        if answer is not None:
            lapses = answer.kind == "in_doubt" and record.state == "claimed"
            return answer, replace(record, state="in_doubt", changed_at=now, lease_until=None) if lapses else None
        if 0 < op.max_attempts <= record.attempts:
            known = record.token, record.attempts, record.generation
            failed = replace(
                record,
                state="failed",
                error=EXHAUSTED,
                result=None,
                changed_at=now,
                lease_until=None,
                expires_at=now + op.retention,
            )
            return Answer("exhausted", *known, None, EXHAUSTED), failed
    until = now + op.lease
    taken = Record(
        scope=op.scope,
        key=op.key,
        state="claimed",
        token=_token(row, now),
        attempts=record.attempts + 1 if record else 1,
        generation=record.generation if record else 0,
        doubt_on_lapse=op.doubt_on_lapse,
        created_at=record.created_at if record else now,
        changed_at=now,
        lease_until=until,
        expires_at=None if op.doubt_on_lapse else until + op.retention,
        owner=op.owner,
        fingerprint=first_fingerprint(op.fingerprints) or (record.fingerprint if record else None),
    )
    lapsed = record is not None and record.state == "claimed"
    return Answer("claimed", taken.token, taken.attempts, taken.generation, lapsed=lapsed), taken


def remember(op: Remember, row: Row | None, time: Time) -> Decision:
    now = time.now
    record = live(row, time.past)
    answer = standing(record, op.fingerprints, time.past)
    if answer is not None:
        return answer.kind == "done", None
    return True, Record(
        scope=op.scope,
        key=op.key,
        state="done",
        token=_token(row, now),
        attempts=record.attempts if record else 0,
        generation=record.generation if record else 0,
        doubt_on_lapse=False,
        created_at=record.created_at if record else now,
        changed_at=now,
        expires_at=now + op.retention,
        fingerprint=first_fingerprint(op.fingerprints) or None,
        result=op.result,
    )


def reopen(row: Row, record: Record, now: int, retention: int) -> Record:
    """Free, in a new generation, its owner fenced out."""
    return replace(
        record,
        state="free",
        owner=b"",
        token=_token(row, now),
        attempts=0,
        generation=record.generation + 1,
        changed_at=now,
        lease_until=None,
        expires_at=now + retention,
        result=None,
        error=None,
    )


def forget(retention: int, row: Row | None, time: Time) -> Decision:
    record = live(row, time.past)
    if row is None or record is None:
        return False, None
    return True, replace(reopen(row, record, time.now, retention), fingerprint=None)


def resolve(resolution: Resolution, row: Row | None, time: Time) -> Decision:
    record = live(row, time.past)
    answer = standing(record, b"", time.past)
    if row is None or record is None or answer is None or answer.kind != "in_doubt":
        return False, None
    opened = reopen(row, record, time.now, resolution.retention)
    if resolution.state == "free":
        return True, opened
    kept = {"attempts": record.attempts, "generation": record.generation}
    return True, replace(opened, state=resolution.state, result=resolution.result, error=resolution.error, **kept)


def _token(row: Row | None, now: int) -> int:
    return now if row is None else max(row.record.token + 1, now)
