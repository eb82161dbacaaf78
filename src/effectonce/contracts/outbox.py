"""The rows of an outbox, and the questions and answers that pass between a relay and the database that holds them.

    pending ──lease──► (sent, confirmed) ──settle──► published ──(keep)──► absent
       ▲                      │ the broker refused it
       └──── waiting ◄────────┴──► parked ──(operator)──► pending | absent
                ▲
                └── a message that was sent with a delay begins here

Pure values: no clock, no I/O. Times are integers in microseconds since the epoch, on the database's clock, and named
``…_at`` or ``…_until``; spans are microseconds, and named ``…_us``. A leased row is ``pending`` with an owner; when its
lease ends, any relay may lease it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Literal

from msgspec import Struct

from effectonce.values.cursors import CursorNumber, read_cursor, write_cursor

OutboxState = Literal["pending", "waiting", "parked", "published"]

_LISTING: Final = "outbox rows"
#: Rows of one state are counted up to this number.
COUNT_LIMIT: Final = 100_000
#: A row behind a parked one is looked at again after 10 minutes at the latest.
BLOCKED_ROW_RECHECK_US: Final = 600_000_000


class OutboxRow(Struct, gc=False):
    """One leased row: the parts of its message, its number in the table, and how often it was leased. The backends'
    statements select these fields: see `COLUMN_WORDS`."""

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
    attempts: int  # leases so far, this one included


class LeaseRequest(Struct, kw_only=True):
    """A relay's request for rows to send. The same request, repeated after a lost reply, gets the same rows and counts
    no attempt twice."""

    owner: bytes  # 16 random bytes, new for every lease
    limit: int  # read up to so many fresh rows, and up to so many that are due
    take: int | None = None  # lease up to so many of the rows that were read; None: ``limit``
    lease_us: int  # how long the lease holds
    ordered: bool  # rows of one ordering key go out in their order, across all relays
    #: Read only fresh rows after this number: an earlier page showed that those before it wait for other relays.
    after: int = 0
    without: Sequence[str] = ()  # skip rows to these queues, which did not answer


class LeasedRows(Struct):
    """The leased rows, sorted by ``seq``."""

    rows: list[OutboxRow]
    after: int = 0  # pass it to the next request: fresh rows beyond this number were not read; 0: all were
    more: bool = False  # there may be more rows, fresh or due, that were not read


class RowOutcome(Struct, gc=False):
    """What became of one leased row: the state that it goes to."""

    seq: int
    state: OutboxState
    wait_us: int = 0  # only for ``waiting``: how long
    error: str | None = None
    refund: bool = False  # the row was not tried, so its attempt is not counted


class OutboxEntry(Struct, frozen=True):
    """One row as operators see it. The backends' statements select these fields: see `COLUMN_WORDS`."""

    seq: int
    id: str
    message_id: str
    destination: str
    ordering_key: str | None
    type: str
    state: OutboxState
    attempts: int
    created_at: int  # when it was written; of a message with a delay, when that ends
    due_at: int  # waiting: the time of the next attempt; published: the time of its deletion
    leased_until: int  # only for pending rows; 0: not leased
    published_at: int | None
    error: str | None


#: The columns of `OutboxRow` and `OutboxEntry`: words in the backends' SQL files, so that a row is the struct's fields.
COLUMN_WORDS: Final = {
    "row_columns": ", ".join(OutboxRow.__struct_fields__),
    "entry_columns": ", ".join(OutboxEntry.__struct_fields__),
}


class OutboxPage(Struct, frozen=True):
    """One page of rows. ``cursor`` is None on the last page."""

    entries: list[OutboxEntry]
    cursor: str | None = None


class OutboxMatches(Struct, frozen=True):
    """What a search has found. ``is_complete``: every row was looked at, not only the newest."""

    entries: list[OutboxEntry]
    is_complete: bool


class OutboxBacklog(Struct, frozen=True, kw_only=True):
    """How many rows are in each state, and how old the backlog is."""

    counts: dict[str, int]
    cap: int  # states with more rows than this show this number
    oldest: int | None = None  # when the oldest unpublished message was written
    cleaned_at: int | None = None  # when a clean-up last found nothing more to delete


class CleanupResult(Struct, frozen=True):
    """How many rows one bounded clean-up deleted. ``more``: it reached its limit; call it again."""

    published: int
    inbox: int
    more: bool


