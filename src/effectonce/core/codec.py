"""Results and errors as bytes: JSON behind one version byte, typed by the handler's annotation. Never pickle.

A result is stored only if it reads back as an equal value of the annotated type, so that a replay returns what the
first call returned. A result that does not (a subclass that would lose fields, a tuple that would become a list, a
class without ``__eq__``) is not stored, and the record is done all the same. ``-> None`` stores None, whatever the
function returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import NoneType
from typing import Any

import msgspec

from effectonce.errors import ConfigurationError, CorruptRecord

from .error_text import error_class, error_frames, error_text
from .interrupts import raise_interrupt
from .rebuilt_errors import named_arguments, required_arguments

FORMAT_VERSION = b"1"  # the first byte of stored results and errors; it names the format
STORED_NONE = FORMAT_VERSION + b"null"
NATIVE_TYPES = frozenset((type(None), bool, str, int))

_encoder = msgspec.json.Encoder(enc_hook=lambda value: _encode_foreign(value))


def to_json(value: Any) -> bytes:
    """Encode ``value``, which may be a pydantic model, as JSON. TypeError where it has no such form."""
    return _encoder.encode(value)


def json_decoder(type_: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    """Make a decoder of JSON as ``type_``. TypeError or ValueError where JSON cannot be read as that type."""
    if type_ is Any:
        return msgspec.json.decode
    return msgspec.json.Decoder(type_, dec_hook=_decode_foreign, strict=True).decode


class Unstorable(Exception):
    """Why a result cannot be stored. Never leaves the core."""


class Codec:
    """Encodes and decodes the results of one handler. ``Any`` stands for JSON-native values only."""

    __slots__ = ("_decode", "_native", "discards", "limit", "type")

    def __init__(self, type_: Any, limit: int) -> None:
        self.type = type_
        self.discards = type_ is None or type_ is NoneType  # whether results are discarded
        self.limit = limit
        # Values of exactly this type always read back as equal, so `encode` need not try.
        self._native = None if self.discards else next((kind for kind in NATIVE_TYPES if kind is type_), None)
        try:
            self._decode = json_decoder(type_)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"a result of type {_name(type_)} cannot be read back: {error}; pass returns= with a type that can, or "
                "returns=None for a handler whose result is not needed"
            ) from error

    def encode(self, value: Any) -> bytes:
        """Encode ``value`` for the store. Raises `Unstorable` where it does not read back as an equal value."""
        try:
            if type(value) is self._native:
                body = _encoder.encode(value)
            elif self.discards:
                return STORED_NONE
            else:
                body = self._encode_checked(value)
        except Unstorable:
            raise
        except Exception as error:
            raise_interrupt(error)
            raise Unstorable(f"{type(value).__name__} does not read back as {_name(self.type)}: {error}") from error
        if len(body) > self.limit:
            raise Unstorable(f"{len(body)} bytes are over the limit of {self.limit}")
        return FORMAT_VERSION + body

    def _encode_checked(self, value: Any) -> bytes:
        if self.type is Any:
            _require_native(value)
        body = _encoder.encode(value)
        if not self._decode(body) == value:  # not !=: a subclass of dict may define __eq__ only
            raise ValueError("it reads back as something else")
        return body

    def decode(self, stored: bytes) -> Any:
        """Decode a stored value. Raises `CorruptRecord` where the bytes are of another format or type."""
        if stored[:1] != FORMAT_VERSION:
            raise CorruptRecord(
                f"a stored result has format {stored[:1]!r}, this release reads {FORMAT_VERSION!r}; "
                "upgrade this process (forgetting the record would run it again)"
            )
        try:
            return self._decode(stored[1:])
        except Exception as error:
            raise_interrupt(error)
            raise CorruptRecord(
                f"a stored result does not read as {_name(self.type)}: {error}; the return type changed, or the "
                "row was edited; pass returns= with a type that reads both (forgetting the record would run it again)"
            ) from error


ABANDONED_ERROR = FORMAT_VERSION + b'{"code":"abandoned"}'  # the stored error of a record that an operator gave up


def encode_untyped(value: Any) -> bytes:
    """Encode a result that an operator entered. It is decoded as the handler's type when it is replayed."""
    return FORMAT_VERSION + _encoder.encode(value)


#: The first byte of a result with a trace: after it come the trace of the run that made the result, then the stored
#: result. Every release can read it (F38), with a tracer or without. In a private store it is inside the seal.
_TRACED_FORMAT_VERSION = b"2"
_TRACE_CHARS = 48  # trace id and span id, in hexadecimal


def with_trace(stored: bytes, trace: bytes) -> bytes:
    """Prefix a stored result with the ``trace`` of its run. One of another length is left out."""
    return _TRACED_FORMAT_VERSION + trace + stored if len(trace) == _TRACE_CHARS else stored


