"""Records in this process: for tests, for programs of one process, and as the model of what a store does.

Read this store first to learn the rules of `contracts.Port`. `MemoryPort` has one method for each kind of operation;
the other stores do the same in SQL, Lua or conditional writes. The crash explorer runs on this store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import structs

from effectonce.backends.common.list_cursor import make_cursor, parse_cursor
from effectonce.contracts import Capabilities, Clock, Port
from effectonce.errors import InvalidOption
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
    State,
    Stats,
    StoredClaim,
    SweepResult,
    answer_for,
    exhausted_error,
)
from effectonce.values.clocks import SystemClock
from effectonce.values.fingerprint import first_fingerprint
from effectonce.values.urls import Address

MAX_COUNT = 100_000  # the most that `stats` counts of one state


class MemoryRow(StoredClaim, kw_only=True, gc=False):
    """The stored record of one scope and key. Every change of it is made under the backend's lock."""

    state: State
    lease_until: int = 0
    fingerprint: bytes  # b"": none
    expires_at: int | None  # from when on the record counts as absent; None: never
    created_at: int
    changed_at: int

    def is_expired(self, now: int) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def is_held_by(self, op: Settlement | Note | Renewal) -> bool:
        """Whether ``op`` comes from the record's last claim: the owner identifies it, the token orders it."""
        return self.owner == op.owner and self.token == op.token

    def fence_out(self, now: int) -> None:
        """Make the store refuse the owner's settlement from now on."""
        self.owner = b""
        self.token = max(self.token + 1, now)

    def start_generation(self) -> None:
        """Make the next claim run as if it were the first."""
        self.state = "free"
        self.generation += 1
        self.attempts = 0
        self.result = self.error = None


class MemoryStoreBackend:
    """The store ``memory://``. All its ports share one dictionary and one lock, and never block on anything else."""

    capabilities = Capabilities(
        name="memory", connections="none", durable=False, shared=False, notes=True, ordered=True
    )

    def __init__(self, address: Address | None = None, *, clock: Clock | None = None) -> None:
        if address is not None:
            address.refuse_unknown_options()
            if address.netloc or address.path not in ("", "/"):
                raise InvalidOption(f"memory:// has no host or path, got {address}")
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.lock = threading.RLock()  # reentrant: a signal handler may claim on the thread that holds it
        self.scopes: dict[str, dict[str, MemoryRow]] = {}
        self.swept_at: int | None = None

    def sync_port(self) -> Port:
        return MemoryPort(self)

    async_port = sync_port

    def after_fork(self) -> None:
        """Reset a forked child: a thread of the parent may have held the lock, and that thread does not exist here."""
        self.lock = threading.RLock()

    def schema_sql(self) -> str:
        return ""

    def __repr__(self) -> str:
        return "memory://"


