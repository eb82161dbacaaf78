"""Errors that are raised again on replay: what of them a record keeps, and how they are made from that.

An exception is made again by its own constructor, never unpickled. Its class is looked up among the modules that the
program has imported: a record imports nothing.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .interrupts import raise_interrupt

Errors = tuple[type[BaseException], ...]


def named_arguments(error: BaseException) -> dict[str, Any] | None:
    """The arguments that the constructor of ``error`` takes, by name, as far as ``error`` keeps them as attributes of
    that name (or with an underscore before it). None: it takes them in another way.

    Many exceptions need this. ``stripe.CardError`` takes (message, param, code, …), and its ``args`` are others.
    """
    kept = getattr(error, "__dict__", {})
    arguments: dict[str, Any] = {}
    for parameter in _parameters(type(error)):
        name = parameter.name
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            return None
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if name in kept or f"_{name}" in kept:
            value = kept.get(name, kept.get(f"_{name}"))
            arguments[name] = _plain_headers(value) if isinstance(value, Mapping) else value
        elif parameter.default is parameter.empty:
            return None
    return arguments or None


def required_arguments(error: BaseException) -> set[str]:
    """The names of the arguments without which an error of this class cannot be made."""
    return {parameter.name for parameter in _parameters(type(error)) if parameter.default is parameter.empty}


def rebuild(type_name: str, message: str, permanent: Errors, args: Any, named: Any) -> BaseException | None:
    """Make the error of the class ``type_name`` again that said ``message``. None where its class is not, nor is
    derived from, one of ``permanent``, is not imported, or makes something else of the arguments."""
    class_ = _find_class(type_name, permanent)
    if class_ is None:
        return None
    constructors: list[Callable[[], BaseException]] = []
    if isinstance(named, dict):
        constructors.append(lambda: class_(**named))
    if isinstance(args, list):
        constructors.append(lambda: class_(*args))
    for construct in constructors:
        try:
            error = construct()
            if str(error) == message:
                return error
        except Exception as refusal:  # its constructor takes other arguments
            raise_interrupt(refusal)
    return None


def _parameters(class_: type[BaseException]) -> list[inspect.Parameter]:
    """The parameters of the constructor, without ``self``; none where it is a builtin's, which takes anything."""
    constructor = class_.__init__
    if not inspect.isfunction(constructor):
        return []
    return list(inspect.signature(constructor).parameters.values())[1:]


def _plain_headers(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
    """``mapping`` as a dict. One that ignores the case of its names, as clients' headers do, has them in lower case."""
    if isinstance(mapping, dict):
        return mapping
    return {name.lower() if isinstance(name, str) else name: value for name, value in mapping.items()}


def _find_class(type_name: str, permanent: Errors) -> type[BaseException] | None:
    """One of ``permanent`` itself, or an imported class that is derived from one of them. None for a class of ours
    that ``permanent`` does not name: a `PermanentFailure` says more on replay."""
    module, _, qualname = type_name.partition(":")
    named = next((kind for kind in permanent if f"{kind.__module__}:{kind.__qualname__}" == type_name), None)
    if named is not None or module.partition(".")[0] == "effectonce":
        return named
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, type) and issubclass(found, permanent) else None
