"""Queues inside the process: which names of a file are one, and which functions take from it."""

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
TAKE_METHODS = word_set("get get_nowait popleft pop")


@dataclass(slots=True)
class QueueReader:
    """A function that takes from a queue, and the class whose method it is."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: ast.ClassDef | None


def last_name(node: ast.expr) -> str:
    """The name that a queue goes by wherever it is handed to: ``jobs`` of `jobs`, `self.jobs` and `worker.jobs`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def find_readers(module: Module) -> dict[str, list[QueueReader]]:
    """Of every queue that ``module`` makes, or says by an annotation to be one: who takes from it."""
    if not _MAY_MAKE_QUEUE.search(module.content):
        return {}
    out: dict[str, list[QueueReader]] = {name: [] for name in _queue_names(module)}
    for taker in _walk_functions(module.tree, None) if out else ():
        for name in {last_name(each.value) for each in _own_nodes(taker.node) if isinstance(each, ast.Attribute)}:
            if name in out and any(_is_take(each, name) for each in _own_nodes(taker.node)):
                out[name].append(taker)
    return out


def _queue_names(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        match node:
            case ast.Assign(value=ast.Call(func=made, keywords=keywords)):
                if _is_queue(module, made) and not any(each.arg == "maxlen" for each in keywords):  # a ring forgets
                    yield from map(last_name, node.targets)
            case ast.AnnAssign(target=target, annotation=said):
                if _is_queue(module, said):
                    yield last_name(target)
            case ast.arg(arg=name, annotation=ast.expr() as said):
                if _is_queue(module, said):
                    yield name


def _is_queue(module: Module, node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        node = node.value
    top, _, rest = _dotted(node).partition(".")
    for binding in module.bindings.get(top, ()):
        if binding.kind == "import" and f"{binding.source}.{rest}" in _QUEUE_CLASSES:
            return True
        if binding.kind == "from" and not rest and f"{binding.source}.{binding.name}" in _QUEUE_CLASSES:
            return True
    return False


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text.partition("[")[0]
        case ast.Attribute(value=ast.Name(id=top), attr=name):
            return f"{top}.{name}"
        case ast.Name(id=name):
            return name
    return ""


def _walk_functions(node: ast.AST, owner: ast.ClassDef | None) -> Iterator[QueueReader]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield QueueReader(child, owner)
            yield from _walk_functions(child, None)
        else:
            yield from _walk_functions(child, child if isinstance(child, ast.ClassDef) else owner)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What a function does itself, without the functions inside it."""
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            todo.extend(ast.iter_child_nodes(node))


def _is_take(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in TAKE_METHODS and last_name(node.value) == name
