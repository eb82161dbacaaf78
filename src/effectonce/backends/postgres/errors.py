"""Translating PostgreSQL's refusals to our errors, by their SQLSTATE."""

from __future__ import annotations

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

from .driver import pq, psycopg

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_PROGRAM_LIMIT_EXCEEDED: Final = "54000"
#: feature_not_supported: a prepared statement whose tables were migrated since. A new connection prepares it again.
_TABLES_MIGRATED: Final = "0A000"


class NotPrepared(Exception):
    """The server does not know the name of a prepared statement, or has another statement of that name."""


def translate(result: PGresult, address: str) -> Exception:
    """Return our error for a ``result`` that failed. ``address`` is the server's, without a password."""
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    error = _explain(result, state, show(message.decode("utf-8", "replace").strip(), 200), address)
    error.__cause__ = psycopg.errors.error_from_result(result)
    return error


def replica_error(address: str) -> StoreUnavailable:
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
    if meaning == "read_only":
        return replica_error(address)
    if meaning in _EXPLANATIONS:
        kind, text = _EXPLANATIONS[meaning]
        return kind(text.format(message=message, address=address))
    return StoreUnavailable(f"{address} refused: {message} (SQLSTATE {state})")


def _is_about_an_index(result: PGresult) -> bool:
    """Whether an index entry has exceeded the limit. A full queue of notifications, and a server that has run out of
    transaction ids, report the same SQLSTATE."""
    file = result.error_field(pq.DiagnosticField.SOURCE_FILE) or b""
    return bool(result.error_field(pq.DiagnosticField.TABLE_NAME)) or file.endswith(b"indextuple.c")


#: By the meaning of an SQLSTATE: our error and its text. ``{message}`` is the server's message. `NotPrepared` never
#: leaves `PostgresClient`.
_EXPLANATIONS: Final[dict[SqlErrorMeaning | None, tuple[type[Exception], str]]] = {
    "column_missing": (
        SchemaMismatch,
        "the tables in {address} are outdated ({message}); run `effectonce migrate --store {address}`",
    ),
    "conflict": (Contention, "{message}"),
    "lock_timeout": (Contention, "{message}"),
    "permission_denied": (
        ConfigurationError,
        "{address}: {message}; grant SELECT, INSERT, UPDATE and DELETE on the tables",
    ),
    "statement_timeout": (
        StoreUnavailable,
        "{address} did not finish in time: {message}; raise the option timeout, or find out what it waits for",
    ),
    "table_missing": (
        SchemaMissing,
        "the tables are missing in {address} ({message}); run `effectonce migrate --store {address}`",
    ),
    "text_refused": (InvalidKey, "PostgreSQL cannot keep this scope or key: {message}"),
    "unknown_prepared_statement": (NotPrepared, "{message}"),
}
