"""Markdown: consumers in tables, in Mermaid diagrams and in lists."""

from __future__ import annotations

import re

from effectonce_lint.findings import Place

from . import mermaid, prose
from .model import DescribedConsumer, Design, Phrase

_CONSUMER_HEAD = re.compile(
    r"^(?:consumer|handler|worker|subscriber|listener|processor|message handler|event handler|consumer / handler)s?$",
    re.IGNORECASE,
)
_GENERIC_HEAD = re.compile(r"^(?:service|component|application|app|system|name|who|module)s?$", re.IGNORECASE)
_CONSUMES = re.compile(r"subscri|consum|listens|reads|\bfrom\b|queue|topic", re.IGNORECASE)
#: The heads of the columns that describe a consumer.
_TOPICS = {
    "queue": re.compile(r"queue|topic|stream|channel|source|event|message|subscri|consumes|trigger", re.IGNORECASE),
    "effect": re.compile(r"effect|action|does|what it|writes|calls|side|operation|output", re.IGNORECASE),
    "dedup": re.compile(r"dedup|idempot|guard|duplicate|exactly", re.IGNORECASE),
    "key": re.compile(r"\bkey\b", re.IGNORECASE),
    "ack": re.compile(r"\back", re.IGNORECASE),
    "retention": re.compile(r"retention|ttl|remember|keep", re.IGNORECASE),
}
_FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(\S*)")
_RULE = re.compile(r"^\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)*\|?\s*$")
_MAX_LINE_LENGTH = 2_000


def read(path: str, text: str) -> Design:
    """Read the consumers of a document from its tables, its Mermaid diagrams and its lists."""
    design = Design()
    lines = text.splitlines()
    prose_lines = list(lines)  # with code blocks emptied
    position = 0
    while position < len(lines):
        line = lines[position]
        fence = _FENCE.match(line[:_MAX_LINE_LENGTH])
        if fence:
            end = _closing_fence(lines, position, fence.group(2))
            if fence.group(3).lower().strip("{}") == "mermaid":
                diagram = mermaid.read(path, lines[position + 1 : end], position + 2)
                design.consumers += diagram.consumers
                design.early_acks += diagram.early_acks
            prose_lines[position : end + 1] = [""] * len(prose_lines[position : end + 1])
            position = end + 1
        elif "|" in line and position + 1 < len(lines) and _RULE.match(lines[position + 1][:_MAX_LINE_LENGTH]):
            end = position + 2
            while end < len(lines) and "|" in lines[end]:
                end += 1
            design.consumers += _read_table(path, lines, position, end)
            position = end
        else:
            position += 1
    design.consumers += prose.read(path, prose_lines)
    return design


def _closing_fence(lines: list[str], start: int, fence: str) -> int:
    """The index of the line that closes a code block."""
    for end in range(start + 1, len(lines)):
        if lines[end].strip().startswith(fence):
            return end
    return len(lines)


def _split_cells(line: str) -> list[tuple[str, int]]:
    """The cells of a row, each with the column where its text begins."""
    row = line.rstrip()
    position = 1 if row.startswith("|") else 0
    cells = []
    for cell in re.split(r"(?<!\\)\|", row[position:].removesuffix("|")):
        margin = len(cell) - len(cell.lstrip())
        cells.append((re.sub(r"[`*_]{1,2}", "", cell.strip()), position + margin + 1))
        position += len(cell) + 1
    return cells


def _read_table(path: str, lines: list[str], start: int, end: int) -> list[DescribedConsumer]:
    """Read the table in ``lines[start:end]``, if one of its columns names consumers."""
    heads = [text for text, _ in _split_cells(lines[start][:_MAX_LINE_LENGTH])]
    consumer_column = _column_of_consumers(heads)
    if consumer_column is None:
        return []
    columns = {
        topic: next(
            (column for column, head in enumerate(heads) if column != consumer_column and pattern.search(head)), None
        )
        for topic, pattern in _TOPICS.items()
    }
    if columns["effect"] is None and columns["dedup"] is None:
        return []
    if columns["key"] == columns["dedup"]:  # "dedup key" is one column
        columns["key"] = None
    consumers = []
    for number, line in enumerate(lines[start + 2 : end], start + 3):
        cells = [
            Phrase(text, Place(path, number, column, number, column + max(len(text), 1)))
            for text, column in _split_cells(line[:_MAX_LINE_LENGTH])
        ]
        name = cells[consumer_column] if consumer_column < len(cells) else None
        if name is None or not name.text:
            continue
        by_topic = {
            topic: cells[column] for topic, column in columns.items() if column is not None and column < len(cells)
        }
        effect, dedup, queue = by_topic.get("effect"), by_topic.get("dedup"), by_topic.get("queue")
        consumers.append(
            DescribedConsumer(
                name.text,
                name.at,
                queue=queue.text if queue is not None else "",
                effects=[effect] if effect is not None and effect.text else [],
                dedup=dedup if dedup is not None and dedup.text.strip() else None,
                key=by_topic.get("key"),
                ack=by_topic.get("ack"),
                retention=by_topic.get("retention"),
            )
        )
    return consumers


def _column_of_consumers(heads: list[str]) -> int | None:
    """The column that names consumers: by its head, or any column of names if the others are about messages."""
    for column, head in enumerate(heads):
        if _CONSUMER_HEAD.match(head):
            return column
    if all(any(map(pattern.search, heads)) for pattern in (_CONSUMES, _TOPICS["effect"], _TOPICS["dedup"])):
        return next((column for column, head in enumerate(heads) if _GENERIC_HEAD.match(head)), None)
    return None
