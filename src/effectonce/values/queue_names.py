"""Names of queues and groups that every broker accepts, so that a queue keeps its name when it moves (F61: a name
cannot inject anything into a statement or a key)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from effectonce.errors import InvalidOption, show

MAX_NAME_CHARS: Final = 200
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.:/-]{{0,{MAX_NAME_CHARS - 1}}}")


@lru_cache(1024)
def require_name(name: str, what: str = "queue") -> str:
    """``name``; `InvalidOption` for one that some broker refuses. Brokers that allow less refuse it themselves."""
    if type(name) is not str or _NAME.fullmatch(name) is None:
        raise InvalidOption(
            f"{show(name)!r} is not a name for a {what}: use a letter, digit or _, then letters, digits and _ . : / - "
            f"(up to {MAX_NAME_CHARS} in all)"
        )
    return name
