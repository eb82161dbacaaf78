"""Mutants: what one is, and which ones a file has.

Left out, since no test of behaviour can or should notice them: annotations, `if TYPE_CHECKING`, overloads, `__repr__`,
calls of a logger and of `warnings`, the texts of errors, how long these are (`show`) and all other f-strings,
assertions (they narrow types), a `zip`'s `strict`, sizes of caches, conditions on the version of Python and what only
other versions run, options of dataclasses and structs, the module's constants of time and the seconds of a `sleep`, and
`<` for `<=` beside the reading of a real clock (a variable of the file that holds one counts). Left out as well: the
assignments of a constructor, since every test would notice that one is missing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

#: By operator: its pattern in the text between its operands, and its replacements.
OPERATORS: Final[dict[type[ast.AST], tuple[str, tuple[str, ...]]]] = {
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: (r"is\s+not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: (r"not\s+in", ("in",)),
    ast.And: ("and", ("or",)),
    ast.Or: ("or", ("and",)),
    ast.Add: (r"\+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: (r"\*", ("//",)),
    ast.FloorDiv: ("//", ("*",)),
    ast.Div: ("/", ("*",)),
}
#: Calls of a logger and of `warnings`, type variables, and how much is cached.
LEFT_ALONE_CALL: Final = re.compile(
    r"(self\.)?_?(log|logger|logging|warnings)\.|TypeVar$|ParamSpec$|lru_cache$", re.IGNORECASE
)
READS_CLOCK: Final = re.compile(r"\b(time\.monotonic|loop\.time|_time|_monotonic|runtime\.monotonic)\(\)")
SMALL_NUMBER: Final = 20
TIME_CONSTANT: Final = re.compile(r"[A-Z]_(SECONDS|MINUTES|HOURS|DAYS|MS|US|NS|S)$")


@dataclass(frozen=True)
class Mutant:
    """``source[start:end]`` of ``path`` (inside the package) is replaced by ``replacement``."""

    path: str
    line: int
    kind: str
    start: int
    end: int
    replacement: bytes
    before: str  # the changed lines, each without its indentation
    after: str
    in_function: bool  # in its body; else it is run by an import

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.replacement + source[self.end :]

    @property
    def identity(self) -> tuple[str, str, str]:
        """What stays the same when lines move."""
        return self.path, self.before, self.after

    @property
    def diff(self) -> str:
        """The changed lines, `-` before and `+` after."""
        signed = ((sign, line) for sign, text in (("-", self.before), ("+", self.after)) for line in text.splitlines())
        return "\n".join(f"    {sign} {line}" for sign, line in signed)

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.kind}"


def mutants_below(package: Path, rooms: Iterable[str]) -> list[Mutant]:
    """Every mutant of the modules in ``rooms``, which are folders of the package or modules of it."""
    places = [package / room for room in rooms]
    files = sorted({file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])})
    return [m for file in files for m in mutants_of(str(file.relative_to(package)), file.read_bytes())]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Every mutant of a file, in the order of its text."""
    file = _File(path, source)
    mutants = [mutant for node in _changeable(file.tree) for mutant in file.mutants_at(node)]
    return sorted(mutants, key=lambda mutant: (mutant.start, mutant.end, mutant.replacement))


def _changeable(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for part in _changeable_parts(node):
        yield from _changeable(part)


def _changeable_parts(node: ast.AST) -> Iterable[ast.AST]:
    match node:
        case (
            ast.JoinedStr()
            | ast.Assert()
            | ast.arg()
            | ast.keyword(arg="strict" | "maxsize")
            | ast.FunctionDef(name="__repr__")
        ):
            return ()
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            if any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list):
                return ()
            return (node.args, *node.decorator_list, *node.body)
        case ast.ClassDef():
            return node.body
        case ast.Assign(targets=[ast.Name(id=name)]) if TIME_CONSTANT.search(name):
            return ()
        case ast.AnnAssign(target=target, value=value):
            timed = isinstance(target, ast.Name) and TIME_CONSTANT.search(target.id)
            return () if value is None or timed else (value,)
        case ast.If(test=test) if _is_type_checking(test):
            return ()
        case ast.If(test=test, body=body, orelse=others) if _asks_for_version(test):
            return body if eval(ast.unparse(test), {"sys": sys}) else others
        case ast.Call(func=ast.Attribute(attr="sleep"), args=[ast.Constant()]):
            return ()
        case ast.Call(func=ast.Name(id="show"), args=[shown, _]):  # the second is how much of a text is shown
            return (shown,)
        case ast.Call() if _is_left_alone(node):
            return ()
    return ast.iter_child_nodes(node)


def _is_left_alone(node: ast.Call) -> bool:
    return LEFT_ALONE_CALL.match(ast.unparse(node.func)) is not None


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test).endswith("TYPE_CHECKING")


