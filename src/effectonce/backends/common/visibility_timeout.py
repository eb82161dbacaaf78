"""Receiving from a broker where a delivery is a consumer's own for a while, by the clock.

Such a broker may take a late settlement for another's, or say that it worked (F54). So the consumer watches the window
itself, from before the call that brought the message, and sends nothing for a delivery whose window is over.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from effectonce.contracts import Delivery

#: How long to wait between polls that do not wait themselves, in seconds.
BETWEEN_POLLS: Final = 0.1


class Hold(Struct, eq=False):
    """What a delivery is settled by (the ``token``), and until when it is surely ours."""

    token: Any
    since: float
    until: float


class WindowedConsumer(ABC):
    """See `contracts.Consumer`. ``longest`` is the longest poll, in seconds."""

    def __init__(self, prefetch: int, window: float, longest: float) -> None:
        self._prefetch = prefetch
        self._window = window
        # A message is ours from some moment within the poll: the shorter the poll, the more is left of its window.
        self._longest = min(longest, window / 4)
        self._held: set[Hold] = set()
        self._arrived: deque[Delivery] = deque()
        self._poll: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    @abstractmethod
    async def _ask(self, limit: int, wait: float) -> Sequence[Delivery]:
        """Up to ``limit`` new deliveries, each with a `Hold`, after ``wait`` seconds at the latest."""

    @abstractmethod
    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]: ...

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait
        while True:
            if self._arrived and (found := await self._take(limit)):
                return found
            left = max(deadline - time.monotonic(), 0.0)
            poll, inherited = self._poll, self._poll is not None
            if poll is None:
                room = min(limit, self._room())
                if room <= 0:
                    if left == 0.0:
                        return []
                    await self._wait_for_room(left)
                    continue
                poll = self._poll = asyncio.create_task(self._fetch(room, left))
            # Where this is cancelled the poll goes on, and what it brings is there for the next receive.
            done, _ = await asyncio.wait((poll,), timeout=left if inherited else None)
            if not done:
                return []
            self._poll = None
            poll.result()
            if not self._arrived and not inherited:
                return []

    async def _fetch(self, limit: int, wait: float) -> None:
        deadline = time.monotonic() + wait
        while True:
            began = time.monotonic()
            left = max(deadline - began, 0.0)
            found = await self._ask(limit, min(left, self._longest))
            self._held |= {delivery.handle for delivery in found}
            self._arrived += found
            now = time.monotonic()
            if found or now >= deadline:
                return
            await asyncio.sleep(min(BETWEEN_POLLS - (now - began), deadline - now))

    async def _take(self, limit: int) -> list[Delivery]:
        taken = [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
        soon = time.monotonic() + self._window / 2
        if all(delivery.handle.until > soon for delivery in taken):
            return taken
        # They have waited since a receive was cancelled: none is handed out with little time left.
        answers = await self.extend(taken, self._window)
        return [delivery for delivery, mine in zip(taken, answers, strict=True) if mine]

    def _room(self) -> int:
        now = time.monotonic()
        self._held = {hold for hold in self._held if hold.until > now}
        return self._prefetch - len(self._held)

    async def _wait_for_room(self, seconds: float) -> None:
        """Until one is settled, or the window of one is over, or ``seconds`` have gone by."""
        self._settled.clear()
        until = min(hold.until for hold in self._held) - time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, until)):
                await self._settled.wait()

    def _owns(self, hold: Hold) -> bool:
        return hold in self._held and time.monotonic() < hold.until

    def _drop(self, hold: Hold) -> None:
        """It is settled, or lost."""
        self._held.discard(hold)
        self._settled.set()

    def _forget(self) -> None:
        """Nothing of what was delivered can be settled any more: it comes again when its window is over."""
        self._arrived.clear()
        self._held.clear()
        self._settled.set()

    async def _stop(self) -> list[Hold]:
        """Receive no more. What is still ours, and now to be given back."""
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
        mine = [hold for hold in self._held if self._owns(hold)]
        self._forget()
        return mine
