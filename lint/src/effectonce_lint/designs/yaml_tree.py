"""YAML and JSON as a tree whose nodes know their lines.

It is built from the parser's events without recursion, with limits on depth and size, so that no file can exhaust the
checker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from effectonce_lint.findings import Place
from effectonce_lint.python.modules import UnreadableFile

from .model import Phrase

MAX_DESIGN_BYTES = 1024 * 1024
_MAX_NODES = 60_000
_MAX_EXPANDED_NODES = 300_000
_MAX_DEPTH = 100
_MAX_TEXT_NODES = 200  # enough to find the words that the rules look for
_MAX_WALKED_NODES = 20_000


@dataclass(slots=True, eq=False)
class YamlNode:
    """A scalar, a list or a mapping.

    ``text`` is the text of a scalar, ``tag`` the YAML tag before it (`!GetAtt`); ``key_places`` says where the names of
    the fields stand.
    """

    kind: Literal["scalar", "list", "map"]
    at: Place
    text: str = ""
    tag: str = ""
    items: list[YamlNode] = field(default_factory=list)
    fields: dict[str, YamlNode] = field(default_factory=dict)
    key_places: dict[str, Place] = field(default_factory=dict)

    def get(self, *names: str) -> YamlNode | None:
        """The value of the first field with one of these names, ignoring case, spaces, `_`, `-` and `.`."""
        if self.kind != "map":
            return None
        normalized_names = {_normalize(name) for name in names}
        for name, node in self.fields.items():
            if _normalize(name) in normalized_names:
                return node
        return None

    def phrase(self, *names: str) -> Phrase | None:
        """The text of such a field; of a list or a mapping, the texts of its scalars."""
        node = self.get(*names)
        return Phrase(node.flat_text(), node.at) if node is not None else None

    def flat_text(self) -> str:
        """The texts of all scalars below, joined by spaces."""
        if self.kind == "scalar":
            return self.text
        nodes = islice(_descendants(self), _MAX_TEXT_NODES)
        return " ".join(node.text for node in nodes if node.kind == "scalar")

    def number(self, *names: str) -> float | None:
        """The number that such a field holds, or None."""
        node = self.get(*names)
        if node is None or node.kind != "scalar":
            return None
        try:
            return float(node.text.replace("_", ""))
        except ValueError:
            return None


def _normalize(name: str) -> str:
    return re.sub(r"[\s_\-.]", "", name).lower()


def _descendants(root: YamlNode) -> Iterator[YamlNode]:
    """``root`` and all nodes below it, in the order of the file. Nodes under several aliases come several times."""
    pending = [root]
    while pending:
        node = pending.pop(0)
        yield node
        pending[:0] = [*node.items, *node.fields.values()]


def load_documents(path: str, content: bytes) -> list[YamlNode]:
    """Parse the documents of a file. Raises `UnreadableFile` if it is not valid YAML or JSON, or is too large."""
    if len(content) > MAX_DESIGN_BYTES:
        raise UnreadableFile(f"larger than {MAX_DESIGN_BYTES // 1024} KiB, so it was not checked")
    import yaml  # here, because most runs meet no YAML

    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableFile("not text in UTF-8") from None
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        roots = _build_trees(path, yaml.parse(text, Loader=loader), yaml)
        if path.lower().endswith(".json"):
            json.loads(text)  # YAML takes more than JSON does
        return roots
    except json.JSONDecodeError as error:
        raise UnreadableFile(f"not valid JSON: {error.msg}", error.lineno, error.colno) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise UnreadableFile(f"not valid YAML: {problem}", line, column) from None
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"not valid YAML: {error}") from None


@dataclass(slots=True)
class _OpenNode:
    """A list or mapping that is not closed yet; in a mapping, ``key`` waits for its value."""

    node: YamlNode
    key: YamlNode | None = None


class _TreeBuilder:
    """Builds the documents of a file from YAML events. ``open_nodes`` has the outermost node first."""

    def __init__(self) -> None:
        self.documents: list[YamlNode] = []
        self.open_nodes: list[_OpenNode] = []
        self.expanded_sizes: dict[int, int] = {}  # by id: the nodes below, with aliases counted each time

    def open(self, node: YamlNode) -> None:
        """Begin a list or mapping."""
        if len(self.open_nodes) >= _MAX_DEPTH:
            raise UnreadableFile(f"nested more than {_MAX_DEPTH} deep", node.at.line)
        self.open_nodes.append(_OpenNode(node))

    def close(self) -> None:
        """End the innermost open node, and add it to the one around it."""
        self.add(self.open_nodes.pop().node)

    def add(self, node: YamlNode) -> None:
        """Add ``node`` to the innermost open node.

        In a mapping, the first of two nodes is a key, the second its value.
        """
        if not self.open_nodes:
            self.documents.append(node)
            return
        innermost = self.open_nodes[-1]
        if innermost.node.kind == "list":
            innermost.node.items.append(node)
        elif innermost.key is None:
            innermost.key = node
        else:
            _add_field(innermost.node, innermost.key, node)
            innermost.key = None
        self._count_expanded(innermost.node, node)

    def _count_expanded(self, parent: YamlNode, child: YamlNode) -> None:
        size = self.expanded_sizes.get(id(parent), 1) + self.expanded_sizes.get(id(child), 1)
        if size > _MAX_EXPANDED_NODES:
            raise UnreadableFile(f"its aliases expand to more than {_MAX_EXPANDED_NODES} nodes", child.at.line)
        self.expanded_sizes[id(parent)] = size


def _add_field(mapping: YamlNode, key: YamlNode, value: YamlNode) -> None:
    """Set a field. The key ``<<`` merges another mapping into this one; own fields win."""
    name = key.text if key.kind == "scalar" else f"<{len(mapping.fields)}>"
    mapping.key_places[name] = key.at
    if name == "<<" and value.kind == "map":
        for merged_name, merged_value in value.fields.items():
            mapping.fields.setdefault(merged_name, merged_value)
    else:
        mapping.fields[name] = value


def _build_trees(path: str, events: Any, yaml: Any) -> list[YamlNode]:
    builder = _TreeBuilder()
    anchors: dict[str, YamlNode] = {}
    for count, event in enumerate(events):
        if count > _MAX_NODES:
            raise UnreadableFile(f"more than {_MAX_NODES} nodes, so it was not checked")
        if isinstance(event, yaml.AliasEvent):
            target = anchors.get(event.anchor)
            if target is None:
                raise UnreadableFile(f"not valid YAML: there is no anchor {event.anchor!r}", event.start_mark.line + 1)
            builder.add(target)
        elif isinstance(event, yaml.ScalarEvent):
            node = YamlNode("scalar", _place_of_event(path, event), text=event.value, tag=event.tag or "")
            if event.anchor:
                anchors[event.anchor] = node
            builder.add(node)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            kind: Literal["list", "map"] = "list" if isinstance(event, yaml.SequenceStartEvent) else "map"
            node = YamlNode(kind, _place_of_event(path, event), tag=event.tag or "")
            if event.anchor:
                anchors[event.anchor] = node
            builder.open(node)
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            builder.close()
    return builder.documents


def _place_of_event(path: str, event: Any) -> Place:
    start, end = event.start_mark, event.end_mark
    if end.line != start.line or end.column <= start.column:
        return Place(path, start.line + 1, start.column + 1, start.line + 1, start.column + 2)
    return Place(path, start.line + 1, start.column + 1, end.line + 1, end.column + 1)


def walk_fields(root: YamlNode) -> Iterator[tuple[str, YamlNode]]:
    """Every field below: its name and its value. A node that several aliases name is visited once."""
    pending = [root]
    visited: set[int] = set()
    while pending and len(visited) < _MAX_WALKED_NODES:
        node = pending.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        for name, value in node.fields.items():
            yield name, value
            pending.append(value)
        pending.extend(node.items)
