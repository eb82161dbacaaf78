"""`once`: run a function once for each key, whoever delivers it how often."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine
from types import FunctionType, MethodType
from typing import Any, Concatenate, Final, Generic, Literal, ParamSpec, TypeVar, overload

from msgspec import Struct

from effectonce.core.codec import Codec
from effectonce.core.guarded_call.begin import begin, prepare, run_unprotected
from effectonce.core.guarded_call.finish import abort, finish
from effectonce.core.guarded_call.run import Policy, Run, running
from effectonce.core.run_sync import run_sync
from effectonce.core.store_runtime import StoreRuntime
from effectonce.errors import ConfigurationError, MissingKey, SyncAsyncMismatch
from effectonce.keys import Extract, FingerprintSpec, KeySpec, encode_key, extractor
from effectonce.store import DEFAULT_RETENTION, Store
from effectonce.values.durations import Duration

from .introspection import (
    NO_CLASSMETHOD,
    default_scope,
    fingerprint_of,
    is_async,
    message_key,
    name_of,
    refuse_lazy,
    refuse_unguardable,
    return_type,
)
from .options import check_scope, choice, policy_options

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
S = TypeVar("S")
T_co = TypeVar("T_co", covariant=True)

GLOBAL: Final = "*"
"""The scope for all: one namespace for every consumer, so that a message handled by one is done for each."""


class Outcome(Struct, Generic[T_co], frozen=True):
    """What a call came to. ``replayed``: it did not run, ``value`` is what the first run gave."""

    value: T_co
    replayed: bool
    key: str
    scope: str
    attempt: int


class _Plan(Struct, kw_only=True):
    """All that is known about a guarded function before it is called."""

    function: Callable[..., Any]
    store: Store
    policy: Policy | None
    settings: dict[str, Any]
    returns: Any
    extract: Extract
    fingerprint: Extract | None
    run_without_key: bool
    default_scope: bool
    defined_in: type | None = None
    bound_signature: inspect.Signature | None = None

    def build_policy(self) -> Policy:
        """The policy, whose result type may name things defined after the handler: so built on first use."""
        try:
            codec = Codec(return_type(self.function, self.returns), self.store.max_result)
        except NameError as error:
            raise ConfigurationError(
                f"the return annotation of {name_of(self.function)} names something that is not there at run time "
                f"({error}); pass returns= to @once"
            ) from error
        self.policy = Policy(codec=codec, **self.settings)
        return self.policy

    def prepare_run(self, runtime: StoreRuntime, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        """The run of one call, to be begun; without a key, where that is allowed, it goes ahead unprotected."""
        policy = self.policy or self.build_policy()
        try:
            key = encode_key(self.extract(args, kwargs))
        except MissingKey as error:
            if not self.run_without_key:
                raise
            run = Run(
                runtime=runtime,
                policy=policy,
                key="",
                stored_key="",
                owner=b"",
                fingerprints=b"",
                parent=running.get(),
            )
            run_unprotected(run, "missing_key", str(error))
            return run
        fingerprints = b"" if self.fingerprint is None else self.fingerprint(args, kwargs)
        return prepare(runtime, policy, key, fingerprints)


class Guarded(Generic[P, R_co]):
    """A function under `once`: called as before, it runs once for each key and replays its result after that.

    `call` gives the `Outcome` instead of the bare value. To frameworks it looks like the function it wraps.
    """

    __name__: str
    __qualname__: str
    __slots__ = ("__dict__", "__weakref__", "_plan", "_receiver")  # not in `__dict__`, which `functools.wraps` copies

    def __init__(self, plan: _Plan) -> None:
        function = plan.function
        functools.update_wrapper(self, function)
        self._plan = plan
        self._receiver: tuple[Any, ...] = ()  # of a bound method: the object
        # What `inspect` and `typing` read off a function: without it `iscoroutinefunction` would lie.
        for name in ("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__"):
            if hasattr(function, name):
                setattr(self, name, getattr(function, name))

    def _bound(self, receiver: Any) -> Guarded[..., Any]:
        """The same function as a method of ``receiver``: one argument less."""
        plan = self._plan
        if plan.bound_signature is None:
            signature = inspect.signature(plan.function)
            plan.bound_signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        bound: Guarded[..., Any] = object.__new__(type(self))
        bound._plan, bound._receiver = plan, (receiver,)
        names = bound.__dict__
        names.update(self.__dict__)
        names.pop("__wrapped__", None)
        names.update(__self__=receiver, __func__=self, __signature__=plan.bound_signature)
        return bound

    def _looks_like(self) -> type:
        # Celery reads the parameters of what is a function to `isinstance`, and takes any other object for one whose
        # `__call__` has them: `task.delay(payment_id=…)` would then miss its "self".
        return type(self) if not hasattr(self, "__code__") else MethodType if self._receiver else FunctionType

    __class__: Any = property(_looks_like)

    # As bound methods are: made on every access, and equal all the same.
    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Guarded) and self._identity() == other._identity())

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[int, ...]:
        return (id(self._plan), *map(id, self._receiver))

    @property
    def scope(self) -> str:
        """The scope that the keys of this function live in."""
        scope: str = self._plan.settings["scope"]
        return scope

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        raise NotImplementedError

    @overload
    def call(  # type: ignore[overload-overlap]
        self: Guarded[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Outcome[T]]: ...
    @overload
    def call(self, *args: P.args, **kwargs: P.kwargs) -> Outcome[R_co]: ...
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """As calling it, but gives an `Outcome` (to be awaited where the function is ``async def``)."""
        return self._call_for_outcome(args, kwargs)

    def _call_for_outcome(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    @overload
    def __get__(self, obj: None, owner: type | None = None) -> Guarded[P, R_co]: ...
    @overload
    def __get__(self: Guarded[Concatenate[S, Q], R], obj: S, owner: type | None = None) -> Guarded[Q, R]: ...
    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        if obj is None or self._receiver:
            return self
        plan = self._plan
        if isinstance(obj, type):
            raise ConfigurationError(NO_CLASSMETHOD.format(plan.function.__qualname__))
        if plan.default_scope and plan.defined_in is not None and type(obj) is not plan.defined_in:
            raise ConfigurationError(
                f"{plan.function.__qualname__} is inherited by {type(obj).__qualname__}, and both classes would share "
                "its scope; pass scope= to @once, or define the method in each class"
            )
        return self._bound(obj)

    def __set_name__(self, owner: type, name: str) -> None:
        self._plan.defined_in = owner

    def __reduce__(self) -> Any:
        if self._receiver:
            return getattr, (self._receiver[0], self.__name__)
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<once {self._plan.function!r}>"


class _Sync(Guarded[P, R]):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run_guarded(args, kwargs)[1]

    def _call_for_outcome(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome[Any]:
        return _outcome(*self._run_guarded(args, kwargs))

    def _run_guarded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Run, Any]:
        plan = self._plan
        args = (*self._receiver, *args)
        runtime = plan.store.runtime
        client = runtime.sync_client()
        run = plan.prepare_run(runtime, args, kwargs)
        try:
            if run.protected:
                run_sync(begin(run, client))
                if run.replayed:
                    return run, run.value
            try:
                run.enter()
                value = plan.function(*args, **kwargs)
                refuse_lazy(plan.function, value)
            except BaseException as error:
                run_sync(abort(run, client, error))
                raise
            run_sync(finish(run, client, value))
            return run, value
        finally:
            run.end()


class _Waiting(_Sync[P, R]):
    """A sync function with ``wait=``, which must not be called where that would block an event loop."""

    def _run_guarded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Run, Any]:
        if asyncio._get_running_loop() is not None:
            raise SyncAsyncMismatch(
                f"{name_of(self._plan.function)} has wait= and was called inside a running event loop, which it would "
                "block; make it `async def`, or call it in a thread (asyncio.to_thread)"
            )
        return super()._run_guarded(args, kwargs)


class _Async(Guarded[P, Any]):
    def __init__(self, plan: _Plan) -> None:
        super().__init__(plan)
        if hasattr(self, "__code__"):
            return  # which says so; a mark would go on into every `functools.wraps` of it, sync ones too
        if sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)
        else:  # of a partial or an object; 3.11 knows no mark, but believes whatever has the names of a function
            self.__name__, self.__defaults__, self.__kwdefaults__ = name_of(plan.function), None, None
            self.__code__ = _Async.__call__.__code__

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (await self._run_guarded(args, kwargs))[1]

    async def _call_for_outcome(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome[Any]:
        return _outcome(*await self._run_guarded(args, kwargs))

    async def _run_guarded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Run, Any]:
        plan = self._plan
        args = (*self._receiver, *args)
        runtime = plan.store.runtime
        client = runtime.async_client()
        run = plan.prepare_run(runtime, args, kwargs)
        try:
            if run.protected:
                await begin(run, client)
                if run.replayed:
                    return run, run.value
            try:
                run.enter()
                value = await plan.function(*args, **kwargs)
            except BaseException as error:
                await abort(run, client, error)
                raise
            await finish(run, client, value)
            return run, value
        finally:
            run.end()


def _outcome(run: Run, value: Any) -> Outcome[Any]:
    return Outcome(value, run.replayed, run.key, run.scope, run.attempt)


class Once:
    """What `once(...)` returns: a decorator that keeps the function's signature, sync or async."""

    def __init__(self, store: Store, scope: str | None, key: KeySpec | None, fingerprint: Any, **options: Any) -> None:
        self._store = store
        self._scope = scope
        self._key = key
        self._fingerprint = fingerprint
        self._options = options

    def __call__(self, function: Callable[P, R]) -> Guarded[P, R]:
        refuse_unguardable(function)
        scope = self._scope if self._scope is not None else default_scope(function)
        options = dict(self._options)
        returns = options.pop("returns")
        run_without_key = options.pop("run_without_key")
        plan = _Plan(
            function=function,
            store=self._store,
            policy=None,
            settings={"scope": scope, **options},
            returns=returns,
            extract=message_key(function) if self._key is None else extractor(self._key, function),
            fingerprint=fingerprint_of(self._fingerprint, function),
            run_without_key=run_without_key,
            default_scope=self._scope is None,
        )
        try:
            plan.build_policy()
        except ConfigurationError as error:
            if not isinstance(error.__cause__, NameError):  # what it names may be defined further down
                raise
        if scope != GLOBAL:
            self._store.take_scope(scope, function)
        if is_async(function):
            return _Async(plan)
        return (_Sync if plan.settings["wait"] is None else _Waiting)(plan)


