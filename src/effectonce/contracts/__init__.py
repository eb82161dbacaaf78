"""Every seam of effectonce on one page.

A **backend** is what a third party writes to add a store; `effectonce.Store` is our handle on it. A backend
opens **ports**. A port is one connection, used by one caller at a time, and its methods are `async def` for
sync and async code: those of a sync port never suspend, so that sync code can run them on its own thread.

A **broker** opens publishers and consumers; a **session** is a connection that stays the caller's own.

`effectonce.testing.suites` has a suite for each of these seams; it checks an implementation against all that is said
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct, field

from effectonce.errors import StoreUnavailable
from effectonce.message import Message
from effectonce.record import Batchable, Figures, Page, Query, Record, Reply, Resolution, Settlement, Stats, Swept

from .outbox import (
    CleanupResult,
    LeasedRows,
    LeaseRequest,
    OutboxBacklog,
    OutboxPage,
    OutboxRow,
    OutboxState,
    RowOutcome,
)

Dialect = Literal["sqlite", "postgresql", "mysql"]


class ConnectionLost(StoreUnavailable):
    """A connection that worked broke; what was asked may or may not have been done.

    Raised by ports. The caller repeats a batch of `Port.run` once on a new connection, which is safe: each operation
    there recognises its own repetition by its owner. After that it is `StoreUnavailable`. What people ask for by
    `forget` and `resolve` is not repeated: they are told that it may have been applied.
    """


class Contention(Exception):
    """A deadlock, serialization failure or lock timeout: nothing was applied, repeat. Raised by ports."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """How a store differs from the others, as data. The suite and the core read this, never a store's name."""

    name: str
    #: How many connections concurrent work is spread over: 0: none, the port is in this process, and each operation
    #: goes straight to `Port.run`, from any thread;
    #: 1: one for all (a single writer is fastest); 3: claims, settlements and renewals each have their own.
    lanes: Literal[0, 1, 3] = 3
    #: One round trip takes all kinds of operation at the price of one. Threads then share a lane, since each that they
    #: have more is another leader to wake; event loops do not, where thousands of claims may wait before a settlement.
    mixes: bool = False
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
    #: Records lie in the order of scope and key, so that `Query.after` can begin a list anywhere.
    ordered: bool = False


