"""`block`: the guard for a piece of code that is not a function of its own. `once` runs its function in a `Block`, too.

The handler runs between entering and leaving the block, never inside a coroutine of effectonce: there its
``StopIteration`` would become a ``RuntimeError``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

from effectonce.core.codec import Codec
from effectonce.core.guarded_call.begin import begin, prepare_run
from effectonce.core.guarded_call.finish import abort, finish
from effectonce.core.guarded_call.run import Policy, Run, StoreRun
from effectonce.core.run_sync import refuse_in_event_loop, run_sync
from effectonce.core.store_clients import StoreClient
from effectonce.errors import ConfigurationError, ResultNotStored, show
from effectonce.store import DEFAULT_RETENTION, Store, require_store
from effectonce.values.durations import Duration
from effectonce.values.fingerprint import fingerprints
from effectonce.values.identity import Key, encode_key

from .options import check_scope, policy_options


class Block:
    """What `block(...)` returns, for ``with`` and ``async with``. Entering it claims the key.

    Where ``first`` is true, do the work and set ``result``; otherwise ``result`` is the stored one. Leaving the block
    records the success, or releases the claim after an error.

    A block whose ``first`` was never read guards nothing: its body runs for duplicates, too. So leaving it raises
    `ConfigurationError`, for the first delivery as for a duplicate. The claim ends as after any other error of the
    body: it is released, or in doubt with ``on_error="doubt"``. It is not recorded as done, since nothing says that the
    work was; and it is not left to its lease, since the attempt has ended, and the corrected program may run at once.
    """

    def __init__(self, prepare_run: Callable[[], StoreRun], loop_error: str = "") -> None:
        """``loop_error``: why ``with`` would block a running event loop and is refused there; empty: it is allowed."""
        self._prepare_run = prepare_run
        self._loop_error = loop_error
        self._run: StoreRun | None = None
        self._client: StoreClient
        self._missing_result: ResultNotStored | None = None
        self._result: Any = None
        self._first = False
        self._first_was_read = False

    @property
    def first(self) -> bool:
        """Whether the work is to be done now. Read it before the block ends: it is what guards the work."""
        self._first_was_read = True
        return self._first

    @property
    def result(self) -> Any:
        """The result of the work. Raises `ResultNotStored` where the work is done, but its result was not stored."""
        if self._missing_result is not None:
            raise self._missing_result
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        if not self._first:
            raise ConfigurationError("a block's result is set by its first run only: test `if b.first:`")
        self._result = value

    @property
    def run(self) -> Run:
        """The run of this block. Inside the block, `current()` returns it."""
        return self._entered_run()

    def _entered_run(self) -> StoreRun:
        if self._run is None:
            raise ConfigurationError("this block has not been entered; use `with` or `async with`")
        return self._run

    def __enter__(self) -> Block:
        if self._loop_error:
            refuse_in_event_loop(self._loop_error)
        run = self._open()
        return run_sync(self._begin(run, run.runtime.sync_client()))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        run_sync(self._end(error))

    async def __aenter__(self) -> Block:
        run = self._open()
        return await self._begin(run, run.runtime.async_client())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._end(error)

    def _open(self) -> StoreRun:
        if self._run is not None:
            raise ConfigurationError("a block is entered once; make a new one for each call")
        self._run = run = self._prepare_run()
        return run

    async def _begin(self, run: StoreRun, client: StoreClient) -> Block:
        self._client = client
        try:
            if run.protected:
                await begin(run, client)
            if run.replayed:
                self._result = run.value
            else:
                self._first = True
                run.enter()
        except ResultNotStored as error:
            self._missing_result = error
        except BaseException as error:  # `__exit__` is not called then; an interruption may come after the claim
            await self._end(error)
            raise
        return self

    async def _end(self, error: BaseException | None) -> None:
        run = self._entered_run()
        try:
            unguarded = None if error is not None or self._first_was_read else _unguarded(run)
            failure = error or unguarded
            if self._first and failure is None:
                await finish(run, self._client, self._result)
            elif self._first and failure is not None:
                await abort(run, self._client, failure)
            if unguarded is not None:
                raise unguarded
        finally:
            run.end()


def _unguarded(run: Run) -> ConfigurationError:
    return ConfigurationError(
        f"the block of scope {show(run.scope)!r}, key {show(run.key)!r} ended, but its `first` was never tested: "
        "its body runs for duplicates, too, and this run was not recorded; write `if b.first:` around the work"
    )


def block(
    store: Store,
    *,
    scope: str,
    key: Key,
    mode: Literal["lease", "seen"] = "lease",
    lease: Duration = "30s",
    retention: Duration = DEFAULT_RETENTION,
    wait: Duration | None = None,
    max_attempts: int | None = None,
    max_run: Duration = "1h",
    on_error: Literal["release", "doubt"] = "release",
    on_lapse: Literal["rerun", "doubt"] = "rerun",
    on_store_error: Literal["raise", "run"] = "raise",
    permanent: tuple[type[BaseException], ...] = (),
    payload: Any = ...,
    returns: Any = Any,
) -> Block:
    """`once` for a piece of code: ``with block(store, scope="mailer", key="email:42") as b: if b.first: …``.

    ``key`` is the value itself. ``payload``, if you give it, must be the same under one key, else `PayloadMismatch`.
    The promise, the errors and the other options are those of `once`.
    """
    require_store(store, "block({}, …)")
    check_scope(scope)
    options = policy_options(
        mode=mode,
        lease=lease,
        retention=retention,
        wait=wait,
        max_attempts=max_attempts,
        max_run=max_run,
        on_error=on_error,
        on_lapse=on_lapse,
        on_store_error=on_store_error,
        permanent=permanent,
    )
    policy = Policy(scope=scope, codec=Codec(returns, store.max_result), **options)
    stored_key = encode_key(key)
    payload_fingerprints = b"" if payload is ... else fingerprints(payload)
    return Block(
        lambda: prepare_run(store.runtime, policy, stored_key, payload_fingerprints),
        "`with block(...)` would block the running event loop; use `async with`",
    )
