"""Checks the result that an operator enters for an intent or a saga's step against its type."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from effectonce.errors import ConfigurationError, CorruptRecord, show

from .codec import FORMAT_VERSION, Codec, Unstorable, encode_untyped

_EXAMPLES: Final = {str: 'a text, in quotes: "ch_1"', int: "a whole number", float: "a number", bool: "true or false"}


def encode_entered_result(codec: Codec, result: Any, about: str) -> tuple[Any, bytes]:
    """Return ``result`` and its stored form, if it is a value of the codec's type, or JSON that decodes as one.

    Raises `ConfigurationError` otherwise, which describes the expected type. ``about`` says in it whose result this is.
    """
    if codec.discards:
        result = None
    try:
        # What an operator enters is plain JSON, which the encoder of a typed codec, for a model say, would refuse.
        stored = codec.encode(result) if codec.type is Any else encode_untyped(result)
        codec.decode(stored)
    except (Unstorable, CorruptRecord) as error:
        raise _type_error(codec, about, error.__cause__ or error) from error
    except Exception as error:  # it has no JSON form
        raise _type_error(codec, about, error) from error
    size = len(stored) - len(FORMAT_VERSION)
    if size > codec.limit:
        raise ConfigurationError(
            f"this is not a result of {about}: {size:,} bytes are over the limit of {codec.limit:,}; "
            "nothing was changed"
        )
    return result, stored


def _type_error(codec: Codec, about: str, cause: BaseException) -> ConfigurationError:
    return ConfigurationError(
        f"this is not a result of {about}, which gives {describe_type(codec.type)} ({show(cause, 200)}); nothing was "
        "changed"
    )


def describe_type(type_: Any) -> str:
    """Describe ``type_`` to an operator who has to write a value of it as JSON."""
    if isinstance(type_, type) and type_ in _EXAMPLES:
        return _EXAMPLES[type_]
    name = "JSON" if type_ is Any else getattr(type_, "__name__", None) or str(type_)
    try:
        info: Any = msgspec.inspect.type_info(type_)
        fields = info.fields
    except Exception:  # it has no fields, or msgspec does not know its library
        return name
    as_list = isinstance(info, msgspec.inspect.NamedTupleType) or getattr(info, "array_like", False)
    names = ", ".join(f'"{field.encode_name}"' + ("" if field.required else " (optional)") for field in fields)
    return f"{name}, {'a list of' if as_list else 'an object with'} {names or 'nothing'}"
