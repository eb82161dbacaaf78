"""Errors of SQLite as ours, cursors of lists, and when a connection is opened again."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from effectonce.backends.common.list_cursor import make_cursor
from effectonce.backends.sqlite.connection import SQLiteConnection
from effectonce.backends.sqlite.file import SQLiteFile, is_busy, parse_prefix
from effectonce.backends.sqlite.record_reader import _position_of
from effectonce.contracts import ConnectionLost, Contention
from effectonce.errors import ConfigurationError, CorruptRecord, InvalidOption, SchemaMissing, StoreUnavailable
from effectonce.record import Query
from effectonce.values.urls import Address


@pytest.fixture
def file(tmp_path: Path) -> SQLiteFile:
    return SQLiteFile(Address(f"sqlite:///{tmp_path}/eo.db?timeout=30s"))


def error_with(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("words")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (sqlite3.SQLITE_CANTOPEN, ConfigurationError, "may be written"),
        (sqlite3.SQLITE_NOTADB, ConfigurationError, "not a SQLite database"),
        (sqlite3.SQLITE_READONLY, ConfigurationError, "write access"),
        (sqlite3.SQLITE_READONLY_DBMOVED, ConnectionLost, "moved or deleted"),
        (sqlite3.SQLITE_PERM, ConfigurationError, "write access"),
        (sqlite3.SQLITE_AUTH, ConfigurationError, "write access"),
        (sqlite3.SQLITE_FULL, StoreUnavailable, "make room"),
        (sqlite3.SQLITE_CORRUPT, StoreUnavailable, "restore a backup"),
        (sqlite3.SQLITE_CORRUPT_INDEX, StoreUnavailable, "restore a backup"),
        (sqlite3.SQLITE_IOERR, ConnectionLost, "check its disk"),
        (sqlite3.SQLITE_IOERR_FSYNC, ConnectionLost, "check its disk"),
        (sqlite3.SQLITE_NOMEM, StoreUnavailable, "words"),
    ],
)
def test_an_error_of_sqlite_says_what_to_do(file: SQLiteFile, code: int, kind: type[Exception], said: str) -> None:
    ours = file.translate(error_with(code))
    assert type(ours) is kind
    assert said in str(ours)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("no such table: effectonce_meta", SchemaMissing, "effectonce migrate --store sqlite:///"),
        ("no such column: note", SchemaMissing, "effectonce migrate --store sqlite:///"),
        ("Could not decode to UTF-8 column 'key'", CorruptRecord, "written by another program"),
        ("something else", StoreUnavailable, "something else"),
    ],
)
def test_an_error_without_a_code_is_known_by_its_text(
    file: SQLiteFile, text: str, kind: type[Exception], said: str
) -> None:
    ours = file.translate(sqlite3.OperationalError(text))
    assert type(ours) is kind
    assert said in str(ours)


def test_a_folder_that_is_not_there_is_named() -> None:
    file = SQLiteFile(Address("sqlite:////nowhere/eo.db"))
    assert "exists (it does not)" in str(file.translate(error_with(sqlite3.SQLITE_CANTOPEN)))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY, True),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, True),
        (sqlite3.SQLITE_LOCKED, True),
        (sqlite3.SQLITE_FULL, False),
    ],
)
def test_a_lock_of_another_connection_is_told_apart(code: int, expected: bool) -> None:
    assert is_busy(error_with(code)) is expected
    assert not is_busy(sqlite3.OperationalError("no code"))


def test_a_path_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(InvalidOption, match="zero byte"):
        SQLiteFile(Address("sqlite:///shop%00.db"))


@pytest.mark.parametrize("prefix", ["sqlite", "SQLite", "sqlite_x"])
def test_names_of_sqlites_own_are_refused(prefix: str) -> None:
    with pytest.raises(InvalidOption, match="reserves"):
        parse_prefix(prefix)
    assert parse_prefix("sqlitex") == "sqlitex"


def test_a_file_lacks_a_table_until_it_is_made_and_looking_makes_nothing(file: SQLiteFile) -> None:
    assert file.lacks("t")
    assert not Path(file.path).exists()
    opened = file.open()
    opened.execute("CREATE TABLE other (a)")
    assert file.lacks("t")
    opened.execute("CREATE TABLE t (a)")
    assert not file.lacks("t")
    opened.close()


def test_a_file_that_is_no_database_lacks_nothing_so_that_opening_it_says_why(file: SQLiteFile) -> None:
    Path(file.path).write_bytes(b"not a database" * 100)
    assert not file.lacks("t")


# -- cursors


@pytest.mark.parametrize(
    ("query", "position"),
    [
        (Query(state="failed", limit=1, cursor=make_cursor(7, "a", "b")), (7, "a", "b")),
        (Query(state="failed", limit=1, cursor=make_cursor(7, "", "b")), (7, "", "b")),
        (Query(limit=1, cursor=make_cursor(0, "a", "\n")), (0, "a", "\n")),
        (Query(limit=1, scope="a", cursor=make_cursor(0, "a", "b")), (0, "a", "b")),
        (Query(limit=1), None),
    ],
)
def test_a_cursor_names_the_last_record_of_the_page(query: Query, position: Any) -> None:
    assert _position_of(query) == position


@pytest.mark.parametrize(
    "query",
    [
        Query(state="failed", limit=1, cursor=make_cursor(0, "a", "b")),
        Query(limit=1, cursor=make_cursor(7, "a", "b")),
        Query(limit=1, scope="other", cursor=make_cursor(0, "a", "b")),
        Query(limit=1, cursor="odd"),
    ],
)
def test_a_cursor_of_another_list_is_refused(query: Query) -> None:
    with pytest.raises(InvalidOption, match="start again"):
        _position_of(query)


# -- connections


class Work:
    """Fails with ``errors``, one after another, and then returns 7."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.connections: list[sqlite3.Connection] = []

    def __call__(self, cursor: sqlite3.Cursor) -> int:
        self.connections.append(cursor.connection)
        if self.errors:
            raise self.errors.pop(0)
        return 7


