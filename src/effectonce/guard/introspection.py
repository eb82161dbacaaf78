"""What is known about a handler before it is called: may it be guarded, under which scope, key and result type."""

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
    """`ConfigurationError` for what has no single end, no parameters, or no class of its own to belong to."""
    name = name_of(function)
    if isinstance(function, classmethod):
        raise ConfigurationError(NO_CLASSMETHOD.format(name))
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
        raise ConfigurationError(NO_CLASSMETHOD.format(name))


#: Results of a plain `def` that have not happened yet, beside awaitables.
LAZY = frozenset((types.GeneratorType, types.AsyncGeneratorType))


def refuse_lazy(function: Any, value: Any) -> None:
    """`SyncAsyncMismatch` where a plain `def` returned something that still has to be awaited or run through."""
    if type(value) not in LAZY and not hasattr(value, "__await__"):
        return
    if inspect.iscoroutine(value):
        value.close()
    raise SyncAsyncMismatch(
        f"{name_of(function)} is a plain `def` that returned {type(value).__name__}, so nothing had happened yet when "
        "it returned; make it `async def` and await inside, or do the work before you return"
    )


def is_async(function: Any) -> bool:
    """Whether calling it gives something to await; of objects, their ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def name_of(function: Any) -> str:
    """What to call it in a message."""
    return getattr(function, "__qualname__", None) or repr(function)


def default_scope(function: Any) -> str:
    """``module:qualname``; a script is warned, and what has no name of its own is refused."""
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
                stacklevel=4,
            )
    return f"{module}:{qualname}"


def return_type(function: Any, returns: Any) -> Any:
    """The type of its results: ``returns``, else the annotation; ``Any`` means JSON values. May raise NameError."""
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
            f"{name_of(function)} takes no argument that could carry a key; pass key= with a path or a callable"
        )
    return at, parameters[at]


def _may_be_message(function: Any, name: str) -> bool:
    """Whether the annotation of a parameter leaves room for a `Message`; unevaluated ones are read as text."""
    annotation = inspect.signature(function).parameters[name].annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None) or str(annotation)
    return annotation is inspect.Parameter.empty or re.search(r"\b(Message|Any|object)\b", text) is not None


def message_key(function: Any) -> Extract:
    """How to get the key where ``key=`` is absent: from the `Message` that is the first argument."""
    at, name = _first_parameter(function)
    if not _may_be_message(function, name):
        raise ConfigurationError(
            f"{name_of(function)} needs key=: its first argument {name!r} is no Message, so nothing says which calls "
            f"are the same operation; for example key={name!r}"
        )

    def key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        message = args[at] if len(args) > at else kwargs.get(name)
        if isinstance(message, Message):
            return message.key
        raise ConfigurationError(
            f"{name_of(function)} has no key= and was called with a {type(message).__name__} instead of a Message; "
            f"pass key= to @once, for example key={name!r}"
        )

    return key


def fingerprint_of(spec: Any, function: Any) -> Extract | None:
    """How to fingerprint a call: as ``fingerprint=`` says, else the data of a `Message`; None: not at all."""
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
