"""SQL files: tables that are there to tell a duplicate, and whether anything in them does.

A table counts as one by its name and by all of its columns together: an inbox may hold people's mail, and a warehouse
has processed events. What makes its key unique may stand elsewhere: in the same file, or in another migration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from effectonce_lint.python import sql
from effectonce_lint.word_lists import word_set

from .model import Design, UnkeyedTable, place_of_line

_NAME = (
    r"(?:\w+_)?(?:processed|handled|consumed|seen)_?(?:messages?|msgs?|events?|webhooks?|commands?)(?:_?ids?|_?keys?)?"
    r"|(?:\w+_)?message_?processed"
    r"|(?:\w+_)?(?:(?:message|event|consumer|transactional)_?)?inbox(?:_?(?:messages?|events?|states?|entries|records?))?"
    r"|(?:\w+_)?idempoten(?:cy|t)(?:_?(?:keys?|records?|requests?|entries|store|tokens?))?"
    r"|(?:(?:\w+_)?(?:message|msg|consumer)_?)?dedup(?:e|lication)?(?:_?(?:keys?|ids?|records?|log|entries|store))?"
)
_TABLE = re.compile(
    rf"\bcreate\s+table\s+(?:if\s+not\s+exists\s+)?(?:[\"`\[]?\w+[\"`\]]?\s*\.\s*)*[\"`\[]?({_NAME})[\"`\]]?\s*\(",
    re.IGNORECASE,
)
_OTHERWISE = re.compile(r"(?:^|_)(?:last|not|max|tmp|temp|staging|stg|raw|user|mail|email)_")
"""First words of names that mean something else: a cursor, a load of a warehouse, somebody's mail."""
_KEY = re.compile(
    r"(?:message|msg|event|webhook|command|envelope)_?(?:id|key|uuid|guid)"
    r"|(?:idempotency|idempotence|idem|dedup|dedupe|deduplication)_?(?:key|id|token|hash)"
)
_BESIDE = re.compile(
    r"id|bucket|dispatched|status|state|attempts?|retries|(?:retry|receive|delivery)_?count|(?:last_?)?error"
    r"|result|response|hash|fingerprint|checksum|(?:row_?)?version|lock\w*|owner|(?:(?:message|event|webhook)_?)?(?:type|name)"
    r"|(?:consumer|handler|subscriber|subscription|listener|processor|service|worker|source|topic|queue|channel|stream"
    r"|partition|offset|group|consumer_?group|scope|tenant|provider|origin|producer|module|app)(?:_?(?:id|name|type))?"
    r"|(?:(?:created|updated|received|processed|handled|consumed|completed|seen|delivered|expires?|expired|started"
    r"|finished|failed|inserted|first_?seen|last_?seen)_?(?:at|on|time|date|utc)?|timestamp|ts|ttl|expiry|expiration_?time)"
)
"""Columns that a record of a message has beside its key. One more, and it may be anything."""
_CONTENT = re.compile(r"payload|body|headers|data|content|metadata|(?:correlation|causation)_?id|last_?sequence\w*")
_CONSTRAINTS = word_set("primary unique constraint index foreign check exclude period like fulltext spatial")
_TYPES = word_set(
    "varchar char text uuid nvarchar bigint int integer string bytea binary varbinary character blob citext"
)
_MADE_UP = word_set(
    "now current_timestamp clock_timestamp localtimestamp getdate getutcdate sysdatetime sysutcdatetime sysdate"
    " datetime gen_random_uuid uuid_generate_v4 uuid_generate_v1 uuidv7 uuid newid newsequentialid nextval"
)
_NUMBERED = word_set("autoincrement auto_increment identity")
_UNENFORCED = re.compile(r"mergetree|distkey|diststyle|sortkey|stored as|using (?:delta|parquet|iceberg)|not enforced")
_HIDDEN = re.compile(r"--[^\n]*|/\*(?:.*?\*/|.*\Z)|'(?:[^']|'')*'?", re.DOTALL)
_ENDS = re.compile(r";|^\s*go\s*$", re.IGNORECASE | re.MULTILINE)
_MOST = 20
"""Tables of messages that a file may have."""
_UNIQUE = re.compile(r"\bunique\b|\bprimary\s+key\b", re.IGNORECASE)


def no_other_files() -> Iterator[str]:
    """For a file that stands alone."""
    return iter(())


