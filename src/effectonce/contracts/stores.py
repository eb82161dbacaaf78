"""The seam to stores: a backend opens ports, and a port runs operations on records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

from effectonce.errors import StoreUnavailable
from effectonce.record import Batchable, Figures, Page, Query, Record, Reply, Resolution, Stats, SweepResult


class ConnectionLost(StoreUnavailable):
    """A working connection broke; the request may or may not have been carried out.

    Raised by ports. The caller repeats a batch of `Port.run` once on a new connection, which is safe: each operation
    recognises its own repetition by its owner. After that it is `StoreUnavailable`. An operator's `forget` and
    `resolve` are not repeated: their error says that they may have been applied.
    """


class Contention(Exception):
    """A deadlock, serialization failure or lock timeout: nothing was applied; try again. Raised by ports."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """How a store differs from the others, as data. The suite and the core read this, never a store's name."""

    name: str
    #: The connections that concurrent work is spread over. ``by_kind``: claims, settlements and renewals each have
    #: their own. ``one``: one for all (a single writer is fastest). ``none``: the port is in this process, and each
    #: operation goes straight to `Port.run`, from any thread.
    connections: Literal["none", "one", "by_kind"] = "by_kind"
    #: A batch may hold operations of all kinds, at the price of one kind. Threads then share one connection, since each
    #: further one would be another thread to wake. Event loops keep the kinds apart: thousands of claims may wait there
    #: before a settlement.
    mixed_batches: bool = False
    #: The most operations in one round trip.
    batch: int = 128
    #: `Port.changes` reports settlements made by other processes.
    notifies: bool = False
    #: Records outlive the process.
    durable: bool = True
    #: Several processes share the records.
    shared: bool = True
    #: The store removes expired records by itself; a sweep still ends lapsed leases.
    expires_by_itself: bool = False
    #: The store has no clock of its own to ask (DynamoDB): its time is estimated from its replies.
    estimated_clock: bool = False
    #: Claims may have a note, as intents and sagas need.
    notes: bool = False
    #: Records are listed in the order of scope and key, so that `Query.after` can begin a list anywhere.
    ordered: bool = False


