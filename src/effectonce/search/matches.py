"""What a search returns: the matches of each place, and what the place could not say."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

PlaceName = Literal["records", "inbox", "outbox", "dead letters"]
MatchKind = Literal["record", "intent", "saga", "inbox", "outbox", "dead letter"]
MatchedBy = Literal["key", "message id", "ordering key"]


class Match(Struct, frozen=True, kw_only=True):
    """One thing that was found."""

    kind: MatchKind
    #: Of a record or an inbox row: its scope. Of a message in the outbox: its destination. Of a dead letter: its queue,
    #: under the name that `SearchPlaces.queues` has for it.
    scope: str
    key: str
    state: str  # as people read it
    by: MatchedBy
    changed_at: int | None = None  # microseconds since the epoch
    message_id: str = ""
    #: Of a dead letter its id, of a row in the outbox its number, of a record its key as the store has it.
    id: str = ""
    detail: str = ""


class PlaceResult(Struct, frozen=True, kw_only=True):
    """The answer of one place. ``problem``: why it could not be asked. ``gap``: where it did not look."""

    place: PlaceName
    name: str  # the address, or the queue
    matches: list[Match] = []
    gap: str = ""
    problem: str = ""
