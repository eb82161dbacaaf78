"""Keys for outside APIs: the same for every attempt at one effect, and never shared by two."""

from __future__ import annotations

import hashlib
import uuid
from typing import Final

_NAMESPACE: Final = uuid.UUID("6f4f6a5c-0e5d-5d0b-9d53-0d7f3b1c9a10").bytes


def provider_key(*parts: str) -> str:
    """A UUIDv5 of the length-prefixed ``parts``: 36 characters, which every keyed API takes."""
    name = b"".join(b"%d:%b" % (len(raw), raw) for raw in (part.encode() for part in parts))
    return str(uuid.UUID(bytes=hashlib.sha1(_NAMESPACE + name).digest()[:16], version=5))
