"""`once`: run a function once for each key, however often it is called with it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FunctionType, MethodType
from typing import Any, Concatenate, Final, Generic, Literal, ParamSpec, TypeVar, overload

from msgspec import Struct
from msgspec.structs import replace

from effectonce.core.codec import Codec
from effectonce.core.guarded_call.begin import prepare_run, run_unprotected
from effectonce.core.guarded_call.run import Policy, StoreRun, current_run
from effectonce.errors import ConfigurationError, MissingKey
from effectonce.keys import Extract, FingerprintSpec, KeySpec, encode_key, extractor
from effectonce.store import DEFAULT_RETENTION, Store, require_store
from effectonce.values.durations import Duration

from .block import Block
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
from .options import check_scope, policy_options, read_choice

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
S = TypeVar("S")
T_co = TypeVar("T_co", covariant=True)

GLOBAL: Final = "*"
"""One namespace for every consumer: a message that one of them has handled is done for all."""


class Outcome(Struct, Generic[T_co], frozen=True):
    """The outcome of one call. ``replayed``: it did not run, and ``value`` is the result of the first run."""

    value: T_co
    replayed: bool
    key: str
    scope: str
    attempt: int


class _Plan(Struct, kw_only=True):
    """Everything that is known about a guarded function before it is called."""

    function: Callable[..., Any]
    store: Store
    policy: Policy
    returns: Any  # the option of that name; ...: the annotation decides
    extract: Extract  # takes the key from a call
    fingerprint: Extract | None  # computes the fingerprints of a call; None: it has none
    run_without_key: bool
    has_default_scope: bool
    codec_is_final: bool = False  # the policy has the codec of the result's type, and not one for any JSON
    defined_in: type | None = None  # the class whose method this is
    bound_signature: inspect.Signature | None = None  # without ``self``

    def resolve_codec(self) -> None:
        """Give the policy the codec of the result's type. Raises NameError if the annotation names something that is
        not defined. It may be defined later, so the first call tries again."""
        codec = Codec(return_type(self.function, self.returns), self.store.max_result)
        self.policy = replace(self.policy, codec=codec)
        self.codec_is_final = True

    def prepare_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StoreRun:
        """Make the run of one call, which is not claimed yet. A call without a key, if allowed, is unprotected."""
        try:
            if not self.codec_is_final:
                self.resolve_codec()
        except NameError as error:
            raise ConfigurationError(
                f"the return annotation of {name_of(self.function)} names something that is not defined at run time "
                f"({error}); pass returns= to @once"
            ) from error
        runtime, policy = self.store.runtime, self.policy
        try:
            key = encode_key(self.extract(args, kwargs))
        except MissingKey as error:
            if not self.run_without_key:
                error.args = (f"{error}; or let such calls run unprotected: @once(…, on_missing_key='run')",)
                raise
            run = StoreRun(runtime, policy, key="", parent=current_run.get())
            run_unprotected(run, "missing_key", str(error))
            return run
        fingerprints = b"" if self.fingerprint is None else self.fingerprint(args, kwargs)
        return prepare_run(runtime, policy, key, fingerprints)


class Guarded(Generic[P, R_co]):
    """A function under `once`: called as before, it runs once for each key and replays its result after that.

    `call` returns an `Outcome` instead of the bare value. To frameworks it looks like the function that it wraps.
    """

    __name__: str
    __qualname__: str
    __slots__ = ("__dict__", "__weakref__", "_plan", "_receiver")  # not in `__dict__`, which `functools.wraps` copies

    def __init__(self, plan: _Plan) -> None:
        function = plan.function
        functools.update_wrapper(self, function)
        self._plan = plan
        self._receiver: tuple[Any, ...] = ()  # the object of a bound method
        # `inspect` and `typing` read these of a function: without them `iscoroutinefunction` would lie.
        for name in ("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__"):
            if hasattr(function, name):
                setattr(self, name, getattr(function, name))

    def _bind(self, receiver: Any) -> Guarded[..., Any]:
        """Return the same function as a method of ``receiver``, with one parameter less."""
        plan = self._plan
        if plan.bound_signature is None:
            signature = inspect.signature(plan.function)
            plan.bound_signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        bound: Guarded[..., Any] = object.__new__(type(self))
        bound._plan, bound._receiver = plan, (receiver,)
        attributes = bound.__dict__
        attributes.update(self.__dict__)
        attributes.pop("__wrapped__", None)
        attributes.update(__self__=receiver, __func__=self, __signature__=plan.bound_signature)
        return bound

    def _apparent_class(self) -> type:
        # Celery reads the parameters of anything that `isinstance` calls a function. Of every other object it reads
        # those of `__call__`: `task.delay(payment_id=…)` would then miss its "self".
        if not hasattr(self, "__code__"):
            return type(self)
        return MethodType if self._receiver else FunctionType

    __class__: Any = property(_apparent_class)

    # A bound method is made on every access, and all of them are equal.
    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Guarded) and self._identity() == other._identity())

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[int, ...]:
        return (id(self._plan), *map(id, self._receiver))

    @property
    def scope(self) -> str:
        """The scope of this function's keys."""
        return self._plan.policy.scope

    @property
    def store(self) -> Store:
        """The store that keeps this function's records."""
        return self._plan.store

    @property
    def policy(self) -> Policy:
        """The settings of this guard. Before the first call its codec may be one for any JSON value: a return
        annotation may name a class that is not defined yet."""
        return self._plan.policy

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        raise NotImplementedError

    @overload
    def call(  # type: ignore[overload-overlap]
        self: Guarded[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Outcome[T]]: ...
    @overload
    def call(self, *args: P.args, **kwargs: P.kwargs) -> Outcome[R_co]: ...
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function and return an `Outcome`; await it where the function is ``async def``."""
        raise NotImplementedError

    def _make_block(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Block:
        """Make the block that one call runs in."""
        plan = self._plan
        args = (*self._receiver, *args)
        loop_error = ""
        if plan.policy.wait_s is not None:
            loop_error = (
                f"{name_of(plan.function)} has wait= and was called inside a running event loop, which it would "
                "block; make it `async def`, or call it in a thread (asyncio.to_thread)"
            )
        return Block(lambda: plan.prepare_run(args, kwargs), loop_error)

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
        if plan.has_default_scope and plan.defined_in is not None and type(obj) is not plan.defined_in:
            raise ConfigurationError(
                f"{plan.function.__qualname__} is inherited by {type(obj).__qualname__}, and both classes would share "
                "its scope; pass scope= to @once, or define the method in each class"
            )
        return self._bind(obj)

    def __set_name__(self, owner: type, name: str) -> None:
        self._plan.defined_in = owner

    def __reduce__(self) -> Any:
        if self._receiver:
            return getattr, (self._receiver[0], self.__name__)
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<once {self._plan.function!r}>"


class _SyncGuarded(Guarded[P, R]):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run_in_block(args, kwargs).result

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return _outcome_of(self._run_in_block(args, kwargs))

    def _run_in_block(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Block:
        with self._make_block(args, kwargs) as block:
            if block.first:
                value = self._plan.function(*self._receiver, *args, **kwargs)
                refuse_lazy(self._plan.function, value)
                block.result = value
        return block


class _AsyncGuarded(Guarded[P, Any]):
    def __init__(self, plan: _Plan) -> None:
        super().__init__(plan)
        if hasattr(self, "__code__"):
            return  # its flags say that the function is async. A mark would be copied by every `functools.wraps` of it.
        if sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)
        else:  # for a partial or an object. 3.11 has no mark, but accepts any object with a function's attributes.
            self.__name__, self.__defaults__, self.__kwdefaults__ = name_of(plan.function), None, None
            self.__code__ = _AsyncGuarded.__call__.__code__

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (await self._run_in_block(args, kwargs)).result

    async def call(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return _outcome_of(await self._run_in_block(args, kwargs))

    async def _run_in_block(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Block:
        async with self._make_block(args, kwargs) as block:
            if block.first:
                block.result = await self._plan.function(*self._receiver, *args, **kwargs)
        return block


def _outcome_of(block: Block) -> Outcome[Any]:
    run = block.run
    return Outcome(block.result, run.replayed, run.key, run.scope, run.attempt)


def find_guarded(function: Any) -> Guarded[..., Any] | None:
    """Find the function under `once` that ``function`` is or wraps (``functools.wraps``); None: it is not guarded."""
    if isinstance(function, staticmethod):
        function = function.__func__
    while function is not None and not isinstance(function, Guarded):
        function = getattr(function, "__wrapped__", None)
    return function


class Once(Struct, frozen=True):
    """What `once(...)` returns: a decorator that keeps the function's signature, sync or async."""

    store: Store
    scope: str | None
    key: KeySpec | None
    fingerprint: Any
    returns: Any
    run_without_key: bool
    options: dict[str, Any]  # fields of a `Policy`

    def __call__(self, function: Callable[P, R]) -> Guarded[P, R]:
        refuse_unguardable(function)
        store = self.store
        scope = self.scope if self.scope is not None else default_scope(function, stacklevel=2)
        plan = _Plan(
            function=function,
            store=store,
            policy=Policy(scope=scope, codec=Codec(Any, store.max_result), **self.options),
            returns=self.returns,
            extract=message_key(function) if self.key is None else extractor(self.key, function),
            fingerprint=fingerprint_of(self.fingerprint, function),
            run_without_key=self.run_without_key,
            has_default_scope=self.scope is None,
        )
        with suppress(NameError):  # the class may be defined further down
            plan.resolve_codec()
        if scope != GLOBAL:
            store.take_scope(scope, function)
        return _AsyncGuarded(plan) if is_async(function) else _SyncGuarded(plan)


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
    - ``wait``: how long a concurrent duplicate waits for the first one's result before it raises `InProgress`; by
      default it does not wait.
    - ``max_attempts``: how often it may start before it is failed for good (`AttemptsExhausted`).
    - ``on_error``, ``on_lapse``: whether an attempt that raised, or whose process died, may simply run again, or is
      in doubt and waits for an operator.
    - ``permanent``: errors that are stored and raised again for duplicates.
    - ``fingerprint``: the part of the call that must be the same under one key (same forms as ``key``), else
      `PayloadMismatch`; default: the data of a `Message`; False turns that off.
    - ``on_missing_key="run"``, ``on_store_error="run"``: run unprotected, with an event each time, instead of raising.
    - ``returns``: the type of the stored result, where it is not the one of the annotation.
    """
    if inspect.isroutine(store) or isinstance(store, type):
        raise ConfigurationError(
            f"@once was written above {name_of(store)} without its store; write @eo.once(store, key=…), where store is "
            "eo.connect('sqlite:///shop.db'), for example"
        )
    require_store(store, "once({}, …)")
    if scope is not None:
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
    run_without_key = read_choice("on_missing_key", on_missing_key, "run", "raise")
    return Once(store, scope, key, fingerprint, returns, run_without_key, options)
