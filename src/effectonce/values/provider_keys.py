"""Keys for outside APIs: the same for every attempt at one effect, and never shared by two."""

from __future__ import annotations

import hashlib
import uuid
from typing import Final

from effectonce.errors import InvalidKey, show

_NAMESPACE: Final = uuid.UUID("6f4f6a5c-0e5d-5d0b-9d53-0d7f3b1c9a10").bytes


_PARTS: Final = ("provider", "account", "scope", "operation", "key", "step", "generation")
_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def provider_key(*parts: str) -> str:
    """A UUIDv5 of the length-prefixed ``parts``: 36 characters, which every keyed API takes. `InvalidKey` where one of
    them is no text.

    Written out here: `uuid.UUID` takes as long again, and an intent needs two of them.
    """
    try:
        name = b"".join([b"%d:%b" % (len(raw), raw) for raw in [part.encode() for part in parts]])
    except (AttributeError, UnicodeEncodeError):
        raise _refused(parts) from None
    hashed = hashlib.sha1(_NAMESPACE + name).hexdigest()
    return f"{hashed[:8]}-{hashed[8:12]}-5{hashed[13:16]}-{_VARIANT[hashed[16]]}{hashed[17:20]}-{hashed[20:32]}"


def _refused(parts: tuple[object, ...]) -> InvalidKey:
    for name, part in zip(_PARTS, parts, strict=False):
        if not isinstance(part, str):
            return InvalidKey(
                f"{name} must be text (str), not {type(part).__name__}: it is part of the key that the provider gets; "
                "nothing was sent"
            )
        if any("\ud800" <= char <= "\udfff" for char in part):
            return InvalidKey(f"{name} must be valid Unicode, without lone surrogates: {show(part, 48)}")
    return InvalidKey("a key for a provider is made of texts; nothing was sent")
