"""Options of a URL, what a server says of itself, its errors, and which connections are closed, without a server."""

from __future__ import annotations

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from effectonce.backends.mysql import connection as module
from effectonce.backends.mysql.codec import max_packet_bytes
from effectonce.backends.mysql.connection import (
    AsyncMySQLConnection,
    MySQLConnection,
    MySQLOptions,
    MySQLServer,
    SyncMySQLConnection,
    _read_server,
    translate,
)
from effectonce.backends.mysql.literals import bind
from effectonce.backends.mysql.store import MySQLBackend, _packets
from effectonce.contracts import ConnectionLost, Contention
from effectonce.core.run_sync import run_sync
from effectonce.errors import (
    ConfigurationError,
    InvalidOption,
    KeyTooLong,
    MissingDriver,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    UnsafeStore,
)
from effectonce.record import Settlement
from effectonce.values.urls import Address

URL = "mysql://user:p%C3%A9@h/db"


def options(query: str = "", url: str = URL) -> MySQLOptions:
    return MySQLOptions(Address(f"{url}{query}"))


# -- options


def test_a_url_says_where_the_server_is_and_who_asks() -> None:
    arguments = options("?connect_timeout=3s&socket=/run/x.sock").arguments("pé")
    assert (arguments["host"], arguments["port"], arguments["user"]) == ("h", 3306, "user")
    assert arguments["password"].encode("latin-1").decode() == "pé"  # the drivers send it as Latin-1
    assert (arguments["unix_socket"], arguments["connect_timeout"], arguments["ssl"]) == ("/run/x.sock", 3.0, None)
    assert arguments["autocommit"] is True
    bare = options(url="mysql:///db").arguments("")
    assert (bare["host"], bare["unix_socket"], bare["password"]) == ("localhost", None, "")
    assert options(url="mysql://h:3307/db").arguments("")["port"] == 3307


@pytest.mark.parametrize("url", ["mysql://h", "mysql://h/", "mysql://h/a/b"])
def test_a_url_names_one_database(url: str) -> None:
    with pytest.raises(InvalidOption, match="one database"):
        options(url=url)


@pytest.mark.parametrize(("timeout", "lock_wait"), [("5s", 4), ("30s", 24), ("2500ms", 2), ("1s", 1), ("100ms", 1)])
def test_the_server_gives_up_on_a_lock_before_we_give_up_on_the_server(timeout: str, lock_wait: int) -> None:
    setup = options(f"?timeout={timeout}").session_setup()
    assert f"innodb_lock_wait_timeout = {lock_wait}, lock_wait_timeout = {lock_wait};" in setup


def test_tls_is_off_unless_it_is_asked_for() -> None:
    assert (options().tls, options("?tls=no").tls) == (None, None)
    assert options("?tls=yes").tls is not None


def test_a_function_returns_the_password_for_each_connection() -> None:
    tokens = iter(["one", "two"])
    address = Address("mysql://user@h/db")
    address.password_provider = lambda: next(tokens)
    made = MySQLOptions(address)
    assert [made.fetch_password(), made.fetch_password()] == ["one", "two"]
    with pytest.raises(StoreUnavailable, match="StopIteration"):
        made.fetch_password()


# -- the server


def read_server(version: str, *, tls: bool = False, cipher: str = "", max_packet: int = 16 << 20) -> MySQLServer:
    results: list[Any] = [(), (), [(version, max_packet)], [("Ssl_cipher", cipher)]]
    return _read_server(Address(URL), results, tls)


@pytest.mark.parametrize(
    ("version", "flavour", "number", "has_alias"),
    [
        ("8.0.19", "MySQL", (8, 0, 19), True),
        ("8.0.18", "MySQL", (8, 0, 18), False),
        ("8.4", "MySQL", (8, 4, 0), True),
        ("8.0.30-Vitess", "MySQL", (8, 0, 30), False),
        ("8.0.11-TiDB-v7", "MySQL", (8, 0, 11), False),
        ("8.0.33-dolt", "MySQL", (8, 0, 33), False),
        ("10.6.0-MariaDB", "MariaDB", (10, 6, 0), False),
        ("11.4.2-MariaDB-log", "MariaDB", (11, 4, 2), False),
    ],
)
def test_a_server_is_known_by_its_version(
    version: str, flavour: str, number: tuple[int, int, int], has_alias: bool
) -> None:
    server = read_server(version)
    assert (server.flavour, server.version, server.supports_row_alias) == (flavour, number, has_alias)
    assert server.supports_returning == (flavour == "MariaDB")


@pytest.mark.parametrize("version", ["5.7.44", "10.5.99-MariaDB", "7.9.9", "unknown"])
def test_a_server_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(UnsafeStore, match=r"effectonce needs MySQL >= 8\.0"):
        read_server(version)


def test_tls_that_was_asked_for_must_be_there() -> None:
    assert read_server("8.4.0", tls=True, cipher="TLS_AES")
    assert read_server("8.4.0", tls=False)
    with pytest.raises(ConfigurationError, match="does not offer it"):
        read_server("8.4.0", tls=True)


