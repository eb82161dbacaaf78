"""Errors of a caller's driver as ours, by the database's codes: SQLSTATE, MySQL's number, SQLite's extended code.

No driver is imported for it. The errors of SQLAlchemy and Django are unwrapped to the driver's own.
"""

from __future__ import annotations

from collections.abc import Callable
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
from effectonce.values.sql_error_codes import (
    MYSQL_COLUMN_DENIED,
    MYSQL_COLUMN_MISSING,
    MYSQL_CONFLICT,
    MYSQL_CONNECTION_LOST,
    MYSQL_DUPLICATE_KEY,
    MYSQL_LOCK_TIMEOUT,
    MYSQL_READ_ONLY,
    MYSQL_TABLE_DENIED,
    MYSQL_TABLE_MISSING,
    POSTGRES_COLUMN_MISSING,
    POSTGRES_CONFLICT,
    POSTGRES_LOCK_TIMEOUT,
    POSTGRES_NO_UNIQUE_KEY,
    POSTGRES_PERMISSION_DENIED,
    POSTGRES_QUERY_CANCELED,
    POSTGRES_READ_ONLY,
    POSTGRES_TABLE_MISSING,
    is_postgres_connection_lost,
)

_DRIVER_PACKAGES: Final = frozenset(
    ("sqlite3", "psycopg", "psycopg2", "psycopg_pool", "asyncpg", "pymysql", "aiomysql", "MySQLdb", "sqlalchemy")
)
_MAX_SHOWN: Final = 200  # characters of a database's message in ours


def translate(dialect: Dialect, error: Exception, *, lost: bool = False) -> Exception | None:
    """Return ``error`` as one of ours; None where none of ours fits, or where it is not the driver's.

    ``lost``: the driver says that its connection is gone, which explains an error that has no code.
    """
    if isinstance(error, EffectOnceError):
        return error
    if not _is_driver_error(error):
        return None
    driver_error = _unwrap(error)
    if getattr(error, "connection_invalidated", False):  # SQLAlchemy has found out
        return connection_lost(driver_error)
    translated = _TRANSLATORS[dialect](driver_error, show(_first_line(driver_error), _MAX_SHOWN))
    if translated is not None or _sqlstate(driver_error):
        return translated
    if type(driver_error).__name__ in ("OperationalError", "InterfaceError") and (lost or _not_opened(driver_error)):
        return connection_lost(driver_error)
    return None


def _not_opened(error: Any) -> bool:
    """Whether a connection could not be opened, which SQLAlchemy and Django do when they need one. psycopg's error then
    carries the half-open connection; psycopg2 has no other errors without a code."""
    return getattr(error, "pgconn", None) is not None or type(error).__module__.partition(".")[0] == "psycopg2"


def connect_error(error: BaseException) -> ConnectionLost | None:
    """The `ConnectionLost` for an ``error`` of opening a connection; None where it comes from no driver or socket."""
    if isinstance(error, OSError) or (isinstance(error, Exception) and _is_driver_error(error)):
        return ConnectionLost(f"no connection could be opened: {show(_first_line(_unwrap(error)), _MAX_SHOWN)}")
    return None


def connection_lost(error: BaseException) -> ConnectionLost:
    return ConnectionLost(f"the connection broke: {show(_first_line(error), _MAX_SHOWN) or type(error).__name__}")


def is_duplicate_key(error: Exception) -> bool:
    """Whether MySQL has refused a row for its unique key."""
    return _mysql_number(_unwrap(error)) == MYSQL_DUPLICATE_KEY


def is_without_unique_key(error: Exception) -> bool:
    """Whether an ON CONFLICT names a column that has no unique key of its own."""
    driver_error = _unwrap(error)
    return _sqlstate(driver_error) == POSTGRES_NO_UNIQUE_KEY or "ON CONFLICT clause does not match" in str(driver_error)


def _sqlstate(error: Any) -> str:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


def _mysql_number(error: Any) -> int | None:
    return error.args[0] if error.args and isinstance(error.args[0], int) else None


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


def _first_line(error: Any) -> str:
    args = error.args
    text = str(args[1] if len(args) > 1 and isinstance(args[0], int) else error)
    return text.strip().partition("\n")[0]


# -- our errors, with their remedies; ``message`` is the database's own


def _conflict(message: str) -> TransactionConflict:
    return TransactionConflict(
        f"the database ended this transaction in favour of another: {message}; roll back, and run the whole of it again"
    )


