"""Arguments that came as JSON, as the models that a function's annotations ask for."""

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
    """What makes pydantic models, dataclasses and structs of arguments that are annotated as such and came as a dict.

    `Undecodable` for a dict that is none. All else is left as it is.
    """
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # of types that exist for checkers only
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
                    told = f"{name!r} is no {models[name].__name__}: {show(error, 300)}"
                    raise Undecodable(f"the argument {told}") from error
        return bound.args, bound.kwargs

    return read


def _is_model(hint: Any) -> bool:
    names = ("model_validate", "__struct_fields__")
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or any(hasattr(hint, name) for name in names))
