"""Tables of handlers that fill themselves: by a decorator, `@on("order.paid")`, or by a base class with the classes
that derive from it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .modules import ClassDefinition, Module
from .values import Function, Scope, Value

if TYPE_CHECKING:
    from .name_resolution import NameResolver


def registered_handlers(walk: NameResolver, table: Value) -> tuple[Value, ...]:
    """The handlers that decorators and base classes put into ``table``: of its own file, of the file that the walk
    began in, and of the files that this imports."""
    if table.home is None or table.tag not in ("dict", "list"):
        return ()
    key = (table.home.path, table.text)
    if key not in walk.registries:
        walk.registries[key] = _collect_handlers(walk, table.home, table.text)
    return walk.registries[key]


def _collect_handlers(walk: NameResolver, home: Module, name: str) -> tuple[Value, ...]:
    filling = {id(function.node) for function in functions_of(home) if _fills_table(function.node, name)}
    filling |= {
        id(method)
        for cls in home.classes.values()
        for method in cls.methods.values()
        if method.name == "__init_subclass__" and _fills_table(method, name)
    }
    if not filling:
        return ()
    modules = dict.fromkeys([home, walk.start, *imported_modules(walk, walk.start)])
    handlers = [
        Value(text=function.name, function=function)
        for module in modules
        for function in functions_of(module)
        if _has_filling_decorator(walk, module, function.node, filling)
    ]
    handlers += [
        Value(text=cls.name, cls=cls)
        for module in modules
        for cls in module.classes.values()
        if _has_filling_decorator(walk, module, cls.node, filling)
    ]
    return (*handlers, *_derived_classes(walk, home, name))


def _derived_classes(walk: NameResolver, home: Module, name: str) -> Iterator[Value]:
    """The classes that a base class puts into the table as they are defined, by its `__init_subclass__`."""
    for base in home.classes.values():
        init_subclass = base.methods.get("__init_subclass__")
        if init_subclass is None or not _fills_table(init_subclass, name):
            continue
        calls = (node for node in ast.walk(init_subclass) if isinstance(node, ast.Call))
        puts_objects = any(isinstance(call.func, ast.Name) and call.func.id == "cls" for call in calls)
        paths = walk.project.files_deriving_from(home.directory, base.name)
        for module in dict.fromkeys([home, *map(walk.project.load, paths)]):
            for cls in module.classes.values() if module is not None else ():
                if _derives_from(walk, cls, base):
                    yield walk.instance_of(cls, (), {}, cls.name) if puts_objects else Value(text=cls.name, cls=cls)


def functions_of(module: Module) -> list[Function]:
    """The functions that ``module`` defines, other than methods."""
    return [
        Function(binding.node, module)
        for bindings in module.bindings.values()
        for binding in bindings
        if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _fills_table(function: ast.AST, name: str) -> bool:
    """Whether a function puts something into the table: `TABLE[…] = fn`, `TABLE[…].append(fn)`."""
    for node in ast.walk(function):
        match node:
            case ast.Subscript(value=ast.Name(id=table), ctx=ast.Store()) if table == name:
                return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id=table) | ast.Subscript(value=ast.Name(id=table)))):
                if table == name and node.args:
                    return True
    return False


def _has_filling_decorator(walk: NameResolver, module: Module, definition: ast.AST, filling: set[int]) -> bool:
    """Whether a function or class has a decorator that is one of the functions ``filling`` the table."""
    for decorator in getattr(definition, "decorator_list", ()):
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if not isinstance(target, ast.Name | ast.Attribute):
            continue
        with walk.mute_trace(), walk.in_scope(Scope(module)):
            function = walk.value(target).function
        if function is not None and id(function.node) in filling:
            return True
    return False


def imported_modules(walk: NameResolver, module: Module) -> Iterator[Module]:
    """The project's own modules that ``module`` imports."""
    for _, binding in module.imports:
        for path in walk.project.sources(module, binding):
            imported = walk.project.load(path)
            if imported is not None:
                yield imported


def implementations_of(walk: NameResolver, cls: ClassDefinition, attr: str) -> tuple[Value, ...]:
    """The methods ``attr`` of the classes that implement an abstract class or a protocol: of those in its own file,
    else of those that derive from it in other files of the project."""
    protocol = any((base.ref or base.text).endswith("Protocol") for base in walk.bases(cls))
    implementing = [
        other
        for other in cls.module.classes.values()
        if _derives_from(walk, other, cls)
        or (protocol and other is not cls and not other.abstract_methods and cls.abstract_methods <= set(other.methods))
    ]
    if walk.scope.owner is not cls and not any(attr in other.methods for other in implementing):
        for path in walk.project.files_deriving_from(cls.module.directory, cls.name):
            module = walk.project.load(path)
            classes = module.classes.values() if module is not None else ()
            implementing += [other for other in classes if _derives_from(walk, other, cls)]
    return tuple(
        Value(
            text=attr,
            function=Function(
                other.methods[attr], other.module, owner=other, receiver=walk.instance_of(other, (), {}, "self")
            ),
        )
        for other in implementing
        if attr in other.methods
    )


def _derives_from(walk: NameResolver, cls: ClassDefinition, base: ClassDefinition) -> bool:
    """Whether ``base`` is one of the direct bases of ``cls``."""
    return any(value.cls is base for value in walk.bases(cls))
