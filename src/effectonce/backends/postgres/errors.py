"""PostgreSQL's refusals as our errors, by their SQLSTATE."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from effectonce.contracts import ConnectionLost, Contention
from effectonce.errors import (
    ConfigurationError,
    InvalidKey,
    KeyTooLong,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    show,
)
from effectonce.values.sql_error_codes import SqlErrorMeaning, postgres_meaning

from .connection import pq, psycopg

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_PROGRAM_LIMIT_EXCEEDED: Final = "54000"
#: feature_not_supported, for a prepared statement whose tables were migrated since; a new connection prepares it again.
_TABLES_MIGRATED: Final = "0A000"


class NotPrepared(Exception):
    """The server does not know, or already knows, a prepared statement's name."""


def translate(result: PGresult, address: str) -> Exception:
    """The error for a ``result`` that failed. ``address``: the server's, without a password."""
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    error = _explain(result, state, show(message.decode("utf-8", "replace").strip(), 200), address)
    error.__cause__ = psycopg.errors.error_from_result(result)
    return error


def replica_refused(address: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{address} answers as a read-only replica, and claims need the primary; name the primary, or all hosts with "
        "?target_session_attrs=read-write"
    )


def _explain(result: PGresult, state: str, message: str, address: str) -> Exception:
    meaning = postgres_meaning(state)
    if state == _PROGRAM_LIMIT_EXCEEDED and _is_about_an_index(result):
        return KeyTooLong(f"the scope and the key are too long together for an index of PostgreSQL: {message}")
    if state in ("", _TABLES_MIGRATED) or meaning == "connection_lost":
        return ConnectionLost(f"the connection to {address} broke: {message}")
    if meaning in _EXPLANATIONS:
        return _EXPLANATIONS[meaning](message, address)
    return StoreUnavailable(f"{address} refused: {message} (SQLSTATE {state})")


def _is_about_an_index(result: PGresult) -> bool:
    """Whether the limit that was exceeded is an index entry's. A full queue of notifications and a server out of
    transaction ids report the same SQLSTATE."""
    file = result.error_field(pq.DiagnosticField.SOURCE_FILE) or b""
    return bool(result.error_field(pq.DiagnosticField.TABLE_NAME)) or file.endswith(b"indextuple.c")


#: By the meaning of an SQLSTATE; ``m`` is the server's message.
_EXPLANATIONS: Final[dict[SqlErrorMeaning | None, Callable[[str, str], Exception]]] = {
    "column_missing": lambda m, address: SchemaMismatch(
        f"the tables in {address} are outdated ({m}); run `effectonce migrate {address}`"
    ),
    "conflict": lambda m, address: Contention(m),
    "lock_timeout": lambda m, address: Contention(m),
    "permission_denied": lambda m, address: ConfigurationError(
        f"{address}: {m}; grant SELECT, INSERT, UPDATE and DELETE on the tables"
    ),
    "read_only": lambda m, address: replica_refused(address),
    "statement_timeout": lambda m, address: StoreUnavailable(
        f"{address} did not finish in time: {m}; raise the option timeout, or find out what it waits for"
    ),
    "table_missing": lambda m, address: SchemaMissing(
        f"the tables are missing in {address} ({m}); run `effectonce migrate {address}`"
    ),
    "text_refused": lambda m, address: InvalidKey(f"PostgreSQL cannot keep this scope or key: {m}"),
    "unknown_prepared_statement": lambda m, address: NotPrepared(m),
}
