"""Connections to a PostgreSQL server: opened by URL, or borrowed from a psycopg pool; for sync and async callers.

A `ConnectionSource` opens or borrows a `PostgresConnection`. All that blocks is in its `Waiter`: `LoopWaiter` suspends,
`BlockingWaiter` blocks the thread inside an ``async def`` that never suspends.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from effectonce.errors import ConfigurationError, StoreUnavailable
from effectonce.values.awaitables import maybe_await

from .conninfo import ConnectionOptions, first_line, tls_refusal
from .driver import (
    BOOL_OID,
    BYTEA_OID,
    INT4_OID,
    INT8_OID,
    TEXT_OID,
    AdaptersMap,
    BoolBinaryLoader,
    Transformer,
    conninfo_attempts,
    conninfo_attempts_async,
    make_conninfo,
    numeric,
    pq,
    psycopg,
    string,
)

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

T = TypeVar("T")


def _make_loaders() -> AdaptersMap:
    """The loaders of values in results, by type. A map of our own, since a program may have changed psycopg's global
    one."""
    loaders = AdaptersMap(types=psycopg.adapters.types)
    loaders.register_loader(BOOL_OID, BoolBinaryLoader)
    loaders.register_loader(BYTEA_OID, string.ByteaBinaryLoader)
    loaders.register_loader(INT8_OID, numeric.Int8BinaryLoader)
    loaders.register_loader(INT4_OID, numeric.Int4BinaryLoader)
    loaders.register_loader(TEXT_OID, string.TextBinaryLoader)
    return loaders


_LOADERS: Final = _make_loaders()


class PostgresConnection:
    """One connection of libpq, and the state of its session on the server.

    A new one is unverified: `PostgresClient` asks the server for its facts before the first statement, and for the
    version of our tables before the first statement that needs them.
    """

    def __init__(self, pgconn: PGconn) -> None:
        self.pgconn = pgconn
        self.borrowed: Any = None  # the pool's object for this connection, until it is given back
        self.verified = False  # the server can keep records
        self.schema_verified = False  # its tables are of our version
        self.behind_pooler = False  # each transaction may run in another server process
        self.read_committed = True  # a statement without BEGIN runs at READ COMMITTED
        self.may_prepare = False
        self.forces_generic_plans = False  # plan_cache_mode is force_generic_plan
        self.prepared_names: set[bytes] = set()
        self.listening_to = b""  # the channel
        self.listened_at = 0.0  # when LISTEN was last answered
        self.loader = Transformer(_LOADERS)


# -- waiting for sockets, sync and async


class Waiter(Protocol):
    """How to wait for sockets."""

    async def wait_until_ready(self, fd: int, writing: bool, deadline: float) -> None:
        """Wait until the socket can be read (or, with ``writing``, written). TimeoutError at the deadline."""

    async def sleep(self, seconds: float) -> None: ...

    async def resolve(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        """Look up the names of hosts. Returns one set of libpq's parameters for each address to try."""

    async def call(self, function: Callable[[], T]) -> T:
        """Call a function that may block, such as one that fetches a password."""


