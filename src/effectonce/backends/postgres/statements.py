"""The statements on records: those of ``backends/postgres/records.sql`` with all words filled in."""

from __future__ import annotations

from functools import cache
from typing import Final

from effectonce.core.sql_files import CLOCK_EXPRESSIONS, read_statements
from effectonce.record import EXHAUSTED_ERROR

from .client import Statement

#: The file also names parts of statements, which are not sent by themselves.
STATEMENT_PARTS: Final = ("decision", "insert_claims", "settled", "record_columns", "listed_columns", "newest")


@cache
def prepared_statements(prefix: str) -> dict[str, Statement]:
    """The statements by name, as `PostgresClient` sends them."""
    return {
        name: Statement(sql, generic=True)
        for name, sql in load_statements(prefix).items()
        if name not in STATEMENT_PARTS
    }


@cache
def load_statements(prefix: str) -> dict[str, str]:
    """The statements and their parts by name."""
    return read_statements("backends/postgres/records.sql", **statement_words(prefix))


def statement_words(prefix: str) -> dict[str, str]:
    """The words of the file. Its head explains each."""
    payload = "json_build_array(l.scope, l.key)::text"
    channel = f"'{prefix}_settled'"
    return {
        "records": f'"{prefix}_records"',
        "meta": f'"{prefix}_meta"',
        "outbox": f'"{prefix}_outbox"',
        "inbox": f'"{prefix}_inbox"',
        "now": CLOCK_EXPRESSIONS["postgresql"],
        "is_locked": "r.ctid = l.place AND (r.scope, r.key) IS NOT DISTINCT FROM (l.scope, l.key)",
        "place": f'(SELECT r.ctid FROM "{prefix}_records" r WHERE r.scope = i.scope AND r.key = i.key)',
        "is_placed": "r.ctid = l.place AND r.owner = l.owner AND r.token = l.token AND r.state = 'claimed' "
        "AND (r.expires_at IS NULL OR r.expires_at > l.now)",
        "exhausted": f"'\\x{EXHAUSTED_ERROR.hex()}'",
        # pg_notify fails for a payload of 8,000 bytes or more, and where the queue of notifications is full (since some
        # listener keeps a transaction open). Either would undo the settlement. So nothing is announced in these cases,
        # and waiters find out by polling.
        "announced": f"CASE WHEN l.awaited AND octet_length({payload}) < 7999 AND pg_notification_queue_usage() < 0.5 "
        f"THEN pg_notify({channel}, {payload})::text = '' ELSE true END",
    }