def _asks_for_version(test: ast.expr) -> bool:
    return ast.unparse(test).startswith("sys.version_info ")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


class _File:
    def __init__(self, path: str, source: bytes) -> None:
        self.tree = ast.parse(source)
        self._path = path
        self._source = source
        self._line_starts = [0]
        for line in source.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))
        functions = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        self._function_lines = {
            line
            for function in functions
            for line in range(function.body[0].lineno, (function.end_lineno or function.lineno) + 1)
        }
        self._clock_readings = {
            target.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign) and READS_CLOCK.search(ast.unparse(node.value))
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        constructors = (function for function in functions if function.name == "__init__")
        self._in_constructors = {node for constructor in constructors for node in ast.walk(constructor)}

    def mutants_at(self, node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.Compare(left=left, ops=operators, comparators=others):
                for before, operator, after in zip([left, *others], operators, others, strict=False):
                    yield from self._swap_operator("comparison", before, operator, after)
            case ast.BoolOp(op=operator, values=values):
                for before, after in pairwise(values):
                    yield from self._swap_operator("and/or", before, operator, after)
            case ast.BinOp(left=left, op=operator, right=right) | ast.AugAssign(target=left, op=operator, value=right):
                if type(operator) in OPERATORS and not _is_text(left) and not _is_text(right):
                    yield from self._swap_operator("arithmetic", left, operator, right)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._replace("not", node, self._text(operand))
            case ast.Constant(value=bool(value)):
                yield self._replace("boolean", node, str(not value))
            case ast.Constant(value=int(value) | float(value)):
                # A limit of 4096 may be off by one unnoticed, and a time of 5.0 seconds by another.
                other = value + 1 if isinstance(value, int) and value < SMALL_NUMBER else 2 * value
                yield self._replace("number", node, repr(other or 1.0))
            case (
                ast.If(test=test)
                | ast.While(test=test)
                | ast.IfExp(test=test)
                | ast.match_case(guard=ast.expr() as test)
            ):
                yield from self._negate(test)
            case ast.comprehension(ifs=conditions):
                for condition in conditions:
                    yield from self._negate(condition)
            case ast.Expr(value=ast.Call() as call) | ast.Expr(value=ast.Await(value=ast.Call() as call)):
                if not _is_left_alone(call):
                    yield self._replace("removed call", node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]) | ast.AnnAssign(target=ast.Attribute()):
                if node not in self._in_constructors:
                    yield self._replace("removed assignment", node, "pass")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Compare | ast.Constant):
                yield self._replace("return value", value, "None")
            case ast.Raise():
                yield self._replace("removed raise", node, "pass")
            case ast.Break():
                yield self._replace("break/continue", node, "continue")
            case ast.Continue():
                yield self._replace("break/continue", node, "break")

    def _negate(self, test: ast.expr) -> Iterator[Mutant]:
        changed_itself = isinstance(test, ast.Compare | ast.UnaryOp | ast.Constant)
        if not changed_itself and not _is_type_checking(test):
            yield self._replace("condition", test, f"not ({self._text(test)})")

    def _replace(self, kind: str, node: ast.stmt | ast.expr, text: str) -> Mutant:
        return self._mutant(kind, *self._span(node), text)

    def _mutant(self, kind: str, start: int, end: int, text: str) -> Mutant:
        source = self._source
        line = source.count(b"\n", 0, start) + 1
        first, last = source.rfind(b"\n", 0, start) + 1, source.find(b"\n", end)
        before, after = source[first:last], source[first:start] + text.encode() + source[end:last]
        before_text, after_text = ("\n".join(map(str.strip, part.decode().splitlines())) for part in (before, after))
        in_function = line in self._function_lines
        return Mutant(self._path, line, kind, start, end, text.encode(), before_text, after_text, in_function)

    def _swap_operator(self, kind: str, left: ast.expr, operator: ast.AST, right: ast.expr) -> Iterator[Mutant]:
        """The operator stands between its operands, and perhaps between parentheses of theirs."""
        pattern, replacements = OPERATORS[type(operator)]
        (_, last), (after, _) = self._span(left), self._span(right)
        match = re.search(pattern.encode(), self._source[last:after])
        assert match is not None, f"{self._path}:{left.lineno} has no {pattern}"
        if self._reads_clock(left) or self._reads_clock(right):  # it never stands at the boundary
            replacements = tuple(other for other in replacements if other.strip("=") != match[0].decode().strip("="))
        for replacement in replacements:
            yield self._mutant(kind, last + match.start(), last + match.end(), replacement)

    def _reads_clock(self, operand: ast.expr) -> bool:
        names = {node.id for node in ast.walk(operand) if isinstance(node, ast.Name)}
        return READS_CLOCK.search(self._text(operand)) is not None or not names.isdisjoint(self._clock_readings)

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._line_starts[node.lineno - 1] + node.col_offset,
            self._line_starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()
