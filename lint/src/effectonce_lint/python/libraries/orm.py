"""Object-relational mappers: Django, Tortoise, peewee, and what is done to their objects."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Effect, Operation, Value
from effectonce_lint.word_lists import word_set

from . import django, orm_rows, sqlalchemy
from .object_types import is_dedup_name
from .sql_drivers import column_grows

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_KEEPS = word_set(
    "filter exclude all order_by select_related prefetch_related using only defer distinct values values_list"
    " annotate filter_by where options join outerjoin limit offset execution_options reverse none alias get_queryset"
)
_LOCKS = word_set("select_for_update with_for_update")
_ONE = word_set("get first last latest earliest one one_or_none scalar get_or_none scalar_one scalar_one_or_none")
_WHETHER = word_set("exists count contains")
_ASYNC = _ONE | _WHETHER | word_set("create update get_or_create update_or_create bulk_create delete")
_ON_CLASS = word_set(
    "create get_or_create update_or_create bulk_create update filter exclude get get_or_none select insert insert_many"
    " replace replace_many"
)
"""What Tortoise and peewee have on the model itself."""
_MANAGERS = word_set("objects _default_manager query unscoped")
_RELATED = word_set("create acreate bulk_create abulk_create get_or_create update_or_create")
"""Of the rows that a row leads to: `order.lines.create(…)`."""
_GROWS = ("inc__", "dec__", "push__", "push_all__", "mul__")
"""How mongoengine says that a field is added to."""


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    if call.ref in ("django.db.models.F", "django.db.models.expressions.F"):
        return Value(text=f"F({call.args[0].text if call.args else ''})", tag="django.F")
    if call.ref.startswith("django.db.transaction.") and call.name == "atomic":
        return Value(text="atomic()", tag="tx")
    if call.ref in ("django.shortcuts.get_object_or_404", "django.shortcuts.aget_object_or_404") and call.args:
        return orm_rows.read_row(walk, call, orm_rows.make_query(call.args[0]))
    if call.target.attr == "objects" and call.target.base is not None:  # mongoengine's `Video.objects(slug=slug)`
        return replace(orm_rows.make_query(call.target.base), fields=dict(call.keywords))
    found = sqlalchemy.interpret_call(walk, call)
    if found is not None:
        return found
    wanted = _query_of_manager(call.receiver, call.name) if call.target.function is None else None
    return _interpret_query(walk, call, wanted) if wanted is not None else _interpret_row_method(walk, call)


def _query_of_manager(receiver: Value, name: str) -> Value | None:
    """The query that a chain like `Order.objects.filter(…)` stands for; Django's say so by their ``attr``."""
    if receiver.tag == "orm.query":
        return receiver
    if receiver.attr in _MANAGERS and receiver.base is not None:
        return replace(orm_rows.make_query(receiver.base), attr="" if receiver.attr == "query" else "objects")
    if receiver.text.endswith(("_set", ".objects")) and receiver.base is not None:
        return replace(orm_rows.make_query(receiver), attr="objects")
    related = receiver.base is not None and receiver.base.tag == "orm.entity" and bool(receiver.attr)
    return replace(orm_rows.make_query(receiver), attr="objects") if related and name in _RELATED else None


def _interpret_query(walk: CallWalker, call: Call, wanted: Value) -> Value | None:
    name = call.name[1:] if call.name[:1] == "a" and call.name[1:] in _ASYNC else call.name
    if name in _KEEPS or name in _LOCKS:
        fields = {**(wanted.fields or {}), **call.keywords, **({"<lock>": Value()} if name in _LOCKS else {})}
        return replace(wanted, fields=fields, items=(*wanted.items, *call.args))
    common = orm_rows.describe(call, wanted)
    if wanted.attr == "objects" and not walk.position.transactions:  # Django commits each statement by itself
        common["tx"] = f"auto{walk.number()}"
    if name in _ONE:
        return orm_rows.read_row(walk, call, wanted)
    if name in _WHETHER:
        return Value(text=f"{wanted.text}.{name}()", origin=(walk.emit("read", call.node, **common),))
    if name == "create":
        cls = wanted.base.cls if wanted.base is not None else None
        del common["key"], common["dedup"], common["location"], common["store"], common["text"]
        op = orm_rows.add_row(walk, call, wanted.text, call.keywords, cls, "creates a", **common)
        claim = op.kind == "claim"
        if wanted.attr == "objects":
            django.run_signal_receivers(walk, call, cls, Value(text=wanted.text, tag="orm.new"), created=True)
        return Value(text=wanted.text, tag="orm.entity" if claim else "orm.new", origin=(op,) if claim else ())
    if name == "bulk_create":
        ignore = call.keywords.get("ignore_conflicts") or call.keywords.get("update_conflicts")
        if ignore is not None and ignore.literal is True:
            return Value(origin=(walk.emit("write", call.node, **common),))
        effect = Effect("insert", f"creates {wanted.text} rows")
        return Value(origin=(walk.emit("effect", call.node, effect=effect, **common),))
    if name in ("get_or_create", "update_or_create"):
        op = walk.emit("mark", call.node, atomic=True, ignored_conflict=True, **common)
        row = Value(text=f"{wanted.text}<row>", tag="orm.entity", origin=(op,), base=wanted)
        pair = (row, Value(text="created", origin=(op,)))
        return Value(text=f"{wanted.text}.{name}()", tag="tuple", items=pair, origin=(op,))
    if name in ("update", "update_one", "modify"):
        return _interpret_update(walk, call, wanted, common)
    if name == "delete":
        return Value(origin=(walk.emit("unmark", call.node, atomic=True, **common),))
    return None


