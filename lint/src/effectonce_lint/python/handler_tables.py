"""Tables of handlers that fill themselves: `@on("order.paid")` puts a function where a consumer looks it up, a base
class does so with the classes that derive from it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .modules import ClassDefinition, Module
from .values import Function, Scope, Value

if TYPE_CHECKING:
    from .name_resolution import NameResolver


def registered_handlers(walk: NameResolver, table: Value) -> tuple[Value, ...]:
    """What decorators and base classes put into ``table``, in its own file and in those that the consumer's imports."""
    if table.home is None or table.tag not in ("dict", "list"):
        return ()
    known = walk.registries.get((table.home.path, table.text))
    if known is None:
        known = walk.registries[table.home.path, table.text] = _collect_handlers(walk, table.home, table.text)
    return known


def _collect_handlers(walk: NameResolver, home: Module, name: str) -> tuple[Value, ...]:
    fills = {id(function) for function in _functions_of(home) if _fills_table(function, name)}
    fills |= {
        id(method)
        for cls in home.classes.values()
        for method in cls.methods.values()
        if method.name == "__init_subclass__" and _fills_table(method, name)
    }
    if not fills:
        return ()
    modules = dict.fromkeys([home, walk.start, *imported_modules(walk, walk.start)])
    found = [
        Value(text=function.name, function=Function(function, module))
        for module in modules
        for function in _functions_of(module)
        if any(_is_filling_decorator(walk, module, each, fills) for each in function.decorator_list)
    ]
    found += [
        Value(text=cls.name, cls=cls)
        for module in modules
        for cls in module.classes.values()
        if any(_is_filling_decorator(walk, module, each, fills) for each in cls.node.decorator_list)
    ]
    return (*found, *_derived_classes(walk, home, name))


def _derived_classes(walk: NameResolver, home: Module, name: str) -> Iterator[Value]:
    """The classes that a base class puts into the table as they are defined, by its `__init_subclass__`."""
    for base in home.classes.values():
        define = base.methods.get("__init_subclass__")
        if define is None or not _fills_table(define, name):
            continue
        makes = any(isinstance(each, ast.Call) and _is_cls(each.func) for each in ast.walk(define))
        modules = [
            home,
            *(walk.project.load(path) for path in walk.project.files_deriving_from(home.directory, base.name)),
        ]
        for module in dict.fromkeys(each for each in modules if each is not None):
            for cls in module.classes.values():
                if _derives_from(walk, cls, base):
                    yield walk.instance_of(cls, (), {}, cls.name) if makes else Value(text=cls.name, cls=cls)


def _is_cls(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "cls"


def _functions_of(module: Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        binding.node
        for bindings in module.bindings.values()
        for binding in bindings
        if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _fills_table(function: ast.AST, name: str) -> bool:
    """Whether a function puts something into the table: `TABLE[…] = fn`, `TABLE[…].append(fn)`."""
    for each in ast.walk(function):
        match each:
            case ast.Subscript(value=ast.Name(id=table), ctx=ast.Store()) if table == name:
                return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id=table) | ast.Subscript(value=ast.Name(id=table)))):
                if table == name and each.args:
                    return True
    return False


def _is_filling_decorator(walk: NameResolver, module: Module, decorator: ast.expr, fills: set[int]) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    if not isinstance(target, ast.Name | ast.Attribute):
        return False
    with walk.quietly(), walk.in_scope(Scope(module)):
        function = walk.value(target).function
    return function is not None and id(function.node) in fills


def imported_modules(walk: NameResolver, module: Module) -> Iterator[Module]:
    """The project's own modules that ``module`` imports."""
    for _, binding in module.imports:
        for path in walk.project.sources(module, binding):
            found = walk.project.load(path)
            if found is not None:
                yield found


def implementations_of(walk: NameResolver, cls: ClassDefinition, attr: str) -> tuple[Value, ...]:
    """What other classes make of the method of an abstract one, or of a protocol: those beside it, else those that
    derive from it in other files of the project."""
    protocol = any((base.ref or base.text).endswith("Protocol") for base in walk.bases(cls))
    beside = [
        other
        for other in cls.module.classes.values()
        if _derives_from(walk, other, cls)
        or (protocol and other is not cls and not other.abstract_methods and cls.abstract_methods <= set(other.methods))
    ]
    if walk.scope.owner is not cls and not any(attr in other.methods for other in beside):
        for path in walk.project.files_deriving_from(cls.module.directory, cls.name):
            module = walk.project.load(path)
            beside += [each for each in module.classes.values() if _derives_from(walk, each, cls)] if module else []
    return tuple(
        Value(
            text=attr,
            function=Function(
                other.methods[attr], other.module, owner=other, receiver=walk.instance_of(other, (), {}, "self")
            ),
        )
        for other in beside
        if attr in other.methods
    )


def _derives_from(walk: NameResolver, cls: ClassDefinition, base: ClassDefinition) -> bool:
    return any(each.cls is base for each in walk.bases(cls))
