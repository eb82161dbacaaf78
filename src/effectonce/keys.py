"""Keys: what says "this is the same operation".

A key comes from the sender: a producer's message id, a business composite, an ``Idempotency-Key``. `extractor` finds it
in the arguments of a handler; `content_hash` and `time_window` make one of them. `values.identity` writes it as text.

What a broker stamps on a *delivery* is not a key. A producer's resend, a redrive from a dead-letter queue or a relay's
re-publish carries another delivery tag, receipt handle, ``MessageId`` or offset, and the duplicate would run. A path
that ends in such a name is refused unless it is wrapped in `broker_made`. A callable is not looked into.
"""

from __future__ import annotations

import enum
import inspect
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from .errors import ConfigurationError, InvalidKey, MissingKey, show
from .values.durations import Duration, micros, span_text
from .values.fingerprint import fingerprint
from .values.identity import MAX_KEY as MAX_KEY
from .values.identity import Key as Key
from .values.identity import WindowStart
from .values.identity import digest as digest
from .values.identity import encode_key as encode_key

Extract = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Takes the ``args`` and ``kwargs`` of a call, and returns the value that a `KeySpec` names."""


class Strategy(ABC):
    """A way to make a key that depends on the handler's parameters."""

    __slots__ = ()

    @abstractmethod
    def bind(self, handler: _HandlerParameters, name: str) -> Extract: ...


# Spelled out by arity: a lambda passed for `Callable[..., Key]` would not be checked by mypy or pyright.
KeyFunction = Callable[[Any], Key] | Callable[[Any, Any], Key] | Callable[[Any, Any, Any], Key]
KeyPart = str | KeyFunction | Strategy
KeySpec = KeyPart | tuple[KeyPart, ...]
FingerprintFunction = Callable[[Any], Any] | Callable[[Any, Any], Any] | Callable[[Any, Any, Any], Any]
FingerprintPart = str | FingerprintFunction | Strategy
FingerprintSpec = FingerprintPart | tuple[FingerprintPart, ...]


def extractor(spec: FingerprintSpec, handler: Callable[..., Any] | inspect.Signature, *, name: str = "key") -> Extract:
    """Make a function that takes what ``spec`` names from a call of ``handler``. ``name``: of the option, for errors.

    - ``"order.id"``: a path. Its root is a parameter of the handler; each further step is looked up in a
      mapping, is an index (``Records.0.body``) of a list or tuple, and an attribute of anything else. A name
      that itself contains a dot needs a callable.
    - a callable: its parameters are the handler's, by name. Where both have just one (``self`` not counted),
      the names may differ. It never gets ``self``.
    - a tuple of these: a tuple of their values.

    Raises `ConfigurationError` for a spec that no call could satisfy: a root that is not a parameter, a coroutine
    function, a broker-made name (if ``name`` is ``"key"``). The returned function raises `MissingKey` for a call that
    lacks a step, and `TypeError` for one that lacks the parameter itself, as calling the handler would.
    """
    return _extract(spec, _HandlerParameters(handler), name)


def key_text(spec: KeySpec) -> str:
    """Write ``spec`` for people: a path as it is, a function by its name."""
    if isinstance(spec, tuple):
        return f"({', '.join(map(key_text, spec))})"
    if isinstance(spec, str | Strategy):
        return str(spec)
    return f"function {getattr(spec, '__qualname__', type(spec).__qualname__)}"


def _extract(spec: FingerprintSpec, handler: _HandlerParameters, name: str) -> Extract:
    if isinstance(spec, str):
        return _extract_path(spec, handler, name)
    if isinstance(spec, Strategy):
        return spec.bind(handler, name)
    if isinstance(spec, tuple):
        return _extract_tuple(spec, handler, name)
    if callable(spec):
        return _extract_by_function(spec, handler, name)
    raise ConfigurationError(
        f"{name}={show(repr(spec))} is not a path, a callable or a tuple of these; "
        f"a {name} is taken from the arguments, as in {name}='order.id'"
    )


