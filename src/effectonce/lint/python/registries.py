"""Tables of handlers that decorators fill: `@on("order.paid")` puts a function where a consumer looks it up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .modules import Module
from .values import Function, Scope, Val

if TYPE_CHECKING:
    from .resolve import Names


def registered(walk: Names, table: Val) -> tuple[Val, ...]:
    """The functions that decorators put into ``table``, in its own file and in those that the consumer's imports."""
    if table.home is None or table.tag not in ("dict", "list"):
        return ()
    known = walk.registries.get((table.home.path, table.text))
    if known is None:
        known = walk.registries[table.home.path, table.text] = _found(walk, table.home, table.text)
    return known


def _found(walk: Names, home: Module, name: str) -> tuple[Val, ...]:
    fills = {id(function) for function in _functions(home) if _stores_in(function, name)}
    if not fills:
        return ()
    modules = dict.fromkeys([home, walk.start, *_imported(walk, walk.start)])
    return tuple(
        Val(text=function.name, function=Function(function, module))
        for module in modules
        for function in _functions(module)
        if any(_fills(walk, module, each, fills) for each in function.decorator_list)
    )


def _functions(module: Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        binding.node
        for bindings in module.bindings.values()
        for binding in bindings
        if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _stores_in(function: ast.AST, name: str) -> bool:
    """Whether a function puts something into the table: `TABLE[…] = fn`, `TABLE[…].append(fn)`."""
    for each in ast.walk(function):
        match each:
            case ast.Subscript(value=ast.Name(id=table), ctx=ast.Store()) if table == name:
                return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id=table) | ast.Subscript(value=ast.Name(id=table)))):
                if table == name and each.args:
                    return True
    return False


def _fills(walk: Names, module: Module, decorator: ast.expr, fills: set[int]) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    if not isinstance(target, ast.Name | ast.Attribute):
        return False
    with walk.quietly(), walk.within(Scope(module)):
        function = walk.value(target).function
    return function is not None and id(function.node) in fills


def _imported(walk: Names, module: Module) -> Iterator[Module]:
    """The project's own modules that ``module`` imports."""
    project = walk.project
    for node in module.tree.body:
        paths: list[str] = []
        if isinstance(node, ast.Import):
            paths = [project.find(module.directory, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            dotted = [source, *(f"{source}.{alias.name}".lstrip(".") for alias in node.names)]
            if node.level:
                paths = [project.find_relative(module.directory, node.level, each) for each in dotted]
            else:
                paths = [project.find(module.directory, each) for each in dotted]
        for path in paths:
            found = project.load(path) if path else None
            if found is not None:
                yield found
