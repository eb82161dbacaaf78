"""Mermaid flowcharts and sequence diagrams: their queues, and the consumers that arrows lead to from there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from effectonce_lint.findings import Place

from .model import DescribedConsumer, Design, Phrase, Setting, place_of_line

_QUEUE = re.compile(
    r"queue|topic|stream|kafka|sqs|rabbit|pub.?sub|event.?bus|message.?bus|broker|nats|service.?bus|kinesis|amqp|\bmq\b",
    re.IGNORECASE,
)
_GUARD = re.compile(
    r"dedup|idempot|inbox|already|seen|duplicate(?! deliver)|first\?|(?<!least[ -])(?<!most[ -])once|unique|claim"
    r"|on conflict|\bnx\b|processed",
    re.IGNORECASE,
)
_ACK = re.compile(r"^\s*(?:ack\w*|delete message|commit offset|basic\.ack|basic_ack)\b", re.IGNORECASE)
_NODE = re.compile(
    r"([A-Za-z_][\w-]*)\s*(?:@\{[^}]*\}|(\(\(|\[\[|\[\(|\(\[|\{\{|\[/|\[\\|>|\(|\[|\{)(.+?)(\)\)|\]\]|\)\]|\]\)|\}\}|/\]|\\\]|\)|\]|\}))?"
)
_ARROW = re.compile(r"\s*(?:<?--+>?|<?==+>?|-\.+->?|--+[ox]|~~~)\s*(?:\|([^|]*)\|)?\s*")
_LABELLED = re.compile(r"(?:--|==|-\.)\s+([^->|][^>|]*?)\s+(?:-->|---|==>|\.->)")
_MESSAGE = re.compile(r"^\s*([^\s:+-][^:]*?)\s*(?:<<)?(-->>|->>|-->|->|--x|-x|--\)|-\))\s*[+-]?\s*([^:]+?)\s*:\s*(.*)$")
_PARTICIPANT = re.compile(r"^\s*(?:create\s+)?(?:participant|actor)\s+(\S+?)(?:\s+as\s+(.+?))?\s*$")


_AND = re.compile(r"\s*&\s*")
_NOTE = re.compile(r"^\s*(?:note|alt|opt|else|break|critical|par|loop)\b", re.IGNORECASE)
#: Statements of a flowchart that have neither nodes nor arrows of its own.
_OTHER_STATEMENTS = (
    "%%",
    "flowchart",
    "graph",
    "subgraph",
    "end",
    "classDef",
    "class ",
    "style",
    "linkStyle",
    "click",
    "direction",
)
_MAX_LINES = 3_000
_MAX_LINE_LENGTH = 1_000
_MAX_STEPS = 3
"""How many arrows behind a consumer still lead to its effects; what is further away is another service's work."""

_PlaceOf = Callable[[int], Place]


@dataclass(slots=True)
class _FlowArrow:
    """An arrow of a flowchart, or a message of a sequence diagram. ``start`` and ``end`` are ids."""

    start: str
    end: str
    label: str
    line: int


@dataclass(slots=True)
class _Chart:
    """A diagram. ``titles`` and ``lines``: the text of each node or participant, and its first line, by id."""

    titles: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    arrows: list[_FlowArrow] = field(default_factory=list)

    def queues(self) -> set[str]:
        """The ids of the nodes that are queues by their text or id."""
        return {name for name, title in self.titles.items() if _QUEUE.search(title) or _QUEUE.search(name)}

    def describe(self, arrow: _FlowArrow) -> str:
        """The effect that an arrow stands for: its label, and the text of the node that it leads to."""
        return f"{arrow.label} {self.titles[arrow.end]}".strip()


def read(path: str, lines: list[str], first_line: int) -> Design:
    """Read the consumers of one diagram. ``first_line``: the number of its first line in the file."""

    def place_of(number: int) -> Place:
        return place_of_line(path, number, lines[number - first_line])

    numbered = [(number, line[:_MAX_LINE_LENGTH]) for number, line in enumerate(lines[:_MAX_LINES], first_line)]
    head = next((line.strip() for line in lines if line.strip() and not line.strip().startswith(("%%", "---"))), "")
    if head.startswith("sequenceDiagram"):
        return _read_sequence(numbered, place_of)
    if head.startswith(("flowchart", "graph")):
        return _read_flowchart(numbered, place_of)
    return Design()


# -- flowcharts


