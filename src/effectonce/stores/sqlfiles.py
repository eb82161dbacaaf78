"""The files in ``sql/``: statements by name, with the names of the tables filled in."""

from __future__ import annotations

import re
from importlib.resources import files

from effectonce.errors import InvalidOption, show

_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"(^|\s)--.*", re.MULTILINE)


def table_prefix(text: str) -> str:
    """``text``, which goes into statements as it is: so only a plain name is taken (F61)."""
    if _PREFIX.fullmatch(text) is None:
        raise InvalidOption(f"a prefix is a letter or _ and then up to 40 letters, digits and _, not {show(text)!r}")
    return text


def script(file: str, **words: str) -> str:
    """A whole file, for people to read: each ``{word}`` filled in, comments kept."""
    return fill((files("effectonce.stores") / "sql" / file).read_text("utf-8"), **words)


def statements(file: str, **words: str) -> dict[str, str]:
    """The statements of a file, each from its ``-- name: x`` to the next, with the words filled in.

    ``{x}`` of a name that is no word stands for that statement; what is left after that is for the caller.
    """
    _, *parts = _NAME.split(script(file))
    found = {name: bare(sql) for name, sql in zip(parts[::2], parts[1::2], strict=True)}
    others = {name: sql for name, sql in found.items() if name not in words}
    return {name: fill(fill(sql, **others), **words) for name, sql in found.items()}


def bare(sql: str) -> str:
    """On one line, without comments and the last semicolon. No literal may hold `` --`` or two spaces."""
    return " ".join(_COMMENT.sub("", sql).split()).removesuffix(";")


def fill(sql: str, **words: str) -> str:
    for word, value in words.items():
        sql = sql.replace(f"{{{word}}}", value)
    return sql
