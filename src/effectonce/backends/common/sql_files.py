"""Reading SQL files: the statements of a file by their names, with the names of the tables filled in.

A file is named by its path inside the package, as in ``backends/postgres/records.sql``.
"""

from __future__ import annotations

import re
from typing import Final

from effectonce.errors import InvalidOption, show

_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
_TABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}")
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"(^|\s)--.*", re.MULTILINE)


def table_prefix(text: str) -> str:
    """``text`` as a prefix of table names. It goes into statements unquoted, so only a plain name is taken (F61: a name
    cannot inject SQL)."""
    if _PREFIX.fullmatch(text) is None:
        raise InvalidOption(f"a prefix is a letter or _ and then up to 40 letters, digits and _, not {show(text)!r}")
    return text


def quoted(name: str, dialect: str, what: str = "table") -> str:
    """The name of a table (which may name its schema: ``shop.inbox``) or a column, as it stands in a statement.

    Only plain names are taken (F61: a name cannot inject SQL). They are quoted, so that the database keeps their case.
    """
    if type(name) is not str or _TABLE.fullmatch(name) is None:
        raise InvalidOption(
            f"a {what} is named by a letter or _ and then up to 62 letters, digits and _, not {show(name)!r}"
        )
    quote = "`" if dialect == "mysql" else '"'
    return ".".join(f"{quote}{part}{quote}" for part in name.split("."))


def script(file: str, **words: str) -> str:
    """A whole file with its comments, each ``{word}`` filled in."""
    from importlib.resources import files  # when first needed: `import effectonce` stays quick

    return fill(files("effectonce").joinpath(file).read_text("utf-8"), **words)


def statements(file: str, **words: str) -> dict[str, str]:
    """The statements of a file, each from its ``-- name: x`` to the next, with the words filled in.

    ``{x}`` stands for the word x, or else for the statement x of the same file; other braces are left to the caller.
    """
    _, *parts = _NAME.split(script(file))
    by_name = {name: bare(sql) for name, sql in zip(parts[::2], parts[1::2], strict=True)}
    fragments = {name: sql for name, sql in by_name.items() if name not in words}
    return {name: fill(fill(sql, **fragments), **words) for name, sql in by_name.items()}


def bare(sql: str) -> str:
    """``sql`` on one line, without comments and the last semicolon. No literal may hold `` --`` or two spaces."""
    return " ".join(_COMMENT.sub("", sql).split()).removesuffix(";")


def fill(sql: str, **words: str) -> str:
    for word, value in words.items():
        sql = sql.replace(f"{{{word}}}", value)
    return sql


# -- the tables that the caller's own transactions write to

_FOLDER_OF_DIALECT = {"postgresql": "postgres", "mysql": "mysql", "sqlite": "sqlite"}

#: The clock of a database in microseconds since the epoch, in whatever time zone a session is. SQLite's is the
#: machine's, in milliseconds.
CLOCKS: Final = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)",
    "postgresql": "(date_part('epoch', clock_timestamp()) * 1000000)::bigint",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
}


def _folder_of(dialect: str) -> str:
    if dialect not in _FOLDER_OF_DIALECT:
        raise InvalidOption(f"{show(dialect)!r} is not a dialect; name sqlite, postgresql or mysql (also for MariaDB)")
    return _FOLDER_OF_DIALECT[dialect]


def inbox_statements(dialect: str, table: str, now: str | None = None) -> dict[str, str]:
    """The statements of an inbox by name, where ``now`` is another clock than the database's."""
    return statements(f"inbox/{_folder_of(dialect)}.sql", now=now or CLOCKS[dialect], **inbox_words(dialect, table))


def inbox_schema(dialect: str, table: str) -> str:
    """The script that creates the tables of an inbox. Every statement may run twice."""
    return script(f"inbox/{_folder_of(dialect)}_schema.sql", **inbox_words(dialect, table))


def inbox_words(dialect: str, table: str) -> dict[str, str]:
    """The words of the inbox's SQL files: its two tables and their indexes, quoted."""
    words = {}
    for word, name in (("inbox", table), ("attempts", f"{table}_attempts")):
        words[word] = quoted(name, dialect)
        # An index is in the schema of its table. In SQLite it is the index that names it; in PostgreSQL, the table.
        plain = name.rpartition(".")[2]
        index, on = (name, plain) if dialect == "sqlite" else (plain, name)
        words |= {f"{word}_expiry": quoted(f"{index}_expiry", dialect), f"on_{word}": quoted(on, dialect)}
    return words


def outbox_schema(dialect: str, table: str) -> str:
    """The script that creates the table of an outbox. Every statement may run twice."""
    return script(f"backends/{_folder_of(dialect)}/outbox_schema.sql", **outbox_words(dialect, table))


def outbox_words(dialect: str, table: str) -> dict[str, str]:
    """The words of the outbox's SQL files: its table and indexes, quoted."""
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
