"""SQL files: dedup tables, and whether something keeps their keys unique.

A table counts as a dedup table by its name and by all of its columns together, since an inbox may hold mail, and a
warehouse has a table of processed events. The unique index may be a statement of its own, or in another migration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from effectonce_lint.python import sql
from effectonce_lint.word_lists import word_set

from .model import Design, UnkeyedTable, place_of_line

_DEDUP_TABLE_NAME = (
    r"(?:\w+_)?(?:processed|handled|consumed|seen)_?(?:messages?|msgs?|events?|webhooks?|commands?)(?:_?ids?|_?keys?)?"
    r"|(?:\w+_)?message_?processed"
    r"|(?:\w+_)?(?:(?:message|event|consumer|transactional)_?)?inbox(?:_?(?:messages?|events?|states?|entries|records?))?"
    r"|(?:\w+_)?idempoten(?:cy|t)(?:_?(?:keys?|records?|requests?|entries|store|tokens?))?"
    r"|(?:(?:\w+_)?(?:message|msg|consumer)_?)?dedup(?:e|lication)?(?:_?(?:keys?|ids?|records?|log|entries|store))?"
)
_CREATE_TABLE = re.compile(
    rf"\bcreate\s+table\s+(?:if\s+not\s+exists\s+)?(?:[\"`\[]?\w+[\"`\]]?\s*\.\s*)*[\"`\[]?({_DEDUP_TABLE_NAME})[\"`\]]?\s*\(",
    re.IGNORECASE,
)
_UNRELATED_NAME = re.compile(r"(?:^|_)(?:last|not|max|tmp|temp|staging|stg|raw|user|mail|email)_")
"""Parts of names that mean something else: a cursor, a load of a warehouse, a mailbox."""
_KEY_COLUMN = re.compile(
    r"(?:message|msg|event|webhook|command|envelope)_?(?:id|key|uuid|guid)"
    r"|(?:idempotency|idempotence|idem|dedup|dedupe|deduplication)_?(?:key|id|token|hash)"
)
_SIDE_COLUMN = re.compile(
    r"id|bucket|dispatched|status|state|attempts?|retries|(?:retry|receive|delivery)_?count|(?:last_?)?error"
    r"|result|response|hash|fingerprint|checksum|(?:row_?)?version|lock\w*|owner|(?:(?:message|event|webhook)_?)?(?:type|name)"
    r"|(?:consumer|handler|subscriber|subscription|listener|processor|service|worker|source|topic|queue|channel|stream"
    r"|partition|offset|group|consumer_?group|scope|tenant|provider|origin|producer|module|app)(?:_?(?:id|name|type))?"
    r"|(?:(?:created|updated|received|processed|handled|consumed|completed|seen|delivered|expires?|expired|started"
    r"|finished|failed|inserted|first_?seen|last_?seen)_?(?:at|on|time|date|utc)?|timestamp|ts|ttl|expiry|expiration_?time)"
)
"""Columns that a dedup record has beside its key. A table with any other column may be a table of the business."""
_CONTENT_COLUMN = re.compile(
    r"payload|body|headers|data|content|metadata|(?:correlation|causation)_?id|last_?sequence\w*"
)
_CONSTRAINT_WORDS = word_set("primary unique constraint index foreign check exclude period like fulltext spatial")
_COLUMN_TYPES = word_set(
    "varchar char text uuid nvarchar bigint int integer string bytea binary varbinary character blob citext"
)
_GENERATING_DEFAULTS = word_set(
    "now current_timestamp clock_timestamp localtimestamp getdate getutcdate sysdatetime sysutcdatetime sysdate"
    " datetime gen_random_uuid uuid_generate_v4 uuid_generate_v1 uuidv7 uuid newid newsequentialid nextval"
)
_NUMBERING_WORDS = word_set("autoincrement auto_increment identity")
_UNENFORCED = re.compile(r"mergetree|distkey|diststyle|sortkey|stored as|using (?:delta|parquet|iceberg)|not enforced")
_COMMENT_OR_STRING = re.compile(r"--[^\n]*|/\*(?:.*?\*/|.*\Z)|'(?:[^']|'')*'?", re.DOTALL)
_STATEMENT_END = re.compile(r";|^\s*go\s*$", re.IGNORECASE | re.MULTILINE)
_MAX_TABLES = 20
"""How many dedup tables of one file are checked: each is compared with every other SQL file."""
_UNIQUE = re.compile(r"\bunique\b|\bprimary\s+key\b", re.IGNORECASE)


def no_other_files() -> Iterator[str]:
    """The other files of a design that is checked alone."""
    return iter(())


def read(path: str, text: str, others: Callable[[], Iterable[str]] = no_other_files) -> Design:
    """Read the dedup tables whose key neither this file nor one of ``others`` keeps unique."""
    design = Design()
    for name, start, statement in _dedup_tables(text):
        key = _unconstrained_key(name, statement)
        if (
            key
            and not _has_unique_index(name, text)
            and not any(_is_unique_elsewhere(name, other_text) for other_text in others())
        ):
            line = text[text.rfind("\n", 0, start) + 1 :].partition("\n")[0]
            design.tables.append(UnkeyedTable(name, place_of_line(path, text.count("\n", 0, start) + 1, line), key))
    return design


def _dedup_tables(text: str) -> Iterator[tuple[str, int, str]]:
    """Tables that are named like dedup tables: name, position of the name, and the statement from its columns on."""
    if not _CREATE_TABLE.search(text):
        return
    visible = _COMMENT_OR_STRING.sub(lambda hidden: re.sub(r"[^\n]", " ", hidden.group()), text)
    for match in islice(_CREATE_TABLE.finditer(visible), _MAX_TABLES):
        name = match.group(1).lower()
        end = _STATEMENT_END.search(visible, match.end())
        if not _UNRELATED_NAME.search(name):
            yield name, match.start(1), visible[match.end() - 1 : end.start() if end else len(visible)]


def _unconstrained_key(name: str, statement: str) -> str:
    """The column that identifies a message, if the table accepts two rows with the same value in it; else ""."""
    if _UNENFORCED.search(statement.lower()):
        return ""
    tokens = sql.tokenize(statement)
    parts = [part for part in sql.split_by_commas(tokens[1 : sql.closing_parenthesis(tokens, 0)]) if part]
    columns = {part[0]: part for part in parts if not _is_constraint(part)}
    key_name = re.compile(rf"(?:{_KEY_COLUMN.pattern}|key)") if "idempot" in name or "dedup" in name else _KEY_COLUMN
    keys = [column for column in columns if key_name.fullmatch(column)]
    others = [column for column in columns if column not in keys and not _is_side_column(name, column)]
    has_foreign_key = any("references" in part or part[0] == "foreign" or "foreign" in part for part in parts)
    if not keys or (("idempot" not in name) and (others or has_foreign_key)):
        return ""
    generated = {column for column, part in columns.items() if _is_generated(part)}
    behind_columns = [
        "constraint",
        *tokens[sql.closing_parenthesis(tokens, 0) :],
    ]  # some dialects put PRIMARY KEY (…) there
    unique_sets = [set(together) for part in (*parts, behind_columns) for together in _unique_columns(part)]
    return "" if any(together and not together & generated for together in unique_sets) else keys[0]


def _is_constraint(part: list[str]) -> bool:
    """Whether a part of a table is a constraint and not a column: `PRIMARY KEY (id)`, MySQL's `KEY by_id (id)`."""
    return part[0] in _CONSTRAINT_WORDS or (part[0] == "key" and part[1:2] != [] and part[1] not in _COLUMN_TYPES)