def _interpret_update(walk: CallWalker, call: Call, wanted: Value, common: dict[str, object]) -> Value:
    """`filter(status="new").update(status="paid")` compares and sets; `update(n=F("n") + 1)` adds."""
    filters = {name.partition("__")[0] for name in (wanted.fields or {})} | sqlalchemy.compared_columns(wanted.items)
    grows = ""
    for keyword in call.node.keywords:
        if keyword.arg and (call.keywords[keyword.arg].tag == "django.F+" or column_grows(keyword.value, keyword.arg)):
            grows = grows or keyword.arg
        elif keyword.arg and keyword.arg.startswith(_GROWS):
            grows = grows or keyword.arg.partition("__")[2]
    for arg in call.args:
        for name, value in (arg.fields or {}).items():
            column = name.rpartition(".")[2].strip("<>'\"")
            if value.tag == "django.F+" or ("Add" in value.text and column in value.text):
                grows = grows or column
    compares = bool((set(call.keywords) - {grows}) & filters) or (bool(grows) and "version" in filters)
    common["columns"] = tuple(call.keywords)
    if grows and not compares:
        op = walk.emit("effect", call.node, effect=Effect("increment", f"adds to {wanted.text}.{grows}"), **common)
    else:
        op = walk.emit("mark" if compares else "write", call.node, atomic=compares, **common)
    return Value(text=f"{wanted.text}.update()", origin=(op,))


# -- loops over rows


def row_of_query(walk: CallWalker, wanted: Value, node: ast.AST) -> Value:
    """One row of a query that a loop goes through."""
    locked = "<lock>" in (wanted.fields or {})
    op = walk.emit("read", node, text=wanted.text, store="orm", location=wanted.text, locked=locked)
    return Value(text=f"{wanted.text}<row>", tag="orm.entity", origin=(op,), base=wanted)


def conditions_of_filter(wanted: Value, row: Value) -> tuple[Operation, ...]:
    """`filter(sent=False)` around a loop is a look-up: it skips the rows for which that was done."""
    if wanted.tag != "orm.query" or not row.origin:
        return ()
    read = row.origin[0]
    names = {name.partition("__")[0] for name in (wanted.fields or {})} - {"<lock>"}
    return tuple(replace(read, store="entity", location=f"{read.location}.{name}") for name in sorted(names))


# -- objects


def _interpret_row_method(walk: CallWalker, call: Call) -> Value | None:
    receiver, name = call.receiver, call.name
    if (found := django.save_serializer(walk, call)) is not None:
        return found
    if receiver.tag in ("peewee.insert", "peewee.upsert", "peewee.ignore"):
        return _interpret_peewee_insert(walk, call)
    if name in _ON_CLASS and receiver.cls is not None:  # Tortoise, peewee
        if not orm_rows.is_model(walk, receiver.cls) or name in receiver.cls.methods:
            return None
        if name in ("insert", "insert_many", "replace", "replace_many"):
            kind = "peewee.insert" if name.startswith("insert") else "peewee.upsert"
            return Value(text=receiver.cls.name, tag=kind, base=receiver, fields=dict(call.keywords))
        return _interpret_query(walk, call, orm_rows.make_query(receiver))
    if name in ("update", "inc") and (found := _interpret_operator_update(walk, call)) is not None:
        return found
    if name not in ("save", "asave", "insert", "delete", "adelete"):
        return None
    if not orm_rows.is_row(walk, receiver):
        return _interpret_save_after_growth(walk, call)
    cls = receiver.instance.cls if receiver.instance is not None else None
    model = cls.name if cls is not None else receiver.text.partition("<")[0].partition("(")[0]
    if name in ("delete", "adelete"):
        walk.emit("unmark", call.node, text=call.source_text, store="orm", location=model)
    elif receiver.tag != "orm.entity":
        fields = receiver.instance.keywords if receiver.instance is not None else (receiver.fields or {})
        auto = "" if any(each.kind == "block" for each in walk.position.transactions) else f"auto{walk.number()}"
        orm_rows.add_row(walk, call, model, fields, cls, "saves a new", tx=auto)
    if name in ("save", "asave"):
        known = receiver.base.base if receiver.tag == "orm.entity" and receiver.base is not None else None
        django.run_signal_receivers(
            walk, call, known.cls if known is not None else cls, receiver, created=receiver.tag != "orm.entity"
        )
    return Value(literal=None)


