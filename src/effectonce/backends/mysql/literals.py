"""Values as they stand in a statement of MySQL, where they are part of its text.

Keys, owners and results are arbitrary bytes: in hexadecimal they need no quotes and no escapes, whatever the quoting
mode and the character set.
"""

from __future__ import annotations

from collections.abc import Sequence

from effectonce.backends.common.sql_files import fill

Value = str | bytes | int | Sequence[str] | Sequence[bytes] | Sequence[int] | None


def blob(value: bytes | None) -> str:
    # Without `_binary`, MariaDB silently cuts a literal in a UNION to its length modulo 65536.
    return "NULL" if value is None else f"_binary x'{value.hex()}'"


def text(value: str | None) -> str:
    return "NULL" if value is None else f"_utf8mb4 x'{value.encode().hex()}'"


def bind(sql: str, **values: Value) -> str:
    """``sql`` with each ``{name}`` replaced by the literal of its value, or by a list of literals."""
    return fill(sql, **{name: _literal(value) for name, value in values.items()})


def _literal(value: object) -> str:
    if isinstance(value, int):
        return f"{value:d}"
    if isinstance(value, str):
        return text(value)
    if value is None or isinstance(value, bytes):
        return blob(value)
    assert isinstance(value, Sequence)
    return ",".join([_literal(item) for item in value])
