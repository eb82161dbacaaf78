"""The meanings of the error codes of PostgreSQL and MySQL, for a store's connection and for the caller's session.

Both translate database errors, but into different exceptions: a store opens its own connection again, while a caller
has to roll back first. So they share the meaning of a code, and not the exception that follows from it.
"""

from __future__ import annotations

from typing import Final, Literal

SqlErrorMeaning = Literal[
    "column_missing",
    "conflict",  # a deadlock or a serialization failure: the transaction is over
    "connection_lost",
    "database_missing",
    "disk_full",
    "duplicate_key",
    "file_read_only",
    "key_too_long",
    "lock_timeout",
    "login_refused",  # of the user, the password, or the host that it comes from
    "no_unique_key",  # ON CONFLICT names a column without a unique index
    "overloaded",
    "permission_denied",
    "query_killed",
    "read_only",
    "statement_timeout",  # or a cancel request
    "table_missing",
    "text_refused",  # it has a character that the database's encoding lacks
    "unknown_prepared_statement",  # or one of that name exists already
    "unsafe_binlog",
]

#: By SQLSTATE. Of class 08 all mean a lost connection: see `postgres_meaning`.
_POSTGRES: Final[dict[str, SqlErrorMeaning]] = {
    "22021": "text_refused",
    "22P05": "text_refused",
    "25006": "read_only",
    "25P03": "connection_lost",  # idle too long in a transaction
    "26000": "unknown_prepared_statement",
    "3F000": "table_missing",  # no such schema
    "40001": "conflict",
    "40P01": "conflict",
    "42501": "permission_denied",
    "42703": "column_missing",
    "42P01": "table_missing",
    "42P05": "unknown_prepared_statement",
    "42P10": "no_unique_key",
    "55P03": "lock_timeout",
    "57014": "statement_timeout",
    "57P01": "connection_lost",  # shut down by an administrator
    "57P02": "connection_lost",  # crashed
    "57P03": "connection_lost",  # starting up
    "57P05": "connection_lost",  # idle too long
}


def postgres_meaning(sqlstate: str) -> SqlErrorMeaning | None:
    return "connection_lost" if sqlstate.startswith("08") else _POSTGRES.get(sqlstate)


def _numbers(meaning: SqlErrorMeaning, *numbers: int) -> dict[int, SqlErrorMeaning]:
    return dict.fromkeys(numbers, meaning)


#: By the number of MySQL and MariaDB. Those over 2000 are the client library's; 0 is PyMySQL's for a closed connection.
MYSQL_MEANINGS: Final[dict[int, SqlErrorMeaning]] = {
    **_numbers("column_missing", 1054),
    **_numbers("conflict", 1213, 1020),  # deadlock; the row has changed since it was read
    **_numbers(
        "connection_lost", 0, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 2055, 4031
    ),
    **_numbers("database_missing", 1049),
    **_numbers("duplicate_key", 1062),
    **_numbers("key_too_long", 1406),
    **_numbers("lock_timeout", 1205),
    **_numbers("login_refused", 1044, 1045, 1130, 1227, 1251, 1370, 1698, 3118, 3159, 3955, 4151),
    **_numbers("overloaded", 1040, 1203, 1226, 1021, 1114, 1047, 1969, 3024, 1041, 1135),  # connections, disk, memory
    **_numbers("permission_denied", 1142, 1143),  # on a table, on a column
    **_numbers("query_killed", 1317),
    **_numbers("read_only", 1290, 1792, 1836),
    **_numbers("table_missing", 1146),
    **_numbers("unsafe_binlog", 1665),
}