class Port(Protocol):
    """One connection to a store.

    Obligations, for every method:

    - It connects when first used, and again after an error; constructing it opens nothing.
    - A server that cannot be reached, or does not answer within the configured timeout, is
      `StoreUnavailable`; a broken connection is `ConnectionLost`; missing tables are `SchemaMissing`. Driver
      exceptions never get out untranslated.
    - After an error or a cancellation in mid-operation the connection is dropped, never reused half-read.
    """

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        """Apply every operation, each atomically on the store's clock, and answer in the same order.

        The batch is sorted by identity, names no identity twice, and holds at most `Capabilities.batch`
        operations, of mixed kinds where the store has one lane or mixes. One round trip, where the store can. An
        operation that fails alone has its exception as its reply; raising fails the whole batch.

        A Claim, in this order, all times from the store's clock:

        1. expired counts as absent (``expires_at <= now``; claimed with ``doubt_on_lapse`` and in_doubt never
           expire);
        2. an unexpired record with a stored fingerprint that is not among the claim's (where it has any):
           ``mismatch``, whatever the state; nothing changes;
        3. claimed by this very owner: ``claimed`` again, same token, attempts, generation and ``lapsed``;
        4. done or failed: ``done`` / ``failed`` with what is stored (``exhausted`` where the error is
           `record.EXHAUSTED`);
        5. in_doubt: ``in_doubt``;
        6. claimed, ``now < lease_until``: ``in_progress`` with the time that is left; with ``waiting`` the
           record is flagged, and its next settlement is reported by `changes`;
        7. claimed, lapsed, ``doubt_on_lapse``: moved to in_doubt, owner and token kept: ``in_doubt``;
        8. absent, free, or lapsed with rerun: where ``max_attempts`` > 0 and attempts >= max_attempts, it is
           moved to failed with `record.EXHAUSTED`, expiring in ``retention``: ``exhausted``. Otherwise taken:
           claimed, attempts + 1 (absent: 1), generation kept (absent: 0), token = max(old + 1, now),
           lease_until = now + lease, expires_at = lease_until + retention (never, with ``doubt_on_lapse``),
           the claim's first fingerprint stored where it has one, the claim's note stored where the record has
           none, and ``lapsed`` true where it was taken from a lapsed lease: ``claimed``, with the record's note.

        A Look is answered by the same steps without changing anything; ``absent`` where step 8 would take.
        A Settlement, a Note, a Renewal and a Remember do what their docstrings in `record` say. A release (``free``)
        keeps attempts (minus one with ``refund``), and expires one retention from now, as done and failed do.
        Settlements keep owner and token, so that their repetition is recognised; a Remember's token is
        max(old + 1, now), its owner empty, and it keeps the generation of the record it replaces.
        """
        ...

    async def get(self, scope: str, key: str) -> Record | None:
        """The record as it is stored, or None where it is absent or expired."""
        ...

    async def list(self, query: Query) -> Page:
        """A bounded page of unexpired records. Following its cursor reaches every record that does not change
        meanwhile (a sweep changes none of those), and each page is bounded work: it may be short or empty and yet
        have a cursor. A claimed record whose lease has lapsed with ``doubt_on_lapse`` is listed as it is stored.
        """
        ...

    async def stats(self) -> Stats: ...

    async def forget(self, scope: str, key: str, retention: int) -> bool:
        """Make the next claim run: free, generation + 1, attempts 0, result, error, note and fingerprint gone (it
        may bring a corrected payload), the owner fenced out by a new token. False where there is no such record."""
        ...

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        """Settle a record that is in doubt (or lapsed into it). False, and no change, where it is not.

        ``free`` adds 1 to the generation, resets attempts and keeps the note. The owner in doubt is fenced out.
        """
        ...

    async def sweep(self, limit: int) -> Swept:
        """Delete up to ``limit`` expired records and move up to ``limit`` lapsed ``doubt_on_lapse`` claims to
        in_doubt, each on the condition that it still is so. Never waits for the lock of a row (a store with a
        single writer may wait for its turn). ``more`` only where another call would do something. Records the time.
        """
        ...

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        """The (scope, key) of flagged records settled since the last call, waiting up to ``timeout`` seconds
        for one. Only called where `Capabilities.notifies`; may report late, twice, or not at all."""
        ...

    async def now(self) -> int:
        """The store's clock."""
        ...

    async def check(self) -> None:
        """Connect and verify that the store can keep its promise: schema there in the right version,
        `UnsafeStore` for settings that lose data."""
        ...

    async def migrate(self) -> None:
        """Create or upgrade the schema; safe to run twice, and at the same time from two processes."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Examinable(Protocol):
    """An optional power of a `Port`: it can say more about the store's health than `Port.stats` does."""

    async def figures(self, before: int) -> Figures:
        """Bounded work, however many records there are. Records count as overdue that expired ``before`` that time."""
        ...


@runtime_checkable
class Fresh(Protocol):
    """An optional power of a backend that makes its own tables: it can say, without making them, that they are missing.
    Those who only look ask it first."""

    def is_new(self) -> bool: ...


class Backend(Protocol):
    """A kind of store at one address. Cheap to construct: validates its options, opens nothing.

    Its ``repr`` is the address without secrets. It may have a method ``after_fork()``, which is called in a forked
    child before new ports are asked for.
    """

    capabilities: Capabilities

    def sync_port(self) -> Port:
        """A new port whose coroutines never suspend."""
        ...

    def async_port(self) -> Port:
        """A new port for the running event loop."""
        ...

    def schema_sql(self) -> str:
        """The schema as a script for people who run their own migrations ('' where there is none)."""
        ...


