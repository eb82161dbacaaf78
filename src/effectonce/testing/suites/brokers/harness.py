"""The harness of the cases for brokers: each works on a queue of its own, with consumers, deliveries and a clock."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
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
from effectonce.testing.suites.expectations import expect, require, skip_unless

MAX_ACK_WINDOW_S = 6.0  # cases that would have to wait for a longer ack window are skipped


class Site(Struct, kw_only=True):
    """A broker, and the faults that can be injected into it. A case that needs a fault that is None is skipped."""

    backend: BrokerBackend
    #: Breaks every connection that is open, as a proxy does that resets them.
    cut: Callable[[], Any] | None = None
    #: Ends the server and starts it again, on the same data; returns when it answers.
    restart: Callable[[], Any] | None = None
    #: The same kind of broker, at an address where no server listens.
    unreachable: BrokerBackend | None = None
    #: The same broker, with a wrong password.
    locked: BrokerBackend | None = None
    #: That password.
    secret: str = ""


class BrokerHarness:
    """One broker under one case."""

    def __init__(self, site: Site, *, delay: float = 0.3, quiet: float = 0.25, timeout: float = 15.0) -> None:
        self.site = site
        self.backend = site.backend
        self.capabilities: BrokerCapabilities = site.backend.capabilities
        clock = getattr(site.backend, "clock", None)
        self.clock = clock if isinstance(clock, ManualClock) else None
        #: Seconds: the shortest `nack` delay that the broker does not round to none.
        self.delay = delay
        #: Seconds: how long a case waits to see that nothing is delivered, and for what must be delivered.
        self.quiet, self.timeout = quiet, timeout
        self.queue = f"suite-{uuid.uuid4().hex[:12]}"
        self.group = "suite"
        self._declared: set[tuple[str, str]] = set()
        self._open: list[Consumer | Publisher | DeadLetters] = []
        self._publisher: Publisher | None = None

    # -- what a case opens, and the harness closes

    async def declare(self, queue: str = "", group: str = "") -> None:
        place = (queue or self.queue, group or self.group)
        if place not in self._declared:
            await self.backend.declare(place[0], group=place[1])
            self._declared.add(place)

    async def consumer(self, *, queue: str = "", group: str = "", prefetch: int = 100) -> Consumer:
        await self.declare(queue, group)
        consumer = self.backend.consumer(queue or self.queue, group=group or self.group, prefetch=prefetch)
        self._open.append(consumer)
        return consumer

    def publisher(self) -> Publisher:
        publisher = self.backend.publisher()
        self._open.append(publisher)
        return publisher

    def dead_letters(self, *, group: str = "") -> DeadLetters:
        dead_letters = self.backend.dead_letters(self.queue, group=group or self.group)
        self._open.append(dead_letters)
        return dead_letters

    async def close(self) -> None:
        for opened in reversed(self._open):
            await opened.close()
        await self.backend.close()

    # -- publishing

    async def publish(self, *packets: Packet | bytes, queue: str = "", publisher: Publisher | None = None) -> None:
        """Publish, and require that each packet is confirmed."""
        await self.declare(queue)
        if publisher is None:
            publisher = self._publisher = self._publisher or self.publisher()
        sent = [packet if isinstance(packet, Packet) else make_packet(packet) for packet in packets]
        outcomes = await publisher.publish(queue or self.queue, sent)
        expect(list(outcomes), [None] * len(sent), "the answer of publish")

    async def make_deliveries(self, *bodies: bytes, prefetch: int = 100) -> tuple[Consumer, list[Delivery]]:
        """Publish ``bodies``, and deliver them to a new consumer. Returns it, and its deliveries in this order."""
        await self.publish(*bodies)
        consumer = await self.consumer(prefetch=prefetch)
        deliveries = await self.expect_deliveries(consumer, *bodies)
        return consumer, sorted(deliveries, key=lambda delivery: bodies.index(delivery.packet.body))

    async def make_delivery(self, body: bytes = b"once", prefetch: int = 100) -> tuple[Consumer, Delivery]:
        """Publish one message, and deliver it to a new consumer."""
        consumer, (delivery,) = await self.make_deliveries(body, prefetch=prefetch)
        return consumer, delivery

    # -- receiving

    async def receive(self, consumer: Consumer, count: int, *, timeout: float | None = None) -> list[Delivery]:
        """Receive ``count`` deliveries, however many calls it takes."""
        deadline = time.monotonic() + (timeout or self.timeout)
        deliveries: list[Delivery] = []
        while len(deliveries) < count:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                received = sorted(body[:40] for body in bodies_of(deliveries))
                raise AssertionError(f"{count} deliveries were due, {len(deliveries)} were made: {received}")
            deliveries += await consumer.receive(count - len(deliveries), min(seconds_left, 1.0))
        expect(len(deliveries), count, "the number of deliveries")
        return deliveries

    async def receive_one(self, consumer: Consumer, *, timeout: float | None = None) -> Delivery:
        (delivery,) = await self.receive(consumer, 1, timeout=timeout)
        return delivery

    async def receive_and_ack(
        self, consumer: Consumer, count: int, limit: int, *, timeout: float | None = None
    ) -> list[Delivery]:
        """Receive and ack, ``limit`` at a time, until there are ``count`` deliveries or the time is over."""
        deadline = time.monotonic() + (timeout or self.timeout)
        deliveries: list[Delivery] = []
        while len(deliveries) < count and time.monotonic() < deadline:
            page = await consumer.receive(limit, 0.5)
            deliveries += page
            await consumer.ack(page)
        return deliveries

    async def expect_deliveries(
        self, consumer: Consumer, *bodies: bytes, timeout: float | None = None
    ) -> list[Delivery]:
        """Require that messages of these bodies are delivered next, in any order."""
        deliveries = await self.receive(consumer, len(bodies), timeout=timeout)
        expect(sorted(bodies_of(deliveries)), sorted(bodies), "the bodies that were delivered")
        return deliveries

    async def expect_nothing(self, consumer: Consumer, reason: str) -> None:
        """Require that nothing is delivered, as far as `quiet` lets one see."""
        deliveries = await consumer.receive(10, 0.0 if self.clock is not None else self.quiet)
        require(not deliveries, f"{reason}, and yet it was delivered: {[b[:40] for b in bodies_of(deliveries)]}")

    async def all_dead_letters(self, dead_letters: DeadLetters, page_size: int = 100) -> list[DeadLetter]:
        """Return the dead letters of every page."""
        letters: list[DeadLetter] = []
        cursor: str | None = None
        for _ in range(100):
            page, cursor = await dead_letters.browse(page_size, cursor)
            require(len(page) <= page_size, f"a page of {page_size} has {len(page)} dead letters")
            letters += page
            if cursor is None:
                return letters
        raise AssertionError("there is another page of dead letters after 100")

    # -- time

    @property
    def window(self) -> float:
        """The ack window in seconds. Skips the case if there is none, or it is too long to wait for."""
        window = self.capabilities.ack_window_s
        short_enough = window is not None and (window <= MAX_ACK_WINDOW_S or self.clock is not None)
        return skip_unless(window if short_enough else None, f"an ack window of at most {MAX_ACK_WINDOW_S:g} s")

    @property
    def redelivery_timeout(self) -> float:
        """Seconds to wait for deliveries that another consumer returned or lost: two ack windows more than usual."""
        return self.timeout + (2 * (self.capabilities.ack_window_s or 0.0) if self.clock is None else 0.0)

    async def sleep(self, seconds: float) -> None:
        """Let ``seconds`` go by on the broker's clock."""
        if self.clock is not None:
            self.clock.advance_micros(round(seconds * 1e6))
        else:
            await asyncio.sleep(seconds)

    async def end_window(self) -> None:
        """Wait until the ack window of every unsettled delivery has ended."""
        await self.sleep(self.window * 1.05 + 0.05)

    async def end_window_if_any(self) -> None:
        if self.capabilities.ack_window_s is not None:
            await self.end_window()

    def end_delay(self) -> None:
        """Advance a manual clock by the `nack` delay. On a real clock, cases wait for the delivery anyway."""
        if self.clock is not None:
            self.clock.advance_micros(round(self.delay * 1e6))

    def now(self) -> float:
        return self.clock.monotonic() if self.clock is not None else time.monotonic()


def make_packet(body: bytes = b"{}", *, key: str | None = None, **headers: str) -> Packet:
    return Packet(body=body, headers=headers, id=uuid.uuid4().hex, ordering_key=key)


def bodies_of(messages: Sequence[Delivery | DeadLetter]) -> list[bytes]:
    return [message.packet.body for message in messages]


def numbered_bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, count)]
