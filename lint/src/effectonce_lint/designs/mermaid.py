"""Mermaid flowcharts and sequence diagrams, as far as they name queues and who reads them."""

from __future__ import annotations

import re
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
_MAX_ARROWS = 3_000


@dataclass(slots=True)
class _Arrow:
    start: str
    end: str
    label: str
    line: int


@dataclass(slots=True)
class _Chart:
    labels: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    arrows: list[_Arrow] = field(default_factory=list)


def read(path: str, lines: list[str], first: int) -> Design:
    """The consumers of one diagram whose lines begin at line ``first`` of the file."""
    head = next((line.strip() for line in lines if line.strip() and not line.strip().startswith(("%%", "---"))), "")
    if head.startswith("sequenceDiagram"):
        return _read_sequence(path, lines, first)
    if head.startswith(("flowchart", "graph")):
        return _read_flowchart(path, lines, first)
    return Design()


def _place_of_line(path: str, lines: list[str], number: int, first: int) -> Place:
    return place_of_line(path, number, lines[number - first])


# -- flowcharts


def _read_flowchart(path: str, lines: list[str], first: int) -> Design:
    chart = _Chart()
    for number, line in enumerate(lines[:_MAX_ARROWS], first):
        _read_flowchart_line(chart, line.strip()[:1000], number)
    design = Design()
    queues = {name for name in chart.labels if _QUEUE.search(chart.labels[name]) or _QUEUE.search(name)}
    for arrow in chart.arrows:
        if arrow.start not in queues or arrow.end in queues:
            continue
        name = arrow.end
        after = _arrows_from(chart, name, queues)
        words = [chart.labels[name], arrow.label, *(f"{each.label} {chart.labels[each.end]}" for each in after)]
        guarded = next((each for each in words if _GUARD.search(each)), "")
        at = _place_of_line(path, lines, chart.lines.get(name, arrow.line), first)
        consumer = DescribedConsumer(chart.labels[name], at, queue=chart.labels[arrow.start])
        if guarded:
            consumer.dedup = Phrase("described", consumer.at)
        for each in after:
            text = f"{each.label} {chart.labels[each.end]}".strip()
            consumer.effects.append(Phrase(text, _place_of_line(path, lines, each.line, first)))
        design.consumers.append(consumer)
    return design


def _read_flowchart_line(chart: _Chart, line: str, number: int) -> None:
    if not line or line.startswith(
        (
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
    ):
        return
    line = _LABELLED.sub(lambda found: f"-->|{found.group(1).strip()}|", line)
    position = 0
    before: list[str] = []
    label = ""
    while position < len(line):
        group: list[str] = []
        while True:
            found = _NODE.match(line, position)
            if not found:
                break
            name = found.group(1)
            text = (found.group(3) or "").strip().strip('"')
            if text or name not in chart.labels:
                chart.labels[name] = re.sub(r"<br\s*/?>", " ", text) or name
                chart.lines.setdefault(name, number)
            group.append(name)
            position = found.end()
            more = re.match(r"\s*&\s*", line[position:])
            if not more:
                break
            position += more.end()
        for start in before:
            chart.arrows += [_Arrow(start, end, label, number) for end in group]
        arrow = _ARROW.match(line, position)
        if not arrow or arrow.end() == position or not group:
            return
        label = (arrow.group(1) or "").strip().strip('"')
        before = group
        position = arrow.end()


def _arrows_from(chart: _Chart, name: str, queues: set[str]) -> list[_Arrow]:
    """What follows a consumer, up to three steps, without going through another queue's reader."""
    out: list[_Arrow] = []
    edge, seen = [name], {name}
    for _ in range(3):
        following: list[str] = []
        for arrow in chart.arrows:
            if arrow.start in edge:
                out.append(arrow)
                if arrow.end not in seen and arrow.end not in queues:
                    seen.add(arrow.end)
                    following.append(arrow.end)
        edge = following
    return out


# -- sequence diagrams


def _read_sequence(path: str, lines: list[str], first: int) -> Design:
    names: dict[str, str] = {}
    where: dict[str, int] = {}
    messages: list[_Arrow] = []
    notes: list[tuple[int, str]] = []
    for number, line in enumerate(lines[:_MAX_ARROWS], first):
        line = line[:1000]
        if found := _PARTICIPANT.match(line):
            names[found.group(1)] = found.group(2) or found.group(1)
            where[found.group(1)] = number
        elif found := _MESSAGE.match(line):
            start, end = found.group(1).strip(), found.group(3).strip()
            for each in (start, end):
                names.setdefault(each, each)
                where.setdefault(each, number)
            messages.append(_Arrow(start, end, found.group(4).strip(), number))
        elif re.match(r"^\s*(?:note|alt|opt|else|break|critical|par|loop)\b", line, re.IGNORECASE):
            notes.append((number, line.strip()))
    queues = {name for name, title in names.items() if _QUEUE.search(title) or _QUEUE.search(name)}
    design = Design()
    seen: set[str] = set()
    for delivery in messages:
        name = delivery.end
        if delivery.start not in queues or name in queues or name in seen:
            continue
        seen.add(name)
        after = [each for each in messages if each.start == name and each.line > delivery.line]
        acks = [each for each in after if each.end in queues and _ACK.search(each.label)]
        effects = [each for each in after if each not in acks and each.end != name]
        words = [
            each.label + " " + names[each.end]
            for each in messages
            if name in (each.start, each.end) and each.line >= delivery.line
        ]
        words += [text for line, text in notes if line > delivery.line]
        consumer = DescribedConsumer(
            names[name], _place_of_line(path, lines, where[name], first), queue=names[delivery.start]
        )
        if any(_GUARD.search(each) for each in words):
            consumer.dedup = Phrase("described", consumer.at)
        for each in effects:
            consumer.effects.append(
                Phrase(f"{each.label} {names[each.end]}".strip(), _place_of_line(path, lines, each.line, first))
            )
        design.consumers.append(consumer)
        if acks and effects and acks[0].line < effects[0].line and not consumer.dedup:
            at = _place_of_line(path, lines, acks[0].line, first)
            design.early_acks.append(Setting("the ack comes before the work", at, names[name]))
    return design