def _lock_timeout(message: str) -> InProgress:
    return InProgress(
        f"another transaction holds what this one needs, perhaps one that is handling the same key: {message}; roll "
        "back, do not ack this delivery, and run it again later"
    )


def _table_missing(message: str) -> SchemaMissing:
    return SchemaMissing(
        f"{message}; create the tables: effectonce migrate URL, or run what schema_sql(dialect) gives in your own "
        "migrations"
    )


def _column_missing(message: str) -> SchemaMismatch:
    return SchemaMismatch(f"{message}; the tables are of another version: effectonce migrate URL")


def _read_only(message: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{message}: this connection may only read, and records are written on the primary: connect to that one"
    )


def _permission_denied(message: str) -> ConfigurationError:
    return ConfigurationError(f"{message}; grant SELECT, INSERT, UPDATE and DELETE on effectonce's tables to this user")


# -- the codes of each dialect

_Explain = Callable[[str], Exception]

_POSTGRES_ERRORS: Final[dict[str, _Explain]] = {
    **dict.fromkeys(POSTGRES_CONFLICT, _conflict),
    POSTGRES_LOCK_TIMEOUT: _lock_timeout,
    POSTGRES_QUERY_CANCELED: _lock_timeout,  # our statements take long only by waiting for a lock
    **dict.fromkeys(POSTGRES_TABLE_MISSING, _table_missing),
    POSTGRES_COLUMN_MISSING: _column_missing,
    POSTGRES_READ_ONLY: _read_only,
    POSTGRES_PERMISSION_DENIED: _permission_denied,
}
_MYSQL_ERRORS: Final[dict[int | None, _Explain]] = {
    **dict.fromkeys(MYSQL_CONFLICT, _conflict),
    MYSQL_LOCK_TIMEOUT: _lock_timeout,
    MYSQL_TABLE_MISSING: _table_missing,
    MYSQL_COLUMN_MISSING: _column_missing,
    **dict.fromkeys(MYSQL_READ_ONLY, _read_only),
    MYSQL_TABLE_DENIED: _permission_denied,
    MYSQL_COLUMN_DENIED: _permission_denied,
}


def _translate_postgres(error: Any, message: str) -> Exception | None:
    state = _sqlstate(error)
    if is_postgres_connection_lost(state):
        return connection_lost(error)
    explain = _POSTGRES_ERRORS.get(state)
    return None if explain is None else explain(message)


def _translate_mysql(error: Any, message: str) -> Exception | None:
    number = _mysql_number(error)
    without_number = number is None and type(error).__name__ in ("InterfaceError", "OperationalError")
    if without_number or number in MYSQL_CONNECTION_LOST:
        return connection_lost(error)
    explain = _MYSQL_ERRORS.get(number)
    return None if explain is None else explain(f"{message} ({number})")


# SQLite's codes, as `sqlite3` has them, which is not imported here: `import effectonce` must not load it.
_SQLITE_BUSY: Final = 5
_SQLITE_LOCKED: Final = 6
_SQLITE_READONLY: Final = 8
_SQLITE_IOERR: Final = 10
_SQLITE_FULL: Final = 13
_SQLITE_BUSY_SNAPSHOT: Final = 517
_SQLITE_PRIMARY_CODE_MASK: Final = 0xFF  # an extended code has the primary one in its lowest byte


def _translate_sqlite(error: Any, message: str) -> Exception | None:
    extended_code: int = getattr(error, "sqlite_errorcode", 0)
    code = extended_code & _SQLITE_PRIMARY_CODE_MASK
    if extended_code == _SQLITE_BUSY_SNAPSHOT:
        return _conflict(f"{message}, another transaction has written since this one first read")
    if code in (_SQLITE_BUSY, _SQLITE_LOCKED):
        return _lock_timeout(message)
    if "no such table" in message:
        return _table_missing(message)
    if "no such column" in message or "has no column" in message:
        return _column_missing(message)
    if code == _SQLITE_FULL:
        return StoreUnavailable(f"{message}: make room on its disk")
    if code == _SQLITE_READONLY:
        return ConfigurationError(f"{message}; give this user write access to the file and to its folder")
    if code == _SQLITE_IOERR or "closed database" in message:
        return connection_lost(error)
    return None


_TRANSLATORS: Final = {"postgresql": _translate_postgres, "mysql": _translate_mysql, "sqlite": _translate_sqlite}