_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class _HandlerParameters:
    """The parameters of a handler, and how to fetch each from a call without binding the signature."""

    def __init__(self, handler: Callable[..., Any] | inspect.Signature) -> None:
        signature = handler if isinstance(handler, inspect.Signature) else inspect.signature(handler)
        self.parameters = dict(signature.parameters)
        first = next(iter(self.parameters), None)
        self.receiver = first if first in ("self", "cls") else None
        plain = [name for name, p in self.parameters.items() if p.kind not in _VARIADIC]
        self.named = [name for name in plain if name != self.receiver]

    def __str__(self) -> str:
        return ", ".join(self.parameters) or "none"

    def fetch(self, name: str) -> Extract:
        """A function that fetches the argument ``name`` from a call."""
        parameter = self.parameters[name]
        kind, default = parameter.kind, parameter.default
        position = list(self.parameters).index(name)
        if kind is parameter.VAR_POSITIONAL:
            return lambda args, kwargs: args[position:]
        if kind is parameter.VAR_KEYWORD:
            others = {p.name for p in self.parameters.values() if p.kind is not p.POSITIONAL_ONLY}
            return lambda args, kwargs: {keyword: kwargs[keyword] for keyword in kwargs if keyword not in others}

        def fetch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if len(args) > position and kind is not parameter.KEYWORD_ONLY:
                return args[position]
            if name in kwargs and kind is not parameter.POSITIONAL_ONLY:
                return kwargs[name]
            if default is inspect.Parameter.empty:
                raise TypeError(f"the call lacks {name!r}, the argument that its key or fingerprint is taken from")
            return default

        return fetch


_ABSENT: Final = object()


def _extract_path(path: str, handler: _HandlerParameters, name: str) -> Extract:
    root, *steps = path.split(".")
    if not root or not all(steps):
        raise ConfigurationError(f"{name}={path!r} has an empty step; write it like 'order.id'")
    if root not in handler.parameters:
        raise ConfigurationError(
            f"{name}={path!r} begins with {root!r}, which is not a parameter of the handler (it has: "
            f"{handler}); a {name} is taken from the arguments: name one of them, or give a callable"
        )
    if root == handler.receiver and not steps:
        raise ConfigurationError(f"{name}={path!r} is the object itself; name an attribute: 'self.tenant'")
    if name == "key" and not isinstance(path, _BrokerMade):
        _refuse_broker_made(path, [root, *steps])
    fetch = handler.fetch(root)
    if not steps:
        return fetch

    def walk(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = fetch(args, kwargs)
        for step in steps:
            parent, value = value, _look_up(value, step)
            if value is _ABSENT:
                raise MissingKey(
                    f"{name}={path!r}: there is no {step!r} in the {type(parent).__qualname__} before it; "
                    "the sender must give it, or the path is wrong"
                )
        return value

    return walk


def _look_up(value: Any, step: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(step, _ABSENT)  # not [step]: a defaultdict would invent the key
    if isinstance(value, list | tuple) and step.isdecimal():
        return value[int(step)] if int(step) < len(value) else _ABSENT
    return getattr(value, step, _ABSENT)


def _extract_tuple(parts: tuple[FingerprintPart, ...], handler: _HandlerParameters, name: str) -> Extract:
    if not parts:
        raise ConfigurationError(f"{name}=() names nothing; every call would share one {name}")
    if any(isinstance(part, tuple | _TimeWindow) for part in parts):
        raise ConfigurationError(f"{name}={show(repr(parts))} is nested; write all parts in one tuple")
    fetches = [_extract(part, handler, name) for part in parts]
    return lambda args, kwargs: tuple([fetch(args, kwargs) for fetch in fetches])


def _extract_by_function(function: Callable[..., Any], handler: _HandlerParameters, name: str) -> Extract:
    option = f"{name}={getattr(function, '__qualname__', repr(function))}"
    for suspends in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        if suspends(function) or suspends(type(function).__call__):
            raise ConfigurationError(
                f"{option} is a coroutine or generator function; a {name} is needed before anything is "
                "awaited: take it from the arguments with a plain def or lambda"
            )
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.kind not in _VARIADIC]
    except (TypeError, ValueError):  # some builtins have no signature: they get one positional argument
        parameters = [inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)]
    required = [p.name for p in parameters if p.default is p.empty]
    usable = {parameter: parameter for parameter in handler.parameters if parameter != handler.receiver}
    if len(required) == len(handler.named) == 1 and required[0] not in {*usable, "self", "cls"}:
        usable[required[0]] = handler.named[0]
    if not any(p.name in usable for p in parameters) or not usable.keys() >= set(required):
        raise ConfigurationError(
            f"{option} takes ({', '.join(p.name for p in parameters)}), but its parameters are the "
            f"handler's, by name (it has: {handler}; never self); where both take just one, names may differ"
        )
    fetches = {
        p: handler.fetch(usable[p.name]) if p.name in usable else _extract_constant(p.default) for p in parameters
    }
    positional = [fetch for p, fetch in fetches.items() if p.kind is not p.KEYWORD_ONLY]
    keywords = {p.name: fetch for p, fetch in fetches.items() if p.kind is p.KEYWORD_ONLY}
    return lambda args, kwargs: function(
        *[fetch(args, kwargs) for fetch in positional],
        **{keyword: fetch(args, kwargs) for keyword, fetch in keywords.items()},
    )