@pytest.mark.parametrize(
    ("max_packet", "room"), [(16 << 20, (16 << 20) - 65_536), (100_000, 50_000), (131_072, 65_536)]
)
def test_a_packet_leaves_room_for_the_statement(max_packet: int, room: int) -> None:
    server = read_server("8.4.0", max_packet=max_packet)
    assert (server.packet_room, server.largest_result) == (room, room // 4)


# -- errors


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (pymysql.err.OperationalError(1213, "Deadlock"), Contention, "Deadlock (1213)"),
        (pymysql.err.OperationalError(1205, "Lock wait"), Contention, "Lock wait (1205)"),
        (pymysql.err.ProgrammingError(1146, "no table"), SchemaMissing, "effectonce migrate --store 'mysql://"),
        (pymysql.err.OperationalError(1049, "no database"), SchemaMissing, "create the database"),
        (pymysql.err.OperationalError(1054, "no column"), SchemaMismatch, "another version"),
        (pymysql.err.DataError(1406, "too long"), KeyTooLong, "512 characters"),
        (pymysql.err.OperationalError(1045, "denied"), ConfigurationError, "refuses this user"),
        (pymysql.err.OperationalError(1142, "denied"), ConfigurationError, "GRANT SELECT"),
        (pymysql.err.OperationalError(1290, "read-only"), StoreUnavailable, "the primary"),
        (pymysql.err.OperationalError(2013, "lost"), ConnectionLost, "broke"),
        (pymysql.err.InternalError("Packet sequence number wrong"), ConnectionLost, "Packet sequence"),
        (ConnectionResetError("reset"), ConnectionLost, "reset"),
        (OSError(111, "refused"), ConnectionLost, "refused (111)"),
        (pymysql.err.ProgrammingError(1064, "syntax"), ConfigurationError, "refused a statement: syntax (1064)"),
        (RuntimeError("'cryptography' package is required for x"), MissingDriver, "pip install cryptography"),
        (TimeoutError(), StoreUnavailable, "within 5s"),
        (RuntimeError(), ConnectionLost, "broke"),
    ],
    ids=lambda value: repr(value) if isinstance(value, Exception) else "",
)
def test_an_error_of_a_driver_says_what_to_do(error: Exception, kind: type[Exception], said: str) -> None:
    ours = translate(error, options())
    assert type(ours) is kind
    assert said in str(ours)
    assert "pé" not in str(ours)


def test_while_connecting_an_unknown_error_is_an_unavailable_server() -> None:
    for error in (pymysql.err.OperationalError(2003, "cannot"), ConnectionResetError("reset"), RuntimeError("odd")):
        ours = translate(error, options(), connecting=True)
        assert type(ours) is StoreUnavailable
        assert "cannot connect" in str(ours)
    late = translate(TimeoutError(), options("?timeout=7s&connect_timeout=3s"), connecting=True)
    assert "within 3s" in str(late)
    assert "within 7s" in str(translate(TimeoutError(), options("?timeout=7s&connect_timeout=3s")))


def test_the_error_inside_of_a_drivers_is_the_one_that_counts() -> None:
    wrapped = pymysql.err.OperationalError(2003, "cannot connect")
    wrapped.original_exception = TimeoutError()  # type: ignore[attr-defined]
    assert "no answer" in str(translate(wrapped, options()))
    untrusted = pymysql.err.OperationalError(2003, "cannot connect")
    untrusted.__cause__ = ssl.SSLCertVerificationError()
    untrusted.__cause__.verify_message, untrusted.__cause__.verify_code = "self-signed", 18
    assert type(translate(untrusted, options(), connecting=True)) is ConfigurationError


def test_our_own_errors_are_returned_as_they_are() -> None:
    for error in (UnsafeStore("x"), StoreUnavailable("x")):
        assert translate(error, options()) is error


# -- connections


class Driver:
    """A connection of a driver, sync or async."""

    def __init__(self, *, hangs: bool = False, fails: bool = False) -> None:
        self.hangs, self.fails = hangs, fails
        self.calls: list[str] = []

    def close(self) -> None:
        self.calls.append("close")
        if self.fails:
            raise RuntimeError("the loop is closed")

    def _force_close(self) -> None:
        self.calls.append("force_close")

    async def ensure_closed(self) -> None:
        self.calls.append("quit")
        if self.hangs:
            await asyncio.sleep(60)

    async def ping(self) -> None:
        self.calls.append("ping")
        if self.hangs:
            await asyncio.sleep(60)


def test_a_sync_connection_is_closed_by_the_protocol_and_a_broken_one_is_not() -> None:
    for end, call in (("close", "close"), ("drop", "force_close")):
        connection, driver = SyncMySQLConnection(options()), Driver()
        connection._driver_connection = driver
        for _ in range(2):
            run_sync(getattr(connection, end)())
        assert driver.calls == [call]


async def test_an_async_connection_is_closed_by_the_protocol_and_a_broken_one_is_not() -> None:
    for end, call in (("close", "quit"), ("drop", "close")):
        connection, driver = AsyncMySQLConnection(options()), Driver()
        connection._driver_connection = driver
        for _ in range(2):
            await getattr(connection, end)()
        assert driver.calls == [call]


