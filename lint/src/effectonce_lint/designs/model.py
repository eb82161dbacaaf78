"""What a design says, whatever it is written in: consumers, their effects, their guards, and queues."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from effectonce_lint.findings import Place
from effectonce_lint.python import sql

_DOUBLES = re.compile(
    r"\b(?:charg\w*|pay(?:s|ing|ment|out)?|refund\w*|debit\w*|credit\w*|transfer\w*|captur\w*|withdraw\w*|deduct\w*|send\w*|e-?mail\w*|mail(?:s|ing)?"
    r"|sms|notif\w*|text(?:s|ing)?|push(?:es)?|publish\w*|emit\w*|increment\w*|decrement\w*|append\w*|insert\w*|add(?:s|ing)?|creat\w*|reserv\w*"
    r"|ship\w*|invoic\w*|book\w*|bill\w*|post(?:s|ing)?|order(?:s|ing)|subtract\w*|count(?:s|ing|er)?|enqueue\w*|stripe|twilio|sendgrid|paypal|ses|smtp)\b"
    r"|\+=|-=|\w+\s*=\s*\w+\s*[-+]\s*\w+",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"\b(?:upsert\w*|set(?:s|ting)?\s+\w+|overwrit\w*|replac\w*|delet\w*|remov\w*|mark(?:s|ing)?\s+\w+|updat\w+\s+(?:the\s+)?(?:status|state|\w+\s+to)"
    r"|put(?:s|ting)?|index\w*|cach\w*|refresh\w*|sync\w*|project\w*|read(?:s|ing)?|log(?:s|ging)?|on conflict|merge\w*"
    r"|idempotent(?:ly)?|if not exists)\b",
    re.IGNORECASE,
)
_MONEY = re.compile(r"charg|pay|refund|debit|capture|payout|stripe|paypal|adyen|square|transfer", re.IGNORECASE)
_CALLS = re.compile(r"mail|sms|notif|text|twilio|sendgrid|ses\b|smtp|post|call|http|api|ship|push", re.IGNORECASE)
_ROWS = re.compile(
    r"insert|increment|decrement|append|add|row|table|ledger|balance|stock|count|credit|deduct|create|book|reserv|record|=",
    re.IGNORECASE,
)
_EVENTS = re.compile(r"publish|emit|enqueue|event|forward", re.IGNORECASE)

_NOTHING = re.compile(
    r"^\s*(?:none|no|nothing|-+|[\u2013\u2014]+|n/?a|false|null|missing|todo|tbd|\?+|not yet|unknown|0|off|disabled"
    r"|never|)\s*\.?$",
    re.IGNORECASE,
)
_BROKER = re.compile(
    r"fifo|content.?based|MessageDeduplicationId|deduplicationid|idempotent producer|enable\.idempotence"
    r"|exactly.once (?:delivery|semantics)|broker|duplicate detection|sqs dedup|kafka eos",
    re.IGNORECASE,
)
_REAL = re.compile(
    r"inbox|table|unique|transaction|claim|lease|idempotency.?key|redis|store|(?<!least[ -])(?<!most[ -])once|dynamo"
    r"|postgres|handler|upsert|constraint|insert|effectonce|seen|record",
    re.IGNORECASE,
)
_UNSTABLE = re.compile(
    r"delivery.?tag|receipt.?handle|\boffset\b|uuid4|\bnow\(|timestamp|sqs message.?id"
    r"|broker(?:'s)? (?:message )?id|message.?id (?:from|of|assigned by|given by) the (?:broker|queue)"
    r"|random|\bMessageId\b|lock.?token"
)
_FILES = re.compile(r"\bfiles?\b|\bcsv\b|\.log\b", re.IGNORECASE)
_CONTENT = re.compile(
    r"(?:hash|digest|sha-?\d+|md5)\s+of\s+(?:the\s+)?(?:whole\s+|entire\s+)?(?:payload|body|content|message)|(?:content|payload|body).?hash|hash\((?:payload|body)\)",
    re.IGNORECASE,
)
_CHECKS = re.compile(
    r"check.?then|select.?then|look.?up.?(?:first|then)|select before|if not exists then|get.?then.?set", re.IGNORECASE
)
_EARLY = re.compile(
    r"^\s*(?:auto|auto.?ack\w*|automatic|at.?most.?once|early|before.*|on receipt|on receive"
    r"|immediate\w*|no.?ack|fire.and.forget|true \(auto\))\s*$",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Phrase:
    """A piece of text in a design, and where it stands."""

    text: str
    at: Place


@dataclass(slots=True)
class DescribedConsumer:
    """A consumer as a design describes it. ``None`` means that it does not say."""

    name: str
    at: Place
    queue: str = ""
    effects: list[Phrase] = field(default_factory=list)
    dedup: Phrase | None = None
    key: Phrase | None = None
    ack: Phrase | None = None
    retention: Phrase | None = None
    window: Phrase | None = None
    """How long the message can come back."""
    silent: bool = False
    """It names no effects, and the format has a place to say how duplicates are handled (AsyncAPI)."""


@dataclass(slots=True)
class DescribedQueue:
    """A queue as its settings describe it."""

    name: str
    at: Place
    visibility: float | None = None
    visibility_at: Place | None = None
    retention: float | None = None
    dead_letter: bool = False
    content_dedup: Place | None = None
    consumers: list[tuple[str, Place, float | None]] = field(default_factory=list)
    """Who reads it: name, where, and its timeout."""
    is_dead_letter: bool = False
    known_dead_letter: bool = True
    """Whether the format would show a dead-letter queue if there were one."""


@dataclass(slots=True)
class Setting:
    """Something that is set where it should not be, and whose it is."""

    name: str
    at: Place
    owner: str


@dataclass(slots=True)
class UnkeyedTable:
    """A table of messages in which nothing keeps ``key`` unique."""

    name: str
    at: Place
    key: str


@dataclass(slots=True)
class Design:
    consumers: list[DescribedConsumer] = field(default_factory=list)
    queues: list[DescribedQueue] = field(default_factory=list)
    early_acks: list[Setting] = field(default_factory=list)
    short: list[Setting] = field(default_factory=list)
    """Retentions that are too short; what is wrong stands for the name."""
    tables: list[UnkeyedTable] = field(default_factory=list)


def place_of_line(path: str, number: int, text: str) -> Place:
    """All of a line but its margins."""
    stripped = text.rstrip()
    start = len(stripped) - len(stripped.lstrip()) + 1
    return Place(path, number, start, number, max(len(stripped) + 1, start + 1))


def doubles_when_repeated(text: str) -> bool:
    """Whether an effect, in words or in SQL, shows twice when it is done twice."""
    if sql.looks_like_sql(text) and (statements := sql.parse_statements(text)):
        return any(bool(each.accumulates) or (each.verb == "insert" and not each.on_conflict) for each in statements)
    return bool(_DOUBLES.search(text)) and not _HARMLESS.search(text)


def is_idempotent(text: str) -> bool:
    """Whether an effect says of itself that twice is once: an upsert, a delete."""
    return bool(_HARMLESS.search(text)) and not doubles_when_repeated(text)


def says_none(text: str) -> bool:
    """Whether a design says of something that it is not there: none, a dash, a cross."""
    return bool(_NOTHING.match(re.sub(r"[^\w\s?/.\-\u2013\u2014]", "", text)))


def relies_on_broker_only(text: str) -> bool:
    return bool(_BROKER.search(text)) and not _REAL.search(_BROKER.sub("", text))


def unstable_key_in(text: str) -> str:
    found = _UNSTABLE.search(text)
    return found.group() if found else ""


def is_content_key(text: str) -> bool:
    return bool(_CONTENT.search(text))


def is_check_then_act(text: str) -> bool:
    return bool(_CHECKS.search(text))


def acks_early(text: str) -> bool:
    return bool(_EARLY.match(text))


def mode_for(text: str) -> str:
    """The mode that fits an effect in words."""
    if _MONEY.search(text):
        return "K"
    if _EVENTS.search(text):
        return "T"
    if _CALLS.search(text):
        return "I"
    return "T" if _ROWS.search(text) and not _FILES.search(text) else "L"
