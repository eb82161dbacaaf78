"""`block`: the guard for a piece of code that is no function of its own."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Literal

from effectonce.core.codec import Codec
from effectonce.core.guarded_call.begin import begin, prepare
from effectonce.core.guarded_call.finish import abort, finish
from effectonce.core.guarded_call.run import Policy, Run
from effectonce.core.run_sync import run_sync
from effectonce.core.store_runtime import StoreClient
from effectonce.errors import ConfigurationError, ResultNotStored, SyncAsyncMismatch
from effectonce.store import DEFAULT_RETENTION, Store
from effectonce.values.durations import Duration
from effectonce.values.fingerprint import fingerprints
from effectonce.values.identity import Key, encode_key

from .options import check_scope, policy_options


class Block:
    """What `block(...)` returns. ``first``: run the work now and set ``result``; else ``result`` is the stored one."""

    def __init__(self, store: Store, policy: Policy, key: str, prints: bytes) -> None:
        self._store = store
        self._policy = policy
        self._key = key
        self._prints = prints
        self._run: Run | None = None
        self._missing: ResultNotStored | None = None
        self._result: Any = None
        self.first = False

    @property
    def result(self) -> Any:
        if self._missing is not None:
            raise self._missing
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        if not self.first:
            raise ConfigurationError("a block's result is set by its first run only: test `if b.first:`")
        self._result = value

    @property
    def run(self) -> Run:
        """The run of this block, as `current()` gives it inside."""
        if self._run is None:
            raise ConfigurationError("this block has not been entered; use `with` or `async with`")
        return self._run

    def _prepare(self) -> Run:
        if self._run is not None:
            raise ConfigurationError("a block is entered once; make a new one for each call")
        self._run = run = prepare(self._store.runtime, self._policy, self._key, self._prints)
        return run

    def _start(self, run: Run) -> Block:
        self.first = not run.replayed
        if self.first:
            run.enter()
        else:
            self._result = run.value
        return self

    def __enter__(self) -> Block:
        if asyncio._get_running_loop() is not None:
            raise SyncAsyncMismatch("`with block(...)` would block the running event loop; use `async with`")
        run = self._prepare()
        try:
            run_sync(begin(run, run.runtime.sync_client()))
        except ResultNotStored as error:
            self._missing = error
        except BaseException:
            run.end()
            raise
        return self._start(run)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.first:
            run = self.run
            try:
                run_sync(self._settle(run, run.runtime.sync_client(), error))
            finally:
                run.end()

    async def __aenter__(self) -> Block:
        run = self._prepare()
        try:
            await begin(run, run.runtime.async_client())
        except ResultNotStored as error:
            self._missing = error
        except BaseException:
            run.end()
            raise
        return self._start(run)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.first:
            run = self.run
            try:
                await self._settle(run, run.runtime.async_client(), error)
            finally:
                run.end()

    async def _settle(self, run: Run, client: StoreClient, error: BaseException | None) -> None:
        if error is None:
            await finish(run, client, self._result)
        else:
            await abort(run, client, error)


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

    ``key`` is the value itself. ``payload``, where given, must be the same under one key, else `PayloadMismatch`.
    The promise, the errors and the other options are those of `once`.
    """
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
    return Block(store, policy, encode_key(key), b"" if payload is ... else fingerprints(payload))
