"""Object-relational mappers (Django, Tortoise, peewee, …): their queries, and changes to their rows."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Effect, OperationTarget, TracedOperation, Value
from effectonce_lint.word_lists import word_set

from . import django, orm_rows, sqlalchemy
from .object_types import is_dedup_name
from .orm_rows import ROW_LOCK_KEY
from .sql_drivers import column_grows

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_QUERY_BUILDERS = word_set(
    "filter exclude all order_by select_related prefetch_related using only defer distinct values values_list"
    " annotate filter_by where options join outerjoin limit offset execution_options reverse none alias get_queryset"
)
_LOCKING_BUILDERS = word_set("select_for_update with_for_update")
_SINGLE_ROW_READS = word_set(
    "get first last latest earliest one one_or_none scalar get_or_none scalar_one scalar_one_or_none"
)
_COUNTING_READS = word_set("exists count contains")
_NAMES_WITH_ASYNC_TWIN = (
    _SINGLE_ROW_READS | _COUNTING_READS | word_set("create update get_or_create update_or_create bulk_create delete")
)
_MODEL_METHODS = word_set(
    "create get_or_create update_or_create bulk_create update filter exclude get get_or_none select insert insert_many"
    " replace replace_many"
)
"""Methods that Tortoise and peewee have on the model itself."""
_MANAGER_NAMES = word_set("objects _default_manager query unscoped")
_RELATED_WRITES = word_set("create acreate bulk_create abulk_create get_or_create update_or_create")
"""Methods of a row's related rows: `order.lines.create(…)`."""
_GROWING_OPERATORS = ("inc__", "dec__", "push__", "push_all__", "mul__")
"""How the arguments of mongoengine begin that add to a field."""


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call of a mapper, or of a method of its queries and rows; None where it is neither."""
    if call.ref in ("django.db.models.F", "django.db.models.expressions.F"):
        return Value(text=f"F({call.args[0].text if call.args else ''})", tag="django.F")
    if call.ref.startswith("django.db.transaction.") and call.name == "atomic":
        return Value(text="atomic()", tag="tx")
    if call.ref in ("django.shortcuts.get_object_or_404", "django.shortcuts.aget_object_or_404") and call.args:
        return orm_rows.read_row(walk, call, orm_rows.make_query(call.args[0]))
    if call.target.attr == "objects" and call.target.base is not None:  # mongoengine's `Video.objects(slug=slug)`
        return replace(orm_rows.make_query(call.target.base), fields=dict(call.keywords))
    value = sqlalchemy.interpret_call(walk, call)
    if value is not None:
        return value
    query = _query_of_manager(call.receiver, call.name) if call.target.function is None else None
    return _interpret_query(walk, call, query) if query is not None else _interpret_row_method(walk, call)


def _query_of_manager(receiver: Value, name: str) -> Value | None:
    """The query that ``receiver`` begins: `Order.objects`. The ``attr`` of Django's queries is "objects"."""
    if receiver.tag == "orm.query":
        return receiver
    if receiver.attr in _MANAGER_NAMES and receiver.base is not None:
        return replace(orm_rows.make_query(receiver.base), attr="" if receiver.attr == "query" else "objects")
    if receiver.text.endswith(("_set", ".objects")) and receiver.base is not None:
        return replace(orm_rows.make_query(receiver), attr="objects")
    is_related = receiver.base is not None and receiver.base.tag == "orm.entity" and bool(receiver.attr)
    return replace(orm_rows.make_query(receiver), attr="objects") if is_related and name in _RELATED_WRITES else None


