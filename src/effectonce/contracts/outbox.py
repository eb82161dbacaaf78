"""What an outbox keeps of a message on its way out, what a relay asks of it, and what it answers.

    pending ──lease──► (sent, confirmed) ──settle──► published ──(keep)──► absent
       ▲                      │ refused
       └──── waiting ◄────────┴──► parked ──(operator)──► pending | absent

Pure values: no clock, no I/O. Times are integers in microseconds since the epoch, on the database's clock; spans are
microseconds too. A leased row is ``pending`` with an owner; when its lease ends, it is there to be leased again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal

from msgspec import Struct

from effectonce.errors import InvalidOption

State = Literal["pending", "waiting", "parked", "published"]

#: The most that is counted of one state.
CAP = 100_000
#: How soon at the latest a row is looked at again that waits behind a parked one: 10 minutes.
LOOK_AGAIN = 600_000_000


class Outgoing(Struct, gc=False):
    """One leased row: all that a message is made of, how often it was leased, and where it stands."""

    seq: int
    id: str  # the message's key
    message_id: str
    destination: str
    ordering_key: str | None
    type: str
    headers: str  # a JSON object
    payload: bytes
    content: str  # json, or bytes: what the payload is
    trace_id: str | None
    source: str
    time: str | None  # RFC 3339
    attempts: int


class Lease(Struct, kw_only=True):
    """Ask for rows to send. Repeated with the same owner it gives the same rows, and counts no attempt twice."""

    owner: bytes  # 16 random bytes, new for every lease
    limit: int  # how many fresh rows are looked at, and how many that are due
    take: int | None = None  # how many of them are taken; None: as many
    span: int
    #: Rows of one ordering key go in their order, whoever leases them.
    ordered: bool
    #: Only fresh rows behind this one: what comes before was looked at, and stands behind what others are sending.
    after: int = 0
    #: Queues whose rows are passed over: they do not answer.
    without: Sequence[str] = ()


class Leased(Struct):
    """The rows, by ``seq``. ``after``: fresh rows may stand behind this one that were not looked at; 0: none do.
    ``more``: there may be others, fresh or due, that were not looked at."""

    rows: list[Outgoing]
    after: int = 0
    more: bool = False


class Verdict(Struct, gc=False):
    """What became of one leased row."""

    seq: int
    state: State
    span: int = 0  # waiting: how long; published: how long to keep it, 0 deletes it
    error: str | None = None
    refund: bool = False  # it was not tried


class Entry(Struct, frozen=True):
    """One row as people see it."""

    seq: int
    id: str
    message_id: str
    destination: str
    ordering_key: str | None
    type: str
    state: State
    attempts: int
    created_at: int
    due_at: int  # of waiting: when it is tried again; of published: when it is deleted
    leased_until: int  # of pending; 0: nobody has it
    published_at: int | None
    error: str | None


class Entries(Struct, frozen=True):
    """One page of rows. ``cursor`` is None on the last."""

    entries: list[Entry]
    cursor: str | None = None


class Backlog(Struct, frozen=True, kw_only=True):
    """Counts per state, not counted beyond ``cap``; when the oldest message was written that has not left; when
    cleaning up last came to its end."""

    counts: dict[str, int]
    cap: int
    oldest: int | None = None
    cleaned_at: int | None = None


class Cleaned(Struct, frozen=True):
    """What one bounded clean-up deleted. ``more``: the limit was reached, call again."""

    published: int
    inbox: int
    more: bool


def line_of(destination: str, ordering_key: str | None) -> int | None:
    """The number of the line in which this ordering key stands; None: in none, it goes as it comes.

    64 bits of a hash, since databases limit the length of what they index. Two keys that met in one line would wait
    for each other, and nothing worse.
    """
    if ordering_key is None:
        return None
    head = f"{len(destination)}:{destination}{ordering_key}"
    return int.from_bytes(sha256(head.encode("utf-8", "surrogatepass")).digest()[:8], "big", signed=True)


def channel_of(table: str) -> str:
    """Where senders say that they have written to ``table``: a name that no table's name is too long for."""
    return f"effectonce_{sha256(table.encode()).hexdigest()[:16]}"


class Candidate(Struct, gc=False):
    """A row that is there to be leased, and the last before it in its line that has not left."""

    seq: int
    line: int | None
    before: int | None = None


def in_turn(page: Iterable[Candidate], limit: int) -> tuple[list[int], dict[int, int]]:
    """Of the candidates, those whose turn it is, up to ``limit``; and of those whose turn it is not, by whom each is
    held up: the nearest row before it in its line that is no candidate."""
    turn: list[int] = []
    held: dict[int, int] = {}
    last: dict[int, int] = {}  # of each line, the candidate before
    holder: dict[int, int] = {}  # of each line, who holds up the next candidate
    for row in sorted(page, key=lambda row: row.seq):
        if row.line is not None:
            if row.before is not None and row.before != last.get(row.line):
                holder[row.line] = row.before
            last[row.line] = row.seq
            if row.line in holder:
                held[row.seq] = holder[row.line]
                continue
        if len(turn) < limit:
            turn.append(row.seq)
    return turn, held


def waiting_for(held: Mapping[int, int], holders: Mapping[int, tuple[str, int]], now: int) -> dict[int, int]:
    """Until when each of the rows that are held up has to wait. ``holders``: state and due_at of those that hold them
    up. Not among them: rows behind one that is being sent, which may go at any moment."""
    until: dict[int, int] = {}
    for seq, holder in held.items():
        state, due_at = holders.get(holder, ("published", 0))
        if state == "waiting":
            until[seq] = due_at
        elif state == "parked":
            until[seq] = now + LOOK_AGAIN
    return until


# -- rows as every dialect gives them


def page_of(rows: Sequence[Sequence[Any]], limit: int) -> Entries:
    """Up to ``limit`` of the rows; one more among them says that there is another page."""
    entries = [Entry(*row) for row in rows[:limit]]
    return Entries(entries, f"{entries[-1].due_at}:{entries[-1].seq}" if len(rows) > limit else None)


def place(cursor: str | None) -> tuple[int, int]:
    """(due_at, seq) of the last row before a page."""
    found = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", cursor) if cursor is not None else None
    if cursor is not None and found is None:
        raise InvalidOption("this cursor was not made by this list; start again without one")
    return (int(found[1]), int(found[2])) if found is not None else (-1, 0)


def backlog(rows: Iterable[Sequence[Any]]) -> Backlog:
    """From rows of (state, count, least created_at), and one of ``cleaned`` with its time."""
    found = {state: (count, least) for state, count, least in rows}
    cleaned = found.pop("cleaned", (0, None))[1]
    oldest = [least for state, (_, least) in found.items() if state != "published" and least is not None]
    return Backlog(
        counts={state: count for state, (count, _) in found.items()},
        cap=CAP,
        oldest=min(oldest, default=None),
        cleaned_at=cleaned,
    )
