"""SQL that is sent through a driver: look-ups, claims, records and increments."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from effectonce_lint.python import sql
from effectonce_lint.python.handler_tables import imported_modules
from effectonce_lint.python.values import UNKNOWN_LITERAL, Effect, OperationTarget, TracedOperation, Value
from effectonce_lint.word_lists import word_set

from .message_parts import is_stable, is_unstable
from .object_types import is_dedup_name

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_EXECUTE_METHODS = word_set(
    "execute executemany exec_driver_sql fetch fetchrow fetchval fetch_one fetch_all fetch_val scalar scalars run"
    " query execute_query exec execute_sql raw execute_many fetchone fetchall iterate stream executescript"
    " execute_values"
)
_RESULT_METHODS = word_set(
    "fetchone fetchall fetchmany fetchval scalar scalar_one scalar_one_or_none scalars first one one_or_none all"
    " mappings rowcount unique get rowcount_ result partitions tuples"
)
_KEY_COLUMNS = word_set(
    "id uuid guid pk idempotency_key idempotence_key message_id msg_id event_id dedup_id dedup_key dedupe_key"
    " request_id delivery_id webhook_id external_id source_id message_key event_key stripe_event_id"
)
_COPY_METHODS = word_set("copy copy_from copy_expert copy_records_to_table copy_to_table")
_STATEMENT_KEYWORDS = word_set("query sql statement stmt operation command")
_ADVISORY_LOCK = re.compile(r"\s*SELECT\s+(?:PG_ADVISORY_(?:XACT_)?LOCK|GET_LOCK)\b")
_MIN_SQL_LENGTH = 10  # shorter texts are words like "select"
_SERIALIZING = re.compile(r"SERIALIZABLE|IMMEDIATE|EXCLUSIVE")
_TIME_COLUMN = re.compile(r"_(?:at|on|ts|time|date)$|^(?:created|processed|ts|timestamp|time|date|at)$")


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call that runs SQL, reads a result, or begins or ends a transaction; None for other calls."""
    if call.name in ("commit", "rollback") and _is_database(call):
        walk.emit("commit" if call.name == "commit" else "rollback", call.node, text=call.source_text)
        walk.epoch += 1
        return Value(literal=None)
    if call.name in _EXECUTE_METHODS and (bound := _interpret_transaction_bounds(walk, call)) is not None:
        return bound
    if call.name in _COPY_METHODS and call.tag.startswith("sql.") and not _is_copy_out(call):
        effect = Effect("insert", "copies rows into a table")
        walk.emit("effect", call.node, text=call.source_text, store="sql", effect=effect)
        return Value(text=f"{call.source_text}()", taint=call.receiver.taint)
    statement = _statement_of(call)
    if statement is not None:
        return execute(walk, call, statement)
    if call.name in _RESULT_METHODS and call.target.function is None:
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
    """Whether the call is `COPY … TO STDOUT`, which only reads."""
    return bool(call.args) and bool(re.search(r"\bTO\s+STDOUT\b", call.args[0].string or "", re.IGNORECASE))


def _interpret_transaction_bounds(walk: CallWalker, call: Call) -> Value | None:
    """`execute("BEGIN")`, `execute("COMMIT")`, and statements that serialize transactions: locks, isolation levels."""
    text = ((call.args[0].string or "") if call.args else "").upper()
    word, _, rest = text.strip().partition(" ")
    word = word.rstrip(";")
    if word in ("BEGIN", "START"):
        walk.in_sql_begin = True
    elif word in ("COMMIT", "END", "ROLLBACK"):
        walk.emit("rollback" if word == "ROLLBACK" else "commit", call.node, text=call.source_text)
        walk.in_sql_begin = False
        walk.epoch += 1
    elif not (word == "LOCK" or (word == "SET" and "TRANSACTION" in rest) or _ADVISORY_LOCK.search(text)):
        return None
    if word in ("LOCK", "SELECT") or _SERIALIZING.search(rest):
        walk.serialized.add(walk.transaction())
    return Value(literal=None)


def _is_database(call: Call) -> bool:
    """Whether `x.commit()` is a database's: Kafka's consumers and producers commit as well."""
    if call.ref.startswith("django."):
        return True
    has_usual_name = call.receiver.text.rpartition(".")[2] in ("session", "db", "conn", "connection")
    is_unknown = (not call.ref or has_usual_name) and call.target.function is None and not call.args
    return is_unknown and call.tag not in ("kafka.consumer", "kafka.producer")


