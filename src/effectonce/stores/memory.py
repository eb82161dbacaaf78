"""Records in this process: for tests, single-process programs, and as the model of what a store does.

The other stores say in SQL, Lua or conditional writes what `_claim` says here; the explorer runs on this one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from effectonce.clocks import SystemClock
from effectonce.contracts import Capabilities, Clock, Port
from effectonce.errors import InvalidOption
from effectonce.record import (
    EXHAUSTED,
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
    State,
    Stats,
    Swept,
    standing,
)
from effectonce.urls import Address

NEVER = 1 << 62  # an expiry that no clock reaches


class _Row(Struct, gc=False):
    state: State
    owner: bytes
    token: int
    attempts: int
    generation: int
    lease_until: int
    expires_at: int
    doubt_on_lapse: bool
    fingerprint: bytes
    created_at: int
    changed_at: int
    result: bytes | None = None
    error: bytes | None = None
    lapsed: bool = False  # taken from a lapsed lease
    note: bytes | None = None


class MemoryBackend:
    """Every port shares one dictionary and one lock, and never blocks on anything else."""

    capabilities = Capabilities(
        name="memory", lanes=0, durable=False, shared=False, creates_schema=True, notes=True, ordered=True
    )

    def __init__(self, address: Address | None = None, *, clock: Clock | None = None) -> None:
        if address is not None:
            address.done()
            if address.netloc or address.path not in ("", "/"):
                raise InvalidOption(f"memory:// has no host or path, got {address}")
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.lock = threading.Lock()
        self.scopes: dict[str, dict[str, _Row]] = {}
        self.swept_at: int | None = None

    def sync_port(self) -> Port:
        return MemoryPort(self)

    async_port = sync_port

    def after_fork(self) -> None:
        """A thread of the parent may have held the lock; no such thread is in the child."""
        self.lock = threading.Lock()

    def schema_sql(self) -> str:
        return ""

    def __repr__(self) -> str:
        return "memory://"


class MemoryPort:
    """See `contracts.Port`. Every operation is applied under the backend's one lock."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self._scopes = backend.scopes
        self._lock = backend.lock
        clock = backend.clock
        self._now = clock.now
        self._offset, self._ticks = (
            (clock.offset, time.monotonic_ns) if isinstance(clock, SystemClock) else (0, lambda: clock.now() * 1000)
        )
        self._appliers: dict[type, Callable[[Any, int], Reply]] = {
            Claim: self._claim,
            Look: self._look,
            Settlement: self._settle,
            Note: self._note,
            Renewal: self._renew,
            Remember: self._remember,
        }

    def claim(self, op: Claim | Look) -> Reply:
        """The reply itself, at once: nothing here is worth waiting for, alone or in company."""
        with self._lock:
            now = (self._offset + self._ticks()) // 1000  # the clock's own `now`, without the call
            return self._claim(op, now) if type(op) is Claim else self._appliers[type(op)](op, now)

    def settle(self, op: Settlement | Note | Remember) -> Reply:
        """As `claim`."""
        with self._lock:
            now = (self._offset + self._ticks()) // 1000
            return self._settle(op, now) if type(op) is Settlement else self._appliers[type(op)](op, now)

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        with self._lock:
            now = self._now()
            return [self._appliers[type(op)](op, now) for op in batch]

    def _look(self, op: Look, now: int) -> Answer:
        return self._standing(self._find(op.scope, op.key, now), op.fingerprints, now) or Answer("absent")

    def _find(self, scope: str, key: str, now: int) -> _Row | None:
        rows = self._scopes.get(scope)
        row = rows.get(key) if rows is not None else None
        return row if row is not None and row.expires_at > now else None

    def _standing(self, row: _Row | None, prints: bytes, now: int, claimant: bytes | None = None) -> Answer | None:
        """What an unexpired record answers; None: it is there to be taken."""
        if row is None:
            return None
        return standing(
            row.state, row.owner, row.token, row.attempts, row.generation, row.lapsed, row.doubt_on_lapse,
            row.lease_until, row.fingerprint, row.result, row.error, row.note,
            fingerprints=prints, now=now, claimant=claimant,
        )  # fmt: skip

    def _claim(self, op: Claim, now: int) -> Answer:
        rows = self._scopes.get(op.scope)
        if rows is None:
            rows = self._scopes[op.scope] = {}
        old = rows.get(op.key)
        attempts, generation, lapsed, note = 1, 0, False, op.note
        token = created = now
        fingerprint = op.fingerprints[:33]
        if old is not None:
            if old.token >= now:
                token = old.token + 1
            if old.expires_at > now:
                answer = self._standing(old, op.fingerprints, now, op.owner)
                if answer is not None:
                    if answer.kind == "in_doubt" and old.state == "claimed":
                        old.state, old.changed_at = "in_doubt", now
                    return answer
                if 0 < op.max_attempts <= old.attempts:
                    old.state, old.error, old.result = "failed", EXHAUSTED, None
                    old.changed_at, old.expires_at = now, now + op.retention
                    return Answer("exhausted", old.token, old.attempts, old.generation, None, EXHAUSTED)
                attempts, generation, created = old.attempts + 1, old.generation, old.created_at
                lapsed = old.state == "claimed"
                fingerprint = fingerprint or old.fingerprint
                note = note if old.note is None else old.note
        until = now + op.lease
        expires = NEVER if op.doubt_on_lapse else until + op.retention
        rows[op.key] = _Row(
            "claimed",
            op.owner,
            token,
            attempts,
            generation,
            until,
            expires,
            op.doubt_on_lapse,
            fingerprint,
            created,
            now,
        )
        if lapsed or note is not None:
            rows[op.key].lapsed, rows[op.key].note = lapsed, note
            return Answer("claimed", token, attempts, generation, lapsed=lapsed, note=note)
        return Answer("claimed", token, attempts, generation)

    def _settle(self, op: Settlement, now: int) -> bool:
        rows = self._scopes.get(op.scope)
        row = rows.get(op.key) if rows is not None else None
        if row is None or row.owner != op.owner or row.token != op.token or row.expires_at <= now:
            return False
        if row.state != "claimed" and not (row.state == "in_doubt" and op.state == "done"):
            return row.state == op.state
        # A new row costs less than setting five fields of the old one.
        rows[op.key] = _Row(  # type: ignore[index]
            op.state, row.owner, row.token, row.attempts - 1 if op.refund else row.attempts, row.generation,
            row.lease_until, NEVER if op.state == "in_doubt" else now + op.retention, row.doubt_on_lapse,
            row.fingerprint, row.created_at, now, op.result, op.error, False,
            row.note if op.note is None else op.note,
        )  # fmt: skip
        return True

    def _note(self, op: Note, now: int) -> bool:
        row = self._find(op.scope, op.key, now)
        if row is None or row.state != "claimed" or row.owner != op.owner or row.token != op.token:
            return False
        row.note, row.changed_at = op.note, now
        return True

    def _renew(self, op: Renewal, now: int) -> bool:
        row = self._find(op.scope, op.key, now)
        if row is None or row.state != "claimed" or row.owner != op.owner or row.token != op.token:
            return False
        row.lease_until = now + op.lease
        if not row.doubt_on_lapse:
            row.expires_at = row.lease_until + op.retention
        return True

    def _remember(self, op: Remember, now: int) -> bool:
        rows = self._scopes.setdefault(op.scope, {})
        old = rows.get(op.key)
        live = old if old is not None and old.expires_at > now else None
        answer = self._standing(live, op.fingerprints, now)
        if answer is not None:
            return answer.kind == "done"
        rows[op.key] = _Row(
            "done",
            b"",
            now if old is None else max(old.token + 1, now),
            live.attempts if live else 0,
            live.generation if live else 0,
            0,
            now + op.retention,
            False,
            op.fingerprints[:33],
            live.created_at if live else now,
            now,
            op.result,
        )
        return True

    async def get(self, scope: str, key: str) -> Record | None:
        with self._lock:
            row = self._find(scope, key, self._now())
            return None if row is None else _record(scope, key, row)

    async def list(self, query: Query) -> Page:
        after = _uncursor(query.cursor) or query.after
        with self._lock:
            now = self._now()
            found = sorted(
                (scope, key)
                for scope, key, row in self._all(query.scope)
                if row.expires_at > now
                and (query.state is None or row.state == query.state)
                and (not query.unfinished or (row.note is not None and row.state in ("claimed", "free")))
                and (after is None or (scope, key) > after)
            )
            page = found[: query.limit]
            records = [_record(scope, key, self._scopes[scope][key]) for scope, key in page]
        more = len(found) > query.limit
        return Page(records, _cursor(*page[-1]) if more else None)

    def _all(self, scope: str | None = None) -> Iterator[tuple[str, str, _Row]]:
        for name, rows in self._scopes.items():
            if scope is None or name == scope:
                for key, row in rows.items():
                    yield name, key, row

    async def stats(self) -> Stats:
        cap = 100_000
        counts = dict.fromkeys(("claimed", "done", "failed", "in_doubt", "free"), 0)
        oldest: int | None = None
        with self._lock:
            now = self._now()
            for _, _, row in self._all():
                if row.expires_at > now:
                    counts[row.state] = min(cap, counts[row.state] + 1)
                    if row.state == "in_doubt":
                        oldest = min(oldest or row.changed_at, row.changed_at)
        return Stats(counts=counts, cap=cap, oldest_in_doubt=oldest, swept_at=self._backend.swept_at)

    async def forget(self, scope: str, key: str, retention: int) -> bool:
        with self._lock:
            now = self._now()
            row = self._find(scope, key, now)
            if row is None:
                return False
            self._reopen(row, now, retention)
            row.fingerprint, row.note = b"", None
            return True

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        with self._lock:
            now = self._now()
            row = self._find(scope, key, now)
            answer = self._standing(row, b"", now)
            if row is None or answer is None or answer.kind != "in_doubt":
                return False
            self._reopen(row, now, resolution.retention, retry=resolution.state == "free")
            row.state, row.result, row.error = resolution.state, resolution.result, resolution.error
            return True

    def _reopen(self, row: _Row, now: int, retention: int, *, retry: bool = True) -> None:
        """Fence the owner out; with ``retry``, make the record free in a new generation."""
        row.owner, row.token = b"", max(row.token + 1, now)
        row.changed_at, row.expires_at = now, now + retention
        if retry:
            row.state, row.generation, row.attempts = "free", row.generation + 1, 0
            row.result = row.error = None

    async def sweep(self, limit: int) -> Swept:
        expired, lapsed = 0, 0
        with self._lock:
            now = self._now()
            scopes = list(self._scopes.items())
        # Scope by scope, so that others get the lock in between.
        for scope, rows in scopes:
            with self._lock:
                due = [key for key, row in rows.items() if row.expires_at <= now]
                for key in due[: limit - expired]:
                    del rows[key]
                expired += len(due)
                if not rows and self._scopes.get(scope) is rows:
                    del self._scopes[scope]
                for row in rows.values():
                    if row.state == "claimed" and row.doubt_on_lapse and row.lease_until <= now:
                        lapsed += 1
                        if lapsed <= limit:
                            row.state, row.changed_at = "in_doubt", now
            if expired > limit or lapsed > limit:
                return Swept(min(expired, limit), min(lapsed, limit), True)
        self._backend.swept_at = now
        return Swept(expired, lapsed, False)

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return ()

    async def now(self) -> int:
        return self._now()

    async def check(self) -> None:
        return None

    async def migrate(self) -> None:
        return None

    async def close(self) -> None:
        return None


def _record(scope: str, key: str, row: _Row) -> Record:
    return Record(
        scope=scope,
        key=key,
        state=row.state,
        token=row.token,
        attempts=row.attempts,
        generation=row.generation,
        doubt_on_lapse=row.doubt_on_lapse,
        created_at=row.created_at,
        changed_at=row.changed_at,
        lease_until=row.lease_until if row.state == "claimed" else None,
        expires_at=row.expires_at if row.expires_at < NEVER else None,
        owner=row.owner,
        fingerprint=row.fingerprint or None,
        result=row.result,
        error=row.error,
        note=row.note,
    )


def _cursor(scope: str, key: str) -> str:
    return f"{len(scope)}:{scope}{key}"


def _uncursor(cursor: str | None) -> tuple[str, str] | None:
    if cursor is None:
        return None
    length, _, rest = cursor.partition(":")
    if not length.isdigit():
        raise InvalidOption("this cursor was not made by this store; start again without one")
    return rest[: int(length)], rest[int(length) :]
