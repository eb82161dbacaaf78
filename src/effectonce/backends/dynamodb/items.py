"""Encoding records as DynamoDB items, decoding them, and building expressions. Pure: no clock, no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from effectonce.errors import CorruptRecord
from effectonce.record import Record, State, StoredClaim
from effectonce.values.identity import digest

from .client import Item

INDEX_SHARDS: Final = 8  # how many partitions of the index each state is spread over
NEVER_EXPIRES_S: Final = 253_402_300_799  # the year 9999, for DynamoDB's time to live


# -- values and expressions

AttributeValue = bool | int | str | bytes

#: Values that every expression may use.
_SHARED_VALUES: Final[dict[str, AttributeValue]] = {
    "zero": 0,
    "one": 1,
    "no": False,
    "yes": True,
    "claimed": "claimed",
    "free": "free",
    "in_doubt": "in_doubt",
    "done": "done",
}


def wrap(value: AttributeValue) -> Item:
    """Write ``value`` as an attribute: with DynamoDB's name of its type."""
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int):
        return {"N": str(value)}
    return {"S": value} if isinstance(value, str) else {"B": value}


def unwrap(item: Item) -> dict[str, Any]:
    """Read the attributes of ``item`` as Python values. `ValueError` for a type that effectonce never writes."""
    plain: dict[str, Any] = {}
    for name, typed in item.items():
        ((kind, value),) = typed.items()
        if kind not in ("B", "S", "N", "BOOL"):
            raise ValueError(f"attribute {name} is of type {kind}")
        if kind == "N":
            plain[name] = int(value)
        else:
            plain[name] = bytes(value) if kind == "B" else value
    return plain


def expressions(values: Mapping[str, AttributeValue], **texts: str) -> dict[str, Any]:
    """Make the parameters of a call with expressions: ``texts``, and the names and those ``values`` that they use.

    In the texts, write every attribute as ``#name`` and every value as ``:name``. (DynamoDB reserves 573 words as
    names, and refuses a name or value that no expression uses.)
    """
    text, known = " ".join(texts.values()), {**_SHARED_VALUES, **values}
    names = {name: name[1:] for name in re.findall(r"#\w+", text)}
    parameters: dict[str, Any] = {**texts, "ExpressionAttributeNames": names}
    if used := {name: wrap(known[name[1:]]) for name in re.findall(r":\w+", text)}:
        parameters["ExpressionAttributeValues"] = used
    return parameters


# -- records and items


class StoredItem(StoredClaim, kw_only=True, gc=False):
    """A record as it was read from its item."""

    scope: str
    key: str
    created_at: int
    changed_at: int
    expires_at: int | None  # None: never
    version: int = 0  # a write replaces the item only while it has this version; 0: none was read

    def to_record(self) -> Record:
        return Record(**{name: getattr(self, name) for name in Record.__struct_fields__})


#: The fields that are attributes of the same name. There are no notes, and ``lapsed`` is stored as ``was``, the state
#: before, since an update can set that.
_ATTRIBUTES: Final = [name for name in StoredItem.__struct_fields__ if name not in ("lapsed", "note")]
#: Those that an item may lack.
_OPTIONAL_ATTRIBUTES: Final = ("owner", "lease_until", "expires_at", "fingerprint", "result", "error")


_CLAIMED_OR_DOUBT: Final = "claimed?"  # claims that lapse into doubt have shards of their own, which a sweep reads


def bucket(state: str, doubt_on_lapse: bool, identity: bytes) -> str:
    """The shard of the index that a record is in: its attribute ``bucket``, one of the `shard_names` of its state."""
    kind = _CLAIMED_OR_DOUBT if doubt_on_lapse and state == "claimed" else state
    return f"{kind}/{identity[0] % INDEX_SHARDS}"


def shard_names(state: State) -> list[str]:
    """The shards with the records in ``state``."""
    shards = [f"{state}/{n}" for n in range(INDEX_SHARDS)]
    return [*shards, *doubtful_shard_names()] if state == "claimed" else shards


def doubtful_shard_names() -> list[str]:
    """The shards with the claims that lapse into doubt."""
    return [f"{_CLAIMED_OR_DOUBT}/{n}" for n in range(INDEX_SHARDS)]


def lapses_to_doubt(shard: str) -> bool:
    """Whether the shard holds claims that lapse into doubt, which never expire."""
    return shard.startswith(_CLAIMED_OR_DOUBT)


def encode(stored: StoredItem, write: bytes) -> Item:
    """Encode the item of a record. ``write`` is a random name of this write: a writer that finds its name in the stored
    item knows that its write was applied."""
    identity = digest(stored.scope, stored.key)
    is_claimed = stored.state == "claimed"
    never_expires = is_claimed and stored.doubt_on_lapse
    values: dict[str, AttributeValue | None] = {name: getattr(stored, name) for name in _ATTRIBUTES}
    values |= {"id": identity, "write": write, "owner": stored.owner or None}
    if is_claimed:
        values["was"] = "claimed" if stored.lapsed else None
        values["keep" if never_expires else "since"] = NEVER_EXPIRES_S if never_expires else stored.changed_at
    if never_expires:
        values["expires"] = NEVER_EXPIRES_S
    elif stored.expires_at is not None:
        values["expires"] = whole_seconds(stored.expires_at)
    if stored.state != "done":
        values["bucket"] = bucket(stored.state, stored.doubt_on_lapse, identity)
        values["rank"] = stored.lease_until if never_expires else stored.changed_at
    return {name: wrap(value) for name, value in values.items() if value is not None}


def decode(item: Item | None) -> StoredItem | None:
    """Decode the record in ``item``; None where there is none. `CorruptRecord` where effectonce did not write it."""
    if not item:
        return None
    try:
        values = unwrap(item)
        state = values["state"]
        if state not in get_args(State):
            raise ValueError(f"state {state!r}")
        fields = {name: values[name] for name in _ATTRIBUTES if name in values or name not in _OPTIONAL_ATTRIBUTES}
        if state != "claimed":
            fields["lease_until"] = None
        if state == "in_doubt" or (state == "claimed" and values["doubt_on_lapse"]):
            fields["expires_at"] = None
        return StoredItem(**fields, lapsed=values.get("was") == "claimed")
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(
            f"an item in the table is not a record that this release reads ({type(error).__name__}: {error}); "
            "look at it, and delete it if nothing needs it"
        ) from error


def whole_seconds(micros: int) -> int:
    """Convert microseconds to whole seconds, rounded up."""
    return -(-micros // 1_000_000)
