"""The statements on records: ``backends/postgres/records.sql``, with everything filled in that is not a value."""

from __future__ import annotations

from functools import cache
from typing import Final

from effectonce.backends.common.sql_files import CLOCKS, read_statements
from effectonce.record import EXHAUSTED

from .client import Statement

#: The parts of statements that the file names, beside the statements.
PARTS: Final = ("decision", "insert_claims", "settled", "record_columns", "listed_columns")


@cache
def prepared_statements(prefix: str) -> dict[str, Statement]:
    """The statements by name, as a client sends them."""
    return {name: Statement(sql, generic=True) for name, sql in load_statements(prefix).items() if name not in PARTS}


@cache
def load_statements(prefix: str) -> dict[str, str]:
    """The statements and their parts by name."""
    return read_statements("backends/postgres/records.sql", **schema_words(prefix))


def schema_words(prefix: str) -> dict[str, str]:
    """What the words in braces stand for; the file explains each."""
    payload = "json_build_array(l.scope, l.key)::text"
    channel = f"'{prefix}_settled'"
    return {
        "records": f'"{prefix}_records"',
        "records_expiry": f'"{prefix}_records_expiry"',
        "records_attention": f'"{prefix}_records_attention"',
        "meta": f'"{prefix}_meta"',
        "outbox": f'"{prefix}_outbox"',
        "inbox": f'"{prefix}_inbox"',
        "now": CLOCKS["postgresql"],
        "is_locked": "r.ctid = l.place AND (r.scope, r.key) IS NOT DISTINCT FROM (l.scope, l.key)",
        "place": f'(SELECT r.ctid FROM "{prefix}_records" r WHERE r.scope = i.scope AND r.key = i.key)',
        "is_placed": "r.ctid = l.place AND r.owner = l.owner AND r.token = l.token AND r.state = 'claimed' "
        "AND (r.expires_at IS NULL OR r.expires_at > l.now)",
        "exhausted": f"'\\x{EXHAUSTED.hex()}'",
        # A payload of 8,000 bytes or more is an error, and so is a full queue (a listener somewhere sits in an open
        # transaction): both would take the settlement with them. Then nothing is announced, and those who wait poll.
        "announced": f"CASE WHEN l.awaited AND octet_length({payload}) < 7999 AND pg_notification_queue_usage() < 0.5 "
        f"THEN pg_notify({channel}, {payload})::text = '' ELSE true END",
    }