async def test_a_server_that_does_not_answer_to_quit_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_QUIT_TIMEOUT_S", 0.01)
    connection, driver = AsyncMySQLConnection(options()), Driver(hangs=True)
    connection._driver_connection = driver
    await asyncio.wait_for(connection.close(), 5)
    assert driver.calls == ["quit", "close"]


def test_an_end_that_fails_is_an_end() -> None:
    for connection in (SyncMySQLConnection(options()), AsyncMySQLConnection(options())):
        connection._driver_connection = Driver(fails=True)
        asyncio.run(connection.close() if isinstance(connection, SyncMySQLConnection) else connection.drop())


async def test_a_login_that_is_not_answered_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    aiomysql = pytest.importorskip("aiomysql")
    driver = Driver(hangs=True)
    monkeypatch.setattr(aiomysql, "Connection", lambda **arguments: driver)
    with pytest.raises(StoreUnavailable, match="no answer within"):
        await AsyncMySQLConnection(options("?connect_timeout=10ms")).connect()
    assert driver.calls == ["ping", "close"]


class Connection(MySQLConnection):
    """A connection whose server answers with ``errors``, one after another, and then well."""

    def __init__(self) -> None:
        super().__init__(options())
        self.errors: list[BaseException] = []
        self.sent: list[str] = []
        self.opened = self.dropped = 0

    async def _open(self) -> Any:
        self.opened += 1
        return SimpleNamespace()

    async def _send(self, sql: str) -> list[Any]:
        self.sent.append(sql)
        if "VERSION()" in sql:
            return [(), (), [("8.4.0", 16 << 20)], []]
        if self.errors:
            raise self.errors.pop(0)
        return [[(1,)]]

    def _close_socket(self, connection: Any) -> None:
        self.dropped += 1

    async def _quit(self, connection: Any) -> None:
        pass


DEADLOCK = pymysql.err.OperationalError(1213, "Deadlock")


async def test_a_connection_is_set_up_once() -> None:
    connection = Connection()
    for _ in range(2):
        assert await connection.execute("SELECT 1") == [[(1,)]]
    assert (connection.opened, connection.connect_count) == (1, 1)
    await connection.close()
    await connection.execute("SELECT 1")
    assert (connection.opened, connection.connect_count) == (2, 2)


async def test_a_deadlock_is_rolled_back_and_leaves_the_connection() -> None:
    connection = Connection()
    connection.errors = [DEADLOCK]
    with pytest.raises(Contention):
        await connection.execute("BEGIN; x")
    assert (connection.sent[-1], connection.dropped) == ("ROLLBACK", 0)


@pytest.mark.parametrize("second", [pymysql.err.OperationalError(2013, "lost"), asyncio.CancelledError()])
async def test_a_connection_that_cannot_roll_back_is_dropped(second: BaseException) -> None:
    connection = Connection()
    connection.errors = [DEADLOCK, second]
    with pytest.raises((Contention, asyncio.CancelledError)) as caught:
        await connection.execute("BEGIN; x")
    assert isinstance(caught.value, asyncio.CancelledError) == isinstance(second, asyncio.CancelledError)
    assert connection.dropped == 1


@pytest.mark.parametrize("error", [pymysql.err.ProgrammingError(1064, "syntax"), asyncio.CancelledError()])
async def test_after_any_other_error_the_connection_is_dropped(error: BaseException) -> None:
    connection = Connection()
    connection.errors = [error]
    with pytest.raises((ConfigurationError, asyncio.CancelledError)):
        await connection.execute("x")
    assert connection.dropped == 1


# -- values and packets


def test_values_are_literals_that_need_no_quotes() -> None:
    sql = bind("{n} {text} {data} {none} {many}", n=3, text="é", data=b"\x00'", none=None, many=[b"a", b"b"])
    assert sql == "3 _utf8mb4 x'c3a9' _binary x'0027' NULL _binary x'61',_binary x'62'"


def settlement(size: int) -> Settlement:
    return Settlement("s", "k", b"o", 1, "done", 1, bytes(size))


def test_a_batch_is_split_where_a_packet_is_full() -> None:
    batch = [settlement(n) for n in (1000, 1000, 1000, 90_000, 1)]
    items = [(b"%d" % n, n) for n in range(len(batch))]
    room = 2 * max_packet_bytes(batch[0])
    assert [[n for _, n in part] for part in _packets(batch, items, room)] == [[0, 1], [2], [3], [4]]
    assert list(_packets(batch, [], room)) == []


def test_a_packet_has_room_for_every_value_in_hexadecimal() -> None:
    empty = max_packet_bytes(settlement(0))
    assert max_packet_bytes(settlement(10)) == empty + 20
    assert max_packet_bytes(Settlement("ss", "kkk", b"o", 1, "done", 1)) == empty + 24


@pytest.mark.parametrize(("value", "returning"), [("auto", True), ("off", False)])
def test_returning_can_be_switched_off(value: str, returning: bool) -> None:
    assert MySQLBackend(Address(f"{URL}?returning={value}"))._returning is returning
