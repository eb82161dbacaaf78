"""Consuming from a broker with a visibility timeout: an unsettled delivery belongs to its consumer for that long.

Such a broker may take a late settlement for that of the next owner, or confirm it and do nothing (F54: a stale
settlement that looks like a good one). So the consumer watches the visibility timeout itself, counted from before the
call that returned the message, and sends nothing for a delivery whose timeout is over.

`UnsettledDeliveries` does that bookkeeping; `PollingConsumer` is a consumer for brokers that are polled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from effectonce.contracts import Consumer, Delivery
from effectonce.errors import BrokerUnavailable

log = logging.getLogger("effectonce")

#: The pause between polls of a broker whose polls do not wait themselves.
POLL_INTERVAL_S: Final = 0.1


class HeldDelivery(Struct, eq=False):
    """A delivery that this consumer has received and not settled yet; an adapter's `Delivery.handle`."""

    key: Any  # by which the broker knows this delivery: receipt, tag, stream id
    ends_at: float  # when the visibility timeout ends, on the clock of its `UnsettledDeliveries`


HeldT = TypeVar("HeldT", bound=HeldDelivery)


class UnsettledDeliveries(Generic[HeldT]):
    """The deliveries that one consumer has not settled, each until its visibility timeout ends.

    Where a message is delivered again under the same key, the new delivery replaces the older one, which is then no
    longer held. ``now`` is the clock of `HeldDelivery.ends_at`, in the same unit.
    """

    def __init__(self, prefetch: int, now: Callable[[], float] = time.monotonic) -> None:
        self._prefetch = prefetch
        self._now = now
        self._held: dict[Any, HeldT] = {}
        self._released = asyncio.Event()

    def __iter__(self) -> Iterator[HeldT]:
        return iter(list(self._held.values()))

    def add(self, held: HeldT) -> None:
        self._held[held.key] = held

    def holds(self, held: HeldT) -> bool:
        """Whether ``held`` is unsettled, even if its timeout is over."""
        return self._held.get(held.key) is held

    def owns(self, held: HeldT) -> bool:
        """Whether ``held`` is unsettled and its timeout is not over: no other consumer can have it yet."""
        return self.holds(held) and self._now() < held.ends_at

    def release(self, held: HeldT) -> bool:
        """Forget ``held``, which is settled or lost. False where it was not held."""
        if self._held.get(held.key) is not held:
            return False
        del self._held[held.key]
        self._released.set()
        return True

    def release_all(self) -> list[HeldT]:
        """Forget all deliveries, and return them."""
        released = list(self._held.values())
        self._held.clear()
        self._released.set()
        return released

    async def settle(
        self, deliveries: Sequence[Delivery], send: Callable[[list[HeldT]], Awaitable[Sequence[bool]]]
    ) -> list[bool]:
        """Release ``deliveries``, and settle those that were held by ``send``, which returns for each whether it was
        still ours. Returns the same for all ``deliveries``. Where ``send`` fails they are held again: the caller may
        try again."""
        released = [self.release(delivery.handle) for delivery in deliveries]
        held = [delivery.handle for delivery, was_held in zip(deliveries, released, strict=True) if was_held]
        try:
            applied = iter(await send(held) if held else ())
        except BaseException:
            self._held.update((delivery.key, delivery) for delivery in held)
            raise
        return [was_held and next(applied) for was_held in released]

    async def extend(
        self, deliveries: Sequence[Delivery], send: Callable[[list[HeldT]], Awaitable[Sequence[bool]]]
    ) -> list[bool]:
        """Do what `settle` does, without releasing the deliveries: ``send`` extends their timeouts."""
        held = [delivery.handle for delivery in deliveries if self.holds(delivery.handle)]
        applied = await send(held) if held else ()
        extended = {delivery for delivery, is_ours in zip(held, applied, strict=True) if is_ours}
        return [delivery.handle in extended for delivery in deliveries]

    def room(self) -> int:
        """How many more deliveries the prefetch allows. Those whose timeout is over are forgotten here."""
        if len(self._held) >= self._prefetch:
            now = self._now()
            for held in list(self._held.values()):
                if held.ends_at <= now:
                    self._held.pop(held.key, None)
        return self._prefetch - len(self._held)

    async def wait_for_room(self, timeout: float) -> None:
        """Wait until a delivery is released, or the visibility timeout of one ends, for ``timeout`` seconds at most."""
        self._released.clear()
        now = self._now()
        next_end = min((held.ends_at for held in self._held.values()), default=now + timeout)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(timeout, next_end - now)):
                await self._released.wait()