class MemoryPort(Port):
    """See `contracts.Port`. Operations are applied under the backend's lock; those of a batch see the same time."""

    def __init__(self, backend: MemoryStoreBackend) -> None:
        self._backend = backend
        self._scopes = backend.scopes
        self._apply: dict[type, Callable[[Any, int], Reply]] = {
            Claim: self._claim,
            Look: self._look,
            Settlement: self._settle,
            Note: self._note,
            Renewal: self._renew,
            Remember: self._remember,
        }

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        with self._backend.lock:
            now = self._backend.clock.now()
            return [self._apply[type(op)](op, now) for op in batch]

    # -- operations, each by the numbered rules of `contracts.Port.run`

    def _claim(self, op: Claim, now: int) -> Answer:
        rows = self._scopes.setdefault(op.scope, {})
        stored = rows.get(op.key)
        live = stored if stored is not None and not stored.is_expired(now) else None  # rule 1
        if live is not None:
            answer = answer_for(live, fingerprints=op.fingerprints, now=now, claimant=op.owner)  # rules 2 to 7
            if answer is not None:
                if answer.kind == "in_doubt":
                    self._move_to_doubt(live, now)
                return answer
            if 0 < op.max_attempts <= live.attempts:  # rule 8
                return self._exhaust(live, op, now)
        lease_until = now + op.lease_us
        claimed = MemoryRow(
            state="claimed",
            owner=op.owner,
            token=now if stored is None else max(stored.token + 1, now),
            attempts=1 if live is None else live.attempts + 1,
            generation=0 if live is None else live.generation,
            lapsed=live is not None and live.state == "claimed",
            doubt_on_lapse=op.doubt_on_lapse,
            lease_until=lease_until,
            expires_at=None if op.doubt_on_lapse else lease_until + op.retention_us,
            fingerprint=first_fingerprint(op.fingerprints) or (b"" if live is None else live.fingerprint),
            created_at=now if live is None else live.created_at,
            changed_at=now,
            error=None if live is None else live.error,
            note=op.note if live is None or live.note is None else live.note,
        )
        if rows.get(op.key) is not stored:  # a signal handler on this very thread has claimed it meanwhile
            return self._claim(op, now)
        rows[op.key] = claimed
        counts = (claimed.token, claimed.attempts, claimed.generation)
        return Answer("claimed", *counts, error=claimed.error, lapsed=claimed.lapsed, note=claimed.note)

    def _move_to_doubt(self, row: MemoryRow, now: int) -> None:
        """Rule 7: a claim that meets a lapsed one with ``doubt_on_lapse`` moves it to in doubt."""
        if row.state == "claimed":
            row.state = "in_doubt"
            row.changed_at = now

    def _exhaust(self, row: MemoryRow, op: Claim, now: int) -> Answer:
        row.state = "failed"
        row.error = exhausted_error(row.error)
        row.result = None
        row.changed_at = now
        row.expires_at = now + op.retention_us
        return Answer("exhausted", row.token, row.attempts, row.generation, error=row.error)

    def _look(self, op: Look, now: int) -> Answer:
        row = self._find(op.scope, op.key, now)
        answer = None if row is None else answer_for(row, fingerprints=op.fingerprints, now=now)
        return answer or Answer("absent")

    def _find(self, scope: str, key: str, now: int) -> MemoryRow | None:
        row = self._scopes.get(scope, {}).get(key)
        return None if row is None or row.is_expired(now) else row

    def _settle(self, op: Settlement, now: int) -> bool:
        row = self._find(op.scope, op.key, now)
        if row is None or not row.is_held_by(op):
            return False
        completes_doubt = row.state == "in_doubt" and op.state == "done"
        if row.state != "claimed" and not completes_doubt:
            return row.state == op.state  # applied before, and its reply was lost
        if op.refund:
            row.attempts -= 1
        if op.note is not None:
            row.note = op.note
        row.result = op.result
        row.error = row.error if op.refund else op.error
        row.changed_at = now
        row.expires_at = None if op.state == "in_doubt" else now + op.retention_us
        row.state = op.state  # last: before that, an interruption (Ctrl-C) has changed nothing that counts
        return True

    def _note(self, op: Note, now: int) -> bool:
        row = self._find(op.scope, op.key, now)
        if row is None or row.state != "claimed" or not row.is_held_by(op):
            return False
        row.note = op.note
        row.changed_at = now
        return True

    def _renew(self, op: Renewal, now: int) -> bool:
        row = self._find(op.scope, op.key, now)
        if row is None or row.state != "claimed" or not row.is_held_by(op):
            return False
        row.lease_until = now + op.lease_us
        row.expires_at = None if row.doubt_on_lapse else row.lease_until + op.retention_us
        return True

    def _remember(self, op: Remember, now: int) -> bool:
        rows = self._scopes.setdefault(op.scope, {})
        stored = rows.get(op.key)
        live = stored if stored is not None and not stored.is_expired(now) else None
        if live is not None:
            answer = answer_for(live, fingerprints=op.fingerprints, now=now)
            if answer is not None:
                return answer.kind == "done"
        remembered = MemoryRow(
            state="done",
            owner=b"",
            token=now if stored is None else max(stored.token + 1, now),
            attempts=0 if live is None else live.attempts,
            generation=0 if live is None else live.generation,
            expires_at=now + op.retention_us,
            fingerprint=first_fingerprint(op.fingerprints),
            created_at=now if live is None else live.created_at,
            changed_at=now,
            result=op.result,
        )
        if rows.get(op.key) is not stored:  # as in `_claim`
            return self._remember(op, now)
        rows[op.key] = remembered
        return True

    # -- for operators

    async def get(self, scope: str, key: str) -> Record | None:
        with self._backend.lock:
            row = self._find(scope, key, self._backend.clock.now())
            return None if row is None else _make_record(scope, key, row)

    async def list(self, query: Query) -> Page:
        with self._backend.lock:
            now = self._backend.clock.now()
            matching = [
                (row.changed_at if query.newest_first else 0, scope, key)
                for scope, key, row in self._all_rows(query.scope)
                if not row.is_expired(now)
                and (query.state is None or row.state == query.state)
                and (not query.unfinished or (row.note is not None and row.state in ("claimed", "free")))
                and query.key_contains in key
            ]
            if query.cursor is not None:
                start = parse_cursor(query.cursor, by_change=query.newest_first)
                matching = [place for place in matching if (place < start if query.newest_first else place > start)]
            elif query.after is not None:
                matching = [place for place in matching if place[1:] > query.after]
            matching.sort(reverse=query.newest_first)
            page = matching[: query.limit]
            records = [_make_record(scope, key, self._scopes[scope][key]) for _, scope, key in page]
        more = len(matching) > query.limit
        return Page(records, make_cursor(*page[-1]) if more else None)

    def _all_rows(self, scope: str | None = None) -> Iterator[tuple[str, str, MemoryRow]]:
        for name, rows in self._scopes.items():
            if scope is None or name == scope:
                for key, row in rows.items():
                    yield name, key, row

    async def stats(self) -> Stats:
        counts = dict.fromkeys(("claimed", "done", "failed", "in_doubt", "free"), 0)
        oldest: int | None = None
        with self._backend.lock:
            now = self._backend.clock.now()
            for _, _, row in self._all_rows():
                if row.is_expired(now):
                    continue
                counts[row.state] = min(MAX_COUNT, counts[row.state] + 1)
                if row.state == "in_doubt":
                    oldest = row.changed_at if oldest is None else min(oldest, row.changed_at)
        return Stats(counts=counts, cap=MAX_COUNT, oldest_in_doubt=oldest, swept_at=self._backend.swept_at)

    async def forget(self, scope: str, key: str, retention_us: int) -> bool:
        with self._backend.lock:
            now = self._backend.clock.now()
            row = self._find(scope, key, now)
            if row is None:
                return False
            row.fence_out(now)
            row.start_generation()
            row.fingerprint, row.note = b"", None
            row.changed_at = now
            row.expires_at = now + retention_us
            return True

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        with self._backend.lock:
            now = self._backend.clock.now()
            row = self._find(scope, key, now)
            answer = None if row is None else answer_for(row, fingerprints=b"", now=now)
            if row is None or answer is None or answer.kind != "in_doubt":
                return False
            row.fence_out(now)
            if resolution.state == "free":
                row.start_generation()
            row.state = resolution.state
            row.result, row.error = resolution.result, resolution.error
            row.changed_at = now
            row.expires_at = now + resolution.retention_us
            return True

    async def sweep(self, limit: int) -> SweepResult:
        expired, lapsed = 0, 0
        with self._backend.lock:
            now = self._backend.clock.now()
            scopes = list(self._scopes.items())
        # Scope by scope, so that other threads get the lock in between.
        for scope, rows in scopes:
            with self._backend.lock:
                expired += self._delete_expired(scope, rows, now, limit - expired)
                for row in rows.values():
                    if row.state == "claimed" and row.doubt_on_lapse and row.lease_until <= now:
                        lapsed += 1
                        if lapsed <= limit:
                            self._move_to_doubt(row, now)
            if expired > limit or lapsed > limit:
                return SweepResult(min(expired, limit), min(lapsed, limit), True)
        self._backend.swept_at = now
        return SweepResult(expired, lapsed, False)

    def _delete_expired(self, scope: str, rows: dict[str, MemoryRow], now: int, limit: int) -> int:
        """Delete at most ``limit`` expired records of a scope, and the scope if that was its last one. Returns how many
        had expired."""
        expired = [key for key, row in rows.items() if row.is_expired(now)]
        for key in expired[:limit]:
            del rows[key]
        if not rows and self._scopes.get(scope) is rows:
            del self._scopes[scope]
        return len(expired)

    async def now(self) -> int:
        return self._backend.clock.now()


def _make_record(scope: str, key: str, row: MemoryRow) -> Record:
    fields = structs.asdict(row)
    del fields["lapsed"]
    fields["lease_until"] = row.lease_until if row.state == "claimed" else None
    fields["fingerprint"] = row.fingerprint or None
    return Record(scope=scope, key=key, **fields)
