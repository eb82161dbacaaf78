"""Checks the names of queues and groups: every broker accepts them, so that a queue can move to another broker.

Nor can such a name inject anything into a statement or a key (F61).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from effectonce.errors import InvalidOption, show

MAX_NAME_CHARS: Final = 200
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.:/-]{{0,{MAX_NAME_CHARS - 1}}}")


@lru_cache(1024)
def require_name(name: str, what: str = "queue") -> str:
    """Return ``name``. Raises `InvalidOption` for a name that is not allowed. A broker that allows less refuses it
    itself."""
    if type(name) is not str or _NAME.fullmatch(name) is None:
        raise InvalidOption(
            f"{show(name)!r} is not a name for a {what}: use a letter, digit or _, then letters, digits and _ . : / - "
            f"(up to {MAX_NAME_CHARS} in all)"
        )
    return name
