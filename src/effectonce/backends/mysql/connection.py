"""MySQL and MariaDB: open by URL, one packet out and its result sets back, their errors in our words.

A `Wire` is one connection in one colour. `SyncWire` (PyMySQL) never suspends; `AsyncWire` (aiomysql) does.
Sessions are in READ COMMITTED: under the default REPEATABLE READ a duplicate key locks the gap before it as
well, so that claims of unrelated keys wait for, and deadlock with, each other. Nothing here reads twice and
expects the same, so nothing is lost by it.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

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
from effectonce.values.urls import Address

Rows = Sequence[tuple[Any, ...]]

_OLDEST = {"MySQL": (8, 0, 0), "MariaDB": (10, 6, 0)}
_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"


class Options:
    """What a mysql:// or mariadb:// URL says about the connection. Takes its options from ``address``."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.timeout = address.seconds("timeout", 5.0)
        self.connect_timeout = address.seconds("connect_timeout", 5.0)
        self.socket = address.take("socket", str, "")
        self.tls = address.take("ssl", _tls, None)
        self.database = address.path.removeprefix("/")
        if not self.database or "/" in self.database:
            raise InvalidOption(f"{address} must name one database: {address.scheme}://user:password@host/database")

    def arguments(self) -> dict[str, Any]:
        """What both drivers take. They encode passwords as Latin-1; this makes the bytes UTF-8."""
        address = self.address
        return {
            "host": address.host or "localhost",
            "port": address.port or 3306,
            "unix_socket": self.socket or None,
            "user": address.user,
            "password": (address.password or "").encode().decode("latin-1"),
            "charset": "utf8mb4",
            "autocommit": True,
            "connect_timeout": self.connect_timeout,
            "ssl": self.tls,
        }

    def session(self) -> str:
        """Sent once per connection. Locks are given up before the client gives up waiting for the server (whole
        seconds, so with a timeout of less than two it may be the client that comes first)."""
        lock_wait = max(1, int(self.timeout * 0.8))
        return (
            f"SET time_zone = '+00:00', sql_mode = '{_MODE}', autocommit = 1, "
            f"innodb_lock_wait_timeout = {lock_wait}, lock_wait_timeout = {lock_wait}; "
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; "
            "SELECT VERSION(), @@max_allowed_packet; SHOW SESSION STATUS LIKE 'Ssl_cipher'"
        )


def _tls(value: str) -> ssl.SSLContext | None:
    """``ssl=true`` trusts the system's authorities, ``ssl=/path/ca.pem`` that one; both check the host name."""
    if value.lower() in ("", "0", "false", "no", "off"):
        return None
    trusted = None if value.lower() in ("1", "true", "yes", "on") else value
    try:
        context = ssl.create_default_context(cafile=trusted)
    except OSError as error:
        raise InvalidOption(f"no certificate authority could be read there ({error.strerror or error})") from None
    # Python 3.13 refuses authorities without a key usage extension, which MySQL's own set-up makes.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


# Literals. Keys, owners and results are arbitrary: hexadecimal has no quotes, escapes or character sets.


def binary(value: bytes | None) -> str:
    # `_binary`: without it, MariaDB cuts a literal in a UNION to its length modulo 65536, and says nothing.
    return "NULL" if value is None else f"_binary x'{value.hex()}'"


def binaries(values: Sequence[bytes]) -> str:
    return ",".join([f"_binary x'{value.hex()}'" for value in values])


def text(value: str) -> str:
    return f"_utf8mb4 x'{value.encode().hex()}'"


class Server(NamedTuple):
    """What a session learned of the server it is on."""

    flavour: str
    version: tuple[int, int, int]
    max_packet: int
    #: The new row of an INSERT may be named in its ON DUPLICATE KEY UPDATE.
    aliases: bool

    @property
    def returning(self) -> bool:
        """INSERT ... RETURNING is there."""
        return self.flavour == "MariaDB"


def _server(address: Address, results: list[Rows], tls: bool) -> Server:
    version, packet = results[2][0]
    if tls and not (results[3] and results[3][0][1]):
        raise ConfigurationError(f"{address} asks for ssl, and the server does not offer it")
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    number = (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)
    flavour = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    # What only speaks as MySQL does has its version, and may not have its syntax.
    aliases = flavour == "MySQL" and number >= (8, 0, 19) and not re.search("vitess|tidb|dolt", version.lower())
    server = Server(flavour, number, int(packet), aliases)
    oldest = _OLDEST[server.flavour]
    if server.version < oldest:
        raise UnsafeStore(
            f"{address} is {server.flavour} {show(version, 40)}; effectonce needs MySQL 8.0 or MariaDB 10.6, or newer"
        )
    return server


