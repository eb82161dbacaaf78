"""Designs as prose: lists whose items describe consumers and their effects.

Most Markdown is not a design, and a README may leave things out. So an item describes a consumer only with a verb for
consuming and a source that carries messages. Silence about duplicates counts only where the document says that messages
are redelivered (at least once), or describes the guard of another consumer.
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

_MAYBE_CONSUMER_LIST = re.compile(
    r"^[ \t]*(?:[-*+]|\d+[.)])\s.*\b(?:consum|subscrib|listen|reads? |polls? |queue|topic)", re.I | re.M
)
_LIST_ITEM = re.compile(r"^(\s*)(?:[-*+]|\d+[.)])\s+(?!\[[ xX]\])(\S.*)$")
_TASK_ITEM = re.compile(r"^\s*[-*+]\s+\[[ xX]\]")
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*\s*$")
_OTHER_HEADING = re.compile(
    r"problem|before|current|as.is|context|alternativ|reject|anti.?pattern|naive|\bbad\b|wrong|pitfall|mistake|why"
    r"|motivation|background|example|histor|post.?mortem|incident|issue|gap|risk|finding|to.?do|change.?log|release"
    r"|failure|exercise|quiz|symptom|non.?goal|out of scope|features?$",
    re.I,
)
"""Headings of parts that do not describe the design: problems of today, rejected alternatives, changes."""
_CONSUMES = (
    r"(?:consumes|subscribes\s+to|listens\s+(?:to|on|for)|reads\s+(?:\w+\s+)?from|polls|receives|dequeues"
    r"|is\s+triggered\s+by)"
)
_ROLE = r"(?:service|worker|consumer|handler|lambda|function|processor|listener|subscriber|job)"
_CONSUMER_SUBJECT = re.compile(
    rf"^(?:the\s+|an?\s+)?(?:(?P<mark>\*\*|__|`)(?P<marked>[A-Za-z][\w./ -]*?)(?P=mark)(?:\s+{_ROLE})?"
    rf"|(?P<plain>(?:[\w-]+\s+){{1,2}}{_ROLE}|\w+-{_ROLE}))(?:\s*[:\u2013\u2014]\s*|\s+-\s+|\s+){_CONSUMES}\b",
    re.I,
)
_GENERIC_SUBJECT = re.compile(
    r"(?:an?|the|each|every|any|your|our|one|message|event|other|another|such|this|that|some|kafka|sqs|rabbitmq|nats|background"
    r"|celery|single|new|same|default|typical|separate|normal|custom|if|when|while|where|as|once|first|second)\b",
    re.I,
)
"""First words of a subject that does not name a particular consumer."""
_CONSUMER_HEADING = re.compile(rf"\b{_ROLE}\b|^[\w]+(?:-\w+)+$", re.I)
_VERB_FIRST = re.compile(rf"^{_CONSUMES}\b", re.I)
_SOURCE = re.compile(
    r"\b(?:kafka|rabbit\w*|sqs|sns|nats|jetstream|pub/?sub|service ?bus|kinesis|amqp|event ?bridge|redis streams?"
    r"|event bus|message bus|message broker|pulsar|stripe webhooks?)\b"
    r"|`[^`]+`\s+(?:queue|topic|stream|subscription|exchange|channel)\b"
    r"|\b(?:queue|topic|stream|subscription|exchange|channel)\s+`[^`]+`",
    re.I,
)
_CONTINUATION = re.compile(
    r"^(?:it|for (?:each|every)|on (?:each|every)|then|after|there is|no|does not|doesn't|auto.?ack|acks?|acknowledges"
    r"|skips|duplicates?|dedup\w*|each|every)\b",
    re.I,
)
_LABELLED_ITEM = re.compile(r"^(?:\*\*|__)?([A-Za-z][\w -]{1,24}?)(?:\*\*|__)?\s*:(?:\*\*|__)?\s*(.*)$")
_LABEL_KINDS = {
    "source": re.compile(r"consumes|subscribes to|listens to|reads from|queue|topic|subscription|stream", re.I),
    "effect": re.compile(r"(?:side.?)?effects?", re.I),
    "dedup": re.compile(r"idempoten(?:cy|ce|t)|dedup\w*|de-?duplication|duplicates|duplicate handling", re.I),
    "key": re.compile(r"(?:dedup|idempotency) key", re.I),
    "ack": re.compile(r"acks?|ack.?mode|acknowledge?ments?", re.I),
}
_QUEUE_NAME = re.compile(r"`[^`]+`|\w+[.-]\w+", re.I)
_EFFECT_VERB = (
    r"(?:charges?|debits?|credits?|refunds?|transfers?|captures?|pays?|sends?|e?mails?|notifies|publish(?:es)?|emits?"
    r"|increments?|decrements?|appends?|inserts?|adds?|creates?|reserves?|ships?|invoices?|books?|bills?|posts?|deducts?"
    r"|subtracts?|enqueues?)"
)
_EFFECT_CLAUSE = re.compile(
    rf"(?:^|[,;:.]\s*|\b(?:and|then|it|also|which|that)\s+)(?:then\s+|also\s+)?({_EFFECT_VERB}\s+[^,;.]+)", re.I
)
_GUARD_WORD = re.compile(
    r"idempot|dedup|de-dup|duplicate|inbox|\bunique\b|on conflict|already|seen.set|processed_|upsert|claim|no-op|twice"
    r"|(?<!least[ -])(?<!most[ -])\bonce\b",
    re.I,
)
_NO_GUARD = re.compile(
    r"(?:\b(?:no|without(?: any)?)\s+(?:\w+\s+)?(?:dedup\w*|de-duplication|idempotency|duplicate (?:check|detection"
    r"|handling))"
    r"(?:\s+(?:keys?|checks?|handling|yet))*"
    r"|\b(?:does not|doesn't|do not)\s+(?:yet\s+)?(?:dedup\w*|de-duplicate|(?:check for|handle|detect) duplicates)"
    r"|\bduplicates are not (?:yet )?(?:handled|detected|checked|considered)"
    r"|\b(?:is|are) not (?:yet )?(?:idempotent|deduplicated)"
    r")(?!\s+(?:is done\s+)?(?:by|in|at)\s+(?:the\s+)?(?:broker|queue|producer|kafka|sqs|rabbit))",
    re.I,
)
_KEY_CLAUSE = re.compile(
    r"\bde-?dup\w*\s+(?:on|by|using)\s+(?:the\s+)?([^,.;()]+)|\bdedup key is (?:the\s+)?([^,.;()]+)", re.I
)
_EARLY_ACK = re.compile(
    r"\back(?:s?|nowledges) (?:the message |it )?(?:on receipt|immediately|first\b|up front)(?! (?:after|once|when)\b)"
    r"|\bauto-?ack(?:nowledge)? is on\b|\b(?:uses|with) auto-?ack\b",
    re.I,
)
_ENDS_NEGATED = re.compile(r"\b(?:no|not|never|without|instead of|rather than|unless)\b[^.;]{0,30}$", re.I)
_STORES_MESSAGE = re.compile(
    r"\b(?:stor(?:es|ed|ing)|persists?|records?|saves?|inserts?|commits?|writes?|appends?)\b", re.I
)
_REDELIVERY = re.compile(r"at.least.once|redeliver|delivered (?:again|twice|more than once)|see it again", re.I)
_MAX_LINE_LENGTH = 2_000
_NEGATION_REACH = 60
"""How many characters before "auto-ack" a "no" or "instead of" may stand that belongs to it."""


@dataclass(slots=True)
class _ListItem:
    """An item of a list. ``depth``: how far it is indented."""

    depth: int
    lines: list[Phrase]

    @property
    def text(self) -> str:
        """The whole item in one line."""
        return " ".join(line.text for line in self.lines)

    @property
    def at(self) -> Place:
        """The place of its first line."""
        return self.lines[0].at


@dataclass(slots=True)
class _List:
    """A list, with the heading that it stands under. ``heading_at`` is None where there is no heading."""

    heading: str
    heading_at: Place | None
    items: list[_ListItem]


@dataclass(slots=True)
class _ConsumerNotes:
    """The items that describe one consumer. ``labels``: items like "Dedup: by message id", by kind of label."""

    name: str
    at: Place
    items: list[_ListItem] = field(default_factory=list)
    labels: dict[str, Phrase] = field(default_factory=dict)


def read(path: str, lines: list[str]) -> list[DescribedConsumer]:
    """Read the consumers from the lists in ``lines``. Lines of tables and code blocks must have been emptied."""
    if not _MAYBE_CONSUMER_LIST.search("\n".join(line[:_MAX_LINE_LENGTH] for line in lines)):
        return []
    all_notes: list[_ConsumerNotes] = []
    lists, other_texts = _split_lists(path, lines)
    for one_list in lists:
        notes_of_list, other_items = _read_list(one_list)
        all_notes += notes_of_list
        other_texts += other_items
    silence_counts = not any(_GUARD_WORD.search(text) for text in other_texts) and (
        any(map(_has_guard, all_notes)) or any(_REDELIVERY.search(line) for line in lines)
    )
    return [
        consumer
        for notes in all_notes
        if (consumer := _make_consumer(notes, silence_counts=silence_counts)) is not None
    ]


def _split_lists(path: str, lines: list[str]) -> tuple[list[_List], list[str]]:
    """The lists of the design, and all texts outside them."""
    lists: list[_List] = []
    other_texts: list[str] = []
    headings: list[tuple[int, str]] = []  # the headings that hold here, by their levels
    heading_at: Place | None = None
    items: list[_ListItem] = []
    for number, full_line in enumerate([*lines, "# "], 1):  # a last heading ends the last list
        line = full_line[:_MAX_LINE_LENGTH]
        if match := _LIST_ITEM.match(line):
            items.append(_ListItem(len(match.group(1)), [Phrase(match.group(2), place_of_line(path, number, line))]))
        elif not line.strip():
            continue
        elif items and line.startswith((" ", "\t")) and not _TASK_ITEM.match(line):
            items[-1].lines.append(Phrase(line.strip(), place_of_line(path, number, line)))
        else:
            if items and not any(_OTHER_HEADING.search(text) for _, text in headings):
                lists.append(_List(headings[-1][1] if headings else "", heading_at, items))
            else:
                other_texts += [item.text for item in items]
            items = []
            other_texts.append(line)
            if heading := _HEADING.match(line):
                level = len(heading.group(1))
                headings = [outer for outer in headings if outer[0] < level]
                headings.append((level, heading.group(2).strip("*_` ")))
                heading_at = place_of_line(path, number, line)
    return lists, other_texts


def _read_list(one_list: _List) -> tuple[list[_ConsumerNotes], list[str]]:
    """The consumers that a list describes, and the texts of its other items.

    A consumer is named by an item of the outermost level, with the items that follow or are nested below it, or by the
    heading above the list.
    """
    items = one_list.items
    notes: list[_ConsumerNotes] = []
    other_items: list[str] = []
    outermost = min(item.depth for item in items)
    current: _ConsumerNotes | None = None
    of_heading = _ConsumerNotes(one_list.heading, one_list.heading_at) if one_list.heading_at is not None else None
    for number, item in enumerate(items):
        label = _label_of(item)
        if item.depth > outermost:
            if current is None:
                other_items.append(item.text)
            elif label is not None:
                current.labels.setdefault(*label)
            else:
                current.items.append(item)
        elif (name := _consumer_name(item)) or _has_source_label(items, number):
            current = _ConsumerNotes(name or item.text.strip("*_`: "), item.at, [item] if name else [])
            notes.append(current)
        elif of_heading is not None and (
            label is not None or (_CONSUMER_HEADING.search(one_list.heading) and _lacks_consumer(item))
        ):
            if current is not of_heading:
                current = of_heading
                notes.append(of_heading)
            if label is not None:
                of_heading.labels.setdefault(*label)
            else:
                of_heading.items.append(item)
        elif current is not None and (current is of_heading or _CONTINUATION.match(item.text)):
            current.items.append(item)
        else:
            current = None
            other_items.append(item.text)
    if of_heading in notes and "source" not in of_heading.labels and not any(map(_lacks_consumer, of_heading.items)):
        notes.remove(of_heading)  # its labels describe something else
        other_items += [f"{kind}: {phrase.text}" for kind, phrase in of_heading.labels.items()]
        other_items += [item.text for item in of_heading.items]
    return notes, other_items


def _lacks_consumer(item: _ListItem) -> bool:
    """Whether an item has only the verb and the source ("consumes from Kafka"), so that the heading is the consumer."""
    return bool(_VERB_FIRST.match(item.text) and _SOURCE.search(item.text))


def _consumer_name(item: _ListItem) -> str:
    """The consumer that an item begins with, if it also names the source; else ""."""
    subject = _CONSUMER_SUBJECT.match(item.text)
    if subject is None or not _SOURCE.search(item.text):
        return ""
    plain = subject.group("plain")
    return subject.group("marked") or ("" if _GENERIC_SUBJECT.match(plain) else plain)


def _label_of(item: _ListItem) -> tuple[str, Phrase] | None:
    """The kind of the label that an item begins with, and the text behind it."""
    if match := _LABELLED_ITEM.match(item.text):
        for kind, label in _LABEL_KINDS.items():
            if label.fullmatch(match.group(1).strip()):
                return kind, Phrase(match.group(2).strip(), item.at)
    return None


def _has_source_label(items: list[_ListItem], number: int) -> bool:
    """Whether an item nested below item ``number`` has a label for the source."""
    for item in items[number + 1 :]:
        if item.depth <= items[number].depth:
            break
        if (label := _label_of(item)) is not None and label[0] == "source":
            return True
    return False


def _full_text(notes: _ConsumerNotes) -> str:
    """The text of all items that may describe a guard."""
    dedup = notes.labels.get("dedup")
    labelled = [] if dedup is None or says_none(dedup.text) else [f"dedup: {dedup.text}"]
    return " ".join([*(item.text for item in notes.items), *labelled])


def _has_guard(notes: _ConsumerNotes) -> bool:
    """Whether a guard is mentioned, other than to say that there is none."""
    return bool(_GUARD_WORD.search(_NO_GUARD.sub("", _full_text(notes))))


def _make_consumer(notes: _ConsumerNotes, *, silence_counts: bool) -> DescribedConsumer | None:
    """Make a consumer from its notes; None where they do not name a queue and have nothing else."""
    labels = notes.labels
    source = labels.get("source")
    if source is not None and not _QUEUE_NAME.search(source.text):
        return None
    if source is None and not notes.items:
        return None
    queue = source.text.strip("`") if source is not None else ""
    consumer = DescribedConsumer(notes.name, notes.at, queue=queue, names_effects=False)
    effect_label = labels.get("effect")
    if effect_label is not None:
        consumer.effects = [effect_label]
    else:
        consumer.effects = [effect for item in notes.items for effect in _effects_in(item)]
    early_ack = next((item for item in notes.items if _acks_early(item.text)), None)
    ack_label = labels.get("ack")
    if early_ack is not None:
        consumer.ack = Phrase("auto", early_ack.at)
    elif ack_label is not None and acks_early(ack_label.text):
        consumer.ack = Phrase("auto", ack_label.at)
    consumer.key = labels.get("key") or _key_of(notes)
    denies_guard = _NO_GUARD.search(_full_text(notes)) or ("dedup" in labels and says_none(labels["dedup"].text))
    if _has_guard(notes):
        consumer.dedup = _dedup_of(notes)
    elif not denies_guard and not silence_counts and effect_label is None:
        consumer.dedup = Phrase("not said", notes.at)
    return consumer


def _effects_in(item: _ListItem) -> Iterator[Phrase]:
    """The effects in the sentences of an item. Names in backquotes do not count: `PaymentSent` is an event."""
    plain = re.sub(r"`[^`]*`", "it", item.text)
    for match in _EFFECT_CLAUSE.finditer(plain):
        if doubles_when_repeated(match.group(1)):
            yield Phrase(re.split(r"\s+and\s+|\s+with\s+", match.group(1))[0].strip("*_ "), item.at)


def _acks_early(text: str) -> bool:
    """Whether a sentence acks before the work. An inbox may: it stores the message, acks, and works on it later."""
    match = _EARLY_ACK.search(text)
    if match is None or _STORES_MESSAGE.search(text[: match.start()]):
        return False
    return not _ENDS_NEGATED.search(text[max(match.start() - _NEGATION_REACH, 0) : match.start()])


def _key_of(notes: _ConsumerNotes) -> Phrase | None:
    """The dedup key: the label for dedup, or what a sentence says to dedup by."""
    dedup = notes.labels.get("dedup")
    if dedup is not None:
        return dedup
    for item in notes.items:
        if match := _KEY_CLAUSE.search(item.text):
            return Phrase(match.group(1) or match.group(2), item.at)
    return None


def _dedup_of(notes: _ConsumerNotes) -> Phrase:
    """The guard against duplicates. The broker's own dedup is named, since it is not enough; others are "described"."""
    dedup = notes.labels.get("dedup")
    if dedup is not None:
        return dedup
    sentences = [
        Phrase(sentence, item.at) for item in notes.items for sentence in re.split(r"(?<=[.;,])\s+", item.text)
    ]
    about_guards = [sentence for sentence in sentences if _GUARD_WORD.search(sentence.text)]
    if about_guards and all(relies_on_broker_only(sentence.text) for sentence in about_guards):
        return about_guards[0]
    return Phrase("described", notes.at)