def once(
    store: Store,
    *,
    scope: str | None = None,
    key: KeySpec | None = None,
    mode: Literal["lease", "seen"] = "lease",
    lease: Duration = "30s",
    retention: Duration = DEFAULT_RETENTION,
    wait: Duration | None = None,
    max_attempts: int | None = None,
    max_run: Duration = "1h",
    on_error: Literal["release", "doubt"] = "release",
    on_lapse: Literal["rerun", "doubt"] = "rerun",
    on_missing_key: Literal["raise", "run"] = "raise",
    on_store_error: Literal["raise", "run"] = "raise",
    permanent: tuple[type[BaseException], ...] = (),
    fingerprint: FingerprintSpec | Literal[False] | None = None,
    returns: Any = ...,
) -> Once:
    """Run the decorated function once for each key; a duplicate gets the stored result instead.

    Mode L, ``"lease"`` (the default): nothing is lost, and a duplicate never runs beside the first while its lease
    holds. The effect may repeat wherever an attempt ended without a recorded success. Mode S, ``"seen"``: looks up,
    runs, records; cheapest, and for effects that are idempotent already, since concurrent duplicates may both run.

    - ``key``: a path from a parameter (``"order.id"``), a tuple of paths, or a callable. Absent where the first
      argument is a `Message`, whose key it is.
    - ``scope``: the namespace of the keys; default ``module:qualname`` of the function.
    - ``lease``: how long a claim holds; a heartbeat renews it while the handler runs, at most for ``max_run``.
    - ``wait``: how long a concurrent duplicate waits for the first one's result before `InProgress`; default: not.
    - ``max_attempts``: how often it may start before it is failed for good (`AttemptsExhausted`).
    - ``on_error``, ``on_lapse``: whether an attempt that raised, or whose process died, may simply run again, or is
      in doubt and waits for an operator.
    - ``permanent``: errors that are stored and raised again for duplicates.
    - ``fingerprint``: what of the call must be the same under one key (same forms as ``key``), else
      `PayloadMismatch`; on by itself for ``Message.data``, False turns that off.
    - ``on_missing_key="run"``, ``on_store_error="run"``: run unprotected, with an event each time, instead of raising.
    - ``returns``: the type of the stored result, where the annotation does not say.
    """
    if scope is not None:
        check_scope(scope)
    return Once(
        store,
        scope,
        key,
        fingerprint,
        returns=returns,
        run_without_key=choice("on_missing_key", on_missing_key, "run", "raise"),
        **policy_options(
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
        ),
    )
