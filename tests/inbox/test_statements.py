"""What the inbox asks of a database, and what it makes of answers that a real one gives once in a year."""

from __future__ import annotations

import asyncio
import sqlite3
import warnings
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import psycopg
import pytest

import effectonce as eo
from effectonce.core.run_sync import run_sync
from effectonce.inbox.call_run import CallRun
from effectonce.inbox.recording import record, undo
from effectonce.inbox.run_loop import run_async_handler
from effectonce.inbox.table import ExistingRow, InboxKey, inbox_table

DIALECTS = ["sqlite", "postgresql", "mysql"]


class Session:
    """Gives these answers one after the other, then none; an error is raised."""

    def __init__(self, *answers: Any, returning: bool = True) -> None:
        self.answers = list(answers)
        self.has_returning = returning
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    async def rows(self, sql: str, params: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        self.asked.append((" ".join(sql.split()), tuple(params)))
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, BaseException):
            raise answer
        return answer


def key_named(text: str, fingerprints: bytes = b"") -> InboxKey:
    return InboxKey("s", text, text, fingerprints, 1_000_000)


# -- rows that are there for the insert, and gone for the look at them


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_a_row_that_is_purged_before_each_look_is_a_conflict_in_the_end(dialect: Any) -> None:
    """MySQL's insert has locked the row, so that no other transaction deletes it."""
    session = Session()
    inserting = inbox_table(dialect, "inbox").insert(session, key_named("a", b"f" * 17), result=True)  # type: ignore[arg-type]
    with pytest.raises(eo.TransactionConflict, match="run the whole transaction again"):
        run_sync(inserting)
    looks = 1 if dialect == "mysql" else 5  # MySQL's insert locks the row, so that no purge can be that quick
    assert len(session.asked) == 2 * looks, "so many inserts, and a look after each"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_so_is_a_batch_of_them(dialect: Any) -> None:
    session = Session(returning=False)
    inserting = inbox_table(dialect, "inbox").insert_many(session, [key_named("a"), key_named("b")])  # type: ignore[arg-type]
    with pytest.raises(eo.TransactionConflict, match="run the whole transaction again"):
        run_sync(inserting)
    assert len(session.asked) == (2 if dialect == "mysql" else 10)


@pytest.mark.parametrize(("returning", "statements"), [(True, 1), (False, 2)])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_mariadb_answers_in_one_statement_and_mysql_in_two(returning: bool, statements: int, many: bool) -> None:
    table = inbox_table("mysql", "inbox")
    keys = [key_named("a"), key_named("b")] if many else [key_named("a")]
    rows = [(bytes.fromhex(key.id), b"another's", None, None) for key in keys]
    session = Session(*([rows] if returning else [[], rows]), returning=returning)
    if many:
        assert set(run_sync(table.insert_many(session, keys))) == {"a", "b"}  # type: ignore[arg-type]
    else:
        assert run_sync(table.insert(session, keys[0], result=True)) is not None  # type: ignore[arg-type]
    assert len(session.asked) == statements
    assert ("RETURNING" in session.asked[0][0]) is returning


def test_a_duplicate_whose_payload_nobody_compares_is_not_looked_at() -> None:
    table, session = inbox_table("sqlite", "inbox"), Session()
    existing = run_sync(table.insert(session, key_named("a"), result=False))  # type: ignore[arg-type]
    assert existing == ExistingRow(None, None)
    assert len(session.asked) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nothing_to_forget_is_no_statement(dialect: Any) -> None:
    session = Session()
    run_sync(inbox_table(dialect, "inbox").forget_many(session, []))  # type: ignore[arg-type]
    assert session.asked == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_refund_and_an_end_of_counting_are_statements_on_the_attempts(dialect: Any) -> None:
    table, session = inbox_table(dialect, "inbox"), Session()
    run_sync(table.refund_attempt(session, key_named("a")))  # type: ignore[arg-type]
    run_sync(table.forget_attempts(session, key_named("a")))  # type: ignore[arg-type]
    refund, uncount = session.asked
    assert refund[0].startswith("UPDATE")
    assert "unreported - 1" in refund[0]
    assert uncount[0].startswith("DELETE")
    assert refund[1] == uncount[1]
    assert len(refund[1]) >= 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("off", "on", "p"), "fsync=off"),
        (("on", "off", "p"), "synchronous_commit=off"),
        (("on", "on", "u"), "SET LOGGED"),
    ],
)
def test_a_postgresql_that_loses_commits_is_refused(settings: tuple[str, ...], says: str) -> None:
    with pytest.raises(eo.UnsafeStore, match=says):
        run_sync(inbox_table("postgresql", "inbox").check(Session([settings])))  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [("on", "on", "p"), ("on", "local", "t"), ("on", "remote_apply", "p")])
