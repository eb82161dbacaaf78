"""SQL as it is sent through a driver: what is looked up, claimed, recorded and added to."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from effectonce_lint.python import sql
from effectonce_lint.python.handler_tables import imported_modules
from effectonce_lint.python.values import UNKNOWN, Effect, Operation, Value
from effectonce_lint.word_lists import word_set

from .object_types import is_dedup_name

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_EXECUTES = word_set(
    "execute executemany exec_driver_sql fetch fetchrow fetchval fetch_one fetch_all fetch_val scalar scalars run"
    " query execute_query exec execute_sql raw execute_many fetchone fetchall iterate stream executescript"
    " execute_values"
)
_FETCHES = word_set(
    "fetchone fetchall fetchmany fetchval scalar scalar_one scalar_one_or_none scalars first one one_or_none all"
    " mappings rowcount unique get rowcount_ result partitions tuples"
)
_OWN_KEYS = word_set(
    "id uuid guid pk idempotency_key idempotence_key message_id msg_id event_id dedup_id dedup_key dedupe_key"
    " request_id delivery_id webhook_id external_id source_id message_key event_key stripe_event_id"
)
_COPIES = word_set("copy copy_from copy_expert copy_records_to_table copy_to_table")
_STATEMENTS = word_set("query sql statement stmt operation command")
_LOCKS = re.compile(r"\s*SELECT\s+(?:PG_ADVISORY_(?:XACT_)?LOCK|GET_LOCK)\b")
_ALONE = re.compile(r"SERIALIZABLE|IMMEDIATE|EXCLUSIVE")
_WHEN = re.compile(r"_(?:at|on|ts|time|date)$|^(?:created|processed|ts|timestamp|time|date|at)$")


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    if call.name in ("commit", "rollback") and _is_database(call):
        walk.emit(call.name, call.node, text=call.source_text)
        walk.epoch += 1
        return Value(literal=None)
    if call.name in _EXECUTES and (found := _interpret_transaction_bounds(walk, call)) is not None:
        return found
    if call.name in _COPIES and call.tag.startswith("sql.") and not _is_copy_out(call):
        effect = Effect("insert", "copies rows into a table")
        walk.emit("effect", call.node, text=call.source_text, store="sql", effect=effect)
        return Value(text=f"{call.source_text}()", taint=call.receiver.taint)
    statement = _statement_of(call)
    if statement is not None:
        return execute(walk, call, statement)
    if call.name in _FETCHES and call.target.function is None:
        if call.receiver.origin:
            return Value(
                text=f"{call.receiver.text}.{call.name}()",
                origin=call.receiver.origin,
                tag=call.receiver.tag,
                taint=call.receiver.taint,
            )
        if call.tag == "sql.cursor" or call.name.startswith("fetch"):
            last = walk.cursors.get(call.receiver.text) or walk.cursors.get("")
            if last is not None:
                return Value(text=f"{call.receiver.text}.{call.name}()", origin=(last,), tag="sql.row")
    return None


def _is_copy_out(call: Call) -> bool:
    """`COPY … TO STDOUT`."""
    return bool(call.args) and bool(re.search(r"\bTO\s+STDOUT\b", call.args[0].string or "", re.IGNORECASE))


def _interpret_transaction_bounds(walk: CallWalker, call: Call) -> Value | None:
    """`execute("BEGIN")` and `execute("COMMIT")`, and what keeps a transaction apart from others like it."""
    text = ((call.args[0].string or "") if call.args else "").upper()
    word, _, rest = text.strip().partition(" ")
    word = word.rstrip(";")
    if word in ("BEGIN", "START"):
        walk.in_sql_begin = True
    elif word in ("COMMIT", "END", "ROLLBACK"):
        walk.emit("rollback" if word == "ROLLBACK" else "commit", call.node, text=call.source_text)
        walk.in_sql_begin = False
        walk.epoch += 1
    elif not (word == "LOCK" or (word == "SET" and "TRANSACTION" in rest) or _LOCKS.search(text)):
        return None
    if word in ("LOCK", "SELECT") or _ALONE.search(rest):
        walk.serialized.add(walk.transaction())
    return Value(literal=None)


def _is_database(call: Call) -> bool:
    """Whether `x.commit()` is a database's: Kafka's consumers and producers commit as well."""
    named = call.receiver.text.rpartition(".")[2] in ("session", "db", "conn", "connection")
    unseen = (not call.ref or named) and call.target.function is None and not call.args
    return (unseen and call.tag not in ("kafka.consumer", "kafka.producer")) or call.ref.startswith("django.")


def _statement_of(call: Call) -> tuple[sql.SqlStatement, ...] | None:
    """The SQL that a call runs: its first argument, the second of a helper that takes the connection first, by name."""
    if call.target.function is not None:
        return None
    for each in (*call.args[:2], *(call.keywords[name] for name in _STATEMENTS & call.keywords.keys())):
        if isinstance(each.literal, sql.SqlStatement):
            return (each.literal,)
        text = each.string
        if text is not None and len(text) > 10 and sql.looks_like_sql(text):
            statements = sql.parse_statements(text)
            if call.name in _EXECUTES or any(one.verb != "select" for one in statements):
                return statements
    return None


def execute(walk: CallWalker, call: Call, statements: tuple[sql.SqlStatement, ...]) -> Value:
    """Note what ``statements`` do, on the connection that ``call`` goes to."""
    ops = [_emit_statement(walk, call, statement) for statement in statements]
    if not ops:
        return Value(text=f"{call.source_text}()")
    last = ops[-1]
    walk.cursors[call.receiver.text] = last
    walk.cursors[""] = last
    return Value(text=f"{call.source_text}()", tag="sql.result", origin=(last,), base=call.receiver)


def _emit_statement(walk: CallWalker, call: Call, statement: sql.SqlStatement) -> Operation:
    node = call.node
    auto = _is_autocommit(walk, call)
    common = {
        "text": call.source_text,
        "store": "sql",
        "location": statement.table,
        "columns": statement.columns,
        "dedup": is_dedup_name(statement.table) or _is_dedup_row(statement),
        "key": _first_value(call),
        "tx": f"auto{walk.number()}" if auto else "",
    }
    if statement.verb == "select":
        return walk.emit("read", node, locked=statement.locks, **common)
    if statement.verb == "delete":
        return walk.emit("unmark", node, atomic=True, **common)
    if statement.accumulates and not statement.conditional:
        effect = Effect("increment", f"adds to {statement.table or 'a table'}.{statement.accumulates}")
        return walk.emit("effect", node, effect=effect, **common)
    if statement.verb == "update":
        return walk.emit("mark" if statement.conditional else "write", node, atomic=statement.conditional, **common)
    if statement.verb == "upsert":
        return walk.emit("mark" if common["dedup"] else "write", node, ignored_conflict=True, **common)
    return emit_insert(walk, call, statement, common)


def _is_dedup_row(statement: sql.SqlStatement) -> bool:
    """Whether a row says nothing but which message it was, and perhaps when."""
    what = [column for column in statement.columns if not _WHEN.search(column)]
    return statement.verb == "insert" and len(what) == 1 and what[0] in _OWN_KEYS - {"id", "pk"}


def emit_insert(walk: CallWalker, call: Call, statement: sql.SqlStatement, common: dict[str, object]) -> Operation:
    """A row is added: a claim where a duplicate of it is refused, an effect where it is not."""
    node = call.node
    common["key"] = _primary_key_value(call, statement) or _distinguishing_value(call, statement, common)
    if statement.on_conflict == "nothing" or statement.conditional:
        return walk.emit("mark", node, atomic=True, ignored_conflict=True, **common)
    if walk.unique_tries:
        return hold_claim(walk, walk.emit("claim", node, atomic=True, **common))
    if _is_unique_row(walk, call, statement, dedup=bool(common["dedup"])):
        return hold_claim(walk, walk.emit("claim", node, atomic=True, **common))
    return walk.emit(
        "effect", node, effect=Effect("insert", f"inserts a row into {statement.table or 'a table'}"), **common
    )


def hold_claim(walk: CallWalker, op: Operation) -> Operation:
    """A claim that raises for a duplicate: what comes after it runs for the first only."""
    walk.hold((op,), "raise")
    return op


def _is_unique_row(walk: CallWalker, call: Call, statement: sql.SqlStatement, *, dedup: bool) -> bool:
    """Whether the database refuses the row twice: as its table says, where that is in sight; else since the row carries
    a key of its own that comes with the message, or its table is there to dedup."""
    values = _column_values(call, statement)
    keys = _unique_columns_of(walk, statement.table)
    if keys is not None:
        return any(
            key and key <= set(statement.columns) and all(_is_stable(values.get(column)) for column in key)
            for key in keys
        )
    return dedup or any(
        column in _OWN_KEYS and _is_stable(values.get(column), needed=True) for column in statement.columns
    )


def _unique_columns_of(walk: CallWalker, table: str) -> list[frozenset[str]] | None:
    """What a table keeps unique, where it is created by the files at hand: this one, the consumer's, their imports."""
    modules = dict.fromkeys(
        [walk.module, walk.start, *imported_modules(walk, walk.module), *imported_modules(walk, walk.start)]
    )
    created = [module.unique[table] for module in modules if table in module.unique]
    if not created:
        return None
    return [key for keys in (*created, *(module.unique_indexes.get(table, []) for module in modules)) for key in keys]


