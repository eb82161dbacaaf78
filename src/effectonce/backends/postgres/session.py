"""Connections to a PostgreSQL server: our own by URL, or borrowed from a psycopg pool; for sync and async callers.

A `ConnectionSource` opens or borrows a `PostgresConnection` and waits for its socket. All that blocks is here: a sync
source blocks inside an ``async def`` that never suspends.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal

from effectonce.errors import (
    ConfigurationError,
    InvalidOption,
    MissingDriver,
    StoreUnavailable,
    SyncAsyncMismatch,
    show,
)
from effectonce.values.urls import Address

try:
    import psycopg
    from psycopg import pq
    from psycopg.adapt import AdaptersMap, Transformer
    from psycopg.conninfo import conninfo_attempts, conninfo_attempts_async, conninfo_to_dict, make_conninfo
    from psycopg.types import bool as boolean
    from psycopg.types import numeric, string
except ImportError as _error:
    raise MissingDriver(
        f"PostgreSQL needs the driver psycopg 3: pip install 'effectonce[postgres]' ({show(_error)})"
    ) from _error

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

__all__ = [
    "AsyncOwnSource",
    "AsyncPoolSource",
    "BorrowedPool",
    "ConnectionOptions",
    "PrepareMode",
    "PostgresConnection",
    "ConnectionSource",
    "SyncOwnSource",
    "SyncPoolSource",
    "first_line",
    "pq",
    "psycopg",
]

PrepareMode = Literal["auto", "on", "off"]

# libpq's options that may be in a URL. Others (`passfile`, `service`) would read files that the URL does not show.
_PASSED = (
    "application_name",
    "channel_binding",
    "gssencmode",
    "host",  # the directory of a Unix socket
    "options",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "target_session_attrs",
)


def _loaders() -> AdaptersMap:
    """How results are read. A map of our own: a program may have changed psycopg's global one."""
    loaders = AdaptersMap(types=psycopg.adapters.types)
    loaders.register_loader(16, boolean.BoolBinaryLoader)
    loaders.register_loader(17, string.ByteaBinaryLoader)
    loaders.register_loader(20, numeric.Int8BinaryLoader)
    loaders.register_loader(23, numeric.Int4BinaryLoader)
    loaders.register_loader(25, string.TextBinaryLoader)
    return loaders


_LOADERS = _loaders()


class ConnectionOptions:
    """What a postgresql:// URL says about the connection. Takes its options from ``address``."""

    @classmethod
    def of_pool(cls, pool: Any, timeout: float) -> ConnectionOptions:
        """Where an existing pool connects to: sync callers beside an async pool need connections of our own, and the
        reverse."""
        if not isinstance(pool.conninfo, str):
            raise SyncAsyncMismatch(
                "this pool is of the other colour and makes up its conninfo as it goes; make the store from a URL, "
                "which serves both sync and async code"
            )
        options = cls.__new__(cls)
        options.shown, options.timeout, options.connect_timeout = "the given pool", timeout, timeout
        options.prepare = _preparing("auto")
        names = (*_PASSED, "port", "user", "password", "dbname")
        given = {name: value for name, value in (pool.kwargs or {}).items() if name in names}
        options.params = {**conninfo_to_dict(pool.conninfo, **given), "client_encoding": "UTF8"}
        return options

    def __init__(self, address: Address) -> None:
        self.shown = str(address)
        self.timeout = address.seconds("timeout", 5.0)
        self.connect_timeout = address.seconds("connect_timeout", 5.0)
        self.prepare: PrepareMode = address.take("prepare", _preparing, _preparing("auto"))
        given = {name: address.take(name, str, "") for name in _PASSED}
        given["host"] = address.host or given["host"]
        given["port"] = str(address.port or "")
        given["user"], given["password"] = address.user or "", address.password or ""
        given["dbname"] = address.path.removeprefix("/")
        self.params: dict[str, Any] = {name: value for name, value in given.items() if value}
        self.params.setdefault("application_name", "effectonce")
        self.params["client_encoding"] = "UTF8"
        try:
            make_conninfo("", **self.params)
        except psycopg.Error as error:
            raise InvalidOption(f"libpq does not take {address}: {first_line(error)}") from None


