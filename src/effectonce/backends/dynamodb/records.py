"""Records as DynamoDB items, and the record that an operation makes of another. Pure: no clock, no I/O."""

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
    StoredClaim,
    answer_for,
)
from effectonce.values.fingerprint import first_fingerprint
from effectonce.values.identity import digest

from .clock import Time
from .connection import Item

SHARDS = 8  # of the index, per state
NEVER_EXPIRES_S = 253_402_300_799  # the year 9999, for DynamoDB's time to live


# -- values and expressions --------------------------------------------------------------------------------------

Value = bool | int | str | bytes


def wrap(value: Value) -> Item:
    """``value`` as an attribute: with DynamoDB's name of its type."""
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int):
        return {"N": str(value)}
    return {"S": value} if isinstance(value, str) else {"B": value}


def unwrap(item: Item) -> dict[str, Any]:
    """The attributes of ``item`` as Python values. `ValueError` for a type that effectonce never writes."""
    plain: dict[str, Any] = {}
    for name, typed in item.items():
        ((kind, value),) = typed.items()
        if kind not in ("B", "S", "N", "BOOL"):
            raise ValueError(f"attribute {name} is of type {kind}")
        if kind == "N":
            plain[name] = int(value)
        else:
            plain[name] = bytes(value) if kind == "B" else value
    return plain


