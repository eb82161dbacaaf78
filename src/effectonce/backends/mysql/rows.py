"""Records as MySQL and MariaDB hold them: their statements, rows as answers and records, cursors of a list."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from effectonce.backends.common.sql_files import statements
from effectonce.errors import CorruptRecord, InvalidOption
from effectonce.record import (
    EXHAUSTED,
    Answer,
    Batchable,
    Claim,
    Note,
    Record,
    Remember,
    Settlement,
    StoredClaim,
    answer_for,
)

from .connection import blob
from .schema import tables

_LATEST_TIME = 1 << 62
_HIGHEST_ID = b"\xff" * 32

# The clock when the expression is evaluated, and when the statement began. SYSDATE(6) is a DATETIME without a zone; the
# session's is UTC, so no hour is ambiguous. UNIX_TIMESTAMP of it is a DECIMAL: a double would round microseconds.
NOW = "CAST(UNIX_TIMESTAMP(SYSDATE(6))*1000000 AS SIGNED)"
STATEMENT_BEGAN = "CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS SIGNED)"


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


def packet_size_of(op: Batchable) -> int:
    """An upper bound of the bytes that ``op`` takes in a packet, where every value is in hexadecimal."""
    size = 768 + 8 * (len(op.scope) + len(op.key))  # a character is up to four bytes
    if isinstance(op, Settlement | Remember):
        size += 2 * len(op.result or b"")
    if isinstance(op, Settlement):
        size += 2 * len(op.error or b"")
    if isinstance(op, Claim | Settlement | Note):
        size += 2 * len(op.note or b"")
    return size


_RECORD_COLUMNS = (
    "scope",
    "key",
    "state",
    "token",
    "attempts",
    "generation",
    "doubt_on_lapse",
    "created_at",
    "changed_at",
    "lease_until",
    "expires_at",
    "owner",
    "fingerprint",
    "result",
    "error",
    "note",
)


def record_of(row: tuple[Any, ...]) -> Record:
    """The record of a row with the columns of the statement `record`, the id last."""
    values = dict(zip(_RECORD_COLUMNS, row[:-1], strict=True))
    values["doubt_on_lapse"] = bool(values["doubt_on_lapse"])
    values["fingerprint"] = values["fingerprint"] or None
    return Record(**values)


def parse_cursor(cursor: str | None) -> tuple[int, bytes]:
    """The time and the id of the last record before the page; without a cursor, values above all others."""
    if cursor is None:
        return _LATEST_TIME, _HIGHEST_ID
    at, _, row_id = cursor.partition(":")
    if not re.fullmatch(r"[0-9]{1,19}:[0-9a-f]{64}", cursor):
        raise InvalidOption("this cursor was not made by this store; start again without one")
    return int(at), bytes.fromhex(row_id)


@cache
def load_statements(prefix: str) -> dict[str, str]:
    """The statements by name, with everything filled in that is not a value."""
    return statements(
        "backends/mysql/records.sql",
        records_name=f"{prefix}_records",
        meta_name=f"{prefix}_meta",
        exhausted=blob(EXHAUSTED),
        now=NOW,
        began=STATEMENT_BEGAN,
        **tables(prefix),
    )


#: The statements that compare the stored row with the new one.
UPSERTS = ("claim", "remember")


@cache
def upserts_with_alias(prefix: str) -> dict[str, str]:
    """`UPSERTS` with an alias for the new row, as MySQL has it since 8.0.19, which warns at every ``VALUES(column)``;
    MariaDB knows only that."""
    upserts = {}
    for name in UPSERTS:
        head, tail = load_statements(prefix)[name].split(" VALUES {rows} ")
        columns = [column.strip(" `") for column in head[head.index("(") + 1 : -1].split(",")]
        aliases = ", ".join(f"new_{column}" for column in columns)
        upserts[name] = f"{head} VALUES {{rows}} AS fresh({aliases}) " + re.sub(r"VALUES\((\w+)\)", r"new_\1", tail)
    return upserts
