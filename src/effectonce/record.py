"""Records, the operations on them, and their answers: the data that passes between the core and every store.

    absent ──claim──► claimed ──settle──► done | failed | in_doubt | free

Pure values: no clock, no I/O. Times are integers in microseconds since the epoch, on the store's clock, and named
``…_at`` or ``…_until``; spans are microseconds, and named ``…_us``. Only `Answer.retry_after` is in seconds, since the
errors have it that are made of it. One claim, one settlement or one renewal is one atomic step.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .errors import CorruptRecord, show
from .values.fingerprint import split_fingerprints

State = Literal["claimed", "done", "failed", "in_doubt", "free"]
SettledState = Literal["done", "failed", "in_doubt", "free"]
AnswerKind = Literal["claimed", "absent", "done", "failed", "in_progress", "in_doubt", "exhausted", "mismatch"]


#: So begins the stored error of a record that failed because no attempt was left. Behind it stands the last error that
#: an attempt reported, as that was stored. A claim of such a record is answered ``exhausted``.
EXHAUSTED_ERROR = b'1{"code":"attempts-exhausted"}'


def exhausted_error(last_error: bytes | None) -> bytes:
    """The error to store where no attempt is left. ``last_error``: the record's error until then."""
    return EXHAUSTED_ERROR + (last_error or b"")


def is_exhausted(error: bytes | None) -> bool:
    """Whether the stored ``error`` of a failed record says that no attempt was left."""
    return error is not None and error.startswith(EXHAUSTED_ERROR)


def last_error_of(error: bytes | None) -> bytes | None:
    """The last error that an attempt reported, from what `exhausted_error` made. None: no attempt reported one."""
    return None if error is None else error.removeprefix(EXHAUSTED_ERROR) or None


class Operation(Struct, gc=False):
    """The identity that an operation concerns. ``key`` is a keyed hash where the store is private."""

    scope: str
    key: str


class Claim(Operation, gc=False):
    """Ask for the right to run. Repeated with the same owner it answers the same, with the same token.

    It is granted where the record is absent, expired, free, or lapsed with ``on_lapse`` rerun. Granting
    counts the attempt, so that work which takes the process down is counted too.
    """

    owner: bytes  # 16 bytes that no other call has
    lease_us: int  # how long it holds without a renewal, from the store's time on
    retention_us: int  # how long the record is kept after the lease, unless it is settled
    max_attempts: int = 0  # 0: no limit
    doubt_on_lapse: bool = False  # stored: when *this* lease ends, the record is in doubt
    fingerprints: bytes = b""  # one 33-byte entry per algorithm version, the first is stored; b"": not compared
    waiting: bool = False  # if the record is in progress, flag it so that its settlement is reported by `Port.changes`
    note: bytes | None = None  # stored where the record has none; only where `Capabilities.notes`


class Look(Operation, gc=False):
    """Ask for the answer to a claim without claiming. ``absent``: a claim would be granted."""

    fingerprints: bytes = b""


class Settlement(Operation, gc=False):
    """End a claim: ``done``, ``failed``, ``in_doubt`` or ``free`` (a release). Answered by a bool.

    Applied where the record is claimed by this owner with this token; ``done`` also where it is in doubt under
    them. True as well where this very settlement was applied before (its reply was lost). False, and nothing
    changes: another claim, a forget or an operator came between. A refund keeps the record's error.
    """

    owner: bytes
    token: int
    state: SettledState
    retention_us: int
    result: bytes | None = None
    error: bytes | None = None
    refund: bool = False  # a release of work that never started does not count as an attempt
    note: bytes | None = None  # the new note; None: the note stays


class Note(Operation, gc=False):
    """Store the progress of a claim, so that another process can resume it. Answered by a bool.

    Applied where the record is claimed by this owner with this token; a repetition changes nothing. False: the claim is
    another's. Only where `Capabilities.notes`.
    """

    owner: bytes
    token: int
    note: bytes


class Renewal(Operation, gc=False):
    """Extend a lease from now. Answered by a bool; False: the claim is another's."""

    owner: bytes
    token: int
    lease_us: int
    retention_us: int


class Remember(Operation, gc=False):
    """Mode S: record a success that was not claimed. Answered by a bool: whether the record is done afterwards.

    Applied wherever a claim would be granted, whatever its attempts. An unexpired ``done`` stays as it is, so that
    all replays agree. Never overwrites a live claim, a doubt or a failure: those answer False.
    """

    retention_us: int
    fingerprints: bytes = b""
    result: bytes | None = None


class Answer(Struct, gc=False, frozen=True):
    """The reply to a claim or a look."""

    kind: AnswerKind
    token: int = 0
    attempts: int = 0
    generation: int = 0
    result: bytes | None = None  # for done; None: it was not stored
    error: bytes | None = None  # for failed and exhausted; for claimed: the last one of the attempts before
    retry_after: float = 0.0  # for in_progress: seconds until the lease ends, never negative
    lapsed: bool = False  # for claimed: the attempt before ended without a release (it may have been killed)
    note: bytes | None = None  # for claimed: the progress of the attempts before


