"""What the stores in SQL databases share: reading a row as a record, and checking the version of the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from effectonce.errors import SchemaMismatch, SchemaMissing
from effectonce.record import Note, Record, Renewal, Settlement

#: The columns of a record. Statements whose rows have no names select them first, in this order.
RECORD_COLUMNS: Final = Record.__struct_fields__


def record_from_values(row: Sequence[Any]) -> Record:
    """Make a record of a row that begins with `RECORD_COLUMNS`. Columns behind those are for the store itself."""
    return record_from(dict(zip(RECORD_COLUMNS, row, strict=False)))


def record_from(row: Mapping[str, Any]) -> Record:
    """Make a record of a row by the names of its columns. Others than `RECORD_COLUMNS` are for the store itself.

    A store may leave old values in columns that no longer count: the end of the lease where the record is not claimed
    any more. It may also store an empty fingerprint for none.
    """
    values = {name: row[name] for name in RECORD_COLUMNS}
    values["doubt_on_lapse"] = bool(values["doubt_on_lapse"])
    values["fingerprint"] = values["fingerprint"] or None
    if values["state"] != "claimed":
        values["lease_until"] = None
    return Record(**values)


def as_settlement(op: Settlement | Note | Renewal) -> Settlement:
    """Turn a note or a renewal into a settlement with the state ``claimed``, so that one statement serves all three. A
    renewal's lease is sent beside it."""
    if isinstance(op, Settlement):
        return op
    retention = op.retention_us if isinstance(op, Renewal) else 0
    note = op.note if isinstance(op, Note) else None
    return Settlement(op.scope, op.key, op.owner, op.token, "claimed", retention, note=note)  # type: ignore[arg-type]


def require_schema_version(address: object, stored: int | None, oldest: int | None, ours: int) -> None:
    """Refuse the tables at ``address`` where this release, whose statements are of version ``ours``, cannot use them.

    Two releases run on the same tables while a program is deployed (F38). So a migration only adds, and the migration
    of the next release removes. Each stores its version as ``stored``, and as ``oldest`` the lowest version whose
    statements still work (None: only its own).
    """
    if stored is None:
        raise SchemaMissing(
            f"the tables at {address} have no schema version; run: effectonce migrate --store '{address}'"
        )
    if stored < ours:
        next_step = f"run: effectonce migrate --store '{address}'"
    elif (stored if oldest is None else oldest) > ours:
        next_step = "upgrade effectonce"
    else:
        return
    raise SchemaMismatch(
        f"the tables at {address} are at schema version {stored}, and this release needs {ours}; {next_step}"
    )
