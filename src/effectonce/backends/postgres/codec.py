"""How operations travel to PostgreSQL, as parameters, and how rows come back, as answers.

Parameters are in its binary format, written by hand: nothing needs quoting, and psycopg's adaptation of lists costs
more than the server's work on them (1.5 ms for 100 operations of 4 values). `records.sql` has the statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from struct import Struct as Layout
from typing import Final

import msgspec

from effectonce.backends.common.sql_store import as_settlement
from effectonce.errors import InvalidKey, InvalidOption
from effectonce.record import EXHAUSTED, Answer, Batchable, Claim, Kind, Look, Note, Remember, Renewal, Settlement

from .client import Param, Row

# -- rows, as answers

#: The decisions of `claim` that only `claim_existing` can carry out, because they change the record.
CHANGES: Final = frozenset(("take_expired", "take_free", "take_lapsed", "exhaust", "lapse", "flag"))


def claim_answer(row: Row) -> tuple[int, Answer | None]:
    """The claim's position in its batch, and its answer; None: the decision changes the record."""
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
        answer = Answer(decision)  # mismatch or absent: the record's own values are not the caller's
    return n - 1, answer


def look_answer(row: Row) -> tuple[int, Answer]:
    """The look's position in its batch, and its answer: what a claim would get, with ``absent`` for a grant."""
    position, answer = claim_answer(row)
    if answer is not None:
        return position, answer
    _, decision, token, attempts, generation, *_ = row
    return position, Answer("in_doubt", token, attempts, generation) if decision == "lapse" else Answer("absent")


# -- the cursor of a list: the scope and the key of the last record before the page


def make_cursor(scope: str, key: str) -> str:
    return msgspec.json.encode((scope, key)).decode()


def parse_cursor(cursor: str | None) -> tuple[str, str]:
    """Without a cursor, a scope and a key before all others."""
    if cursor is None:
        return "", ""
    try:
        return msgspec.json.decode(cursor, type=tuple[str, str])
    except msgspec.MsgspecError:
        raise InvalidOption("this cursor was not made by this store; start again without one") from None


# -- values, and arrays of values, in PostgreSQL's binary format

int4, int8, boolean = Layout(">i"), Layout(">q"), Layout("?")
_ARRAY_HEAD: Final = Layout(">iiIii")  # dimensions, whether it has NULLs, the type of the values, how many, from which
_LENGTHS: Final = [int4.pack(n) for n in range(2048)]
_NULL: Final = int4.pack(-1)
_BOOL, _BYTEA, _INT8, _INT4, _TEXT = 16, 17, 20, 23, 25  # types, by their numbers in the server's catalogue


def texts(values: Sequence[str | None]) -> bytes:
    return _array(_TEXT, [None if value is None else utf8(value) for value in values])


def blobs(values: Sequence[bytes | None]) -> bytes:
    return _array(_BYTEA, values)


def bigints(values: Sequence[int]) -> bytes:
    return _fixed(_INT8, 8, "iq", values)


def integers(values: Sequence[int]) -> bytes:
    return _fixed(_INT4, 4, "ii", values)


def flags(values: Sequence[bool]) -> bytes:
    return _fixed(_BOOL, 1, "i?", values)


def _array(oid: int, values: Sequence[bytes | None]) -> bytes:
    parts = [_ARRAY_HEAD.pack(1, None in values, oid, len(values), 1)]
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


# -- operations, as parameters


def encode_claims(ops: Sequence[Claim]) -> list[Param]:
    """The parameters of `claim` and `claim_existing`."""
    return [
        *_identities(ops),
        blobs([op.owner for op in ops]),
        bigints([op.lease for op in ops]),
        bigints([op.retention for op in ops]),
        integers([op.max_attempts for op in ops]),
        flags([op.doubt_on_lapse for op in ops]),
        flags([op.waiting for op in ops]),
        blobs([op.fingerprints for op in ops]),
        blobs([op.note for op in ops]),
    ]


def encode_claim(op: Claim) -> list[Param]:
    """The parameters of `claim_one`."""
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


def encode_looks(ops: Sequence[Look]) -> list[Param]:
    return [*_identities(ops), blobs([op.fingerprints for op in ops])]


def encode_settlements(ops: Sequence[Settlement | Note | Renewal]) -> list[Param]:
    """The parameters of `settle` and `settle_locked`."""
    ends = [as_settlement(op) for op in ops]
    return [
        *_identities(ends),
        blobs([op.owner for op in ends]),
        bigints([op.token for op in ends]),
        texts([op.state for op in ends]),
        bigints([op.retention for op in ends]),
        blobs([op.result for op in ends]),
        blobs([op.error for op in ends]),
        flags([op.refund for op in ends]),
        blobs([op.note for op in ends]),
        _array(_INT8, [_lease(op) for op in ops]),
    ]


def encode_settlement(op: Settlement | Note | Renewal) -> list[Param]:
    """The parameters of `settle_one`, outside of a caller's transaction."""
    end = as_settlement(op)
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


def _lease(op: Settlement | Note | Renewal) -> Param:
    return int8.pack(op.lease) if type(op) is Renewal else None


def encode_memories(ops: Sequence[Remember]) -> list[Param]:
    return [
        *_identities(ops),
        bigints([op.retention for op in ops]),
        blobs([op.fingerprints for op in ops]),
        blobs([op.result for op in ops]),
    ]


def _identities(ops: Sequence[Batchable]) -> tuple[bytes, bytes]:
    return texts([op.scope for op in ops]), texts([op.key for op in ops])
