"""Rows of an object-relational mapper: reads, inserts and increments of them, and what their tables keep unique."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Unpack

from effectonce_lint.python.values import Effect, Function, OperationTarget, Scope, TracedOperation, Value
from effectonce_lint.word_lists import word_set

from .message_parts import is_stable
from .object_types import is_dedup_name
from .sql_drivers import hold_claim

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker
    from effectonce_lint.python.modules import ClassDefinition
    from effectonce_lint.python.name_resolution import NameResolver

MANAGERS = ("objects", "query")
ROW_LOCK_KEY = "<lock>"
"""The key in the ``fields`` of a query that locks its rows; a column cannot have this name."""
_UNIQUE_CONSTRAINTS = word_set("UniqueConstraint PrimaryKeyConstraint CompositeKey")
_KEY_FIELDS = word_set("id pk uuid")
_MAX_BASE_DEPTH = 4  # deeper than any hierarchy of models, and an end for one that inherits from itself
_MODEL_BASES = word_set(
    "models.Model django.db.models.Model DeclarativeBase Base SQLModel sqlmodel.SQLModel db.Model"
    " tortoise.models.Model tortoise.Model peewee.Model mongoengine.Document beanie.Document"
)


def make_query(model: Value) -> Value:
    """Make a query for rows of ``model``. Later filters are added to its ``fields``."""
    return Value(text=model_name(model), tag="orm.query", base=model)


def model_name(model: Value) -> str:
    """The name of a model, also of one that is not in the project."""
    return model.cls.name if model.cls is not None else model.text.rpartition(".")[2]


def read_row(walk: CallWalker, call: Call, rows: Value) -> Value:
    """Emit a read of one of ``rows``. Testing an attribute of the row later is a check on its state."""
    read = walk.emit("read", call.node, locked=ROW_LOCK_KEY in (rows.fields or {}), **describe(call, rows))
    return Value(text=f"{rows.text}<row>", tag="orm.entity", origin=(read,), base=rows)


def describe(call: Call, rows: Value) -> OperationTarget:
    """The fields of an operation on ``rows``: its text, store, location, key and columns."""
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
    verb: str,
    **more: Unpack[OperationTarget],
) -> TracedOperation:
    """Emit the insert of a row: a claim if its table refuses a second row like it, else an effect.

    ``verb`` is for the message ("creates a"), ``more`` has further fields of the operation.
    """
    models = [cls, *_base_classes(walk, cls)] if cls is not None else []
    declared = {name for base in models for name in base.attributes}
    unique = {name for base in models for name in unique_fields(base)}
    keys = [
        value
        for name, value in fields.items()
        if name in _KEY_FIELDS or name in unique or (is_dedup_name(name) and name not in declared)
    ]
    is_dedup = is_dedup_name(model)
    description: OperationTarget = {
        "text": call.source_text,
        "store": "orm",
        "location": model,
        "dedup": is_dedup,
        "key": next((value for value in (*keys, *fields.values()) if value.taint), None),
        **more,
    }
    unique_sets = [names for base in models for names in unique_together(base)]
    has_unique_set = any(all(name in fields and is_stable(fields[name]) for name in names) for names in unique_sets)
    # a dedup table some of whose columns are not in sight may well keep one of those unique
    is_trusted = is_dedup and not (fields and fields.keys() <= declared)
    if walk.unique_tries or is_trusted or any(map(is_stable, keys)) or has_unique_set:
        return hold_claim(walk, walk.emit("claim", call.node, atomic=True, **description))
    article = "n" if model[:1] in "AEIOUaeiou" else ""
    return walk.emit("effect", call.node, effect=Effect("insert", f"{verb}{article} {model} row"), **description)


def emit_increment(walk: CallWalker, node: ast.AST, row: TracedOperation, attribute: str) -> None:
    """Emit the increment of a row's attribute."""
    walk.emit(
        "effect",
        node,
        text=ast.unparse(node),
        store="orm",
        location=row.location,
        locked=row.locked,
        effect=Effect("increment", f"adds to {row.location}.{attribute}"),
    )


def _base_classes(walk: CallWalker, cls: ClassDefinition, depth: int = _MAX_BASE_DEPTH) -> list[ClassDefinition]:
    """The classes of the project that ``cls`` inherits from, directly or not."""
    bases = [base.cls for base in walk.bases(cls) if base.cls is not None] if depth else []
    return [*bases, *(further for base in bases for further in _base_classes(walk, base, depth - 1))]


