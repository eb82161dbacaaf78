"""Rows of the SQL stores as records, the versions of their tables, and drivers that are not installed."""

from __future__ import annotations

from typing import Any

import pytest

from effectonce.backends.common.drivers import require_driver
from effectonce.backends.common.sql_store import (
    RECORD_COLUMNS,
    as_settlement,
    record_from_values,
    require_schema_version,
)
from effectonce.errors import MissingDriver, SchemaMismatch, SchemaMissing
from effectonce.record import Note, Renewal, Settlement


def row(**values: Any) -> list[Any]:
    known = {"scope": "s", "key": "k", "state": "claimed", "doubt_on_lapse": 0, "fingerprint": b"", "lease_until": 9}
    return [{**known, **values}.get(name, 0) for name in RECORD_COLUMNS]


def test_a_row_of_a_claim_is_a_record_with_a_lease() -> None:
    record = record_from_values([*row(doubt_on_lapse=1, fingerprint=b"f"), "a column of the store itself"])
    assert (record.doubt_on_lapse, record.fingerprint, record.lease_until) == (True, b"f", 9)
    assert record_from_values(row()).doubt_on_lapse is False


def test_what_a_row_keeps_from_before_does_not_count() -> None:
    record = record_from_values(row(state="done"))
    assert (record.lease_until, record.fingerprint) == (None, None)


def test_a_note_and_a_renewal_are_settlements_that_stay_claimed() -> None:
    settlement = Settlement("s", "k", b"o", 1, "done", 7)
    assert as_settlement(settlement) is settlement
    note = as_settlement(Note("s", "k", b"o", 1, b"note"))
    assert (note.state, note.retention_us, note.note) == ("claimed", 0, b"note")
    renewal = as_settlement(Renewal("s", "k", b"o", 1, lease_us=5, retention_us=7))
    assert (renewal.state, renewal.retention_us, renewal.note) == ("claimed", 7, None)


@pytest.mark.parametrize(
    ("stored", "oldest", "kind", "remedy"),
    [
        (None, None, SchemaMissing, "migrate"),
        (1, None, SchemaMismatch, "migrate"),
        (1, 1, SchemaMismatch, "migrate"),
        (3, None, SchemaMismatch, "upgrade"),
        (4, 3, SchemaMismatch, "upgrade"),
    ],
)
def test_tables_of_another_version_say_what_to_do(
    stored: int | None, oldest: int | None, kind: type[Exception], remedy: str
) -> None:
    with pytest.raises(kind, match=remedy):
        require_schema_version("url", stored, oldest, 2)


@pytest.mark.parametrize(("stored", "oldest"), [(2, None), (2, 1), (3, 2), (3, 1)])
def test_f38_tables_that_a_newer_release_keeps_readable_are_used(stored: int, oldest: int | None) -> None:
    require_schema_version("url", stored, oldest, 2)


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.module"])
def test_a_driver_that_is_not_installed_names_the_extra(module: str) -> None:
    require_driver("Shop", "shop", "json", "xml.dom")
    with pytest.raises(MissingDriver, match=r"effectonce\[shop\]"):
        require_driver("Shop", "shop", "json", module)
