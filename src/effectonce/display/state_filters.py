"""The filters of a list of records by state: the states of the stores, and failed apart from refused, which the stores
keep as one state."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from effectonce.core.refusals import is_refused
from effectonce.record import Record, State

from .formatting import REFUSED, STATE_WORDS


class StateFilter(Struct, frozen=True):
    """A choice of a list: the records in ``state``; with ``refused`` only those that are refused, or only those that
    are not."""

    word: str
    state: State
    refused: bool | None = None

    def matches(self, record: Record) -> bool:
        return record.state == self.state and self.refused in (None, is_refused(record))


#: By the name that an address has. The stores count failed and refused as one.
STATE_FILTERS: Final[dict[str, StateFilter]] = {
    "claimed": StateFilter(STATE_WORDS["claimed"], "claimed"),
    "done": StateFilter(STATE_WORDS["done"], "done"),
    "failed": StateFilter(STATE_WORDS["failed"], "failed", refused=False),
    "refused": StateFilter(REFUSED, "failed", refused=True),
    "failed_or_refused": StateFilter("failed or refused", "failed"),
    "in_doubt": StateFilter(STATE_WORDS["in_doubt"], "in_doubt"),
    "free": StateFilter(STATE_WORDS["free"], "free"),
}
