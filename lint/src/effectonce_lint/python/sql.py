"""What an SQL statement does if it is run twice. A tolerant reader: what it does not understand it calls unknown."""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

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
_MAX_TOKENS = 4_000

#: A column that is set to one of these of itself stays where it is when that is done again.
_STABLE = {"coalesce", "ifnull", "nvl", "greatest", "least", "max", "min", "nullif", "lower", "upper", "trim"}
_GROWING = {"array_append", "array_cat", "array_prepend", "concat", "concat_ws", "list_append", "json_array_append"}
_ARITHMETIC = {"+", "-", "*", "/", "||"}


class SqlStatement(Struct, kw_only=True):
    """One statement, as far as it matters here."""

    verb: str
    table: str = ""
    columns: tuple[str, ...] = ()
    """Of an INSERT: those it names. Of a SELECT: those it reads. Of an UPDATE: those it sets."""
    values: tuple[str, ...] = ()
    """Of an INSERT with VALUES: one token per column, where each is a plain one."""
    where: tuple[str, ...] = ()
    accumulates: str = ""
    """The column that grows with each run."""
    on_conflict: str = ""
    """nothing, update, or empty."""
    conditional: bool = False
    """It changes a row only from the state that it leaves (compare and set), or inserts only what is not there."""
    locks: bool = False


def tokenize(text: str) -> list[str]:
    """Tokens in lower case, names without their quotes, strings as ``''``."""
    out = []
    for found in _TOKEN.finditer(text[:_MAX_SQL_LENGTH]):
        kind = found.lastgroup
        if kind == "skip":
            continue
        token = found.group()
        if kind == "string":
            token = "''"
        elif kind == "name":
            token = token.strip('"`[]').lower()
        elif kind == "param":
            token = "?"
        out.append(token)
        if len(out) >= _MAX_TOKENS:
            break
    return out


@lru_cache(maxsize=2048)
def parse_statements(text: str) -> tuple[SqlStatement, ...]:
    """The statements of ``text``, in order; empty where it is not SQL."""
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
            text[:400],
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
        return SqlStatement(verb="upsert", table=name, on_conflict="update", accumulates=_growing_column(tokens, name))
    return None


def _skip_ctes(tokens: list[str]) -> list[str]:
    """Without the CTEs in front; a data-changing one (`WITH x AS (INSERT …) SELECT`) stands for the statement."""
    if not tokens or tokens[0] != "with":
        return tokens
    depth = 0
    inner: list[str] | None = None
    for at, token in enumerate(tokens):
        if token == "(":
            depth += 1
            if depth == 1 and tokens[at + 1 : at + 2] and tokens[at + 1] in ("insert", "update") and inner is None:
                inner = tokens[at + 1 : closing_parenthesis(tokens, at)]
        elif token == ")":
            depth -= 1
        elif depth == 0 and token in ("select", "insert", "update", "delete", "merge"):
            return inner if inner and token == "select" else tokens[at:]
    return inner or []


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
    grows = ""
    conditional = "exists" in rest and "not" in rest and "select" in rest
    if "on" in rest:
        on = len(rest) - 1 - rest[::-1].index("on")
        tail = rest[on:]
        if tail[1:2] == ["duplicate"] or (tail[1:2] == ["conflict"] and "update" in tail):
            conflict = "update"
            grows = _growing_column(tail, table)
        elif tail[1:2] == ["conflict"]:
            conflict = "nothing"
    return SqlStatement(
        verb="upsert" if conflict == "update" else "insert",
        table=table,
        columns=columns,
        values=values,
        on_conflict=conflict,
        conditional=conditional,
        accumulates=grows,
    )


