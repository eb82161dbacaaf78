"""Encoding operations for MySQL as rows of literals, and reading rows as answers."""

from __future__ import annotations

from typing import Any, Final

from effectonce.backends.common.sql_store import as_settlement
from effectonce.errors import CorruptRecord
from effectonce.record import (
    Answer,
    Batchable,
    Claim,
    Note,
    Remember,
    Renewal,
    Settlement,
    State,
    StoredClaim,
    answer_for,
)

from .literals import bytes_literal, text_literal
from .statements import NOW_SQL

STATES: Final[tuple[State, ...]] = ("claimed", "done", "failed", "in_doubt", "free")
_STATE_LITERALS: Final = {state: f"'{state}'" for state in STATES}


def state_literal(state: State) -> str:
    """The quoted name of a state. Raises `KeyError` for any other text, so that none gets into a statement."""
    return _STATE_LITERALS[state]


# -- operations, as rows of the statements in records.sql
#
# A row of `claim` and of `remember` has the values of the statement's columns, in their order. MySQL evaluates them
# from left to right: `changed_at`, `lease` and `retention` in a row are the values that stand further left in it.


def claim_row(row_id: bytes, op: Claim) -> str:
    return (
        f"({bytes_literal(row_id)},{text_literal(op.scope)},{text_literal(op.key)},{bytes_literal(op.owner)},{op.doubt_on_lapse:d},"
        f"{bytes_literal(op.fingerprints)},{op.lease_us:d},{op.retention_us:d},{op.max_attempts:d},"
        f"{NOW_SQL},changed_at,changed_at,changed_at+lease,"
        f"{'NULL' if op.doubt_on_lapse else 'lease_until+retention'},'claimed',1,{bytes_literal(op.note)})"
    )


def remember_row(row_id: bytes, op: Remember, largest_result: int) -> str:
    return (
        f"({bytes_literal(row_id)},{text_literal(op.scope)},{text_literal(op.key)},'',{bytes_literal(op.fingerprints)},{op.retention_us:d},"
        f"{NOW_SQL},changed_at,changed_at,changed_at+retention,'done',0,{_result(op.result, largest_result)})"
    )


def settlement_row(row_id: bytes, op: Settlement | Note | Renewal, largest_result: int) -> str:
    end = as_settlement(op)
    lease = f"{op.lease_us:d}" if isinstance(op, Renewal) else "CAST(NULL AS SIGNED)"
    return (
        f"SELECT {bytes_literal(row_id)} AS id,{bytes_literal(end.owner)} AS owner,{end.token:d} AS token,"
        f"{state_literal(end.state)} AS state,{end.retention_us:d} AS retention,"
        f"{_result(end.result, largest_result)} AS result,{_result(end.error, largest_result)} AS error,"
        f"{end.refund:d} AS refund,{bytes_literal(end.note)} AS note,{lease} AS lease"
    )


def _result(value: bytes | None, largest: int) -> str:
    """The literal of a result. One that no packet can carry is not stored; the record is done all the same (F18: a
    result that is too large must not undo a success)."""
    return bytes_literal(None if value is None or len(value) > largest else value)


def max_packet_bytes(op: Batchable) -> int:
    """An upper bound of the bytes that ``op`` takes in a packet, where every value is in hexadecimal."""
    size = 768 + 8 * (len(op.scope) + len(op.key))  # a character is up to four bytes, and each is two digits
    for payload in ("result", "error", "note"):
        size += 2 * len(getattr(op, payload, None) or b"")
    return size


# -- rows, as answers


def read_answer(row: tuple[Any, ...], fingerprints: bytes, owner: bytes | None = None) -> Answer | CorruptRecord:
    """Read the answer that an unexpired row gives after its statement has run; ``absent``: it may be claimed.

    ``row`` is the id and the columns of `StoredClaim`, with the remaining time of the lease in place of its end: so on
    this clock it is 0 now.
    """
    stored = StoredClaim(*row[1:])
    now, lease_left = 0, stored.lease_until
    if owner is not None and lease_left is not None and lease_left <= 0:
        # The claim was refused, since the lease was live when the statement ran. It has ended since, before this row
        # was read. The answer is still in progress: so look at the row at a time before the end.
        now = lease_left - 1
    try:
        return answer_for(stored, fingerprints=fingerprints, now=now, claimant=owner) or Answer("absent")
    except CorruptRecord as error:
        return error
