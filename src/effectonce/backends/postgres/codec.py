"""How operations and records travel to PostgreSQL and back.

Parameters are in its binary format, written by hand: nothing needs quoting, and psycopg's adaptation of lists costs
more than the server's work on them (1.5 ms for 100 operations of 4 values). `records.sql` has the statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from struct import Struct as Layout
from typing import Any, Final

import msgspec

from effectonce.errors import InvalidKey, InvalidOption
from effectonce.record import (
    EXHAUSTED,
    Answer,
    Batchable,
    Claim,
    Kind,
    Look,
    Note,
    Record,
    Remember,
    Renewal,
    Settlement,
)

Row = tuple[Any, ...]
NamedRow = dict[str, Any]  # by the names of the columns
Param = bytes | None


# -- rows ----------------------------------------------------------------------------------------------------

#: The decisions of `claim` that only `claim_existing` can carry out, because they change the record.
CHANGES: Final = frozenset(("take_expired", "take_free", "take_lapsed", "exhaust", "lapse", "flag"))


def claim_reply(row: Row) -> tuple[int, Answer | None]:
    """The claim's place in its batch, and its answer; None: the decision changes the record."""
    n, decision, token, attempts, generation, lapsed, remains, result, error, note = row
    if decision in CHANGES:
        return n - 1, None
    if decision == "claimed":
        answer = Answer("claimed", token, attempts, generation, lapsed=lapsed, note=note)
    elif decision == "done":
        answer = Answer("done", token, attempts, generation, result=result)
    elif decision == "failed":
        kind: Kind = "exhausted" if error == EXHAUSTED else "failed"
        answer = Answer(kind, token, attempts, generation, error=error)
    elif decision == "in_progress":
        answer = Answer("in_progress", token, attempts, generation, retry_after=max(0, remains) / 1e6)
    elif decision == "in_doubt":
        answer = Answer("in_doubt", token, attempts, generation)
    else:
        answer = Answer(decision)  # mismatch or absent: the record's own values are nobody's business
    return n - 1, answer


def look_reply(row: Row) -> tuple[int, Answer]:
    """The look's place in its batch, and its answer: what a claim would come to, with ``absent`` for a grant."""
    place, answer = claim_reply(row)
    if answer is not None:
        return place, answer
    _, decision, token, attempts, generation, *_ = row
    return place, Answer("in_doubt", token, attempts, generation) if decision == "lapse" else Answer("absent")


def record(row: NamedRow) -> Record:
    values = {name: row[name] for name in Record.__struct_fields__}
    if row["state"] != "claimed":
        values["lease_until"] = None
    return Record(**values)


def cursor(scope: str, key: str) -> str:
    return msgspec.json.encode((scope, key)).decode()


def uncursor(cursor: str | None) -> tuple[str, str]:
    if cursor is None:
        return "", ""
    try:
        return msgspec.json.decode(cursor, type=tuple[str, str])
    except msgspec.MsgspecError:
        raise InvalidOption("this cursor was not made by this store; start again without one") from None


# -- parameters: arrays in PostgreSQL's binary format, so that nothing needs quoting --------------------------

int4, int8, boolean = Layout(">i"), Layout(">q"), Layout("?")
_head = Layout(">iiIii")
_LENGTHS = [int4.pack(n) for n in range(2048)]
_NULL = int4.pack(-1)
_BOOL, _BYTEA, _INT8, _INT4, _TEXT = 16, 17, 20, 23, 25


def texts(values: Sequence[str | None]) -> bytes:
    try:
        return _array(_TEXT, [None if value is None else value.encode() for value in values])
    except UnicodeEncodeError:
        raise InvalidKey("a scope and a key must be valid Unicode, without lone surrogates") from None


def blobs(values: Sequence[bytes | None]) -> bytes:
    return _array(_BYTEA, values)


def longs(values: Sequence[int]) -> bytes:
    return _fixed(_INT8, 8, "iq", values)


def integers(values: Sequence[int]) -> bytes:
    return _fixed(_INT4, 4, "ii", values)


