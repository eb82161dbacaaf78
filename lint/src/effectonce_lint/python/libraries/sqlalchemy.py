"""SQLAlchemy and SQLModel: the statements that code builds, and the sessions that execute them."""

from __future__ import annotations

import ast
import re
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python import sql
from effectonce_lint.python.values import Value

from . import orm_rows
from .object_types import LIBRARIES
from .sql_drivers import column_grows, execute

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_VERBS = ("insert", "update", "delete", "select")
_EXECUTE_METHODS = ("execute", "scalar", "scalars", "exec", "stream")
_SESSION_FACTORY_NAME = re.compile(
    r"^(?:\w*Session(?:Local|Maker|Factory)?|async_session(?:_?maker)?|session_scope|get_(?:db_)?session"
    r"|(?:db_)?session(?:_factory|maker)?)$"
)
"""Names of session factories whose code is not in the project."""


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call that builds or executes a statement, or uses a session; None for other calls."""
    if (statement := _make_statement(call)) is not None:
        return statement
    if call.receiver.tag == "sa.statement":
        return _refine_statement(call)
    if (call.tag == "sql.session" or _is_session(call)) and (result := _interpret_session(walk, call)) is not None:
        return result
    if call.name == "query" and not call.tag and not call.ref and call.args and _is_class(call.args[0]):
        return orm_rows.make_query(call.args[0])
    return _make_sessionmaker(call)


def _make_sessionmaker(call: Call) -> Value | None:
    is_in_project = call.target.function is not None or call.target.cls is not None
    if is_in_project or not call.ref or call.args or not _SESSION_FACTORY_NAME.search(call.name):
        return None
    if call.ref.partition(".")[0] in LIBRARIES:
        return None
    return Value(text=f"{call.name}()", tag="sql.session")


def _is_class(value: Value) -> bool:
    return value.cls is not None or value.text.rpartition(".")[2][:1].isupper()


# -- statements


def _make_statement(call: Call) -> Value | None:
    """`insert(Order)`, `update(Account)`, `select(Order)`."""
    last = call.ref.rpartition(".")[2]
    if last in _VERBS and call.ref.partition(".")[0] in ("sqlalchemy", "sqlmodel"):
        statement = sql.SqlStatement(verb=last, table=_table_of(call.args[0]) if call.args else "")
        return Value(text=call.target.text, tag="sa.statement", literal=statement)
    if call.name in _VERBS and (call.receiver.attr == "__table__" or call.tag == "sa.table"):
        statement = sql.SqlStatement(verb=call.name, table=call.receiver.text.partition(".")[0])
        return Value(text=call.target.text, tag="sa.statement", literal=statement)
    return None


def _table_of(value: Value) -> str:
    if value.cls is not None:
        return value.cls.name
    name = value.text.removesuffix(".__table__")
    return name.rpartition(".")[2] if name[:1].isupper() else name.partition(".")[0]


def _refine_statement(call: Call) -> Value:
    """The statement with `.values(…)`, `.where(…)` or `.on_conflict_do_nothing()` applied.

    Where branches made different statements of it, it stays unknown.
    """
    if not isinstance(call.receiver.literal, sql.SqlStatement):
        return call.receiver
    statement = copy(call.receiver.literal)
    name = call.name
    if name == "values":
        argument_columns = [column for argument in call.args for column in argument.fields or {}]
        statement.columns = (*statement.columns, *call.keywords, *argument_columns)
        statement.accumulates = statement.accumulates or _growing_column(call.node)
    elif name in ("where", "filter", "filter_by"):
        statement.where = (*statement.where, *compared_columns(call.args), *call.keywords)
    elif name == "on_conflict_do_nothing" or (name == "prefix_with" and "IGNORE" in str(_first_literal(call)).upper()):
        statement.on_conflict = "nothing"
    elif name in ("on_conflict_do_update", "on_duplicate_key_update"):
        statement.verb, statement.on_conflict = "upsert", "update"
        statement.accumulates = _growing_upsert_column(call)
    elif name == "with_for_update":
        statement.locks = True
    elif name == "select_from" and call.args:
        statement.table = _table_of(call.args[0])
    if statement.verb == "update":
        set_columns = set(statement.columns) - {statement.accumulates}
        statement.conditional = bool(set_columns & set(statement.where))
    fields = {**(call.receiver.fields or {}), **call.keywords}
    for arg in call.args:
        fields.update(arg.fields or {})
    return replace(call.receiver, literal=statement, fields=fields)


def _first_literal(call: Call) -> object:
    return call.args[0].literal if call.args else ""


def compared_columns(tests: tuple[Value, ...]) -> set[str]:
    """The columns that `filter(Order.status == "new")` compares."""
    return {test.text.partition("~")[0].rpartition(".")[2] for test in tests if "~" in test.text}


def _growing_column(node: ast.Call) -> str:
    """The column that `.values(…)` adds to."""
    for keyword in node.keywords:
        if keyword.arg and column_grows(keyword.value, keyword.arg):
            return keyword.arg
    for arg in node.args:
        if isinstance(arg, ast.Dict):
            for key, value in zip(arg.keys, arg.values, strict=True):
                column = key.value if isinstance(key, ast.Constant) else getattr(key, "attr", "")
                if isinstance(column, str) and column_grows(value, column):
                    return column
    return ""


def _growing_upsert_column(call: Call) -> str:
    set_argument = call.keywords.get("set_")
    for column, value in ((set_argument.fields or {}) if set_argument is not None else call.keywords).items():
        names_itself = f".{column}" in value.text.replace("excluded.", "") and not value.text.startswith("excluded")
        if "Add" in value.text and names_itself:
            return column
    return ""


# -- sessions


def _is_session(call: Call) -> bool:
    """Whether an object of an unknown type is a session: by its name, and since an object is added to it."""
    if call.tag or call.ref.partition(".")[0] in LIBRARIES or call.target.function is not None or not call.args:
        return False
    if call.name not in ("add", "add_all", "merge"):
        return False
    argument = call.args[0]
    is_object = argument.instance is not None or argument.cls is not None or argument.text[:1].isupper()
    receiver_name = call.receiver.text.rpartition(".")[2].lower()
    return is_object and ("session" in receiver_name or receiver_name in ("db", "s", "uow", "sess"))


def _interpret_session(walk: CallWalker, call: Call) -> Value | None:
    name, first = call.name, call.args[0] if call.args else None
    if name == "flush":
        return Value(literal=None)
    if first is None:
        return None
    if name in ("add", "add_all"):
        for row in first.items or (first,):
            _add_object(walk, call, row)
        return Value(literal=None)
    if name == "merge":
        walk.emit("write", call.node, text=call.source_text, store="orm", location=first.text)
        return first
    if name == "query":
        return orm_rows.make_query(first)
    if name == "get":
        query = orm_rows.make_query(first)
        query.fields = {orm_rows.ROW_LOCK_KEY: Value()} if "with_for_update" in call.keywords else None
        return orm_rows.read_row(walk, call, query)
    if name in _EXECUTE_METHODS and isinstance(first.literal, sql.SqlStatement):
        return _execute_statement(walk, call, first.literal)
    return None


def _execute_statement(walk: CallWalker, call: Call, statement: sql.SqlStatement) -> Value:
    result = execute(walk, call, (statement,))
    if statement.verb == "select":
        op = result.origin[0]
        op.store = "orm"
        return Value(text=f"{statement.table}<row>", tag="orm.entity", origin=(op,))
    return result


def _add_object(walk: CallWalker, call: Call, row: Value) -> None:
    if row.instance is not None:
        cls = row.instance.cls
        orm_rows.add_row(walk, call, cls.name, row.instance.keywords, cls, "adds a")
    elif row.tag != "orm.entity":
        model = row.text.partition("(")[0].rpartition(".")[2]
        if not model[:1].isupper():
            return  # it comes from elsewhere, and may be a row that exists
        orm_rows.add_row(walk, call, model, row.fields or {}, None, "adds a")
