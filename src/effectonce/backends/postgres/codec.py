"""Encoding operations as parameters for PostgreSQL, and reading rows as answers.

Parameters are in PostgreSQL's binary format, encoded here: nothing needs quoting, and psycopg's adaptation of lists
costs more than the server's work on them (1.5 ms for 100 operations of 4 values). `records.sql` has the statements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import attrgetter
from struct import Struct as Layout
from typing import Any, Final, NamedTuple

from effectonce.backends.common.sql_store import as_settlement
from effectonce.errors import InvalidKey
from effectonce.record import Answer, AnswerKind, Note, Renewal, Settlement, is_exhausted

from .client import Param, Row
from .driver import BOOL_OID, BYTEA_OID, INT4_OID, INT8_OID, TEXT_OID

# -- rows, as answers

#: The decisions of `decision` in records.sql that only `claim_existing` can carry out, because they change the record.
CHANGING_DECISIONS: Final = frozenset(("take_expired", "take_free", "take_lapsed", "exhaust", "lapse", "flag"))


def read_claim_answer(row: Row) -> tuple[int, Answer | None]:
    """Read a claim's position in its batch, and its answer; None: the decision still has to change the record. The row
    has the columns that `claim`, `claim_one`, `claim_existing` and `look` return, all in the same order."""
    ordinal, decision, token, attempts, generation, lapsed, remains, result, error, note = row
    if decision in CHANGING_DECISIONS:
        return ordinal - 1, None
    if decision == "claimed":
        answer = Answer("claimed", token, attempts, generation, error=error, lapsed=lapsed, note=note)
    elif decision == "done":
        answer = Answer("done", token, attempts, generation, result=result)
    elif decision == "failed":
        kind: AnswerKind = "exhausted" if is_exhausted(error) else "failed"
        answer = Answer(kind, token, attempts, generation, error=error)
    elif decision == "in_progress":
        answer = Answer("in_progress", token, attempts, generation, retry_after=max(0, remains) / 1e6)
    elif decision == "in_doubt":
        answer = Answer("in_doubt", token, attempts, generation)
    else:
        answer = Answer(decision)  # mismatch or absent: the record's own values are not the caller's
    return ordinal - 1, answer


def read_look_answer(row: Row) -> tuple[int, Answer]:
    """Read a look's position in its batch, and its answer: that of a claim, with ``absent`` where it would be
    granted."""
    position, answer = read_claim_answer(row)
    if answer is not None:
        return position, answer
    _, decision, token, attempts, generation, *_ = row
    return position, Answer("in_doubt", token, attempts, generation) if decision == "lapse" else Answer("absent")


# -- values, and arrays of values, in PostgreSQL's binary format

int4, int8, boolean = Layout(">i"), Layout(">q"), Layout("?")  # each packs one value
_ARRAY_HEAD: Final = Layout(">iiIii")  # dimensions, whether it has NULLs, the type of the values, how many, first index
_NULL_LENGTH: Final = int4.pack(-1)


def text_array(values: Sequence[str | None]) -> bytes:
    return _array(TEXT_OID, [None if value is None else utf8(value) for value in values])


def bigint_array(values: Sequence[int]) -> bytes:
    return _fixed_width_array(INT8_OID, 8, "iq", values)


def integer_array(values: Sequence[int]) -> bytes:
    return _fixed_width_array(INT4_OID, 4, "ii", values)


def _array(oid: int, values: Sequence[bytes | None]) -> bytes:
    """An array of values of any length: each is written behind its length."""
    parts = [_ARRAY_HEAD.pack(1, None in values, oid, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(_NULL_LENGTH)
        else:
            parts += (int4.pack(len(value)), value)
    return b"".join(parts)


def _fixed_width_array(oid: int, size: int, code: str, values: Sequence[int]) -> bytes:
    """An array of values of ``size`` bytes each, packed in one call. ``code`` is struct's, for a length and a value."""
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


# -- operations, as parameters of the statements in records.sql


class Field(NamedTuple):
    """An attribute of operations: how it is encoded for one operation, and as an array for many."""

    read: Callable[[Any], Any]
    encode_one: Callable[[Any], Param]
    encode_many: Callable[[Sequence[Any]], bytes]


def encode_one(fields: Sequence[Field], op: object) -> list[Param]:
    return [encode(read(op)) for read, encode, _ in fields]


def encode_many(fields: Sequence[Field], ops: Sequence[object]) -> list[Param]:
    return [field.encode_many(list(map(field.read, ops))) for field in fields]


def _fields(**encodings: tuple[Callable[[Any], Param], Callable[[Sequence[Any]], bytes]]) -> tuple[Field, ...]:
    return tuple(Field(attrgetter(name), one, many) for name, (one, many) in encodings.items())


_AS_TEXT: Final = (utf8, text_array)
_AS_BYTES: Final = (lambda value: value, partial(_array, BYTEA_OID))
_AS_BIGINT: Final = (int8.pack, bigint_array)
_AS_INTEGER: Final = (int4.pack, integer_array)
_AS_FLAG: Final = (boolean.pack, partial(_fixed_width_array, BOOL_OID, 1, "i?"))
_IDENTITY_ENCODINGS: Final = {"scope": _AS_TEXT, "key": _AS_TEXT}

#: The parameters of each kind of operation: the first is $1 of its statements in records.sql.
CLAIM_FIELDS: Final = _fields(
    **_IDENTITY_ENCODINGS,
    owner=_AS_BYTES,
    lease_us=_AS_BIGINT,
    retention_us=_AS_BIGINT,
    max_attempts=_AS_INTEGER,
    doubt_on_lapse=_AS_FLAG,
    waiting=_AS_FLAG,
    fingerprints=_AS_BYTES,
    note=_AS_BYTES,
)
LOOK_FIELDS: Final = _fields(**_IDENTITY_ENCODINGS, fingerprints=_AS_BYTES)
REMEMBER_FIELDS: Final = _fields(
    **_IDENTITY_ENCODINGS, retention_us=_AS_BIGINT, fingerprints=_AS_BYTES, result=_AS_BYTES
)
_SETTLEMENT_FIELDS: Final = _fields(
    **_IDENTITY_ENCODINGS,
    owner=_AS_BYTES,
    token=_AS_BIGINT,
    state=_AS_TEXT,
    retention_us=_AS_BIGINT,
    result=_AS_BYTES,
    error=_AS_BYTES,
    refund=_AS_FLAG,
    note=_AS_BYTES,
)


def encode_settlements(ops: Sequence[Settlement | Note | Renewal]) -> list[Param]:
    """The parameters of `settle` and `settle_locked`."""
    params = encode_many(_SETTLEMENT_FIELDS, [as_settlement(op) for op in ops])
    return [*params, _array(INT8_OID, [_lease(op) for op in ops])]


def encode_settlement(op: Settlement | Note | Renewal) -> list[Param]:
    """The parameters of `settle_one` where it does not run in a caller's transaction."""
    return [*encode_one(_SETTLEMENT_FIELDS, as_settlement(op)), _lease(op), boolean.pack(False)]


def completion_params(op: Settlement) -> tuple[Any, ...]:
    """The parameters of `settle_one` in a caller's transaction, as plain values, which the caller's driver encodes."""
    return (*(field.read(op) for field in _SETTLEMENT_FIELDS), None, True)


def _lease(op: Settlement | Note | Renewal) -> Param:
    return int8.pack(op.lease_us) if type(op) is Renewal else None
