"""Reading the package's SQL files: the statements of a file by their names, with its words filled in.

A *word* is a name in braces, as in ``SELECT seq FROM {outbox}``, that is replaced before the statement is sent: by the
name of a table, for example. A file is named by its path inside the package, as in ``backends/postgres/records.sql``.

Words are pasted in, and not escaped: only names that `table_prefix` or `quote_name` has checked, and our own SQL, may
be words. Values are parameters of the statement.
"""

from __future__ import annotations

import re
from typing import Final

from effectonce.errors import InvalidOption, show

_PREFIX_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
_TABLE_PATTERN = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}")
_STATEMENT_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"(^|\s)--.*", re.MULTILINE)


def table_prefix(text: str) -> str:
    """Check that ``text`` can be a prefix of table names, and return it. It goes into statements unquoted, so only a
    plain name is accepted (F61: a name cannot inject SQL)."""
    if _PREFIX_PATTERN.fullmatch(text) is None:
        raise InvalidOption(f"a prefix is a letter or _ and then up to 40 letters, digits and _, not {show(text)!r}")
    return text


def quote_name(name: str, dialect: str, what: str = "table") -> str:
    """Quote the name of a table (which may name its schema: ``shop.inbox``) or of a column, for a statement.

    Only plain names are accepted (F61: a name cannot inject SQL). Quotes make the database keep their case.
    """
    if type(name) is not str or _TABLE_PATTERN.fullmatch(name) is None:
        raise InvalidOption(
            f"a {what} is named by a letter or _ and then up to 62 letters, digits and _, not {show(name)!r}"
        )
    quote = "`" if dialect == "mysql" else '"'
    return ".".join(f"{quote}{part}{quote}" for part in name.split("."))


def read_script(file: str, **words: str) -> str:
    """Read a whole file with its comments, and fill in ``words``."""
    from importlib.resources import files  # when first needed: `import effectonce` stays quick

    return fill(files("effectonce").joinpath(file).read_text("utf-8"), **words)


def read_statements(file: str, **words: str) -> dict[str, str]:
    """Read the statements of a file by name. Each begins at its ``-- name: x`` and ends where the next one begins.

    ``{x}`` stands for the word x, or else for the statement x of the same file; other braces are left to the caller.
    """
    _, *parts = _STATEMENT_NAME.split(read_script(file))
    by_name = {name: strip_comments(sql) for name, sql in zip(parts[::2], parts[1::2], strict=True)}
    fragments = {name: sql for name, sql in by_name.items() if name not in words}
    return {name: fill(fill(sql, **fragments), **words) for name, sql in by_name.items()}


def strip_comments(sql: str) -> str:
    """Put ``sql`` on one line, without its comments and its last semicolon.

    It does not know SQL: a literal that holds `` --`` or two spaces would be damaged, so the files must not have one.
    """
    return " ".join(_COMMENT.sub("", sql).split()).removesuffix(";")


def fill(sql: str, **words: str) -> str:
    """Replace each ``{word}``. Words that are not given stay for a later call."""
    for word, value in words.items():
        sql = sql.replace(f"{{{word}}}", value)
    return sql


# -- the tables of a store; and inbox and outbox, whose tables the caller's own transactions write to

_FOLDER_OF_DIALECT = {"postgresql": "postgres", "mysql": "mysql", "sqlite": "sqlite"}

#: The clock of a database in microseconds since the epoch, in whatever time zone a session is. SQLite's is the
#: machine's, in milliseconds.
CLOCK_EXPRESSIONS: Final = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)",
    "postgresql": "(date_part('epoch', clock_timestamp()) * 1000000)::bigint",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
}


def _folder_of(dialect: str) -> str:
    if dialect not in _FOLDER_OF_DIALECT:
        raise InvalidOption(f"{show(dialect)!r} is not a dialect; name sqlite, postgresql or mysql (also for MariaDB)")
    return _FOLDER_OF_DIALECT[dialect]


def inbox_statements(dialect: str, table: str, now: str | None = None) -> dict[str, str]:
    """The statements of an inbox by name. ``now`` is an expression for another clock than the database's."""
    return read_statements(
        f"inbox/{_folder_of(dialect)}.sql", now=now or CLOCK_EXPRESSIONS[dialect], **inbox_words(dialect, table)
    )


def inbox_admin_statements(dialect: str, table: str) -> dict[str, str]:
    """The statements of operators on an inbox, by name."""
    file = f"inbox/{_folder_of(dialect)}_admin.sql"
    return read_statements(file, now=CLOCK_EXPRESSIONS[dialect], **inbox_words(dialect, table))


def inbox_schema(dialect: str, table: str) -> str:
    """The script that creates the tables of an inbox. Every statement may run twice."""
    return read_script(f"inbox/{_folder_of(dialect)}_schema.sql", **inbox_words(dialect, table))


def store_schema(dialect: str, prefix: str) -> str:
    """The script that creates the tables of a store, of its inbox and of its outbox. Every statement may run twice."""
    words = {name: f"{prefix}_{name}" for name in ("records", "meta", "records_expiry", "records_attention")}
    if dialect != "sqlite":
        words = {word: quote_name(name, dialect) for word, name in words.items()}
    records = read_script(f"backends/{_folder_of(dialect)}/records_schema.sql", prefix=prefix, **words)
    return "\n".join([records, inbox_schema(dialect, f"{prefix}_inbox"), outbox_schema(dialect, f"{prefix}_outbox")])


def inbox_words(dialect: str, table: str) -> dict[str, str]:
    """The words of the inbox's SQL files: the quoted names of its two tables and their indexes."""
    words = {}
    for word, name in (("inbox", table), ("starts", f"{table}_starts")):
        words[word] = quote_name(name, dialect)
        # An index is in the schema of its table. CREATE INDEX has the schema before the index's name in SQLite, and
        # before the table's in PostgreSQL.
        plain = name.rpartition(".")[2]
        index, on = (name, plain) if dialect == "sqlite" else (plain, name)
        words |= {f"{word}_expiry": quote_name(f"{index}_expiry", dialect), f"on_{word}": quote_name(on, dialect)}
    return words


def outbox_schema(dialect: str, table: str) -> str:
    """The script that creates the table of an outbox. Every statement may run twice."""
    return read_script(f"backends/{_folder_of(dialect)}/outbox_schema.sql", **outbox_words(dialect, table))


def outbox_words(dialect: str, table: str) -> dict[str, str]:
    """The words of the outbox's SQL files: the quoted names of its table and indexes. ``on_outbox`` is the table as
    CREATE INDEX names it: see `inbox_words`."""
    plain = table.rpartition(".")[2]
    index, on = (table, plain) if dialect == "sqlite" else (plain, table)
    return {
        "outbox": quote_name(table, dialect),
        "on_outbox": quote_name(on, dialect),
        "outbox_due": quote_name(f"{index}_due", dialect),
        "outbox_line": quote_name(f"{index}_line", dialect),
        "due_index": quote_name(f"{plain}_due", dialect),
        "line_index": quote_name(f"{plain}_line", dialect),
    }
