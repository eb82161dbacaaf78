"""One file as a module: parsed, what its names are bound to, its classes, and where each node stands."""

from __future__ import annotations

import ast
import io
import os
import sys
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

from effectonce_lint.findings import Place

from . import sql
from .in_process_queues import QueueReader, find_readers

if TYPE_CHECKING:
    from .values import Value

MAX_FILE_BYTES = 4 * 1024 * 1024
"""Bytes of a file that is still read. A syntax tree takes a hundred times as much memory."""

_MAX_NESTING = 3000
"""Python's own limit while it parses: a chain of `a + b + c` is as deep as it is long."""


class UnreadableFile(Exception):
    """A file cannot be checked. Says what is wrong, and where."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.line = max(line, 1)
        self.column = max(column, 1)


def digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def parse(content: bytes) -> ast.Module:
    """The syntax tree of a file; `UnreadableFile` says what is in the way."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _MAX_NESTING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(content)
    except SyntaxError as error:
        raise UnreadableFile(f"not valid Python: {error.msg}", error.lineno or 1, error.offset or 1) from None
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"not text in its declared encoding: {error.reason}") from None
    except (ValueError, LookupError) as error:
        raise UnreadableFile(f"not valid Python: {error}") from None
    except (RecursionError, MemoryError):
        raise UnreadableFile("nested too deeply to be parsed") from None
    finally:
        sys.setrecursionlimit(limit)


@dataclass(slots=True)
class Binding:
    """What a name of a module stands for."""

    kind: str
    """import, from, def, class, value, element, with, annotation."""
    node: ast.AST | None = None
    value: ast.expr | None = None
    annotation: ast.expr | None = None
    source: str = ""
    name: str = ""
    level: int = 0
    index: int = 0


@dataclass(eq=False)
class ClassDefinition:
    """A class of the project."""

    node: ast.ClassDef
    module: Module
    bases: list[Value] | None = None
    """What it derives from; filled by the walk."""

    @property
    def name(self) -> str:
        return self.node.name

    @cached_property
    def methods(self) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
        return {each.name: each for each in self.node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}

    @cached_property
    def abstract_methods(self) -> frozenset[str]:
        """Methods that only say what those of a derived class do."""
        return frozenset(name for name, method in self.methods.items() if _is_stub(method))

    @cached_property
    def attributes(self) -> dict[str, tuple[ast.expr | None, ast.expr | None]]:
        """Of the class itself: name to (value, annotation)."""
        out: dict[str, tuple[ast.expr | None, ast.expr | None]] = {}
        for each in self.node.body:
            if isinstance(each, ast.Assign):
                for target in each.targets:
                    if isinstance(target, ast.Name):
                        out[target.id] = (each.value, None)
            elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                out[each.target.id] = (each.value, each.annotation)
        return out

    @cached_property
    def self_assignments(
        self,
    ) -> dict[str, list[tuple[ast.expr | None, ast.expr | None, ast.FunctionDef | ast.AsyncFunctionDef]]]:
        """What methods put on ``self``: name to (value, annotation, method), those of ``__init__`` first."""
        out: dict[str, list[tuple[ast.expr | None, ast.expr | None, ast.FunctionDef | ast.AsyncFunctionDef]]] = {}
        for method in sorted(self.methods.values(), key=lambda each: each.name not in ("__init__", "__post_init__")):
            for each in ast.walk(method):
                pairs: list[tuple[ast.expr, ast.expr | None, ast.expr | None]]
                if isinstance(each, ast.Assign):
                    pairs = [
                        (target, value, None)
                        for one in each.targets
                        for target, value in _pair_targets(one, each.value)
                    ]
                elif isinstance(each, ast.AnnAssign):
                    pairs = [(each.target, each.value, each.annotation)]
                else:
                    continue
                for target, value, annotation in pairs:
                    if (
                        isinstance(target, ast.Attribute)
                        and isinstance(target.value, ast.Name)
                        and target.value.id == "self"
                    ):
                        out.setdefault(target.attr, []).append((value, annotation, method))
        return out