def test_a_postgresql_that_keeps_them_is_not(settings: tuple[str, ...]) -> None:
    run_sync(inbox_table("postgresql", "inbox").check(Session([settings])))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("journal", "synchronous", "safe"),
    [
        ("wal", 3, True),
        ("wal", 2, True),
        ("wal", 1, False),
        ("delete", 1, True),
        ("delete", 0, False),
        ("off", 2, False),
        ("memory", 2, False),
    ],
)
def test_a_sqlite_file_is_as_safe_as_its_pragmas(journal: str, synchronous: int, safe: bool) -> None:
    check = inbox_table("sqlite", "inbox").check(Session([(journal, synchronous, 1)]))  # type: ignore[arg-type]
    if safe:
        run_sync(check)
    else:
        with pytest.raises(eo.UnsafeStore):
            run_sync(check)


@pytest.mark.parametrize(
    ("settings", "says"), [((0, "InnoDB"), "flush_log"), ((2, b"InnoDB"), "flush_log"), ((1, "Aria"), "ENGINE")]
)
def test_a_mysql_that_loses_commits_is_refused(settings: tuple[Any, ...], says: str) -> None:
    with pytest.raises(eo.UnsafeStore, match=says):
        run_sync(inbox_table("mysql", "inbox").check(Session([settings])))  # type: ignore[arg-type]


def test_a_mysql_that_keeps_them_is_not() -> None:
    session = Session([("1", b"INNODB")])
    run_sync(inbox_table("mysql", "shop.inbox").check(session))  # type: ignore[arg-type]
    assert session.asked[0][1] == ("shop", "inbox", "inbox_starts")


# -- on an async connection, an insert that is cancelled


