"""Options, errors, values on the wire and connections of PostgreSQL, without a server."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import pq
from psycopg.adapt import PyFormat, Transformer

from effectonce.backends.postgres import codec
from effectonce.backends.postgres.codec import read_claim_answer, read_look_answer
from effectonce.backends.postgres.connection import (
    BlockingWaiter,
    BorrowedPool,
    LoopWaiter,
    OwnConnection,
    PooledConnections,
)
from effectonce.backends.postgres.conninfo import first_line, options_of_pool, take_options
from effectonce.backends.postgres.errors import NotPrepared, _explain
from effectonce.contracts import ConnectionLost, Contention
from effectonce.core.run_sync import run_sync
from effectonce.errors import (
    ConfigurationError,
    InvalidKey,
    InvalidOption,
    KeyTooLong,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    SyncAsyncMismatch,
)
from effectonce.record import EXHAUSTED_ERROR, Note, Renewal, Settlement
from effectonce.values.urls import Address

# -- options


def test_a_url_says_where_the_server_is_and_who_asks() -> None:
    options = take_options(Address("postgresql://shop:s%2Fcret@h:5433/db?sslmode=require&timeout=2s&prepare=off"))
    assert options.params == {
        "fallback_application_name": "effectonce",
        "sslmode": "require",
        "host": "h",
        "port": "5433",
        "user": "shop",
        "password": "s/cret",
        "dbname": "db",
        "client_encoding": "UTF8",
    }
    assert (options.timeout, options.connect_timeout, options.prepare) == (2.0, 5.0, "off")
    assert "cret" not in options.address


def test_what_a_url_does_not_say_is_left_to_libpq() -> None:
    options = take_options(Address("postgresql:///db?application_name=shop&host=/run/pg&connect_timeout=1s"))
    assert options.params == {
        "fallback_application_name": "effectonce",
        "application_name": "shop",
        "host": "/run/pg",
        "dbname": "db",
        "client_encoding": "UTF8",
    }
    assert (options.timeout, options.connect_timeout, options.prepare) == (5.0, 1.0, "auto")


def params_of(url: str) -> dict[str, Any]:
    own = ("fallback_application_name", "client_encoding")
    return {name: value for name, value in take_options(Address(url)).params.items() if name not in own}


@pytest.mark.parametrize(
    ("url", "params"),
    [
        ("postgresql://h1:5432,h2:5433/db", {"host": "h1,h2", "port": "5432,5433", "dbname": "db"}),
        ("postgresql://h1,[::1]:5433", {"host": "h1,::1", "port": ",5433"}),
        ("postgresql://u@%2FVar%2Frun:5433/db", {"host": "/Var/run", "port": "5433", "dbname": "db", "user": "u"}),
        ("postgresql:///db?host=h1,h2&port=1,2", {"host": "h1,h2", "port": "1,2", "dbname": "db"}),
        ("postgresql:///?service=shop&passfile=/p", {"service": "shop", "passfile": "/p"}),
        (
            "postgresql://h?keepalives_idle=30&tcp_user_timeout=9&load_balance_hosts=random&require_auth=scram-sha-256",
            {
                "host": "h",
                "keepalives_idle": "30",
                "tcp_user_timeout": "9",
                "load_balance_hosts": "random",
                "require_auth": "scram-sha-256",
            },
        ),
        ("postgresql://h?sslcrl=/crl&sslpassword=x", {"host": "h", "sslcrl": "/crl", "sslpassword": "x"}),
    ],
)
def test_a_url_may_have_all_that_libpq_has(url: str, params: dict[str, str]) -> None:
    assert params_of(url) == params


@pytest.mark.parametrize(
    ("query", "params"),
    [
        ("tls=no", {"sslmode": "disable"}),
        ("tls=yes&ca_file=/ca.pem", {"sslmode": "verify-full", "sslrootcert": "/ca.pem"}),
        ("tls=yes&ca_file=/ca.pem&verify=ca", {"sslmode": "verify-ca", "sslrootcert": "/ca.pem"}),
        ("tls=yes&verify=no", {"sslmode": "require"}),
        ("tls=yes&verify=no&cert_file=/c", {"sslmode": "require", "sslcert": "/c", "sslkey": "/c"}),
        (
            "tls=yes&verify=no&cert_file=/c&key_file=/k",
            {"sslmode": "require", "sslcert": "/c", "sslkey": "/k"},
        ),
    ],
)
def test_the_options_for_tls_become_libpqs(query: str, params: dict[str, str]) -> None:
    assert params_of(f"postgresql://h?{query}") == {"host": "h", **params}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://h?tls=yes&sslmode=require", "both tls and libpq's sslmode"),
        ("postgresql://h?ca_file=/ca.pem", "add tls=yes"),
        ("postgresql://%00", "does not take the hosts"),
    ],
)
def test_options_that_contradict_each_other_are_refused(url: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        take_options(Address(url))


def test_the_certificate_is_checked_for_the_name_that_the_url_gives() -> None:
    options = take_options(Address("postgresql://h?tls=yes&server_name=shop.example"))
    assert options.attempt_params({"host": "h", "hostaddr": "10.0.0.1"}, None) == {
        "host": "shop.example",
        "hostaddr": "10.0.0.1",
    }
    assert options.attempt_params({"host": "/run"}, "token") == {"host": "/run", "password": "token"}


def test_a_pool_says_where_it_connects_to() -> None:
    pool = SimpleNamespace(conninfo="host=h dbname=db", kwargs={"user": "u", "autocommit": True})
    options = options_of_pool(pool, 3.0)
    assert options.params == {"host": "h", "dbname": "db", "user": "u", "client_encoding": "UTF8"}
    assert (options.timeout, options.connect_timeout, options.prepare) == (3.0, 3.0, "auto")
    assert options_of_pool(SimpleNamespace(conninfo="host=h", kwargs=None), 3.0).params["host"] == "h"
    with pytest.raises(SyncAsyncMismatch):
        options_of_pool(SimpleNamespace(conninfo=lambda: "host=h", kwargs={}), 3.0)


def test_an_error_of_libpq_is_shown_by_its_first_line() -> None:
    assert first_line(psycopg.OperationalError("refused\nIs the server running?")) == "refused"
    assert first_line(psycopg.OperationalError("")) == "OperationalError"


# -- errors


class Result:
    """A result that failed, with the fields of its diagnosis."""

    def __init__(self, table: bytes | None = None, file: bytes | None = None) -> None:
        self._fields = {pq.DiagnosticField.TABLE_NAME: table, pq.DiagnosticField.SOURCE_FILE: file}

    def error_field(self, field: Any) -> bytes | None:
        return self._fields.get(field)


def explained(state: str, **fields: bytes) -> Exception:
    result: Any = Result(**fields)
    return _explain(result, state, "words", "pg://h")


@pytest.mark.parametrize(
    ("state", "kind", "said"),
    [
        ("", ConnectionLost, "broke"),
        ("0A000", ConnectionLost, "broke"),
        ("57P01", ConnectionLost, "broke"),
        ("25006", StoreUnavailable, "target_session_attrs"),
        ("40P01", Contention, "words"),
        ("40001", Contention, "words"),
        ("55P03", Contention, "words"),
        ("42501", ConfigurationError, "grant SELECT"),
        ("57014", StoreUnavailable, "raise the option timeout"),
        ("42P01", SchemaMissing, "effectonce migrate --store pg://h"),
        ("42703", SchemaMismatch, "effectonce migrate --store pg://h"),
        ("22021", InvalidKey, "words"),
        ("26000", NotPrepared, "words"),
        ("54000", StoreUnavailable, "SQLSTATE 54000"),
        ("XX000", StoreUnavailable, "SQLSTATE XX000"),
    ],
)
def test_a_refusal_says_what_to_do(state: str, kind: type[Exception], said: str) -> None:
    error = explained(state)
    assert type(error) is kind
    assert said in str(error)


def test_a_limit_of_an_index_is_that_of_the_key() -> None:
    assert type(explained("54000", table=b"records")) is KeyTooLong
    assert type(explained("54000", file=b"../indextuple.c")) is KeyTooLong
    assert type(explained("54000", file=b"async.c")) is StoreUnavailable
    assert type(explained("42P01", table=b"records")) is SchemaMissing


# -- values on the wire, as the driver reads them


def read(data: bytes, type_name: str) -> Any:
    array_oid = psycopg.adapters.types[type_name].array_oid
    return Transformer().get_loader(array_oid, pq.Format.BINARY).load(data)


def test_arrays_are_those_that_the_driver_reads() -> None:
    assert read(codec.text_array(["a", None, "é", ""]), "text") == ["a", None, "é", ""]
    assert read(codec.bigint_array([1, -2, 1 << 62]), "int8") == [1, -2, 1 << 62]
    assert read(codec.integer_array([1, -2]), "int4") == [1, -2]
    assert read(codec._AS_BYTES[1]([b"\0", None, b""]), "bytea") == [b"\0", None, b""]
    assert read(codec._AS_FLAG[1]([True, False]), "bool") == [True, False]


def test_arrays_are_those_that_the_driver_writes() -> None:
    dumper: Any = Transformer().get_dumper([b"a", b"b"], PyFormat.BINARY)
    assert codec._AS_BYTES[1]([b"a", b"b"]) == bytes(dumper.dump([b"a", b"b"]))


def test_text_with_half_a_character_is_an_invalid_key() -> None:
    with pytest.raises(InvalidKey):
        codec.utf8("\ud800")


def test_a_renewal_has_a_lease_and_others_have_none() -> None:
    settlement, note = Settlement("s", "k", b"o", 1, "done", 7), Note("s", "k", b"o", 1, b"note")
    renewal = Renewal("s", "k", b"o", 1, lease_us=5, retention_us=7)
    leases = codec.encode_settlements([settlement, renewal, note])[-1]
    assert isinstance(leases, bytes)
    assert read(leases, "int8") == [None, 5, None]
    assert codec.encode_settlement(renewal)[-2:] == [(5).to_bytes(8, "big"), b"\0"]
    assert codec.encode_settlement(note)[-2:] == [None, b"\0"]


# -- answers


def row(decision: str, **values: Any) -> Any:
    known = {"token": 7, "attempts": 2, "generation": 1, "lapsed": False, "remains": 0}
    names = ("token", "attempts", "generation", "lapsed", "remains", "result", "error", "note")
    return (3, decision, *({**known, **values}.get(name) for name in names))


def test_a_claims_answer_is_that_of_its_decision() -> None:
    position, granted = read_claim_answer(row("claimed", lapsed=True, note=b"n"))
    assert position == 2
    assert granted is not None
    assert (granted.kind, granted.token, granted.attempts, granted.generation) == ("claimed", 7, 2, 1)
    assert (granted.lapsed, granted.note) == (True, b"n")
    for decision in ("take_expired", "take_free", "take_lapsed", "exhaust", "lapse", "flag"):
        assert read_claim_answer(row(decision)) == (2, None)


@pytest.mark.parametrize(
    ("decision", "values", "expected"),
    [
        ("done", {"result": b"r"}, {"kind": "done", "result": b"r", "token": 7}),
        ("failed", {"error": b"e"}, {"kind": "failed", "error": b"e", "token": 7}),
        ("failed", {"error": EXHAUSTED_ERROR}, {"kind": "exhausted", "error": EXHAUSTED_ERROR}),
        ("in_progress", {"remains": 1_500_000}, {"kind": "in_progress", "retry_after": 1.5}),
        ("in_progress", {"remains": -5}, {"kind": "in_progress", "retry_after": 0.0}),
        ("in_doubt", {}, {"kind": "in_doubt", "attempts": 2}),
        ("mismatch", {"result": b"secret"}, {"kind": "mismatch", "result": None, "token": 0}),
        ("absent", {}, {"kind": "absent", "token": 0}),
    ],
)
def test_an_answer_has_what_its_kind_needs_and_no_more(
    decision: str, values: dict[str, Any], expected: dict[str, Any]
) -> None:
    for reader in (read_claim_answer, read_look_answer):
        _, answer = reader(row(decision, **values))
        assert {name: getattr(answer, name) for name in expected} == expected


def test_a_look_changes_nothing_and_says_what_a_claim_would_find() -> None:
    assert read_look_answer(row("take_free"))[1].kind == "absent"
    position, doubt = read_look_answer(row("lapse"))
    assert (position, doubt.kind, doubt.token, doubt.attempts, doubt.generation) == (2, "in_doubt", 7, 2, 1)


# -- waiting


@pytest.fixture(params=[BlockingWaiter, LoopWaiter], ids=["sync", "async"])
def waiter(request: pytest.FixtureRequest) -> Any:
    return request.param()


def run(waiter: Any, work: Any) -> Any:
    return run_sync(work) if isinstance(waiter, BlockingWaiter) else asyncio.run(work)


def test_a_socket_is_waited_for_until_it_is_ready_or_the_deadline(waiter: Any) -> None:
    left, right = socket.socketpair()
    with left, right:
        run(waiter, waiter.wait_until_ready(left.fileno(), True, time.monotonic() + 60))  # it can be written
        with pytest.raises(TimeoutError):
            run(waiter, waiter.wait_until_ready(left.fileno(), False, time.monotonic() + 0.01))
        with pytest.raises(TimeoutError):
            run(waiter, waiter.wait_until_ready(left.fileno(), False, time.monotonic() - 1))
        right.send(b"x")
        run(waiter, waiter.wait_until_ready(left.fileno(), False, time.monotonic() + 60))


async def test_after_a_wait_the_loop_watches_the_socket_no_more() -> None:
    left, right = socket.socketpair()
    with left, right:
        await LoopWaiter().wait_until_ready(left.fileno(), True, time.monotonic() + 60)
        loop = asyncio.get_running_loop()
        assert (loop.remove_reader(left.fileno()), loop.remove_writer(left.fileno())) == (False, False)


# -- connections


class Attempts:
    """A waiter that names the addresses to try."""

    def __init__(self, *attempts: dict[str, Any]) -> None:
        self.attempts = attempts

    async def resolve(self, params: dict[str, Any]) -> Any:
        return list(self.attempts)


class Finished:
    def __init__(self) -> None:
        self.finished = 0

    def finish(self) -> None:
        self.finished += 1


def own_connection(monkeypatch: pytest.MonkeyPatch, *results: Any) -> tuple[OwnConnection, list[str]]:
    """A connection to as many addresses as there are ``results``, and which of them were tried."""
    options = take_options(Address("postgresql://user:canary@h/db?connect_timeout=3s"))
    attempts: Any = Attempts(*({"host": f"h{n}"} for n in range(len(results))))
    source, tried = OwnConnection(attempts, options), []

    async def open(conninfo: str) -> Any:
        tried.append(conninfo)
        result = results[len(tried) - 1]
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(source, "_open", open)
    return source, tried


def test_the_first_address_that_answers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Finished()
    source, tried = own_connection(monkeypatch, TimeoutError(), psycopg.OperationalError("no"), connection, Finished())
    taken = run_sync(source.take())
    assert taken.pgconn is connection  # type: ignore[comparison-overlap]
    assert tried == ["host=h0", "host=h1", "host=h2"]
    assert run_sync(source.take()) is taken
    run_sync(source.close())
    run_sync(source.close())
    assert connection.finished == 1


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ((TimeoutError(),), "no answer within 3 s"),
        ((TimeoutError(), psycopg.OperationalError("refused\nmore")), "refused"),
        ((), "no address"),
    ],
)
def test_where_no_address_answers_the_last_reason_is_named(
    monkeypatch: pytest.MonkeyPatch, results: Any, said: str
) -> None:
    source, _ = own_connection(monkeypatch, *results)
    with pytest.raises(StoreUnavailable, match=said) as caught:
        run_sync(source.take())
    assert "canary" not in str(caught.value)


class Pool:
    """As much of a psycopg pool as is used."""

    closed = False

    def __init__(self) -> None:
        self.borrowed: Any = type("Borrowed", (), {"pgconn": Finished()})()
        self.returned: list[Any] = []
        self.error: Exception | None = None

    def getconn(self, timeout: float) -> Any:
        if self.error is not None:
            raise self.error
        self.timeout = timeout
        return self.borrowed

    def putconn(self, connection: Any) -> None:
        self.returned.append(connection)


def test_a_connection_of_a_pool_goes_back_to_it_and_keeps_its_state() -> None:
    pool, waiter = Pool(), BlockingWaiter()
    source = PooledConnections(waiter, BorrowedPool(pool, 3.0))
    first = run_sync(source.take())
    assert pool.timeout == 3.0
    run_sync(source.give_back(first))
    assert pool.returned == [pool.borrowed]
    assert first.borrowed is None
    second = run_sync(source.take())
    assert second is first
    run_sync(source.drop(second))
    assert (pool.borrowed.pgconn.finished, len(pool.returned)) == (1, 2)


def test_a_pool_without_a_connection_is_an_unavailable_store() -> None:
    pool = Pool()
    pool.error = psycopg.OperationalError("couldn't get a connection")
    with pytest.raises(StoreUnavailable, match="the pool gave no connection"):
        run_sync(PooledConnections(BlockingWaiter(), BorrowedPool(pool, 3.0)).take())


def test_f16_a_pool_of_the_parent_is_refused_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, unopened = Pool(), Pool()
    unopened.closed = True
    before, later = BorrowedPool(opened, 1.0), BorrowedPool(unopened, 1.0)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ConfigurationError, match="before the process forked"):
        before.check_process()
    later.after_fork()
    unopened.closed = False
    later.check_process()  # it was opened in the child
    used_by_nobody = BorrowedPool(Pool(), 1.0)
    used_by_nobody.check_process()
