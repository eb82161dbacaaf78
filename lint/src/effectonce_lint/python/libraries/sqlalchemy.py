"""SQLAlchemy and SQLModel: statements that are built, and sessions that carry them out."""

from __future__ import annotations

import ast
import re
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python import sql
from effectonce_lint.python.values import Val

from . import orm_rows
from .object_types import LIBRARIES
from .sql_drivers import column_grows, executed

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, Calls

_VERBS = ("insert", "update", "delete", "select")
_SENDS = ("execute", "scalar", "scalars", "exec", "stream")
_SESSION = re.compile(
    r"^(?:\w*Session(?:Local|Maker|Factory)?|async_session(?:_?maker)?|session_scope|get_(?:db_)?session"
    r"|(?:db_)?session(?:_factory|maker)?)$"
)
"""What makers of sessions are called where they cannot be looked into."""


def called(walk: Calls, call: Call) -> Val | None:
    if (found := _statement(call)) is not None:
        return found
    if call.receiver.tag == "sa.statement":
        return _refined(call)
    if (call.tag == "sql.session" or _is_session(call)) and (found := _session(walk, call)) is not None:
        return found
    if call.name == "query" and not call.tag and not call.ref and call.args and _is_class(call.args[0]):
        return orm_rows.query(call.args[0])
    return _maker(call)


def _maker(call: Call) -> Val | None:
    known = call.target.function is not None or call.target.cls is not None
    if known or not call.ref or call.args or not _SESSION.search(call.name):
        return None
    if call.ref.partition(".")[0] in LIBRARIES:
        return None
    return Val(text=f"{call.name}()", tag="sql.session")


def _is_class(value: Val) -> bool:
    return value.cls is not None or value.text.rpartition(".")[2][:1].isupper()


# -- statements


def _statement(call: Call) -> Val | None:
    """`insert(Order)`, `update(Account)`, `select(Order)`."""
    last = call.ref.rpartition(".")[2]
    if last in _VERBS and call.ref.partition(".")[0] in ("sqlalchemy", "sqlmodel"):
        statement = sql.Statement(verb=last, table=_table(call.args[0]) if call.args else "")
        return Val(text=call.target.text, tag="sa.statement", literal=statement)
    if call.name in _VERBS and (call.receiver.attr == "__table__" or call.tag == "sa.table"):
        statement = sql.Statement(verb=call.name, table=call.receiver.text.partition(".")[0])
        return Val(text=call.target.text, tag="sa.statement", literal=statement)
    return None


def _table(value: Val) -> str:
    if value.cls is not None:
        return value.cls.name
    name = value.text.removesuffix(".__table__")
    return name.rpartition(".")[2] if name[:1].isupper() else name.partition(".")[0]


def _refined(call: Call) -> Val:
    """`.values(…)`, `.where(…)`, `.on_conflict_do_nothing()` on a statement."""
    assert isinstance(call.receiver.literal, sql.Statement)
    statement = copy(call.receiver.literal)
    name = call.name
    if name == "values":
        given = [*call.keywords, *(each for arg in call.args for each in (arg.fields or {}))]
        statement.columns = (*statement.columns, *given)
        statement.accumulates = statement.accumulates or _growing(call.node)
    elif name in ("where", "filter", "filter_by"):
        statement.where = (*statement.where, *compared(call.args), *call.keywords)
    elif name == "on_conflict_do_nothing" or (name == "prefix_with" and "IGNORE" in str(_first(call)).upper()):
        statement.on_conflict = "nothing"
    elif name in ("on_conflict_do_update", "on_duplicate_key_update"):
        statement.verb, statement.on_conflict = "upsert", "update"
        statement.accumulates = _growing_upsert(call)
    elif name == "with_for_update":
        statement.locks = True
    elif name == "select_from" and call.args:
        statement.table = _table(call.args[0])
    if statement.verb == "update":
        set_ = set(statement.columns) - {statement.accumulates}
        statement.conditional = bool(set_ & set(statement.where))
    fields = {**(call.receiver.fields or {}), **call.keywords}
    for arg in call.args:
        fields.update(arg.fields or {})
    return replace(call.receiver, literal=statement, fields=fields)


def _first(call: Call) -> object:
    return call.args[0].literal if call.args else ""


def compared(tests: tuple[Val, ...]) -> set[str]:
    """Columns that `filter(Order.status == "new")` compares."""
    return {each.text.partition("~")[0].rpartition(".")[2] for each in tests if "~" in each.text}


def _growing(node: ast.Call) -> str:
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


def _growing_upsert(call: Call) -> str:
    given = call.keywords.get("set_")
    for column, value in ((given.fields or {}) if given is not None else call.keywords).items():
        own = f".{column}" in value.text.replace("excluded.", "") and not value.text.startswith("excluded")
        if "Add" in value.text and own:
            return column
    return ""


# -- sessions


def _is_session(call: Call) -> bool:
    """A session out of sight, used as only a session is: given a new object."""
    if call.tag or call.ref.partition(".")[0] in LIBRARIES or call.target.function is not None or not call.args:
        return False
    if call.name not in ("add", "add_all", "merge"):
        return False
    given = call.args[0]
    made = given.instance is not None or given.cls is not None or given.text[:1].isupper()
    last = call.receiver.text.rpartition(".")[2].lower()
    return made and ("session" in last or last in ("db", "s", "uow", "sess"))


def _session(walk: Calls, call: Call) -> Val | None:
    name, first = call.name, call.args[0] if call.args else None
    if name == "flush":
        return Val(literal=None)
    if first is None:
        return None
    if name in ("add", "add_all"):
        for each in first.items or (first,):
            _added(walk, call, each)
        return Val(literal=None)
    if name == "merge":
        walk.emit("write", call.node, text=call.shown, store="orm", location=first.text)
        return first
    if name == "query":
        return orm_rows.query(first)
    if name == "get":
        wanted = orm_rows.query(first)
        wanted.fields = {"<lock>": Val()} if "with_for_update" in call.keywords else None
        return orm_rows.one(walk, call, wanted)
    if name in _SENDS and isinstance(first.literal, sql.Statement):
        return _sent(walk, call, first.literal)
    return None


def _sent(walk: Calls, call: Call, statement: sql.Statement) -> Val:
    result = executed(walk, call, (statement,))
    if statement.verb == "select":
        op = result.origin[0]
        op.store = "orm"
        return Val(text=f"{statement.table}<row>", tag="orm.entity", origin=(op,))
    return result


def _added(walk: Calls, call: Call, given: Val) -> None:
    if given.instance is not None:
        cls = given.instance.cls
        orm_rows.added(walk, call, cls.name, given.instance.keywords, cls, "adds a")
    elif given.tag != "orm.entity":
        model = given.text.partition("(")[0].rpartition(".")[2]
        orm_rows.added(walk, call, model, given.fields or {}, None, "adds a")
