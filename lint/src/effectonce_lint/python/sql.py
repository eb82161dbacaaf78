"""Parses SQL statements, to know what each does if it is run twice. What it does not understand it leaves out."""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct, structs

_TOKEN = re.compile(
    r"""
      (?P<skip>\s+|--[^\n]*|/\*.*?\*/)
    | (?P<string>'(?:[^']|'')*'|\$\$.*?\$\$)
    | (?P<name>"[^"]+"|`[^`]+`|\[[A-Za-z_][^\]]*\]|[A-Za-z_][\w$]*)
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<param>%\(\w+\)s|%s|\$\d+|:\w+|\?|@\w+|\{\})
    | (?P<op>::|\|\||<>|!=|>=|<=|[-+*/%=<>(),;.^&|~!\[\]:{}\#@$?"'`\\])
    """,
    re.VERBOSE | re.DOTALL,
)
_MAX_SQL_LENGTH = 20_000
"""How many characters of a text are read."""
_MAX_TOKENS = 4_000
_MAX_START_LENGTH = 400
"""How many characters are searched for the first word of a statement, which comments may precede."""

#: A column that is set to one of these of itself has the same value when that is done again.
_STABLE_FUNCTIONS = {"coalesce", "ifnull", "nvl", "greatest", "least", "max", "min", "nullif", "lower", "upper", "trim"}
#: A column that is set to one of these of itself grows each time.
_GROWING_FUNCTIONS = {
    "array_append",
    "array_cat",
    "array_prepend",
    "concat",
    "concat_ws",
    "list_append",
    "json_array_append",
}
_ARITHMETIC_OPERATORS = {"+", "-", "*", "/", "||"}


class SqlStatement(Struct, kw_only=True):
    """What is known of one statement."""

    verb: str
    """insert, upsert, update, delete or select."""
    table: str = ""
    columns: tuple[str, ...] = ()
    """The columns that an INSERT names, a SELECT reads or an UPDATE sets."""
    values: tuple[str, ...] = ()
    """The token for each column of an INSERT with VALUES; "(" for one that is more than a token."""
    where: tuple[str, ...] = ()
    """The tokens of the WHERE clause."""
    accumulates: str = ""
    """The column that grows with each run, or ""."""
    on_conflict: str = ""
    """nothing, update, or "": it fails."""
    conditional: bool = False
    """It changes a row only from the state that it leaves (compare and set), or inserts only what does not exist."""
    locks: bool = False
    """It locks the rows that it reads, or takes an advisory lock."""


def join_statements(first: SqlStatement, second: SqlStatement) -> SqlStatement | None:
    """What two statements share, one of which is executed; None if they do not do the same to the same table."""
    shared = {
        "columns": tuple(column for column in first.columns if column in second.columns),
        "where": tuple(token for token in first.where if token in second.where),
        "locks": first.locks and second.locks,
    }
    joined = structs.replace(first, **shared)
    return joined if joined == structs.replace(second, **shared) else None


def tokenize(text: str) -> list[str]:
    """The tokens of ``text``: in lower case, names without their quotes, strings as ``''``, parameters as ``?``."""
    tokens = []
    for match in _TOKEN.finditer(text[:_MAX_SQL_LENGTH]):
        kind = match.lastgroup
        if kind == "skip":
            continue
        token = match.group()
        if kind == "string":
            token = "''"
        elif kind == "name":
            token = token.strip('"`[]').lower()
        elif kind == "param":
            token = "?"
        tokens.append(token)
        if len(tokens) >= _MAX_TOKENS:
            break
    return tokens


@lru_cache(maxsize=2048)
def parse_statements(text: str) -> tuple[SqlStatement, ...]:
    """The statements of ``text``, in order; none if it is not SQL."""
    tokens = tokenize(text)
    statements = []
    start = 0
    for at in range(len(tokens) + 1):
        if at == len(tokens) or tokens[at] == ";":
            if statement := _parse_statement(tokens[start:at]):
                statements.append(statement)
            start = at + 1
    return tuple(statements)


