"""The handle on a dedup store, and how one is opened."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from .contracts import Backend, Capabilities, ConnectionLost, Contention, Examinable, Fresh, Hook, Port
from .core.codec import ABANDONED, encode_untyped
from .core.privacy import VERSION as SEALED
from .core.privacy import Privacy
from .core.registry import load, url_in_environment
from .core.run_sync import run_sync
from .core.store_runtime import StoreRuntime
from .errors import ConfigurationError, InvalidOption, NotInDoubt, SchemaMissing, ScopeTaken, StoreUnavailable, show
from .record import Figures, Page, Query, Record, Resolution, State, Stats, Swept
from .values.durations import Duration, micros
from .values.identity import Key, encode_key

T = TypeVar("T")

DEFAULT_RETENTION: Duration = "15d"
MAX_RESULT = 256 * 1024
ENVIRONMENT = "EFFECTONCE_STORE"

_HIDDEN = re.compile("[0-9a-f]{64}")  # a key as `Privacy.hide` leaves it

#: scheme: (module of this package, class of the backend in it)
SCHEMES = {
    "memory": ("backends.memory.store", "MemoryStoreBackend"),
    "sqlite": ("backends.sqlite.store", "SQLiteStoreBackend"),
    "redis": ("backends.redis.store", "RedisStoreBackend"),
    "rediss": ("backends.redis.store", "RedisStoreBackend"),
    "redis+cluster": ("backends.redis.store", "RedisStoreBackend"),
    "redis+unix": ("backends.redis.store", "RedisStoreBackend"),
    "postgresql": ("backends.postgres.store", "PostgresBackend"),
    "postgres": ("backends.postgres.store", "PostgresBackend"),
    "mysql": ("backends.mysql.store", "MySQLBackend"),
    "mariadb": ("backends.mysql.store", "MySQLBackend"),
    "dynamodb": ("backends.dynamodb.store", "DynamoDBBackend"),
}


class Store:
    """Where records are kept. One object serves `def` and `async def` handlers alike.

    Opening it does nothing until first use; `check` opens it and verifies that it can keep its promise. Methods
    with plain names are sync; in async code run them with ``asyncio.to_thread``.
    """

    def __init__(
        self,
        backend: Backend | Callable[[], Backend],
        *,
        private: str | bytes | None = None,
        hooks: Sequence[Hook] = (),
        max_result: int = MAX_RESULT,
        sweep_every: Duration | None = "1m",
    ) -> None:
        self.max_result = max_result
        self._privacy = Privacy(private) if private is not None else None
        self._hooks = tuple(hooks)
        self._sweep_every = None if sweep_every is None else micros(sweep_every, "sweep_every") / 1e6
        self._make = backend if callable(backend) else None
        self._live: StoreRuntime | None = None if callable(backend) else self._runtime_on(backend)
        self._opening = threading.Lock()
        self._scopes: dict[str, weakref.ref[Any]] = {}

    def _runtime_on(self, backend: Backend) -> StoreRuntime:
        return StoreRuntime(backend, privacy=self._privacy, hooks=self._hooks, sweep_every=self._sweep_every)

    @property
    def runtime(self) -> StoreRuntime:
        """What runs behind this handle; `testing.override` puts another's in its place."""
        live = self._live
        if live is None:
            with self._opening:
                if self._live is None:
                    self._live = self._runtime_on(self._make())  # type: ignore[misc]
                live = self._live
        return live

    @property
    def capabilities(self) -> Capabilities:
        return self.runtime.backend.capabilities

    @property
    def private(self) -> bool:
        """Whether it hides keys and encrypts results."""
        return self._privacy is not None

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """What is called with every event."""
        return self._hooks

    def add_hook(self, hook: Hook) -> None:
        """Call ``hook`` with every `Event` from now on; once with each, however often it is added."""
        with self._opening:  # an runtime that opens meanwhile would not be told of it
            if hook not in self._hooks:
                self._hooks = (*self._hooks, hook)
            if self._live is not None:
                self._live.add_hook(hook)

    def take_scope(self, scope: str, function: Any) -> None:
        """Note that ``function`` runs under ``scope``; `ScopeTaken` where another one does."""
        known = self._scopes.get(scope)
        other = known() if known is not None else None
        if other is not None and other is not function and not _same_code(other, function):
            raise ScopeTaken(
                f"scope {show(scope)!r} is already used by {_place(other)} on this store, and {_place(function)} would "
                "never run for a message that the first has handled; give each its own scope="
            )
        try:
            self._scopes[scope] = weakref.ref(function)
        except TypeError:  # a callable that cannot be referred to weakly cannot be told apart later either
            pass

    # -- for people

    def get(self, scope: str, key: Key) -> Record | None:
        """The record of ``key``, or None."""
        return self._ask(lambda port: port.get(scope, self._stored(scope, key)))

    def list(
        self,
        *,
        state: State | None = None,
        scope: str | None = None,
        unfinished: bool = False,
        limit: int = 100,
        cursor: str | None = None,
        after: tuple[str, str] | None = None,
    ) -> Page:
        """A page of at most ``limit`` records; pass its ``cursor`` on for the next. ``unfinished``: only intents and
        sagas that somebody may have to go on with. ``after``: only what comes behind this (scope, stored key), by scope
        and key, where the store keeps them in that order (`Capabilities.ordered`)."""
        size = max(1, min(limit, 1000))
        if after is not None and not self.capabilities.ordered:
            raise InvalidOption(f"{self!r} keeps its records in no order: after= is not for it")
        query = Query(state=state, scope=scope, unfinished=unfinished, limit=size, cursor=cursor, after=after)
        return self._ask(lambda port: port.list(query))

    def stats(self) -> Stats:
        """How many records there are in each state, counted up to a cap."""
        return self._ask(lambda port: port.stats())

    def figures(self, *, overdue_by: Duration = "10m") -> Figures | None:
        """What the store can say about its health without walking its records; None where it has nothing to say."""
        span = micros(overdue_by, "overdue_by")

        async def ask(port: Port) -> Figures | None:
            return await port.figures(await port.now() - span) if isinstance(port, Examinable) else None

        return self._ask(ask)

    def forget(self, scope: str, key: Key, *, retention: Duration = DEFAULT_RETENTION) -> bool:
        """Let the next delivery of ``key`` run as a new generation. False where there is no record.

        Whoever is running it now is fenced out: its completion will not be recorded.
        """
        span = micros(retention, "retention")
        stored = self._stored(scope, key)
        forgotten = self._tell(lambda port: port.forget(scope, stored, span))
        self.runtime.waiters.wake((scope, stored))
        if forgotten:
            self.runtime.emit("forgotten", scope, encode_key(key))
        return forgotten

    def resolve(
        self,
        scope: str,
        key: Key,
        outcome: Literal["done", "retry", "abandon"],
        *,
        result: Any = ...,
        retention: Duration = DEFAULT_RETENTION,
        who: str = "",
        quiet: bool = False,
    ) -> None:
        """Decide a record that is in doubt: it happened (``done``, with its result, if you know it; a duplicate gets
        `ResultNotStored` otherwise), let it run again as a new generation (``retry``), or give it up (``abandon``).
        `NotInDoubt`, and no change, where it is not in doubt. What was said, and by ``who``, is an event, unless the
        caller has its own (``quiet``). A result for a private record needs the handle that has its secret."""
        stored = self._stored(scope, key)
        about = f"scope {show(scope)!r}, key {show(key)!r}"
        record = self._ask(lambda port: port.get(scope, stored))
        if record is None:
            raise NotInDoubt(f"{about} has no record, so there is nothing to resolve")
        body = encode_untyped(result) if outcome == "done" and result is not ... else None
        if body is not None and self.runtime.privacy is None:
            self._require_public(record)
        error = ABANDONED if outcome == "abandon" else None
        if self.runtime.privacy is not None:
            body, error = (self.runtime.privacy.seal(each, scope, stored, record.generation) for each in (body, error))
        states: dict[str, Literal["done", "failed", "free"]] = {"done": "done", "retry": "free", "abandon": "failed"}
        if outcome not in states:
            raise ConfigurationError(f"resolve takes 'done', 'retry' or 'abandon', not {outcome!r}")
        resolution = Resolution(
            state=states[outcome], retention=micros(retention, "retention"), result=body, error=error
        )
        if not self._tell(lambda port: port.resolve(scope, stored, resolution)):
            raise NotInDoubt(f"{about} is {record.state}, not in doubt; nothing was changed")
        self.runtime.waiters.wake((scope, stored))
        if not quiet:
            self.runtime.emit("resolved", scope, encode_key(key), detail=f"{outcome} by {who or 'this program'}")

    def _require_public(self, record: Record) -> None:
        """Refuse to write a result in the clear that only a handle with ``private=`` could have sealed, and would read.
        A hidden key looks like any other hash; whether they are hidden, finished records of the scope tell."""
        if _HIDDEN.fullmatch(record.key) is None:
            return
        finished = self.list(scope=record.scope, state="done", limit=100).records
        kept = [each.result for each in finished if each.result is not None]
        if not kept or any(result.startswith(SEALED) for result in kept):
            raise InvalidOption(
                f"scope {show(record.scope)!r} looks private: a result that is written without the secret could not be "
                "read; resolve it without one, or from the program that has connect(…, private=…)"
            )

    def purge(self, *, limit: int | None = None) -> Swept:
        """Delete expired records and move lapsed ones to in doubt, in bounded batches, until none (or ``limit``)
        are left. The store's own thread does this once a minute."""
        deleted = lapsed = 0
        while True:
            size = 500 if limit is None else min(500, limit - deleted)
            swept = self._ask(lambda port: port.sweep(size))  # noqa: B023
            deleted, lapsed = deleted + swept.deleted, lapsed + swept.lapsed
            if not swept.more or (limit is not None and deleted >= limit):
                return Swept(deleted, lapsed, swept.more)

    def now(self) -> int:
        """The store's clock, in microseconds since the epoch."""
        return self._ask(lambda port: port.now())

    def check(self) -> None:
        """Connect, and raise what would keep this store from its promise: schema, eviction policy, a replica."""
        self._ask(lambda port: port.check())

    def migrate(self) -> None:
        """Create or upgrade the schema."""
        self._ask(lambda port: port.migrate())

    def schema_sql(self) -> str:
        """The schema, for those who run their own migrations; '' where the store has none."""
        return self.runtime.backend.schema_sql()

    def _stored(self, scope: str, key: Key) -> str:
        text = encode_key(key)
        privacy = self.runtime.privacy
        return text if privacy is None else privacy.hide(scope, text)

    def _ask(self, ask: Callable[[Port], Coroutine[Any, Any, T]]) -> T:
        runtime = self.runtime
        with runtime.admin_lock:
            port = runtime.admin_port()
            for _ in range(5):
                try:
                    return run_sync(ask(port))
                except ConnectionLost as error:
                    failure: Exception = error
                except Contention as error:
                    failure = error
            raise StoreUnavailable(f"{runtime.backend!r} did not answer: {failure}") from failure

    def _tell(self, tell: Callable[[Port], Coroutine[Any, Any, T]]) -> T:
        """As `_ask`, for what must not be applied twice: it is never repeated once it may have been applied."""
        self._ask(lambda port: port.now())  # so that a connection that died while idle is not met by what follows
        runtime = self.runtime
        with runtime.admin_lock:
            for _ in range(5):
                try:
                    return run_sync(tell(runtime.admin_port()))
                except Contention as error:
                    failure: Exception = error
                except ConnectionLost as error:
                    raise StoreUnavailable(
                        f"the connection to {runtime.backend!r} broke before it answered: this may have been applied; "
                        "look at the record (store.get) before you repeat it"
                    ) from error
            raise StoreUnavailable(f"{runtime.backend!r} did not answer: {failure}") from failure

    # -- the end

    def close(self) -> None:
        """Close every sync connection, and the heartbeat. Async ones belong to their loops: use `aclose` there."""
        if self._live is not None:
            self._live.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and the sync ones."""
        if self._live is not None:
            self._live.close()
            await self._live.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"Store({self._live.backend!r})" if self._live is not None else f"Store(${ENVIRONMENT})"


def connect(url: str | None = None, **options: Any) -> Store:
    """A `Store` by URL: ``memory://``, ``sqlite:///file.db``, ``redis://``, ``postgresql://``, ``mysql://``,
    ``mariadb://``, ``dynamodb://table?region=…``. Without one, the environment's ``EFFECTONCE_STORE``, on first use.

    Validates the URL and that its driver is installed, and opens nothing. ``private=SECRET`` hides keys and
    encrypts results; ``hooks=`` are called with every event.
    """
    if url is None:
        return Store(_from_environment, **options)
    return Store(open_backend(url), **options)


def _from_environment() -> Backend:
    return open_backend(url_in_environment(ENVIRONMENT, "connect('sqlite:///shop.db')"))


def open_backend(url: str) -> Backend:
    """The backend for ``url``: ours, or one that an installed package offers as ``effectonce.stores``."""
    backend: Backend = load(url, "store", SCHEMES)
    return backend


def require_there(backend: object, make: str) -> None:
    """`SchemaMissing` where the first use of ``backend`` would make its file or its tables, for those who only look;
    ``make`` says what does."""
    if isinstance(backend, Fresh) and backend.is_new():
        raise SchemaMissing(f"there is nothing at {backend!r}, and looking makes nothing: check its name, or {make}")


class RedisStore(Store):
    """A store on your own redis-py client (`redis.Redis`, `redis.asyncio.Redis`, or a cluster), which you close."""

    def __init__(self, *, client: Any, namespace: str = "eo", **options: Any) -> None:
        from .backends.redis.store import RedisStoreBackend

        super().__init__(RedisStoreBackend.from_client(client, namespace=namespace), **options)


class PostgresStore(Store):
    """A store on your own psycopg pool (`ConnectionPool` or `AsyncConnectionPool`), which you close."""

    def __init__(self, *, pool: Any, prefix: str = "effectonce", allow_unsafe: bool = False, **options: Any) -> None:
        from .backends.postgres.store import PostgresPoolBackend

        super().__init__(PostgresPoolBackend(pool, prefix=prefix, allow_unsafe=allow_unsafe), **options)


def _same_code(one: Any, other: Any) -> bool:
    """A module that was loaded twice defines the same function again; a closure made twice does not."""
    return (
        getattr(one, "__qualname__", 1) == getattr(other, "__qualname__", 2)
        and getattr(one, "__module__", 1) == getattr(other, "__module__", 2)
        and "<locals>" not in getattr(other, "__qualname__", "")
    )


def _place(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