def _is_stable(value: Value | None, *, needed: bool = False) -> bool:
    if value is None:
        return not needed
    return not any(each.startswith("unstable:") for each in value.taint) and (bool(value.taint) or not needed)


def _column_values(call: Call, statement: sql.SqlStatement) -> dict[str, Value]:
    """What each column is set to, as far as the arguments say."""
    given = [each for each in call.args if each.string is None or not sql.looks_like_sql(each.string)]
    flat: list[Value] = []
    named: dict[str, Value] = {}
    for each in given:
        if each.fields is not None:
            named.update(each.fields)
        elif each.items and each.tag in ("tuple", "list"):
            flat.extend(each.items)
        else:
            flat.append(each)
    named.update(call.keywords)
    out: dict[str, Value] = {}
    values = statement.values or ("?",) * len(statement.columns)
    position = 0
    for column, value in zip(statement.columns, values, strict=False):
        if value == "?":
            if column in named:
                out[column] = named[column]
            elif position < len(flat):
                out[column] = flat[position]
            position += 1
    return out


def _primary_key_value(call: Call, statement: sql.SqlStatement) -> Value | None:
    values = _column_values(call, statement)
    for column in statement.columns:
        if (column in _OWN_KEYS or is_dedup_name(column)) and column in values:
            return values[column]
    return None


