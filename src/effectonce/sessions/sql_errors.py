"""What a database's refusal means, read off its codes: SQLSTATE, MySQL's number, SQLite's extended code.

No driver is imported for it. SQLAlchemy's and Django's errors are looked through to the driver's own.
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

_DRIVERS = frozenset(
    ("sqlite3", "psycopg", "psycopg2", "psycopg_pool", "asyncpg", "pymysql", "aiomysql", "MySQLdb", "sqlalchemy")
)
_GRANTS = "grant SELECT, INSERT, UPDATE and DELETE on effectonce's tables to this user"
_MIGRATE = "create the tables: effectonce migrate URL, or run what schema_sql(dialect) gives in your own migrations"
_PRIMARY = "this connection may only read, and records are written on the primary: connect to that one"


def translate(dialect: Dialect, error: Exception, *, lost: bool = False) -> Exception | None:
    """``error`` in our words; None where it has none, or where it is not the driver's. ``lost``: the driver says that
    its connection is gone, which tells what an error without a code means."""
    if isinstance(error, EffectOnceError):
        return error
    if not _of_a_driver(error):
        return None
    inner = _innermost(error)
    said = show(_first_line(inner), 200)
    if getattr(error, "connection_invalidated", False):  # SQLAlchemy has seen to that
        return broken(inner)
    known = _DIALECTS[dialect](inner, said)
    if known is None and not _state(inner) and type(inner).__name__ in ("OperationalError", "InterfaceError"):
        return broken(inner) if lost or _not_opened(inner) else None
    return known


def _not_opened(error: Any) -> bool:
    """Whether a connection could not be opened: SQLAlchemy and Django do that when they need one. psycopg's error has
    what there was of it; psycopg2 has no other errors without a code."""
    return getattr(error, "pgconn", None) is not None or type(error).__module__.partition(".")[0] == "psycopg2"


def cannot_connect(error: BaseException) -> ConnectionLost | None:
    """What an error of opening a connection means; None: it is no driver's, and no socket's."""
    if isinstance(error, OSError) or (isinstance(error, Exception) and _of_a_driver(error)):
        return ConnectionLost(f"no connection could be opened: {show(_first_line(_innermost(error)), 200)}")
    return None


def broken(error: BaseException) -> ConnectionLost:
    return ConnectionLost(f"the connection broke: {show(_first_line(error), 200) or type(error).__name__}")


def is_duplicate(error: Exception) -> bool:
    """Whether MySQL has refused a row for its unique key."""
    return _number(_innermost(error)) == 1062


def is_without_unique_key(error: Exception) -> bool:
    """Whether an ON CONFLICT names a column that has no unique key of its own."""
    inner = _innermost(error)
    return _state(inner) == "42P10" or "ON CONFLICT clause does not match" in str(inner)


def _state(error: Any) -> str:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


def _number(error: Any) -> int | None:
    return error.args[0] if error.args and isinstance(error.args[0], int) else None


def _of_a_driver(error: Exception) -> bool:
    for kind in type(error).__mro__:
        module = kind.__module__
        if module.partition(".")[0] in _DRIVERS or module == "django.db.utils":
            return True
    return False


def _innermost(error: Any) -> Any:
    """The driver's own error: SQLAlchemy has it in ``orig``, Django and SQLAlchemy's async adapters as the cause."""
    inner = getattr(error, "orig", None) or error
    cause = inner.__cause__
    module = type(inner).__module__
    wrapped = module.startswith("sqlalchemy.") or module == "django.db.utils"
    return cause if wrapped and cause is not None else inner


def _first_line(error: Any) -> str:
    args = error.args
    text = str(args[1] if len(args) > 1 and isinstance(args[0], int) else error)
    return text.strip().partition("\n")[0]


def _conflict(said: str) -> TransactionConflict:
    return TransactionConflict(
        f"the database ended this transaction in favour of another: {said}; roll back, and run the whole of it again"
    )


def _held(said: str) -> InProgress:
    return InProgress(
        f"another transaction holds what this one needs, perhaps one that is handling the same key: {said}; roll back, "
        "do not ack this delivery, and run it again later"
    )


def _postgresql(error: Any, said: str) -> Exception | None:
    state = _state(error)
    if state in ("40001", "40P01"):
        return _conflict(said)
    if state in ("55P03", "57014"):  # lock_timeout; statement_timeout of a statement that does nothing but wait
        return _held(said)
    if state in ("42P01", "3F000"):
        return SchemaMissing(f"{said}; {_MIGRATE}")
    if state == "42703":
        return SchemaMismatch(f"{said}; the tables are of another version: effectonce migrate URL")
    if state == "25006":
        return StoreUnavailable(f"{said}: {_PRIMARY}")
    if state == "42501":
        return ConfigurationError(f"{said}; {_GRANTS}")
    if state[:2] == "08" or state in ("57P01", "57P02", "57P03", "57P05", "25P03"):
        return broken(error)
    return None


_LOST = frozenset((0, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 2055, 4031))


def _mysql(error: Any, said: str) -> Exception | None:
    number = _number(error)
    if number in (1213, 1020):  # deadlock; the record has changed since it was read
        return _conflict(f"{said} ({number})")
    if number == 1205:
        return _held(f"{said} ({number})")
    if number == 1146:
        return SchemaMissing(f"{said}; {_MIGRATE}")
    if number == 1054:
        return SchemaMismatch(f"{said}; the tables are of another version: effectonce migrate URL")
    if number in (1290, 1792, 1836):
        return StoreUnavailable(f"{said}: {_PRIMARY}")
    if number in (1142, 1143):
        return ConfigurationError(f"{said}; {_GRANTS}")
    if number in _LOST or (number is None and type(error).__name__ in ("InterfaceError", "OperationalError")):
        return broken(error)
    return None


# Of the module `sqlite3`, which is not imported here: who has an error of it has imported it.
_BUSY: Final = 5
_LOCKED: Final = 6
_READONLY: Final = 8
_IOERR: Final = 10
_FULL: Final = 13
_BUSY_SNAPSHOT: Final = 517


def _sqlite(error: Any, said: str) -> Exception | None:
    extended: int = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if extended == _BUSY_SNAPSHOT:
        return _conflict(f"{said}, another transaction has written since this one first read")
    if code in (_BUSY, _LOCKED):
        return _held(said)
    if "no such table" in said:
        return SchemaMissing(f"{said}; {_MIGRATE}")
    if "no such column" in said or "has no column" in said:
        return SchemaMismatch(f"{said}; the tables are of another version: effectonce migrate URL")
    if code == _FULL:
        return StoreUnavailable(f"{said}: make room on its disk")
    if code == _READONLY:
        return ConfigurationError(f"{said}; give this user write access to the file and to its folder")
    if code == _IOERR or "closed database" in said:
        return broken(error)
    return None


_DIALECTS = {"postgresql": _postgresql, "mysql": _mysql, "sqlite": _sqlite}