class Wire(ABC):
    """One connection, opened when first used and again after an error. One caller at a time."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._connection: Any = None
        #: Known from the first answer on; kept while disconnected.
        self.server: Server | None = None
        #: Counts the connections made, so that a port knows when it is on a new one.
        self.opened = 0

    async def connected(self) -> Server:
        """The server, connecting to it where that has not happened yet."""
        if self._connection is None or self.server is None:
            try:
                self._connection = await self._open()
                self.server = _server(self._options.address, await self._send(self._options.session()), self._tls)
            except Exception as error:
                await self.drop()
                translated = self._translated(error, connecting=True)
                if translated is error:
                    raise
                raise translated from error
            except BaseException:
                await self.drop()
                raise
            self.opened += 1
        return self.server

    async def ask(self, sql: str) -> list[Rows]:
        """Send ``sql``, one statement or several, and give the rows of each (none for those without).

        After a deadlock or a lock timeout the transaction is rolled back and the connection goes on; after any
        other error, and after a cancellation, it is dropped.
        """
        await self.connected()
        try:
            return await self._send(sql)
        except Exception as error:
            translated = self._translated(error)
            if isinstance(translated, Contention):
                await self._roll_back()
            else:
                await self.drop()
            raise translated from error
        except BaseException:
            await self.drop()
            raise

    async def drop(self) -> None:
        """Close the socket without a word."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._cut(connection)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._quit(connection)

    async def _roll_back(self) -> None:
        try:
            await self._send("ROLLBACK")
        except BaseException as error:
            await self.drop()
            if not isinstance(error, Exception):
                raise

    @property
    def _tls(self) -> bool:
        return self._options.tls is not None

    def _translated(self, error: Exception, connecting: bool = False) -> Exception:
        return translate(error, self._options, connecting)

    @abstractmethod
    async def _open(self) -> Any:
        """A new connection, authenticated. One that fails half-way leaves nothing open."""

    @abstractmethod
    async def _send(self, sql: str) -> list[Rows]: ...

    @abstractmethod
    def _cut(self, connection: Any) -> None: ...

    @abstractmethod
    async def _quit(self, connection: Any) -> None: ...


class SyncWire(Wire):
    """Over PyMySQL. Its coroutines never suspend."""

    async def _open(self) -> Any:
        pymysql = driver("pymysql", "PyMySQL")
        options = self._options
        flag: int = pymysql.constants.CLIENT.MULTI_STATEMENTS
        return pymysql.connect(
            **options.arguments(),
            database=options.database,
            client_flag=flag,
            ssl_disabled=options.tls is None,
            read_timeout=options.timeout,
            write_timeout=options.timeout,
        )

    async def _send(self, sql: str) -> list[Rows]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            results: list[Rows] = [cursor.fetchall()]
            while cursor.nextset():
                results.append(cursor.fetchall())
        return results

    def _cut(self, connection: Any) -> None:
        # Not close(): its farewell would be read as the end of a packet that was sent by half.
        connection._force_close()

    async def _quit(self, connection: Any) -> None:
        try:
            connection.close()
        except Exception:
            pass


class AsyncWire(Wire):
    """Over aiomysql, on the running loop. aiomysql has no read timeout, so every exchange is under ours."""

    async def _open(self) -> Any:
        aiomysql = driver("aiomysql", "aiomysql")
        options = self._options
        # `aiomysql.connect` would leave the socket open when it is cancelled between connecting and logging in,
        # with nobody able to close it. A ping of a connection that is not open yet opens it.
        connection = aiomysql.Connection(**options.arguments(), db=options.database)
        try:
            async with asyncio.timeout(options.connect_timeout):
                await connection.ping()
        except BaseException:
            self._cut(connection)
            raise
        return connection

    async def _send(self, sql: str) -> list[Rows]:
        async with asyncio.timeout(self._options.timeout), self._connection.cursor() as cursor:
            await cursor.execute(sql)
            results: list[Rows] = [await cursor.fetchall()]
            while await cursor.nextset():
                results.append(await cursor.fetchall())
        return results

    def _cut(self, connection: Any) -> None:
        try:
            connection.close()
        except RuntimeError:
            pass  # its loop is closed, and the socket with it

    async def _quit(self, connection: Any) -> None:
        try:
            async with asyncio.timeout(1):
                await connection.ensure_closed()
        except Exception:
            self._cut(connection)


