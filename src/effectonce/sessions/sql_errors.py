"""Translating errors of the caller's driver, by the database's codes: SQLSTATE, MySQL's number, SQLite's code.

A driver's error has a *meaning* (`SqlErrorMeaning`), and each meaning has an error of ours with its remedy. The errors
of SQLAlchemy and Django are unwrapped to the driver's own first. No driver is imported here: errors are recognised by
the names of their classes and modules.
"""

from __future__ import annotations

from typing import Any, Final

from effectonce.contracts import ConnectionLost, Dialect
from effectonce.errors import (
    ConfigurationError,
    EffectOnceError,
    InProgress,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    TransactionConflict,
    show,
)
from effectonce.values.sql_error_codes import MYSQL_MEANINGS, SqlErrorMeaning, postgres_meaning

_DRIVER_PACKAGES: Final = frozenset(
    ("sqlite3", "psycopg", "psycopg2", "psycopg_pool", "asyncpg", "pymysql", "aiomysql", "MySQLdb", "sqlalchemy")
)
_DRIVER_DIALECTS: Final[dict[str, Dialect]] = {
    "sqlite3": "sqlite",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "asyncpg": "postgresql",
    "pymysql": "mysql",
    "aiomysql": "mysql",
    "MySQLdb": "mysql",
}
_MYSQL_CANNOT_CONNECT: Final = (2002, 2003, 2005)
_MAX_SHOWN: Final = 200  # characters of a database's message in ours


def translate(dialect: Dialect, error: Exception, *, lost: bool = False) -> Exception | None:
    """Return our error for ``error``; None where it comes from no driver, or none of ours fits.

    ``lost``: the driver knows that its connection is gone, which explains an error that has no code.
    """
    if isinstance(error, EffectOnceError):
        return error
    if not _is_driver_error(error):
        return None
    driver_error = _unwrap(error)
    if getattr(error, "connection_invalidated", False):  # set by SQLAlchemy, where its connection is gone
        return lost_connection_error(driver_error)
    meaning = _MEANINGS[dialect](driver_error)
    if meaning == "connection_lost":
        return lost_connection_error(driver_error)
    if meaning in _EXPLANATIONS:
        kind, text = _EXPLANATIONS[meaning]
        return kind(text.format(message=_message_of(driver_error)))
    if not _sqlstate(driver_error) and _is_connection_error(driver_error) and (lost or _could_not_open(driver_error)):
        return lost_connection_error(driver_error)
    return None


def _is_connection_error(error: Exception) -> bool:
    """Whether the error may be about the connection: drivers use these two classes for that, among other things."""
    return type(error).__name__ in ("OperationalError", "InterfaceError")


def _could_not_open(error: Any) -> bool:
    """Whether a connection could not be opened. SQLAlchemy and Django open one when they first need it.

    psycopg's error then carries the half-open connection; psycopg2 has no other errors without a code.
    """
    return getattr(error, "pgconn", None) is not None or type(error).__module__.partition(".")[0] == "psycopg2"


def connect_error(error: BaseException) -> ConnectionLost | None:
    """The `ConnectionLost` for an ``error`` of opening a connection; None where it comes from no driver or socket."""
    if isinstance(error, OSError) or (isinstance(error, Exception) and _is_driver_error(error)):
        return ConnectionLost(f"no connection could be opened: {_message_of(_unwrap(error))}")
    return None


def outage_error(error: BaseException) -> StoreUnavailable | TransactionConflict | None:
    """The error of ours for an ``error`` by which the database was away, or ended the transaction in favour of another;
    None where the error is about something else. For code that has no session: any driver, also before a connection."""
    if isinstance(error, ConnectionError):  # asyncpg raises the socket's own
        return lost_connection_error(error)
    if not isinstance(error, Exception) or not _is_driver_error(error):
        return None
    driver_error = _unwrap(error)
    driver = type(driver_error).__module__.partition(".")[0]
    if driver == "psycopg_pool":  # it could not give a connection
        return lost_connection_error(driver_error)
    dialect = _DRIVER_DIALECTS.get(driver)
    if dialect is None:
        return None
    if dialect == "mysql" and driver_error.args and driver_error.args[0] in _MYSQL_CANNOT_CONNECT:
        return lost_connection_error(driver_error)
    # psycopg has no other operational errors without a code, and asyncpg none that say "closed".
    lost = dialect == "postgresql" and (type(driver_error).__name__ == "OperationalError" or "closed" in str(error))
    translated = translate(dialect, error, lost=lost)
    return translated if isinstance(translated, StoreUnavailable | TransactionConflict) else None


def lost_connection_error(error: BaseException) -> ConnectionLost:
    return ConnectionLost(f"the connection broke: {_message_of(error) or type(error).__name__}")


def is_duplicate_key(error: Exception) -> bool:
    """Whether MySQL has refused a row because another one has its unique key."""
    return _mysql_meaning(_unwrap(error)) == "duplicate_key"


