"""What the cases of the suite for brokers are written with: a queue of its own, consumers, and time."""

from __future__ import annotations

import asyncio
import time
import unittest
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from effectonce.contracts import (
    BrokerBackend,
    BrokerCapabilities,
    Consumer,
    DeadLetter,
    DeadLetters,
    Delivery,
    Packet,
    Publisher,
)
from effectonce.testing.clock import ManualClock

from .sentences import Sentence, equal, holds

#: The longest ack window that a case waits for.
BEARABLE = 6.0


class Site(Struct, kw_only=True):
    """A broker, and what can be done to it. Cases that need what is not given are skipped."""

    backend: BrokerBackend
    #: Breaks every connection that is open, as a proxy does that resets them.
    cut: Callable[[], Any] | None = None
    #: Ends the server and starts it again, on the same data; returns when it answers.
    restart: Callable[[], Any] | None = None
    #: The same kind of broker, where nobody listens.
    unreachable: BrokerBackend | None = None
    #: The same broker, with a wrong password.
    locked: BrokerBackend | None = None
    #: That password.
    secret: str = ""


Body = Callable[["BrokerHarness"], Coroutine[Any, Any, None]]


class BrokerCase(Sentence["BrokerHarness"]):
    """One sentence of the contract, and how to see whether a broker keeps it."""

    def run(
        self, site: Site | BrokerBackend, *, delay: float = 0.3, quiet: float = 0.25, timeout: float = 15.0
    ) -> None:
        """Raise AssertionError where the broker breaks the sentence, SkipTest where it does not apply."""
        asyncio.run(self._through(site if isinstance(site, Site) else Site(backend=site), delay, quiet, timeout))

    async def _through(self, site: Site, delay: float, quiet: float, timeout: float) -> None:
        h = BrokerHarness(site, delay, quiet, timeout)
        try:
            await self._body(h)
        finally:
            await h.close()


def broker_case(body: Body) -> BrokerCase:
    """``body`` as a case; its name is the sentence, its docstring the reason."""
    return BrokerCase(body)


class BrokerHarness:
    """One broker under one case."""

    def __init__(self, site: Site, delay: float, quiet: float, timeout: float) -> None:
        self.site = site
        self.backend = site.backend
        self.capabilities: BrokerCapabilities = site.backend.capabilities
        clock = getattr(site.backend, "clock", None)
        self.clock = clock if isinstance(clock, ManualClock) else None
        #: A delay that the broker can keep; how long nothing must come; how long to wait for what must come.
        self.delay, self.quiet, self.timeout = delay, quiet, timeout
        self.queue = f"suite-{uuid.uuid4().hex[:12]}"
        self.group = "suite"
        self._declared: set[tuple[str, str]] = set()
        self._open: list[Consumer | Publisher | DeadLetters] = []
        self._publisher: Publisher | None = None

    def needs(self, condition: bool, what: str) -> None:
        """Skip the case where it does not apply."""
        if not condition:
            raise unittest.SkipTest(f"needs {what}")

    @property
    def window(self) -> float:
        """The ack window, in seconds; skips the case where there is none, or it is too long to wait for."""
        window = self.capabilities.ack_window
        if window is None or (window > BEARABLE and self.clock is None):
            raise unittest.SkipTest(f"needs an ack window of at most {BEARABLE:g} s")
        return window

    @property
    def afterwards(self) -> float:
        """How long to wait for what its consumer gave back, or left: at once where the broker can, else a window."""
        return self.timeout + (2 * (self.capabilities.ack_window or 0.0) if self.clock is None else 0.0)

    # -- what is opened

    async def declare(self, queue: str = "", group: str = "") -> None:
        at = (queue or self.queue, group or self.group)
        if at not in self._declared:
            await self.backend.declare(at[0], group=at[1])
            self._declared.add(at)

    async def consumer(self, *, queue: str = "", group: str = "", prefetch: int = 100) -> Consumer:
        """A new consumer, closed when the case ends."""
        await self.declare(queue, group)
        made = self.backend.consumer(queue or self.queue, group=group or self.group, prefetch=prefetch)
        self._open.append(made)
        return made

    def publisher(self) -> Publisher:
        made = self.backend.publisher()
        self._open.append(made)
        return made

    def dead(self, *, queue: str = "", group: str = "") -> DeadLetters:
        made = self.backend.dead_letters(queue or self.queue, group=group or self.group)
        self._open.append(made)
        return made

    async def close(self) -> None:
        for opened in reversed(self._open):
            await opened.close()
        await self.backend.close()

    # -- sending

    async def publish(self, *packets: Packet | bytes, queue: str = "", publisher: Publisher | None = None) -> None:
        """Send, and be confirmed."""
        await self.declare(queue)
        if publisher is None:
            publisher = self._publisher = self._publisher or self.publisher()
        sent = [packet if isinstance(packet, Packet) else a_packet(packet) for packet in packets]
        outcomes = await publisher.publish(queue or self.queue, sent)
        equal(list(outcomes), [None] * len(sent), "what `publish` answered")

    # -- receiving

    async def collect(self, consumer: Consumer, count: int, *, within: float | None = None) -> list[Delivery]:
        """``count`` deliveries, however many calls it takes."""
        deadline = time.monotonic() + (within or self.timeout)
        found: list[Delivery] = []
        while len(found) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                bodies = sorted(d.packet.body[:40] for d in found)
                raise AssertionError(f"{count} deliveries were due, {len(found)} came: {bodies}")
            found += await consumer.receive(count - len(found), min(left, 1.0))
        equal(len(found), count, "the number of deliveries")
        return found

    async def one(self, consumer: Consumer, *, within: float | None = None) -> Delivery:
        (delivery,) = await self.collect(consumer, 1, within=within)
        return delivery

    async def nothing(self, consumer: Consumer, why: str) -> None:
        """No delivery comes, as far as `quiet` lets one see."""
        found = await consumer.receive(10, 0.0 if self.clock is not None else self.quiet)
        holds(not found, f"{why}, and yet it was delivered: {[d.packet.body[:40] for d in found]}")

    async def all_dead(self, dead: DeadLetters, size: int = 100) -> list[DeadLetter]:
        """Every page."""
        found: list[DeadLetter] = []
        cursor: str | None = None
        for _ in range(100):
            page, cursor = await dead.browse(size, cursor)
            holds(len(page) <= size, f"a page of {size} has {len(page)} dead letters")
            found += page
            if cursor is None:
                return found
        raise AssertionError("100 pages of dead letters, and there is another")

    # -- time

    async def sleep(self, seconds: float) -> None:
        """Until ``seconds`` have gone by on the broker's clock."""
        if self.clock is not None:
            self.clock.advance_micros(round(seconds * 1e6))
        else:
            await asyncio.sleep(seconds)

    async def past_window(self) -> None:
        """Until what is unsettled now is no longer its consumer's."""
        await self.sleep(self.window * 1.05 + 0.05)

    def now(self) -> float:
        return self.clock.monotonic() if self.clock is not None else time.monotonic()


def a_packet(body: bytes = b"{}", *, key: str | None = None, **headers: str) -> Packet:
    return Packet(body=body, headers=headers, id=uuid.uuid4().hex, ordering_key=key)


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.packet.body for delivery in deliveries]