def looks_like_sql(text: str) -> bool:
    """Whether ``text`` begins as a statement does."""
    return bool(
        re.match(
            r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*|\(\s*)*(?i:select|insert|update|delete|merge|replace|upsert|with)\b",
            text[:_MAX_START_LENGTH],
        )
    )


def _parse_statement(tokens: list[str]) -> SqlStatement | None:
    tokens = _skip_ctes(tokens)
    if not tokens:
        return None
    verb = tokens[0]
    if verb in ("insert", "replace", "upsert"):
        return _parse_insert(tokens)
    if verb == "update":
        return _parse_update(tokens)
    if verb == "select":
        return _parse_select(tokens)
    if verb == "delete":
        return SqlStatement(verb="delete", table=_table_name_at(tokens, _index_of(tokens, "from") + 1)[0])
    if verb == "merge":
        name, _ = _table_name_at(tokens, 2 if tokens[1:2] == ["into"] else 1)
        return SqlStatement(verb="upsert", table=name, on_conflict="update", accumulates=_growing_column(tokens))
    return None


def _skip_ctes(tokens: list[str]) -> list[str]:
    """The statement after its CTEs; of `WITH x AS (INSERT …) SELECT`, the CTE that changes data."""
    if not tokens or tokens[0] != "with":
        return tokens
    depth = 0
    change: list[str] | None = None
    for at, token in enumerate(tokens):
        if token == "(":
            depth += 1
            is_change = tokens[at + 1 : at + 2] in (["insert"], ["update"])
            if depth == 1 and is_change and change is None:
                change = tokens[at + 1 : closing_parenthesis(tokens, at)]
        elif token == ")":
            depth -= 1
        elif depth == 0 and token in ("select", "insert", "update", "delete", "merge"):
            return change if change and token == "select" else tokens[at:]
    return change or []


def _parse_insert(tokens: list[str]) -> SqlStatement:
    verb = tokens[0]
    conflict = "update" if verb in ("replace", "upsert") else ""
    at = 1
    if tokens[1:2] == ["ignore"]:
        conflict, at = "nothing", 2
    elif tokens[1:2] == ["or"]:
        conflict, at = ("update" if tokens[2:3] == ["replace"] else "nothing"), 3
    if tokens[at : at + 1] == ["into"]:
        at += 1
    table, at = _table_name_at(tokens, at)
    columns: tuple[str, ...] = ()
    if tokens[at : at + 1] == ["("] and tokens[at + 1 : at + 2] != ["select"]:
        end = closing_parenthesis(tokens, at)
        columns = tuple(part[-1] for part in split_by_commas(tokens[at + 1 : end]) if part)
        at = end + 1
    values: tuple[str, ...] = ()
    if tokens[at : at + 1] in (["values"], ["value"]) and tokens[at + 1 : at + 2] == ["("]:
        parts = split_by_commas(tokens[at + 2 : closing_parenthesis(tokens, at + 1)])
        values = tuple(part[0] if len(part) == 1 else "(" for part in parts)
    rest = tokens[at:]
    growing_column = ""
    conditional = "exists" in rest and "not" in rest and "select" in rest
    if "on" in rest:
        last_on = len(rest) - 1 - rest[::-1].index("on")
        on_clause = rest[last_on:]
        if on_clause[1:2] == ["duplicate"] or (on_clause[1:2] == ["conflict"] and "update" in on_clause):
            conflict = "update"
            growing_column = _growing_column(on_clause)
        elif on_clause[1:2] == ["conflict"]:
            conflict = "nothing"
    return SqlStatement(
        verb="upsert" if conflict == "update" else "insert",
        table=table,
        columns=columns,
        values=values,
        on_conflict=conflict,
        conditional=conditional,
        accumulates=growing_column,
    )