def unique_fields(cls: ClassDefinition) -> list[str]:
    """The fields of a model that its table keeps unique, without those that the database fills by itself."""
    names = []
    for name, expressions in cls.attributes.items():
        calls = [
            node
            for expression in expressions
            if expression is not None
            for node in ast.walk(expression)
            if isinstance(node, ast.Call)
        ]
        options = [keyword for call in calls for keyword in call.keywords]
        enabled = {
            option.arg for option in options if isinstance(option.value, ast.Constant) and option.value.value is True
        }
        types = {getattr(call.func, "attr", getattr(call.func, "id", "")) for call in calls}
        has_default = any(option.arg in ("default", "default_factory", "server_default") for option in options)
        is_generated = name == "id" or has_default or any("Auto" in type_name for type_name in types)
        is_primary_key = bool(enabled & {"primary_key", "pk"})
        if "unique" in enabled or "OneToOneField" in types or (is_primary_key and not is_generated):
            names.append(name)
    return names


def unique_together(cls: ClassDefinition) -> list[frozenset[str]]:
    """The sets of fields that a model's table keeps unique: `UniqueConstraint`, Django's `unique_together`."""
    sets = []
    for node in ast.walk(cls.node):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _UNIQUE_CONSTRAINTS:
                fields = [keyword.value for keyword in node.keywords if keyword.arg == "fields"]
                sets.append(_strings_in(*node.args, *fields))
            case ast.Call(func=ast.Name(id="Index") | ast.Attribute(attr="Index")):
                if any(keyword.arg == "unique" for keyword in node.keywords):
                    sets.append(_strings_in(*node.args[1:]))
            case ast.Assign(targets=[ast.Name(id="unique_together")], value=ast.Tuple() | ast.List() as value):
                tuples = [element for element in value.elts if isinstance(element, ast.Tuple | ast.List)]
                sets += [_strings_in(element) for element in tuples or [value]]
            case ast.Tuple(elts=[ast.Tuple() as names, ast.Constant(value=True)]):  # a unique index of peewee
                sets.append(_strings_in(names))
    return [names for names in sets if names]


def _strings_in(*nodes: ast.expr) -> frozenset[str]:
    constants = [child.value for node in nodes for child in ast.walk(node) if isinstance(child, ast.Constant)]
    return frozenset(constant for constant in constants if isinstance(constant, str))


def is_row(walk: CallWalker, value: Value) -> bool:
    """Whether an object is a row: by its class, or by the name of the module that its class is from."""
    if value.tag == "orm.entity":
        return True
    if value.instance is not None:
        return is_model(walk, value.instance.cls)
    return value.base is not None and ".models." in f".{value.base.ref}."


def is_model(walk: CallWalker, cls: ClassDefinition) -> bool:
    """Whether a class is a model of one of the known mappers."""
    return any(
        name in _MODEL_BASES or name.endswith((".Model", ".Document", "db.Entity")) for name in walk.ancestry(cls)
    )


def row_method(walk: NameResolver, row: Value, attr: str) -> Value | None:
    """A method that the model of a row defines: `product.take(3)`."""
    model = row.base.base.cls if row.base is not None and row.base.base is not None else None
    if model is None or attr not in model.methods:
        return None
    function = Function(model.methods[attr], model.module, owner=model, receiver=row)
    return Value(text=walk.text(row.text, ".", attr), base=row, attr=attr, function=function)


def manager_method(walk: NameResolver, rows: Value, attr: str) -> Value | None:
    """A method that a model's own manager or query set defines: `Stock.objects.take(3)`."""
    model = rows.base.cls if rows.base is not None else None
    if model is None:
        return None
    manager, _ = next((model.attributes[name] for name in MANAGERS if name in model.attributes), (None, None))
    if manager is None:
        return None
    if attr == "model" and rows.tag == "orm.query":
        return rows.base
    with walk.mute_trace(), walk.in_scope(Scope(model.module, owner=model)):
        classes = [walk.value(node).cls for node in ast.walk(manager) if isinstance(node, ast.Name)]
    for cls in classes:
        if cls is not None and attr in cls.methods:
            query = rows if rows.tag == "orm.query" else Value(model.name, "orm.query", base=rows.base, attr="objects")
            function = Function(cls.methods[attr], cls.module, owner=cls, receiver=query)
            return Value(text=walk.text(rows.text, ".", attr), base=rows, attr=attr, function=function)
    return None
