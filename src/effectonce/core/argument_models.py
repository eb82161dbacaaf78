"""Decodes arguments that arrive as JSON objects into the models that a function's annotations name."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any

from effectonce.errors import Undecodable, show

from .codec import json_decoder, to_json

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def model_reader(function: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], Arguments]:
    """Return a function that decodes the arguments of ``function``: a dict becomes the pydantic model, dataclass or
    struct that its parameter is annotated with. All other arguments stay as they are.

    The reader raises `Undecodable` for a dict that does not fit its model.
    """
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # annotations that only type checkers can resolve
        hints = {}
    models = {name: hint for name, hint in hints.items() if name != "return" and _is_model(hint)}
    if not models:
        return lambda args, kwargs: (args, kwargs)
    decoders = {name: json_decoder(hint) for name, hint in models.items()}
    signature = inspect.signature(function)

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        bound = signature.bind(*args, **kwargs)
        for name, decode in decoders.items():
            value = bound.arguments.get(name)
            if isinstance(value, dict):
                try:
                    bound.arguments[name] = decode(to_json(value))
                except ValueError as error:  # msgspec's and pydantic's
                    model = models[name].__name__
                    raise Undecodable(f"the argument {name!r} is not a {model}: {show(error, 300)}") from error
        return bound.args, bound.kwargs

    return read


def _is_model(hint: Any) -> bool:
    names = ("model_validate", "__struct_fields__")
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or any(hasattr(hint, name) for name in names))