def _parse_update(tokens: list[str]) -> SqlStatement:
    table, at = _table_name_at(tokens, 2 if tokens[1:2] == ["only"] else 1)
    if tokens[at : at + 1] == ["as"]:
        at += 1
    start = _index_of(tokens, "set", at)
    stop = _find_clause(tokens, start + 1, {"where", "returning", "from"})
    where_at = _index_of(tokens, "where", start)
    where = tokens[where_at + 1 : _find_clause(tokens, where_at + 1, {"returning"})] if where_at < len(tokens) else []
    grows = ""
    sets = []
    conditional = False
    for column, value in _parse_assignments(tokens[start + 1 : stop]):
        sets.append(column)
        if _is_growing(column, value):
            grows = grows or column
            conditional = conditional or any(where[at : at + 2] == [column, "="] for at in range(len(where)))
        elif column in where:
            conditional = True
    return SqlStatement(
        verb="update",
        table=table,
        columns=tuple(sets),
        where=tuple(where),
        accumulates=grows,
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


def _growing_column(tokens: list[str], table: str) -> str:
    """The column that the SET of an upsert lets grow."""
    for at, token in enumerate(tokens):
        if token in ("set", "update") and tokens[at + 1 : at + 2] != ["set"]:
            stop = _find_clause(tokens, at + 1, {"where", "returning", "when"})
            for column, value in _parse_assignments(tokens[at + 1 : stop]):
                if _is_growing(column, value):
                    return column
    return ""


def _parse_assignments(tokens: list[str]) -> list[tuple[str, list[str]]]:
    out = []
    for part in split_by_commas(tokens):
        if "=" in part:
            at = part.index("=")
            if at and part[at - 1] != ")":
                out.append((part[at - 1], part[at + 1 :]))
    return out


def _is_growing(column: str, value: list[str]) -> bool:
    """Whether ``column = value`` adds to what is there: `x + 1`, `x || 'y'`, `array_append(x, …)`."""
    own = [at for at, token in enumerate(value) if token == column and value[at - 2 : at] != ["excluded", "."]]
    if not own:
        return False
    if value[0] in _GROWING:
        return True
    if value[0] in _STABLE and closing_parenthesis(value, 1) == len(value) - 1:
        return False
    return any(token in _ARITHMETIC for token in value[1:])


def _table_name_at(tokens: list[str], at: int) -> tuple[str, int]:
    """The table at ``at`` without its schema, and what comes after it."""
    name = ""
    while at < len(tokens) and (re.match(r"[\w{$]", tokens[at]) or tokens[at] == "?"):
        name = tokens[at]
        at += 1
        if tokens[at : at + 1] != ["."]:
            break
        at += 1
    return name, at


def _index_of(tokens: list[str], word: str, start: int = 0) -> int:
    try:
        return tokens.index(word, start)
    except ValueError:
        return len(tokens)


def _find_clause(tokens: list[str], start: int, ends: set[str]) -> int:
    """Where the first word of ``ends`` stands outside parentheses, from ``start`` on."""
    depth = 0
    for at in range(start, len(tokens)):
        token = tokens[at]
        depth += (token == "(") - (token == ")")
        if depth <= 0 and token in ends:
            return at
    return len(tokens)


def closing_parenthesis(tokens: list[str], at: int) -> int:
    """The parenthesis that closes the one at ``at``."""
    depth = 0
    for end in range(at, len(tokens)):
        depth += (tokens[end] == "(") - (tokens[end] == ")")
        if depth == 0:
            return end
    return len(tokens)


def split_by_commas(tokens: list[str]) -> list[list[str]]:
    """By commas outside parentheses."""
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in ("(", "[")) - (token in (")", "]"))
        if token == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


_NUMBERED = ("autoincrement", "auto_increment", "identity")
_LATER = re.compile(
    r"create\s+unique\s+index\s+(?:concurrently\s+)?(?:if\s+not\s+exists\s+)?(?:[\w.\"`]+\s+)?on\s+(?:only\s+)?([\w.\"`]+)"
    r"\s*(?:using\s+\w+\s*)?\(([^)]*)\)"
    r"|alter\s+table\s+(?:if\s+exists\s+)?(?:only\s+)?([\w.\"`]+)\s+add\s+(?:constraint\s+\S+\s+)?(?:unique|primary\s+key)"
    r"\s*(?:key\s+|index\s+)?\(([^)]*)\)",
    re.IGNORECASE,
)
_TABLE = re.compile(r"create\s+table\s+(?:if\s+not\s+exists\s+)?([\w.\"`]+)\s*\(", re.IGNORECASE)


def unique_columns(text: str) -> dict[str, list[frozenset[str]]]:
    """Of every ``CREATE TABLE`` in ``text``: the sets of columns that it keeps unique."""
    out: dict[str, list[frozenset[str]]] = {}
    for found in _TABLE.finditer(text[:_MAX_SQL_LENGTH]):
        table = found.group(1).rpartition(".")[2].strip('"`').lower()
        tokens = ["(", *tokenize(text[found.end() :])]
        parts = split_by_commas(tokens[1 : closing_parenthesis(tokens, 0)])
        keys = out.setdefault(table, [])
        for part in parts:
            if not part:
                continue
            if "unique" not in part and "primary" not in part:
                continue
            if "(" in part and part[0] in ("unique", "primary", "constraint"):
                at = part.index("(")
                keys.append(frozenset(token for token in part[at + 1 : closing_parenthesis(part, at)] if token != ","))
            elif not any("serial" in token or token in _NUMBERED for token in part):
                keys.append(frozenset({part[0]}))
    return out


def unique_indexes(text: str) -> dict[str, list[frozenset[str]]]:
    """Of every ``CREATE UNIQUE INDEX`` and every constraint that is added later: the columns that it keeps unique."""
    out: dict[str, list[frozenset[str]]] = {}
    for found in _LATER.finditer(text[:_MAX_SQL_LENGTH]):
        table = (found.group(1) or found.group(3)).rpartition(".")[2].strip('"`').lower()
        columns = found.group(2) or found.group(4) or ""
        out.setdefault(table, []).append(frozenset(each.strip(' "`').lower() for each in columns.split(",")))
    return out
