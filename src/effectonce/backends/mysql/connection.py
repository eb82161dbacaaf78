"""A connection to MySQL or MariaDB, opened by URL: it sends one packet, and returns the rows of each statement in it.

`SyncMySQLConnection` (PyMySQL) never suspends; `AsyncMySQLConnection` (aiomysql) does. Sessions are in READ COMMITTED:
under the default REPEATABLE READ a duplicate key also locks the gap before it, so that claims of unrelated keys wait
for each other, and deadlock. No transaction here relies on reading the same rows twice, so nothing is lost by that.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from effectonce.backends.common.tls import take_tls, tls_refusal
from effectonce.contracts import ConnectionLost, Contention
from effectonce.errors import (
    ConfigurationError,
    InvalidOption,
    KeyTooLong,
    MissingDriver,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    UnsafeStore,
    show,
)
from effectonce.values.sql_error_codes import MYSQL_MEANINGS, SqlErrorMeaning
from effectonce.values.urls import Address

ResultRows = Sequence[tuple[Any, ...]]  # of one statement

PACKET_OVERHEAD_BYTES = 65_536  # for the statement and the list of ids, which a packet holds beside the values
_OLDEST_VERSIONS = {"MySQL": (8, 0, 0), "MariaDB": (10, 6, 0)}
_QUIT_TIMEOUT_S = 1.0
_NO_TLS_NUMBER = 2026  # CR_SSL_CONNECTION_ERROR: PyMySQL's, where the server does not offer TLS
_SQL_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"


class MySQLOptions:
    """The connection options of a mysql:// or mariadb:// URL."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.host, self.port = address.host or "localhost", address.port or 3306
        self.timeout = address.seconds("timeout", 5.0)
        self.connect_timeout = address.seconds("connect_timeout", 5.0)
        self.socket = address.take("socket", str, "")
        tls = take_tls(address)
        self.tls = tls.make_context(str(address)) if tls else None
        self.password_provider = address.take_password_provider()
        self.database = address.path.removeprefix("/")
        if not self.database or "/" in self.database:
            raise InvalidOption(f"{address} must name one database: {address.scheme}://user:password@host/database")

    def fetch_password(self) -> str:
        """The password for a new connection. The caller's function for it may block."""
        if self.password_provider is None:
            return self.address.password or ""
        try:
            return self.password_provider()
        except Exception as error:
            raise StoreUnavailable(
                f"the function that returns the password of {self.address} failed ({type(error).__name__}); "
                "see its error"
            ) from error

    def arguments(self, password: str) -> dict[str, Any]:
        """The arguments that both drivers take. They encode the password as Latin-1, and the server wants UTF-8: so it
        is decoded here in such a way that they send its UTF-8 bytes."""
        return {
            "host": self.host,
            "port": self.port,
            "unix_socket": self.socket or None,
            "user": self.address.user,
            "password": password.encode().decode("latin-1"),
            "charset": "utf8mb4",
            "autocommit": True,
            "connect_timeout": self.connect_timeout,
            "ssl": self.tls,
        }

    def session_setup(self) -> str:
        """The packet that sets up a new session and reads the server's properties; `_read_server` reads its results.

        The server must give up on a lock before the client gives up on the server. It counts whole seconds, so with a
        timeout under two seconds the client may be first.
        """
        lock_wait = max(1, int(self.timeout * 0.8))
        return (
            f"SET time_zone = '+00:00', sql_mode = '{_SQL_MODE}', autocommit = 1, "
            f"innodb_lock_wait_timeout = {lock_wait}, lock_wait_timeout = {lock_wait}; "
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; "
            "SELECT VERSION(), @@max_allowed_packet; SHOW SESSION STATUS LIKE 'Ssl_cipher'"
        )


