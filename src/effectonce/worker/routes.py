"""A handler of a worker and its settings, checked when it is decorated."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from effectonce.core.codec import Codec, json_decoder
from effectonce.core.guarded_call.run import Policy
from effectonce.core.retry import Retry, is_final
from effectonce.errors import ConfigurationError, EffectOnceError, InDoubt, InProgress, show
from effectonce.guard.introspection import is_async, name_of, refuse_unguardable
from effectonce.guard.options import check_scope, policy_options, read_choice
from effectonce.keys import KAFKA_OFFSET, Extract, FingerprintSpec, KeySpec, extractor, key_text
from effectonce.message import Message
from effectonce.values.durations import Duration
from effectonce.values.fingerprint import fingerprints
from effectonce.values.queue_names import require_name

from .dead_letter_cause import CauseCode

#: Handlers at once, where none are given: in the loop, in threads, in transactions, in transactions of many.
ASYNC_CONCURRENCY = 100
SYNC_CONCURRENCY = 16
TRANSACTION_CONCURRENCY = 10
BATCH_CONCURRENCY = 2
DEFAULT_LEASE: Duration = "30s"

Permanent = tuple[type[BaseException], ...]
Outgoing = list[Message[Any]]


class RetryAfter(NamedTuple):
    """Deliver the message again, for another attempt, after ``seconds``."""

    seconds: float


class RedeliverUncounted(NamedTuple):
    """Deliver the message again later, since another call runs what it asks for. That does not count as an attempt."""

    error: InProgress


class GiveUp(NamedTuple):
    """Move the message to the dead letters."""

    why: CauseCode


class HandlerRoute(Struct, kw_only=True, eq=False):
    """Which function gets which messages, and how.

    It is changed only before its worker serves: `fit_lease` may shorten its lease, and a tracer wraps its function. It
    is compared by identity, since pools and transaction runners are kept by route.
    """

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
    to: str | None  # the queue that the messages which it returns are sent to
    acks_first: bool  # its messages are acked before they run: at most once
    has_default_lease: bool  # then it may be cut to fit the broker's ack window
    key: Extract | None  # None: the message's own
    key_text: str  # the option, for people
    offset_is_key: bool  # a message without a key of its own has `Delivery.offset` for one
    fingerprint: Extract | Literal["data"] | None  # what of a message is the same in its duplicates; None: not compared

    def decide_failure(self, error: BaseException, attempt: int) -> RetryAfter | RedeliverUncounted | GiveUp:
        """Decide what happens to a message whose attempt number ``attempt`` raised ``error``.

        Two errors come from a guard, an intent or a saga that the handler calls: `InProgress` is not a failure, as it
        runs elsewhere; after `InDoubt` no attempt can run until an operator has decided.
        """
        if isinstance(error, self.policy.permanent) and not isinstance(error, EffectOnceError):
            return GiveUp("permanent-failure")
        if self.policy.doubt_on_error or (isinstance(error, InDoubt) and InDoubt not in self.retry.on):
            return GiveUp("in-doubt")
        if isinstance(error, InProgress) and not self.retry.refuses(error):
            return RedeliverUncounted(error)
        delay = self.retry.delay_after(error, attempt)
        if delay is not None:
            return RetryAfter(delay)
        if not self.retry.refuses(error):
            return GiveUp("attempts-exhausted")
        return GiveUp("permanent-failure" if is_final(error) else "refused")


class HandlerOptions(Struct, kw_only=True, frozen=True):
    """The options of `Worker.handler`, as they were given."""

    key: KeySpec | None
    scope: str | None
    mode: Literal["lease", "seen"]
    retry: Retry | None
    concurrency: int | None
    batch: bool
    to: str | None
    ack: Literal["last", "first"]
    lease: Duration | None
    retention: Duration
    max_run: Duration
    on_error: Literal["release", "doubt"]
    on_lapse: Literal["rerun", "doubt"]
    permanent: Permanent
    fingerprint: FingerprintSpec | Literal[False] | None


def make_route(
    function: Callable[..., Any],
    queue: str,
    type: str | None,
    options: HandlerOptions,
    *,
    consumer: str,
    transactional: bool,
    max_result: int,
) -> HandlerRoute:
    """Make the route of a decorated ``function``; `ConfigurationError` for what cannot work."""
    refuse_unguardable(function)
    require_name(queue)
    parameters = _required_parameters(function, transactional)
    _check_options(name_of(function), options, transactional)
    scope = f"{queue}/{type or '*'}/{consumer}" if options.scope is None else options.scope
    check_scope(scope)
    acks_first = read_choice("ack", options.ack, "first", "last")
    if acks_first:
        options = _at_most_once(name_of(function), options, transactional)
    settings = policy_options(
        mode=options.mode,
        lease=DEFAULT_LEASE if options.lease is None else options.lease,
        retention=options.retention,
        max_run=options.max_run,
        on_error=options.on_error,
        on_lapse=options.on_lapse,
        on_store_error="raise",
        permanent=options.permanent,
    )
    returns = None if options.to is None else Outgoing
    return HandlerRoute(
        queue=queue,
        type=type,
        function=function,
        name=f"{function.__module__}:{name_of(function)}",
        is_async=is_async(function),
        with_connection=transactional,
        data_type=data_type_of(function, parameters[-1].name),
        policy=Policy(scope=scope, codec=Codec(returns, max_result), logs_failures=True, **settings),
        retry=Retry() if options.retry is None else options.retry,
        concurrency=options.concurrency or _default_concurrency(is_async(function), transactional, options.batch),
        batch=options.batch,
        to=None if options.to is None else require_name(options.to),
        acks_first=acks_first,
        has_default_lease=options.lease is None,
        key=None if options.key in (None, KAFKA_OFFSET) else extractor(options.key, function),
        key_text="message.key" if options.key is None else key_text(options.key),
        offset_is_key=options.key == KAFKA_OFFSET,
        fingerprint=_fingerprint(options.fingerprint, function),
    )


def _required_parameters(function: Callable[..., Any], transactional: bool) -> list[inspect.Parameter]:
    """The parameters without a default: ``(message)``, or ``(connection, message)``."""
    required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    if len(required) != (2 if transactional else 1) or any(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in required):
        takes = "(connection, message), since the worker has inbox=" if transactional else "(message)"
        names = ", ".join(inspect.signature(function).parameters)
        raise ConfigurationError(f"{name_of(function)} cannot be a handler here: it must take {takes}, not ({names})")
    return required


def _check_options(name: str, options: HandlerOptions, transactional: bool) -> None:
    concurrency = options.concurrency
    if concurrency is not None and (not isinstance(concurrency, int) or concurrency < 1):
        raise ConfigurationError(f"concurrency={concurrency!r} of {name} is not a number of handlers; give 1 or more")
    if options.batch and not transactional:
        raise ConfigurationError(
            f"batch=True of {name} needs inbox=: it means that all effects are in one transaction; claims and "
            "completions are batched by themselves"
        )
    if options.to is not None and (transactional or options.mode != "lease"):
        raise ConfigurationError(
            f"{name} cannot have to=: what it sends on is kept in a lease's record; in a transaction write it to an "
            "Outbox on the same connection"
        )
    if transactional and (options.mode != "lease" or options.on_error != "release" or options.on_lapse != "rerun"):
        raise ConfigurationError(
            f"{name}: in a transaction nothing is leased and nothing in doubt; mode=, on_error= and on_lapse= are for "
            "workers with store="
        )
    if not isinstance(options.retry, Retry | None):
        raise ConfigurationError(f"retry={options.retry!r} of {name}: give Retry(…)")


def _at_most_once(name: str, options: HandlerOptions, transactional: bool) -> HandlerOptions:
    """The options of a handler with ``ack="first"``; `ConfigurationError` for those that promise another attempt.

    What was claimed may have run, and nothing may run twice: a claim that ends without a word is in doubt. A handler
    that raised is done with, and failed.
    """
    if transactional:
        problem = "the row and the effect are one commit in a transaction, and an ack after it loses nothing"
    elif options.mode == "seen":
        problem = "a seen-set records a message after its run, so a redelivery could run beside it; use mode='lease'"
    elif options.to is not None:
        problem = "to= promises that what it returns is sent, and a crash would lose that with the message"
    elif options.retry is not None:
        problem = "a message that is acked is not delivered again, so retry= has no meaning"
    else:
        permanent = options.permanent if options.on_error == "doubt" else (Exception,)
        return replace(options, retry=Retry(1), on_lapse="doubt", on_error="doubt", permanent=permanent)
    raise ConfigurationError(f"ack='first' of {name}: {problem}")


def _default_concurrency(asynchronous: bool, transactional: bool, batch: bool) -> int:
    if transactional:
        return BATCH_CONCURRENCY if batch else TRANSACTION_CONCURRENCY
    return ASYNC_CONCURRENCY if asynchronous else SYNC_CONCURRENCY


def data_type_of(function: Any, parameter: str) -> Any:
    """The ``T`` of a parameter annotated as ``Message[T]``; ``Any`` where it says less."""
    inner = inspect.unwrap(function)
    annotation = {"message": getattr(inner, "__annotations__", {}).get(parameter, Any)}
    names = getattr(inner, "__globals__", {})
    try:
        hint = typing.get_type_hints(types.SimpleNamespace(__annotations__=annotation), names)["message"]
    except NameError as error:
        raise ConfigurationError(
            f"the annotation of {parameter!r} in {name_of(function)} names something that is not defined yet "
            f"({error}): messages could not be read as it says; define the type above the handler"
        ) from error
    if typing.get_origin(hint) is Message:
        (data,) = typing.get_args(hint)
        return Any if isinstance(data, typing.TypeVar) else _require_decodable(data, function)
    if hint is Message or hint is Any or hint is object:
        return Any
    raise ConfigurationError(
        f"{name_of(function)} is called with a Message, but {parameter!r} is annotated as {show(hint)}; write "
        f"Message[{getattr(hint, '__name__', 'T')}]"
    )


def _require_decodable(type_: Any, function: Any) -> Any:
    try:
        json_decoder(type_)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"no message can be read as {name_of(function)} wants it: {error}") from error
    return type_


def _fingerprint(
    spec: FingerprintSpec | Literal[False] | None, function: Callable[..., Any]
) -> Extract | Literal["data"] | None:
    if spec is False:
        return None
    if spec is None:
        return "data"
    extract = extractor(spec, function, name="fingerprint")
    return lambda args, kwargs: fingerprints(extract(args, kwargs))