def _is_side_column(name: str, column: str) -> bool:
    """Whether a dedup table may have ``column`` beside its key; an inbox may keep the message itself."""
    return bool(_SIDE_COLUMN.fullmatch(column) or ("inbox" in name and _CONTENT_COLUMN.fullmatch(column)))


def _is_generated(part: list[str]) -> bool:
    """Whether the database fills a column with a new value for each row: a number, the time, a random id."""
    if any("serial" in word or word in _NUMBERING_WORDS for word in part):
        return True
    return "default" in part and any(word in _GENERATING_DEFAULTS for word in part[part.index("default") :])


def _unique_columns(part: list[str]) -> Iterator[list[str]]:
    """The columns that a part of a table keeps unique together."""
    keyword = next((word for word in part if word in ("unique", "primary")), "")
    if not keyword:
        return
    if not _is_constraint(part):
        yield [part[0]]
    elif "(" in (constraint := part[part.index(keyword) :]):
        parenthesis = constraint.index("(")
        yield [
            column
            for column in constraint[parenthesis + 1 : sql.closing_parenthesis(constraint, parenthesis)]
            if re.match(r"[a-z_]", column)
        ]


def _has_unique_index(name: str, text: str) -> bool:
    """Whether a statement other than the table's ``CREATE TABLE`` makes something of it unique."""
    if name not in (lower_text := text.lower()):
        return False
    creates_table = re.compile(rf"\bcreate\s+table\b[^(]*\b{name}\b")
    return any(
        re.search(rf"\b{name}\b", statement) and _UNIQUE.search(statement) and not creates_table.search(statement)
        for statement in _STATEMENT_END.split(lower_text)
    )


def _is_unique_elsewhere(name: str, text: str) -> bool:
    """Whether another file makes the table's key unique, or creates the table again with a unique key."""
    if name not in text.lower():
        return False
    return _has_unique_index(name, text) or any(
        other_name == name and not _unconstrained_key(name, statement)
        for other_name, _, statement in _dedup_tables(text)
    )