def _interpret_operator_update(walk: CallWalker, call: Call) -> Value | None:
    """Beanie's `Video.find_one(…).update(Inc({Video.views: 1}))`."""
    made = [each.base.ref for each in call.args if each.base is not None]
    if not any(each.startswith("beanie.") and each.endswith((".Inc", ".Push", ".Mul")) for each in made):
        return None
    effect = Effect("counter", "adds to a document")
    return Value(origin=(walk.emit("effect", call.node, text=call.source_text, store="mongo", effect=effect),))


def _interpret_save_after_growth(walk: CallWalker, call: Call) -> Value | None:
    """`wallet.balance += amount` and `wallet.save()`, whatever kind of object that is: it is kept somewhere."""
    grown = walk.incremented_objects.pop(call.receiver.text, None)
    if grown is None or call.target.function is not None:
        return None
    effect = Effect("increment", f"adds to {ast.unparse(grown.target)}")
    walk.emit("effect", grown, text=ast.unparse(grown), store="orm", location=call.receiver.text, effect=effect)
    return Value(literal=None)


def _interpret_peewee_insert(walk: CallWalker, call: Call) -> Value | None:
    """peewee's `Entry.insert(…).on_conflict_ignore().execute()`."""
    receiver = call.receiver
    if call.name.startswith("on_conflict"):
        action = call.argument(0, "action")
        ignores = call.name == "on_conflict_ignore" or (action is not None and action.string in ("ignore", "IGNORE"))
        return replace(receiver, tag="peewee.ignore" if ignores else "peewee.upsert")
    if call.name != "execute":
        return receiver
    if receiver.tag == "peewee.ignore":
        key = next((each for each in (receiver.fields or {}).values() if each.taint), None)
        common = {"store": "orm", "location": receiver.text, "key": key, "dedup": is_dedup_name(receiver.text)}
        op = walk.emit("mark", call.node, text=call.source_text, atomic=True, ignored_conflict=True, **common)
        return Value(text=f"{receiver.text}.execute()", origin=(op,))
    if receiver.tag == "peewee.upsert":
        op = walk.emit("write", call.node, text=call.source_text, store="orm", location=receiver.text)
        return Value(text=f"{receiver.text}.execute()", origin=(op,))
    cls = receiver.base.cls if receiver.base is not None else None
    orm_rows.add_row(walk, call, receiver.text, receiver.fields or {}, cls, "inserts a")
    return Value(literal=None)


def set_attribute(walk: CallWalker, target: ast.Attribute, base: Value, value: Value) -> None:
    """`order.status = "paid"`: the state that a check may have looked at; `account.balance = account.balance + 5`."""
    if target.attr == "autocommit":
        base.fields = {**(base.fields or {}), "autocommit": value}
    row = next((op for op in base.origin if op.store == "orm"), None)
    if base.tag != "orm.entity" or row is None:
        return
    old = f"{base.text}.{target.attr}"
    if value.tag == "django.F+" or f"{old}Add" in value.text or f"{old}Sub" in value.text:
        orm_rows.emit_increment(walk, target, row, target.attr)
    else:
        location = f"{row.location}.{target.attr}"
        walk.emit("mark", target, text=ast.unparse(target), store="entity", location=location, locked=row.locked)


def augment_attribute(walk: CallWalker, node: ast.AugAssign, base: Value) -> None:
    """`account.balance -= amount` on a row that was read, or on one that it leads to: `order.seller.balance`."""
    row = next((op for op in base.origin if op.store in ("orm", "entity")), None)
    if row is None and base.base is not None and base.base.cls is not None and orm_rows.is_model(walk, base.base.cls):
        effect = Effect("increment", f"adds to {base.base.cls.name}.{getattr(node.target, 'attr', '')}")  # of pony
        walk.emit("effect", node, text=ast.unparse(node), store="orm", location=base.base.cls.name, effect=effect)
        return
    related = base.base is not None and base.base.tag == "orm.entity" and not base.is_known()
    if not isinstance(node.target, ast.Attribute):
        return
    if (base.tag == "orm.entity" or related) and row is not None:
        orm_rows.emit_increment(walk, node, row, node.target.attr)
    elif not base.is_known():
        walk.incremented_objects[base.text] = node