def hash_line(destination: str, ordering_key: str | None) -> int | None:
    """Number the line of messages that share this destination and ordering key. None: the message has no order.

    The number is 64 bits of a hash, since databases limit the length of an indexed value. Two keys with the same
    number would only wait for each other.
    """
    if ordering_key is None:
        return None
    head = f"{len(destination)}:{destination}{ordering_key}"
    return int.from_bytes(sha256(head.encode("utf-8", "surrogatepass")).digest()[:8], "big", signed=True)


def notify_channel(table: str) -> str:
    """Name the PostgreSQL channel on which senders announce a commit to ``table``. The hash keeps it short enough for a
    channel's name, however long the table's is."""
    return f"effectonce_{sha256(table.encode()).hexdigest()[:16]}"


class LeaseCandidate(Struct, gc=False):
    """A row whose own state allows a lease. A row that it must not overtake may still block it."""

    seq: int
    line: int | None
    before: int | None = None  # the nearest unpublished row before it in its line


def select_in_turn(candidates: Iterable[LeaseCandidate], limit: int) -> tuple[list[int], dict[int, int]]:
    """Divide the candidates into those whose turn it is (up to ``limit``) and those that another row blocks.

    A row's turn has come when every unpublished row before it in its line is a candidate too: then both go out in one
    lease, in order (F43: order is lost where a later row overtakes).

    Returns the rows whose turn it is, and for each blocked row its blocker: the nearest row before it in its line that
    is not a candidate. All rows are named by their ``seq``.
    """
    in_turn: list[int] = []
    blocked: dict[int, int] = {}
    last_seq: dict[int, int] = {}  # by line: the candidate seen last
    blocker: dict[int, int] = {}  # by line: the row that blocks all later candidates
    for row in sorted(candidates, key=lambda row: row.seq):
        if row.line is not None:
            if row.before is not None and row.before != last_seq.get(row.line):
                blocker[row.line] = row.before
            last_seq[row.line] = row.seq
            if row.line in blocker:
                blocked[row.seq] = blocker[row.line]
                continue
        if len(in_turn) < limit:
            in_turn.append(row.seq)
    return in_turn, blocked


def compute_deferrals(blocked: Mapping[int, int], blockers: Mapping[int, tuple[str, int]], now: int) -> dict[int, int]:
    """Compute until when each blocked row waits, so that no lease reads it again before that.

    ``blocked`` names the blocker of each row, as `select_in_turn` returns it; ``blockers`` has the state and due_at of
    the blockers. A row behind one that is being sent has no deferral: its turn may come at any moment.
    """
    deferred_until: dict[int, int] = {}
    for seq, blocker in blocked.items():
        state, due_at = blockers.get(blocker, ("published", 0))
        if state == "waiting":
            deferred_until[seq] = due_at
        elif state == "parked":
            deferred_until[seq] = now + BLOCKED_ROW_RECHECK_US
    return deferred_until


def build_page(rows: Sequence[Sequence[Any]], limit: int) -> OutboxPage:
    """Build a page of up to ``limit`` rows. The caller reads one row more than that: if it is there, another page
    follows."""
    entries = [OutboxEntry(*row) for row in rows[:limit]]
    return OutboxPage(
        entries, write_cursor(_LISTING, (entries[-1].due_at, entries[-1].seq)) if len(rows) > limit else None
    )


def build_matches(ranges: Iterable[Iterable[Sequence[Any]]], is_complete: bool, limit: int) -> OutboxMatches:
    """Build what a search has found from the rows of each range, of which two may have the same row."""
    entries = {row[0]: OutboxEntry(*row) for rows in ranges for row in rows}
    newest = sorted(entries.values(), key=lambda entry: -entry.seq)
    return OutboxMatches(newest[:limit], is_complete)


def parse_cursor(cursor: str | None) -> tuple[int, int]:
    """Parse a page's cursor into (due_at, seq) of the last row before it."""
    if cursor is None:
        return -1, 0
    due_at, seq = read_cursor(cursor, _LISTING, tuple[CursorNumber, CursorNumber])
    return due_at, seq


def build_backlog(rows: Iterable[Sequence[Any]]) -> OutboxBacklog:
    """Build the backlog from rows of (state, count, least created_at) and one of ("cleaned", 0, its time)."""
    by_state = {state: (count, least) for state, count, least in rows}
    _, cleaned_at = by_state.pop("cleaned", (0, None))
    oldest = [least for state, (_, least) in by_state.items() if state != "published" and least is not None]
    return OutboxBacklog(
        counts={state: count for state, (count, _) in by_state.items()},
        cap=COUNT_LIMIT,
        oldest=min(oldest, default=None),
        cleaned_at=cleaned_at,
    )
