"""The modes that `effectonce demo --crash` puts side by side: ways to consume a payment, as data.

A new mode is one entry in `MODES`: how it handles a message, what it lets through, and what it promises in each
scenario. Both sides of the demo read this table: the parent to know what to expect, the worker to know what to do.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from effectonce.guard.once import once
from effectonce.inbox.inbox import Inbox
from effectonce.intents.intents import Intents
from effectonce.intents.operation import Intent
from effectonce.message import Message
from effectonce.store import Store, connect

from .shop import Ledger, Payment, Receipt, sqlite_url

ScenarioName = Literal["twice", "at_once", "killed_before", "killed_after"]
StopPoint = Literal["checked", "charging", "charged"]
DemoHandler = Callable[[Message[Payment]], object]
Promise = dict[ScenarioName, tuple["ScenarioOutcome", ...]]


class ModeEnvironment:
    """The store and the card network of one worker. ``reach`` is called at each point at which it can be stopped."""

    def __init__(self, folder: Path, lease: str, reach: Callable[[StopPoint], None]) -> None:
        self.file = folder / "store.db"
        self.lease = lease
        self.reach = reach
        self.ledger = Ledger(folder / "ledger.db")

    @cached_property
    def store(self) -> Store:
        return connect(sqlite_url(self.file))

    def charge(self, payment: Payment, key: str | None = None) -> Receipt:
        """Charge the card: the effect that cannot be undone."""
        with self.effect_points():
            return self.ledger.charge(payment, key)

    @contextmanager
    def effect_points(self) -> Iterator[None]:
        """Reach the points before and after the effect in the block."""
        self.reach("charging")
        yield
        self.reach("charged")


class ScenarioOutcome(Struct, frozen=True):
    """The outcome of one scenario: how often the card was charged, and whether it ended in doubt."""

    charges: int
    in_doubt: bool = False

    @property
    def lost(self) -> bool:
        """Whether the message was acknowledged and never charged, without a trace."""
        return self.charges == 0 and not self.in_doubt

    def __str__(self) -> str:
        if self.in_doubt:
            return f"{self.charges} in doubt"
        if self.lost:
            return "0 LOST"
        return "1" if self.charges == 1 else f"{self.charges} DOUBLED"


ONCE = ScenarioOutcome(1)
DOUBLED = ScenarioOutcome(2)
#: Whether it was charged is in doubt.
IN_DOUBT: tuple[ScenarioOutcome, ...] = (ScenarioOutcome(0, in_doubt=True), ScenarioOutcome(1, in_doubt=True))
ALWAYS_ONCE: Promise = {"twice": (ONCE,), "at_once": (ONCE,), "killed_before": (ONCE,), "killed_after": (ONCE,)}


class DemoMode(Struct, frozen=True, kw_only=True):
    """One way to consume. ``promise``: the outcomes it allows in each scenario; None where it promises nothing."""

    name: str
    title: str
    lets_through: str
    handler: Callable[[ModeEnvironment], DemoHandler]
    promise: Promise | None = None


def unguarded_handler(environment: ModeEnvironment) -> DemoHandler:
    """Charge, then ack."""
    return lambda message: environment.charge(message.data)


def marking_handler(*, mark_first: bool) -> Callable[[ModeEnvironment], DemoHandler]:
    """A guard written by hand: look whether the id is stored, and store it before or after the charge."""

    def build(environment: ModeEnvironment) -> DemoHandler:
        handled_ids = _HandledIds(environment.file)

        def handle(message: Message[Payment]) -> None:
            if handled_ids.has(message.id):
                return
            environment.reach("checked")
            if mark_first:
                handled_ids.add(message.id)
            environment.charge(message.data)
            if not mark_first:
                handled_ids.add(message.id)

        return handle

    return build


class _HandledIds:
    def __init__(self, file: Path) -> None:
        self._file = file
        with closing(self._open()) as db:
            db.execute("CREATE TABLE IF NOT EXISTS handled (id TEXT PRIMARY KEY)")

    def has(self, message_id: str) -> bool:
        with closing(self._open()) as db:
            return db.execute("SELECT 1 FROM handled WHERE id = ?", (message_id,)).fetchone() is not None

    def add(self, message_id: str) -> None:
        with closing(self._open()) as db:
            db.execute("INSERT OR IGNORE INTO handled VALUES (?)", (message_id,))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=30, isolation_level=None)


def once_handler(**options: Any) -> Callable[[ModeEnvironment], DemoHandler]:
    """`once`, with these options."""

    def build(environment: ModeEnvironment) -> DemoHandler:
        @once(environment.store, scope="demo:charge", lease=environment.lease, **options)
        def charge(message: Message[Payment]) -> Receipt:
            return environment.charge(message.data)

        return charge

    return build


def inbox_handler(environment: ModeEnvironment) -> DemoHandler:
    """`Inbox`, where the charge is a row in a database of the shop's own."""
    inbox = Inbox(scope="demo:charge")
    with closing(environment.ledger.open()) as db:
        inbox.migrate(db)

    def handle(message: Message[Payment]) -> None:
        with closing(environment.ledger.open(lock_timeout=0.2)) as db, db:
            db.execute("BEGIN")
            if inbox.first(db, message):
                with environment.effect_points():
                    environment.ledger.charge_in(db, message.data)

    return handle


def intents_handler(environment: ModeEnvironment) -> DemoHandler:
    """`Intents`, where the card network keeps keys."""

    @Intents(environment.store, scope="demo").operation("stripe", "charge", lease=environment.lease)
    def charge(intent: Intent[Payment]) -> Receipt:
        return environment.charge(intent.request, intent.provider_key)

    return lambda message: charge(message.data, key=message.key)


MODES = (
    DemoMode(name="unguarded", title="no guard", lets_through="every duplicate", handler=unguarded_handler),
    DemoMode(
        name="mark-last",
        title="check, charge, mark",
        lets_through="(hand-written) two deliveries at the same time; a crash before the mark charges again",
        handler=marking_handler(mark_first=False),
    ),
    DemoMode(
        name="mark-first",
        title="check, mark, charge",
        lets_through="(hand-written) two deliveries at the same time; a crash after the mark loses the payment",
        handler=marking_handler(mark_first=True),
    ),
    DemoMode(
        name="seen",
        title="S  seen-set",
        lets_through="two deliveries at the same time; a crash before the record runs again: for idempotent effects",
        handler=once_handler(mode="seen"),
        promise={**ALWAYS_ONCE, "at_once": (ONCE, DOUBLED), "killed_after": (ONCE, DOUBLED)},
    ),
    DemoMode(
        name="lease",
        title="L  lease (default)",
        lets_through="a crash before the record: the work runs again once the lease has ended",
        handler=once_handler(),
        promise={**ALWAYS_ONCE, "killed_after": (ONCE, DOUBLED)},
    ),
    DemoMode(
        name="lease-doubt",
        title='L  on_lapse="doubt"',
        lets_through="none of these; what a crash left open waits for an operator (effectonce records resolve)",
        handler=once_handler(on_lapse="doubt"),
        promise={**ALWAYS_ONCE, "killed_before": IN_DOUBT, "killed_after": IN_DOUBT},
    ),
    DemoMode(
        name="inbox",
        title="T  Inbox",
        lets_through="none of these: the charge is a row in your own database, committed with the record",
        handler=inbox_handler,
        promise=ALWAYS_ONCE,
    ),
    DemoMode(
        name="intents",
        title="K  Intents",
        lets_through="none of these while the card network keeps the key; after that it is in doubt",
        handler=intents_handler,
        promise=ALWAYS_ONCE,
    ),
)
