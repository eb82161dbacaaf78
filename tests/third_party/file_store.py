"""A store of one file: every operation reads it, and writes it again, under a lock. Slow, and correct."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import msgpack, structs

from effectonce.contracts import Capabilities
from effectonce.record import (
    Answer,
    Batchable,
    Claim,
    Look,
    Note,
    Page,
    Query,
    Record,
    Remember,
    Renewal,
    Reply,
    Resolution,
    Settlement,
    Stats,
    StoredClaim,
    SweepResult,
    answer_for,
    exhausted_error,
)
from effectonce.values.clocks import SystemClock
from effectonce.values.urls import Address


class Row(Record, frozen=True):
    lapsed: bool = False  # taken from a lease that had ended

    def is_live(self, now: int) -> bool:
        return self.expires_at is None or self.expires_at > now


Rows = dict[tuple[str, str], Row]


class FileBackend:
    """``file:///records.bin``"""

    capabilities = Capabilities(name="file", connections="one", notes=True, ordered=True)

    def __init__(self, address: Address) -> None:
        address.refuse_unknown_options()  # refuses options that do not exist
        self.path, self.clock = Path(address.path), SystemClock()

    def sync_port(self) -> "FilePort":
        return FilePort(self)

    async_port = sync_port  # it waits for a disk, as SQLite does; a server needs a driver that awaits

    def schema_sql(self) -> str:
        return ""

    def __repr__(self) -> str:
        return f"file://{self.path}"