class BlockingWaiter:
    """Waits by blocking the calling thread."""

    async def wait_until_ready(self, fd: int, writing: bool, deadline: float) -> None:
        seconds_left = max(0.0, deadline - time.monotonic())
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(fd, select.POLLIN | select.POLLOUT if writing else select.POLLIN)
            is_ready = bool(poll.poll(seconds_left * 1000))
        else:  # Windows
            is_ready = any(select.select([fd], [fd] if writing else [], [], seconds_left))
        if not is_ready:
            raise TimeoutError

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  (a sync port never suspends)

    async def resolve(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        return conninfo_attempts(params)

    async def call(self, function: Callable[[], T]) -> T:
        return function()


class LoopWaiter:
    """Waits on the running event loop."""

    async def wait_until_ready(self, fd: int, writing: bool, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        loop.add_reader(fd, _set_once, future, True)
        if writing:
            loop.add_writer(fd, _set_once, future, True)
        timer = loop.call_later(max(0.0, deadline - time.monotonic()), _set_once, future, False)
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

    async def resolve(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        return await conninfo_attempts_async(params)

    async def call(self, function: Callable[[], T]) -> T:
        return await asyncio.to_thread(function)


def _set_once(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


# -- where connections come from


class ConnectionSource(ABC):
    """Gives connections to a client, and takes them back."""

    #: No other code uses its connections, so their settings may be changed.
    exclusive = True

    def __init__(self, waiter: Waiter, connect_timeout: float) -> None:
        self.waiter = waiter
        #: How long a new connection may take until it can be used, in seconds.
        self.connect_timeout = connect_timeout

    @abstractmethod
    async def take(self) -> PostgresConnection:
        """Take a connection, which no other caller gets until it is given back or dropped."""

    async def give_back(self, connection: PostgresConnection) -> None:
        """Take back a connection that is idle again."""
        return

    @abstractmethod
    async def drop(self, connection: PostgresConnection) -> None:
        """Close the connection, whatever state it is in. Never suspends before the socket is closed."""

    async def close(self) -> None:
        """Close the connections that are open."""
        return


class OwnConnection(ConnectionSource):
    """One connection of our own, opened by URL when first used."""

    def __init__(self, waiter: Waiter, options: ConnectionOptions) -> None:
        super().__init__(waiter, options.connect_timeout)
        self._options = options
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

    async def _connect(self) -> PGconn:
        """Connect to the first of the addresses that answers. Each has the whole timeout, so that a dead one does not
        use up the time of the next."""
        options = self._options
        reason = "no address to connect to"
        cause: Exception | None = None
        refusal: ConfigurationError | None = None
        password = await self._fetch_password()
        try:
            attempts = await self.waiter.resolve(options.params)
        except (psycopg.Error, OSError) as error:
            attempts, reason, cause = [], first_line(error), error
        for attempt in attempts:
            try:
                return await self._open(make_conninfo("", **options.attempt_params(attempt, password)))
            except TimeoutError as error:
                reason, cause = f"no answer within {self.connect_timeout:g} s", error
            except psycopg.Error as error:
                reason, cause = first_line(error), error
                refusal = refusal or tls_refusal(error, options.address)
        if refusal is not None:
            raise refusal from cause
        raise StoreUnavailable(f"cannot connect to {options.address}: {reason}") from cause

    async def _fetch_password(self) -> str | None:
        """Call the caller's function for the password of a new connection; None: there is none."""
        if self._options.password is None:
            return None
        try:
            return await self.waiter.call(self._options.password)
        except Exception as error:
            raise StoreUnavailable(
                f"the function that returns the password of {self._options.address} failed ({type(error).__name__}); "
                "see its error"
            ) from error

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
                await self.waiter.wait_until_ready(pgconn.socket, status == pq.PollingStatus.WRITING, deadline)
        except BaseException:
            pgconn.finish()
            raise


class BorrowedPool:
    """A psycopg pool that the caller owns, and our state of each of its connections. All ports on the pool share
    this."""

    def __init__(self, pool: Any, timeout: float) -> None:
        self.pool = pool
        self.timeout = timeout
        self.connections: weakref.WeakKeyDictionary[Any, PostgresConnection] = weakref.WeakKeyDictionary()
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
        """Called in the child. A pool that is open already is the parent's, even if the parent has not used it yet."""
        if self._process is None and not self.pool.closed:
            self._process = os.getppid()


class PooledConnections(ConnectionSource):
    """Takes a connection for each operation from the caller's psycopg pool, which the caller closes."""

    exclusive = False

    def __init__(self, waiter: Waiter, pool: BorrowedPool) -> None:
        super().__init__(waiter, pool.timeout)
        self._borrowed_pool = pool
        self._pool = pool.pool

    async def take(self) -> PostgresConnection:
        self._borrowed_pool.check_process()
        try:
            borrowed = await maybe_await(self._pool.getconn(self.connect_timeout))
        except psycopg.Error as error:  # PoolTimeout, PoolClosed
            raise StoreUnavailable(f"the pool gave no connection: {first_line(error)}") from error
        connections = self._borrowed_pool.connections
        connection = connections.get(borrowed)
        if connection is None:
            connection = connections[borrowed] = PostgresConnection(borrowed.pgconn)
        connection.borrowed = borrowed
        return connection

    async def give_back(self, connection: PostgresConnection) -> None:
        # Our state must not refer to an idle connection: that would keep its entry in `BorrowedPool.connections`, whose
        # keys are weak, alive forever.
        borrowed, connection.borrowed = connection.borrowed, None
        await maybe_await(self._pool.putconn(borrowed))

    async def drop(self, connection: PostgresConnection) -> None:
        connection.pgconn.finish()  # the pool replaces a closed connection
        await self.give_back(connection)
