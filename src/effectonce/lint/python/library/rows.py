"""Rows of an object-relational mapper: read, checked, added, counted up."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from effectonce.lint.python.values import Effect, Function, Op, Scope, Val
from effectonce.lint.words import words

from .names import dedupish
from .stores import claimed

if TYPE_CHECKING:
    from effectonce.lint.python.calls import Call, Calls
    from effectonce.lint.python.modules import Class
    from effectonce.lint.python.resolve import Names

MANAGERS = ("objects", "query")
_OWN_KEYS = words("id pk uuid")
_BASES = words(
    "models.Model django.db.models.Model DeclarativeBase Base SQLModel sqlmodel.SQLModel db.Model"
    " tortoise.models.Model tortoise.Model peewee.Model mongoengine.Document beanie.Document"
)


def query(model: Val) -> Val:
    """A query for rows of ``model``; its ``fields`` become what it is filtered by."""
    return Val(text=model_name(model), tag="orm.query", base=model)


def model_name(model: Val) -> str:
    return model.cls.name if model.cls is not None else model.text.rpartition(".")[2]


def read(walk: Calls, call: Call, rows: Val, **more: object) -> Op:
    return walk.emit("read", call.node, locked="<lock>" in (rows.fields or {}), **{**about(call, rows), **more})


def one(walk: Calls, call: Call, rows: Val, **more: object) -> Val:
    """A row that was read: testing its attributes later is a check on its state."""
    return Val(text=f"{rows.text}<row>", tag="orm.entity", origin=(read(walk, call, rows, **more),), base=rows)


def about(call: Call, rows: Val) -> dict[str, object]:
    """What an operation on ``rows`` is known by."""
    fields = {**(rows.fields or {}), **call.keywords}
    return {
        "text": call.shown,
        "store": "orm",
        "location": rows.text,
        "key": next((value for value in fields.values() if value.taint), None),
        "dedup": dedupish(rows.text),
        "columns": tuple(fields),
    }


def added(
    walk: Calls, call: Call, model: str, fields: dict[str, Val], cls: Class | None, what: str, **more: object
) -> Op:
    """A new row: a claim where its table refuses a second one like it, an effect where it does not."""
    unique = unique_fields(cls) if cls is not None else []
    own = [value for name, value in fields.items() if name in _OWN_KEYS or name in unique or dedupish(name)]
    key = next((each for each in (*own, *fields.values()) if each.taint), None)
    common = {"text": call.shown, "store": "orm", "location": model, "dedup": dedupish(model), "key": key, **more}
    if walk.unique_tries or common["dedup"] or any(map(stable, own)):
        return claimed(walk, walk.emit("claim", call.node, atomic=True, **common))
    return walk.emit("effect", call.node, effect=Effect("insert", f"{what} {model} row"), **common)


def counted(walk: Calls, node: ast.AST, row: Op, attribute: str) -> None:
    """An attribute of a row that grows with each run."""
    walk.emit(
        "effect",
        node,
        text=ast.unparse(node),
        store="orm",
        location=row.location,
        locked=row.locked,
        effect=Effect("increment", f"adds to {row.location}.{attribute}"),
    )


def stable(value: Val) -> bool:
    """Whether a value comes with the message, and is the same for each delivery of it."""
    return bool(value.taint) and not any(each.startswith("unstable:") for each in value.taint)


def unique_fields(cls: Class) -> list[str]:
    """Fields of a model that its table keeps unique, and that the table does not number by itself."""
    out = []
    for name, (value, _) in cls.attributes.items():
        if not isinstance(value, ast.Call):
            continue
        on = {each.arg for each in value.keywords if isinstance(each.value, ast.Constant) and each.value.value is True}
        numbered = isinstance(value.func, ast.Attribute) and "Auto" in value.func.attr
        filled = any(each.arg in ("default", "default_factory", "server_default") for each in value.keywords)
        if "unique" in on or ("primary_key" in on and name != "id" and not filled and not numbered):
            out.append(name)
    return out


def is_row(walk: Calls, value: Val) -> bool:
    """Whether an object is a row: by its class, or by the module that its class comes from."""
    if value.tag == "orm.entity":
        return True
    if value.instance is not None:
        return is_model(walk, value.instance.cls)
    return value.base is not None and ".models." in f".{value.base.ref}."


def is_model(walk: Calls, cls: Class) -> bool:
    return any(each in _BASES or each.endswith((".Model", ".Document")) for each in walk.ancestry(cls))


def row_method(walk: Names, row: Val, attr: str) -> Val | None:
    """A method that the model of a row brings: `product.take(3)`."""
    model = row.base.base.cls if row.base is not None and row.base.base is not None else None
    if model is None or attr not in model.methods:
        return None
    function = Function(model.methods[attr], model.module, owner=model, receiver=row)
    return Val(text=walk.text(row.text, ".", attr), base=row, attr=attr, function=function)


def manager_method(walk: Names, rows: Val, attr: str) -> Val | None:
    """A method that a model's own manager or query set brings: `Stock.objects.take(3)`."""
    model = rows.base.cls if rows.base is not None else None
    manager = next((model.attributes[name] for name in MANAGERS if name in model.attributes), None) if model else None
    if model is None or manager is None or manager[0] is None:
        return None
    if attr == "model" and rows.tag == "orm.query":
        return rows.base
    with walk.quietly(), walk.within(Scope(model.module, owner=model)):
        classes = [walk.value(each).cls for each in ast.walk(manager[0]) if isinstance(each, ast.Name)]
    for cls in classes:
        if cls is not None and attr in cls.methods:
            query = rows if rows.tag == "orm.query" else Val(model.name, "orm.query", base=rows.base, attr="objects")
            function = Function(cls.methods[attr], cls.module, owner=cls, receiver=query)
            return Val(text=walk.text(rows.text, ".", attr), base=rows, attr=attr, function=function)
    return None
