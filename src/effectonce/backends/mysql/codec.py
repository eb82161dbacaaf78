"""How operations travel to MySQL, as rows of literals, and how rows come back, as answers."""

from __future__ import annotations

import re
from typing import Any, Final

from effectonce.backends.common.sql_store import as_settlement
from effectonce.errors import CorruptRecord, InvalidOption
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

from .literals import blob, text
from .statements import NOW

STATES: Final[tuple[State, ...]] = ("claimed", "done", "failed", "in_doubt", "free")
_STATE_LITERALS: Final = {state: f"'{state}'" for state in STATES}
_LATEST_TIME_US: Final = 1 << 62
_HIGHEST_ID: Final = b"\xff" * 32


def state_literal(state: State) -> str:
    """The quoted name of a state, and of nothing else."""
    return _STATE_LITERALS[state]


# -- operations, as rows


def claim_row(row_id: bytes, op: Claim) -> str:
    return (
        f"({blob(row_id)},{text(op.scope)},{text(op.key)},{blob(op.owner)},{op.doubt_on_lapse:d},"
        f"{blob(op.fingerprints)},{op.lease:d},{op.retention:d},{op.max_attempts:d},"
        f"{NOW},changed_at,changed_at,changed_at+lease,"
        f"{'NULL' if op.doubt_on_lapse else 'lease_until+retention'},'claimed',1,{blob(op.note)})"
    )


def remember_row(row_id: bytes, op: Remember, largest_result: int) -> str:
    return (
        f"({blob(row_id)},{text(op.scope)},{text(op.key)},'',{blob(op.fingerprints)},{op.retention:d},"
        f"{NOW},changed_at,changed_at,changed_at+retention,'done',0,{_result(op.result, largest_result)})"
    )


def settlement_row(row_id: bytes, op: Settlement | Note | Renewal, largest_result: int) -> str:
    end = as_settlement(op)
    lease = f"{op.lease:d}" if isinstance(op, Renewal) else "CAST(NULL AS SIGNED)"
    return (
        f"SELECT {blob(row_id)} AS id,{blob(end.owner)} AS owner,{end.token:d} AS token,"
        f"{state_literal(end.state)} AS state,{end.retention:d} AS retention,"
        f"{_result(end.result, largest_result)} AS result,{_result(end.error, largest_result)} AS error,"
        f"{end.refund:d} AS refund,{blob(end.note)} AS note,{lease} AS lease"
    )


def _result(value: bytes | None, largest: int) -> str:
    """The literal of a result. One that no packet can carry is not stored, and the record is done all the same (F18: a
    result that is too large must not undo a success)."""
    return blob(None if value is None or len(value) > largest else value)


def packet_size_of(op: Batchable) -> int:
    """An upper bound of the bytes that ``op`` takes in a packet, where every value is in hexadecimal."""
    size = 768 + 8 * (len(op.scope) + len(op.key))  # a character is up to four bytes
    for payload in ("result", "error", "note"):
        size += 2 * len(getattr(op, payload, None) or b"")
    return size


# -- rows, as answers


def answer_of(row: tuple[Any, ...], fingerprints: bytes, owner: bytes | None = None) -> Answer | CorruptRecord:
    """The answer that an unexpired row gives after its statement has run; ``absent``: it may be claimed.

    ``row`` is the key and the columns of `StoredClaim`, with the remaining time of the lease in place of its end.
    """
    stored = StoredClaim(*row[1:])
    now, lease_left = 0, stored.lease_until
    if owner is not None and lease_left is not None and lease_left <= 0:
        now = lease_left - 1  # the refused claim met a live lease, which has ended since: it still is in progress
    try:
        return answer_for(stored, fingerprints=fingerprints, now=now, claimant=owner) or Answer("absent")
    except CorruptRecord as error:
        return error


# -- the cursor of a list: the time and the id of the last record before the page


def make_cursor(at_us: int, row_id: bytes) -> str:
    return f"{at_us}:{row_id.hex()}"


def parse_cursor(cursor: str | None) -> tuple[int, bytes]:
    """Without a cursor, values above all others."""
    if cursor is None:
        return _LATEST_TIME_US, _HIGHEST_ID
    if not re.fullmatch(r"[0-9]{1,19}:[0-9a-f]{64}", cursor):
        raise InvalidOption("this cursor was not made by this store; start again without one")
    at_us, _, row_id = cursor.partition(":")
    return int(at_us), bytes.fromhex(row_id)
