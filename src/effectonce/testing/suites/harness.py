"""What the cases of the suite are written with: a few words for asking a port, waiting, and racing.

A case is one ``async def`` over a `Harness`. In the sync port_kind it is driven on the caller's thread over sync
ports, races are threads and waiting is `time.sleep`; in the async port_kind all is tasks on one event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import unittest
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

from effectonce.contracts import Backend, Capabilities, Contention, Port
from effectonce.core.run_sync import run_sync
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
    Settled,
    Settlement,
    State,
    Swept,
)
from effectonce.testing.clock import ManualClock

from .sentences import Sentence, equal, holds, threads

PortKind = Literal["sync", "async"]
PORT_KINDS: tuple[PortKind, ...] = ("sync", "async")
T = TypeVar("T")

SECOND = 1_000_000
LONG = 60 * SECOND  # a lease that outlasts every case
KEEP = 3600 * SECOND  # a retention that outlasts every case


Body = Callable[["Harness"], Coroutine[Any, Any, None]]


class Case(Sentence["Harness"]):
    """One sentence of the contract, and how to see whether a backend keeps it."""

    def __init__(self, body: Body, port_kinds: tuple[PortKind, ...]) -> None:
        super().__init__(body)
        self.port_kinds = port_kinds

    def run(self, backend: Backend, port_kind: PortKind, *, brief: float | None = None) -> None:
        """Raise AssertionError where the backend breaks the sentence, SkipTest where it does not apply."""
        if port_kind not in self.port_kinds:
            raise unittest.SkipTest(f"is about {self.port_kinds[0]} ports only")
        harness = Harness(backend, port_kind, brief)
        if port_kind == "sync":
            run_sync(self._through(harness))
        else:
            asyncio.run(self._through(harness))

    async def _through(self, h: Harness) -> None:
        try:
            await h.first.migrate()
            await self._body(h)
        finally:
            await h.close()


def case(body: Body) -> Case:
    """``body`` as a case; its name is the sentence, its docstring the reason."""
    return Case(body, PORT_KINDS)


def sync_case(body: Body) -> Case:
    """A case about threads or blocking, for sync ports only."""
    return Case(body, ("sync",))


def async_case(body: Body) -> Case:
    """A case about tasks and cancellation, for async ports only."""
    return Case(body, ("async",))


@dataclass(frozen=True, slots=True)
class Try:
    """A claim that was sent, and its answer. It is settled or renewed in the name of its owner and token."""

    claim: Claim
    answer: Answer
    token: int

    @property
    def kind(self) -> str:
        return self.answer.kind

    def with_token(self, token: int) -> Try:
        return replace(self, token=token)

    def with_owner(self, owner: bytes) -> Try:
        claim = self.claim
        return replace(self, claim=Claim(claim.scope, claim.key, owner, claim.lease, claim.retention))


class Harness:
    """One backend under one case: ports of one kind, scopes of its own, and time."""

    def __init__(self, backend: Backend, port_kind: PortKind, brief: float | None = None) -> None:
        self.backend = backend
        self.port_kind = port_kind
        clock = getattr(backend, "clock", None)
        self.clock = clock if isinstance(clock, ManualClock) else None
        seconds = brief if brief is not None else (1.0 if self.capabilities.estimated_clock else 0.06)
        #: A lease or retention that ends within a moment. Never expected to hold, only to end.
        self.brief = round(seconds * SECOND)
        #: How far two readings of the store's time may be apart without anything being wrong.
        self.slack = 2 * SECOND if self.capabilities.estimated_clock else 5_000
        self.scope = f"suite-{uuid.uuid4().hex[:16]}"
        self._ports: list[Port] = []
        self._lock = threading.Lock()
        self._first: Port | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    def needs(self, condition: bool, what: str) -> None:
        """Skip the case where it does not apply."""
        if not condition:
            raise unittest.SkipTest(f"needs {what}")

    def manual_clock(self) -> ManualClock:
        """The store's clock, for cases that stand on a boundary; skips them where it cannot be moved."""
        if self.clock is None:
            raise unittest.SkipTest("needs a manual clock")
        return self.clock

    # -- ports

    def port(self) -> Port:
        """A new port, closed when the case ends."""
        port = self.backend.sync_port() if self.port_kind == "sync" else self.backend.async_port()
        with self._lock:
            self._ports.append(port)
        return port

    @property
    def first(self) -> Port:
        """The port that the words below use unless given another."""
        if self._first is None:
            self._first = self.port()
        return self._first

    async def close(self) -> None:
        for port in self._ports:
            await port.close()

    # -- operations

    async def run(self, *operations: Batchable, port: Port | None = None) -> list[Reply]:
        """The replies to one batch, in the order in which the operations are given here.

        The port gets them sorted by identity, as the core does. Contention means that nothing was applied.
        """
        order = sorted(range(len(operations)), key=lambda n: (operations[n].scope, operations[n].key))
        batch = [operations[n] for n in order]
        replies = await self._run_until_uncontended(port or self.first, batch)
        equal(len(replies), len(batch), "the number of replies to a batch")
        in_order: list[Reply] = [False] * len(batch)
        for position, reply in zip(order, replies, strict=True):
            in_order[position] = reply
        return in_order

    async def _run_until_uncontended(self, port: Port, batch: Sequence[Batchable]) -> list[Reply]:
        for _ in range(50):
            try:
                replies = list(await port.run(batch))
            except Contention:
                await self.sleep(0.01)
                continue
            if not any(isinstance(reply, Contention) for reply in replies):
                return replies
            await self.sleep(0.01)
        raise AssertionError("50 repetitions of one batch all ended in Contention")

    async def one(self, operation: Batchable, port: Port | None = None) -> Answer | bool:
        [reply] = await self.run(operation, port=port)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def a_claim(
        self,
        key: str = "k",
        *,
        scope: str | None = None,
        owner: bytes | None = None,
        lease: int = LONG,
        retention: int = KEEP,
        max_attempts: int = 0,
        doubt: bool = False,
        prints: bytes = b"",
        waiting: bool = False,
        note: bytes | None = None,
    ) -> Claim:
        return Claim(
            scope or self.scope,
            key,
            owner or os.urandom(16),
            lease,
            retention,
            max_attempts=max_attempts,
            doubt_on_lapse=doubt,
            fingerprints=prints,
            waiting=waiting,
            note=note,
        )

    async def ask(self, key: str = "k", *, port: Port | None = None, **options: Any) -> Try:
        """Send a claim, and return its answer, granted or not."""
        return await self.send(self.a_claim(key, **options), port)

    async def send(self, claim: Claim, port: Port | None = None) -> Try:
        answer = await self.one(claim, port)
        if not isinstance(answer, Answer):
            raise AssertionError(f"a claim was answered by {answer!r}, which is not an Answer")
        return Try(claim, answer, answer.token)

    async def take(self, key: str = "k", *, port: Port | None = None, **options: Any) -> Try:
        """Send a claim that must be granted."""
        mine = await self.ask(key, port=port, **options)
        equal(mine.kind, "claimed", f"the claim of {mine.claim.key!r}")
        return mine

    def a_settlement(
        self,
        mine: Try,
        state: Settled = "done",
        *,
        result: bytes | None = None,
        error: bytes | None = None,
        refund: bool = False,
        retention: int = KEEP,
        note: bytes | None = None,
    ) -> Settlement:
        c = mine.claim
        return Settlement(c.scope, c.key, c.owner, mine.token, state, retention, result, error, refund, note)

    async def settle(self, mine: Try, state: Settled = "done", *, port: Port | None = None, **options: Any) -> bool:
        return self._bool(await self.one(self.a_settlement(mine, state, **options), port))

    def a_note(self, mine: Try, note: bytes) -> Note:
        return Note(mine.claim.scope, mine.claim.key, mine.claim.owner, mine.token, note)

    async def note(self, mine: Try, note: bytes, *, port: Port | None = None) -> bool:
        return self._bool(await self.one(self.a_note(mine, note), port))

    def a_renewal(self, mine: Try, lease: int = LONG, retention: int = KEEP) -> Renewal:
        return Renewal(mine.claim.scope, mine.claim.key, mine.claim.owner, mine.token, lease, retention)

    async def renew(self, mine: Try, lease: int = LONG, retention: int = KEEP, *, port: Port | None = None) -> bool:
        return self._bool(await self.one(self.a_renewal(mine, lease, retention), port))

    async def look(self, key: str = "k", *, scope: str | None = None, prints: bytes = b"") -> Answer:
        answer = await self.one(Look(scope or self.scope, key, prints))
        if not isinstance(answer, Answer):
            raise AssertionError(f"a look was answered by {answer!r}, which is not an Answer")
        return answer

    async def remember(
        self, key: str = "k", *, result: bytes | None = None, prints: bytes = b"", retention: int = KEEP
    ) -> bool:
        return self._bool(await self.one(Remember(self.scope, key, retention, prints, result)))

    @staticmethod
    def _bool(reply: Answer | bool) -> bool:
        if not isinstance(reply, bool):
            raise AssertionError(f"a settlement, renewal or remember was answered by {reply!r}, which is not a bool")
        return reply

    async def get(self, key: str = "k", *, scope: str | None = None) -> Record | None:
        return await self.first.get(scope or self.scope, key)

    async def record(self, key: str = "k", *, scope: str | None = None) -> Record:
        """The record, which must be there."""
        record = await self.get(key, scope=scope)
        if record is None:
            raise AssertionError(f"there is no record of {key!r}")
        return record

    async def state(self, key: str = "k") -> State | Literal["absent"]:
        record = await self.get(key)
        return "absent" if record is None else record.state

    async def forget(self, key: str = "k", retention: int = KEEP) -> bool:
        return await self.first.forget(self.scope, key, retention)

    async def resolve(
        self,
        state: Literal["done", "failed", "free"],
        key: str = "k",
        *,
        result: bytes | None = None,
        error: bytes | None = None,
        retention: int = KEEP,
    ) -> bool:
        resolution = Resolution(state=state, retention=retention, result=result, error=error)
        return await self.first.resolve(self.scope, key, resolution)

    async def pages(
        self,
        *,
        state: State | None = None,
        scope: str | None = None,
        unfinished: bool = False,
        limit: int,
        after: tuple[str, str] | None = None,
        sweeping: bool = False,
    ) -> list[Page]:
        """Every page, following the cursors to their end; ``sweeping`` in between, which changes none of them."""
        pages: list[Page] = []
        cursor: str | None = None
        for _ in range(2_000):
            query = Query(state=state, scope=scope, unfinished=unfinished, limit=limit, cursor=cursor, after=after)
            page = await self.first.list(query)
            holds(
                len(page.records) <= limit,
                f"a page of {len(page.records)} records where {limit} were asked for",
            )
            pages.append(page)
            cursor = page.cursor
            if sweeping:
                await self.first.sweep(100)
            if cursor is None:
                return pages
        raise AssertionError("the cursor led on after 2000 pages")

    async def listed(self, *, state: State | None = None, scope: str | None = None, limit: int = 100) -> list[Record]:
        return [record for page in await self.pages(state=state, scope=scope, limit=limit) for record in page.records]

    async def sweep(self, limit: int = 1_000) -> Swept:
        """Sweep until nothing is left to sweep; what was done in all."""
        deleted = lapsed = 0
        for _ in range(2_000):
            swept = await self.first.sweep(limit)
            deleted, lapsed = deleted + swept.deleted, lapsed + swept.lapsed
            if not swept.more:
                return Swept(deleted, lapsed, False)
        raise AssertionError("there was more to sweep after 2000 sweeps")

    # -- records in a state

    async def in_doubt(self, key: str = "k", **options: Any) -> Try:
        """Make a record whose owner settled it as in doubt."""
        mine = await self.take(key, **options)
        holds(await self.settle(mine, "in_doubt"), "a doubt was not applied")
        return mine

    async def lapsed(self, key: str = "k", **options: Any) -> Try:
        """Make a claim whose lease has lapsed."""
        mine = await self.take(key, **{"lease": self.brief, **options})
        await self.past(mine.claim.lease)
        return mine

    # -- time

    async def now(self) -> int:
        return await self.first.now()

    async def sleep(self, seconds: float) -> None:
        """Wait in real time."""
        if self.port_kind == "sync":
            time.sleep(seconds)  # noqa: ASYNC251  (a sync port's coroutine never suspends)
        else:
            await asyncio.sleep(seconds)

    async def past(self, span: int) -> None:
        """Until ``span`` microseconds have gone by on the store's clock, and a little more."""
        if self.clock is not None:
            self.clock.advance_micros(span + 1)
            return
        until = await self.now() + span + self.slack
        while (left := until - await self.now()) > 0:
            await self.sleep(left / SECOND)

    # -- races

    async def together(self, count: int, body: Callable[[Port, int], Coroutine[Any, Any, T]]) -> list[T]:
        """Run ``body`` on ``count`` new ports at once: in threads on sync ports, in tasks on async ones."""
        ports = [self.port() for _ in range(count)]
        for port in ports:  # connected first, so that they really meet
            await port.now()
        if self.port_kind == "async":
            return list(await asyncio.gather(*(body(port, n) for n, port in enumerate(ports))))
        return threads([partial(_driven, body, port, n) for n, port in enumerate(ports)])


def _driven(body: Callable[[Port, int], Coroutine[Any, Any, T]], port: Port, n: int) -> T:
    return run_sync(body(port, n))


def a_print(text: str, version: int = 1) -> bytes:
    """One 33-byte fingerprint entry: the algorithm's version and 32 bytes."""
    return bytes([version]) + text.encode().ljust(32, b".")[:32]
