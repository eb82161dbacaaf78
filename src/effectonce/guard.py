"""`once` and `block`: run a piece of code once for each key, whoever delivers it how often."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import sys
import types
import typing
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from types import FunctionType, MethodType, TracebackType
from typing import Any, Concatenate, Final, Generic, Literal, ParamSpec, TypeVar, overload

from msgspec import Struct

from .core.codec import Codec
from .core.drive import run_through
from .core.engine import Side
from .core.flow import Policy, Run, abort, begin, finish, prepare, running, unprotected
from .durations import Duration, micros, readable
from .errors import ConfigurationError, MissingKey, ResultNotStored, WrongColour, show
from .fingerprint import fingerprints
from .keys import Extract, FingerprintSpec, Key, KeySpec, encode_key, extractor
from .message import Message
from .store import DEFAULT_RETENTION, Store

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
S = TypeVar("S")
T_co = TypeVar("T_co", covariant=True)

GLOBAL: Final = "*"
"""The scope for all: one namespace for every consumer, so that a message handled by one is done for each."""

MAX_SCOPE: Final = 255
MIN_LEASE: Final = 10_000


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

    def settled(self) -> Policy:
        """The policy, whose result type may name things defined after the handler: so built on first use."""
        try:
            codec = Codec(_return_type(self.function, self.returns), self.store.max_result)
        except NameError as error:
            raise ConfigurationError(
                f"the return annotation of {_name(self.function)} names something that is not there at run time "
                f"({error}); pass returns= to @once"
            ) from error
        self.policy = Policy(codec=codec, **self.settings)
        return self.policy

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        """The run of one call, not yet begun; without a key, where that is allowed, it goes ahead unprotected."""
        policy = self.policy or self.settled()
        engine = self.store._live or self.store.engine
        try:
            key = self.extract(args, kwargs)
            if type(key) is not str or not 0 < len(key) <= 200 or not key.isascii() or "\0" in key:
                key = encode_key(key)
        except MissingKey as error:
            if not self.run_without_key:
                raise
            run = Run(engine, policy, policy.scope, "", "", b"", running.get())
            unprotected(run, "missing_key", str(error))
            return run
        prints = b"" if self.fingerprint is None else self.fingerprint(args, kwargs)
        return prepare(engine, policy, key, prints)


class Guarded(Generic[P, R_co]):
    """A function under `once`: called as before, it runs once for each key and replays its result after that.

    `call` gives the `Outcome` instead of the bare value. To frameworks it looks like the function it wraps.
    """

    __name__: str
    __qualname__: str

    def __init__(self, plan: _Plan) -> None:
        function = plan.function
        functools.update_wrapper(self, function)
        self._plan = plan
        self._receiver: tuple[Any, ...] = ()
        # What `inspect` and `typing` read off a function: without it `iscoroutinefunction` would lie.
        for name in ("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__"):
            if hasattr(function, name):
                setattr(self, name, getattr(function, name))

    def _bound(self, receiver: Any) -> Guarded[..., Any]:
        """The same function as a method of ``receiver``: one argument less. Made on every access, so made cheaply."""
        plan = self._plan
        if plan.bound_signature is None:
            signature = inspect.signature(plan.function)
            plan.bound_signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        bound: Guarded[..., Any] = object.__new__(type(self))
        names = bound.__dict__
        names.update(self.__dict__)
        names.pop("__wrapped__", None)
        names.update(_receiver=(receiver,), __self__=receiver, __func__=self, __signature__=plan.bound_signature)
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
            raise ConfigurationError(_NO_CLASSMETHOD.format(plan.function.__qualname__))
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
        return self._run(args, kwargs, _value)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(args, kwargs, _outcome)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], give: Callable[[Run, Any], Any]) -> Any:
        args = self._receiver + args
        plan = self._plan
        run = plan.run(args, kwargs)
        if run.policy.wait is not None and asyncio._get_running_loop() is not None:
            raise WrongColour(
                f"{_name(plan.function)} has wait= and was called inside a running event loop, which it would block; "
                "make it `async def`, or call it in a thread (asyncio.to_thread)"
            )
        side = run.engine.sync or run.engine.sync_side()
        try:
            if run.protected:
                pending = begin(run, side)
                if pending is not None:
                    run_through(pending)
                if run.replayed:
                    return give(run, run.value)
            running.set(run)
            try:
                value = plan.function(*args, **kwargs)
                if type(value) in _LAZY or hasattr(value, "__await__"):
                    _refuse_lazy(plan.function, value)
            except BaseException as error:
                run_through(abort(run, side, error))
                raise
            pending = finish(run, side, value)
            if pending is not None:
                run_through(pending)
            return give(run, value)
        finally:
            run.ended()


class _Async(Guarded[P, Any]):
    def __init__(self, plan: _Plan) -> None:
        super().__init__(plan)
        if hasattr(self, "__code__"):
            return  # which says so; a mark would go on into every `functools.wraps` of it, sync ones too
        if sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)
        else:  # of a partial or an object; 3.11 knows no mark, but believes whatever has the names of a function
            self.__name__, self.__defaults__, self.__kwdefaults__ = _name(plan.function), None, None
            self.__code__ = _Async._run.__code__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(args, kwargs, _value)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(args, kwargs, _outcome)

    async def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], give: Callable[[Run, Any], Any]) -> Any:
        args = self._receiver + args
        plan = self._plan
        run = plan.run(args, kwargs)
        side = run.engine.async_side()
        try:
            if run.protected:
                pending = begin(run, side)
                if pending is not None:
                    await pending
                if run.replayed:
                    return give(run, run.value)
            running.set(run)
            try:
                value = await plan.function(*args, **kwargs)
            except BaseException as error:
                await abort(run, side, error)
                raise
            pending = finish(run, side, value)
            if pending is not None:
                await pending
            return give(run, value)
        finally:
            run.ended()


def _value(run: Run, value: Any) -> Any:
    return value


def _outcome(run: Run, value: Any) -> Outcome[Any]:
    return Outcome(value, run.replayed, run.key, run.scope, run.attempt)


_LAZY = frozenset((types.GeneratorType, types.AsyncGeneratorType))


def _refuse_lazy(function: Any, value: Any) -> None:
    if inspect.iscoroutine(value):
        value.close()
    raise WrongColour(
        f"{_name(function)} is a plain `def` that returned {type(value).__name__}, so nothing had happened yet when it "
        "returned; make it `async def` and await inside, or do the work before you return"
    )


class Once:
    """What `once(...)` returns: a decorator that keeps the function's signature and colour."""

    def __init__(self, store: Store, scope: str | None, key: KeySpec | None, fingerprint: Any, **options: Any) -> None:
        self._store = store
        self._scope = scope
        self._key = key
        self._fingerprint = fingerprint
        self._options = options

    def __call__(self, function: Callable[P, R]) -> Guarded[P, R]:
        _refuse_unguardable(function)
        scope = self._scope if self._scope is not None else _default_scope(function)
        options = dict(self._options)
        returns = options.pop("returns")
        run_without_key = options.pop("run_without_key")
        plan = _Plan(
            function=function,
            store=self._store,
            policy=None,
            settings={"scope": scope, **options},
            returns=returns,
            extract=_message_key(function) if self._key is None else extractor(self._key, function),
            fingerprint=_fingerprint(self._fingerprint, function),
            run_without_key=run_without_key,
            default_scope=self._scope is None,
        )
        try:
            plan.settled()
        except ConfigurationError as error:
            if not isinstance(error.__cause__, NameError):  # what it names may be defined further down
                raise
        if scope != GLOBAL:
            self._store.take_scope(scope, function)
        return (_Async if _is_async(function) else _Sync)(plan)


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
        run_without_key=_choice("on_missing_key", on_missing_key, "run", "raise"),
        **policy_options(
            mode, lease, retention, wait, max_attempts, max_run, on_error, on_lapse, on_store_error, permanent
        ),
    )


