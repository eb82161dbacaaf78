"""Designs as prose: lists whose items say what consumes what, and does what.

Most Markdown is no design, and what a README does not say is no fault of it. So a consumer is one by a verb and a
source that only messages have; and silence about duplicates counts only where the document itself says that they come
(at least once), or says of another consumer what becomes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from effectonce_lint.findings import Place

from .model import (
    DescribedConsumer,
    Phrase,
    acks_early,
    doubles_when_repeated,
    place_of_line,
    relies_on_broker_only,
    says_none,
)

_MAY = re.compile(r"^[ \t]*(?:[-*+]|\d+[.)])\s.*\b(?:consum|subscrib|listen|reads? |polls? |queue|topic)", re.I | re.M)
_ITEM = re.compile(r"^(\s*)(?:[-*+]|\d+[.)])\s+(?!\[[ xX]\])(\S.*)$")
_TASK = re.compile(r"^\s*[-*+]\s+\[[ xX]\]")
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*\s*$")
_ELSEWHERE = re.compile(
    r"problem|before|current|as.is|context|alternativ|reject|anti.?pattern|naive|\bbad\b|wrong|pitfall|mistake|why"
    r"|motivation|background|example|histor|post.?mortem|incident|issue|gap|risk|finding|to.?do|change.?log|release"
    r"|failure|exercise|quiz|symptom|non.?goal|out of scope|features?$",
    re.I,
)
"""Headings over what is not the design: what is wrong today, what was not chosen, what has changed."""
_READS = (
    r"(?:consumes|subscribes\s+to|listens\s+(?:to|on|for)|reads\s+(?:\w+\s+)?from|polls|receives|dequeues"
    r"|is\s+triggered\s+by)"
)
_ROLE = r"(?:service|worker|consumer|handler|lambda|function|processor|listener|subscriber|job)"
_SUBJECT = re.compile(
    rf"^(?:the\s+|an?\s+)?(?:(?P<mark>\*\*|__|`)(?P<marked>[A-Za-z][\w./ -]*?)(?P=mark)(?:\s+{_ROLE})?"
    rf"|(?P<plain>(?:[\w-]+\s+){{1,2}}{_ROLE}|\w+-{_ROLE}))(?:\s*[:\u2013\u2014]\s*|\s+-\s+|\s+){_READS}\b",
    re.I,
)
_ANYBODY = re.compile(
    r"(?:an?|the|each|every|any|your|our|one|message|event|other|another|such|this|that|some|kafka|sqs|rabbitmq|nats|background"
    r"|celery|single|new|same|default|typical|separate|normal|custom|if|when|while|where|as|once|first|second)\b",
    re.I,
)
"""First words that name no particular consumer."""
_CONSUMER = re.compile(rf"\b{_ROLE}\b|^[\w]+(?:-\w+)+$", re.I)
_BARE = re.compile(rf"^{_READS}\b", re.I)
_SOURCE = re.compile(
    r"\b(?:kafka|rabbit\w*|sqs|sns|nats|jetstream|pub/?sub|service ?bus|kinesis|amqp|event ?bridge|redis streams?"
    r"|event bus|message bus|message broker|pulsar|stripe webhooks?)\b"
    r"|`[^`]+`\s+(?:queue|topic|stream|subscription|exchange|channel)\b"
    r"|\b(?:queue|topic|stream|subscription|exchange|channel)\s+`[^`]+`",
    re.I,
)
_GOES_ON = re.compile(
    r"^(?:it|for (?:each|every)|on (?:each|every)|then|after|there is|no|does not|doesn't|auto.?ack|acks?|acknowledges"
    r"|skips|duplicates?|dedup\w*|each|every)\b",
    re.I,
)
_LABEL = re.compile(r"^(?:\*\*|__)?([A-Za-z][\w -]{1,24}?)(?:\*\*|__)?\s*:(?:\*\*|__)?\s*(.*)$")
_LABELS = {
    "source": re.compile(r"consumes|subscribes to|listens to|reads from|queue|topic|subscription|stream", re.I),
    "effect": re.compile(r"(?:side.?)?effects?", re.I),
    "dedup": re.compile(r"idempoten(?:cy|ce|t)|dedup\w*|de-?duplication|duplicates|duplicate handling", re.I),
    "key": re.compile(r"(?:dedup|idempotency) key", re.I),
    "ack": re.compile(r"acks?|ack.?mode|acknowledge?ments?", re.I),
}
_NAMED = re.compile(r"`[^`]+`|\w+[.-]\w+", re.I)
_VERB = (
    r"(?:charges?|debits?|credits?|refunds?|transfers?|captures?|pays?|sends?|e?mails?|notifies|publish(?:es)?|emits?"
    r"|increments?|decrements?|appends?|inserts?|adds?|creates?|reserves?|ships?|invoices?|books?|bills?|posts?|deducts?"
    r"|subtracts?|enqueues?)"
)
_DOES = re.compile(
    rf"(?:^|[,;:.]\s*|\b(?:and|then|it|also|which|that)\s+)(?:then\s+|also\s+)?({_VERB}\s+[^,;.]+)", re.I
)
_GUARD = re.compile(
    r"idempot|dedup|de-dup|duplicate|inbox|\bunique\b|on conflict|already|seen.set|processed_|upsert|claim|no-op|twice"
    r"|(?<!least[ -])(?<!most[ -])\bonce\b",
    re.I,
)
_NONE = re.compile(
    r"(?:\b(?:no|without(?: any)?)\s+(?:\w+\s+)?(?:dedup\w*|de-duplication|idempotency|duplicate (?:check|detection"
    r"|handling))"
    r"(?:\s+(?:keys?|checks?|handling|yet))*"
    r"|\b(?:does not|doesn't|do not)\s+(?:yet\s+)?(?:dedup\w*|de-duplicate|(?:check for|handle|detect) duplicates)"
    r"|\bduplicates are not (?:yet )?(?:handled|detected|checked|considered)"
    r"|\b(?:is|are) not (?:yet )?(?:idempotent|deduplicated)"
    r")(?!\s+(?:is done\s+)?(?:by|in|at)\s+(?:the\s+)?(?:broker|queue|producer|kafka|sqs|rabbit))",
    re.I,
)
_KEYED = re.compile(
    r"\bde-?dup\w*\s+(?:on|by|using)\s+(?:the\s+)?([^,.;()]+)|\bdedup key is (?:the\s+)?([^,.;()]+)", re.I
)
_EARLY = re.compile(
    r"\back(?:s?|nowledges) (?:the message |it )?(?:on receipt|immediately|first\b|up front)(?! (?:after|once|when)\b)"
    r"|\bauto-?ack(?:nowledge)? is on\b|\b(?:uses|with) auto-?ack\b",
    re.I,
)
_NOT = re.compile(r"\b(?:no|not|never|without|instead of|rather than|unless)\b[^.;]{0,30}$", re.I)
_KEPT = re.compile(r"\b(?:stor(?:es|ed|ing)|persists?|records?|saves?|inserts?|commits?|writes?|appends?)\b", re.I)
_COMES_AGAIN = re.compile(r"at.least.once|redeliver|delivered (?:again|twice|more than once)|see it again", re.I)
_MAX_LINE_LENGTH = 2_000


@dataclass(slots=True)
class _Line:
    text: str
    at: Place


@dataclass(slots=True)
class _Item:
    depth: int
    lines: list[_Line]

    @property
    def text(self) -> str:
        return " ".join(each.text for each in self.lines)

    @property
    def at(self) -> Place:
        return self.lines[0].at


@dataclass(slots=True)
class _ConsumerNotes:
    """What a list says of one consumer."""

    name: str
    at: Place
    items: list[_Item] = field(default_factory=list)
    labels: dict[str, Phrase] = field(default_factory=dict)


def read(path: str, lines: list[str]) -> list[DescribedConsumer]:
    """The consumers of the lists in ``lines``, in which what is not prose is empty."""
    if not _MAY.search("\n".join(line[:_MAX_LINE_LENGTH] for line in lines)):
        return []
    told: list[_ConsumerNotes] = []
    outside: list[str] = []
    for heading, at, items in _split_lists(path, lines, outside):
        found, rest = _notes_of_list(heading, at, items)
        told += found
        outside += rest
    guarded = [bool(_GUARD.search(_NONE.sub("", _full_text(each)))) for each in told]
    elsewhere = any(_GUARD.search(each) for each in outside)
    counts = not elsewhere and (any(guarded) or any(_COMES_AGAIN.search(line) for line in lines))
    return [
        consumer
        for each, guard in zip(told, guarded, strict=True)
        if (consumer := _make_consumer(each, guard, counts)) is not None
    ]


def _split_lists(path: str, lines: list[str], outside: list[str]) -> Iterator[tuple[str, Place | None, list[_Item]]]:
    """Each list, under its heading; what stands in none goes to ``outside``."""
    headings: list[tuple[int, str]] = []
    at: Place | None = None
    items: list[_Item] = []
    for number, raw in enumerate([*lines, "# "], 1):
        line = raw[:_MAX_LINE_LENGTH]
        if found := _ITEM.match(line):
            items.append(_Item(len(found.group(1)), [_Line(found.group(2), place_of_line(path, number, line))]))
        elif not line.strip():
            continue
        elif items and line.startswith((" ", "\t")) and not _TASK.match(line):
            items[-1].lines.append(_Line(line.strip(), place_of_line(path, number, line)))
        else:
            if items and not any(_ELSEWHERE.search(text) for _, text in headings):
                yield headings[-1][1] if headings else "", at, items
            else:
                outside += [each.text for each in items]
            items = []
            outside.append(line)
            if heading := _HEADING.match(line):
                level = len(heading.group(1))
                headings = [each for each in headings if each[0] < level] + [(level, heading.group(2).strip("*_` "))]
                at = place_of_line(path, number, line)


def _notes_of_list(heading: str, at: Place | None, items: list[_Item]) -> tuple[list[_ConsumerNotes], list[str]]:
    """What a list says of consumers, and the items that do not."""
    out: list[_ConsumerNotes] = []
    rest: list[str] = []
    top = min(each.depth for each in items)
    current: _ConsumerNotes | None = None
    headed = _ConsumerNotes(heading, at) if at is not None else None
    for number, item in enumerate(items):
        label = _label_of(item)
        if item.depth > top:
            if current is None:
                rest.append(item.text)
            elif label is not None:
                current.labels.setdefault(*label)
            else:
                current.items.append(item)
        elif (name := _consumer_name(item)) or _has_labels(items, number):
            current = _ConsumerNotes(name or item.text.strip("*_`: "), item.at, [item] if name else [])
            out.append(current)
        elif headed is not None and (label is not None or (_CONSUMER.search(heading) and _lacks_consumer(item))):
            if current is not headed:
                current = headed
                out.append(headed)
            if label is not None:
                headed.labels.setdefault(*label)
            else:
                headed.items.append(item)
        elif current is not None and (current is headed or _GOES_ON.match(item.text)):
            current.items.append(item)
        else:
            current = None
            rest.append(item.text)
    if headed in out and "source" not in headed.labels and not any(map(_lacks_consumer, headed.items)):
        out.remove(headed)  # labels of something else
        rest += [f"{kind}: {each.text}" for kind, each in headed.labels.items()]
        rest += [each.text for each in headed.items]
    return out, rest


def _lacks_consumer(item: _Item) -> bool:
    """Whether an item says what is consumed, and leaves it to the heading by whom."""
    return bool(_BARE.match(item.text) and _SOURCE.search(item.text))


def _consumer_name(item: _Item) -> str:
    """Who consumes, where an item begins with that and says from what."""
    found = _SUBJECT.match(item.text)
    if found is None or not _SOURCE.search(item.text):
        return ""
    plain = found.group("plain")
    return found.group("marked") or ("" if _ANYBODY.match(plain) else plain)


def _label_of(item: _Item) -> tuple[str, Phrase] | None:
    if found := _LABEL.match(item.text):
        for kind, label in _LABELS.items():
            if label.fullmatch(found.group(1).strip()):
                return kind, Phrase(found.group(2).strip(), item.at)
    return None


def _has_labels(items: list[_Item], number: int) -> bool:
    """Whether the items below one say, each under its label, what it consumes."""
    for item in items[number + 1 :]:
        if item.depth <= items[number].depth:
            break
        if (label := _label_of(item)) is not None and label[0] == "source":
            return True
    return False


def _full_text(told: _ConsumerNotes) -> str:
    dedup = told.labels.get("dedup")
    said = [] if dedup is None or says_none(dedup.text) else [f"dedup: {dedup.text}"]
    return " ".join([*(item.text for item in told.items), *said])


def _make_consumer(told: _ConsumerNotes, guarded: bool, silence_counts: bool) -> DescribedConsumer | None:
    labels, text = told.labels, _full_text(told)
    source = labels.get("source")
    if source is not None and not _NAMED.search(source.text):
        return None
    if source is None and not told.items:
        return None
    consumer = DescribedConsumer(told.name, told.at, queue=source.text.strip("`") if source is not None else "")
    effect = labels.get("effect")
    consumer.effects = [effect] if effect is not None else [each for item in told.items for each in _effects_in(item)]
    ack, early = labels.get("ack"), next((item for item in told.items if _acks_early(item.text)), None)
    if early is not None or (ack is not None and acks_early(ack.text)):
        consumer.ack = Phrase("auto", early.at if early is not None else ack.at if ack is not None else told.at)
    consumer.key = labels.get("key") or _key_of(told)
    none = _NONE.search(text) or ("dedup" in labels and says_none(labels["dedup"].text))
    if guarded:
        consumer.dedup = _dedup_of(told)
    elif not none and not silence_counts and effect is None:
        consumer.dedup = Phrase("not said", told.at)
    return consumer


def _effects_in(item: _Item) -> Iterator[Phrase]:
    """What an item says is done, apart from names of events and queues."""
    plain = re.sub(r"`[^`]*`", "it", item.text)
    for found in _DOES.finditer(plain):
        if doubles_when_repeated(found.group(1)):
            yield Phrase(re.split(r"\s+and\s+|\s+with\s+", found.group(1))[0].strip("*_ "), item.at)


def _acks_early(text: str) -> bool:
    found = _EARLY.search(text)
    if found is None or _KEPT.search(text[: found.start()]):
        return False  # an inbox: stored, acked, worked on later
    return not _NOT.search(text[max(found.start() - 60, 0) : found.start()])


def _key_of(told: _ConsumerNotes) -> Phrase | None:
    labelled = told.labels.get("dedup")
    if labelled is not None:
        return labelled
    for item in told.items:
        if found := _KEYED.search(item.text):
            return Phrase(found.group(1) or found.group(2), item.at)
    return None


def _dedup_of(told: _ConsumerNotes) -> Phrase:
    """Read how duplicates are recognised. The broker's own dedup is not a guard; anything else counts as one."""
    labelled = told.labels.get("dedup")
    if labelled is not None:
        return labelled
    sentences = [Phrase(each, item.at) for item in told.items for each in re.split(r"(?<=[.;,])\s+", item.text)]
    about = [each for each in sentences if _GUARD.search(each.text)]
    if about and all(relies_on_broker_only(each.text) for each in about):
        return about[0]
    return Phrase("described", told.at)
