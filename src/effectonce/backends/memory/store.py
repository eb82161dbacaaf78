"""Records in this process: for tests, single-process programs, and as the model of what a store does.

The other stores say in SQL, Lua or conditional writes what `_claim` says here; the explorer runs on this one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

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
    written_often,
)
from effectonce.values.clocks import SystemClock
from effectonce.values.urls import Address

NEVER = 1 << 62  # an expiry that no clock reaches


@written_often
class _Row(Struct, gc=False):
    state: State
    owner: bytes
    token: int
    attempts: int
    generation: int
    leased_at: int  # when its lease was last asked for
    lease: int
    retention: int  # from its last change on; while it is claimed, from the end of its lease on
    doubt_on_lapse: bool
    fingerprint: bytes
    created_at: int
    changed_at: int
    note: bytes | None = None
    result: bytes | None = None
    error: bytes | None = None
    lapsed: bool = False  # taken from a lapsed lease

    # Worked out when somebody asks, since most records come and go without.

    @property
    def lease_until(self) -> int:
        return self.leased_at + self.lease

    @property
    def expires_at(self) -> int:
        """From when on it counts as absent."""
        if self.state == "claimed":
            return NEVER if self.doubt_on_lapse else self.leased_at + self.lease + self.retention
        return NEVER if self.state == "in_doubt" else self.changed_at + self.retention


class MemoryBackend:
    """Every port shares one dictionary and one lock, and never blocks on anything else."""

    capabilities = Capabilities(name="memory", lanes=0, durable=False, shared=False, notes=True, ordered=True)

    def __init__(self, address: Address | None = None, *, clock: Clock | None = None) -> None:
        if address is not None:
            address.done()
            if address.netloc or address.path not in ("", "/"):
                raise InvalidOption(f"memory:// has no host or path, got {address}")
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.lock = threading.RLock()
        self.scopes: dict[str, dict[str, _Row]] = {}
        self.quiet: object | None = object()  # another one after each deletion, None during it: see `MemoryPort.first`
        self.swept_at: int | None = None

    def sync_port(self) -> Port:
        return MemoryPort(self)

    async_port = sync_port

    def after_fork(self) -> None:
        """A thread of the parent may have held the lock; no such thread is in the child."""
        self.lock = threading.RLock()
        self.quiet = object()

    def schema_sql(self) -> str:
        return ""

    def __repr__(self) -> str:
        return "memory://"


class MemoryPort:
    """See `contracts.Port` and `Short` there. All is done under the backend's one lock, but for one way in: `first`."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self._scopes = backend.scopes
        self._lock = backend.lock
        self._acquire, self._release = backend.lock.acquire, backend.lock.release
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

    def first(
        self, scope: str, key: str, owner: bytes, lease: int, retention: int, doubt_on_lapse: bool, fingerprints: bytes
    ) -> int:
        """A key that is new is granted without the lock: of those who put their row there at once, one does.

        All that is not new is changed under the lock only. What is deleted could make a key new again under the feet
        of a claim that has read the clock, or take the scope's dictionary from it: so a deletion begins and ends with
        another value of ``quiet``, and a claim that has seen two of them is made again, under the lock.
        """
        quiet = self._backend.quiet
        try:
            rows = self._scopes[scope]
        except KeyError:
            rows = self._scopes.setdefault(scope, {})
        if quiet is not None and key not in rows:
            ticks = self._ticks
            now = (self._offset + ticks()) // 1000  # the clock's own `now`, without the call
            row = _Row(
                "claimed", owner, now, 1, 0, now, lease, retention, doubt_on_lapse, fingerprints and fingerprints[:33],
                now, now,
            )  # fmt: skip
            if rows.setdefault(key, row) is row:
                if self._backend.quiet is quiet:
                    return now
                self._take_back(scope, key, owner)
        return 0

    def complete(self, scope: str, key: str, owner: bytes, token: int, retention: int, result: bytes | None) -> bool:
        acquire, release, ticks = self._acquire, self._release, self._ticks
        try:  # half as dear as `with`, and as safe from an interruption: the lock knows whose it is
            acquire()
            now = (self._offset + ticks()) // 1000
            row = self._scopes[scope][key]
            # Nearly always: it holds the lease that it got, unchanged.
            if row.owner is owner and row.token is token and row.state == "claimed" and now - row.leased_at < row.lease:
                row.changed_at, row.retention, row.result, row.state = now, retention, result, "done"
                return True
            return self._settle(Settlement(scope, key, owner, token, "done", retention, result), now)
        except KeyError:
            return False
        finally:
            try:
                release()
            except RuntimeError:  # interrupted while it waited: it is not ours
                pass

    def _take_back(self, scope: str, key: str, owner: bytes) -> None:
        """Undo a grant that nobody has been told of."""
        with self._lock:
            rows = self._scopes.get(scope, {})
            row = rows.get(key)
            if row is not None and row.owner == owner:
                del rows[key]

    def claim(self, op: Batchable) -> Reply:
        acquire, release, ticks = self._acquire, self._release, self._ticks
        try:  # as in `complete`
            acquire()
            return self._appliers[type(op)](op, (self._offset + ticks()) // 1000)
        finally:
            try:
                release()
            except RuntimeError:
                pass

    settle = claim

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
            row.lease_until if row.state == "claimed" else None, row.fingerprint, row.result, row.error, row.note,
            fingerprints=prints, now=now, claimant=claimant,
        )  # fmt: skip

    def _claim(self, op: Claim, now: int) -> Answer:
        rows = self._scopes.setdefault(op.scope, {})
        old = rows.get(op.key)
        live = old if old is not None and old.expires_at > now else None
        if live is not None:
            answer = self._standing(live, op.fingerprints, now, op.owner)
            if answer is not None:
                if answer.kind == "in_doubt" and live.state == "claimed":
                    live.state, live.changed_at = "in_doubt", now
                return answer
            if 0 < op.max_attempts <= live.attempts:
                live.state, live.error, live.result = "failed", EXHAUSTED, None
                live.changed_at, live.retention = now, op.retention
                return Answer("exhausted", live.token, live.attempts, live.generation, None, EXHAUSTED)
        row = _Row(
            "claimed",
            op.owner,
            now if old is None else max(old.token + 1, now),
            live.attempts + 1 if live else 1,
            live.generation if live else 0,
            now,
            op.lease,
            op.retention,
            op.doubt_on_lapse,
            op.fingerprints[:33] or (live.fingerprint if live else b""),
            live.created_at if live else now,
            now,
            lapsed=live is not None and live.state == "claimed",
            note=op.note if live is None or live.note is None else live.note,
        )
        # `first` may have come between, without the lock; or a signal's handler, on this thread, which has it.
        if rows.setdefault(op.key, row) is not row:
            if rows[op.key] is not old:
                return self._claim(op, now)
            rows[op.key] = row
        return Answer("claimed", row.token, row.attempts, row.generation, lapsed=row.lapsed, note=row.note)

    def _settle(self, op: Settlement, now: int) -> bool:
        try:
            row = self._scopes[op.scope][op.key]
        except KeyError:
            return False
        if row.owner != op.owner or row.token != op.token:
            return False
        state = op.state
        if row.state != "claimed":
            if row.expires_at <= now:
                return False
            if row.state != "in_doubt" or state != "done":
                return row.state == state
        elif now - row.leased_at >= row.lease and row.expires_at <= now:  # the first is seldom so
            return False
        row.changed_at, row.retention = now, op.retention
        row.result, row.error = op.result, op.error
        if op.refund:
            row.attempts -= 1
        if op.note is not None:
            row.note = op.note
        row.state = state  # last: whoever is interrupted before has changed nothing that counts
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
        row.leased_at, row.lease, row.retention = now, op.lease, op.retention
        return True

    def _remember(self, op: Remember, now: int) -> bool:
        rows = self._scopes.setdefault(op.scope, {})
        row = _Row(
            "done", b"", now, 0, 0, 0, 0, op.retention, False, op.fingerprints[:33], now, now, None, op.result
        )  # fmt: skip
        old = rows.setdefault(op.key, row)  # since `first` may come between a look and a write
        if old is not row:
            row.token = max(old.token + 1, now)
            if old.expires_at > now:
                answer = self._standing(old, op.fingerprints, now)
                if answer is not None:
                    return answer.kind == "done"
                row.attempts, row.generation, row.created_at = old.attempts, old.generation, old.created_at
            if rows[op.key] is not old:
                return self._remember(op, now)
            rows[op.key] = row
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
        for name, rows in list(self._scopes.items()):
            if scope is None or name == scope:
                for key in list(rows):  # which `first` may add to meanwhile
                    yield name, key, rows[key]

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
        row.changed_at, row.retention = now, retention
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
                self._backend.quiet = None
                try:
                    expired += self._delete(scope, rows, now, limit - expired)
                finally:
                    self._backend.quiet = object()
                for row in list(rows.values()):
                    if row.state == "claimed" and row.doubt_on_lapse and row.lease_until <= now:
                        lapsed += 1
                        if lapsed <= limit:
                            row.state, row.changed_at = "in_doubt", now
            if expired > limit or lapsed > limit:
                return Swept(min(expired, limit), min(lapsed, limit), True)
        self._backend.swept_at = now
        return Swept(expired, lapsed, False)

    def _delete(self, scope: str, rows: dict[str, _Row], now: int, limit: int) -> int:
        """Delete at most ``limit`` of what has expired. How many there were."""
        due = [key for key in list(rows) if rows[key].expires_at <= now]
        for key in due[:limit]:
            del rows[key]
        if not rows and self._scopes.get(scope) is rows:
            del self._scopes[scope]
        return len(due)

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