def _statement_of(call: Call) -> tuple[sql.SqlStatement, ...] | None:
    """The SQL that a call runs: its first argument, its second (behind a connection), or one with a usual name."""
    if call.target.function is not None:
        return None
    named = [call.keywords[name] for name in _STATEMENT_KEYWORDS & call.keywords.keys()]
    for argument in (*call.args[:2], *named):
        if isinstance(argument.literal, sql.SqlStatement):
            return (argument.literal,)
        text = argument.string
        if text is not None and len(text) > _MIN_SQL_LENGTH and sql.looks_like_sql(text):
            statements = sql.parse_statements(text)
            if call.name in _EXECUTE_METHODS or any(statement.verb != "select" for statement in statements):
                return statements
    return None


def execute(walk: CallWalker, call: Call, statements: tuple[sql.SqlStatement, ...]) -> Value:
    """Emit the operations of ``statements`` on the connection of ``call``."""
    ops = [_emit_statement(walk, call, statement) for statement in statements]
    if not ops:
        return Value(text=f"{call.source_text}()")
    last = ops[-1]
    walk.cursors[call.receiver.text] = last
    walk.cursors[""] = last
    return Value(text=f"{call.source_text}()", tag="sql.result", origin=(last,), base=call.receiver)


def _emit_statement(walk: CallWalker, call: Call, statement: sql.SqlStatement) -> TracedOperation:
    node = call.node
    is_dedup = is_dedup_name(statement.table) or _is_dedup_row(statement)
    description: OperationTarget = {
        "text": call.source_text,
        "store": "sql",
        "location": statement.table,
        "columns": statement.columns,
        "dedup": is_dedup,
        "key": _first_value(call),
        "tx": f"auto{walk.number()}" if _is_autocommit(walk, call) else "",
    }
    if statement.verb == "select":
        return walk.emit("read", node, locked=statement.locks, **description)
    if statement.verb == "delete":
        return walk.emit("unmark", node, atomic=True, **description)
    if statement.accumulates and not statement.conditional:
        effect = Effect("increment", f"adds to {statement.table or 'a table'}.{statement.accumulates}")
        return walk.emit("effect", node, effect=effect, **description)
    if statement.verb == "update":
        return walk.emit(
            "mark" if statement.conditional else "write", node, atomic=statement.conditional, **description
        )
    if statement.verb == "upsert":
        return walk.emit("mark" if is_dedup else "write", node, ignored_conflict=True, **description)
    return _emit_insert(walk, call, statement, description)


def _is_dedup_row(statement: sql.SqlStatement) -> bool:
    """Whether an inserted row has only the id of a message, and perhaps times."""
    columns = [column for column in statement.columns if not _TIME_COLUMN.search(column)]
    return statement.verb == "insert" and len(columns) == 1 and columns[0] in _KEY_COLUMNS - {"id", "pk"}


def _emit_insert(
    walk: CallWalker, call: Call, statement: sql.SqlStatement, description: OperationTarget
) -> TracedOperation:
    """Emit the insert of a row: a claim if the database refuses a duplicate of it, else an effect."""
    node = call.node
    is_dedup = description["dedup"]
    key = _primary_key_value(call, statement)
    if key is None:
        key = _first_value(call) if is_dedup else _distinguishing_value(call, statement)
    description["key"] = key
    if statement.on_conflict == "nothing" or statement.conditional:
        return walk.emit("mark", node, atomic=True, ignored_conflict=True, **description)
    if walk.unique_tries or _is_unique_row(walk, call, statement, dedup=is_dedup):
        return hold_claim(walk, walk.emit("claim", node, atomic=True, **description))
    effect = Effect("insert", f"inserts a row into {statement.table or 'a table'}")
    return walk.emit("effect", node, effect=effect, **description)


def hold_claim(walk: CallWalker, op: TracedOperation) -> TracedOperation:
    """Hold a claim that raises for a duplicate: the code after it runs for the first delivery only."""
    walk.hold((op,), "raise")
    return op


def _is_unique_row(walk: CallWalker, call: Call, statement: sql.SqlStatement, *, dedup: bool) -> bool:
    """Whether the database refuses the row a second time.

    Its table decides, if the files at hand create it. Otherwise the row is unique if it has a key of its own that comes
    with the message, or if its table is there to dedup.
    """
    values = _column_values(call, statement)
    unique_sets = _unique_columns_of(walk, statement.table)
    if unique_sets is not None:
        return any(
            columns
            and columns <= set(statement.columns)
            and not any(column in values and is_unstable(values[column]) for column in columns)
            for columns in unique_sets
        )
    return dedup or any(
        column in _KEY_COLUMNS and column in values and is_stable(values[column]) for column in statement.columns
    )