def policy_options(
    mode: str,
    lease: Duration,
    retention: Duration,
    wait: Duration | None,
    max_attempts: int | None,
    max_run: Duration,
    on_error: str,
    on_lapse: str,
    on_store_error: str,
    permanent: tuple[type[BaseException], ...],
) -> dict[str, Any]:
    """The options of `once` and `block` as fields of a `Policy`, checked."""
    if max_attempts is not None and (not isinstance(max_attempts, int) or max_attempts < 1):
        raise ConfigurationError(f"max_attempts={max_attempts} is not a number of attempts; give 1 or more, or None")
    if micros(lease, "lease") < MIN_LEASE:
        raise ConfigurationError(f"lease={lease!r} is too short to be renewed; give at least {readable(MIN_LEASE)}")
    if not isinstance(permanent, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in permanent
    ):
        raise ConfigurationError("permanent= takes a tuple of exception classes, like permanent=(CardDeclined,)")
    seen = _choice("mode", mode, "seen", "lease")
    doubt = _choice("on_error", on_error, "doubt", "release"), _choice("on_lapse", on_lapse, "doubt", "rerun")
    if seen and (any(doubt) or wait is not None or max_attempts is not None or permanent):
        raise ConfigurationError(
            "mode='seen' claims nothing, so wait=, max_attempts=, permanent=, on_error='doubt' and on_lapse='doubt' "
            "have no meaning there; use mode='lease'"
        )
    return {
        "seen": seen,
        "lease": micros(lease, "lease"),
        "retention": micros(retention, "retention"),
        "wait": None if wait is None else micros(wait, "wait") / 1e6,
        "max_attempts": max_attempts or 0,
        "max_run": micros(max_run, "max_run") / 1e6,
        "doubt_on_error": doubt[0],
        "doubt_on_lapse": doubt[1],
        "run_on_store_error": _choice("on_store_error", on_store_error, "run", "raise"),
        "permanent": permanent,
    }


