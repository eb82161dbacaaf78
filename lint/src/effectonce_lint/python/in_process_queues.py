"""Finds in-process queues: which names of a file are one, and which functions take from it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from effectonce_lint.word_lists import word_set

if TYPE_CHECKING:
    from .modules import Module

_QUEUE_CLASSES = word_set(
    "queue.Queue queue.LifoQueue queue.PriorityQueue queue.SimpleQueue asyncio.Queue asyncio.LifoQueue"
    " asyncio.PriorityQueue multiprocessing.Queue multiprocessing.JoinableQueue multiprocessing.SimpleQueue"
    " collections.deque"
)
_MAY_MAKE_QUEUE = re.compile(
    rb"\bfrom (?:queue|asyncio|multiprocessing|collections) import\b[^\n]*(?:Queue|deque|\()"
    rb"|\b\w+\.(?:\w*Queue|deque)\b"
)
"""A file without any of these makes no queue."""
TAKE_METHODS = word_set("get get_nowait popleft pop")


@dataclass(slots=True)
class QueueReader:
    """A function that takes from a queue, and the class whose method it is."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: ast.ClassDef | None


def last_name(node: ast.expr) -> str:
    """The name by which a queue is known wherever it is passed: ``jobs`` of `jobs`, `self.jobs` and `worker.jobs`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def find_readers(module: Module) -> dict[str, list[QueueReader]]:
    """The queues that ``module`` makes, or annotates as one, by name, each with the functions that take from it."""
    if not _MAY_MAKE_QUEUE.search(module.content):
        return {}
    readers: dict[str, list[QueueReader]] = {name: [] for name in _queue_names(module)}
    for function in _walk_functions(module.tree, None) if readers else ():
        taken_from = {
            last_name(node.value)
            for node in _own_nodes(function.node)
            if isinstance(node, ast.Attribute) and node.attr in TAKE_METHODS
        }
        for name in taken_from & readers.keys():
            readers[name].append(function)
    return readers


def _queue_names(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        match node:
            case ast.Assign(value=ast.Call(func=factory, keywords=keywords)):
                is_ring = any(keyword.arg == "maxlen" for keyword in keywords)  # it forgets, so no work is left in it
                if not is_ring and _is_queue_class(module, factory):
                    yield from map(last_name, node.targets)
            case ast.AnnAssign(target=target, annotation=annotation):
                if _is_queue_class(module, annotation):
                    yield last_name(target)
            case ast.arg(arg=name, annotation=ast.expr() as annotation):
                if _is_queue_class(module, annotation):
                    yield name


def _is_queue_class(module: Module, node: ast.expr) -> bool:
    """Whether an expression names the class of a queue, as ``module`` imports it."""
    if isinstance(node, ast.Subscript):  # `Queue[Job]`
        node = node.value
    top, _, rest = _dotted_name(node).partition(".")
    for binding in module.bindings.get(top, ()):
        if binding.kind == "import" and f"{binding.source}.{rest}" in _QUEUE_CLASSES:
            return True
        if binding.kind == "from" and not rest and f"{binding.source}.{binding.name}" in _QUEUE_CLASSES:
            return True
    return False


def _dotted_name(node: ast.expr) -> str:
    """``name`` or ``top.name``, also of an annotation that is a string."""
    match node:
        case ast.Constant(value=str(text)):
            return text.partition("[")[0]
        case ast.Attribute(value=ast.Name(id=top), attr=name):
            return f"{top}.{name}"
        case ast.Name(id=name):
            return name
    return ""


def _walk_functions(node: ast.AST, owner: ast.ClassDef | None) -> Iterator[QueueReader]:
    """All functions below ``node``, which is a part of the class ``owner``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield QueueReader(child, owner)
            yield from _walk_functions(child, None)
        else:
            yield from _walk_functions(child, child if isinstance(child, ast.ClassDef) else owner)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of the functions inside it."""
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            todo.extend(ast.iter_child_nodes(node))