async def give_back_unsettled(give_back: Callable[[], Awaitable[object]]) -> None:
    """Run ``give_back``, with which a closing consumer returns its deliveries; once more where the connection broke.

    A broker that cannot be reached then is not an error: it redelivers what was not settled.
    """
    for _ in range(2):
        try:
            await give_back()
            return
        except BrokerUnavailable as error:
            failure = error
    log.info("a consumer could not return its unsettled deliveries; they are redelivered on timeout: %s", failure)


class PollingConsumer(Consumer, Generic[HeldT]):
    """A `contracts.Consumer` of a broker that is polled. A subclass polls and settles.

    At most one poll is under way, in a task of its own. Where a `receive` is cancelled, its poll continues, and the
    next `receive` returns its deliveries. ``longest_poll`` is in seconds.
    """

    def __init__(self, prefetch: int, window: float, longest_poll: float) -> None:
        self._window_s = window
        # The timeout is counted from the start of the poll: the shorter the poll, the more is left of the timeout.
        self._longest_poll = min(longest_poll, window / 4)
        self._unsettled: UnsettledDeliveries[HeldT] = UnsettledDeliveries(prefetch)
        self._arrived: deque[Delivery] = deque()  # polled, and not yet returned by `receive`
        self._poll: asyncio.Task[None] | None = None

    @abstractmethod
    async def _poll_once(self, limit: int, wait: float) -> Sequence[Delivery]:
        """Return up to ``limit`` new deliveries, each with a `HeldDelivery`, after ``wait`` seconds at the latest."""

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait
        while True:
            if self._arrived and (deliveries := await self._take_arrived(limit)):
                return deliveries
            seconds_left = max(deadline - time.monotonic(), 0.0)
            poll = self._poll
            inherited = poll is not None  # from a receive that was cancelled: it may end after our deadline
            if poll is None:
                room = min(limit, self._unsettled.room())
                if room <= 0:
                    if seconds_left == 0.0:
                        return []
                    await self._unsettled.wait_for_room(seconds_left)
                    continue
                poll = self._poll = asyncio.create_task(self._poll_until_arrival(room, seconds_left))
            # `asyncio.wait` does not cancel the poll where this receive is cancelled.
            done, _ = await asyncio.wait((poll,), timeout=seconds_left if inherited else None)
            if not done:
                return []
            self._poll = None
            poll.result()  # raises its error
            if not self._arrived and not inherited:
                return []

    async def _poll_until_arrival(self, limit: int, wait: float) -> None:
        """Poll again and again until a message has arrived, for ``wait`` seconds at most."""
        deadline = time.monotonic() + wait
        while True:
            started_at = time.monotonic()
            seconds_left = max(deadline - started_at, 0.0)
            deliveries = await self._poll_once(limit, min(seconds_left, self._longest_poll))
            for delivery in deliveries:
                self._unsettled.add(delivery.handle)
            self._arrived += deliveries
            now = time.monotonic()
            if deliveries or now >= deadline:
                return
            await asyncio.sleep(min(POLL_INTERVAL_S - (now - started_at), deadline - now))

    async def _take_arrived(self, limit: int) -> list[Delivery]:
        deliveries = [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
        soon = time.monotonic() + self._window_s / 2
        if all(delivery.handle.ends_at > soon for delivery in deliveries):
            return deliveries
        # They arrived when a receive was cancelled, and have waited since. Extend them: a handler needs time to run.
        extended = await self.extend(deliveries, self._window_s)
        return [delivery for delivery, is_ours in zip(deliveries, extended, strict=True) if is_ours]

    def _forget_deliveries(self) -> None:
        """Drop all deliveries, since none of them can be settled any more: they are redelivered when they time out."""
        self._arrived.clear()
        self._unsettled.release_all()

    async def _stop_polling(self) -> list[HeldT]:
        """End the poll. Returns the deliveries that are still ours: the caller must give them back to the broker."""
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
        self._arrived.clear()
        now = time.monotonic()
        return [held for held in self._unsettled.release_all() if held.ends_at > now]