def remedy(found: int | None, oldest: int | None, ours: int) -> str:
    """What is to be done about tables of version ``found``; '' where this release, which reads ``ours``, can use them.

    A migration adds first and removes a release later, so that both releases run on the same tables meanwhile (F38).
    It writes its version, and ``oldest``: the oldest one whose statements still work. None: its own.
    """
    if found is None or found < ours:
        return "migrate"
    return "upgrade" if (found if oldest is None else oldest) > ours else ""


# -- the relay's side of an outbox


class OutboxPort(Protocol):
    """One connection to one outbox. What is said of `Port` holds here, too: when it connects, what it raises, and that
    the coroutines of a sync one never suspend."""

    table: str

    async def lease(self, lease: LeaseRequest) -> LeasedRows:
        """Look at up to ``limit`` rows of each kind, and take up to ``take`` of them, for ``span`` from now on the
        database's clock; the attempt is counted. Rows to the queues ``without`` are not looked at.

        Rows are there to be taken by what they are, never by where a reader has come to (F41): pending and not leased,
        pending with a lease that has ended, waiting and due. Locks are held for one short transaction (F47); rows that
        others have locked are passed over. However many rows are published, waiting or parked, the work is bounded by
        ``limit``.

        ``ordered``: a row is taken only if every row before it in its line (destination and ordering key) that has not
        left is taken with it (F43). Rows that stand behind a waiting or a parked one wait as long as it, or until they
        are looked at again (`outbox.BLOCKED_ROW_RECHECK_US`); those behind a leased one stay as they are.
        """
        ...

    async def settle(self, owner: bytes, outcomes: Sequence[RowOutcome], keep: int) -> int:
        """Say what became of rows of this lease, each by itself (F44), in one round trip; how many were still its own.
        A row that another has leased since stays as it is. Published ones are deleted after ``keep``, 0: now."""
        ...

    async def unpark(self, seqs: Sequence[int] | None, limit: int, *, discard: bool = False) -> int:
        """Send parked rows again (or delete them), these or up to ``limit`` of all; those behind them are free to
        follow. How many there were."""
        ...

    async def list(self, state: OutboxState, limit: int, cursor: str | None = None) -> OutboxPage:
        """A page of the rows in ``state``, in the order in which they come up."""
        ...

    async def stats(self) -> OutboxBacklog: ...

    async def clean(self, limit: int) -> CleanupResult:
        """Delete up to ``limit`` published rows, and as many rows of the inbox of the same name (where there is one),
        whose time is over. Never waits for the lock of a row. Records the time when there was no more to do (F37)."""
        ...

    async def wait(self, timeout: float) -> bool:
        """Whether a sender has said within ``timeout`` seconds that it has committed something; a hint. Only called
        where the backend's capabilities say ``notifies``."""
        ...

    async def check(self) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class OutboxBackend(Protocol):
    """What a `Backend` also has whose database can hold an outbox. ``table``: by default the one that its `migrate`
    has made."""

    def sync_outbox(self, table: str | None = None) -> OutboxPort: ...

    def async_outbox(self, table: str | None = None) -> OutboxPort: ...


@runtime_checkable
class Joinable(Protocol):
    """An optional power of a `Backend`: its records are in a SQL database, so that the caller's own transaction can
    complete one."""

    def completion(self, op: Settlement) -> tuple[Dialect, Sequence[tuple[str, Sequence[Any]]]]:
        """The statements that settle ``op``, which is ``done``, for a `DriverSession` of that dialect, in order. The
        last gives a row where it was applied."""
        ...


# -- the caller's own connection


class SyncConnection(Protocol):
    """What a type checker knows a sync connection by, of whatever driver."""

    def commit(self) -> None: ...


class AsyncConnection(Protocol):
    """What a type checker knows an async connection by."""

    async def commit(self) -> None: ...


class AsyncpgConnection(Protocol):
    """asyncpg's connections have no `commit`."""

    def is_in_transaction(self) -> bool: ...


