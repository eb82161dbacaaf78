"""Idempotency keys for outside APIs: the same for every attempt at one effect, and never shared by two effects."""

from __future__ import annotations

import hashlib
import uuid
from typing import Final

from effectonce.errors import InvalidKey, show

#: Never change it: every key would be another one.
_UUID_NAMESPACE: Final = uuid.UUID("6f4f6a5c-0e5d-5d0b-9d53-0d7f3b1c9a10").bytes

_PART_NAMES: Final = ("provider", "account", "scope", "operation", "key", "step", "generation")


def provider_key(*parts: str) -> str:
    """Make a UUIDv5 of the length-prefixed ``parts``. Its 36 characters are short enough for every API with keys.

    Raises `InvalidKey` if a part is not text.
    """
    try:
        name = b"".join([b"%d:%b" % (len(raw), raw) for raw in [part.encode() for part in parts]])
    except (AttributeError, UnicodeEncodeError):
        raise _explain_refusal(parts) from None
    hashed = hashlib.sha1(_UUID_NAMESPACE + name).digest()
    return str(uuid.UUID(bytes=hashed[:16], version=5))


def _explain_refusal(parts: tuple[object, ...]) -> InvalidKey:
    """Say which part cannot be in a key."""
    for name, part in zip(_PART_NAMES, parts, strict=False):
        if not isinstance(part, str):
            return InvalidKey(
                f"{name} must be text (str), not {type(part).__name__}: it is part of the key that the provider gets; "
                "nothing was sent"
            )
        if any("\ud800" <= char <= "\udfff" for char in part):
            return InvalidKey(f"{name} must be valid Unicode, without lone surrogates: {show(part, 48)}")
    return InvalidKey("a key for a provider is made of texts; nothing was sent")