def _preparing(text: str) -> PrepareMode:
    """``auto``: but not behind a pooler. ``on``: there, too (PgBouncer 1.21 or later with max_prepared_statements)."""
    choices: dict[str, PrepareMode] = {"auto": "auto", "on": "on", "off": "off"}
    return choices[text]


class PostgresConnection:
    """One connection of libpq, and the state of its session on the server.

    A new one is unverified: `PostgresClient` asks the server for its facts before the first statement, and for the
    version of our tables before the first statement that needs them.
    """

    def __init__(self, pgconn: PGconn) -> None:
        self.pgconn = pgconn
        self.borrowed: Any = None  # the pool's object for this connection, until it is given back
        self.verified = False  # the server is one that can keep records
        self.schema_verified = False  # its tables are of our version
        self.behind_pooler = False  # each transaction may run in another server process
        self.read_committed = True  # a statement by itself runs at READ COMMITTED; else it needs a BEGIN that says so
        self.may_prepare = False
        self.forces_generic_plans = False  # plan_cache_mode is force_generic_plan
        self.prepared_names: set[bytes] = set()
        self.listening_to = b""  # the channel
        self.listened_at = 0.0  # when LISTEN was last answered
        self.loader = Transformer(_LOADERS)


# -- what blocks: opening, borrowing and waiting, sync and async ---------------------------------------------


class ConnectionSource(ABC):
    """Where connections come from, and how to wait for their sockets."""

    #: Its connections are its alone, so that it may change their settings.
    owns = True
    #: How long a new connection may take until it can be used, in seconds.
    connect_timeout: float

    @abstractmethod
    async def take(self) -> PostgresConnection:
        """A connection that is the caller's alone until it is given back or dropped."""

    async def give_back(self, connection: PostgresConnection) -> None:
        """Take back a connection that is idle again."""
        return

    @abstractmethod
    async def drop(self, connection: PostgresConnection) -> None:
        """Close the connection in whatever state it is. Never suspends before the socket is closed."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def ready(self, fd: int, writing: bool, deadline: float) -> None:
        """Return when the socket can be read (or, with ``writing``, also written). TimeoutError at the deadline."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...


class SyncSource(ConnectionSource):
    """Waits by blocking the calling thread."""

    if hasattr(select, "poll"):

        async def ready(self, fd: int, writing: bool, deadline: float) -> None:
            poll = select.poll()
            poll.register(fd, select.POLLIN | select.POLLOUT if writing else select.POLLIN)
            left = deadline - time.monotonic()
            if not poll.poll(left * 1000 if left > 0 else 0):
                raise TimeoutError

    else:  # Windows

        async def ready(self, fd: int, writing: bool, deadline: float) -> None:
            left = max(0.0, deadline - time.monotonic())
            if not any(select.select([fd], [fd] if writing else [], [], left)):
                raise TimeoutError

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  (a sync port never suspends)