class MySQLServer(NamedTuple):
    """The properties of a server, as a new session has read them."""

    flavour: str
    version: tuple[int, int, int]
    max_packet: int
    #: Whether ON DUPLICATE KEY UPDATE may refer to the new row by an alias.
    supports_row_alias: bool

    @property
    def supports_returning(self) -> bool:
        """Whether the server has INSERT ... RETURNING."""
        return self.flavour == "MariaDB"

    @property
    def packet_room(self) -> int:
        """How many bytes of values fit into one packet."""
        return max(self.max_packet - PACKET_OVERHEAD_BYTES, self.max_packet // 2)

    @property
    def largest_result(self) -> int:
        """How many bytes of a result fit into one packet, in hexadecimal and beside other values."""
        return self.packet_room // 4


def _read_server(address: Address, results: list[ResultRows], tls: bool) -> MySQLServer:
    """Read the results of `MySQLOptions.session_setup`. Refuses a server that is too old, or lacks TLS."""
    _, _, [(version, max_packet)], cipher = results
    if tls and not (cipher and cipher[0][1]):
        raise _no_tls_error(address)
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    number = (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)
    flavour = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    # Databases that imitate MySQL report its version, and may lack its syntax.
    supports_row_alias = (
        flavour == "MySQL" and number >= (8, 0, 19) and not re.search("vitess|tidb|dolt", version.lower())
    )
    server = MySQLServer(flavour, number, int(max_packet), supports_row_alias)
    if server.version < _OLDEST_VERSIONS[server.flavour]:
        raise UnsafeStore(
            f"{address} is {server.flavour} {show(version, 40)}; effectonce needs MySQL >= 8.0 or MariaDB >= 10.6"
        )
    return server


def _no_tls_error(address: Address) -> ConfigurationError:
    return ConfigurationError(
        f"{address} asks for TLS, and the server does not offer it; set it up there, or leave tls out"
    )


class MySQLConnection(ABC):
    """One connection, opened when first used and again after an error. One caller at a time."""

    def __init__(self, options: MySQLOptions) -> None:
        self._options = options
        self._driver_connection: Any = None
        #: Set by the first connect, and kept while disconnected.
        self.server: MySQLServer | None = None
        #: How many connections were opened. By this number `MySQLTables` notices a new one.
        self.connect_count = 0

    async def connect(self) -> MySQLServer:
        """Connect, unless a connection is open. Returns the properties of the server."""
        if self._driver_connection is None or self.server is None:
            try:
                self._driver_connection = await self._open()
                results = await self._send(self._options.session_setup())
                self.server = _read_server(self._options.address, results, self._options.tls is not None)
            except Exception as error:
                await self.drop()
                translated = translate(error, self._options, connecting=True)
                if translated is error:
                    raise
                raise translated from error
            except BaseException:
                await self.drop()
                raise
            self.connect_count += 1
        return self.server

    async def execute(self, sql: str) -> list[ResultRows]:
        """Send ``sql``, one statement or several, in one packet. Returns the rows of each.

        After a deadlock or a lock timeout the transaction is rolled back and the connection stays; after any other
        error, and after a cancellation, it is dropped.
        """
        await self.connect()
        try:
            return await self._send(sql)
        except Exception as error:
            translated = translate(error, self._options)
            if isinstance(translated, Contention):
                await self._roll_back()
            else:
                await self.drop()
            raise translated from error
        except BaseException:
            await self.drop()
            raise

    async def drop(self) -> None:
        """Close the socket without sending anything."""
        connection, self._driver_connection = self._driver_connection, None
        if connection is not None:
            self._close_socket(connection)

    async def close(self) -> None:
        """Send QUIT, and close the socket."""
        connection, self._driver_connection = self._driver_connection, None
        if connection is not None:
            await self._quit(connection)

    async def _roll_back(self) -> None:
        try:
            await self._send("ROLLBACK")
        except BaseException as error:
            await self.drop()
            if not isinstance(error, Exception):
                raise

    @abstractmethod
    async def _open(self) -> Any:
        """A new, authenticated connection of the driver. A failure half-way leaves no socket open."""

    @abstractmethod
    async def _send(self, sql: str) -> list[ResultRows]: ...

    @abstractmethod
    def _close_socket(self, connection: Any) -> None: ...

    @abstractmethod
    async def _quit(self, connection: Any) -> None: ...


class SyncMySQLConnection(MySQLConnection):
    """A connection of PyMySQL. Its coroutines never suspend."""

    async def _open(self) -> Any:
        import pymysql

        options = self._options
        flag: int = pymysql.constants.CLIENT.MULTI_STATEMENTS
        return pymysql.connect(
            **options.arguments(options.fetch_password()),
            database=options.database,
            client_flag=flag,
            ssl_disabled=options.tls is None,
            read_timeout=options.timeout,
            write_timeout=options.timeout,
        )

    async def _send(self, sql: str) -> list[ResultRows]:
        with self._driver_connection.cursor() as cursor:
            cursor.execute(sql)
            results: list[ResultRows] = [cursor.fetchall()]
            while cursor.nextset():
                results.append(cursor.fetchall())
        return results

    def _close_socket(self, connection: Any) -> None:
        # `close` would send QUIT, which the server would read as the rest of a packet that was sent half.
        connection._force_close()

    async def _quit(self, connection: Any) -> None:
        try:
            connection.close()
        except Exception:
            pass


class AsyncMySQLConnection(MySQLConnection):
    """A connection of aiomysql, on the running loop. aiomysql has no read timeout, so every exchange has ours."""

    async def _open(self) -> Any:
        import aiomysql  # type: ignore[import-untyped, unused-ignore]

        options = self._options
        # Where `aiomysql.connect` is cancelled between connecting and logging in, it leaves a socket open that no code
        # can close. So make the connection first, and open it by a ping.
        password = await asyncio.to_thread(options.fetch_password)
        connection = aiomysql.Connection(**options.arguments(password), db=options.database)
        try:
            async with asyncio.timeout(options.connect_timeout):
                await connection.ping()
        except BaseException:
            self._close_socket(connection)
            raise
        return connection

    async def _send(self, sql: str) -> list[ResultRows]:
        async with asyncio.timeout(self._options.timeout), self._driver_connection.cursor() as cursor:
            await cursor.execute(sql)
            results: list[ResultRows] = [await cursor.fetchall()]
            while await cursor.nextset():
                results.append(await cursor.fetchall())
        return results

    def _close_socket(self, connection: Any) -> None:
        try:
            connection.close()
        except RuntimeError:
            pass  # the loop is closed, and the socket with it

    async def _quit(self, connection: Any) -> None:
        try:
            async with asyncio.timeout(_QUIT_TIMEOUT_S):
                await connection.ensure_closed()
        except Exception:
            self._close_socket(connection)


def translate(error: Exception, options: MySQLOptions, connecting: bool = False) -> Exception:
    """Return our error for a driver's. It names the address without its password."""
    if isinstance(error, ConfigurationError | StoreUnavailable):
        return error
    address = options.address
    at = f"at {address}"
    if connecting and (of_tls := tls_refusal(error, str(address))):
        return of_tls
    # Both drivers report timeouts as lost connections, and wrap the error itself.
    wrapped = getattr(error, "original_exception", None) or error.__cause__ or error.__context__
    if isinstance(error, TimeoutError) or isinstance(wrapped, TimeoutError):
        within = options.connect_timeout if connecting else options.timeout
        return StoreUnavailable(f"no answer within {within:g}s {at}")
    number = error.args[0] if error.args and isinstance(error.args[0], int) else None
    refusal = show(error.args[1] if len(error.args) > 1 else error, 200)
    message = f"{refusal} ({number}) {at}" if number else f"{refusal} {at}"
    if "'cryptography' package is required" in refusal:
        return MissingDriver(
            f"this user's caching_sha2_password needs TLS (tls=yes) or a package: pip install cryptography; {at}"
        )
    if number == _NO_TLS_NUMBER:
        return _no_tls_error(address)
    meaning = None if number is None else MYSQL_MEANINGS.get(number)
    if meaning in _EXPLANATIONS:
        kind, text = _EXPLANATIONS[meaning]
        return kind(text.format(message=message, address=address))
    if connecting:
        return StoreUnavailable(f"cannot connect: {message}")
    if meaning == "connection_lost" or isinstance(error, OSError) or number is None:
        # Without a number, the driver has lost track of the protocol: a packet out of order, a closed connection.
        return ConnectionLost(f"the connection broke: {message}")
    return ConfigurationError(f"the server refused a statement: {message}")


#: By the meaning of a driver's error: our error and its text. ``{message}`` is the server's message, with the number
#: and the address. A number without a meaning is `StoreUnavailable` while connecting, else `ConfigurationError`: the
#: server has refused a statement of ours.
_EXPLANATIONS: Final[dict[SqlErrorMeaning | None, tuple[type[Exception], str]]] = {
    "column_missing": (
        SchemaMismatch,
        "{message}; the tables are of another version: effectonce migrate --store '{address}'",
    ),
    "conflict": (Contention, "{message}"),
    "database_missing": (
        SchemaMissing,
        "{message}; create the database, then run: effectonce migrate --store '{address}'",
    ),
    "key_too_long": (KeyTooLong, "{message}; a scope holds 512 characters and a key 4096"),
    "lock_timeout": (Contention, "{message}"),
    "login_refused": (
        ConfigurationError,
        "the server refuses this user: {message}; check its name, password and GRANTs",
    ),
    "overloaded": (StoreUnavailable, "the server is overloaded: {message}"),
    "permission_denied": (
        ConfigurationError,
        "{message}; GRANT SELECT, INSERT, UPDATE, DELETE on the tables to this user",
    ),
    "query_killed": (Contention, "{message}"),
    "read_only": (
        StoreUnavailable,
        "the server is read-only, and claims need the primary: {message}; connect to the primary",
    ),
    "table_missing": (SchemaMissing, "{message}; create the tables: effectonce migrate --store '{address}'"),
    "unsafe_binlog": (UnsafeStore, "{message}; set binlog_format to ROW or MIXED"),
}