class Port(Protocol):
    """One connection to a store.

    Obligations, for every method:

    - It connects when first used, and again after an error; constructing it opens nothing.
    - It raises `StoreUnavailable` for a server that cannot be reached, or does not answer within the configured
      timeout; `ConnectionLost` for a broken connection; `SchemaMissing` for missing tables. It translates every
      exception of its driver.
    - After an error or a cancellation in mid-operation the connection is dropped, never reused half-read.

    A port that derives from this class inherits `changes`, which reports nothing, and `check`, `migrate` and `close`,
    which do nothing.
    """

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        """Apply every operation, each atomically on the store's clock, and answer in the same order.

        The batch is sorted by identity, names no identity twice, and holds at most `Capabilities.batch` operations.
        They are of mixed kinds if there is one connection, or with `Capabilities.mixed_batches`. It is one round trip
        where the store can do that. The reply to an operation that fails alone is its exception; to raise one fails the
        whole batch.

        A Claim, in this order, all times from the store's clock:

        1. expired counts as absent (``expires_at <= now``; claimed with ``doubt_on_lapse`` and in_doubt never
           expire);
        2. an unexpired record with a stored fingerprint that is not among the claim's (where the claim has any):
           ``mismatch``, whatever the state; nothing changes;
        3. claimed by this very owner: ``claimed`` again, same token, attempts, generation, error and ``lapsed``;
        4. done or failed: ``done`` / ``failed`` with what is stored (``exhausted`` where the error begins with
           `record.EXHAUSTED_ERROR`);
        5. in_doubt: ``in_doubt``;
        6. claimed, ``now < lease_until``: ``in_progress`` with the time that is left; with ``waiting`` the
           record is flagged, and its next settlement is reported by `changes`;
        7. claimed, lapsed, ``doubt_on_lapse``: moved to in_doubt, owner and token kept: ``in_doubt``;
        8. absent, free, or lapsed with rerun: where ``max_attempts`` > 0 and attempts >= max_attempts, it is
           moved to failed with `record.exhausted_error` of its error, expiring in ``retention_us``: ``exhausted``.
           Otherwise taken: claimed, attempts + 1 (absent: 1), generation and error kept (absent: 0 and none), its
           result dropped, token = max(old + 1, now),
           lease_until = now + lease_us, expires_at = lease_until + retention_us (never, with ``doubt_on_lapse``),
           the claim's first fingerprint stored where it has one, the claim's note stored where the record has
           none, and ``lapsed`` true where it was taken from a lapsed lease: ``claimed``, with the record's note and
           error.

        A Look is answered by the same steps without changing anything; ``absent`` where step 8 would take.
        A Settlement, a Note, a Renewal and a Remember do what their docstrings in `record` say. A release (``free``)
        keeps attempts (minus one with ``refund``), and expires one retention from now, as done and failed do.
        Settlements keep owner and token, so that their repetition is recognised. A Remember's token is
        max(old + 1, now), its owner is empty, and it keeps the generation of the record that it replaces.
        """

    async def get(self, scope: str, key: str) -> Record | None:
        """The record as it is stored, or None where it is absent or expired."""

    async def list(self, query: Query) -> Page:
        """A bounded page of unexpired records. Following its cursor reaches every record that does not change
        meanwhile (a sweep changes none of those), and each page is bounded work: it may be short or empty and yet
        have a cursor. A claimed record whose lease has lapsed with ``doubt_on_lapse`` is listed as it is stored.

        With `Query.newest_first` the order is that of ``changed_at``, the latest first. Where no index has that order,
        the store sorts a bounded number of records, those that expire last if it can choose, and says so by
        `Page.partial` if there are more.
        """

    async def stats(self) -> Stats: ...

    async def forget(self, scope: str, key: str, retention_us: int) -> bool:
        """Let the next claim run. The record becomes free: generation + 1, attempts 0, without result, error, note and
        fingerprint (the next claim may bring a corrected payload); a new token fences the owner out. False where there
        is no such record."""

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        """Settle a record that is in doubt (or lapsed into it). False, and no change, where it is not.

        ``free`` adds 1 to the generation, resets attempts and keeps the note. The owner in doubt is fenced out.
        """

    async def sweep(self, limit: int) -> SweepResult:
        """Delete up to ``limit`` expired records and move up to ``limit`` lapsed ``doubt_on_lapse`` claims to
        in_doubt, each on the condition that it is still expired or lapsed. Never waits for the lock of a row (a store
        with a single writer may wait for its turn). ``more`` only where another call would do something. Records the
        time.
        """

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        """The (scope, key) of flagged records settled since the last call, waiting up to ``timeout`` seconds
        for one. Only called where `Capabilities.notifies`; may report late, twice, or not at all."""
        return ()

    async def now(self) -> int:
        """The store's clock."""

    async def check(self) -> None:
        """Connect and verify that the store can keep its promise: schema there in the right version,
        `UnsafeStore` for settings that lose data."""
        return

    async def migrate(self) -> None:
        """Create or upgrade the schema; safe to run twice, and at the same time from two processes."""
        return

    async def close(self) -> None:
        return


@runtime_checkable
class Examinable(Protocol):
    """An optional ability of a `Port`: it reports more about the store's health than `Port.stats` does."""

    async def figures(self, before: int) -> Figures:
        """The figures of the store. Overdue are records that expired before the time ``before``. Bounded work, however
        many records there are."""


@runtime_checkable
class SelfMigrating(Protocol):
    """An optional ability of a backend that creates its own tables when first used: to report that they are missing.
    A command that only reads asks first, so that it creates nothing."""

    def is_new(self) -> bool:
        """Whether the tables are still missing. Creates nothing."""


class Backend(Protocol):
    """A kind of store at one address. Cheap to construct: validates its options, opens nothing.

    Its ``repr`` is the address without secrets. It may have a method ``after_fork()``, which is called in a forked
    child before new ports are asked for, and an attribute ``clock``: the `Clock` of a store that has no server to ask.
    """

    capabilities: Capabilities

    def sync_port(self) -> Port:
        """A new port whose coroutines never suspend."""

    def async_port(self) -> Port:
        """A new port for the running event loop."""

    def schema_sql(self) -> str:
        """The schema as a script, for users who run their own migrations ('' where there is none)."""
