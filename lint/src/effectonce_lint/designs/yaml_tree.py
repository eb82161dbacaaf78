"""YAML and JSON as a tree that knows its lines. Built from events, one by one: neither depth nor aliases can hurt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from effectonce_lint.findings import Place
from effectonce_lint.python.modules import UnreadableFile

from .model import Phrase

MAX_DESIGN_BYTES = 1024 * 1024
_MAX_NODES = 60_000
_MAX_EXPANDED_NODES = 300_000
_MAX_DEPTH = 100


@dataclass(slots=True, eq=False)
class YamlNode:
    """A scalar, a list or a mapping. ``text`` is a scalar's; ``tag`` what stands before it (`!GetAtt`)."""

    kind: str
    at: Place
    text: str = ""
    tag: str = ""
    items: list[YamlNode] = field(default_factory=list)
    fields: dict[str, YamlNode] = field(default_factory=dict)
    keys: dict[str, Place] = field(default_factory=dict)

    def get(self, *names: str) -> YamlNode | None:
        """The first field of one of these names, whatever their case and joiners."""
        if self.kind != "map":
            return None
        wanted = {_normalize(name) for name in names}
        for name, node in self.fields.items():
            if _normalize(name) in wanted:
                return node
        return None

    def phrase(self, *names: str) -> Phrase | None:
        """A field's text, whatever it is made of."""
        node = self.get(*names)
        return Phrase(node.flat_text(), node.at) if node is not None else None

    def flat_text(self) -> str:
        """All text below, in one line; what YAML calls true is "true"."""
        if self.kind == "scalar":
            return self.text
        parts: list[str] = []
        for depth, node in enumerate(_descendants(self)):
            if node.kind == "scalar":
                parts.append(node.text)
            if depth > 200:
                break
        return " ".join(parts)

    def number(self, *names: str) -> float | None:
        node = self.get(*names)
        if node is None or node.kind != "scalar":
            return None
        try:
            return float(node.text.replace("_", ""))
        except ValueError:
            return None


def _normalize(name: str) -> str:
    return re.sub(r"[\s_\-.]", "", name).lower()


def _descendants(node: YamlNode) -> Iterator[YamlNode]:
    todo = [node]
    seen = 0
    while todo and seen < 400:
        each = todo.pop(0)
        seen += 1
        yield each
        todo[:0] = [*each.items, *each.fields.values()]


def load_documents(path: str, content: bytes) -> list[YamlNode]:
    """The documents of a file; `UnreadableFile` where it is not YAML, or is a bomb."""
    if len(content) > MAX_DESIGN_BYTES:
        raise UnreadableFile(f"larger than {MAX_DESIGN_BYTES // 1024} KiB, so it was not checked")
    import yaml  # here, because most runs meet no YAML

    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableFile("not text in UTF-8") from None
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        roots = _compose(path, yaml.parse(text, Loader=loader), yaml)
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


def _compose(path: str, events: Any, yaml: Any) -> list[YamlNode]:
    roots: list[YamlNode] = []
    open_: list[tuple[YamlNode, list[YamlNode | None]]] = []
    anchors: dict[str, YamlNode] = {}
    sizes: dict[int, int] = {}

    def put(node: YamlNode) -> None:
        if not open_:
            roots.append(node)
            return
        parent, waiting = open_[-1]
        if parent.kind == "list":
            parent.items.append(node)
        elif not waiting:
            waiting.append(node)
        else:
            key = waiting.pop()
            assert key is not None
            name = key.text if key.kind == "scalar" else f"<{len(parent.fields)}>"
            parent.keys[name] = key.at
            if name == "<<" and node.kind == "map":
                for other, value in node.fields.items():
                    parent.fields.setdefault(other, value)
            else:
                parent.fields[name] = node
        total = sizes.get(id(parent), 1) + sizes.get(id(node), 1)
        if total > _MAX_EXPANDED_NODES:
            raise UnreadableFile(f"its aliases expand to more than {_MAX_EXPANDED_NODES} nodes", node.at.line)
        sizes[id(parent)] = total

    for count, event in enumerate(events):
        if count > _MAX_NODES:
            raise UnreadableFile(f"more than {_MAX_NODES} nodes, so it was not checked")
        if isinstance(event, yaml.AliasEvent):
            known = anchors.get(event.anchor)
            if known is None:
                raise UnreadableFile(f"not valid YAML: there is no anchor {event.anchor!r}", event.start_mark.line + 1)
            put(known)
        elif isinstance(event, yaml.ScalarEvent):
            node = YamlNode("scalar", _place_of_event(path, event), text=event.value, tag=event.tag or "")
            if event.anchor:
                anchors[event.anchor] = node
            put(node)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            kind = "list" if isinstance(event, yaml.SequenceStartEvent) else "map"
            node = YamlNode(kind, _place_of_event(path, event), tag=event.tag or "")
            if len(open_) >= _MAX_DEPTH:
                raise UnreadableFile(f"nested more than {_MAX_DEPTH} deep", event.start_mark.line + 1)
            open_.append((node, []))
            if event.anchor:
                anchors[event.anchor] = node
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            node = open_.pop()[0]
            put(node)
    return roots


def _place_of_event(path: str, event: Any) -> Place:
    start, end = event.start_mark, event.end_mark
    if end.line != start.line or end.column <= start.column:
        return Place(path, start.line + 1, start.column + 1, start.line + 1, start.column + 2)
    return Place(path, start.line + 1, start.column + 1, end.line + 1, end.column + 1)


def walk_fields(node: YamlNode, most: int = 20_000) -> Iterator[tuple[str, Place, YamlNode]]:
    """Every field below: its name, where that stands, and its value. Shared parts once."""
    todo: list[YamlNode] = [node]
    seen: set[int] = set()
    while todo and most > 0:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        most -= 1
        for name, value in each.fields.items():
            yield name, each.keys.get(name, value.at), value
            todo.append(value)
        todo.extend(each.items)
