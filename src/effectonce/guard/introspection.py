"""Reads a function before it is called: whether it can be guarded, its name, scope, key and types."""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
import warnings
from typing import Any, TypeVar

from effectonce.errors import ConfigurationError, SyncAsyncMismatch
from effectonce.keys import Extract, Key, extractor
from effectonce.message import Message
from effectonce.values.fingerprint import fingerprints

NO_CLASSMETHOD = (
    "{} is a class method: which class would its keys belong to? Guard a function or a static method instead "
    "(@staticmethod above @once), and pass the class as an argument"
)


def refuse_unguardable(function: Any) -> None:
    """Raise `ConfigurationError` for a generator, a class method, or anything else that `once` cannot guard."""
    name = name_of(function)
    if isinstance(function, classmethod):
        raise ConfigurationError(NO_CLASSMETHOD.format(name))
    if isinstance(function, staticmethod):
        raise ConfigurationError(f"put @staticmethod above @once on {name}, not below")
    if isinstance(function, type) or not callable(function):
        raise ConfigurationError(f"@once guards functions and methods, not {name}")
    called = type(function).__call__
    if any(inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code) for code in (function, called)):
        raise ConfigurationError(
            f"{name} is a generator, which has no moment at which it is done; collect its items in a plain function"
        )
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the parameters of {name} are unknown ({error}); wrap it in a function") from error
    if parameters[:1] == ["cls"] and "." in getattr(function, "__qualname__", ""):
        raise ConfigurationError(NO_CLASSMETHOD.format(name))


#: A plain `def` that returns one of these, or an awaitable, has not done its work yet.
LAZY_TYPES = frozenset((types.GeneratorType, types.AsyncGeneratorType))


def refuse_lazy(function: Any, value: Any) -> None:
    """Raise `SyncAsyncMismatch` where a plain `def` returned something that still has to be awaited or iterated."""
    if type(value) not in LAZY_TYPES and not hasattr(value, "__await__"):
        return
    if inspect.iscoroutine(value):
        value.close()
    raise SyncAsyncMismatch(
        f"{name_of(function)} is a plain `def` that returned {type(value).__name__}, so nothing had happened yet when "
        "it returned; make it `async def` and await inside, or do the work before you return"
    )


def is_async(function: Any) -> bool:
    """Whether calling ``function``, or an object with ``__call__``, returns something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def name_of(function: Any) -> str:
    """Return the name of ``function`` for messages."""
    return getattr(function, "__qualname__", None) or repr(function)


def default_scope(function: Any, *, stacklevel: int) -> str:
    """Return ``module:qualname``. Warns in a script, whose module has no name of its own; ``stacklevel`` is how many
    calls above this one the user's line is that the warning shows.

    Raises `ConfigurationError` for a function without a name.
    """
    qualname = getattr(function, "__qualname__", None)
    if qualname is None or "<lambda>" in qualname:
        raise ConfigurationError(
            f"{function!r} has no name of its own to make a scope from; write a def, or pass scope= to @once"
        )
    module = function.__module__
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is not None:
            module = spec.name
        else:
            warnings.warn(
                f"the scope of {qualname} is '__main__:{qualname}' since this is a script; the same function imported "
                "from elsewhere would have another scope and run again: start it by python -m, or pass scope= to @once",
                stacklevel=stacklevel + 1,
            )
    return f"{module}:{qualname}"


def return_type(function: Any, returns: Any) -> Any:
    """Return the type of the function's results: ``returns``, or its annotation. ``Any`` means any JSON value.

    Raises NameError if the annotation names something that is not defined.
    """
    if returns is not ...:
        return returns
    inner = inspect.unwrap(function)
    # Only this annotation is evaluated: others may name types that exist for type checkers only.
    annotations = {"return": getattr(inner, "__annotations__", {}).get("return", Any)}
    owner = types.SimpleNamespace(__annotations__=annotations)
    hint = typing.get_type_hints(owner, getattr(inner, "__globals__", {}))["return"]
    if hint in (object, typing.NoReturn, typing.Never) or isinstance(hint, TypeVar):
        return Any
    return hint


def _first_parameter(function: Any) -> tuple[int, str]:
    """Return position and name of the first parameter that is not ``self``."""
    parameters = list(inspect.signature(function).parameters)
    position = 1 if parameters[:1] == ["self"] else 0
    if len(parameters) <= position:
        raise ConfigurationError(
            f"{name_of(function)} takes no argument that could carry a key; pass key= with a path or a callable"
        )
    return position, parameters[position]


def _may_be_message(function: Any, name: str) -> bool:
    """Whether the annotation of a parameter allows a `Message`; an unevaluated one is read as text."""
    annotation = inspect.signature(function).parameters[name].annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None) or str(annotation)
    return annotation is inspect.Parameter.empty or re.search(r"\b(Message|Any|object)\b", text) is not None


def message_key(function: Any) -> Extract:
    """Return a function that reads the key of the `Message` in the first argument: for a handler without ``key=``."""
    position, name = _first_parameter(function)
    if not _may_be_message(function, name):
        raise ConfigurationError(
            f"{name_of(function)} needs key=: its first argument {name!r} is not a Message, so nothing says which "
            f"calls are the same operation; for example key={name!r}"
        )

    def read_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        message = args[position] if len(args) > position else kwargs.get(name)
        if isinstance(message, Message):
            return message.key
        raise ConfigurationError(
            f"{name_of(function)} has no key= and was called with a {type(message).__name__} instead of a Message; "
            f"pass key= to @once, for example key={name!r}"
        )

    return read_key


def fingerprint_of(spec: Any, function: Any) -> Extract | None:
    """Return a function that computes the fingerprint of a call: of the parts that ``fingerprint=`` names, else of the
    data of a `Message`. None: calls have no fingerprint."""
    if spec is False:
        return None
    if spec is not None:
        extract = extractor(spec, function, name="fingerprint")
        return lambda args, kwargs: fingerprints(extract(args, kwargs))
    try:
        position, name = _first_parameter(function)
    except ConfigurationError:
        return None
    if not _may_be_message(function, name):
        return None

    def fingerprint_data(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        message = args[position] if len(args) > position else kwargs.get(name)
        return fingerprints(message.data) if isinstance(message, Message) else b""

    return fingerprint_data
