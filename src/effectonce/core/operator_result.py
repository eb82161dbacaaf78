"""What an operator says came of an intent or of a saga's step: read by its type, or refused in words that help."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from effectonce.errors import ConfigurationError, CorruptRecord, show

from .codec import Codec, Unstorable, encode_untyped

_PLAIN: Final = {str: 'a text, in quotes: "ch_1"', int: "a whole number", float: "a number", bool: "true or false"}


def said(codec: Codec, result: Any, about: str) -> tuple[Any, bytes]:
    """What an operator says came of it, and as it is stored: a value of that type, or JSON that reads as one.
    `ConfigurationError`, which says what would be one, where it is none."""
    if codec.discards:
        result = None
    try:
        stored = codec.encode(result) if codec.type is Any else encode_untyped(result)
        codec.decode(stored)
    except (Unstorable, CorruptRecord) as error:
        raise _wrong(codec, about, error.__cause__ or error) from error
    except Exception as error:  # there is no JSON of it
        raise _wrong(codec, about, error) from error
    if len(stored) - 1 > codec.limit:
        raise ConfigurationError(
            f"this is no result of {about}: {len(stored) - 1:,} bytes are over the limit of {codec.limit:,}; nothing "
            "was changed"
        )
    return result, stored


def _wrong(codec: Codec, about: str, why: BaseException) -> ConfigurationError:
    return ConfigurationError(
        f"this is no result of {about}, which gives {described(codec.type)} ({show(why, 200)}); nothing was changed"
    )


def described(type_: Any) -> str:
    """A type, for somebody who has to write a value of it as JSON."""
    if isinstance(type_, type) and type_ in _PLAIN:
        return _PLAIN[type_]
    name = "JSON" if type_ is Any else getattr(type_, "__name__", None) or str(type_)
    try:
        known: Any = msgspec.inspect.type_info(type_)
        fields = known.fields
    except Exception:  # it has none, or is of a library that msgspec does not know
        return name
    as_list = isinstance(known, msgspec.inspect.NamedTupleType) or getattr(known, "array_like", False)
    names = ", ".join(f'"{each.encode_name}"' + ("" if each.required else " (or not)") for each in fields)
    return f"{name}, {'a list of' if as_list else 'an object with'} {names or 'nothing'}"
