"""What the error codes of PostgreSQL and MySQL mean: one list for a store's connection and for the caller's session.

Both translate a database's refusal, into different errors: a store's connection is effectonce's to open again, while a
caller has to roll back first. So only the meaning of a code is shared, not the exception that follows from it.
"""

from __future__ import annotations

from typing import Final

# -- PostgreSQL: SQLSTATE, five characters

POSTGRES_CONFLICT: Final = frozenset(("40001", "40P01"))  # serialization failure, deadlock
POSTGRES_LOCK_TIMEOUT: Final = "55P03"
POSTGRES_QUERY_CANCELED: Final = "57014"  # statement_timeout, or a cancel request
POSTGRES_TABLE_MISSING: Final = frozenset(("42P01", "3F000"))  # no such table, no such schema
POSTGRES_COLUMN_MISSING: Final = "42703"
POSTGRES_READ_ONLY: Final = "25006"
POSTGRES_PERMISSION_DENIED: Final = "42501"
POSTGRES_NO_UNIQUE_KEY: Final = "42P10"  # ON CONFLICT names a column without a unique index

#: The server ended the session: shutdown by an administrator, crash, starting up, database dropped, idle too long in a
#: transaction.
_POSTGRES_SESSION_ENDED: Final = frozenset(("57P01", "57P02", "57P03", "57P05", "25P03"))


def is_postgres_connection_lost(sqlstate: str) -> bool:
    """Whether ``sqlstate`` says that the connection is gone. Class 08 holds the connection exceptions."""
    return sqlstate.startswith("08") or sqlstate in _POSTGRES_SESSION_ENDED


# -- MySQL and MariaDB: numbers. Those over 2000 are the client library's, 0 is PyMySQL's for a closed connection.

MYSQL_CONFLICT: Final = frozenset((1213, 1020))  # deadlock; the row has changed since it was read
MYSQL_LOCK_TIMEOUT: Final = 1205
MYSQL_QUERY_KILLED: Final = 1317
MYSQL_DUPLICATE_KEY: Final = 1062
MYSQL_DATABASE_MISSING: Final = 1049
MYSQL_TABLE_MISSING: Final = 1146
MYSQL_COLUMN_MISSING: Final = 1054
MYSQL_READ_ONLY: Final = frozenset((1290, 1792, 1836))
MYSQL_TABLE_DENIED: Final = 1142
MYSQL_COLUMN_DENIED: Final = 1143
MYSQL_CONNECTION_LOST: Final = frozenset(
    (0, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 2055, 4031)
)