class FilePort:
    def __init__(self, backend: FileBackend) -> None:
        self._path, self._clock = backend.path, backend.clock

    @contextmanager
    def _rows(self) -> Iterator[tuple[Rows, int]]:
        with open(f"{self._path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # before the clock is read: one that waits has a later time
            stored = self._path.read_bytes() if self._path.exists() else b"\x90"
            rows = {(row.scope, row.key): row for row in msgpack.decode(stored, type=list[Row])}
            yield rows, self._clock.now()
            after = msgpack.encode(list(rows.values()))
            if after != stored:
                with open(f"{self._path}.new", "wb") as new:  # without fsync: a power cut may lose the last writes
                    new.write(after)
                os.replace(new.name, self._path)

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        with self._rows() as (rows, now):
            return [apply(rows, op, now) for op in batch]

    async def get(self, scope: str, key: str) -> Record | None:
        with self._rows() as (rows, now):
            row = rows.get((scope, key))
            return row if row is not None and row.is_live(now) else None

    async def list(self, query: Query) -> Page:
        def place(row: Row) -> tuple[int, str, str]:
            return (row.changed_at if query.newest_first else 0, row.scope, row.key)

        with self._rows() as (rows, now):
            selected = [
                row
                for row in rows.values()
                if row.is_live(now)
                and query.scope in (None, row.scope)
                and query.state in (None, row.state)
                and (not query.unfinished or (row.note is not None and row.state in ("claimed", "free")))
                and query.key_contains in row.key
            ]
        selected.sort(key=place, reverse=query.newest_first)
        if query.cursor is not None:
            last = msgpack.decode(bytes.fromhex(query.cursor), type=tuple[int, str, str])
            selected = [row for row in selected if (place(row) < last if query.newest_first else place(row) > last)]
        elif query.after is not None:
            selected = [row for row in selected if (row.scope, row.key) > query.after]
        page = selected[: query.limit]
        return Page(list(page), msgpack.encode(place(page[-1])).hex() if len(selected) > len(page) else None)

    async def stats(self) -> Stats:
        with self._rows() as (rows, now):
            live = [row for row in rows.values() if row.is_live(now)]
        states = ("claimed", "done", "failed", "in_doubt", "free")
        return Stats(
            counts={state: sum(row.state == state for row in live) for state in states},
            cap=len(live),
            oldest_in_doubt=min((row.changed_at for row in live if row.state == "in_doubt"), default=None),
            swept_at=self._swept_at(),
        )

    def _swept_at(self) -> int | None:
        swept = Path(f"{self._path}.swept")
        return int(swept.read_text()) if swept.exists() else None

    def _set_swept_at(self, now: int) -> None:
        Path(f"{self._path}.swept").write_text(str(now))

    async def forget(self, scope: str, key: str, retention_us: int) -> bool:
        with self._rows() as (rows, now):
            row = rows.get((scope, key))
            if row is None or not row.is_live(now):
                return False
            rows[scope, key] = structs.replace(reopen(row, now, retention_us), fingerprint=None, note=None)
            return True

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        with self._rows() as (rows, now):
            row = rows.get((scope, key))
            answer = answer_of(row, b"", now) if row is not None and row.is_live(now) else None
            if row is None or answer is None or answer.kind != "in_doubt":
                return False
            new = reopen(row, now, resolution.retention_us)
            if resolution.state != "free":
                new = structs.replace(new, generation=row.generation, attempts=row.attempts)
            rows[scope, key] = structs.replace(
                new, state=resolution.state, result=resolution.result, error=resolution.error
            )
            return True

    async def sweep(self, limit: int) -> SweepResult:
        with self._rows() as (rows, now):
            expired = [place for place, row in rows.items() if not row.is_live(now)]
            lapsed = [
                place
                for place, row in rows.items()
                if row.state == "claimed" and row.doubt_on_lapse and (row.lease_until or 0) <= now
            ]
            for place in expired[:limit]:
                del rows[place]
            for place in lapsed[:limit]:
                rows[place] = structs.replace(rows[place], state="in_doubt", changed_at=now, lease_until=None)
            self._set_swept_at(now)
        return SweepResult(min(len(expired), limit), min(len(lapsed), limit), max(len(expired), len(lapsed)) > limit)

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return ()

    async def now(self) -> int:
        return self._clock.now()

    async def check(self) -> None: ...

    async def migrate(self) -> None: ...

    async def close(self) -> None: ...


def answer_of(row: Row, fingerprints: bytes, now: int, claimant: bytes | None = None) -> Answer | None:
    """Steps 2 to 7 of a claim, which are the same for every store."""
    stored = StoredClaim(*(getattr(row, name) for name in StoredClaim.__struct_fields__))
    return answer_for(stored, fingerprints=fingerprints, now=now, claimant=claimant)


def apply(rows: Rows, op: Batchable, now: int) -> Reply:
    """Apply one operation to its record, and return the reply."""
    place = (op.scope, op.key)
    old = rows.get(place)
    row = old if old is not None and old.is_live(now) else None  # step 1: expired counts as absent
    if isinstance(op, Look):
        return (row and answer_of(row, op.fingerprints, now)) or Answer("absent")
    if isinstance(op, Remember):
        answer = answer_of(row, op.fingerprints, now) if row is not None else None
        if answer is not None:
            return answer.kind == "done"
        rows[place] = structs.replace(make_row(op, old, row, now), note=None, result=op.result)
        return True
    if isinstance(op, Claim):
        new, reply = claim(op, old, row, now)
    else:
        new = settle(op, row, now)
        reply = new is not None
    if new is not None:
        rows[place] = new
    return reply


def claim(op: Claim, old: Row | None, row: Row | None, now: int) -> tuple[Row | None, Answer]:
    """Return the record after the claim, and the answer."""
    answer = answer_of(row, op.fingerprints, now, op.owner) if row is not None else None
    if row is not None and answer is not None:
        if answer.kind == "in_doubt" and row.state == "claimed":  # step 7
            row = structs.replace(row, state="in_doubt", changed_at=now, lease_until=None)
        return row, answer
    if row is not None and 0 < op.max_attempts <= row.attempts:  # step 8
        failed = structs.replace(
            row,
            state="failed",
            error=exhausted_error(row.error),
            result=None,
            changed_at=now,
            lease_until=None,
            expires_at=now + op.retention_us,
        )
        return failed, Answer("exhausted", row.token, row.attempts, row.generation, error=failed.error)
    new = make_row(op, old, row, now)
    new = structs.replace(
        new,
        state="claimed",
        owner=op.owner,
        attempts=new.attempts + 1,
        fingerprint=new.fingerprint or (row.fingerprint if row else None),
        doubt_on_lapse=op.doubt_on_lapse,
        lease_until=now + op.lease_us,
        expires_at=None if op.doubt_on_lapse else now + op.lease_us + op.retention_us,
        error=row.error if row else None,
        note=op.note if new.note is None else new.note,
        lapsed=row is not None and row.state == "claimed",
    )
    counts = (new.token, new.attempts, new.generation)
    return new, Answer("claimed", *counts, error=new.error, lapsed=new.lapsed, note=new.note)


def make_row(op: Claim | Remember, old: Row | None, row: Row | None, now: int) -> Row:
    """Return the record that takes the place of ``row``. Its token also grows over ``old``, which may have expired."""
    return Row(
        scope=op.scope,
        key=op.key,
        state="done",
        token=now if old is None else max(old.token + 1, now),
        attempts=row.attempts if row else 0,
        generation=row.generation if row else 0,
        doubt_on_lapse=False,
        created_at=row.created_at if row else now,
        changed_at=now,
        expires_at=now + op.retention_us,
        fingerprint=op.fingerprints[:33] or None,
        note=row.note if row else None,
    )


def settle(op: Settlement | Note | Renewal, row: Row | None, now: int) -> Row | None:
    """Return the record after what its owner asks for. None: it is no longer this owner's, and nothing changes."""
    if row is None or (row.owner, row.token) != (op.owner, op.token):
        return None
    if isinstance(op, Settlement):
        if row.state != "claimed" and (row.state, op.state) != ("in_doubt", "done"):
            return row if row.state == op.state else None  # its repetition, whose reply was lost; or another came first
        return structs.replace(
            row,
            state=op.state,
            changed_at=now,
            lease_until=None,
            expires_at=None if op.state == "in_doubt" else now + op.retention_us,
            attempts=row.attempts - op.refund,
            result=op.result,
            error=row.error if op.refund else op.error,
            note=row.note if op.note is None else op.note,
        )
    if row.state != "claimed":
        return None
    if isinstance(op, Note):
        return structs.replace(row, note=op.note, changed_at=now)
    until = now + op.lease_us
    return structs.replace(row, lease_until=until, expires_at=None if row.doubt_on_lapse else until + op.retention_us)


def reopen(row: Row, now: int, retention: int) -> Row:
    """Return ``row`` as free, in a new generation; a new token fences its owner out."""
    return structs.replace(
        row,
        state="free",
        owner=b"",
        token=max(row.token + 1, now),
        generation=row.generation + 1,
        attempts=0,
        changed_at=now,
        lease_until=None,
        expires_at=now + retention,
        result=None,
        error=None,
    )