def _choice(name: str, value: str, yes: str, no: str) -> bool:
    if value not in (yes, no):
        raise ConfigurationError(f"{name}={value!r} is neither {no!r} nor {yes!r}")
    return value == yes


def check_scope(scope: str) -> None:
    """A scope is a short name: text, not empty, without NUL."""
    try:
        fits = 0 < len(scope.encode()) <= MAX_SCOPE and "\0" not in scope
    except (AttributeError, UnicodeEncodeError):
        fits = False
    if not fits:
        raise ConfigurationError(
            f"scope={show(scope)!r} must be a text of 1 to {MAX_SCOPE} bytes; GLOBAL is the word for one scope for all"
        )


_NO_CLASSMETHOD = (
    "{} is a class method: which class would its keys belong to? Guard a function or a static method instead "
    "(@staticmethod above @once), and pass the class as an argument"
)


def _refuse_unguardable(function: Any) -> None:
    name = _name(function)
    if isinstance(function, classmethod):
        raise ConfigurationError(_NO_CLASSMETHOD.format(name))
    if isinstance(function, staticmethod):
        raise ConfigurationError(f"put @staticmethod above @once on {name}, not below")
    if isinstance(function, type) or not callable(function):
        raise ConfigurationError(f"@once guards functions and methods, not {name}")
    called = type(function).__call__
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (function, called)):
        raise ConfigurationError(
            f"{name} is a generator: it has no single end at which it is done; collect its items in a plain function"
        )
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} does not tell its parameters ({error}); wrap it in a function") from error
    if parameters[:1] == ["cls"] and "." in getattr(function, "__qualname__", ""):
        raise ConfigurationError(_NO_CLASSMETHOD.format(name))


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _default_scope(function: Any) -> str:
    qualname = getattr(function, "__qualname__", None)
    if qualname is None or "<lambda>" in qualname:
        raise ConfigurationError(f"{function!r} has no name of its own to make a scope from; pass scope=")
    module = function.__module__
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is not None:
            module = spec.name
        else:
            warnings.warn(
                f"the scope of {qualname} is '__main__:{qualname}' since this is a script; the same function imported "
                "from elsewhere would have another scope and run again: pass scope=",
                stacklevel=4,
            )
    return f"{module}:{qualname}"


