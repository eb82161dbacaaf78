"""Reading SQL files: the statements of one by their names, with the names of the tables filled in.

A file is named by its path inside the package, as in ``backends/postgres/records.sql``.
"""

from __future__ import annotations

import re

from effectonce.errors import InvalidOption, show

_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
_TABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}")
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"(^|\s)--.*", re.MULTILINE)


def table_prefix(text: str) -> str:
    """``text``, which goes into statements as it is: so only a plain name is taken (F61)."""
    if _PREFIX.fullmatch(text) is None:
        raise InvalidOption(f"a prefix is a letter or _ and then up to 40 letters, digits and _, not {show(text)!r}")
    return text


def quoted(name: str, dialect: str, what: str = "table") -> str:
    """The name of a table (which may name its schema: ``shop.inbox``) or a column, as it stands in a statement.

    Only plain names are taken (F61), and they are quoted: as they are written here, so they are in the database.
    """
    if type(name) is not str or _TABLE.fullmatch(name) is None:
        raise InvalidOption(
            f"a {what} is named by a letter or _ and then up to 62 letters, digits and _, not {show(name)!r}"
        )
    mark = "`" if dialect == "mysql" else '"'
    return ".".join(f"{mark}{part}{mark}" for part in name.split("."))


def script(file: str, **words: str) -> str:
    """A whole file, for people to read: each ``{word}`` filled in, comments kept."""
    from importlib.resources import files  # when first needed: `import effectonce` stays quick

    return fill(files("effectonce").joinpath(file).read_text("utf-8"), **words)


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


# -- the tables that the caller's own transactions write to

_FILES = {"postgresql": "postgres", "mysql": "mysql", "sqlite": "sqlite"}


def inbox_schema(dialect: str, table: str) -> str:
    """The tables of an inbox as a script, every statement of which may be run again."""
    return script(f"inbox/{_FILES[dialect]}_schema.sql", **inbox_words(dialect, table))


def inbox_words(dialect: str, table: str) -> dict[str, str]:
    words = {}
    for word, name in (("inbox", table), ("attempts", f"{table}_attempts")):
        words[word] = quoted(name, dialect)
        # An index is in the schema of its table. In SQLite it is the index that names it; in PostgreSQL, the table.
        plain = name.rpartition(".")[2]
        index, on = (name, plain) if dialect == "sqlite" else (plain, name)
        words |= {f"{word}_expiry": quoted(f"{index}_expiry", dialect), f"on_{word}": quoted(on, dialect)}
    return words


def outbox_schema(dialect: str, table: str) -> str:
    """The table of an outbox as a script, every statement of which may be run again."""
    return script(f"backends/{_FILES[dialect]}/outbox_schema.sql", **outbox_words(dialect, table))


def outbox_words(dialect: str, table: str) -> dict[str, str]:
    plain = table.rpartition(".")[2]
    index, on = (table, plain) if dialect == "sqlite" else (plain, table)
    return {
        "outbox": quoted(table, dialect),
        "on_outbox": quoted(on, dialect),
        "outbox_due": quoted(f"{index}_due", dialect),
        "outbox_line": quoted(f"{index}_line", dialect),
        "due_index": quoted(f"{plain}_due", dialect),
        "line_index": quoted(f"{plain}_line", dialect),
    }