class AsyncSession(Session):
    """A driver's session, with savepoints. Errors may be planned for each step."""

    is_async = True
    dialect = "sqlite"

    def __init__(self, *answers: Any, outlives_cancel: bool, **errors: BaseException) -> None:
        super().__init__(*answers)
        self.outlives_cancel = outlives_cancel
        self.errors = errors
        self.steps: list[str] = []

    def require_transaction(self) -> None:
        self.steps.append("require")

    async def _step(self, name: str) -> None:
        self.steps.append(name)
        if name in self.errors:
            raise self.errors[name]

    async def rows(self, sql: str, params: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        await self._step(sql.split()[0].lower())
        return await super().rows(sql, params)

    async def savepoint(self) -> str:
        await self._step("savepoint")
        return "point"

    async def release(self, savepoint: str) -> None:
        await self._step("release")

    async def roll_back_to(self, savepoint: str) -> None:
        await self._step("roll back")

    async def fail_transaction(self) -> None:
        await self._step("fail")


TABLE = inbox_table("sqlite", "inbox")
INBOX = eo.Inbox(scope="s")


async def test_a_cancelled_insert_makes_the_transaction_fail() -> None:
    """The driver gives the connection up: whether the statement was executed is unknown."""
    session = AsyncSession(outlives_cancel=False, insert=asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await record(TABLE, session, key_named("a"))  # type: ignore[arg-type]
    assert session.steps == ["require", "insert", "fail"]


async def test_another_error_leaves_the_transaction_as_it_is() -> None:
    session = AsyncSession(outlives_cancel=False, insert=eo.InProgress("locked"))
    with pytest.raises(eo.InProgress):
        await record(TABLE, session, key_named("a"))  # type: ignore[arg-type]
    assert session.steps == ["require", "insert"]


async def test_a_cancelled_insert_that_is_executed_all_the_same_is_undone() -> None:
    session = AsyncSession(outlives_cancel=True, insert=asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await record(TABLE, session, key_named("a"))  # type: ignore[arg-type]
    assert session.steps == ["require", "savepoint", "insert", "roll back"]


@pytest.mark.parametrize(("answers", "deleted"), [([[("mark",)]], True), ([[]], False)], ids=["new", "duplicate"])
async def test_a_row_that_is_new_is_deleted_when_the_release_is_cancelled(answers: list[Any], deleted: bool) -> None:
    """A duplicate's row is another transaction's, and stays."""
    session = AsyncSession(*answers, outlives_cancel=True, release=asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await record(TABLE, session, key_named("a"))  # type: ignore[arg-type]
    assert session.steps == ["require", "savepoint", "insert", "release", *(["delete"] if deleted else [])]


async def test_an_insert_that_nobody_waits_for_any_more_sends_nothing() -> None:
    """A coroutine that is closed may await nothing."""
    for outlives_cancel in (True, False):
        session = AsyncSession(outlives_cancel=outlives_cancel, insert=GeneratorExit())
        with pytest.raises(GeneratorExit):
            await record(TABLE, session, key_named("a"))  # type: ignore[arg-type]
        assert session.steps[-1] == "insert"
    session = AsyncSession(outlives_cancel=True, insert=GeneratorExit())
    run = CallRun(INBOX, session, key_named("a"), INBOX.codec_for(Any), "a")  # type: ignore[arg-type]
    with pytest.raises(GeneratorExit):
        await run_async_handler(run, lambda conn, message: None, "a")
    assert session.steps[-1] == "insert"


async def test_a_savepoint_that_is_gone_means_that_the_transaction_is() -> None:
    refusal = sqlite3.OperationalError("no such savepoint: point")
    session = AsyncSession(outlives_cancel=True, **{"roll back": refusal})
    with pytest.raises(eo.TransactionConflict, match="no such savepoint"):
        await undo(session, "point", ValueError("the handler's"))  # type: ignore[arg-type]
    for error in (asyncio.CancelledError(), eo.TransactionConflict("deadlock")):
        await undo(session, "point", error)  # type: ignore[arg-type]
    session = AsyncSession(outlives_cancel=True)
    run = CallRun(INBOX, session, key_named("a"), INBOX.codec_for(Any), "a")  # type: ignore[arg-type]
    await run.abort(ValueError("no savepoint was set"))
    assert session.steps == []


# -- connections that do not fit


async def connection() -> sqlite3.Connection:
    return sqlite3.connect(":memory:")


def test_a_sync_handler_with_connections_to_await_is_told_and_nothing_is_left_to_await() -> None:
    handle = INBOX.handler(connect=connection)(lambda conn, message: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(eo.SyncAsyncMismatch, match=r"a plain `def`, and connect= returns async connections"):
            handle("k")

    class Awaitable:
        def __await__(self) -> Any:
            raise AssertionError("a sync handler cannot")

    with pytest.raises(eo.SyncAsyncMismatch, match=r"connect= returns async connections"):
        INBOX.handler(connect=Awaitable)(lambda conn, message: None)("k")


async def test_an_async_handler_with_sync_connections_is_told() -> None:
    @INBOX.handler(connect=lambda: sqlite3.connect(":memory:"))
    async def handle(conn: Any, message: str) -> None: ...

    with pytest.raises(eo.SyncAsyncMismatch, match=r"`async def`, and connect= returns sync connections"):
        await handle("k")


def test_on_a_connection_of_the_wrong_kind_nothing_is_ended(postgres_url: str) -> None:
    """It may be a pool's own, with what other code has begun there."""
    ended: list[str] = []

    class Connection(psycopg.Connection[Any]):
        def rollback(self) -> None:
            ended.append("rolled back")

    @INBOX.handler(connect=lambda: Connection.connect(postgres_url))
    async def handle(conn: Any, message: str) -> None: ...

    with pytest.raises(eo.SyncAsyncMismatch):
        asyncio.run(handle("k"))
    assert ended == []


# -- giving a connection back


class Manager:
    """What a pool gives: a connection while it is entered. ``failure`` is raised when it is left."""

    def __init__(self, path: str, failure: BaseException | None = None) -> None:
        self.path = path
        self.failure = failure
        self.left_with: list[Any] = []

    def __enter__(self) -> sqlite3.Connection:
        self.opened = sqlite3.connect(self.path)
        return self.opened

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.left_with.append((kind, error, traceback is not None))
        self.opened.close()
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def path(tmp_path: Any) -> str:
    with sqlite3.connect(tmp_path / "shop.db") as opened:
        INBOX.migrate(opened)
    opened.close()
    return str(tmp_path / "shop.db")


def test_a_manager_is_left_with_the_handlers_error(path: str) -> None:
    manager = Manager(path)
    mine = ValueError("mine")

    @INBOX.handler(connect=lambda: manager, allow_unsafe=True)
    def handle(conn: Any, message: str) -> int:
        if message == "bad":
            raise mine
        return 7

    assert handle("good") == 7
    assert manager.left_with == [(None, None, False)]
    with pytest.raises(ValueError, match="mine"):
        handle("bad")
    assert manager.left_with[1:] == [(ValueError, mine, True)]


def test_a_manager_that_fails_when_it_is_left_is_logged(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """The transaction has ended: the message is handled, and its delivery may be acked."""
    manager = Manager(path, OSError("the pool is closed"))
    handle: Any = INBOX.handler(connect=lambda: manager, allow_unsafe=True)(lambda conn, message: 7)
    assert handle("k") == 7
    assert "could not return a connection: the pool is closed" in caplog.text
    manager.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        handle("another")


def test_a_manager_that_raises_the_handlers_error_again_is_no_failure(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    mine = ValueError("mine")

    def handle(conn: Any, message: str) -> None:
        raise mine

    with pytest.raises(ValueError, match="mine"):
        INBOX.handler(connect=lambda: Manager(path, mine), allow_unsafe=True)(handle)("k")
    assert "could not return" not in caplog.text


# -- how often, and when


@contextmanager
def recorded_pauses(monkeypatch: pytest.MonkeyPatch) -> Any:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    monkeypatch.setattr("random.uniform", lambda least, most: most)
    yield pauses


def test_a_conflict_is_repeated_five_times_after_growing_pauses(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def handle(conn: Any, message: str) -> None:
        runs.append(message)
        raise eo.TransactionConflict("deadlock")

    with recorded_pauses(monkeypatch) as pauses, pytest.raises(eo.TransactionConflict):
        INBOX.handler(connect=lambda: sqlite3.connect(path), allow_unsafe=True)(handle)("k")
    assert len(runs) == 6
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32]
    slow = INBOX.handler(connect=lambda: sqlite3.connect(path), allow_unsafe=True, backoff="400ms", retries=3)
    with recorded_pauses(monkeypatch) as pauses, pytest.raises(eo.TransactionConflict):
        slow(handle)("k")
    assert pauses == [0.4, 0.8, 1.0]


def test_the_database_is_checked_before_the_first_message_only(path: str) -> None:
    def unsafe() -> sqlite3.Connection:
        opened = sqlite3.connect(path)
        opened.execute("PRAGMA synchronous = OFF")
        return opened

    with pytest.raises(eo.UnsafeStore):
        INBOX.handler(connect=unsafe)(lambda conn, message: None)("k")
    assert INBOX.handler(connect=unsafe, allow_unsafe=True)(lambda conn, message: None)("k") is None
    connections = iter([sqlite3.connect(path), unsafe()])
    handle: Any = INBOX.handler(connect=lambda: next(connections))(lambda conn, message: 7)
    assert (handle("a"), handle("b")) == (7, 7)


def test_a_result_of_a_type_that_cannot_be_hashed_is_stored(path: str) -> None:
    @INBOX.handler(connect=lambda: sqlite3.connect(path), returns=Annotated[int, ["not hashable"]], allow_unsafe=True)
    def handle(conn: Any, message: str) -> int:
        return 7

    assert (handle("k"), handle.call("k").value, handle.call("k").replayed) == (7, 7, True)


# -- the business table


class BusinessSession(AsyncSession):
    async def named_rows(self, sql: str, params: Sequence[Any] = ()) -> tuple[Sequence[str], Sequence[Any]]:
        return ["idempotency_key"], await self.rows(sql, params)


async def test_a_business_row_that_is_deleted_before_each_look_is_a_conflict(path: str) -> None:
    table: Any = INBOX.on_table("payments", column="idempotency_key")
    session = BusinessSession(outlives_cancel=False)
    with pytest.raises(eo.TransactionConflict, match="run the whole transaction again"):
        await table._insert(session, "INSERT", ["k"])
    assert session.steps == ["insert", "select"] * 5


async def test_the_unique_key_is_looked_for_once(path: str) -> None:
    table: Any = INBOX.on_table("shop.payments", column="idempotency_key")
    session = BusinessSession([("index",)], [("k",)], [("k",)], outlives_cancel=False)
    session.dialect = "mysql"
    for _ in range(2):
        assert (await table._insert(session, "INSERT", ["k"])).was_inserted
    assert [params for _, params in session.asked] == [("shop", "payments", "idempotency_key"), ("k",), ("k",)]