def _pair_targets(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """`self.a, self.b = a, b` as two assignments."""
    several = (ast.Tuple, ast.List)
    if isinstance(target, several) and isinstance(value, several) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _is_stub(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    for each in method.body:
        match each:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                continue
            case ast.Raise(exc=ast.Name(id="NotImplementedError") | ast.Call(func=ast.Name(id="NotImplementedError"))):
                continue
        return False
    return True


@dataclass(eq=False)
class Module:
    """One file of the project."""

    path: str
    content: bytes
    tree: ast.Module
    values: dict[str, Value] = field(default_factory=dict)
    """What its names turned out to be; filled by the walk."""

    @property
    def directory(self) -> str:
        return os.path.dirname(self.path)

    @cached_property
    def lines(self) -> list[bytes]:
        """In UTF-8, whatever the file is in: that is what a syntax tree counts in."""
        content = self.content
        if not self.is_ascii:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
            content = content.decode(encoding, "replace").encode()
        return content.splitlines(keepends=True)

    @cached_property
    def digest(self) -> str:
        return digest(self.content)

    @cached_property
    def is_ascii(self) -> bool:
        return self.content.isascii()

    @cached_property
    def lowercase_content(self) -> bytes:
        return self.content.lower()

    @cached_property
    def bindings(self) -> dict[str, list[Binding]]:
        out: dict[str, list[Binding]] = {}
        for name, binding in _collect_bindings(self.tree.body):
            out.setdefault(name, []).append(binding)
        if b"global " in self.content:
            for name, binding in _global_bindings(self.tree):
                out.setdefault(name, []).append(binding)
        return out

    @cached_property
    def imports(self) -> list[tuple[str, Binding]]:
        """The names that it imports, as far as its functions do not do so themselves."""
        return [
            (name, binding) for name, binding in _collect_bindings(self.tree.body) if binding.kind in ("import", "from")
        ]

    @cached_property
    def classes(self) -> dict[str, ClassDefinition]:
        return {
            name: ClassDefinition(binding.node, self)
            for name, bindings in self.bindings.items()
            for binding in bindings
            if isinstance(binding.node, ast.ClassDef)
        }

    @cached_property
    def buffers(self) -> dict[str, list[QueueReader]]:
        """The queues inside the process that this file makes, by name, and its functions that take from them."""
        return find_readers(self)

    @cached_property
    def unique(self) -> dict[str, list[frozenset[str]]]:
        """Tables that this file creates, and which columns they keep unique."""
        return self._read_sql_literals(b"create table", sql.unique_columns)

    @cached_property
    def unique_indexes(self) -> dict[str, list[frozenset[str]]]:
        """Columns of tables that this file makes unique."""
        return self._read_sql_literals(b"unique", sql.unique_indexes)

    def _read_sql_literals(
        self, word: bytes, read: Callable[[str], dict[str, list[frozenset[str]]]]
    ) -> dict[str, list[frozenset[str]]]:
        out: dict[str, list[frozenset[str]]] = {}
        for node in ast.walk(self.tree) if word in self.lowercase_content else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and word.decode() in node.value.lower():
                for table, keys in read(node.value).items():
                    out.setdefault(table, []).extend(keys)
        return out

    def place(self, node: ast.AST) -> Place:
        """Where ``node`` stands, in characters."""
        line = getattr(node, "lineno", 1)
        end_line = getattr(node, "end_lineno", line) or line
        return Place(
            self.path,
            line,
            self._column(line, getattr(node, "col_offset", 0)),
            end_line,
            self._column(end_line, getattr(node, "end_col_offset", 0) or 0),
        )

    def name_place(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Place:
        """Where the name in ``def name`` stands."""
        word = {ast.ClassDef: b"class", ast.FunctionDef: b"def"}.get(type(node), b"def")
        line = self.lines[node.lineno - 1] if node.lineno <= len(self.lines) else b""
        start = line.find(word, node.col_offset)
        start = line.find(node.name.encode(), start + len(word)) if start >= 0 else -1
        if start < 0:
            return self.place(node)
        column = self._column(node.lineno, start)
        return Place(self.path, node.lineno, column, node.lineno, column + len(node.name))

    def _column(self, line: int, offset: int) -> int:
        if self.is_ascii or line > len(self.lines):
            return offset + 1
        return len(self.lines[line - 1][:offset].decode("utf-8", "replace")) + 1


def _collect_bindings(body: Iterable[ast.stmt]) -> Iterator[tuple[str, Binding]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, Binding("def", node)
        elif isinstance(node, ast.ClassDef):
            yield node.name, Binding("class", node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports_of(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _bind_targets(target, node.value, None)
        elif isinstance(node, ast.AnnAssign):
            yield from _bind_targets(node.target, node.value, node.annotation)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                if isinstance(item.optional_vars, ast.Name):
                    yield item.optional_vars.id, Binding("with", node, item.context_expr)
            yield from _collect_bindings(node.body)
        elif isinstance(node, ast.If | ast.While | ast.For | ast.AsyncFor):
            yield from _collect_bindings(node.body)
            yield from _collect_bindings(node.orelse)
        elif isinstance(node, ast.Try | ast.TryStar):
            yield from _collect_bindings(node.body)
            for handler in node.handlers:
                yield from _collect_bindings(handler.body)
            yield from _collect_bindings(node.orelse)
            yield from _collect_bindings(node.finalbody)


def _bind_targets(
    target: ast.expr, value: ast.expr | None, annotation: ast.expr | None
) -> Iterator[tuple[str, Binding]]:
    if isinstance(target, ast.Name):
        yield target.id, Binding("value", target, value, annotation)
    elif isinstance(target, ast.Tuple | ast.List):
        for index, each in enumerate(target.elts):
            if isinstance(each, ast.Name):
                yield each.id, Binding("element", each, value, index=index)


def imports_of(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Binding]]:
    """The names that an import statement binds."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                yield alias.asname, Binding("import", node, source=alias.name)
            else:
                top = alias.name.partition(".")[0]
                yield top, Binding("import", node, source=top)
        return
    for alias in node.names:
        yield (
            alias.asname or alias.name,
            Binding("from", node, source=node.module or "", name=alias.name, level=node.level),
        )


def _global_bindings(tree: ast.Module) -> Iterator[tuple[str, Binding]]:
    """Names that functions set by ``global``: a producer that is opened at start-up."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        names = {name for each in ast.walk(function) if isinstance(each, ast.Global) for name in each.names}
        if names:
            for name, binding in _collect_bindings(function.body):
                if name in names:
                    yield name, binding