def driver(module: str, package: str) -> ModuleType:
    """The driver library, or `MissingDriver`."""
    try:
        if module == "pymysql":
            import pymysql

            return pymysql
        import aiomysql  # type: ignore[import-untyped, unused-ignore]

        asynchronous: ModuleType = aiomysql
        return asynchronous
    except ImportError as error:
        raise MissingDriver(f"{package} is not installed: pip install 'effectonce[mysql]'") from error


# What the server's and the drivers' error numbers mean to a caller. The rest is StoreUnavailable when it comes
# while connecting, and passed on as a plain ConfigurationError otherwise: a statement of ours was refused.

_CONTENTION = {1205, 1213, 1020, 1317}  # lock wait, deadlock, changed since read, KILL QUERY
_LOST = {2006, 2013, 2055, 0, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031}
_READ_ONLY = {1290, 1792, 1836}
_DENIED = {1044, 1045, 1130, 1143, 1227, 1251, 1370, 1698, 3118, 3159, 3955, 4151}
_BUSY = {1040, 1203, 1226, 1021, 1114, 1047, 1969, 3024, 1041, 1135}


def translate(error: Exception, options: Options, connecting: bool = False) -> Exception:
    """``error`` of a driver as one of ours. It names the address without its password."""
    if isinstance(error, ConfigurationError | StoreUnavailable):
        return error
    address = options.address
    at = f"at {address}"
    inner = _inner(error)
    if isinstance(error, TimeoutError) or isinstance(inner, TimeoutError):
        within = options.connect_timeout if connecting else options.timeout
        return StoreUnavailable(f"no answer within {within:g}s {at}")
    number = error.args[0] if error.args and isinstance(error.args[0], int) else None
    said = show(error.args[1] if len(error.args) > 1 else error, 200)
    message = f"{said} ({number}) {at}" if number else f"{said} {at}"
    if "'cryptography' package is required" in said:
        return MissingDriver(
            f"this user's caching_sha2_password needs TLS (ssl=...) or a package: pip install cryptography; {at}"
        )
    if isinstance(inner, ssl.SSLCertVerificationError):
        return ConfigurationError(f"the server's certificate is not trusted {at}: {show(inner.verify_message, 200)}")
    if number in _CONTENTION:
        return Contention(message)
    if number in _READ_ONLY:
        return StoreUnavailable(f"the server is read-only, claims need the primary: {message}")
    if number in _BUSY:
        return StoreUnavailable(f"the server cannot serve this now: {message}")
    build = _REMEDIES.get(number) if number is not None else None
    if build is not None:
        return build(message, address)
    if number in _DENIED:
        return ConfigurationError(f"the server refuses this user: {message}; check its name, password and GRANTs")
    if connecting:
        return StoreUnavailable(f"cannot connect: {message}")
    if number in _LOST or isinstance(error, OSError) or number is None:
        # No number: the driver lost track of the protocol (a packet out of order, a closed connection).
        return ConnectionLost(f"the connection broke: {message}")
    return ConfigurationError(f"the server refused a statement: {message}")


_REMEDIES: dict[int, Callable[[str, Address], Exception]] = {
    1049: lambda m, a: SchemaMissing(f"{m}; create the database, then run: effectonce migrate '{a}'"),
    1146: lambda m, a: SchemaMissing(f"{m}; create the tables: effectonce migrate '{a}'"),
    1054: lambda m, a: SchemaMismatch(f"{m}; the tables are of another version: effectonce migrate '{a}'"),
    1142: lambda m, a: ConfigurationError(f"{m}; GRANT SELECT, INSERT, UPDATE, DELETE on the tables to this user"),
    1406: lambda m, a: KeyTooLong(f"{m}; a scope holds 512 characters and a key 4096"),
    1665: lambda m, a: UnsafeStore(f"{m}; set binlog_format to ROW or MIXED"),
}


def _inner(error: BaseException) -> BaseException | None:
    """What the driver wrapped: both report timeouts and refused certificates as lost or failed connections."""
    found: BaseException | None = getattr(error, "original_exception", None) or error.__cause__ or error.__context__
    return found
