"""The contents of a design, in whatever format: consumers, their effects, their guards, and queues.

Effects and guards are mostly free text, so they are recognised by their words. A word that says "idempotent" outweighs
one that says "charge".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from effectonce_lint.findings import Place
from effectonce_lint.python import sql

_DOUBLING_ACTION = re.compile(
    r"\b(?:charg\w*|pay(?:s|ing|ment|out)?|refund\w*|debit\w*|credit\w*|transfer\w*|captur\w*|withdraw\w*|deduct\w*|send\w*|e-?mail\w*|mail(?:s|ing)?"
    r"|sms|notif\w*|text(?:s|ing)?|push(?:es)?|publish\w*|emit\w*|increment\w*|decrement\w*|append\w*|insert\w*|add(?:s|ing)?|creat\w*|reserv\w*"
    r"|ship\w*|invoic\w*|book\w*|bill\w*|post(?:s|ing)?|order(?:s|ing)|subtract\w*|count(?:s|ing|er)?|enqueue\w*|stripe|twilio|sendgrid|paypal|ses|smtp)\b"
    r"|\+=|-=|\w+\s*=\s*\w+\s*[-+]\s*\w+",
    re.IGNORECASE,
)
_IDEMPOTENT_ACTION = re.compile(
    r"\b(?:upsert\w*|set(?:s|ting)?\s+\w+|overwrit\w*|replac\w*|delet\w*|remov\w*|mark(?:s|ing)?\s+\w+|updat\w+\s+(?:the\s+)?(?:status|state|\w+\s+to)"
    r"|put(?:s|ting)?|index\w*|cach\w*|refresh\w*|sync\w*|project\w*|read(?:s|ing)?|log(?:s|ging)?|on conflict|merge\w*"
    r"|idempotent(?:ly)?|if not exists)\b",
    re.IGNORECASE,
)
_PAYMENT = re.compile(r"charg|pay|refund|debit|capture|payout|stripe|paypal|adyen|square|transfer", re.IGNORECASE)
_API_CALL = re.compile(r"mail|sms|notif|text|twilio|sendgrid|ses\b|smtp|post|call|http|api|ship|push", re.IGNORECASE)
_DATABASE_WRITE = re.compile(
    r"insert|increment|decrement|append|add|row|table|ledger|balance|stock|count|credit|deduct|create|book|reserv|record|=",
    re.IGNORECASE,
)
_PUBLISH = re.compile(r"publish|emit|enqueue|event|forward", re.IGNORECASE)

_NONE_WORD = re.compile(
    r"^\s*(?:none|no|nothing|-+|[\u2013\u2014]+|n/?a|false|null|missing|todo|tbd|\?+|not yet|unknown|0|off|disabled"
    r"|never|)\s*\.?$",
    re.IGNORECASE,
)
_BROKER_DEDUP = re.compile(
    r"fifo|content.?based|MessageDeduplicationId|deduplicationid|idempotent producer|enable\.idempotence"
    r"|exactly.once (?:delivery|semantics)|broker|duplicate detection|sqs dedup|kafka eos",
    re.IGNORECASE,
)
_CONSUMER_DEDUP = re.compile(
    r"inbox|table|unique|transaction|claim|lease|idempotency.?key|redis|store|(?<!least[ -])(?<!most[ -])once|dynamo"
    r"|postgres|handler|upsert|constraint|insert|effectonce|seen|record",
    re.IGNORECASE,
)
_UNSTABLE_KEY = re.compile(
    r"delivery.?tag|receipt.?handle|\boffset\b|uuid4|\bnow\(|timestamp|sqs message.?id"
    r"|broker(?:'s)? (?:message )?id|message.?id (?:from|of|assigned by|given by) the (?:broker|queue)"
    r"|random|\bMessageId\b|lock.?token"
)
_FILE = re.compile(r"\bfiles?\b|\bcsv\b|\.log\b", re.IGNORECASE)
_CONTENT_HASH = re.compile(
    r"(?:hash|digest|sha-?\d+|md5)\s+of\s+(?:the\s+)?(?:whole\s+|entire\s+)?(?:payload|body|content|message)|(?:content|payload|body).?hash|hash\((?:payload|body)\)",
    re.IGNORECASE,
)
_CHECK_THEN_ACT = re.compile(
    r"check.?then|select.?then|look.?up.?(?:first|then)|select before|if not exists then|get.?then.?set", re.IGNORECASE
)
_EARLY_ACK = re.compile(
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
    """A consumer as a design describes it. A field is None where the design does not mention it."""

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
    names_effects: bool = True
    """Whether its effects would be listed here. In prose they are looked for, and may be put in unknown words."""
    can_declare_dedup: bool = False
    """Whether the format has a field for how duplicates are handled (AsyncAPI), so that leaving it out counts."""


@dataclass(slots=True)
class ConsumerTimeout:
    """The consumer of a queue, and the seconds that it may run for one message, if they are known."""

    name: str
    at: Place
    timeout: float | None = None


@dataclass(slots=True)
class DescribedQueue:
    """A queue as its settings describe it. Durations are in seconds."""

    name: str
    at: Place
    visibility: float | None = None
    visibility_at: Place | None = None
    has_dead_letter_queue: bool = False
    is_dead_letter: bool = False
    content_dedup_at: Place | None = None
    """Where the queue is set to drop messages with equal contents."""
    consumers: list[ConsumerTimeout] = field(default_factory=list)


@dataclass(slots=True)
class Setting:
    """A setting with a fault: its name, where it is set, and the consumer or service that it belongs to."""

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
    """Everything that one file describes."""

    consumers: list[DescribedConsumer] = field(default_factory=list)
    queues: list[DescribedQueue] = field(default_factory=list)
    early_acks: list[Setting] = field(default_factory=list)
    short_retentions: list[Setting] = field(default_factory=list)
    """Retentions that are too short; each has the whole message for its name."""
    tables: list[UnkeyedTable] = field(default_factory=list)


def place_of_line(path: str, number: int, text: str) -> Place:
    """The place of a line without its indentation."""
    stripped = text.rstrip()
    start = len(stripped) - len(stripped.lstrip()) + 1
    return Place(path, number, start, number, max(len(stripped) + 1, start + 1))


def doubles_when_repeated(text: str) -> bool:
    """Whether repeating an effect, described in words or in SQL, does it twice."""
    if sql.looks_like_sql(text) and (statements := sql.parse_statements(text)):
        return any(
            bool(statement.accumulates) or (statement.verb == "insert" and not statement.on_conflict)
            for statement in statements
        )
    return bool(_DOUBLING_ACTION.search(text)) and not _IDEMPOTENT_ACTION.search(text)


def is_idempotent(text: str) -> bool:
    """Whether the description of an effect says that repeating it is harmless: an upsert, a delete."""
    return bool(_IDEMPOTENT_ACTION.search(text)) and not doubles_when_repeated(text)


def says_none(text: str) -> bool:
    """Whether a text means "there is none": no, n/a, a dash, a cross."""
    return bool(_NONE_WORD.match(re.sub(r"[^\w\s?/.\-\u2013\u2014]", "", text)))


def relies_on_broker_only(text: str) -> bool:
    """Whether a guard is the broker's own dedup, with nothing in the consumer beside it."""
    return bool(_BROKER_DEDUP.search(text)) and not _CONSUMER_DEDUP.search(_BROKER_DEDUP.sub("", text))


def unstable_key_in(text: str) -> str:
    """The part of a key's description that changes with a redelivery or a resend; "" if there is none."""
    match = _UNSTABLE_KEY.search(text)
    return match.group() if match else ""


def is_content_key(text: str) -> bool:
    """Whether a key is a hash of the payload."""
    return bool(_CONTENT_HASH.search(text))


def is_check_then_act(text: str) -> bool:
    """Whether a guard looks a message up first and records it later."""
    return bool(_CHECK_THEN_ACT.search(text))


def acks_early(text: str) -> bool:
    """Whether an ack mode acks before the work is done."""
    return bool(_EARLY_ACK.match(text))


def mode_for(text: str) -> str:
    """The mode that fits an effect which is described in words."""
    if _PAYMENT.search(text):
        return "K"
    if _PUBLISH.search(text):
        return "T"
    if _API_CALL.search(text):
        return "I"
    return "T" if _DATABASE_WRITE.search(text) and not _FILE.search(text) else "L"
