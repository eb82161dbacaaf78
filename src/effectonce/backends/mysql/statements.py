"""The statements on records: those of ``backends/mysql/records.sql`` with all words filled in that are not values."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from effectonce.core.sql_files import read_statements
from effectonce.record import EXHAUSTED_ERROR

from .literals import bytes_literal

# The clock when the expression is evaluated, and when the statement began. SYSDATE(6) is a DATETIME without a zone; the
# session's is UTC, so no hour is ambiguous. UNIX_TIMESTAMP of it is a DECIMAL: a double would round microseconds.
NOW_SQL: Final = "CAST(UNIX_TIMESTAMP(SYSDATE(6))*1000000 AS SIGNED)"
STATEMENT_BEGAN_SQL: Final = "CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS SIGNED)"

#: The statements that compare the stored row with the new one.
UPSERT_STATEMENTS: Final = ("claim", "remember")


def table_names(prefix: str) -> dict[str, str]:
    return {"records": f"`{prefix}_records`", "meta": f"`{prefix}_meta`"}


@cache
def load_statements(prefix: str) -> dict[str, str]:
    """The statements by name."""
    return read_statements(
        "backends/mysql/records.sql",
        records_name=f"{prefix}_records",
        meta_name=f"{prefix}_meta",
        exhausted=bytes_literal(EXHAUSTED_ERROR),
        now=NOW_SQL,
        began=STATEMENT_BEGAN_SQL,
        **table_names(prefix),
    )


@cache
def upserts_with_alias(prefix: str) -> dict[str, str]:
    """`UPSERT_STATEMENTS` with an alias for the new row instead of ``VALUES(column)``. MySQL has aliases since 8.0.19,
    and warns at every ``VALUES(column)``; MariaDB knows no alias."""
    upserts = {}
    for name in UPSERT_STATEMENTS:
        head, tail = load_statements(prefix)[name].split(" VALUES {rows} ")
        columns = [column.strip(" `") for column in head[head.index("(") + 1 : -1].split(",")]
        aliases = ", ".join(f"new_{column}" for column in columns)
        upserts[name] = f"{head} VALUES {{rows}} AS fresh({aliases}) " + re.sub(r"VALUES\((\w+)\)", r"new_\1", tail)
    return upserts