def _unique_columns_of(walk: CallWalker, table: str) -> list[frozenset[str]] | None:
    """The sets of columns that a table keeps unique; None if it is created by no file at hand.

    Those are this file, the consumer's, and the files that they import.
    """
    modules = dict.fromkeys(
        [walk.module, walk.start, *imported_modules(walk, walk.module), *imported_modules(walk, walk.start)]
    )
    of_tables = [module.unique[table] for module in modules if table in module.unique]
    if not of_tables:
        return None
    of_indexes = [module.unique_indexes.get(table, []) for module in modules]
    return [columns for unique_sets in (*of_tables, *of_indexes) for columns in unique_sets]


def _column_values(call: Call, statement: sql.SqlStatement) -> dict[str, Value]:
    """The value of each column of an INSERT, where the arguments of the call show it."""
    positional, named = _parameters_of(call)
    values: dict[str, Value] = {}
    position = 0
    tokens = statement.values or ("?",) * len(statement.columns)
    for column, token in zip(statement.columns, tokens, strict=False):
        if token == "?":
            if column in named:
                values[column] = named[column]
            elif position < len(positional):
                values[column] = positional[position]
            position += 1
    return values


def _parameters_of(call: Call) -> tuple[list[Value], dict[str, Value]]:
    """The parameters that a call passes with its SQL: those by position, and those by name."""
    positional: list[Value] = []
    named: dict[str, Value] = {}
    for argument in call.args:
        if argument.string is not None and sql.looks_like_sql(argument.string):
            continue
        if argument.fields is not None:
            named.update(argument.fields)
        elif argument.items and argument.tag in ("tuple", "list"):
            positional.extend(argument.items)
        else:
            positional.append(argument)
    named.update(call.keywords)
    return positional, named


def _primary_key_value(call: Call, statement: sql.SqlStatement) -> Value | None:
    """The value of the first column that is named like a key."""
    values = _column_values(call, statement)
    for column in statement.columns:
        if (column in _KEY_COLUMNS or is_dedup_name(column)) and column in values:
            return values[column]
    return None


def _distinguishing_value(call: Call, statement: sql.SqlStatement) -> Value | None:
    """The first value that comes with the message, and so tells its row from others."""
    return next((value for value in _column_values(call, statement).values() if is_stable(value)), None)


def _first_value(call: Call) -> Value | None:
    """The first parameter of a statement: of dedup tables and look-ups, that is usually the key."""
    for argument in call.args[1:]:
        if argument.items:
            return argument.items[0]
        if argument.fields:
            return next(iter(argument.fields.values()))
        if argument.literal is UNKNOWN_LITERAL or argument.taint:
            return argument
    return None


def _is_autocommit(walk: CallWalker, call: Call) -> bool:
    """Whether a statement is its own transaction here."""
    if walk.in_sql_begin or any(transaction.kind == "block" for transaction in walk.position.transactions):
        return False
    return call.receiver.tag in ("sql.auto", "sql.autopool") or _is_set_to_autocommit(call.receiver)


def _is_set_to_autocommit(connection: Value) -> bool:
    """Whether a connection, or the pool or engine that it comes from, is set to commit each statement by itself."""
    source: Value | None = connection
    while source is not None:
        settings = source.fields or {}
        if "autocommit" in settings and settings["autocommit"].literal is True:
            return True
        if "isolation_level" in settings and settings["isolation_level"].literal in (None, "AUTOCOMMIT"):
            return True
        source = source.base
    return False


def column_grows(node: ast.expr, column: str) -> bool:
    """Whether an expression of an ORM changes ``column`` by an amount: `Account.balance + 5`, `F("n") - 1`."""
    return any(
        isinstance(part, ast.BinOp)
        and isinstance(part.op, ast.Add | ast.Sub | ast.Mult | ast.Div)
        and any(_names_column(operand, column) for operand in ast.walk(part))
        for part in ast.walk(node)
    )


def _names_column(node: ast.AST, column: str) -> bool:
    match node:
        case ast.Attribute(attr=name) | ast.Call(args=[ast.Constant(value=name), *_]):
            return bool(name == column)
    return False