class DriverSession(Protocol):
    """A connection that belongs to the caller, and the transaction that is open on it.

    Made for one call by `sessions.session_on`, from whatever the caller passed. It holds no state of its
    own, and it never begins, ends or repeats a transaction that the caller opened.
    """

    dialect: Dialect
    #: Whether the connection is of an async driver. The coroutines of a sync session never suspend.
    is_async: bool
    #: INSERT … RETURNING is there (MySQL has none).
    returning: bool

    def require_transaction(self) -> None:
        """`NotInTransaction` where a statement would commit by itself; `StoreUnavailable` where the connection is
        closed. No round trip."""
        ...

    async def rows(self, sql: str, params: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """Run one statement, with ``$1``, ``$2``, … for its parameters, and give its rows ([] where it has none).

        One round trip. Driver errors are translated once, here, with the original as ``__cause__``: a missing table is
        `SchemaMissing`, a deadlock or serialization failure is `TransactionConflict`, a lock that was not granted in
        time `InProgress`, a broken connection `ConnectionLost`; what it cannot name it passes on.
        """
        ...

    async def described(self, sql: str, params: Sequence[Any] = ()) -> tuple[Sequence[str], Sequence[tuple[Any, ...]]]:
        """As `rows`, with the names of the columns."""
        ...

    async def savepoint(self) -> Any:
        """Set a savepoint in the transaction, and give what names it."""
        ...

    async def release(self, savepoint: Any) -> None: ...

    async def roll_back_to(self, savepoint: Any) -> None:
        """Undo all since ``savepoint``, in the database and in what an ORM remembers of it; the transaction goes on."""
        ...


# -- brokers


class Packet(Struct, frozen=True, kw_only=True):
    """A message as it travels: bytes that no broker looks into, and headers."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The message's id, the same however often it is sent: given to the broker's own deduplication, where it has one.
    id: str = ""
    #: Packets of one ordering key keep their order where the broker has one (`BrokerCapabilities.ordering`).
    ordering_key: str | None = None
    #: Which headers are whole numbers. Brokers whose headers have types write these as numbers.
    numbers: frozenset[str] = frozenset()
    #: What the broker's own message has in fields beside its headers, by the broker's names for them.
    fields: Mapping[str, str | int] = field(default_factory=dict)

    def for_broker(self, broker: str) -> Packet:
        """This packet as the broker of that name (`BrokerCapabilities.name`) carries it. Publishers ask for it.

        An envelope whose specification has a binding of its own to a broker returns packets that override this.
        """
        return self


class Delivery(Struct, kw_only=True):
    """One packet, delivered to one consumer, and not yet settled."""

    packet: Packet
    queue: str
    #: How often it has been delivered, this time included; 0 where the broker does not count.
    attempt: int = 0
    #: The adapter's own: tag, receipt, stream id. Never a key.
    handle: Any = None


class BrokerCapabilities(Struct, frozen=True, kw_only=True):
    """How a broker differs from the others, as data. Times are in seconds. The suite and the worker read this."""

    name: str
    #: `Consumer.nack` with a delay is kept by the broker itself; elsewhere the adapter builds it from queues.
    native_delay: bool = False
    native_dead_letters: bool = False
    #: What keeps its order. ``queue``: what was never delivered before comes as it was published. ``key``: also, what
    #: has one ordering key is delivered in order, redeliveries included: while one of it is unsettled or delayed,
    #: those behind it come to no other consumer, and a nacked one comes again before those that were not delivered.
    ordering: Literal["none", "queue", "key"] = "none"
    #: A failed packet of `Publisher.publish` stops those behind it that have its ordering key.
    ordered_publish: bool = False
    #: How long an unsettled delivery stays with its consumer; None: as long as its connection.
    ack_window: float | None = None
    #: `Consumer.extend` moves the end of the ack window.
    extends: bool = False
    counts_attempts: bool = False
    #: Another group of consumers sees every message too. What a group does (nack, dead letters) concerns itself only.
    groups: bool = False
    #: The longest time after which an unsettled message may still be delivered; None: without end.
    redelivery_horizon: float | None = None
    #: How long the broker itself drops a second packet with the same id; None: it does not.
    dedup_window: float | None = None
    durable: bool = True
    shared: bool = True
    max_body: int | None = None
    #: The most packets in one `publish`, and deliveries in one `receive`.
    batch: int = 100


class Publisher(Protocol):
    """Sends packets. One caller at a time; connects when first used, and again after an error.

    A broker that cannot be reached is `BrokerUnavailable`; wrong credentials, or a queue that may not be made, are
    `ConfigurationError`. Driver exceptions never get out untranslated.
    """

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        """Send every packet; return when the broker has confirmed each as safely as it can (F45).

        None for a packet that was confirmed, its own exception for one that was refused (F44). Raising means that
        nobody knows about any of them: they are sent again, with the same ids. What has the header `message.REDRIVEN`
        was seen before, and is sent again on purpose: the broker's own deduplication must not drop it.
        """
        ...

    async def close(self) -> None: ...


class Consumer(Protocol):
    """Takes deliveries from one queue, for one group of consumers.

    One `receive` at a time; meanwhile the others may be called, by several tasks of the same loop: a message is
    settled, and its window extended, while the next are waited for. At most ``prefetch`` deliveries are unsettled.

    Connects when first used. A lost connection is `BrokerUnavailable`, once; the next `receive` connects again. Where
    the broker then takes back what it had delivered, settling that does nothing and says False (F56, F59).
    """

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        """Up to ``limit`` deliveries, as soon as there is one; [] after ``wait`` seconds without.

        Also takes over what dead consumers of the group left unsettled for longer than the ack window. Cancelling it
        loses nothing: what it would have returned is delivered again.
        """
        ...

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        """Done with these. May be sent together with the next `receive`; `flush` and `close` send what is left. False
        where the delivery is known to be no longer this consumer's (F54)."""
        ...

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        """Deliver these again, to anyone, not before ``delay`` seconds; never lost in between, attempts counted on.
        False, and nothing is done, where the delivery is no longer this consumer's."""
        ...

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        """Keep these for ``seconds`` from now, or for one ack window where the broker knows no other time. False where
        it is too late. Nothing to do where there is no window."""
        ...

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        """Move it to the queue's dead letters, with its exact body and its headers, ``headers`` added. It is removed
        from the queue only after the dead letters have confirmed it. False where it is no longer this consumer's."""
        ...

    async def flush(self) -> None:
        """Send the acks that are still waiting."""
        ...

    async def close(self) -> None:
        """Flush, and give back what is unsettled: it is delivered again, at once where the broker can. A broker that
        cannot be reached is no error here: it delivers again what it has heard nothing of."""
        ...


class DeadLetter(Struct, frozen=True, kw_only=True):
    """One message that was given up, as its queue of dead letters holds it."""

    id: str
    packet: Packet
    queue: str


class DeadLetters(Protocol):
    """What was given up on one queue."""

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        """A page, oldest first, and the cursor of the next (None: the end). Nothing is removed."""
        ...

    async def remove(self, ids: Sequence[str]) -> int:
        """Remove these for good; how many were there."""
        ...

    async def count(self) -> int: ...

    async def close(self) -> None: ...


class BrokerBackend(Protocol):
    """A kind of broker at one address. Cheap to construct: validates its options, opens nothing. All that it opens
    belongs to the running event loop. Its ``repr`` is the address without secrets."""

    capabilities: BrokerCapabilities

    def publisher(self) -> Publisher: ...

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Consumer:
        """Consumers of one ``group`` share the queue's messages; another group sees all of them, where the broker has
        groups (elsewhere the name is only for people)."""
        ...

    def dead_letters(self, queue: str, *, group: str) -> DeadLetters: ...

    async def declare(self, queue: str, *, group: str) -> None:
        """Create the queue, its group and its dead letters where they are missing; safe to run twice."""
        ...

    async def check(self, queue: str, *, group: str) -> None:
        """Connect and verify that the queue can keep its promise; `ConfigurationError` says what to change."""
        ...

    async def close(self) -> None: ...


class Envelope(Protocol):
    """How a message is written into a packet, and read back."""

    def encode(self, message: Message[Any], queue: str = "") -> Packet:
        """The packet for ``queue``: the same bytes however often it is encoded. `ConfigurationError` where the message
        cannot be written."""
        ...

    def decode(self, packet: Packet, data_type: Any = Any) -> Message[Any]:
        """The message in ``packet``, its data read as ``data_type``. `Undecodable`, which says why, for anything else
        that may have been sent; nothing but that."""
        ...


@runtime_checkable
class Clock(Protocol):
    """Where a store without a server gets its time from. Tests inject a `ManualClock`."""

    def now(self) -> int:
        """Microseconds since the epoch."""
        ...

    def monotonic(self) -> float: ...

    @property
    def manual(self) -> bool:
        """Whether time moves only by hand; nothing then happens by itself, the heartbeat included."""
        ...


class Event(Struct, frozen=True):
    """One thing that happened to one operation. Sinks are callables that take it and return fast.

    ``seconds``: of ``claimed`` how long the claim took (0 inside of this process), of what ends a run how long that
    was, of ``relay_paused`` how long it waits.
    """

    kind: Literal[
        "claimed",
        "completed",
        "replayed",
        "in_progress",
        "in_doubt",
        "failed",
        "exhausted",
        "mismatch",
        "released",
        "lease_lost",
        "fenced",
        "missing_key",
        "unprotected",
        "result_not_stored",
        "unrecorded",
        "dead_lettered",
        "redriven",
        "swept",
        "sweep_failed",
        "resolved",
        "forgotten",
        "published",
        "publish_failed",
        "parked",
        "relay_paused",
    ]
    scope: str = ""
    key: str = ""
    attempt: int = 0
    token: int = 0
    seconds: float = 0.0
    detail: str = ""


Hook = Callable[[Event], Any]
Meter = Callable[[float], Any]


class Tracer(Protocol):
    """What connects the traces of those who send, those who handle, and duplicates. Its methods never raise what is not
    raised without it. ``system`` is the name of the broker."""

    def context(self) -> bytes:
        """Trace and span of the caller, 48 hexadecimal digits, to be kept with a result; b"": there is none."""
        ...

    def replayed(self, run: Any) -> None:
        """The caller gets the result of the run whose trace is ``run.trace``."""
        ...

    def created(self, queue: str, message: Message[Any]) -> Message[Any]:
        """``message`` as an outbox keeps it, with the trace in its headers."""
        ...

    def sending(
        self, system: str, queue: str, messages: Sequence[Message[Any]]
    ) -> AbstractContextManager[Sequence[Message[Any]]]:
        """Around a `publish`; gives the messages as they are sent."""
        ...

    def relayed(self, system: str, row: OutboxRow, seconds: float, error: Exception | None) -> None:
        """A relay has sent what an outbox kept, or failed to; it began ``seconds`` ago."""
        ...


class HandlerTracer(Protocol):
    """The same of one worker."""

    def handling(self, queue: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A handler, whose last argument is the message, inside of a span."""
        ...

    def skipped(self, queue: str, message: Message[Any], run: Any) -> None:
        """A duplicate is acked, whose result is that of the run with ``run.trace``."""
        ...

    def settled(self, queue: str, how: str, deliveries: Sequence[Delivery], seconds: float) -> None:
        """The broker was told what became of these: ``acked``, ``delayed`` or ``dead``; that took ``seconds``."""
        ...


class Selective(Protocol):
    """What a `Hook` may also have, so that it costs nothing for events that it does not want. Asked once for each kind
    and scope."""

    def wants(self, kind: str, scope: str) -> bool | Meter:
        """Whether it is called with such events; or what is called with their ``seconds`` alone, for those who count:
        then no `Event` is made."""
        ...
