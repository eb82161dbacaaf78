"""Resolves names: in this module, in other modules, on objects, by annotation."""

from __future__ import annotations

import ast
from abc import abstractmethod
from dataclasses import replace

from .handler_tables import implementations_of, registered_handlers
from .libraries import orm_rows
from .libraries.message_parts import MESSAGE, PAYLOAD, mark_message_part
from .libraries.object_types import ATTRIBUTES, FLUENT, tag_of
from .libraries.record_services import SERVICES
from .modules import Binding, ClassDefinition, Module
from .values import NOTHING, Function, Instance, Operation, Scope, Value
from .walk_state import BUILTINS, WalkState, origins_of, taints_of

_WRAPPERS = (
    "Optional",
    "Annotated",
    "Union",
    "Final",
    "ClassVar",
    "Awaitable",
    "Generator",
    "AsyncGenerator",
    "Iterator",
    "AsyncIterator",
    "FromDishka",
    "FromComponent",
    "Injected",
    "Inject",
)


class NameResolver(WalkState):
    """Finds out what a name, an attribute or an annotation means."""

    # -- names

    def name(self, name: str) -> Value:
        found = self.scope.find(name)
        if found is not None:
            return found
        module = self.scope.module
        if name in module.bindings:
            return self.global_value(module, name)
        if name in BUILTINS:
            return Value(text=name, ref=f"builtins.{name}")
        return self._value_of_star_import(module, name) if "*" in module.bindings else Value(text=name)

    def _value_of_star_import(self, module: Module, name: str) -> Value:
        """A name that `from … import *` may bring, where the project's own file has it."""
        for binding in module.bindings["*"]:
            for path in self.project.sources(module, replace(binding, name="")):
                source = self.project.load(path)
                if source is not None and name in source.bindings:
                    return self.global_value(source, name)
        return Value(text=name)

    def global_value(self, module: Module, name: str) -> Value:
        """What a name of a module stands for, found out when it is first asked for."""
        known = module.values.get(name)
        if known is not None:
            return known
        module.values[name] = Value(text=name)  # for those that are defined by way of themselves
        with self.quietly(), self.in_scope(Scope(module)):
            values = []
            for binding in module.bindings.get(name, ()):
                value = self._value_of_binding(module, name, binding)
                if value.literal is None and len(module.bindings[name]) > 1:
                    continue  # `producer = None`, and the real one elsewhere
                values.append(value)
            found = next((each for each in reversed(values) if each.function or each.cls), None)
            found = found or next((each for each in values if each.is_known()), None)
            found = found or (values[0] if values else Value(text=name))
            if found.tag in ("dict", "list") and found.home is None:
                found = replace(found, home=module)
            module.values[name] = replace(found, origin=()) if found.origin else found
        return module.values[name]

    def _value_of_binding(self, module: Module, name: str, binding: Binding) -> Value:
        if binding.kind in ("import", "from"):
            return self.value_of_import(module, binding)
        if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return Value(text=name, function=Function(binding.node, module))
        if isinstance(binding.node, ast.ClassDef):
            return Value(text=name, cls=module.classes[name])
        value = Value(text=name)
        if binding.value is not None:
            value = replace(self.value(binding.value), text=name)
            if binding.kind == "element":
                value = value.items[binding.index] if binding.index < len(value.items) else Value(text=name)
            elif binding.kind == "with":
                value = replace(self.value_of_enter(value), text=name)
        if not value.is_known() and binding.annotation is not None:
            value = replace(self.value_of_annotation(binding.annotation), text=name)
        return value

    def value_of_import(self, module: Module, binding: Binding) -> Value:
        """What an import binds: a module of the project, something in one, or a name outside."""
        if binding.kind == "import":
            return self._module(module, binding.source)
        if binding.level:
            path = self.project.find_relative(module.directory, binding.level, binding.source)
            inner = f"{binding.source}.{binding.name}" if binding.source else binding.name
            submodule = self.project.find_relative(module.directory, binding.level, inner)
            dotted = inner
        else:
            path = self.project.find(module.directory, binding.source)
            dotted = f"{binding.source}.{binding.name}"
            submodule = self.project.find(module.directory, dotted)
        source = self.project.load(path) if path and path != module.path else None
        if source is not None and binding.name in source.bindings:
            return self.global_value(source, binding.name)
        target = self.project.load(submodule) if submodule else None
        if target is not None:
            return Value(text=binding.name, module=target, ref=dotted)
        if source is not None and "*" in source.bindings:
            for star in source.bindings["*"]:
                found = self.value_of_import(source, replace(star, name=binding.name))
                if found.is_known():
                    return found
        return self._value_outside(dotted, binding.name)

    @staticmethod
    def _value_outside(dotted: str, name: str) -> Value:
        """A name outside the project. Some libraries hand out objects: `from flask import request`."""
        last = dotted.rpartition(".")[2]
        tag = tag_of(dotted) if last in ("request", "current_app", "async_shared_broker") else ""
        return Value(
            text=name, ref=dotted, tag=tag, taint=frozenset({MESSAGE, PAYLOAD}) if tag == "web.request" else NOTHING
        )

    def _module(self, module: Module, dotted: str) -> Value:
        path = self.project.find(module.directory, dotted)
        found = self.project.load(path) if path else None
        return Value(text=dotted, module=found, ref=dotted)

    def value_of_dotted_name(self, dotted: str) -> Value:
        """What a string names: `"jobs.reports.send"`."""
        where, _, name = dotted.replace(":", ".").rpartition(".")
        path = self.project.find(self.module.directory, where) if where else ""
        found = self.project.load(path) if path else None
        return self.global_value(found, name) if found is not None and name in found.bindings else Value(text=dotted)

    # -- attributes and items

    def attribute(self, base: Value, attr: str) -> Value:
        text = self.text(base.text, ".", attr)
        if base.module is not None:
            if attr in base.module.bindings:
                return self.global_value(base.module, attr)
            return self._module(base.module, f"{base.ref}.{attr}") if base.ref else Value(text=text)
        if base.tag == "one of":
            parts = tuple(self.attribute(each, attr) for each in base.items)
            return Value(
                text=text, tag="one of", items=parts, base=base, attr=attr, taint=base.taint, origin=base.origin
            )
        if base.instance is not None and (found := self.member(base, base.instance.cls, attr)):
            return found
        if base.cls is not None and attr not in orm_rows.MANAGERS and (found := self._class_member(base, attr)):
            return found
        if base.tag == "orm.entity" and (found := orm_rows.row_method(self, base, attr)):
            return found
        if (base.tag == "orm.query" or base.attr in orm_rows.MANAGERS) and (
            found := orm_rows.manager_method(self, base, attr)
        ):
            return found
        if base.ref and not base.tag:
            found = self._module(self.module, f"{base.ref}.{attr}")
            if found.module is not None:
                return found
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
        if base.tag and FLUENT.fullmatch(attr):
            value.tag = base.tag
        elif base.tag in ("mongo.client", "mongo.db") and not value.tag:
            value.tag = "mongo.db" if base.tag == "mongo.client" else "mongo.collection"
        if base.taint:
            mark_message_part(value, base, attr)
        return self.entity_attribute(value, base, attr)

    def entity_attribute(self, value: Value, base: Value, attr: str) -> Value:
        """An attribute of a row that was read: testing it later is a check on that row's state."""
        rows = [op for op in base.origin if op.kind == "read" and op.store in ("orm", "entity")]
        if rows and base.tag == "orm.entity":
            row = rows[0]
            check = Operation(
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
            value.origin = (check,)
        elif attr == "rowcount" and not value.origin and (last := self.cursors.get(base.text)) is not None:
            value.origin = (last,)
        return value

    def member(self, base: Value, cls: ClassDefinition, attr: str) -> Value | None:
        """An attribute of an object of the project's: a method, or what was put on ``self``."""
        assert base.instance is not None
        known = base.instance.attributes.get(attr)
        if known is not None:
            return known
        base.instance.attributes[attr] = Value(text=self.text(base.text, ".", attr), base=base, attr=attr)
        found = self._find_member(base, cls, attr)
        if found is None:
            del base.instance.attributes[attr]
        else:
            base.instance.attributes[attr] = found
        return found

    def _find_member(self, base: Value, cls: ClassDefinition, attr: str) -> Value | None:
        assert base.instance is not None
        text = self.text(base.text, ".", attr)
        if (
            attr in cls.abstract_methods
            and cls is base.instance.cls
            and (filled := implementations_of(self, cls, attr))
        ):
            return Value(text=text, items=filled, tag="one of")
        if attr in cls.methods:
            function = Function(cls.methods[attr], cls.module, owner=cls, receiver=base)
            if any(_is_named(each, "property", "cached_property") for each in cls.methods[attr].decorator_list):
                with self.quietly():
                    return replace(self.invoke(function, (), {}, cls.methods[attr]), text=text)
            return Value(text=text, base=base, attr=attr, function=function)
        for value, annotation, method in cls.self_assignments.get(attr, ()):
            with self.quietly(), self.in_scope(Scope(cls.module, owner=cls)):
                self.parameters(
                    Function(method, cls.module, owner=cls, receiver=base), *self._init_arguments(base.instance, method)
                )
                found = self._typed_value(value, annotation)
            if found is not None and found.literal is not None:
                made_by = found.base if found.base is not None and not found.tag else base
                return replace(found, text=text, base=made_by, attr=attr)
        if attr in cls.attributes:
            position = list(cls.attributes).index(attr)
            given = base.instance.keywords.get(attr)
            if given is None and position < len(base.instance.arguments) and "__init__" not in cls.methods:
                given = base.instance.arguments[position]
            with self.quietly(), self.in_scope(Scope(cls.module, owner=cls)):
                found = given if given is not None and given.is_known() else self._typed_value(*cls.attributes[attr])
            if found is not None:
                return replace(found, text=text, base=base, attr=attr)
        for parent in self.bases(cls):
            if parent.cls is not None and (found := self._find_member(base, parent.cls, attr)):
                return found
        return None

    @staticmethod
    def _init_arguments(instance: Instance, method: ast.AST) -> tuple[tuple[Value, ...], dict[str, Value]]:
        if getattr(method, "name", "") == "__init__":
            return instance.arguments, instance.keywords
        return (), {}

    def _typed_value(self, value: ast.expr | None, annotation: ast.expr | None) -> Value | None:
        found = self.value(_default_factory_call(value)) if value is not None else None
        if (found is None or not found.is_known()) and annotation is not None:
            typed = self.value_of_annotation(annotation)
            if typed.is_known():
                return typed
        return found

    def _class_member(self, base: Value, attr: str) -> Value | None:
        assert base.cls is not None
        if attr in base.cls.methods:
            return Value(
                text=self.text(base.text, ".", attr),
                function=Function(base.cls.methods[attr], base.cls.module, owner=base.cls),
            )
        if attr in base.cls.attributes and (value := base.cls.attributes[attr][0]) is not None:
            with self.quietly(), self.in_scope(Scope(base.cls.module, owner=base.cls)):
                found = self.value(value)
            if found.is_known():
                return replace(found, text=self.text(base.text, ".", attr), base=base, attr=attr)
        return None

    def bases(self, cls: ClassDefinition) -> list[Value]:
        """What a class derives from."""
        if cls.bases is None:
            cls.bases = []  # for one that derives from itself
            with self.quietly(), self.in_scope(Scope(cls.module)):
                cls.bases = [
                    self.value(each.value if isinstance(each, ast.Subscript) else each)  # `Repository[Order]`
                    for each in cls.node.bases
                    if not isinstance(each, ast.Starred)
                ]
        return cls.bases

    def ancestry(self, cls: ClassDefinition, depth: int = 6) -> list[str]:
        """The names of all that a class derives from: dotted where they are outside the project."""
        out: list[str] = []
        for base in self.bases(cls):
            if base.cls is not None and depth:
                out += [base.cls.name, *self.ancestry(base.cls, depth - 1)]
            elif base.ref or base.text:
                out.append(base.ref or base.text)
        return out

    def item(self, base: Value, index: Value) -> Value:
        if base.home is not None and not base.fields and not base.items and (filled := registered_handlers(self, base)):
            return Value(text=self.text(base.text, "[", index.text, "]"), items=filled, tag="one of")
        if base.fields is not None:
            if isinstance(index.literal, str) and index.literal in base.fields:
                return base.fields[index.literal]
            functions = tuple(each for each in base.fields.values() if each.function or each.cls or each.instance)
            if functions and not isinstance(index.literal, str):
                return Value(text=self.text(base.text, "[", index.text, "]"), items=functions, tag="one of")
        if base.items and isinstance(index.literal, int) and -len(base.items) <= index.literal < len(base.items):
            return base.items[index.literal]
        value = Value(
            text=self.text(base.text, "[", index.text, "]"),
            base=base,
            taint=base.taint,
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

    # -- types

    def value_of_annotation(self, node: ast.expr) -> Value:
        """A value of the type that an annotation names."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.parse(node.value, mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return Value()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            left = self.value_of_annotation(node.left)
            return left if left.is_known() else self.value_of_annotation(node.right)
        if isinstance(node, ast.Subscript):
            outer = self.value(node.value)
            last = (outer.ref or outer.text).rpartition(".")[2]
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if last in _WRAPPERS:
                for each in inner:
                    found = (
                        self._resolve_dependency(each) if isinstance(each, ast.Call) else self.value_of_annotation(each)
                    )
                    if found.is_known():
                        return found
                return Value()
            node = node.value
        if not isinstance(node, ast.Name | ast.Attribute):
            return Value()
        if isinstance(node, ast.Name) and (alias := self._find_alias(self.module, node.id)) is not None:
            module, aliased = alias
            with self.in_scope(Scope(module)):
                return self.value_of_annotation(aliased)
        found = self.value(node)
        if found.cls is not None:
            return self.instance_of(found.cls, (), {}, found.text)
        if found.ref and (tag := tag_of(found.ref)):
            return Value(text=found.text, tag=tag)
        if found.ref in ("builtins.set", "builtins.dict", "builtins.list"):
            return Value(text=found.text, tag=found.ref[9:])
        if found.ref.startswith(SERVICES):
            return Value(text=found.text, tag="service", base=found)
        return Value(tag=found.tag)

    def _find_alias(self, module: Module, name: str, depth: int = 3) -> tuple[Module, ast.expr] | None:
        """`SessionDep = Annotated[Session, Depends(…)]`, here or where it is imported from."""
        for binding in module.bindings.get(name, ()):
            if binding.kind == "value" and isinstance(binding.value, ast.Subscript):
                return module, binding.value
            if binding.kind == "from" and depth:
                if binding.level:
                    path = self.project.find_relative(module.directory, binding.level, binding.source)
                else:
                    path = self.project.find(module.directory, binding.source)
                source = self.project.load(path) if path else None
                if source is not None:
                    return self._find_alias(source, binding.name, depth - 1)
        return None

    def _resolve_dependency(self, node: ast.Call) -> Value:
        """`Depends(get_session)`: what the dependency gives."""
        function = self.value(node.func)
        if not (function.ref or function.text).endswith("Depends") or not node.args:
            return Value()
        with self.quietly():
            provider = self.value(node.args[0])
            if provider.function is not None:
                given = self.invoke(provider.function, (), {}, node)
                return given.items[0] if given.tag == "generator" and given.items else given
            if provider.cls is not None:
                return self.instance_of(provider.cls, (), {}, provider.text)
        return Value()

    def instance_of(
        self, cls: ClassDefinition, args: tuple[Value, ...], keywords: dict[str, Value], text: str
    ) -> Value:
        tag = ""
        for ancestor in self.ancestry(cls):
            tag = tag or tag_of(ancestor)
        return Value(
            text=text,
            tag=tag,
            instance=Instance(cls, args, keywords),
            taint=taints_of(*args, *keywords.values()),
            origin=(),
        )

    # -- in the other parts of the walk

    @abstractmethod
    def value(self, node: ast.expr) -> Value: ...

    @abstractmethod
    def invoke(
        self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.AST
    ) -> Value: ...

    @abstractmethod
    def parameters(self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value]) -> None: ...

    @abstractmethod
    def value_of_enter(self, value: Value) -> Value: ...


def _default_factory_call(node: ast.expr) -> ast.expr:
    """Of a dataclass's `field(default_factory=new_key)`: the call that makes the default."""
    if isinstance(node, ast.Call) and _is_named(node.func, "field", "Field", "ib"):
        for each in node.keywords:
            if each.arg in ("default_factory", "factory"):
                return ast.copy_location(ast.Call(func=each.value, args=[], keywords=[]), node)
    return node


def _is_named(node: ast.expr, *names: str) -> bool:
    last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return last in names