def _parse_update(tokens: list[str]) -> SqlStatement:
    table, at = _table_name_at(tokens, 2 if tokens[1:2] == ["only"] else 1)
    if tokens[at : at + 1] == ["as"]:
        at += 1
    start = _index_of(tokens, "set", at)
    stop = _find_clause(tokens, start + 1, {"where", "returning", "from"})
    where_at = _index_of(tokens, "where", start)
    where = tokens[where_at + 1 : _find_clause(tokens, where_at + 1, {"returning"})] if where_at < len(tokens) else []
    growing_column = ""
    columns = []
    conditional = False
    for column, value in _parse_assignments(tokens[start + 1 : stop]):
        columns.append(column)
        if _is_growing(column, value):
            growing_column = growing_column or column
            conditional = conditional or any(where[at : at + 2] == [column, "="] for at in range(len(where)))
        elif column in where:
            conditional = True
    return SqlStatement(
        verb="update",
        table=table,
        columns=tuple(columns),
        where=tuple(where),
        accumulates=growing_column,
        conditional=conditional,
    )


def _parse_select(tokens: list[str]) -> SqlStatement:
    start = _find_clause(tokens, 1, {"from"})
    table = _table_name_at(tokens, start + 1)[0] if start < len(tokens) else ""
    if not table and "exists" in tokens:  # SELECT EXISTS (SELECT 1 FROM processed …)
        inner = _index_of(tokens, "from")
        table = _table_name_at(tokens, inner + 1)[0] if inner < len(tokens) else ""
    columns = tuple(part[-1] for part in split_by_commas(tokens[1:start]) if part)
    where_at = _index_of(tokens, "where", start)
    locks = any(tokens[at : at + 2] == ["for", "update"] for at in range(len(tokens)))
    locks = locks or any(token.startswith(("pg_advisory", "pg_try_advisory", "get_lock")) for token in tokens)
    return SqlStatement(verb="select", table=table, columns=columns, where=tuple(tokens[where_at + 1 :]), locks=locks)


def _growing_column(tokens: list[str]) -> str:
    """The column that grows by the SET of an upsert, or ""."""
    for at, token in enumerate(tokens):
        if token in ("set", "update") and tokens[at + 1 : at + 2] != ["set"]:
            stop = _find_clause(tokens, at + 1, {"where", "returning", "when"})
            for column, value in _parse_assignments(tokens[at + 1 : stop]):
                if _is_growing(column, value):
                    return column
    return ""


def _parse_assignments(tokens: list[str]) -> list[tuple[str, list[str]]]:
    """The assignments of a SET: each column with the tokens of its value. `(a, b) = (1, 2)` is left out."""
    assignments = []
    for part in split_by_commas(tokens):
        if "=" in part:
            at = part.index("=")
            if at and part[at - 1] != ")":
                assignments.append((part[at - 1], part[at + 1 :]))
    return assignments


def _is_growing(column: str, value: list[str]) -> bool:
    """Whether ``column = value`` adds to the old value: `x + 1`, `x || 'y'`, `array_append(x, …)`."""
    if not any(token == column and value[at - 2 : at] != ["excluded", "."] for at, token in enumerate(value)):
        return False  # it does not depend on the old value
    if value[0] in _GROWING_FUNCTIONS:
        return True
    if value[0] in _STABLE_FUNCTIONS and closing_parenthesis(value, 1) == len(value) - 1:
        return False
    return any(token in _ARITHMETIC_OPERATORS for token in value[1:])


def _table_name_at(tokens: list[str], at: int) -> tuple[str, int]:
    """The name of the table at ``at``, without its schema, and the index after it."""
    name = ""
    while at < len(tokens) and (re.match(r"[\w{$]", tokens[at]) or tokens[at] == "?"):
        name = tokens[at]
        at += 1
        if tokens[at : at + 1] != ["."]:
            break
        at += 1
    return name, at


