"""Markdown: tables of consumers, the Mermaid diagrams between them, and what the lists around them say."""

from __future__ import annotations

import re

from effectonce_lint.findings import Place

from . import mermaid
from .model import DescribedConsumer, Design, Phrase
from .prose import read as prose_of

_CONSUMER = re.compile(
    r"^(?:consumer|handler|worker|subscriber|listener|processor|message handler|event handler|consumer / handler)s?$",
    re.IGNORECASE,
)
_ANYBODY = re.compile(r"^(?:service|component|application|app|system|name|who|module)s?$", re.IGNORECASE)
_READS = re.compile(r"subscri|consum|listens|reads|\bfrom\b|queue|topic", re.IGNORECASE)
_QUEUE = re.compile(r"queue|topic|stream|channel|source|event|message|subscri|consumes|trigger", re.IGNORECASE)
_EFFECT = re.compile(r"effect|action|does|what it|writes|calls|side|operation|output", re.IGNORECASE)
_DEDUP = re.compile(r"dedup|idempot|guard|duplicate|exactly", re.IGNORECASE)
_KEY = re.compile(r"\bkey\b", re.IGNORECASE)
_ACK = re.compile(r"\back", re.IGNORECASE)
_RETENTION = re.compile(r"retention|ttl|remember|keep", re.IGNORECASE)
_RULE = re.compile(r"^\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)*\|?\s*$")
_MAX_LINE_LENGTH = 2_000


def read(path: str, text: str) -> Design:
    design = Design()
    lines = text.splitlines()
    prose = list(lines)
    at = 0
    while at < len(lines):
        line = lines[at]
        fence = re.match(r"^(\s*)(```+|~~~+)\s*(\S*)", line[:_MAX_LINE_LENGTH])
        if fence:
            end = _closing_fence(lines, at, fence.group(2))
            if fence.group(3).lower().strip("{}") == "mermaid":
                found = mermaid.read(path, lines[at + 1 : end], at + 2)
                design.consumers += found.consumers
                design.early_acks += found.early_acks
            prose[at : end + 1] = [""] * len(prose[at : end + 1])
            at = end + 1
        elif "|" in line and at + 1 < len(lines) and _RULE.match(lines[at + 1][:_MAX_LINE_LENGTH]):
            end = at + 2
            while end < len(lines) and "|" in lines[end]:
                end += 1
            design.consumers += _read_table(path, lines, at, end)
            at = end
        else:
            at += 1
    design.consumers += prose_of(path, prose)
    return design


def _closing_fence(lines: list[str], at: int, fence: str) -> int:
    for end in range(at + 1, len(lines)):
        if lines[end].strip().startswith(fence):
            return end
    return len(lines)


def _split_cells(line: str) -> list[tuple[str, int]]:
    """The cells of a row, each with the column where its text begins."""
    out = []
    start = 0
    stripped = line.rstrip()
    if stripped.startswith("|"):
        start = 1
    position = start
    for part in re.split(r"(?<!\\)\|", stripped[start:].removesuffix("|")):
        text = part.strip()
        out.append((re.sub(r"[`*_]{1,2}", "", text), position + len(part) - len(part.lstrip()) + 1))
        position += len(part) + 1
    return out


def _read_table(path: str, lines: list[str], start: int, end: int) -> list[DescribedConsumer]:
    heads = [text for text, _ in _split_cells(lines[start][:_MAX_LINE_LENGTH])]
    who = next((number for number, head in enumerate(heads) if _CONSUMER.match(head)), None)
    if who is None and all(any(map(needed.search, heads)) for needed in (_READS, _EFFECT, _DEDUP)):
        who = next((number for number, head in enumerate(heads) if _ANYBODY.match(head)), None)
    if who is None:
        return []

    def column(pattern: re.Pattern[str]) -> int | None:
        return next((number for number, head in enumerate(heads) if number != who and pattern.search(head)), None)

    effect, dedup, queue = column(_EFFECT), column(_DEDUP), column(_QUEUE)
    key, ack, retention = column(_KEY), column(_ACK), column(_RETENTION)
    if effect is None and dedup is None:
        return []
    out = []
    for number in range(start + 2, end):
        cells = _split_cells(lines[number][:_MAX_LINE_LENGTH])

        def said(index: int | None, cells: list[tuple[str, int]] = cells, number: int = number) -> Phrase | None:
            if index is None or index >= len(cells):
                return None
            text, place = cells[index]
            return Phrase(text, Place(path, number + 1, place, number + 1, place + max(len(text), 1)))

        name = said(who)
        if name is None or not name.text:
            continue
        done, told = said(effect), said(dedup)
        consumer = DescribedConsumer(name.text, name.at, queue=q.text if (q := said(queue)) is not None else "")
        consumer.effects = [done] if done is not None and done.text else []
        consumer.dedup = told if told is not None and told.text.strip() else None
        consumer.key = said(key) if key != dedup else None
        consumer.ack = said(ack)
        consumer.retention = said(retention)
        out.append(consumer)
    return out
