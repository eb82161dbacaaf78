"""Writing values as literals into the text of a MySQL statement.

Keys, owners and results may hold any bytes. In hexadecimal they need no quotes and no escapes, whatever the quoting
mode and the character set of the session are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from effectonce.core.sql_files import fill

_NUMBERED: Final = re.compile(r"\$(\d+)")

LiteralValue = str | bytes | int | Sequence[str] | Sequence[bytes] | Sequence[int] | None


def bytes_literal(value: bytes | None) -> str:
    # Without `_binary`, MariaDB silently cuts a literal in a UNION to its length modulo 65536.
    return "NULL" if value is None else f"_binary x'{value.hex()}'"


def text_literal(value: str | None) -> str:
    return "NULL" if value is None else f"_utf8mb4 x'{value.encode().hex()}'"


def bind(sql: str, **values: LiteralValue) -> str:
    """Replace each ``{name}`` in ``sql`` by the literal of its value, or by a list of literals."""
    return fill(sql, **{name: _literal(value) for name, value in values.items()})


def bind_numbers(sql: str, params: Sequence[str | int | bytes | None]) -> str:
    """Replace ``$1``, ``$2``, … in ``sql`` by the literals of the parameters."""
    return _NUMBERED.sub(lambda match: _literal(params[int(match[1]) - 1]), sql)


def _literal(value: object) -> str:
    if isinstance(value, int):
        return f"{value:d}"
    if isinstance(value, str):
        return text_literal(value)
    if value is None or isinstance(value, bytes):
        return bytes_literal(value)
    assert isinstance(value, Sequence)
    return ",".join([_literal(item) for item in value])
