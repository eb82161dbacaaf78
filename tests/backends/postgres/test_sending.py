"""How statements are sent to PostgreSQL and their results read, with a stand-in for libpq."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from psycopg import pq

from effectonce.backends.postgres.client import ClientSettings, PostgresClient, Statement
from effectonce.backends.postgres.connection import PostgresConnection
from effectonce.backends.postgres.errors import NotPrepared
from effectonce.contracts import ConnectionLost
from effectonce.core.run_sync import run_sync

WORK = Statement("work")


class Libpq:
    """A connection of libpq. ``unsent``: what `flush` says, one after the other; ``results``: what the server sends."""

    def __init__(self, results: list[Any], unsent: tuple[int, ...] = (), reads: int = 0) -> None:
        self.socket = 7
        self.transaction_status = pq.TransactionStatus.IDLE
        self.log: list[str] = []
        self._results = results
        self._unsent = list(unsent)
        self._reads_left = reads

    def flush(self) -> int:
        return self._unsent.pop(0) if self._unsent else 0

    def consume_input(self) -> None:
        self.log.append("read")
        self._reads_left -= 1

    def is_busy(self) -> bool:
        return self._reads_left > 0

    def get_result(self) -> Any:
        return self._results.pop(0) if self._results else None

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("send_"):
            raise AttributeError(name)
        return lambda *arguments: self.log.append(name)


def result_of(status: pq.ExecStatus = pq.ExecStatus.TUPLES_OK, text: str = "") -> Any:
    fields = {pq.DiagnosticField.SQLSTATE: b"XX000", pq.DiagnosticField.MESSAGE_PRIMARY: text.encode()}
    return SimpleNamespace(
        status=status, error_field=fields.get, error_message=text.encode(), get_error_message=lambda *_: text, text=text
    )


def client_on(libpq: Libpq, *, exclusive: bool = True) -> tuple[PostgresClient, Any]:
    async def wait_until_ready(socket: int, writing: bool, deadline: float) -> None:
        libpq.log.append("wait to write" if writing else "wait to read")

    source: Any = SimpleNamespace(
        exclusive=exclusive, connect_timeout=3.0, waiter=SimpleNamespace(wait_until_ready=wait_until_ready)
    )
    connection = PostgresConnection(libpq)  # type: ignore[arg-type]
    connection.may_prepare = True
    return PostgresClient(source, ClientSettings("pg://h", 5.0, "auto", False), {}), connection


def send(libpq: Libpq) -> Any:
    client, connection = client_on(libpq)
    return run_sync(client._send(connection, lambda: libpq.log.append("send"), 1e9))


def test_a_statement_that_does_not_fit_into_the_socket_is_sent_in_parts_while_the_server_is_read() -> None:
    """A server that waits until it is read would otherwise wait for ever, and so would we."""
    libpq = Libpq([result_of()], unsent=(1, 1, 0))
    send(libpq)
    assert libpq.log == ["send", "wait to write", "read", "wait to write", "read"]


def test_an_answer_is_waited_for_until_it_is_whole() -> None:
    libpq = Libpq([result_of()], reads=2)
    send(libpq)
    assert libpq.log == ["send", "wait to read", "read", "wait to read", "read"]


def test_of_several_results_the_last_one_counts() -> None:
    assert send(Libpq([result_of(text="first"), result_of(text="last")])).text == "last"


def test_of_several_errors_the_first_one_is_raised() -> None:
    failed = [result_of(pq.ExecStatus.FATAL_ERROR, text) for text in ("the cause", "a consequence")]
    with pytest.raises(Exception, match="the cause"):
        send(Libpq([result_of(), *failed, result_of()]))


def test_a_connection_that_ends_without_an_answer_is_lost() -> None:
    with pytest.raises(ConnectionLost, match="without an answer"):
        send(Libpq([]))


# -- prepared statements


class Losing(PostgresClient):
    """Its server does not know the prepared statement any more."""

    async def _send(self, connection: Any, send: Any, deadline: float) -> Any:
        send()
        if connection.pgconn.log[-1] == "send_query_prepared":
            raise NotPrepared("work")
        return "the result"


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_statement_whose_preparation_was_lost_runs_unprepared_from_then_on(in_transaction: bool) -> None:
    """PgBouncer may give another session to each transaction. A transaction that failed cannot run it any more."""
    libpq = Libpq([])
    if in_transaction:
        libpq.transaction_status = pq.TransactionStatus.INERROR
    client, connection = client_on(libpq)
    client.__class__ = Losing
    if in_transaction:
        with pytest.raises(ConnectionLost, match="lost a prepared statement"):
            run_sync(client._run(connection, WORK, (), 1e9, True))
    else:
        assert run_sync(client._run(connection, WORK, (), 1e9, True)) == "the result"
        assert libpq.log[-2:] == ["send_query_prepared", "send_query_params"]
    assert not connection.may_prepare


def test_a_statement_is_prepared_once_for_each_connection() -> None:
    libpq = Libpq([])
    client, connection = client_on(libpq)
    libpq.get_result = iter([result_of(), None] * 3).__next__  # type: ignore[method-assign]
    for _ in range(2):
        run_sync(client._run(connection, WORK, (), 1e9, True))
    assert libpq.log == ["send_prepare", "send_query_prepared", "send_query_prepared"]


def test_a_connection_that_must_not_prepare_sends_the_text() -> None:
    libpq = Libpq([result_of()])
    client, connection = client_on(libpq)
    connection.may_prepare = False
    run_sync(client._run(connection, WORK, (), 1e9, True))
    assert libpq.log == ["send_query_params"]


@pytest.mark.parametrize(("exclusive", "sets"), [(True, True), (False, False)])
def test_a_plan_that_is_forced_ends_with_the_next_statement_and_never_on_a_session_of_others(
    exclusive: bool, sets: bool
) -> None:
    libpq = Libpq([])
    client, connection = client_on(libpq, exclusive=exclusive)
    libpq.get_result = iter([result_of(), None] * 9).__next__  # type: ignore[method-assign]
    queries: list[bytes] = []
    libpq.send_query = queries.append
    generic = Statement("generic work", generic=True)
    for statement in (generic, generic, WORK):
        run_sync(client._run(connection, statement, (), 1e9, True))
    expected = [b"SET plan_cache_mode = force_generic_plan", b"RESET plan_cache_mode"]
    assert queries == (expected if sets else [])