def connection_to(file: SQLiteFile) -> SQLiteConnection:
    return SQLiteConnection(file, lambda cursor: None)


@pytest.mark.parametrize("method", ["execute", "transaction"])
def test_work_that_meets_a_lock_is_repeated_on_the_same_connection(file: SQLiteFile, method: str) -> None:
    connection, work = connection_to(file), Work(error_with(sqlite3.SQLITE_BUSY), Contention("rival"))
    assert getattr(connection, method)(work) == 7
    assert len(work.connections) == 3
    assert len(set(work.connections)) == 1
    connection.close()


def test_f36_a_lock_that_stays_is_an_unavailable_store(file: SQLiteFile) -> None:
    file.timeout = 0.02
    connection, work = connection_to(file), Work(*[error_with(sqlite3.SQLITE_BUSY)] * 1000)
    with pytest.raises(StoreUnavailable, match=r"locked by another connection for 0\.02 s"):
        connection.execute(work)
    connection.close()


def test_after_any_other_error_the_next_call_opens_a_new_connection(file: SQLiteFile) -> None:
    connection, work = connection_to(file), Work(error_with(sqlite3.SQLITE_FULL))
    with pytest.raises(StoreUnavailable, match="make room"):
        connection.execute(work)
    assert connection.execute(work) == 7
    assert len(set(work.connections)) == 2
    connection.close()
    connection.close()


def test_a_transaction_that_fails_is_undone_and_leaves_the_connection(file: SQLiteFile) -> None:
    connection = connection_to(file)
    connection.execute(lambda cursor: cursor.execute("CREATE TABLE t (a)").fetchall())

    def insert_and_fail(cursor: sqlite3.Cursor) -> None:
        cursor.execute("INSERT INTO t VALUES (1)")
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        connection.transaction(insert_and_fail)
    assert connection.execute(lambda cursor: cursor.execute("SELECT count(*) FROM t").fetchone()) == (0,)
    connection.transaction(lambda cursor: cursor.execute("INSERT INTO t VALUES (1)").fetchall())
    assert connection.execute(lambda cursor: cursor.execute("SELECT count(*) FROM t").fetchone()) == (1,)
    connection.close()


def test_a_connection_that_cannot_be_prepared_is_not_kept(file: SQLiteFile) -> None:
    opened: list[sqlite3.Connection] = []

    def refuse(cursor: sqlite3.Cursor) -> None:
        opened.append(cursor.connection)
        raise ConfigurationError("no")

    connection = SQLiteConnection(file, refuse)
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            connection.execute(lambda cursor: None)
    for each in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            each.execute("SELECT 1")