def lacks_unique_key(error: Exception) -> bool:
    """Whether PostgreSQL or SQLite has refused an ON CONFLICT, since its column has no unique key of its own."""
    driver_error = _unwrap(error)
    refused_by_postgres = _postgres_meaning(driver_error) == "no_unique_key"
    return refused_by_postgres or "ON CONFLICT clause does not match" in str(driver_error)


def _is_driver_error(error: Exception) -> bool:
    for kind in type(error).__mro__:
        module = kind.__module__
        if module.partition(".")[0] in _DRIVER_PACKAGES or module == "django.db.utils":
            return True
    return False


def _unwrap(error: Any) -> Any:
    """The driver's own error: SQLAlchemy has it in ``orig``, Django and SQLAlchemy's async adapters as the cause."""
    inner = getattr(error, "orig", None) or error
    cause = inner.__cause__
    module = type(inner).__module__
    is_wrapper = module.startswith("sqlalchemy.") or module == "django.db.utils"
    return cause if is_wrapper and cause is not None else inner


def _message_of(error: Any) -> str:
    """The first line of the database's own message."""
    args = error.args
    text = str(args[1] if len(args) > 1 and isinstance(args[0], int) else error)
    return show(text.strip().partition("\n")[0], _MAX_SHOWN)


# -- our errors, with their remedies

_LOCK_TIMEOUT: Final = (
    InProgress,
    "another transaction holds what this one needs, perhaps one that is handling the same key: {message}; roll back, "
    "do not ack this delivery, and run it again later",
)
#: By the meaning of a driver's error: our error and its text. ``{message}`` is the database's own message.
_EXPLANATIONS: Final[dict[SqlErrorMeaning | None, tuple[type[Exception], str]]] = {
    "column_missing": (SchemaMismatch, "{message}; the tables are of another version: effectonce migrate --store URL"),
    "conflict": (
        TransactionConflict,
        "the database ended this transaction in favour of another: {message}; roll back, and run the whole of it again",
    ),
    "disk_full": (StoreUnavailable, "{message}: make room on its disk"),
    "file_read_only": (ConfigurationError, "{message}; give this user write access to the file and to its folder"),
    "lock_timeout": _LOCK_TIMEOUT,
    "permission_denied": (
        ConfigurationError,
        "{message}; grant SELECT, INSERT, UPDATE and DELETE on effectonce's tables to this user",
    ),
    "read_only": (
        StoreUnavailable,
        "{message}: this connection may only read, and records are written on the primary: connect to that one",
    ),
    "statement_timeout": _LOCK_TIMEOUT,  # our statements take long only by waiting for a lock
    "table_missing": (
        SchemaMissing,
        "{message}; create the tables: effectonce migrate --store URL, or run what schema_sql(dialect) gives in your "
        "own migrations",
    ),
}


# -- the meaning of a driver's error, in each dialect


def _sqlstate(error: Any) -> str:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


def _postgres_meaning(error: Any) -> SqlErrorMeaning | None:
    return postgres_meaning(_sqlstate(error))


def _mysql_meaning(error: Any) -> SqlErrorMeaning | None:
    number = error.args[0] if error.args else None
    if not isinstance(number, int):
        return "connection_lost" if _is_connection_error(error) else None
    return MYSQL_MEANINGS.get(number)


# SQLite's codes, as `sqlite3` has them, which is not imported here: `import effectonce` must not load it.
_SQLITE_CODES: Final[dict[int, SqlErrorMeaning]] = {
    5: "lock_timeout",  # SQLITE_BUSY
    6: "lock_timeout",  # SQLITE_LOCKED
    8: "file_read_only",
    10: "connection_lost",  # SQLITE_IOERR
    13: "disk_full",
}
_SQLITE_BUSY_SNAPSHOT: Final = 517  # another transaction has written since this one first read
_SQLITE_PRIMARY_CODE_MASK: Final = 0xFF  # an extended code has the primary one in its lowest byte
_SQLITE_MESSAGES: Final[dict[str, SqlErrorMeaning]] = {
    "no such table": "table_missing",
    "no such column": "column_missing",
    "has no column": "column_missing",
    "closed database": "connection_lost",
}


def _sqlite_meaning(error: Any) -> SqlErrorMeaning | None:
    extended_code: int = getattr(error, "sqlite_errorcode", 0)
    if extended_code == _SQLITE_BUSY_SNAPSHOT:
        return "conflict"
    by_message = (meaning for part, meaning in _SQLITE_MESSAGES.items() if part in str(error))
    return _SQLITE_CODES.get(extended_code & _SQLITE_PRIMARY_CODE_MASK) or next(by_message, None)


_MEANINGS: Final = {"postgresql": _postgres_meaning, "mysql": _mysql_meaning, "sqlite": _sqlite_meaning}
