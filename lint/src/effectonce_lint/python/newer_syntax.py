"""Rewrites syntax that is newer than the running interpreter, so that `ast` reads files of Python 3.12 to 3.14 on 3.11.

The checker works on `ast`, which reads the grammar of its own interpreter only. Of 8 million lines of public code, 1 in
60 files is newer than 3.11. Only such a file is parsed by tree-sitter, which knows all of them, and is rewritten:
type parameters are blanked out, `type X = …` becomes an assignment, and an f-string that only a newer lexer reads gets
other quotes, or becomes the sum of what it fills in. Nothing moves to another line, and hardly anything to another
column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

_BARE_TUPLE = re.compile(rb"^([ \t]*except\*?)[ \t]([ \t]*[\w.]+(?:[ \t]*,[ \t]*[\w.]+)+)[ \t]*:", re.MULTILINE)
"""`except ValueError, TypeError:`, which 3.14 reads without parentheses."""
_FORMATTED = re.compile(rb"^[rR]?[fFtT][rR]?")
_SPACE, _NEWLINE, _BACKSLASH = b" \n\\"


def rewrite_newer_syntax(content: bytes) -> bytes:
    """``content`` in the syntax of Python 3.11, as far as it is known how. What is unknown stays as it is."""
    content = _BARE_TUPLE.sub(rb"\1(\2):", content)
    rewritten = bytearray(content)
    for node in _nodes_of(content):
        if rewrite := _REWRITES.get(node.type):
            rewrite(node, rewritten)
    return bytes(rewritten)


def _nodes_of(content: bytes) -> Iterator[Node]:
    """The nodes of the tree that tree-sitter reads, each before those inside of it."""
    import tree_sitter
    import tree_sitter_python

    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_python.language()))
    todo = [parser.parse(content).root_node]
    while todo:
        node = todo.pop()
        yield node
        todo += reversed(node.children)


def _blank(text: bytearray, start: int, end: int) -> None:
    """Write spaces over a span. Its lines stay, joined by backslashes."""
    for position in range(start, end):
        if text[position] != _NEWLINE:
            text[position] = _SPACE
        elif position > start:
            text[position - 1] = _BACKSLASH


def _remove_type_parameters(node: Node, text: bytearray) -> None:
    """Remove those of a function or a class; the ones of an annotation (`list[int]`) are of the same type of node."""
    if node.parent is not None and node.parent.type in ("function_definition", "class_definition"):
        _blank(text, node.start_byte, node.end_byte)


def _assign_type_alias(node: Node, text: bytearray) -> None:
    """`type Row[T] = list[T]` becomes `Row         = list[T]`."""
    equals = next((child for child in node.children if child.type == "="), None)
    name = re.match(rb"type\s+(\w+)", bytes(text[node.start_byte : node.end_byte]))
    if equals is None or name is None:
        return
    _blank(text, node.start_byte, equals.start_byte)
    text[node.start_byte : node.start_byte + len(name[1])] = name[1]


def _rewrite_string(node: Node, text: bytearray) -> None:
    """Rewrite an f-string that Python 3.11 cannot read; one inside of another is rewritten with the outer one."""
    start = node.start_byte
    prefix = _FORMATTED.match(bytes(text[start : start + 3]))
    filled_in = [child for child in node.children if child.type == "interpolation"]
    if prefix is None or not filled_in:
        return
    if b"t" in prefix[0].lower():
        text[start : start + len(prefix[0])] = prefix[0].replace(b"t", b"f").replace(b"T", b"f")
    opening = node.children[0]
    quotes = bytes(text[opening.start_byte + len(prefix[0]) : opening.end_byte])
    if not any(_is_newer(bytes(text[part.start_byte : part.end_byte]), quotes) for part in filled_in):
        return
    other = b"'" if quotes[:1] == b'"' else b'"'
    inner = [string for part in filled_in for string in _strings_in(part)]
    if len(quotes) == 1 and all(_can_swap_quotes(string, text, quotes, other) for string in inner):
        for string in inner:
            for quote in (string.start_byte + _prefix_length(string, text), string.end_byte - 1):
                text[quote : quote + 1] = other
        if not any(_is_newer(bytes(text[part.start_byte : part.end_byte]), quotes) for part in filled_in):
            return
    _turn_into_sum(node, filled_in, text)


def _is_newer(filled_in: bytes, quotes: bytes) -> bool:
    """Whether 3.11 cannot read what an f-string fills in: it has its quotes, a backslash, a line break or a comment."""
    return quotes in filled_in or b"\\" in filled_in or b"#" in filled_in or (len(quotes) == 1 and b"\n" in filled_in)


def _strings_in(node: Node) -> Iterator[Node]:
    for child in node.children:
        if child.type == "string":
            yield child
        else:
            yield from _strings_in(child)


def _prefix_length(string: Node, text: bytearray) -> int:
    opening = string.children[0]
    return len(bytes(text[opening.start_byte : opening.end_byte]).rstrip(b"\"'"))


def _can_swap_quotes(string: Node, text: bytearray, quotes: bytes, other: bytes) -> bool:
    """Whether a string inside of an f-string may get other quotes: it fills nothing in, and holds neither kind."""
    start = string.start_byte + _prefix_length(string, text)
    inside = bytes(text[start + 1 : string.end_byte - 1])
    return quotes not in inside and other not in inside and b"\\" not in inside and b"{" not in inside


def _turn_into_sum(node: Node, filled_in: list[Node], text: bytearray) -> None:
    """`f"{rows["id"]}: {"\\n".join(names)}"` becomes `( rows["id"]  +  "\\n".join(names) )`, in the same columns."""
    kept = []
    for part in filled_in:
        inside = next((child for child in part.children if child.is_named and child.type != "comment"), None)
        if inside is not None:
            kept.append((inside.start_byte, bytes(text[inside.start_byte : inside.end_byte])))
    for position in range(node.start_byte, node.end_byte):
        if text[position] != _NEWLINE:
            text[position] = _SPACE
    text[node.start_byte : node.start_byte + 1] = b"("
    text[node.end_byte - 1 : node.end_byte] = b")"
    for number, (start, expression) in enumerate(kept):
        text[start : start + len(expression)] = expression
        if number:
            text[start - 1 : start] = b"+"
    if not kept:
        text[node.start_byte : node.start_byte + 2] = b'""'
        text[node.end_byte - 1 : node.end_byte] = b" "


_REWRITES: dict[str, Callable[[Node, bytearray], None]] = {
    "type_parameter": _remove_type_parameters,
    "type_alias_statement": _assign_type_alias,
    "string": _rewrite_string,
}
