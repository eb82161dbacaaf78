"""What goes into MySQL and MariaDB and comes out: statements, rows, places in a list."""

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

from .connection import binary
from .schema import tables

# SYSDATE(6) is a DATETIME without a zone; the session's is UTC, so no hour is ever ambiguous. UNIX_TIMESTAMP of
# it is a DECIMAL: exact, where a double would round microseconds.
NOW = "CAST(UNIX_TIMESTAMP(SYSDATE(6))*1000000 AS SIGNED)"
BEGAN = "CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS SIGNED)"


def answer_of(row: tuple[Any, ...], fingerprints: bytes, owner: bytes | None = None) -> Answer | CorruptRecord:
    """What an unexpired row answers after the statement has done its part; ``absent``: it is there to be taken."""
    stored = StoredClaim(*row[1:])  # behind the key; its `lease_until` is counted from now
    now, left = 0, stored.lease_until
    if owner is not None and left is not None and left <= 0:
        now = left - 1  # a claim that was refused met a live lease, which has ended since
    try:
        return answer_for(stored, fingerprints=fingerprints, now=now, claimant=owner) or Answer("absent")
    except CorruptRecord as error:
        return error


def weight_of(op: Batchable) -> int:
    """At most so many bytes of a packet."""
    size = 768 + 8 * (len(op.scope) + len(op.key))
    if isinstance(op, Settlement | Remember):
        size += 2 * len(op.result or b"")
    if isinstance(op, Settlement):
        size += 2 * len(op.error or b"")
    if isinstance(op, Claim | Settlement | Note):
        size += 2 * len(op.note or b"")
    return size


_FIELDS = Record.__struct_fields__  # in the order of the statement's columns


def record_of(row: tuple[Any, ...]) -> Record:
    values = dict(zip(_FIELDS, row[:-1], strict=True))
    values["doubt_on_lapse"] = bool(values["doubt_on_lapse"])
    values["fingerprint"] = values["fingerprint"] or None
    return Record(**values)


def place_of(cursor: str | None) -> tuple[int, bytes]:
    """Where a list goes on: the time and the id of the last record before it."""
    if cursor is None:
        return 1 << 62, b"\xff" * 32
    at, _, id_ = cursor.partition(":")
    if not re.fullmatch(r"[0-9]{1,19}:[0-9a-f]{64}", cursor):
        raise InvalidOption("this cursor was not made by this store; start again without one")
    return int(at), bytes.fromhex(id_)


@cache
def queries(prefix: str) -> dict[str, str]:
    """The statements by name, with everything filled in that is not a value."""
    return statements(
        "backends/mysql/records.sql",
        records_name=f"{prefix}_records",
        meta_name=f"{prefix}_meta",
        exhausted=binary(EXHAUSTED),
        now=NOW,
        began=BEGAN,
        **tables(prefix),
    )


#: Statements that compare what is stored with what is inserted, as MySQL has it since 8.0.19.
UPSERTS = ("claim", "remember")


@cache
def aliased(prefix: str) -> dict[str, str]:
    """`UPSERTS` with the new row under names of its own: ``VALUES(column)``, all that MariaDB knows, is deprecated in
    MySQL, which warns of it at every statement."""
    found = {}
    for name in UPSERTS:
        head, tail = queries(prefix)[name].split(" VALUES {rows} ")
        columns = [column.strip(" `") for column in head[head.index("(") + 1 : -1].split(",")]
        named = ", ".join(f"new_{column}" for column in columns)
        found[name] = f"{head} VALUES {{rows}} AS fresh({named}) " + re.sub(r"VALUES\((\w+)\)", r"new_\1", tail)
    return found
