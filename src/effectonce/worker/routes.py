"""A handler of a worker and its settings, checked when it is decorated."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from effectonce.core.codec import Codec, json_decoder
from effectonce.core.guarded_call.run import Policy
from effectonce.core.retry import Retry
from effectonce.durations import Duration
from effectonce.errors import ConfigurationError, show
from effectonce.fingerprint import fingerprints
from effectonce.handlers import is_async, name_of, refuse_unguardable
from effectonce.keys import Extract, FingerprintSpec, KeySpec, extractor
from effectonce.message import Message
from effectonce.names import require_name
from effectonce.policies import check_scope, policy_options

#: Handlers at once, where none are given: in the loop, in threads, in transactions, in transactions of many.
ASYNC_CONCURRENCY = 100
SYNC_CONCURRENCY = 16
TRANSACTIONS = 10
BATCHES = 2
DEFAULT_LEASE: Duration = "30s"

Permanent = tuple[type[BaseException], ...]
Outgoing = list[Message[Any]]


class Route(Struct, kw_only=True, eq=False):
    """Which function gets which messages, and how."""

    queue: str
    type: str | None  # None: every type that no other handler of the queue takes
    function: Callable[..., Any]
    name: str
    is_async: bool
    with_connection: bool  # mode T: called with the connection of its transaction
    data_type: Any  # what `Message.data` is read as; Any: as it comes
    policy: Policy
    retry: Retry
    concurrency: int
    batch: bool
    to: str | None  # where what it returns is sent to
    fits_lease: bool  # none was given: it may be cut to fit the broker's ack window
    key: Extract | None  # None: the message's own
    fingerprint: Extract | Literal["data"] | None  # what of a message is the same in its duplicates; None: not compared


def make_route(
    function: Callable[..., Any],
    *,
    queue: str,
    type: str | None,
    consumer: str,
    transactional: bool,
    scope: str | None,
    key: KeySpec | None,
    fingerprint: FingerprintSpec | Literal[False] | None,
    mode: Literal["lease", "seen"],
    retry: Retry,
    concurrency: int | None,
    batch: bool,
    to: str | None,
    max_result: int,
    lease: Duration | None,
    retention: Duration,
    max_run: Duration,
    on_error: Literal["release", "doubt"],
    on_lapse: Literal["rerun", "doubt"],
    permanent: Permanent,
) -> Route:
    """The route of a decorated ``function``; `ConfigurationError` for what cannot work."""
    refuse_unguardable(function)
    require_name(queue)
    name = name_of(function)
    wanted = 2 if transactional else 1
    given = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    if len(given) != wanted or any(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in given):
        takes = "(connection, message), since the worker has inbox=" if transactional else "(message)"
        raise ConfigurationError(f"{name} cannot be a handler here: it must take {takes}, not {_signature(function)}")
    asynchronous = is_async(function)
    if concurrency is not None and (not isinstance(concurrency, int) or concurrency < 1):
        raise ConfigurationError(f"concurrency={concurrency!r} of {name} is not a number of handlers; give 1 or more")
    if batch and not transactional:
        raise ConfigurationError(
            f"batch=True of {name} needs inbox=: it means that all effects are in one transaction; claims and "
            "completions are batched by themselves"
        )
    if to is not None and (transactional or mode != "lease"):
        raise ConfigurationError(
            f"{name} cannot have to=: what it sends on is kept in a record of mode L; in a transaction write it to an "
            "Outbox on the same connection"
        )
    if transactional and (mode != "lease" or on_error != "release" or on_lapse != "rerun"):
        raise ConfigurationError(
            f"{name}: in a transaction nothing is leased and nothing in doubt; mode=, on_error= and on_lapse= are for "
            "workers with store="
        )
    if not isinstance(retry, Retry):
        raise ConfigurationError(f"retry={retry!r} of {name}: give Retry(…)")
    scope = f"{queue}/{type or '*'}/{consumer}" if scope is None else scope
    check_scope(scope)
    own_lease = DEFAULT_LEASE if lease is None else lease
    options = policy_options(
        mode=mode,
        lease=own_lease,
        retention=retention,
        max_run=max_run,
        on_error=on_error,
        on_lapse=on_lapse,
        on_store_error="raise",
        permanent=permanent,
    )
    return Route(
        queue=queue,
        type=type,
        function=function,
        name=f"{function.__module__}:{name}",
        is_async=asynchronous,
        with_connection=transactional,
        data_type=data_type_of(function, given[-1].name),
        policy=Policy(scope=scope, codec=Codec(None if to is None else Outgoing, max_result), **options),
        retry=retry,
        concurrency=concurrency or _concurrency(asynchronous, transactional, batch),
        batch=batch,
        to=None if to is None else require_name(to),
        fits_lease=lease is None,
        key=None if key is None else extractor(key, function),
        fingerprint=_fingerprint(fingerprint, function),
    )


def _concurrency(asynchronous: bool, transactional: bool, batch: bool) -> int:
    if transactional:
        return BATCHES if batch else TRANSACTIONS
    return ASYNC_CONCURRENCY if asynchronous else SYNC_CONCURRENCY


def data_type_of(function: Any, parameter: str) -> Any:
    """The ``T`` of a parameter annotated as ``Message[T]``; ``Any`` where it says less."""
    inner = inspect.unwrap(function)
    told = {"message": getattr(inner, "__annotations__", {}).get(parameter, Any)}
    try:
        hint = typing.get_type_hints(types.SimpleNamespace(__annotations__=told), getattr(inner, "__globals__", {}))[
            "message"
        ]
    except NameError as error:
        raise ConfigurationError(
            f"the annotation of {parameter!r} in {name_of(function)} names something that is not there yet ({error}): "
            "messages could not be read as it says; define the type above the handler"
        ) from error
    if typing.get_origin(hint) is Message:
        (data,) = typing.get_args(hint)
        return Any if isinstance(data, typing.TypeVar) else _readable(data, function)
    if hint is Message or hint is Any or hint is object:
        return Any
    raise ConfigurationError(
        f"{name_of(function)} is called with a Message, but {parameter!r} is annotated as {show(hint)}; write "
        f"Message[{getattr(hint, '__name__', 'T')}]"
    )


def _readable(type_: Any, function: Any) -> Any:
    try:
        json_decoder(type_)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"no message can be read as {name_of(function)} wants it: {error}") from error
    return type_


def _fingerprint(
    spec: FingerprintSpec | Literal[False] | None, function: Callable[..., Any]
) -> Extract | Literal["data"] | None:
    if spec is False or spec is None:
        return None if spec is False else "data"
    extract = extractor(spec, function, name="fingerprint")
    return lambda args, kwargs: fingerprints(extract(args, kwargs))


def _signature(function: Callable[..., Any]) -> str:
    return f"({', '.join(inspect.signature(function).parameters)})"