def _index_of(tokens: list[str], word: str, start: int = 0) -> int:
    """The index of the first ``word`` from ``start`` on; the number of tokens if there is none."""
    try:
        return tokens.index(word, start)
    except ValueError:
        return len(tokens)


def _find_clause(tokens: list[str], start: int, ends: set[str]) -> int:
    """The index of the first word of ``ends`` outside parentheses, from ``start`` on; else the number of tokens."""
    depth = 0
    for at in range(start, len(tokens)):
        token = tokens[at]
        depth += (token == "(") - (token == ")")
        if depth <= 0 and token in ends:
            return at
    return len(tokens)


def closing_parenthesis(tokens: list[str], at: int) -> int:
    """The index of the parenthesis that closes the one at ``at``."""
    depth = 0
    for end in range(at, len(tokens)):
        depth += (tokens[end] == "(") - (tokens[end] == ")")
        if depth == 0:
            return end
    return len(tokens)


def split_by_commas(tokens: list[str]) -> list[list[str]]:
    """Split ``tokens`` by the commas outside parentheses."""
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in ("(", "[")) - (token in (")", "]"))
        if token == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


_AUTO_INCREMENT_WORDS = ("autoincrement", "auto_increment", "identity")
_ADDED_UNIQUE_KEY = re.compile(
    r"create\s+unique\s+index\s+(?:concurrently\s+)?(?:if\s+not\s+exists\s+)?(?:[\w.\"`]+\s+)?on\s+(?:only\s+)?([\w.\"`]+)"
    r"\s*(?:using\s+\w+\s*)?\(([^)]*)\)"
    r"|alter\s+table\s+(?:if\s+exists\s+)?(?:only\s+)?([\w.\"`]+)\s+add\s+(?:constraint\s+\S+\s+)?(?:unique|primary\s+key)"
    r"\s*(?:key\s+|index\s+)?\(([^)]*)\)",
    re.IGNORECASE,
)
_CREATE_TABLE = re.compile(r"create\s+table\s+(?:if\s+not\s+exists\s+)?([\w.\"`]+)\s*\(", re.IGNORECASE)


def unique_columns(text: str) -> dict[str, list[frozenset[str]]]:
    """The tables of every ``CREATE TABLE`` in ``text``, each with the sets of columns that it keeps unique.

    A key that the database numbers is none of them: a duplicate gets the next number.
    """
    keys_by_table: dict[str, list[frozenset[str]]] = {}
    for match in _CREATE_TABLE.finditer(text[:_MAX_SQL_LENGTH]):
        table = match.group(1).rpartition(".")[2].strip('"`').lower()
        tokens = ["(", *tokenize(text[match.end() :])]
        parts = split_by_commas(tokens[1 : closing_parenthesis(tokens, 0)])
        keys = keys_by_table.setdefault(table, [])
        for part in parts:
            if "unique" not in part and "primary" not in part:
                continue
            if "(" in part and part[0] in ("unique", "primary", "constraint"):
                at = part.index("(")
                keys.append(frozenset(token for token in part[at + 1 : closing_parenthesis(part, at)] if token != ","))
            elif not any("serial" in token or token in _AUTO_INCREMENT_WORDS for token in part):
                keys.append(frozenset({part[0]}))
    return keys_by_table


def unique_indexes(text: str) -> dict[str, list[frozenset[str]]]:
    """The tables of every ``CREATE UNIQUE INDEX`` and added constraint, each with its unique sets of columns."""
    keys_by_table: dict[str, list[frozenset[str]]] = {}
    for match in _ADDED_UNIQUE_KEY.finditer(text[:_MAX_SQL_LENGTH]):
        table = (match.group(1) or match.group(3)).rpartition(".")[2].strip('"`').lower()
        columns = (match.group(2) or match.group(4) or "").split(",")
        keys_by_table.setdefault(table, []).append(frozenset(column.strip(' "`').lower() for column in columns))
    return keys_by_table