def _interpret_query(walk: CallWalker, call: Call, query: Value) -> Value | None:
    """Interpret a method of a query: it refines the query, or reads or changes its rows."""
    name = call.name[1:] if call.name[:1] == "a" and call.name[1:] in _NAMES_WITH_ASYNC_TWIN else call.name
    if name in _QUERY_BUILDERS or name in _LOCKING_BUILDERS:
        lock = {ROW_LOCK_KEY: Value()} if name in _LOCKING_BUILDERS else {}
        fields = {**(query.fields or {}), **call.keywords, **lock}
        return replace(query, fields=fields, items=(*query.items, *call.args))
    description = orm_rows.describe(call, query)
    if query.attr == "objects" and not walk.position.transactions:  # Django commits each statement by itself
        description["tx"] = f"auto{walk.number()}"
    if name in _SINGLE_ROW_READS:
        return orm_rows.read_row(walk, call, query)
    if name in _COUNTING_READS:
        return Value(text=f"{query.text}.{name}()", origin=(walk.emit("read", call.node, **description),))
    if name == "create":
        cls = query.base.cls if query.base is not None else None
        columns, tx = tuple(call.keywords), description.get("tx", "")
        op = orm_rows.add_row(walk, call, query.text, call.keywords, cls, "creates a", columns=columns, tx=tx)
        if query.attr == "objects":
            django.run_signal_receivers(walk, call, cls, Value(text=query.text, tag="orm.new"), created=True)
        if op.kind == "claim":
            return Value(text=query.text, tag="orm.entity", origin=(op,))
        return Value(text=query.text, tag="orm.new")
    if name == "bulk_create":
        ignores_conflicts = call.keywords.get("ignore_conflicts") or call.keywords.get("update_conflicts")
        if ignores_conflicts is not None and ignores_conflicts.literal is True:
            return Value(origin=(walk.emit("write", call.node, **description),))
        effect = Effect("insert", f"creates {query.text} rows")
        return Value(origin=(walk.emit("effect", call.node, effect=effect, **description),))
    if name in ("get_or_create", "update_or_create"):
        op = walk.emit("mark", call.node, atomic=True, ignored_conflict=True, **description)
        row = Value(text=f"{query.text}<row>", tag="orm.entity", origin=(op,), base=query)
        pair = (row, Value(text="created", origin=(op,)))
        return Value(text=f"{query.text}.{name}()", tag="tuple", items=pair, origin=(op,))
    if name in ("update", "update_one", "modify"):
        return _interpret_update(walk, call, query, description)
    if name == "delete":
        return Value(origin=(walk.emit("unmark", call.node, atomic=True, **description),))
    return None


def _interpret_update(walk: CallWalker, call: Call, query: Value, description: OperationTarget) -> Value:
    """`filter(status="new").update(status="paid")` compares and sets; `update(n=F("n") + 1)` adds."""
    filtered_columns = {name.partition("__")[0] for name in (query.fields or {})} | sqlalchemy.compared_columns(
        query.items
    )
    growing_column = ""
    for keyword in call.node.keywords:
        if keyword.arg and (call.keywords[keyword.arg].tag == "django.F+" or column_grows(keyword.value, keyword.arg)):
            growing_column = growing_column or keyword.arg
        elif keyword.arg and keyword.arg.startswith(_GROWING_OPERATORS):
            growing_column = growing_column or keyword.arg.partition("__")[2]
    for arg in call.args:
        for name, value in (arg.fields or {}).items():
            column = name.rpartition(".")[2].strip("<>'\"")
            if value.tag == "django.F+" or ("Add" in value.text and column in value.text):
                growing_column = growing_column or column
    sets_filtered_column = bool((set(call.keywords) - {growing_column}) & filtered_columns)
    is_compare_and_set = sets_filtered_column or (bool(growing_column) and "version" in filtered_columns)
    description["columns"] = tuple(call.keywords)
    if growing_column and not is_compare_and_set:
        op = walk.emit(
            "effect", call.node, effect=Effect("increment", f"adds to {query.text}.{growing_column}"), **description
        )
    else:
        op = walk.emit("mark" if is_compare_and_set else "write", call.node, atomic=is_compare_and_set, **description)
    return Value(text=f"{query.text}.update()", origin=(op,))


# -- loops over rows


def row_of_query(walk: CallWalker, query: Value, node: ast.AST) -> Value:
    """Emit the read of a loop over a query, and give one of its rows."""
    locked = ROW_LOCK_KEY in (query.fields or {})
    op = walk.emit("read", node, text=query.text, store="orm", location=query.text, locked=locked)
    return Value(text=f"{query.text}<row>", tag="orm.entity", origin=(op,), base=query)


def conditions_of_filter(query: Value, row: Value) -> tuple[TracedOperation, ...]:
    """The checks that a loop over `filter(sent=False)` makes: it skips the rows for which the work was done."""
    if query.tag != "orm.query" or not row.origin:
        return ()
    read = row.origin[0]
    names = {name.partition("__")[0] for name in (query.fields or {})} - {ROW_LOCK_KEY}
    return tuple(replace(read, store="entity", location=f"{read.location}.{name}") for name in sorted(names))


# -- rows