def read(path: str, text: str, others: Callable[[], Iterable[str]] = no_other_files) -> Design:
    """The tables of a file with a key that nothing keeps unique, not even a file of ``others``."""
    design = Design()
    for name, start, statement in _dedup_tables(text):
        key = _unconstrained_key(name, statement)
        if key and not _has_unique_index(name, text) and not any(_is_unique_elsewhere(name, each) for each in others()):
            line = text[text.rfind("\n", 0, start) + 1 :].partition("\n")[0]
            design.tables.append(UnkeyedTable(name, place_of_line(path, text.count("\n", 0, start) + 1, line), key))
    return design


def _dedup_tables(text: str) -> Iterator[tuple[str, int, str]]:
    """Tables by the right name: that, where it stands, and the statement from its columns on."""
    if not _TABLE.search(text):
        return
    visible = _HIDDEN.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    for found in islice(_TABLE.finditer(visible), _MOST):
        name = found.group(1).lower()
        end = _ENDS.search(visible, found.end())
        if not _OTHERWISE.search(name):
            yield name, found.start(1), visible[found.end() - 1 : end.start() if end else len(visible)]


def _unconstrained_key(name: str, statement: str) -> str:
    """The column that a table of messages is asked by, if a second row with the same is let in."""
    if _UNENFORCED.search(statement.lower()):
        return ""
    tokens = sql.tokenize(statement)
    parts = [part for part in sql.split_by_commas(tokens[1 : sql.closing_parenthesis(tokens, 0)]) if part]
    columns = {part[0]: part for part in parts if not _is_constraint(part)}
    known = re.compile(rf"(?:{_KEY.pattern}|key)") if "idempot" in name or "dedup" in name else _KEY
    keys = [each for each in columns if known.fullmatch(each)]
    others = [each for each in columns if each not in keys and not _is_side_column(name, each)]
    refers = any("references" in part or part[0] == "foreign" or "foreign" in part for part in parts)
    if not keys or (("idempot" not in name) and (others or refers)):
        return ""
    made_up = {each for each, part in columns.items() if _is_generated(part)}
    unique = [set(found) for part in parts for found in _unique_columns(part)]
    unique += [set(found) for found in _unique_columns(["constraint", *tokens[sql.closing_parenthesis(tokens, 0) :]])]
    return "" if any(each and not each & made_up for each in unique) else keys[0]


def _is_constraint(part: list[str]) -> bool:
    """Whether a part of a table is a constraint and not a column: `PRIMARY KEY (id)`, MySQL's `KEY by_id (id)`."""
    return part[0] in _CONSTRAINTS or (part[0] == "key" and part[1:2] != [] and part[1] not in _TYPES)


def _is_side_column(name: str, column: str) -> bool:
    return bool(_BESIDE.fullmatch(column) or ("inbox" in name and _CONTENT.fullmatch(column)))


def _is_generated(part: list[str]) -> bool:
    """Whether a column is another one for each row: a number, the time, a random id."""
    if any("serial" in each or each in _NUMBERED for each in part):
        return True
    return "default" in part and any(each in _MADE_UP for each in part[part.index("default") :])


def _unique_columns(part: list[str]) -> Iterator[list[str]]:
    """The columns that a part of a table keeps unique together."""
    word = next((each for each in part if each in ("unique", "primary")), "")
    if not word:
        return
    if not _is_constraint(part):
        yield [part[0]]
    elif "(" in (rest := part[part.index(word) :]):
        at = rest.index("(")
        yield [each for each in rest[at + 1 : sql.closing_parenthesis(rest, at)] if re.match(r"[a-z_]", each)]


def _has_unique_index(name: str, text: str) -> bool:
    """Whether a statement beside the one that makes the table says of it that something is unique."""
    if name not in (low := text.lower()):
        return False
    makes = re.compile(rf"\bcreate\s+table\b[^(]*\b{name}\b")
    return any(
        re.search(rf"\b{name}\b", each) and _UNIQUE.search(each) and not makes.search(each) for each in _ENDS.split(low)
    )


def _is_unique_elsewhere(name: str, text: str) -> bool:
    """Whether another file makes the table's key unique, or makes the table anew with one that is."""
    if name not in text.lower():
        return False
    return _has_unique_index(name, text) or any(
        other == name and not _unconstrained_key(name, statement) for other, _, statement in _dedup_tables(text)
    )