def _return_type(function: Any, returns: Any) -> Any:
    if returns is not ...:
        return returns
    inner = inspect.unwrap(function)
    # Only what it returns: other annotations may name what exists for type checkers only.
    told = {"return": getattr(inner, "__annotations__", {}).get("return", Any)}
    hint = typing.get_type_hints(types.SimpleNamespace(__annotations__=told), getattr(inner, "__globals__", {}))[
        "return"
    ]
    if hint in (object, typing.NoReturn, typing.Never) or isinstance(hint, TypeVar):
        return Any
    return hint


def _first_parameter(function: Any) -> tuple[int, str]:
    """Position and name of the first argument that is not ``self``."""
    parameters = list(inspect.signature(function).parameters)
    at = 1 if parameters[:1] == ["self"] else 0
    if len(parameters) <= at:
        raise ConfigurationError(
            f"{_name(function)} takes no argument that could carry a key; pass key= with a path or a callable"
        )
    return at, parameters[at]


def _may_be_message(function: Any, name: str) -> bool:
    """Whether the annotation of a parameter leaves room for a `Message`; unevaluated ones are read as text."""
    annotation = inspect.signature(function).parameters[name].annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None) or str(annotation)
    return annotation is inspect.Parameter.empty or re.search(r"\b(Message|Any|object)\b", text) is not None


def _message_key(function: Any) -> Extract:
    at, name = _first_parameter(function)
    if not _may_be_message(function, name):
        raise ConfigurationError(
            f"{_name(function)} needs key=: its first argument {name!r} is no Message, so nothing says which calls are "
            f"the same operation; for example key={name!r}"
        )

    def key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        message = args[at] if len(args) > at else kwargs.get(name)
        if isinstance(message, Message):
            return message.key
        raise ConfigurationError(
            f"{_name(function)} has no key= and was called with a {type(message).__name__} instead of a Message; pass "
            f"key= to @once, for example key={name!r}"
        )

    return key


def _fingerprint(spec: Any, function: Any) -> Extract | None:
    if spec is False:
        return None
    if spec is not None:
        extract = extractor(spec, function, name="fingerprint")
        return lambda args, kwargs: fingerprints(extract(args, kwargs))
    try:
        at, name = _first_parameter(function)
    except ConfigurationError:
        return None
    if not _may_be_message(function, name):
        return None

    def data(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        message = args[at] if len(args) > at else kwargs.get(name)
        return fingerprints(message.data) if isinstance(message, Message) else b""

    return data


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

    def _enter(self) -> Run:
        if self._run is not None:
            raise ConfigurationError("a block is entered once; make a new one for each call")
        self._run = run = prepare(self._store.engine, self._policy, self._key, self._prints)
        return run

    def _entered(self, run: Run) -> Block:
        self.first = not run.replayed
        if self.first:
            running.set(run)
        else:
            self._result = run.value
        return self

    def __enter__(self) -> Block:
        if asyncio._get_running_loop() is not None:
            raise WrongColour("`with block(...)` would block the running event loop; use `async with`")
        run = self._enter()
        try:
            pending = begin(run, run.engine.sync_side())
            if pending is not None:
                run_through(pending)
        except ResultNotStored as error:
            self._missing = error
        except BaseException:
            run.ended()
            raise
        return self._entered(run)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.first:
            run = self.run
            try:
                pending = self._exited(run, run.engine.sync_side(), error)
                if pending is not None:
                    run_through(pending)
            finally:
                run.ended()

    async def __aenter__(self) -> Block:
        run = self._enter()
        try:
            pending = begin(run, run.engine.async_side())
            if pending is not None:
                await pending
        except ResultNotStored as error:
            self._missing = error
        except BaseException:
            run.ended()
            raise
        return self._entered(run)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.first:
            run = self.run
            try:
                pending = self._exited(run, run.engine.async_side(), error)
                if pending is not None:
                    await pending
            finally:
                run.ended()

    def _exited(self, run: Run, side: Side, error: BaseException | None) -> Awaitable[None] | None:
        return finish(run, side, self._result) if error is None else abort(run, side, error)


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
        mode, lease, retention, wait, max_attempts, max_run, on_error, on_lapse, on_store_error, permanent
    )
    policy = Policy(scope=scope, codec=Codec(returns, store.max_result), **options)
    return Block(store, policy, encode_key(key), b"" if payload is ... else fingerprints(payload))