def expressions(values: dict[str, Value], **texts: str) -> dict[str, Any]:
    """The parameters of a call with expressions: the texts, with the names and those ``values`` that they use.

    Every attribute is written ``#name`` and every value ``:name``: DynamoDB reserves 573 words, and refuses a name or
    value that no expression uses.
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


class StoredItem(Struct, frozen=True, gc=False):
    """A record as it was read."""

    record: Record
    version: int  # which a write must find in order to replace it
    lapsed: bool  # a claim that was taken over from a lapsed lease


def bucket(state: str, doubt: bool, identity: bytes) -> str:
    """The partition of the index. Claims that lapse into doubt have their own, so that a sweep reads only them."""
    return f"{state}{'?' if doubt and state == 'claimed' else ''}/{identity[0] % SHARDS}"


def encode(record: Record, version: int, *, lapsed: bool, write: bytes) -> Item:
    """The item of ``record``. ``write`` names this write: its maker recognises by it that it was applied."""
    identity = digest(record.scope, record.key)
    is_claimed = record.state == "claimed"
    never_expires = is_claimed and record.doubt_on_lapse
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
        "lease_until": record.lease_until if is_claimed else None,
        "expires_at": record.expires_at,
        "expires": _time_to_live(record, never_expires),
        "keep": NEVER_EXPIRES_S if never_expires else None,
        "since": record.changed_at if is_claimed and not never_expires else None,
        "was": "claimed" if lapsed else None,
        "fingerprint": record.fingerprint or None,
        "result": record.result,
        "error": record.error,
    }
    if record.state != "done":
        values["bucket"] = bucket(record.state, record.doubt_on_lapse, identity)
        values["rank"] = record.lease_until if never_expires else record.changed_at
    return {name: wrap(value) for name, value in values.items() if value is not None}


def _time_to_live(record: Record, never_expires: bool) -> int | None:
    if never_expires:
        return NEVER_EXPIRES_S
    return None if record.expires_at is None else seconds(record.expires_at)


def decode(item: Item | None) -> StoredItem | None:
    """The record in ``item``; None where there is none. `CorruptRecord` for an item that effectonce did not write."""
    if not item:
        return None
    try:
        values = unwrap(item)
        state, doubt = values["state"], values["doubt"]
        if state not in ("claimed", "done", "failed", "in_doubt", "free"):
            raise ValueError(f"state {state!r}")
        record = Record(
            scope=values["scope"],
            key=values["key"],
            state=state,
            token=values["token"],
            attempts=values["attempts"],
            generation=values["generation"],
            doubt_on_lapse=doubt,
            created_at=values["created"],
            changed_at=values["changed"],
            lease_until=values["lease_until"] if state == "claimed" else None,
            expires_at=None if state == "in_doubt" or (doubt and state == "claimed") else values["expires_at"],
            owner=values.get("owner", b""),
            fingerprint=values.get("fingerprint"),
            result=values.get("result"),
            error=values.get("error"),
        )
        return StoredItem(record, values["version"], values.get("was") == "claimed")
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(
            f"an item of the table is not a record that this version reads ({type(error).__name__}: {error}); "
            "look at it, and delete it if nothing needs it"
        ) from error


def seconds(micros: int) -> int:
    """Microseconds in whole seconds, rounded up."""
    return -(-micros // 1_000_000)


# -- decisions ---------------------------------------------------------------------------------------------


def unexpired(stored: StoredItem | None, past: int) -> Record | None:
    """The record; None where it is absent or expired."""
    if stored is None or (stored.record.expires_at is not None and stored.record.expires_at <= past):
        return None
    return stored.record


def answer_of(
    stored: StoredItem | None, fingerprints: bytes, past: int, claimant: bytes | None = None
) -> Answer | None:
    """What an unexpired record answers, by the rules that all stores share; None: it may be claimed."""
    record = unexpired(stored, past)
    if stored is None or record is None:
        return None
    claim = StoredClaim(
        state=record.state,
        owner=record.owner,
        token=record.token,
        attempts=record.attempts,
        generation=record.generation,
        lapsed=stored.lapsed,
        doubt_on_lapse=record.doubt_on_lapse,
        lease_until=record.lease_until,
        fingerprint=record.fingerprint,
        result=record.result,
        error=record.error,
    )
    return answer_for(claim, fingerprints=fingerprints, now=past, claimant=claimant)


#: The answer, and the record to put in place of the one that was read (None: leave it).
Decision = tuple[Reply, Record | None]


def decide_claim(op: Claim, stored: StoredItem | None, time: Time) -> Decision:
    """The steps of a claim, for a record that the first write could not take."""
    now = time.now
    record = unexpired(stored, time.past)
    answer = answer_of(stored, op.fingerprints, time.past, claimant=op.owner)
    if record is not None:
        if answer is not None:
            lapses = answer.kind == "in_doubt" and record.state == "claimed"
            return answer, replace(record, state="in_doubt", changed_at=now, lease_until=None) if lapses else None
        if 0 < op.max_attempts <= record.attempts:
            failed = replace(
                record,
                state="failed",
                error=EXHAUSTED,
                result=None,
                changed_at=now,
                lease_until=None,
                expires_at=now + op.retention,
            )
            return Answer("exhausted", record.token, record.attempts, record.generation, None, EXHAUSTED), failed
    lease_until = now + op.lease
    taken = Record(
        scope=op.scope,
        key=op.key,
        state="claimed",
        token=_token(stored, now),
        attempts=record.attempts + 1 if record else 1,
        generation=record.generation if record else 0,
        doubt_on_lapse=op.doubt_on_lapse,
        created_at=record.created_at if record else now,
        changed_at=now,
        lease_until=lease_until,
        expires_at=None if op.doubt_on_lapse else lease_until + op.retention,
        owner=op.owner,
        fingerprint=first_fingerprint(op.fingerprints) or (record.fingerprint if record else None),
    )
    lapsed = record is not None and record.state == "claimed"
    return Answer("claimed", taken.token, taken.attempts, taken.generation, lapsed=lapsed), taken


def decide_remember(op: Remember, stored: StoredItem | None, time: Time) -> Decision:
    now = time.now
    record = unexpired(stored, time.past)
    answer = answer_of(stored, op.fingerprints, time.past)
    if answer is not None:
        return answer.kind == "done", None
    return True, Record(
        scope=op.scope,
        key=op.key,
        state="done",
        token=_token(stored, now),
        attempts=record.attempts if record else 0,
        generation=record.generation if record else 0,
        doubt_on_lapse=False,
        created_at=record.created_at if record else now,
        changed_at=now,
        expires_at=now + op.retention,
        fingerprint=first_fingerprint(op.fingerprints) or None,
        result=op.result,
    )


def reopen(stored: StoredItem, record: Record, now: int, retention: int) -> Record:
    """The record freed, in a new generation, its owner fenced out."""
    return replace(
        record,
        state="free",
        owner=b"",
        token=_token(stored, now),
        attempts=0,
        generation=record.generation + 1,
        changed_at=now,
        lease_until=None,
        expires_at=now + retention,
        result=None,
        error=None,
    )


def decide_forget(retention: int, stored: StoredItem | None, time: Time) -> Decision:
    record = unexpired(stored, time.past)
    if stored is None or record is None:
        return False, None
    return True, replace(reopen(stored, record, time.now, retention), fingerprint=None)


def decide_resolve(resolution: Resolution, stored: StoredItem | None, time: Time) -> Decision:
    record = unexpired(stored, time.past)
    answer = answer_of(stored, b"", time.past)
    if stored is None or record is None or answer is None or answer.kind != "in_doubt":
        return False, None
    opened = reopen(stored, record, time.now, resolution.retention)
    if resolution.state == "free":
        return True, opened
    kept = {"attempts": record.attempts, "generation": record.generation}
    return True, replace(opened, state=resolution.state, result=resolution.result, error=resolution.error, **kept)


def _token(stored: StoredItem | None, now: int) -> int:
    return now if stored is None else max(stored.record.token + 1, now)