def _read_flowchart(numbered_lines: list[tuple[int, str]], place_of: _PlaceOf) -> Design:
    chart = _Chart()
    for number, line in numbered_lines:
        _read_flowchart_line(chart, line.strip(), number)
    design = Design()
    queues = chart.queues()
    for delivery in chart.arrows:
        if delivery.start not in queues or delivery.end in queues:
            continue
        name = delivery.end
        effects = _arrows_behind(chart, name, queues)
        texts = [chart.titles[name], delivery.label, *map(chart.describe, effects)]
        at = place_of(chart.lines.get(name, delivery.line))
        consumer = DescribedConsumer(chart.titles[name], at, queue=chart.titles[delivery.start])
        if any(map(_GUARD.search, texts)):
            consumer.dedup = Phrase("described", consumer.at)
        consumer.effects = [Phrase(chart.describe(arrow), place_of(arrow.line)) for arrow in effects]
        design.consumers.append(consumer)
    return design


def _read_flowchart_line(chart: _Chart, line: str, number: int) -> None:
    """Add the nodes and arrows of a line like `orders[(Orders)] -->|order| billing & mailer --> ledger`."""
    if not line or line.startswith(_OTHER_STATEMENTS):
        return
    line = _LABELLED.sub(lambda label: f"-->|{label.group(1).strip()}|", line)
    position = 0
    starts: list[str] = []
    label = ""
    while position < len(line):
        ends, position = _read_nodes(chart, line, position, number)
        for start in starts:
            chart.arrows += [_FlowArrow(start, end, label, number) for end in ends]
        arrow = _ARROW.match(line, position)
        if not arrow or arrow.end() == position or not ends:
            return
        label = (arrow.group(1) or "").strip().strip('"')
        starts = ends
        position = arrow.end()


def _read_nodes(chart: _Chart, line: str, position: int, number: int) -> tuple[list[str], int]:
    """Add the nodes that stand at ``position``, joined by `&`. Returns their ids, and the position behind them."""
    names: list[str] = []
    while node := _NODE.match(line, position):
        name = node.group(1)
        title = (node.group(3) or "").strip().strip('"')
        if title or name not in chart.titles:
            chart.titles[name] = re.sub(r"<br\s*/?>", " ", title) or name
            chart.lines.setdefault(name, number)
        names.append(name)
        position = node.end()
        joiner = _AND.match(line, position)
        if not joiner:
            break
        position = joiner.end()
    return names, position


def _arrows_behind(chart: _Chart, consumer: str, queues: set[str]) -> list[_FlowArrow]:
    """The arrows that follow a consumer, up to the next queue: what its consumer does is not this one's effect."""
    arrows: list[_FlowArrow] = []
    nodes, visited = [consumer], {consumer}
    for _ in range(_MAX_STEPS):
        next_nodes: list[str] = []
        for arrow in chart.arrows:
            if arrow.start in nodes:
                arrows.append(arrow)
                if arrow.end not in visited and arrow.end not in queues:
                    visited.add(arrow.end)
                    next_nodes.append(arrow.end)
        nodes = next_nodes
    return arrows


# -- sequence diagrams


def _read_sequence(numbered_lines: list[tuple[int, str]], place_of: _PlaceOf) -> Design:
    chart = _Chart()
    notes: list[tuple[int, str]] = []
    for number, line in numbered_lines:
        if participant := _PARTICIPANT.match(line):
            name = participant.group(1)
            chart.titles[name] = participant.group(2) or name
            chart.lines[name] = number
        elif message := _MESSAGE.match(line):
            start, end = message.group(1).strip(), message.group(3).strip()
            for name in (start, end):
                chart.titles.setdefault(name, name)
                chart.lines.setdefault(name, number)
            chart.arrows.append(_FlowArrow(start, end, message.group(4).strip(), number))
        elif _NOTE.match(line):
            notes.append((number, line.strip()))
    queues = chart.queues()
    design = Design()
    described: set[str] = set()
    for delivery in chart.arrows:
        name = delivery.end
        if delivery.start not in queues or name in queues or name in described:
            continue
        described.add(name)
        sent = [arrow for arrow in chart.arrows if arrow.start == name and arrow.line > delivery.line]
        acks = [arrow for arrow in sent if arrow.end in queues and _ACK.search(arrow.label)]
        effects = [arrow for arrow in sent if arrow not in acks and arrow.end != name]
        texts = [
            chart.describe(arrow)
            for arrow in chart.arrows
            if name in (arrow.start, arrow.end) and arrow.line >= delivery.line
        ]
        texts += [text for number, text in notes if number > delivery.line]
        consumer = DescribedConsumer(
            chart.titles[name], place_of(chart.lines[name]), queue=chart.titles[delivery.start]
        )
        if any(map(_GUARD.search, texts)):
            consumer.dedup = Phrase("described", consumer.at)
        consumer.effects = [Phrase(chart.describe(arrow), place_of(arrow.line)) for arrow in effects]
        design.consumers.append(consumer)
        if acks and effects and acks[0].line < effects[0].line and not consumer.dedup:
            design.early_acks.append(
                Setting("the ack comes before the work", place_of(acks[0].line), chart.titles[name])
            )
    return design
