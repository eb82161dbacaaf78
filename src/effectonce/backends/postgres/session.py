"""Sessions with a PostgreSQL server: of our own by URL, or borrowed from a psycopg pool; in both colours.

All that blocks is here. A sync source does it inside an ``async def`` that never suspends.
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
    "AsyncOwn",
    "AsyncPooled",
    "Lender",
    "Options",
    "Prepare",
    "Session",
    "Source",
    "SyncOwn",
    "SyncPooled",
    "first_line",
    "pq",
    "psycopg",
]

Prepare = Literal["auto", "on", "off"]

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


class Options:
    """What a postgresql:// URL says about the connection. Takes its options from ``address``."""

    @classmethod
    def of_pool(cls, pool: Any, timeout: float) -> Options:
        """Where an existing pool connects to, for the colour that it does not have itself."""
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
        self.prepare: Prepare = address.take("prepare", _preparing, _preparing("auto"))
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


def _preparing(text: str) -> Prepare:
    """``auto``: but not behind a pooler. ``on``: there, too (PgBouncer 1.21 or later with max_prepared_statements)."""
    choices: dict[str, Prepare] = {"auto": "auto", "on": "on", "off": "off"}
    return choices[text]


class Session:
    """One connection to a server, and what is known about it."""

    def __init__(self, pgconn: PGconn) -> None:
        self.pgconn = pgconn
        self.lent: Any = None  # the pool's object for it, until it is given back
        self.greeted = False
        self.current = False  # the schema's version was looked at
        self.shared = False  # by a pooler: it may be another server process for every transaction
        self.pinned = True  # READ COMMITTED by default
        self.prepares = False
        self.generic = False  # what is prepared is planned once
        self.prepared: set[bytes] = set()
        self.listening = b""
        self.heard = 0.0  # when LISTEN was last answered
        self.rows = Transformer(_LOADERS)


# -- what blocks: opening, borrowing and waiting, in both colours --------------------------------------------


class Source(ABC):
    """Where sessions come from, and how to wait for one's socket."""

    #: Sessions are this source's alone, so that it may set what it likes on them.
    owns = True
    #: How long a new session may take until it can be used, in seconds.
    connect_timeout: float

    @abstractmethod
    async def take(self) -> Session:
        """A connected session, nobody else's until it is given back or dropped."""

    async def give_back(self, session: Session) -> None:
        """The session is idle again."""
        return

    @abstractmethod
    async def drop(self, session: Session) -> None:
        """Close the session in whatever state it is. Never suspends before the socket is closed."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def ready(self, fd: int, writing: bool, deadline: float) -> None:
        """Return when the socket can be read (or, with ``writing``, also written). TimeoutError at the deadline."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...


class SyncWaiting(Source):
    """The blocking colour."""

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


class AsyncWaiting(Source):
    """The colour of the running event loop."""

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


class _Own(Source):
    """One connection of our own, opened by URL when first used."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.connect_timeout = options.connect_timeout
        self._session: Session | None = None

    async def take(self) -> Session:
        if self._session is None:
            self._session = Session(await self._connect())
        return self._session

    async def drop(self, session: Session) -> None:
        self._session = None
        session.pgconn.finish()

    async def close(self) -> None:
        if self._session is not None:
            await self.drop(self._session)

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


class SyncOwn(SyncWaiting, _Own):
    async def _attempts(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        return conninfo_attempts(params)


class AsyncOwn(AsyncWaiting, _Own):
    async def _attempts(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        return await conninfo_attempts_async(params)


class Lender:
    """A psycopg pool of the caller's, and what is known about its connections: shared by all ports on it."""

    def __init__(self, pool: Any, timeout: float) -> None:
        self.pool = pool
        self.timeout = timeout
        self.known: weakref.WeakKeyDictionary[Any, Session] = weakref.WeakKeyDictionary()
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


class _Pooled(Source):
    """A connection per operation from the caller's psycopg pool, which the caller closes."""

    owns = False

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        self._pool = lender.pool
        self.connect_timeout = lender.timeout

    @abstractmethod
    async def _get(self, timeout: float) -> Any: ...

    @abstractmethod
    async def _put(self, conn: Any) -> None: ...

    async def take(self) -> Session:
        self._lender.check_process()
        try:
            conn = await self._get(self.connect_timeout)
        except psycopg.Error as error:  # PoolTimeout, PoolClosed
            raise StoreUnavailable(f"the pool gave no connection: {first_line(error)}") from error
        known = self._lender.known
        session = known.get(conn)
        if session is None:
            session = known[conn] = Session(conn.pgconn)
        session.lent = conn
        return session

    async def give_back(self, session: Session) -> None:
        # Not kept while it is idle: it would keep its own entry in `Lender.known` alive.
        conn, session.lent = session.lent, None
        await self._put(conn)

    async def drop(self, session: Session) -> None:
        session.pgconn.finish()  # the pool replaces a closed connection
        await self.give_back(session)

    async def close(self) -> None:
        return


class SyncPooled(SyncWaiting, _Pooled):
    async def _get(self, timeout: float) -> Any:
        return self._pool.getconn(timeout)

    async def _put(self, conn: Any) -> None:
        self._pool.putconn(conn)


class AsyncPooled(AsyncWaiting, _Pooled):
    async def _get(self, timeout: float) -> Any:
        return await self._pool.getconn(timeout)

    async def _put(self, conn: Any) -> None:
        await self._pool.putconn(conn)


def first_line(error: Exception) -> str:
    """What libpq says, for a message: its first line. It names hosts, users and databases, never a password."""
    return show(str(error).strip().partition("\n")[0] or type(error).__name__, 200)