def _extract_constant(value: Any) -> Extract:
    return lambda args, kwargs: value


# -- names that brokers give to deliveries

# fmt: off
_BROKER_NAMES: Final = frozenset({
    "deliverytag", "consumertag", "redelivered", "deliverycount", "xdeliverycount", "deliveryattempt",
    "receipthandle", "approximatereceivecount", "approximatefirstreceivetimestamp", "senttimestamp",
    "offset", "partitionoffset", "messageoffset", "recordoffset", "kafkaoffset",
    "sequencenumber", "enqueuedsequencenumber", "enqueuedtimeutc", "locktoken", "popreceipt",
    "streamsequence", "consumersequence", "streamseq", "consumerseq", "numdelivered", "ackid",
})
# fmt: on
_SQS_RECORD_NAMES: Final = frozenset({"records", "record", "sqs", "sqsrecord", "sqsmessage"})


class _BrokerMade(str):
    __slots__ = ()


def broker_made(path: str) -> str:
    """Accept ``path`` as a key, although its name is a broker's. Then only the broker's redeliveries are recognised.

    A message that the producer sends again, that is redriven from a dead-letter queue or that a relay re-publishes gets
    a new value there, and its effect happens twice. Use this also for a field that only has such a name by coincidence.
    """
    return _BrokerMade(path)


def _refuse_broker_made(path: str, steps: list[str]) -> None:
    """Raise `ConfigurationError` for a path to a broker's name. ``message_id`` is allowed, since producers make that;
    SQS's own is ``MessageId``, or ``messageId`` in the records of Lambda."""
    normalized = [step.replace("_", "").replace("-", "").lower() for step in steps]
    in_sqs_record = not _SQS_RECORD_NAMES.isdisjoint(normalized[:-1])
    is_made_by_sqs = steps[-1] == "MessageId" or (steps[-1] == "messageId" and in_sqs_record)
    if normalized[-1] in _BROKER_NAMES or is_made_by_sqs:
        raise ConfigurationError(
            f"key={path!r} is made by the broker: a producer's resend, a redrive or a re-publish gets a new "
            "one, and the duplicate would run. Take an id that the sender made, of the message or of the order; "
            f"if the name is a coincidence, or you do mean it, write keys.broker_made({path!r})"
        )


KAFKA_OFFSET: Final = "topic:partition:offset"
"""For ``worker.handler(key=…)``: a record that came without a key of its own is known by its place in Kafka's log.

The last resort. Kafka's own redeliveries are recognised: after a crash, a rebalance or a retry. A record that its
producer sends again, that is redriven from the dead letters or copied into another topic has another offset, and its
effect happens twice. An id in the record, made by who sends it, has none of these windows.
"""


# -- strategies


def composite(*parts: KeyPart) -> tuple[KeyPart, ...]:
    """Make a business key of several parts: ``composite("tenant", "order.id")``. The same as the plain tuple.

    It is only as good as its parts: leave one out, and different operations become one.
    """
    return parts