def _interpret_row_method(walk: CallWalker, call: Call) -> Value | None:
    receiver, name = call.receiver, call.name
    if (saved := django.save_serializer(walk, call)) is not None:
        return saved
    if receiver.tag in ("peewee.insert", "peewee.upsert", "peewee.ignore"):
        return _interpret_peewee_insert(walk, call)
    if name in _MODEL_METHODS and receiver.cls is not None:  # Tortoise, peewee
        if not orm_rows.is_model(walk, receiver.cls) or name in receiver.cls.methods:
            return None
        if name in ("insert", "insert_many", "replace", "replace_many"):
            kind = "peewee.insert" if name.startswith("insert") else "peewee.upsert"
            return Value(text=receiver.cls.name, tag=kind, base=receiver, fields=dict(call.keywords))
        return _interpret_query(walk, call, orm_rows.make_query(receiver))
    if name in ("update", "inc") and (updated := _interpret_operator_update(walk, call)) is not None:
        return updated
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
        in_block = any(transaction.kind == "block" for transaction in walk.position.transactions)
        orm_rows.add_row(walk, call, model, fields, cls, "saves a new", tx="" if in_block else f"auto{walk.number()}")
    if name in ("save", "asave"):
        is_new = receiver.tag != "orm.entity"
        row_model = receiver.base.base if not is_new and receiver.base is not None else None
        django.run_signal_receivers(
            walk, call, row_model.cls if row_model is not None else cls, receiver, created=is_new
        )
    return Value(literal=None)


def _interpret_operator_update(walk: CallWalker, call: Call) -> Value | None:
    """Beanie's `Video.find_one(…).update(Inc({Video.views: 1}))`."""
    operators = [operator.base.ref for operator in call.args if operator.base is not None]
    if not any(
        operator.startswith("beanie.") and operator.endswith((".Inc", ".Push", ".Mul")) for operator in operators
    ):
        return None
    effect = Effect("counter", "adds to a document")
    return Value(origin=(walk.emit("effect", call.node, text=call.source_text, store="mongo", effect=effect),))


def _interpret_save_after_growth(walk: CallWalker, call: Call) -> Value | None:
    """`wallet.balance += amount` and `wallet.save()` on an object of an unknown kind: it is stored somewhere."""
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
        key = next((value for value in (receiver.fields or {}).values() if value.taint), None)
        op = walk.emit(
            "mark",
            call.node,
            text=call.source_text,
            store="orm",
            location=receiver.text,
            key=key,
            dedup=is_dedup_name(receiver.text),
            atomic=True,
            ignored_conflict=True,
        )
        return Value(text=f"{receiver.text}.execute()", origin=(op,))
    if receiver.tag == "peewee.upsert":
        op = walk.emit("write", call.node, text=call.source_text, store="orm", location=receiver.text)
        return Value(text=f"{receiver.text}.execute()", origin=(op,))
    cls = receiver.base.cls if receiver.base is not None else None
    orm_rows.add_row(walk, call, receiver.text, receiver.fields or {}, cls, "inserts a")
    return Value(literal=None)


def set_attribute(walk: CallWalker, target: ast.Attribute, base: Value, value: Value) -> None:
    """`order.status = "paid"` marks a state that a check may look at; `account.balance = account.balance + 5` adds."""
    if target.attr == "autocommit":
        base.fields = {**(base.fields or {}), "autocommit": value}
    row = next((op for op in base.origin if op.store == "orm"), None)
    if base.tag != "orm.entity" or row is None:
        return
    old_text = f"{base.text}.{target.attr}"
    if value.tag == "django.F+" or f"{old_text}Add" in value.text or f"{old_text}Sub" in value.text:
        orm_rows.emit_increment(walk, target, row, target.attr)
    else:
        location = f"{row.location}.{target.attr}"
        walk.emit("mark", target, text=ast.unparse(target), store="entity", location=location, locked=row.locked)


def augment_attribute(walk: CallWalker, node: ast.AugAssign, base: Value) -> None:
    """`account.balance -= amount` on a row that was read, or on one that it leads to: `order.seller.balance`."""
    row = next((op for op in base.origin if op.store in ("orm", "entity")), None)
    if row is None and base.base is not None and base.base.cls is not None and orm_rows.is_model(walk, base.base.cls):
        effect = Effect("increment", f"adds to {base.base.cls.name}.{getattr(node.target, 'attr', '')}")  # pony
        walk.emit("effect", node, text=ast.unparse(node), store="orm", location=base.base.cls.name, effect=effect)
        return
    is_related = base.base is not None and base.base.tag == "orm.entity" and not base.is_known()
    if not isinstance(node.target, ast.Attribute):
        return
    if (base.tag == "orm.entity" or is_related) and row is not None:
        orm_rows.emit_increment(walk, node, row, node.target.attr)
    elif not base.is_known():
        walk.incremented_objects[base.text] = node