def without_trace(stored: bytes) -> tuple[bytes, bytes]:
    """Split what `with_trace` made into the stored result and its trace; b"" if it has none."""
    if stored[:1] != _TRACED_FORMAT_VERSION:
        return stored, b""
    return stored[1 + _TRACE_CHARS :], stored[1 : 1 + _TRACE_CHARS]


class StoredError(msgspec.Struct, omit_defaults=True):
    """An error as a record keeps it."""

    code: str
    type: str = ""
    message: str = ""
    args: Any = None
    named: dict[str, Any] | None = None  # see `named_arguments`
    frames: list[str] = []  # where it was raised: the handler first, the line that raised it last


_error_decoder = msgspec.json.Decoder(StoredError)


def encode_error(error: BaseException, limit: int = 4096) -> bytes:
    """Encode the name, the text, the place and (where JSON can hold them) the arguments of ``error``, in about twice
    ``limit`` bytes."""
    kind, text, frames = error_class(error), _error_text(error)[:limit], error_frames(error)
    stored = StoredError("permanent-failure", kind, text, frames=frames)
    try:
        stored.named = _storable_arguments(error, limit)
        if stored.named is None:
            _require_native(list(error.args))
            stored.args = list(error.args)
        body = _encoder.encode(stored)
        if len(body) <= 2 * limit:
            return FORMAT_VERSION + body
    except Exception as refusal:  # the arguments cannot be kept; the text can
        raise_interrupt(refusal)
    return FORMAT_VERSION + _encoder.encode(StoredError("permanent-failure", kind, text, frames=frames))


def _storable_arguments(error: BaseException, limit: int) -> dict[str, Any] | None:
    """The `named_arguments` of ``error``, without optional ones that JSON cannot hold, or that leave no room for
    smaller ones. None where a required one cannot be kept."""
    sizes: dict[str, int] = {}
    arguments = named_arguments(error) or {}
    for name, value in arguments.items():
        try:
            _require_native(value)
            sizes[name] = len(_encoder.encode(value))
        except (Unstorable, ValueError, TypeError):
            continue
    kept: dict[str, Any] = {}
    for name in sorted(sizes, key=sizes.__getitem__):
        limit -= sizes[name]
        if limit >= 0:
            kept[name] = arguments[name]
    return kept if kept and required_arguments(error) <= kept.keys() else None


def encode_last_error(error: BaseException) -> bytes:
    """Encode an ``error`` that is kept for operators only, and never raised again."""
    stored = StoredError("last-error", error_class(error), error_text(error), frames=error_frames(error))
    return FORMAT_VERSION + _encoder.encode(stored)


def decode_error(stored: bytes | None) -> StoredError:
    """Decode what `encode_error` encoded. Raises `CorruptRecord` if it cannot be read."""
    if stored is None:
        return StoredError("permanent-failure")
    try:
        if stored[:1] != FORMAT_VERSION:
            raise ValueError(f"format {stored[:1]!r}")
        return _error_decoder.decode(stored[1:])
    except Exception as error:
        raise_interrupt(error)
        raise CorruptRecord(
            f"a stored error cannot be read: {error}; upgrade this process, or forget the record to run it again"
        ) from error


def _error_text(error: BaseException) -> str:
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception as failure:
        raise_interrupt(failure)
        return f"<{type(error).__name__} without a text>"


def _require_native(value: Any, depth: int = 0) -> None:
    """Raise `Unstorable` for a value that JSON would change silently: a tuple becomes a list, a datetime a string, NaN
    null."""
    kind = type(value)
    if kind in NATIVE_TYPES:
        return
    if kind is float:
        if math.isfinite(value):
            return
        raise Unstorable(f"{value} has no JSON form")
    if depth > 100:
        raise Unstorable("nested too deeply")
    if kind is list:
        for item in value:
            _require_native(item, depth + 1)
    elif kind is dict:
        for name, item in value.items():
            if type(name) is not str:
                raise Unstorable(f"a dict key of type {type(name).__name__} would read back as a string")
            _require_native(item, depth + 1)
    else:
        raise Unstorable(f"{kind.__name__} is not a JSON value; annotate the handler's return type, or pass returns=")


def _encode_foreign(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)  # a pydantic model
    if dump is not None:
        return dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} cannot be stored")


def _decode_foreign(type_: Any, value: Any) -> Any:
    if type_ is object:  # as in dict[str, object]: any value, as JSON has it
        return value
    validate = getattr(type_, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise NotImplementedError(f"{_name(type_)} cannot be read back")


def _name(type_: Any) -> str:
    return "a JSON value" if type_ is Any else getattr(type_, "__name__", None) or str(type_)
