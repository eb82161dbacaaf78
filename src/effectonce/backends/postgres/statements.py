"""The statements on records: `backends/postgres/records.sql`, with the names of the tables filled in."""

from __future__ import annotations

from functools import cache

from effectonce.backends.common.sql_files import statements
from effectonce.record import EXHAUSTED

from .connection import Statement


@cache
def queries(prefix: str) -> dict[str, Statement]:
    """The statements that effectonce sends itself, by name."""
    parts = ("decision", "insert_claims", "settled", "record_columns", "listed_columns")
    return {name: Statement(sql, generic=True) for name, sql in named(prefix).items() if name not in parts}


@cache
def named(prefix: str) -> dict[str, str]:
    return statements("backends/postgres/records.sql", **words(prefix))


def words(prefix: str) -> dict[str, str]:
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
        "now": "(date_part('epoch', clock_timestamp()) * 1000000)::bigint",
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