def flags(values: Sequence[bool]) -> bytes:
    return _fixed(_BOOL, 1, "i?", values)


def _array(oid: int, values: Sequence[bytes | None]) -> bytes:
    parts = [_head.pack(1, None in values, oid, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            size = len(value)
            parts.append(_LENGTHS[size] if size < 2048 else int4.pack(size))
            parts.append(value)
    return b"".join(parts)


def _fixed(oid: int, size: int, code: str, values: Sequence[int]) -> bytes:
    count = len(values)
    fields: list[int] = [size] * (2 * count)
    fields[1::2] = values
    return _layout(code, count).pack(1, 0, oid, count, 1, *fields)


@cache
def _layout(code: str, count: int) -> Layout:
    return Layout(">iiIii" + code * count)


def utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidKey("a scope and a key must be valid Unicode, without lone surrogates") from None


# -- batches -------------------------------------------------------------------------------------------------


def claims(ops: Sequence[Claim]) -> list[Param]:
    """What `claim` and `claim_existing` take."""
    return [
        *_identities(ops),
        blobs([op.owner for op in ops]),
        longs([op.lease for op in ops]),
        longs([op.retention for op in ops]),
        integers([op.max_attempts for op in ops]),
        flags([op.doubt_on_lapse for op in ops]),
        flags([op.waiting for op in ops]),
        blobs([op.fingerprints for op in ops]),
        blobs([op.note for op in ops]),
    ]


def claim(op: Claim) -> list[Param]:
    """What `claim_one` takes."""
    return [
        utf8(op.scope),
        utf8(op.key),
        op.owner,
        int8.pack(op.lease),
        int8.pack(op.retention),
        int4.pack(op.max_attempts),
        boolean.pack(op.doubt_on_lapse),
        boolean.pack(op.waiting),
        op.fingerprints,
        op.note,
    ]


def looks(ops: Sequence[Look]) -> list[Param]:
    return [*_identities(ops), blobs([op.fingerprints for op in ops])]


def settlements(ops: Sequence[Settlement | Note | Renewal]) -> list[Param]:
    """What `settle` and `settle_locked` take."""
    ends = [op if type(op) is Settlement else _as_settlement(op) for op in ops]
    return [
        *_identities(ends),
        blobs([op.owner for op in ends]),
        longs([op.token for op in ends]),
        texts([op.state for op in ends]),
        longs([op.retention for op in ends]),
        blobs([op.result for op in ends]),
        blobs([op.error for op in ends]),
        flags([op.refund for op in ends]),
        blobs([op.note for op in ends]),
        _array(_INT8, [_lease(op) for op in ops]),
    ]


def settlement(op: Settlement | Note | Renewal) -> list[Param]:
    """What `settle_one` takes, outside of a caller's transaction."""
    end = op if type(op) is Settlement else _as_settlement(op)
    return [
        utf8(end.scope),
        utf8(end.key),
        end.owner,
        int8.pack(end.token),
        end.state.encode(),
        int8.pack(end.retention),
        end.result,
        end.error,
        boolean.pack(end.refund),
        end.note,
        _lease(op),
        boolean.pack(False),
    ]


def _as_settlement(op: Settlement | Note | Renewal) -> Settlement:
    """A note and a renewal end nothing: to the statements they are settlements that leave the record claimed."""
    retention = op.retention if type(op) is Renewal else 0
    note = op.note if type(op) is Note else None
    return Settlement(op.scope, op.key, op.owner, op.token, "claimed", retention, note=note)  # type: ignore[arg-type]


def _lease(op: Settlement | Note | Renewal) -> Param:
    return int8.pack(op.lease) if type(op) is Renewal else None


def memories(ops: Sequence[Remember]) -> list[Param]:
    return [
        *_identities(ops),
        longs([op.retention for op in ops]),
        blobs([op.fingerprints for op in ops]),
        blobs([op.result for op in ops]),
    ]


def _identities(ops: Sequence[Batchable]) -> tuple[bytes, bytes]:
    return texts([op.scope for op in ops]), texts([op.key for op in ops])
