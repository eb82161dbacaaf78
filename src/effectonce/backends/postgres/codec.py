"""How operations and records travel to PostgreSQL and back.

Parameters are arrays in its binary format, written by hand: nothing needs quoting, and psycopg's adaptation of
lists costs more than the server's work on them. Rows come as tuples of `backends/postgres/records.sql`'s columns.
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
    Look,
    Note,
    Record,
    Remember,
    Renewal,
    Settlement,
)

Row = tuple[Any, ...]
Param = bytes | None


# -- rows ----------------------------------------------------------------------------------------------------


def answer(row: Row) -> Answer:
    _, kind, token, attempts, generation, lapsed, remains, result, error, note = row
    if kind == "claimed":
        return Answer("claimed", token, attempts, generation, None, None, 0.0, lapsed, note)
    if kind == "done":
        return Answer("done", token, attempts, generation, result)
    if kind == "in_progress":
        return Answer("in_progress", token, attempts, generation, None, None, max(0, remains) / 1e6)
    if kind == "failed":
        return Answer("exhausted" if error == EXHAUSTED else "failed", token, attempts, generation, None, error)
    if kind == "mismatch":
        return Answer("mismatch")
    if kind == "exhausted":
        return Answer("exhausted", token, attempts, generation, None, error)
    if kind in ("in_doubt", "lapsed_in_doubt"):
        return Answer("in_doubt", token, attempts, generation)
    return Answer("absent")


def granted(op: Claim, token: int) -> Answer:
    """What a claim is answered that met no record."""
    return Answer("claimed", token, 1, 0, None, None, 0.0, False, op.note)


def applied(row: Row) -> bool | None:
    return row[1]  # type: ignore[no-any-return]


def record(row: Row) -> Record:
    return Record(
        scope=row[0],
        key=row[1],
        state=row[2],
        token=row[3],
        attempts=row[4],
        generation=row[5],
        doubt_on_lapse=row[6],
        created_at=row[7],
        changed_at=row[8],
        lease_until=row[9] if row[2] == "claimed" else None,
        expires_at=row[10],
        owner=row[11],
        fingerprint=row[12],
        result=row[13],
        error=row[14],
        note=row[15],
    )


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

int4, int8 = Layout(">i"), Layout(">q")
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
    """What `claim` takes, and with the notes behind it `claim_noted`."""
    return [
        *_identities(ops),
        blobs([op.owner for op in ops]),
        longs([op.lease for op in ops]),
        longs([op.retention for op in ops]),
        integers([op.max_attempts for op in ops]),
        flags([op.doubt_on_lapse for op in ops]),
        flags([op.waiting for op in ops]),
        blobs([op.fingerprints for op in ops]),
    ]


def noted_claims(ops: Sequence[Claim]) -> list[Param]:
    return [*claims(ops), blobs([op.note for op in ops])]


def fresh_claims(ops: Sequence[Claim]) -> list[Param]:
    return [
        *_identities(ops),
        blobs([op.owner for op in ops]),
        longs([op.lease for op in ops]),
        longs([op.retention for op in ops]),
        flags([op.doubt_on_lapse for op in ops]),
        blobs([op.fingerprints for op in ops]),
        blobs([op.note for op in ops]),
    ]


def looks(ops: Sequence[Look]) -> list[Param]:
    return [*_identities(ops), blobs([op.fingerprints for op in ops])]


def settlements(ops: Sequence[Settlement | Note]) -> list[Param]:
    """What `settle` takes. To it a note is a settlement that ends nothing: the record is claimed afterwards, too."""
    ends = [
        (op.state, op.retention, op.result, op.error, op.refund)
        if type(op) is Settlement
        else ("claimed", 0, None, None, False)
        for op in ops
    ]
    states, retentions, results, errors, refunds = zip(*ends, strict=True)
    return [
        *_claimed(ops),
        texts(states),
        longs(retentions),
        blobs(results),
        blobs(errors),
        flags(refunds),
        blobs([op.note for op in ops]),
    ]


def notes(ops: Sequence[Note]) -> list[Param]:
    return [*_claimed(ops), blobs([op.note for op in ops])]


def renewals(ops: Sequence[Renewal]) -> list[Param]:
    return [*_claimed(ops), longs([op.lease for op in ops]), longs([op.retention for op in ops])]


def memories(ops: Sequence[Remember]) -> list[Param]:
    return [
        *_identities(ops),
        longs([op.retention for op in ops]),
        blobs([op.fingerprints for op in ops]),
        blobs([op.result for op in ops]),
    ]


def _identities(ops: Sequence[Batchable]) -> tuple[bytes, bytes]:
    return texts([op.scope for op in ops]), texts([op.key for op in ops])


def _claimed(ops: Sequence[Settlement | Note | Renewal]) -> tuple[bytes, bytes, bytes, bytes]:
    return *_identities(ops), blobs([op.owner for op in ops]), longs([op.token for op in ops])


# -- an operation by itself ----------------------------------------------------------------------------------

#: What a claim that does not wait is answered without a change to the record.
UNCHANGED: Final = frozenset(("claimed", "done", "failed", "in_doubt", "in_progress", "mismatch"))
_FLAGS: Final = (b"\0", b"\1")


def alone(op: Batchable) -> tuple[str, list[Param]] | None:
    """The statement for ``op`` where no other goes with it, and its parameters; None: there is only that for many."""
    if type(op) is Note:
        return "note_alone", [utf8(op.scope), utf8(op.key), op.owner, int8.pack(op.token), op.note]
    if type(op) is Settlement:
        return "settle_alone", [
            utf8(op.scope), utf8(op.key), op.owner, int8.pack(op.token), op.state.encode(), int8.pack(op.retention),
            op.result, op.error, _FLAGS[op.refund], op.note,
        ]  # fmt: skip
    if type(op) is Claim and not op.waiting:
        return "claim_alone", [
            utf8(op.scope), utf8(op.key), op.owner, int8.pack(op.lease), int8.pack(op.retention),
            _FLAGS[op.doubt_on_lapse], op.fingerprints, op.note,
        ]  # fmt: skip
    return None


def answer_alone(op: Batchable, row: Row) -> Answer | bool:
    """What the row of such a statement says."""
    if type(op) is Claim:
        return granted(op, row[0])
    return True