def content_hash(*paths: KeyPart) -> Strategy:
    """Make the key from the payload: a hash of the values at ``paths``, or of all arguments but ``self``.

    WARNING: two honest requests with the same content are one operation. The second coffee of the day, the
    second transfer of the same amount to the same account is taken for a duplicate and *does not happen*. Use
    it where equal content means equal intent (a full snapshot, a state to be set), or with a part that tells
    them apart. What may differ between two deliveries of one message (a time of sending, trace headers) must
    be left out, or duplicates are not recognised.
    """
    return _ContentHash(paths)


@dataclass(frozen=True, slots=True)
class _ContentHash(Strategy):
    paths: tuple[KeyPart, ...]

    def __str__(self) -> str:
        return f"content_hash{key_text(self.paths)}"

    def bind(self, handler: _HandlerParameters, name: str) -> Extract:
        extract = _extract_tuple(self.paths or tuple(handler.named), handler, name)

        def hash_content(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
            content = extract(args, kwargs)
            if all(value is None for value in content):
                raise MissingKey("there is no content to hash: all of it is None")
            return fingerprint(content[0] if len(content) == 1 else content).hex()

        return hash_content


class _TimeSource(enum.Enum):
    RECEIVER = "the receiver's clock"


RECEIVER_CLOCK: Final = _TimeSource.RECEIVER
"""For ``time_window(at=…)``: a retry that arrives after the window's end is a new operation, and runs."""


def time_window(key: KeySpec, *, every: Duration = "1h", at: KeyPart | _TimeSource | None = None) -> Strategy:
    """Run at most once per ``key`` and window: ``time_window("user_id", every="1d", at="event.created_at")``.

    The window's start, in UTC, becomes the last part of the key: ``42:2024-01-15T10:00``. Windows are
    counted from 1970-01-01T00:00Z, so days begin at midnight UTC. Within one window a second honest request
    is taken for a duplicate; two requests a second apart on both sides of a border both run.

    ``at`` is the message's own time (an aware `datetime`, a naive one taken as UTC, ISO 8601 text or seconds
    since 1970), the same in each of its deliveries. Without it this refuses: the receiver's clock would put a
    retry into the next window. `RECEIVER_CLOCK` accepts that.
    """
    if at is None:
        raise ConfigurationError(
            "time_window needs at=, the path of a timestamp in the message: by the receiver's clock a retry "
            "may fall into the next window and run again (at=keys.RECEIVER_CLOCK if that is acceptable)"
        )
    span = micros(every, "every")
    if span % 1_000_000:
        raise ConfigurationError(f"every={every!r} must be a whole number of seconds")
    return _TimeWindow(key, span, at)


_EPOCH: Final = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class _TimeWindow(Strategy):
    key: KeySpec
    span_us: int
    at: KeyPart | _TimeSource

    def __str__(self) -> str:
        return f"time_window({key_text(self.key)}, every={span_text(self.span_us)})"

    def bind(self, handler: _HandlerParameters, name: str) -> Extract:
        extract_key = _extract(self.key, handler, name)
        extract_time = None if isinstance(self.at, _TimeSource) else _extract(self.at, handler, name)

        def append_window(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
            key = extract_key(args, kwargs)
            now = time.time_ns() // 1000 if extract_time is None else _to_micros(extract_time(args, kwargs))
            return (*(key if isinstance(key, tuple) else (key,)), self._window_start(now))

        return append_window

    def _window_start(self, now: int) -> WindowStart:
        try:
            start = _EPOCH + timedelta(microseconds=now - now % self.span_us)
        except OverflowError:
            raise InvalidKey("the timestamp of the time window is outside the years 1 to 9999") from None
        return WindowStart(start.isoformat(timespec="seconds" if self.span_us % 60_000_000 else "minutes"))


def _to_micros(value: object) -> int:
    """A message's timestamp in microseconds since 1970."""
    if value is None or value == "":
        raise MissingKey("the message has no timestamp, so its time window is unknown")
    if isinstance(value, str) and not value.replace(".", "").isdecimal():
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            pass
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (aware - _EPOCH.replace(tzinfo=UTC)) // timedelta(microseconds=1)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 100_000_000_000:
        return math.floor(value * 1_000_000)
    raise InvalidKey(
        f"{show(repr(value), 48)} is not a timestamp for a time window: give a datetime, ISO 8601 text or "
        "seconds since 1970 (divide milliseconds by 1000 in a callable)"
    )
