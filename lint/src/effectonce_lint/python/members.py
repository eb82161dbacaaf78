"""Resolves attributes and items of the project's modules, objects and classes, and of objects of libraries."""

from __future__ import annotations

import ast
from abc import abstractmethod
from dataclasses import replace

from .handler_tables import implementations_of, registered_handlers
from .libraries import orm_rows
from .libraries.message_parts import mark_message_part
from .libraries.object_types import ATTRIBUTES, FLUENT_METHOD
from .modules import ClassDefinition
from .name_resolution import NameResolver
from .values import Function, Instance, Scope, TracedOperation, Value
from .walk_state import origins_of


class MemberResolver(NameResolver):
    """Finds out what `base.name` and `base[index]` mean."""

    def item(self, base: Value, index: Value) -> Value:
        """The value of `base[index]`."""
        text = self.text(base.text, "[", index.text, "]")
        is_empty_table = base.home is not None and not base.fields and not base.items
        if is_empty_table and (handlers := registered_handlers(self, base)):
            return Value(text=text, items=handlers, tag="one of")
        if base.fields is not None:
            if isinstance(index.literal, str) and index.literal in base.fields:
                return base.fields[index.literal]
            handlers = tuple(field for field in base.fields.values() if field.function or field.cls or field.instance)
            if handlers and not isinstance(index.literal, str):
                return Value(text=text, items=handlers, tag="one of")
        if base.items and isinstance(index.literal, int) and -len(base.items) <= index.literal < len(base.items):
            return base.items[index.literal]
        value = Value(
            text=text,
            base=base,
            taint=base.taint,  # without the index's: `prices[message.id]` is not a part of the message
            origin=origins_of(base, index),
            attr=index.literal if isinstance(index.literal, str) else "",
        )
        if base.tag in ("mongo.client", "mongo.db"):
            value.tag = "mongo.db" if base.tag == "mongo.client" else "mongo.collection"
        elif base.tag in ("orm.entity", "orm.query"):
            value.tag = "orm.entity"
        elif base.tag == "django.connections":
            value.tag = "sql.conn"
        if base.taint or base.tag:
            mark_message_part(value, base, value.attr)
        return value

    def attribute(self, base: Value, attr: str) -> Value:
        """The value of `base.attr`."""
        text = self.text(base.text, ".", attr)
        if base.module is not None:
            if attr in base.module.bindings:
                return self.global_value(base.module, attr)
            return self.value_of_module(base.module, f"{base.ref}.{attr}") if base.ref else Value(text=text)
        if base.tag == "one of":
            items = tuple(self.attribute(item, attr) for item in base.items)
            return Value(
                text=text, tag="one of", items=items, base=base, attr=attr, taint=base.taint, origin=base.origin
            )
        if base.instance is not None and (member := self.member(base, base.instance.cls, attr)):
            return member
        if base.cls is not None and attr not in orm_rows.MANAGERS and (member := self._class_member(base, attr)):
            return member
        if base.tag == "orm.entity" and (method := orm_rows.row_method(self, base, attr)):
            return method
        has_rows = base.tag == "orm.query" or base.attr in orm_rows.MANAGERS
        if has_rows and (method := orm_rows.manager_method(self, base, attr)):
            return method
        if base.ref and not base.tag:
            submodule = self.value_of_module(self.module, f"{base.ref}.{attr}")
            if submodule.module is not None:
                return submodule
            return Value(text=text, ref=f"{base.ref}.{attr}", base=base, attr=attr, taint=base.taint)
        if base.fields is not None and attr in base.fields:
            return base.fields[attr]
        value = Value(
            text=text,
            base=base,
            attr=attr,
            tag=ATTRIBUTES.get((base.tag, attr), ""),
            taint=base.taint,
            origin=base.origin,
        )
        if base.tag and FLUENT_METHOD.fullmatch(attr):
            value.tag = base.tag
        elif base.tag in ("mongo.client", "mongo.db") and not value.tag:
            value.tag = "mongo.db" if base.tag == "mongo.client" else "mongo.collection"
        if base.taint:
            mark_message_part(value, base, attr)
        if base.tag == "orm.entity" and (check := _row_state_check(base, attr)):
            value.origin = (check,)
        elif attr == "rowcount" and not value.origin and (statement := self.cursors.get(base.text)):
            value.origin = (statement,)
        return value

    def member(self, base: Value, cls: ClassDefinition, attr: str) -> Value | None:
        """An attribute of an object of a class of the project: a method, or what was assigned to ``self.attr``."""
        assert base.instance is not None
        attributes = base.instance.attributes
        if attr in attributes:
            return attributes[attr]
        # what the attribute is while it is evaluated: so one that is defined by itself ends
        attributes[attr] = Value(text=self.text(base.text, ".", attr), base=base, attr=attr)
        member = None
        try:
            members = (self._member_of_class(base, ancestor, attr) for ancestor in self.lineage(cls))
            member = next((value for value in members if value is not None), None)
        finally:
            if member is None:
                del attributes[attr]
            else:
                attributes[attr] = member
        return member

    def _member_of_class(self, base: Value, cls: ClassDefinition, attr: str) -> Value | None:
        """What ``cls``, the class of ``base`` or one that it derives from, makes of an attribute. Implementations of an
        abstract method come first, then methods, assignments to ``self``, and attributes of the class."""
        assert base.instance is not None
        text = self.text(base.text, ".", attr)
        is_abstract = attr in cls.abstract_methods and cls is base.instance.cls
        if is_abstract and (implementations := implementations_of(self, cls, attr)):
            return Value(text=text, items=implementations, tag="one of")
        if attr in cls.methods:
            return self._method(base, cls, attr, text)
        for node, annotation, method in cls.self_assignments.get(attr, ()):
            is_init = method.name == "__init__"
            args, keywords = (base.instance.arguments, base.instance.keywords) if is_init else ((), {})
            with self.mute_trace(), self.in_scope(Scope(cls.module, owner=cls)):
                self.parameters(Function(method, cls.module, owner=cls, receiver=base), args, keywords)
                value = self._value_or_type(node, annotation)
            if value is not None and value.literal is not None:
                owner = value.base if value.base is not None and not value.tag else base
                return replace(value, text=text, base=owner, attr=attr)
        if attr in cls.attributes and (value := self._dataclass_field(base.instance, cls, attr)) is not None:
            return replace(value, text=text, base=base, attr=attr)
        return None

    def _method(self, base: Value, cls: ClassDefinition, attr: str, text: str) -> Value:
        """A method bound to ``base``; of a property, the value."""
        node = cls.methods[attr]
        function = Function(node, cls.module, owner=cls, receiver=base)
        if any(_is_named(decorator, "property", "cached_property") for decorator in node.decorator_list):
            with self.mute_trace():
                return replace(self.invoke(function, (), {}, node), text=text)
        return Value(text=text, base=base, attr=attr, function=function)

    def _dataclass_field(self, instance: Instance, cls: ClassDefinition, attr: str) -> Value | None:
        """What an attribute of the class is in an object: the argument of a generated ``__init__``, or the default."""
        argument = instance.keywords.get(attr)
        position = list(cls.attributes).index(attr)
        if argument is None and position < len(instance.arguments) and "__init__" not in cls.methods:
            argument = instance.arguments[position]
        if argument is not None and argument.is_known():
            return argument
        with self.mute_trace(), self.in_scope(Scope(cls.module, owner=cls)):
            return self._value_or_type(*cls.attributes[attr])

    def _value_or_type(self, node: ast.expr | None, annotation: ast.expr | None) -> Value | None:
        """The value of ``node``; if nothing is known of it, one of the type that ``annotation`` names."""
        value = self.value(_default_factory_call(node)) if node is not None else None
        if (value is None or not value.is_known()) and annotation is not None:
            typed = self.value_of_annotation(annotation)
            if typed.is_known():
                return typed
        return value

    def _class_member(self, base: Value, attr: str) -> Value | None:
        """An attribute of a class: a method that is not bound, or a value."""
        assert base.cls is not None
        if attr in base.cls.methods:
            return Value(
                text=self.text(base.text, ".", attr),
                function=Function(base.cls.methods[attr], base.cls.module, owner=base.cls),
            )
        node, _ = base.cls.attributes.get(attr, (None, None))
        if node is not None:
            with self.mute_trace(), self.in_scope(Scope(base.cls.module, owner=base.cls)):
                value = self.value(node)
            if value.is_known():
                return replace(value, text=self.text(base.text, ".", attr), base=base, attr=attr)
        return None

    # -- in the other parts of the walk

    @abstractmethod
    def parameters(self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value]) -> None: ...


def _row_state_check(base: Value, attr: str) -> TracedOperation | None:
    """The check that it is to test an attribute of a row that was read: a look-up of that row's state."""
    reads = [op for op in base.origin if op.kind == "read" and op.store in ("orm", "entity")]
    if not reads:
        return None
    row = reads[0]
    return TracedOperation(
        "read",
        row.at,
        text=f"{base.text}.{attr}",
        store="entity",
        location=f"{row.location}.{attr}",
        locked=row.locked,
        node=row.node,
        module=row.module,
        seq=row.seq,
        tx=row.tx,
        dedup=row.dedup,
    )


def _default_factory_call(node: ast.expr) -> ast.expr:
    """Of a dataclass's `field(default_factory=new_key)`: the call that makes the default."""
    if isinstance(node, ast.Call) and _is_named(node.func, "field", "Field", "ib"):
        for keyword in node.keywords:
            if keyword.arg in ("default_factory", "factory"):
                return ast.copy_location(ast.Call(func=keyword.value, args=[], keywords=[]), node)
    return node


def _is_named(node: ast.expr, *names: str) -> bool:
    """Whether the last part of a dotted name is one of ``names``."""
    last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return last in names
