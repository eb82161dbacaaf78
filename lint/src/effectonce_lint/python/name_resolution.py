"""Resolves names: in this module, in the modules that it imports, and in annotations."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace

from .libraries.object_types import tag_of
from .libraries.record_services import SERVICES
from .modules import Binding, ClassDefinition, Module
from .taints import MESSAGE, PAYLOAD
from .values import EMPTY_SET, Function, Instance, Scope, Value
from .walk_state import BUILTINS, WalkState, taints_of

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
"""Types that are transparent: a value of `Optional[Session]` is taken for a `Session`."""
_MAX_ANCESTRY_DEPTH = 6
_MAX_ALIAS_IMPORTS = 3


class NameResolver(WalkState):
    """Finds out what a name or an annotation means."""

    # -- names

    def name(self, name: str) -> Value:
        """What ``name`` means here: a local, a name of the module, a builtin. Else only its text is known."""
        local = self.scope.find(name)
        if local is not None:
            return local
        module = self.scope.module
        if name in module.bindings:
            return self.global_value(module, name)
        if name in BUILTINS:
            return Value(text=name, ref=f"builtins.{name}")
        return self._value_of_star_import(module, name) if "*" in module.bindings else Value(text=name)

    def _value_of_star_import(self, module: Module, name: str) -> Value:
        """What ``name`` means if a file of the project defines it from which the module imports `*`."""
        for binding in module.bindings["*"]:
            for path in self.project.sources(module, replace(binding, name="")):
                source = self.project.load(path)
                if source is not None and name in source.bindings:
                    return self.global_value(source, name)
        return Value(text=name)

    def global_value(self, module: Module, name: str) -> Value:
        """What a name of a module means. It is evaluated when it is first asked for."""
        evaluated = module.values.get(name)
        if evaluated is not None:
            return evaluated
        module.values[name] = Value(text=name)  # what the name means in its own definition: so recursion ends
        try:
            with self.mute_trace(), self.in_scope(Scope(module)):
                module.values[name] = self._evaluate_global(module, name)
        except BaseException:  # the fuel ran out: the next walk may get further
            del module.values[name]
            raise
        return module.values[name]

    def _evaluate_global(self, module: Module, name: str) -> Value:
        values = []
        for binding in module.bindings.get(name, ()):
            value = self._value_of_binding(module, name, binding)
            if value.literal is None and len(module.bindings[name]) > 1:
                continue  # `producer = None`, and the real one elsewhere
            values.append(value)
        definition = next((value for value in reversed(values) if value.function or value.cls), None)
        known = next((value for value in values if value.is_known()), None)
        best = definition or known or (values[0] if values else Value(text=name))
        if best.tag in ("dict", "list") and best.home is None:
            best = replace(best, home=module)
        return replace(best, origin=()) if best.origin else best

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
            return self.value_of_module(module, binding.source)
        path = self._find_imported_file(module, binding, binding.source)
        dotted = f"{binding.source}.{binding.name}" if binding.source else binding.name
        submodule_path = self._find_imported_file(module, binding, dotted)
        source = self.project.load(path) if path and path != module.path else None
        if source is not None and binding.name in source.bindings:
            return self.global_value(source, binding.name)
        submodule = self.project.load(submodule_path) if submodule_path else None
        if submodule is not None:
            return Value(text=binding.name, module=submodule, ref=dotted)
        if source is not None and "*" in source.bindings:
            for star in source.bindings["*"]:
                value = self.value_of_import(source, replace(star, name=binding.name))
                if value.is_known():
                    return value
        return self._value_outside(dotted, binding.name)

    def _find_imported_file(self, module: Module, binding: Binding, dotted: str) -> str:
        """The project's file that ``dotted`` means in a `from` import of ``module``, or ""."""
        if binding.level:
            return self.project.find_relative(module.directory, binding.level, dotted)
        return self.project.find(module.directory, dotted)

    @staticmethod
    def _value_outside(dotted: str, name: str) -> Value:
        """A name outside the project. Some libraries export objects: `from flask import request`."""
        is_object = dotted.rpartition(".")[2] in ("request", "current_app", "async_shared_broker")
        tag = tag_of(dotted) if is_object else ""
        taint = frozenset({MESSAGE, PAYLOAD}) if tag == "web.request" else EMPTY_SET
        return Value(text=name, ref=dotted, tag=tag, taint=taint)

    def value_of_module(self, importer: Module, dotted: str) -> Value:
        """The module ``dotted`` as ``importer`` sees it. Outside the project only its name is known."""
        path = self.project.find(importer.directory, dotted)
        return Value(text=dotted, module=self.project.load(path) if path else None, ref=dotted)

    def value_of_dotted_name(self, dotted: str) -> Value:
        """What a string names: `"jobs.reports.send"`."""
        module_name, _, name = dotted.replace(":", ".").rpartition(".")
        path = self.project.find(self.module.directory, module_name) if module_name else ""
        module = self.project.load(path) if path else None
        return self.global_value(module, name) if module is not None and name in module.bindings else Value(text=dotted)

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
            generic = self.value(node.value)
            if (generic.ref or generic.text).rpartition(".")[2] in _WRAPPERS:
                return self._value_of_wrapped_type(node.slice)
            node = node.value  # `Repository[Order]` is a repository
        if not isinstance(node, ast.Name | ast.Attribute):
            return Value()
        if isinstance(node, ast.Name) and (alias := self._find_alias(self.module, node.id)) is not None:
            module, aliased = alias
            with self.in_scope(Scope(module)):
                return self.value_of_annotation(aliased)
        named = self.value(node)
        if named.cls is not None:
            return self.instance_of(named.cls, (), {}, named.text)
        if named.ref and (tag := tag_of(named.ref)):
            return Value(text=named.text, tag=tag)
        if named.ref in ("builtins.set", "builtins.dict", "builtins.list"):
            return Value(text=named.text, tag=named.ref.removeprefix("builtins."))
        if named.ref.startswith(SERVICES):
            return Value(text=named.text, tag="service", base=named)
        return Value(tag=named.tag)

    def _value_of_wrapped_type(self, node: ast.expr) -> Value:
        """A value of the first part of `Optional[…]`, `Annotated[…]` that is known: a type, or a dependency."""
        for part in node.elts if isinstance(node, ast.Tuple) else [node]:
            value = self.resolve_dependency(part) if isinstance(part, ast.Call) else self.value_of_annotation(part)
            if value.is_known():
                return value
        return Value()

    def _find_alias(
        self, module: Module, name: str, imports: int = _MAX_ALIAS_IMPORTS
    ) -> tuple[Module, ast.expr] | None:
        """The definition of `SessionDep = Annotated[Session, Depends(…)]` and its module: this one, or the one that it
        comes from by at most ``imports`` imports."""
        for binding in module.bindings.get(name, ()):
            if binding.kind == "value" and isinstance(binding.value, ast.Subscript):
                return module, binding.value
            if binding.kind == "from" and imports:
                path = self._find_imported_file(module, binding, binding.source)
                source = self.project.load(path) if path else None
                if source is not None:
                    return self._find_alias(source, binding.name, imports - 1)
        return None

    def resolve_dependency(self, node: ast.Call) -> Value:
        """The value that a dependency provides: what `Depends(get_session)` calls, or an object of its class."""
        function = self.value(node.func)
        if not (function.ref or function.text).endswith("Depends") or not node.args:
            return Value()
        with self.mute_trace():
            provider = self.value(node.args[0])
            if provider.function is not None:
                value = self.invoke(provider.function, (), {}, node)
                return value.items[0] if value.tag == "generator" and value.items else value
            if provider.cls is not None:
                return self.instance_of(provider.cls, (), {}, provider.text)
        return Value()

    # -- classes

    def bases(self, cls: ClassDefinition) -> list[Value]:
        """The classes that a class derives from directly."""
        if cls.bases is None:
            cls.bases = []  # what they are while they are evaluated: so a class that derives from itself ends
            try:
                with self.mute_trace(), self.in_scope(Scope(cls.module)):
                    cls.bases = [
                        self.value(base.value if isinstance(base, ast.Subscript) else base)  # `Repository[Order]`
                        for base in cls.node.bases
                        if not isinstance(base, ast.Starred)
                    ]
            except BaseException:
                cls.bases = None
                raise
        return cls.bases

    def lineage(self, cls: ClassDefinition) -> Iterator[ClassDefinition]:
        """``cls`` and the project's classes that it derives from, each once: the name of a base may mean, at another
        place in its module, a class that derives from it."""
        listed: set[ClassDefinition] = set()
        todo = [cls]
        while todo:
            current = todo.pop(0)
            if current not in listed:
                listed.add(current)
                yield current
                todo[:0] = [base.cls for base in self.bases(current) if base.cls is not None]

    def ancestry(self, cls: ClassDefinition, depth: int = _MAX_ANCESTRY_DEPTH) -> list[str]:
        """The names of all classes that a class derives from: dotted where they are outside the project."""
        names: list[str] = []
        for base in self.bases(cls):
            if base.cls is not None and depth:
                names += [base.cls.name, *self.ancestry(base.cls, depth - 1)]
            elif base.ref or base.text:
                names.append(base.ref or base.text)
        return names

    def instance_of(
        self, cls: ClassDefinition, args: tuple[Value, ...], keywords: dict[str, Value], text: str
    ) -> Value:
        """An object of a class of the project, made with these arguments."""
        tag = next(filter(None, map(tag_of, self.ancestry(cls))), "")
        return Value(
            text=text, tag=tag, instance=Instance(cls, args, keywords), taint=taints_of(*args, *keywords.values())
        )

    # -- in the other parts of the walk

    @abstractmethod
    def value(self, node: ast.expr) -> Value: ...

    @abstractmethod
    def invoke(
        self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.AST
    ) -> Value: ...

    @abstractmethod
    def value_of_enter(self, value: Value) -> Value: ...