def _distinguishing_value(call: Call, statement: sql.SqlStatement, common: dict[str, object]) -> Value | None:
    """What tells a row that is not there to dedup from others: not the number that it is given by chance."""
    if common["dedup"]:
        return _first_value(call)
    return next((each for each in _column_values(call, statement).values() if _is_stable(each, needed=True)), None)


def _first_value(call: Call) -> Value | None:
    for each in call.args[1:]:
        if each.items:
            return each.items[0]
        if each.fields:
            return next(iter(each.fields.values()))
        if each.literal is UNKNOWN or each.taint:
            return each
    return None


def _is_autocommit(walk: CallWalker, call: Call) -> bool:
    """Whether a statement is its own transaction here."""
    if walk.in_sql_begin or any(each.kind == "block" for each in walk.position.transactions):
        return False
    receiver = call.receiver
    if receiver.tag in ("sql.auto", "sql.autopool"):
        return True
    return _is_set_to_autocommit(receiver)


def _is_set_to_autocommit(source: Value | None) -> bool:
    """Whether a connection, or what it comes from, was told to commit each statement by itself."""
    while source is not None:
        given = source.fields or {}
        if "autocommit" in given and given["autocommit"].literal is True:
            return True
        if "isolation_level" in given and given["isolation_level"].literal in (None, "AUTOCOMMIT"):
            return True
        source = source.base
    return False


def column_grows(node: ast.expr, column: str) -> bool:
    """Whether an expression of the ORM adds to the column it is given to: `Account.balance + 5`, `F("n") - 1`."""
    for each in ast.walk(node):
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            for part in ast.walk(each):
                if isinstance(part, ast.Attribute) and part.attr == column:
                    return True
                if (
                    isinstance(part, ast.Call)
                    and part.args
                    and isinstance(part.args[0], ast.Constant)
                    and part.args[0].value == column
                ):
                    return True
    return False