class AsyncSource(ConnectionSource):
    """Waits on the running event loop."""

    async def ready(self, fd: int, writing: bool, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        loop.add_reader(fd, _resolve, future, True)
        if writing:
            loop.add_writer(fd, _resolve, future, True)
        timer = loop.call_later(max(0.0, deadline - time.monotonic()), _resolve, future, False)
        try:
            if not await future:
                raise TimeoutError
        finally:
            timer.cancel()
            loop.remove_reader(fd)
            if writing:
                loop.remove_writer(fd)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _resolve(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


class _OwnSource(ConnectionSource):
    """One connection of our own, opened by URL when first used."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self.connect_timeout = options.connect_timeout
        self._connection: PostgresConnection | None = None

    async def take(self) -> PostgresConnection:
        if self._connection is None:
            self._connection = PostgresConnection(await self._connect())
        return self._connection

    async def drop(self, connection: PostgresConnection) -> None:
        self._connection = None
        connection.pgconn.finish()

    async def close(self) -> None:
        if self._connection is not None:
            await self.drop(self._connection)

    @abstractmethod
    async def _attempts(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        """One set of parameters per host and address to try."""

    async def _connect(self) -> PGconn:
        """The first of the addresses that answers. The timeout is for each: a dead one must not hide the next."""
        reason = "no address to connect to"
        cause: Exception | None = None
        try:
            attempts = await self._attempts(self._options.params)
        except (psycopg.Error, OSError) as error:
            attempts, reason, cause = [], first_line(error), error
        for attempt in attempts:
            try:
                return await self._open(make_conninfo("", **attempt))
            except TimeoutError:
                reason, cause = f"no answer within {self.connect_timeout:g} s", None
            except psycopg.Error as error:
                reason, cause = first_line(error), error
        raise StoreUnavailable(f"cannot connect to {self._options.shown}: {reason}") from cause

    async def _open(self, conninfo: str) -> PGconn:
        deadline = time.monotonic() + self.connect_timeout
        pgconn = pq.PGconn.connect_start(conninfo.encode())
        try:
            while True:
                if pgconn.status == pq.ConnStatus.BAD:
                    raise psycopg.OperationalError(pgconn.get_error_message())
                status = pgconn.connect_poll()
                if status == pq.PollingStatus.OK:
                    pgconn.nonblocking = 1
                    return pgconn
                if status == pq.PollingStatus.FAILED:
                    raise psycopg.OperationalError(pgconn.get_error_message())
                await self.ready(pgconn.socket, status == pq.PollingStatus.WRITING, deadline)
        except BaseException:
            pgconn.finish()
            raise


class SyncOwnSource(SyncSource, _OwnSource):
    async def _attempts(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        return conninfo_attempts(params)


class AsyncOwnSource(AsyncSource, _OwnSource):
    async def _attempts(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        return await conninfo_attempts_async(params)


class BorrowedPool:
    """A psycopg pool that the caller owns, and the state of its connections, which all ports on it share."""

    def __init__(self, pool: Any, timeout: float) -> None:
        self.pool = pool
        self.timeout = timeout
        self.known: weakref.WeakKeyDictionary[Any, PostgresConnection] = weakref.WeakKeyDictionary()
        self._process: int | None = None
        self.check_process()

    def check_process(self) -> None:
        """Refuse a pool that was opened before a fork: parent and child would talk on the same sockets."""
        if self._process is None:
            if not self.pool.closed:
                self._process = os.getpid()
        elif self._process != os.getpid():
            raise ConfigurationError(
                "this pool was opened before the process forked, and its connections are the parent's: "
                "open the pool after the fork, and make the store from it there"
            )

    def after_fork(self) -> None:
        """In the child: a pool that is open already is the parent's, also where the parent has not used it yet."""
        if self._process is None and not self.pool.closed:
            self._process = os.getppid()


class _PoolSource(ConnectionSource):
    """A connection per operation from the caller's psycopg pool, which the caller closes."""

    owns = False

    def __init__(self, pool: BorrowedPool) -> None:
        self._borrowed_pool = pool
        self._pool = pool.pool
        self.connect_timeout = pool.timeout

    @abstractmethod
    async def _get(self, timeout: float) -> Any: ...

    @abstractmethod
    async def _put(self, conn: Any) -> None: ...

    async def take(self) -> PostgresConnection:
        self._borrowed_pool.check_process()
        try:
            conn = await self._get(self.connect_timeout)
        except psycopg.Error as error:  # PoolTimeout, PoolClosed
            raise StoreUnavailable(f"the pool gave no connection: {first_line(error)}") from error
        known = self._borrowed_pool.known
        connection = known.get(conn)
        if connection is None:
            connection = known[conn] = PostgresConnection(conn.pgconn)
        connection.borrowed = conn
        return connection

    async def give_back(self, connection: PostgresConnection) -> None:
        # The state must not refer to an idle connection: that would keep its own entry in `BorrowedPool.known` alive.
        conn, connection.borrowed = connection.borrowed, None
        await self._put(conn)

    async def drop(self, connection: PostgresConnection) -> None:
        connection.pgconn.finish()  # the pool replaces a closed connection
        await self.give_back(connection)

    async def close(self) -> None:
        return


class SyncPoolSource(SyncSource, _PoolSource):
    async def _get(self, timeout: float) -> Any:
        return self._pool.getconn(timeout)

    async def _put(self, conn: Any) -> None:
        self._pool.putconn(conn)


class AsyncPoolSource(AsyncSource, _PoolSource):
    async def _get(self, timeout: float) -> Any:
        return await self._pool.getconn(timeout)

    async def _put(self, conn: Any) -> None:
        await self._pool.putconn(conn)


def first_line(error: Exception) -> str:
    """What libpq says, for a message: its first line. It names hosts, users and databases, never a password."""
    return show(str(error).strip().partition("\n")[0] or type(error).__name__, 200)
