"""`Store`, the handle that users hold on their dedup store, and `connect`, which makes one from a URL."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Literal, Self, TypeVar

from .contracts import Backend, Capabilities, ConnectionLost, Contention, Examinable, Hook, Port, SelfMigrating
from .core.backend_urls import load_backend, url_in_environment
from .core.codec import ABANDONED_ERROR, encode_untyped
from .core.privacy import SEALED_PREFIX, Privacy, looks_hidden
from .core.run_sync import run_sync
from .core.store_runtime import StoreRuntime
from .errors import (
    ConfigurationError,
    InvalidOption,
    NotInDoubt,
    SchemaMissing,
    ScopeTaken,
    StoreUnavailable,
    scrub_urls,
    show,
)
from .record import Figures, Page, Query, Record, Resolution, State, Stats, SweepResult
from .values.durations import Duration, micros
from .values.identity import Key, encode_key

T = TypeVar("T")

DEFAULT_RETENTION: Final[Duration] = "15d"
MAX_RESULT_BYTES: Final = 256 * 1024
ENVIRONMENT_VARIABLE: Final = "EFFECTONCE_STORE"

MAX_PAGE: Final = 1_000  # records
SWEEP_BATCH: Final = 500  # records that `purge` deletes in one call of the port
MAX_ADMIN_TRIES: Final = 5  # of an operator's call that met a broken connection or a deadlock


#: scheme: (module of this package, class of the backend in it)
SCHEMES = {
    "memory": ("backends.memory.store", "MemoryStoreBackend"),
    "sqlite": ("backends.sqlite.store", "SQLiteStoreBackend"),
    "redis": ("backends.redis.store", "RedisStoreBackend"),
    "rediss": ("backends.redis.store", "RedisStoreBackend"),
    "redis+cluster": ("backends.redis.store", "RedisStoreBackend"),
    "redis+sentinel": ("backends.redis.store", "RedisStoreBackend"),
    "redis+unix": ("backends.redis.store", "RedisStoreBackend"),
    "unix": ("backends.redis.store", "RedisStoreBackend"),
    "valkey": ("backends.redis.store", "RedisStoreBackend"),
    "valkeys": ("backends.redis.store", "RedisStoreBackend"),
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
        max_result: int = MAX_RESULT_BYTES,
        sweep_every: Duration | None = "1m",
    ) -> None:
        self.max_result = max_result
        self.private = private is not None  # whether keys are hidden and results encrypted
        self.hooks = tuple(hooks)  # called with every event; see `add_hook`
        self._privacy = None if private is None else Privacy(private)
        self._sweep_every = None if sweep_every is None else micros(sweep_every, "sweep_every") / 1e6
        self._backend = backend
        self._runtime: StoreRuntime | None = None
        self._opening = threading.Lock()
        self._scopes: dict[str, weakref.ref[Any]] = {}
        _stores.add(self)

    @property
    def runtime(self) -> StoreRuntime:
        """The connections, group commit and heartbeat behind this handle. Opened when first used."""
        if self._runtime is None:
            with self._opening:
                if self._runtime is None:
                    backend = self._backend() if callable(self._backend) else self._backend
                    self._runtime = StoreRuntime(
                        backend, privacy=self._privacy, hooks=self.hooks, sweep_every=self._sweep_every
                    )
        return self._runtime

    def use_runtime(self, runtime: StoreRuntime | None) -> StoreRuntime | None:
        """Use ``runtime`` from now on (None: open a new one when it is needed). Returns the previous one.

        Calls that have begun keep the runtime that they began with.
        """
        previous, self._runtime = self._runtime, runtime
        return previous

    @property
    def capabilities(self) -> Capabilities:
        return self.runtime.backend.capabilities

    def add_hook(self, hook: Hook) -> None:
        """Call ``hook`` with every `Event` from now on. Adding it twice has no further effect."""
        with self._opening:  # a runtime that is opened meanwhile must have it, too
            if hook not in self.hooks:
                self.hooks = (*self.hooks, hook)
            if self._runtime is not None:
                self._runtime.add_hook(hook)

    def take_scope(self, scope: str, function: Any) -> None:
        """Reserve ``scope`` for ``function``. Raises `ScopeTaken` if another function has it."""
        reference = self._scopes.get(scope)
        other = reference() if reference is not None else None
        if other is not None and other is not function and not _same_code(other, function):
            raise ScopeTaken(
                f"scope {show(scope)!r} is already used by {_place(other)} on this store, and {_place(function)} would "
                "never run for a message that the first has handled; give each its own scope="
            )
        try:
            self._scopes[scope] = weakref.ref(function)
        except TypeError:  # without a weak reference, the callable cannot be compared with another one later
            pass

    # -- for operators

    def get(self, scope: str, key: Key) -> Record | None:
        """Return the record of ``key``, or None."""
        return self._ask(lambda port: port.get(scope, self._stored_key(scope, key)))

    def list(
        self,
        *,
        state: State | None = None,
        scope: str | None = None,
        unfinished: bool = False,
        limit: int = 100,
        cursor: str | None = None,
        after: tuple[str, str] | None = None,
        newest_first: bool = False,
        key_contains: str = "",
    ) -> Page:
        """Return a page of at most ``limit`` records; pass its ``cursor`` to get the next. ``unfinished``: only intents
        and sagas that may have to be resumed. ``after``: only records behind this (scope, stored key), by scope and
        key, where the store keeps them in that order (`Capabilities.ordered`).

        ``newest_first``: in the order of their last change. Most stores sort a bounded number of records for that; the
        page is ``partial`` if there are others. ``key_contains``: only records whose stored key contains this text;
        with ``newest_first``.
        """
        page_size = max(1, min(limit, MAX_PAGE))
        if after is not None and not self.capabilities.ordered:
            raise InvalidOption(f"{self!r} keeps its records in no order, so after= cannot be used; pass cursor=")
        if after is not None and newest_first:
            raise InvalidOption("after= is a place in the order of scope and key; leave out newest_first=")
        if key_contains and not newest_first:
            raise InvalidOption("key_contains= needs newest_first=True")
        query = Query(
            state=state,
            scope=scope,
            unfinished=unfinished,
            limit=page_size,
            cursor=cursor,
            after=after,
            newest_first=newest_first,
            key_contains=key_contains,
        )
        return self._ask(lambda port: port.list(query))

    def stats(self) -> Stats:
        """Count the records in each state, up to a cap."""
        return self._ask(lambda port: port.stats())

    def figures(self, *, overdue_by: Duration = "10m") -> Figures | None:
        """Return figures about the store's health that need no walk over its records; None if this store has none."""
        span = micros(overdue_by, "overdue_by")

        async def read_figures(port: Port) -> Figures | None:
            return await port.figures(await port.now() - span) if isinstance(port, Examinable) else None

        return self._ask(read_figures)

    def forget(self, scope: str, key: Key, *, retention: Duration = DEFAULT_RETENTION) -> bool:
        """Let the next delivery of ``key`` run as a new generation. False where there is no record.

        A handler that is running it now is fenced out: its completion will not be recorded.
        """
        span = micros(retention, "retention")
        stored = self._stored_key(scope, key)
        forgotten = self._ask_once(lambda port: port.forget(scope, stored, span))
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
        """Decide what happens to a record that is in doubt.

        - ``done``: the effect happened. Pass its ``result`` if you know it; otherwise a duplicate gets
          `ResultNotStored`.
        - ``retry``: the next delivery runs, as a new generation.
        - ``abandon``: the record has failed for good.

        Raises `NotInDoubt`, and changes nothing, if the record is not in doubt. Emits an event with the decision and
        ``who`` made it, unless ``quiet``. The result of a private record needs a handle that has the secret.
        """
        states: dict[str, Literal["done", "failed", "free"]] = {"done": "done", "retry": "free", "abandon": "failed"}
        if outcome not in states:
            raise ConfigurationError(f"resolve takes 'done', 'retry' or 'abandon', not {outcome!r}")
        stored = self._stored_key(scope, key)
        identity = f"scope {show(scope)!r}, key {show(key)!r}"
        record = self._ask(lambda port: port.get(scope, stored))
        if record is None:
            raise NotInDoubt(f"{identity} has no record, so there is nothing to resolve")
        body = encode_untyped(result) if outcome == "done" and result is not ... else None
        error = ABANDONED_ERROR if outcome == "abandon" else None
        privacy = self.runtime.privacy
        if privacy is not None:
            body = privacy.seal(body, scope, stored, record.generation)
            error = privacy.seal(error, scope, stored, record.generation)
        elif body is not None:
            self._require_public(record)
        resolution = Resolution(
            state=states[outcome], retention_us=micros(retention, "retention"), result=body, error=error
        )
        if not self._ask_once(lambda port: port.resolve(scope, stored, resolution)):
            raise NotInDoubt(f"{identity} is {record.state}, not in doubt; nothing was changed")
        self.runtime.waiters.wake((scope, stored))
        if not quiet:
            self.runtime.emit("resolved", scope, encode_key(key), detail=f"{outcome} by {who or 'this program'}")

    def _require_public(self, record: Record) -> None:
        """Refuse to write a result unencrypted into a private store: its handles, which have the secret, could not read
        it.

        This handle has no secret. A hidden key looks like any other hash, so finished records of the scope decide:
        whether their results are sealed.
        """
        if not looks_hidden(record.key):
            return
        finished = self.list(scope=record.scope, state="done", limit=100).records
        results = [other.result for other in finished if other.result is not None]
        if not results or any(result.startswith(SEALED_PREFIX) for result in results):
            raise InvalidOption(
                f"scope {show(record.scope)!r} looks private: a result that is written without the secret could not be "
                "read; resolve it without one, or from the program that has connect(…, private=…)"
            )

    def purge(self, *, limit: int | None = None) -> SweepResult:
        """Delete expired records and move lapsed ones to in doubt, in bounded batches, until none (or ``limit``)
        are left. The store's own thread does this once a minute."""
        deleted = lapsed = 0
        while True:
            size = SWEEP_BATCH if limit is None else min(SWEEP_BATCH, limit - deleted)
            swept = self._ask(lambda port: port.sweep(size))  # noqa: B023
            deleted, lapsed = deleted + swept.deleted, lapsed + swept.lapsed
            if not swept.more or (limit is not None and deleted >= limit):
                return SweepResult(deleted, lapsed, swept.more)

    def now(self) -> int:
        """Return the time on the store's clock, in microseconds since the epoch."""
        return self._ask(lambda port: port.now())

    def check(self) -> None:
        """Connect, and raise an error if this store cannot keep its promise: schema, eviction policy, a replica."""
        self._ask(lambda port: port.check())

    def migrate(self) -> None:
        """Create or upgrade the schema."""
        self._ask(lambda port: port.migrate())

    def schema_sql(self) -> str:
        """Return the schema as SQL, for your own migrations; '' if the store has none."""
        return self.runtime.backend.schema_sql()

    def _stored_key(self, scope: str, key: Key) -> str:
        """The key as it stands in the store: hidden, if the store is private."""
        text = encode_key(key)
        privacy = self.runtime.privacy
        return text if privacy is None else privacy.hide(scope, text)

    def _ask(self, work: Callable[[Port], Coroutine[Any, Any, T]], *, repeatable: bool = True) -> T:
        """Run ``work`` on the operators' port, and again after a broken connection or a deadlock.

        Not ``repeatable``: a broken connection is an error at once, since ``work`` may have been applied.
        """
        runtime = self.runtime
        with runtime.admin_lock:
            for _ in range(MAX_ADMIN_TRIES):
                try:
                    return run_sync(work(runtime.admin_port()))
                except Contention as error:
                    failure: Exception = error
                except ConnectionLost as error:
                    if not repeatable:
                        raise StoreUnavailable(
                            f"the connection to {runtime.backend!r} broke before it answered: this may have been "
                            "applied; look at the record (store.get) before you repeat it"
                        ) from error
                    failure = error
            raise StoreUnavailable(f"{runtime.backend!r} did not answer: {failure}") from failure

    def _ask_once(self, work: Callable[[Port], Coroutine[Any, Any, T]]) -> T:
        """Run ``work``, which must not be applied twice."""
        self._ask(lambda port: port.now())  # replaces a connection that died while idle, before ``work`` uses it
        return self._ask(work, repeatable=False)

    # -- closing

    def close(self) -> None:
        """Close every sync connection, and end the heartbeat. Async connections belong to their event loops: use
        `aclose` there."""
        if self._runtime is not None:
            self._runtime.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and the sync ones."""
        if self._runtime is not None:
            self._runtime.close()
            await self._runtime.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        backend = self._backend if self._runtime is None else self._runtime.backend
        return f"Store(${ENVIRONMENT_VARIABLE})" if callable(backend) else f"Store({backend!r})"


def connect(url: str | None = None, *, password: Callable[[], str] | None = None, **options: Any) -> Store:
    """Return the `Store` of a URL: ``memory://``, ``sqlite:///file.db``, ``redis://``, ``postgresql://``, ``mysql://``,
    ``mariadb://``, ``dynamodb://table?region=…``. Without one, the environment's ``EFFECTONCE_STORE``, on first use.

    Validates the URL and that its driver is installed, and opens nothing. ``private=SECRET`` hides keys and
    encrypts results; ``hooks=`` are called with every event. ``password=`` is a function that returns the password,
    called for each new connection: for tokens that expire, on PostgreSQL, MySQL and Redis.
    """
    return Store(partial(open_backend, None, password) if url is None else open_backend(url, password), **options)


def open_backend(url: str | None = None, password: Callable[[], str] | None = None) -> Backend:
    """Make the backend for ``url``; None: for the URL in the environment variable ``EFFECTONCE_STORE``. ``password``
    returns the password for one connection."""
    if url is None:
        url = url_in_environment(ENVIRONMENT_VARIABLE, "connect('sqlite:///shop.db')")
    backend: Backend = load_backend(url, "store", SCHEMES, password)
    return backend


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def all_stores() -> list[Store]:
    """The stores that this process has made and still holds."""
    return list(_stores)


def require_store(store: object, call: str) -> None:
    """Raise `ConfigurationError` unless ``store`` is a `Store`. ``call`` is the call that takes it, with ``{}`` in
    place of the store: the error shows how to write it."""
    if isinstance(store, Store):
        return
    if isinstance(store, str):
        url = show(scrub_urls(store))
        raise ConfigurationError(
            f"{call.format(repr(url))} was given a URL instead of a store; open the store once, "
            f"store = eo.connect({url!r}), and write {call.format('store')}"
        )
    raise ConfigurationError(
        f"{call.format('store')} takes a store, such as eo.connect('sqlite:///shop.db'), and was given "
        f"{show(type(store).__name__)}"
    )


def require_existing(backend: object, remedy: str) -> None:
    """Raise `SchemaMissing` if the first use of ``backend`` would create its file or its tables. For commands that only
    read; ``remedy`` tells the user what creates them."""
    if isinstance(backend, SelfMigrating) and backend.is_new():
        raise SchemaMissing(
            f"there is nothing at {backend!r}, and this command creates nothing: check its name, or {remedy}"
        )


class RedisStore(Store):
    """A store on your own redis-py client (`redis.Redis`, `redis.asyncio.Redis`, or a cluster), which you close."""

    def __init__(self, *, client: Any, namespace: str = "eo", **options: Any) -> None:
        from .backends.redis.store import RedisClientStoreBackend

        super().__init__(RedisClientStoreBackend(client, namespace=namespace), **options)


class PostgresStore(Store):
    """A store on your own psycopg pool (`ConnectionPool` or `AsyncConnectionPool`), which you close."""

    def __init__(self, *, pool: Any, prefix: str = "effectonce", allow_unsafe: bool = False, **options: Any) -> None:
        from .backends.postgres.store import PostgresPoolBackend

        super().__init__(PostgresPoolBackend(pool, prefix=prefix, allow_unsafe=allow_unsafe), **options)


def _same_code(one: Any, other: Any) -> bool:
    """Whether both are the same function of a module that was loaded twice. Two closures are two functions."""
    return (
        getattr(one, "__qualname__", 1) == getattr(other, "__qualname__", 2)
        and getattr(one, "__module__", 1) == getattr(other, "__module__", 2)
        and "<locals>" not in getattr(other, "__qualname__", "")
    )


def _place(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
