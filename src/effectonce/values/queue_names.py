"""Names of queues and groups: what every broker takes, so that a queue keeps its name when it moves (F61)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from effectonce.errors import InvalidOption, show

LONGEST: Final = 200
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.:/-]{{0,{LONGEST - 1}}}")


@lru_cache(1024)
def require_name(name: str, what: str = "queue") -> str:
    """``name``, or `InvalidOption`. Some brokers allow less: their adapters say so."""
    if type(name) is not str or _NAME.fullmatch(name) is None:
        raise InvalidOption(
            f"{show(name)!r} is no name for a {what}: a letter, digit or _, then letters, digits and _ . : / - (up to "
            f"{LONGEST} in all)"
        )
    return name
