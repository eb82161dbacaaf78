"""One file as a module: its syntax tree, the bindings of its names, its classes, and the places of its nodes."""

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
from typing import TYPE_CHECKING, Literal

from effectonce_lint.findings import Place

from . import sql
from .in_process_queues import QueueReader, find_readers
from .newer_syntax import rewrite_newer_syntax

if TYPE_CHECKING:
    from .values import Value

MAX_FILE_BYTES = 4 * 1024 * 1024
"""Larger files are not read. A syntax tree takes a hundred times as much memory."""

_PARSE_RECURSION_LIMIT = 3000
"""Python's own recursion limit while it parses: a chain of `a + b + c` is as deep as it is long."""

FunctionDefinition = ast.FunctionDef | ast.AsyncFunctionDef


class UnreadableFile(Exception):
    """A file cannot be checked. The error says what is wrong, and where."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.line = max(line, 1)
        self.column = max(column, 1)


def digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def parse(content: bytes) -> ast.Module:
    """The syntax tree of a file, whatever version of Python it is for.

    Raises `UnreadableFile` if it is not Python, or nested too deeply.
    """
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _PARSE_RECURSION_LIMIT))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return ast.parse(content)
            except SyntaxError:
                rewritten = rewrite_newer_syntax(content)
                if rewritten == content:
                    raise
                return ast.parse(rewritten)
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
    """A statement that binds a name of a module."""

    kind: Literal["import", "from", "def", "class", "value", "element", "with"]
    node: ast.AST | None = None
    """The statement or, of a value or an element, the name itself."""
    value: ast.expr | None = None
    """What is assigned; of an element, the whole sequence; of a `with`, the context manager."""
    annotation: ast.expr | None = None
    source: str = ""
    """The module that an import names, without the dots of a relative one."""
    name: str = ""
    """What a `from` import takes from it."""
    level: int = 0
    """How many dots a relative import begins with."""
    index: int = 0
    """The position of an element in its sequence."""


@dataclass(eq=False)
class ClassDefinition:
    """A class of the project."""

    node: ast.ClassDef
    module: Module
    bases: list[Value] | None = None
    """The classes that it derives from. None until the walk evaluates them."""

    @property
    def name(self) -> str:
        return self.node.name

    @cached_property
    def methods(self) -> dict[str, FunctionDefinition]:
        return {node.name: node for node in self.node.body if isinstance(node, FunctionDefinition)}

    @cached_property
    def abstract_methods(self) -> frozenset[str]:
        """The names of methods without a body: derived classes implement them."""
        return frozenset(name for name, method in self.methods.items() if _is_stub(method))

    @cached_property
    def attributes(self) -> dict[str, tuple[ast.expr | None, ast.expr | None]]:
        """The attributes of the class itself: name to (value, annotation)."""
        attributes: dict[str, tuple[ast.expr | None, ast.expr | None]] = {}
        for node in self.node.body:
            for target, value, annotation in _assignments_of(node):
                if isinstance(target, ast.Name):
                    attributes[target.id] = (value, annotation)
        return attributes

    @cached_property
    def self_assignments(self) -> dict[str, list[tuple[ast.expr | None, ast.expr | None, FunctionDefinition]]]:
        """The assignments of methods to ``self``: name to (value, annotation, method), those of ``__init__`` first."""
        assignments: dict[str, list[tuple[ast.expr | None, ast.expr | None, FunctionDefinition]]] = {}
        initializers = ("__init__", "__post_init__")
        for method in sorted(self.methods.values(), key=lambda method: method.name not in initializers):
            for node in ast.walk(method):
                for target, value, annotation in _assignments_of(node):
                    match target:
                        case ast.Attribute(value=ast.Name(id="self"), attr=name):
                            assignments.setdefault(name, []).append((value, annotation, method))
        return assignments


def _assignments_of(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None, ast.expr | None]]:
    """(target, value, annotation) of each assignment in a statement. `self.a, self.b = a, b` is two."""
    if isinstance(node, ast.AnnAssign):
        yield node.target, node.value, node.annotation
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            match target, node.value:
                case ((ast.Tuple(targets) | ast.List(targets)), (ast.Tuple(values) | ast.List(values))):
                    yield from ((part, value, None) for part, value in zip(targets, values, strict=False))
                case _:
                    yield target, node.value, None


def _is_stub(method: FunctionDefinition) -> bool:
    """Whether a method's body does nothing: a docstring, `pass`, `...`, `raise NotImplementedError`."""
    for node in method.body:
        match node:
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
    """The values of its names, as far as a walk evaluated them."""
    has_signs: bool | None = None
    """Whether it mentions anything that a consumer needs. None: not looked for yet."""

    @property
    def directory(self) -> str:
        return os.path.dirname(self.path)

    @cached_property
    def lines(self) -> list[bytes]:
        """Its lines in UTF-8, whatever encoding the file has: a syntax tree counts columns in UTF-8."""
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
        """The names of the module, each with the statements that bind it."""
        bindings: dict[str, list[Binding]] = {}
        for name, binding in _collect_bindings(self.tree.body):
            bindings.setdefault(name, []).append(binding)
        if b"global " in self.content:
            for name, binding in _global_bindings(self.tree):
                bindings.setdefault(name, []).append(binding)
        return bindings

    @cached_property
    def imports(self) -> list[tuple[str, Binding]]:
        """The names that its own code imports, outside of functions."""
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
        """The in-process queues that this file makes, by name, each with its functions that take from it."""
        return find_readers(self)

    @cached_property
    def unique(self) -> dict[str, list[frozenset[str]]]:
        """The tables that this file creates, each with the sets of columns that it keeps unique."""
        return self._read_sql_literals(b"create table", sql.unique_columns)

    @cached_property
    def unique_indexes(self) -> dict[str, list[frozenset[str]]]:
        """The tables to which this file adds unique indexes or constraints, each with their sets of columns."""
        return self._read_sql_literals(b"unique", sql.unique_indexes)

    def _read_sql_literals(
        self, word: bytes, read: Callable[[str], dict[str, list[frozenset[str]]]]
    ) -> dict[str, list[frozenset[str]]]:
        """The unique keys, by table, that ``read`` finds in the string literals with ``word``."""
        keys_by_table: dict[str, list[frozenset[str]]] = {}
        for node in ast.walk(self.tree) if word in self.lowercase_content else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and word.decode() in node.value.lower():
                for table, keys in read(node.value).items():
                    keys_by_table.setdefault(table, []).extend(keys)
        return keys_by_table

    def place(self, node: ast.AST) -> Place:
        """The span of ``node``, in characters."""
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
        """The span of the name in ``def name``."""
        keyword = b"class" if isinstance(node, ast.ClassDef) else b"def"
        line = self.lines[node.lineno - 1] if node.lineno <= len(self.lines) else b""
        start = line.find(keyword, node.col_offset)
        start = line.find(node.name.encode(), start + len(keyword)) if start >= 0 else -1
        if start < 0:  # the name is on a later line
            return self.place(node)
        column = self._column(node.lineno, start)
        return Place(self.path, node.lineno, column, node.lineno, column + len(node.name))

    def _column(self, line: int, offset: int) -> int:
        """The column, in characters from 1, of a byte offset in a line."""
        if self.is_ascii or line > len(self.lines):
            return offset + 1
        return len(self.lines[line - 1][:offset].decode("utf-8", "replace")) + 1


def _collect_bindings(body: Iterable[ast.stmt]) -> Iterator[tuple[str, Binding]]:
    """The names that statements bind, also those in the blocks of `if`, loops, `try` and `with`."""
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
        for index, element in enumerate(target.elts):
            if isinstance(element, ast.Name):
                yield element.id, Binding("element", element, value, index=index)


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
    """The names that functions bind by ``global``: a producer that is opened at start-up."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        names = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
        if names:
            for name, binding in _collect_bindings(function.body):
                if name in names:
                    yield name, binding
