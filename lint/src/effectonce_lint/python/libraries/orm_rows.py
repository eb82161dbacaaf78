"""Rows of an object-relational mapper: read, checked, added, counted up."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Effect, Function, Operation, Scope, Value
from effectonce_lint.word_lists import word_set

from .object_types import is_dedup_name
from .sql_drivers import hold_claim

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker
    from effectonce_lint.python.modules import ClassDefinition
    from effectonce_lint.python.name_resolution import NameResolver

MANAGERS = ("objects", "query")
_TOGETHER = word_set("UniqueConstraint PrimaryKeyConstraint CompositeKey")
_OWN_KEYS = word_set("id pk uuid")
_BASES = word_set(
    "models.Model django.db.models.Model DeclarativeBase Base SQLModel sqlmodel.SQLModel db.Model"
    " tortoise.models.Model tortoise.Model peewee.Model mongoengine.Document beanie.Document"
)


def make_query(model: Value) -> Value:
    """A query for rows of ``model``; its ``fields`` become what it is filtered by."""
    return Value(text=model_name(model), tag="orm.query", base=model)


def model_name(model: Value) -> str:
    return model.cls.name if model.cls is not None else model.text.rpartition(".")[2]


def emit_read(walk: CallWalker, call: Call, rows: Value, **more: object) -> Operation:
    return walk.emit("read", call.node, locked="<lock>" in (rows.fields or {}), **{**describe(call, rows), **more})


def read_row(walk: CallWalker, call: Call, rows: Value, **more: object) -> Value:
    """A row that was read: testing its attributes later is a check on its state."""
    return Value(text=f"{rows.text}<row>", tag="orm.entity", origin=(emit_read(walk, call, rows, **more),), base=rows)


def describe(call: Call, rows: Value) -> dict[str, object]:
    """What an operation on ``rows`` is known by."""
    fields = {**(rows.fields or {}), **call.keywords}
    return {
        "text": call.source_text,
        "store": "orm",
        "location": rows.text,
        "key": next((value for value in fields.values() if value.taint), None),
        "dedup": is_dedup_name(rows.text),
        "columns": tuple(fields),
    }


def add_row(
    walk: CallWalker,
    call: Call,
    model: str,
    fields: dict[str, Value],
    cls: ClassDefinition | None,
    what: str,
    **more: object,
) -> Operation:
    """A new row: a claim where its table refuses a second one like it, an effect where it does not."""
    models = [cls, *_ancestors(walk, cls)] if cls is not None else []
    declared = {name for each in models for name in each.attributes}
    unique = [name for each in models for name in unique_fields(each)]
    own = [
        value
        for name, value in fields.items()
        if name in _OWN_KEYS or name in unique or (is_dedup_name(name) and name not in declared)
    ]
    key = next((each for each in (*own, *fields.values()) if each.taint), None)
    common = {
        "text": call.source_text,
        "store": "orm",
        "location": model,
        "dedup": is_dedup_name(model),
        "key": key,
        **more,
    }
    together = [names for each in models for names in unique_together(each)]
    kept_apart = any(all(name in fields and is_stable(fields[name]) for name in names) for names in together)
    trusted = common["dedup"] and not (fields and fields.keys() <= declared)  # what it keeps unique is out of sight
    if walk.unique_tries or trusted or any(map(is_stable, own)) or kept_apart:
        return hold_claim(walk, walk.emit("claim", call.node, atomic=True, **common))
    return walk.emit("effect", call.node, effect=Effect("insert", f"{what} {model} row"), **common)


def emit_increment(walk: CallWalker, node: ast.AST, row: Operation, attribute: str) -> None:
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


def is_stable(value: Value) -> bool:
    """Whether a value comes with the message, and is the same for each delivery of it."""
    return bool(value.taint) and not is_unstable(value)


def is_unstable(value: Value) -> bool:
    """Whether a value is another one for each delivery."""
    return any(each.startswith("unstable:") for each in value.taint)


def _ancestors(walk: CallWalker, cls: ClassDefinition, depth: int = 4) -> list[ClassDefinition]:
    found = [base.cls for base in walk.bases(cls) if base.cls is not None] if depth else []
    return [*found, *(each for one in found for each in _ancestors(walk, one, depth - 1))]


def unique_fields(cls: ClassDefinition) -> list[str]:
    """Fields of a model that its table keeps unique, and that the table does not number by itself."""
    out = []
    for name, parts in cls.attributes.items():
        calls = [each for part in parts if part is not None for each in ast.walk(part) if isinstance(each, ast.Call)]
        given = [each for call in calls for each in call.keywords]
        on = {each.arg for each in given if isinstance(each.value, ast.Constant) and each.value.value is True}
        kinds = {getattr(call.func, "attr", getattr(call.func, "id", "")) for call in calls}
        numbered = any("Auto" in kind for kind in kinds)
        filled = any(each.arg in ("default", "default_factory", "server_default") for each in given)
        primary = on & {"primary_key", "pk"} and name != "id" and not filled and not numbered
        if "unique" in on or "OneToOneField" in kinds or primary:
            out.append(name)
    return out


def unique_together(cls: ClassDefinition) -> list[frozenset[str]]:
    """Sets of fields that a model's table keeps unique: `UniqueConstraint`, Django's `unique_together`."""
    out = []
    for node in ast.walk(cls.node):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _TOGETHER:
                named = [each.value for each in node.keywords if each.arg == "fields"]
                out.append(_strings_in(*node.args, *named))
            case ast.Call(func=ast.Name(id="Index") | ast.Attribute(attr="Index")):
                if any(each.arg == "unique" for each in node.keywords):
                    out.append(_strings_in(*node.args[1:]))
            case ast.Assign(targets=[ast.Name(id="unique_together")], value=ast.Tuple() | ast.List() as sets):
                inner = [each for each in sets.elts if isinstance(each, ast.Tuple | ast.List)]
                out += [_strings_in(each) for each in inner or [sets]]
            case ast.Tuple(elts=[ast.Tuple() as names, ast.Constant(value=True)]):  # an index of peewee's
                out.append(_strings_in(names))
    return [names for names in out if names]


def _strings_in(*nodes: ast.expr) -> frozenset[str]:
    found = [each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return frozenset(each.value for each in found if isinstance(each.value, str))


def is_row(walk: CallWalker, value: Value) -> bool:
    """Whether an object is a row: by its class, or by the module that its class comes from."""
    if value.tag == "orm.entity":
        return True
    if value.instance is not None:
        return is_model(walk, value.instance.cls)
    return value.base is not None and ".models." in f".{value.base.ref}."


def is_model(walk: CallWalker, cls: ClassDefinition) -> bool:
    return any(each in _BASES or each.endswith((".Model", ".Document", "db.Entity")) for each in walk.ancestry(cls))


def row_method(walk: NameResolver, row: Value, attr: str) -> Value | None:
    """A method that the model of a row brings: `product.take(3)`."""
    model = row.base.base.cls if row.base is not None and row.base.base is not None else None
    if model is None or attr not in model.methods:
        return None
    function = Function(model.methods[attr], model.module, owner=model, receiver=row)
    return Value(text=walk.text(row.text, ".", attr), base=row, attr=attr, function=function)


def manager_method(walk: NameResolver, rows: Value, attr: str) -> Value | None:
    """A method that a model's own manager or query set brings: `Stock.objects.take(3)`."""
    model = rows.base.cls if rows.base is not None else None
    manager = next((model.attributes[name] for name in MANAGERS if name in model.attributes), None) if model else None
    if model is None or manager is None or manager[0] is None:
        return None
    if attr == "model" and rows.tag == "orm.query":
        return rows.base
    with walk.quietly(), walk.in_scope(Scope(model.module, owner=model)):
        classes = [walk.value(each).cls for each in ast.walk(manager[0]) if isinstance(each, ast.Name)]
    for cls in classes:
        if cls is not None and attr in cls.methods:
            query = rows if rows.tag == "orm.query" else Value(model.name, "orm.query", base=rows.base, attr="objects")
            function = Function(cls.methods[attr], cls.module, owner=cls, receiver=query)
            return Value(text=walk.text(rows.text, ".", attr), base=rows, attr=attr, function=function)
    return None