class Record(Struct, frozen=True, kw_only=True):
    """One record as operators see it. ``result`` and ``error`` are the stored bytes."""

    scope: str
    key: str
    state: State
    token: int
    attempts: int
    generation: int
    doubt_on_lapse: bool
    created_at: int
    changed_at: int
    lease_until: int | None = None
    expires_at: int | None = None  # None: never
    owner: bytes = b""
    fingerprint: bytes | None = None
    result: bytes | None = None
    error: bytes | None = None
    note: bytes | None = None


class Query(Struct, frozen=True, kw_only=True):
    """Which records to list, at most ``limit`` on a page.

    ``unfinished``: only records with a note that are claimed or free, which may have to be resumed.
    ``after``: only records behind this (scope, key); only where `Capabilities.ordered`.
    ``newest_first``: in the order of the last change, the newest first (see `contracts.Port.list`).
    ``key_contains``: only records whose key contains this text; only with ``newest_first``.
    """

    state: State | None = None
    unfinished: bool = False
    scope: str | None = None
    limit: int = 100
    cursor: str | None = None
    after: tuple[str, str] | None = None
    newest_first: bool = False
    key_contains: str = ""


class Page(Struct, frozen=True):
    """One page of records. ``cursor`` is None on the last page.

    ``partial``: the store could not sort all of its records by their last change. Those that it left out are on no
    page of this list.
    """

    records: list[Record]
    cursor: str | None = None
    partial: bool = False


class Stats(Struct, frozen=True, kw_only=True):
    """The number of records in each state, counted up to ``cap``, and when the sweeper last finished.

    ``approximate`` names the states whose count may be off, since an exact one would read the whole store.
    """

    counts: dict[str, int]
    cap: int
    oldest_in_doubt: int | None = None
    swept_at: int | None = None
    approximate: tuple[str, ...] = ()


class Figures(Struct, frozen=True, kw_only=True):
    """What a store knows about its health without reading its records, beside `Stats`; for `doctor`.

    None, 0 or empty: the store has no such figure, or its user may not read it.
    """

    #: Records that expired before the given time and still exist, counted up to ``cap``; when the oldest expired.
    overdue: int = 0
    oldest_overdue: int | None = None
    cap: int = 0
    #: How long the oldest transaction has been open that keeps the server from removing dead rows, and
    #: whose it is.
    transaction_age_s: float = 0.0
    transaction: str = ""
    #: By table: live and dead rows, as the server estimates them.
    rows: dict[str, tuple[int, int]] = {}
    #: Bytes used, and the limit; 0: without one.
    memory: tuple[int, int] | None = None
    #: Settings of the server that the promise depends on, by the server's names.
    settings: dict[str, str] = {}


class Resolution(Struct, frozen=True, kw_only=True):
    """An operator's decision about a record in doubt. ``free`` (retry) starts a new generation."""

    state: Literal["done", "failed", "free"]
    retention_us: int
    result: bytes | None = None
    error: bytes | None = None


class SweepResult(Struct, frozen=True):
    """How many records one bounded sweep deleted, and moved to in doubt. ``more``: it reached its limit; call again."""

    deleted: int
    lapsed: int
    more: bool


Batchable = Claim | Look | Settlement | Note | Renewal | Remember
Reply = Answer | bool | Exception


class StoredClaim(Struct, gc=False):
    """The fields of a stored record that decide the answer to a claim. SQL stores select them in this order. The
    defaults are those of a record that was never claimed."""

    state: str = "free"
    owner: bytes = b""
    token: int = 0
    attempts: int = 0
    generation: int = 0
    lapsed: bool = False
    doubt_on_lapse: bool = False
    lease_until: int | None = None  # when its last lease ends; it counts while the record is claimed
    fingerprint: bytes | None = None
    result: bytes | None = None
    error: bytes | None = None
    note: bytes | None = None


def answer_for(stored: StoredClaim, *, fingerprints: bytes, now: int, claimant: bytes | None = None) -> Answer | None:
    """The answer of an unexpired record to a claim by ``claimant``, or to a look: rules 2 to 7 of `contracts.Port.run`.

    None: a claim may take the record. If the answer is ``in_doubt`` and the record is still ``claimed``, the store must
    move it to in doubt. Raises `CorruptRecord` for fields that no store writes.
    """
    if fingerprints and stored.fingerprint and stored.fingerprint not in split_fingerprints(fingerprints):
        return Answer("mismatch")
    counts = (stored.token, stored.attempts, stored.generation)
    if stored.state == "done":
        return Answer("done", *counts, result=stored.result)
    if stored.state == "failed":
        return Answer("exhausted" if is_exhausted(stored.error) else "failed", *counts, error=stored.error)
    if stored.state == "in_doubt":
        return Answer("in_doubt", *counts)
    if stored.state == "claimed" and isinstance(stored.lease_until, int):
        if stored.owner == claimant:
            return Answer("claimed", *counts, error=stored.error, lapsed=bool(stored.lapsed), note=stored.note)
        if now < stored.lease_until:
            return Answer("in_progress", *counts, retry_after=(stored.lease_until - now) / 1e6)
        return Answer("in_doubt", *counts) if stored.doubt_on_lapse else None
    if stored.state == "free":
        return None
    raise CorruptRecord(f"a record has the state {show(stored.state)!r}, in a form that no store writes; delete it")
