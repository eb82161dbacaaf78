"""A relay while it runs: its lanes, what wakes them, and the upkeep beside them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from effectonce.contracts import Contention, OutboxPort
from effectonce.core.hints import subscribe
from effectonce.errors import StoreUnavailable
from effectonce.values.backoff import Backoff

from .pump import Lane, Settings, Signals

log = logging.getLogger("effectonce")

CLEANED: Final = 1_000  # rows deleted in one go
_SOONEST: Final = 0.005  # seconds between two looks while there was work a moment ago ...
_SLOWER: Final = 1.5  # ... which grow by this, up to ``poll``
_CLEAN_EVERY: Final = 10.0
_GRACE: Final = 5.0  # seconds that a cancelled relay takes to settle what is on its way


class Session:
    """One `serve`, or one `drain`, of a relay. Belongs to the running event loop."""

    def __init__(self, settings: Settings) -> None:
        self.loop = asyncio.get_running_loop()
        self.signals = Signals()
        self._settings = settings
        self._sleeping = False
        self._tasks: list[asyncio.Task[None]] = []

    def lane(self, stack: AsyncExitStack) -> Lane:
        publisher = self._settings.broker.publisher()
        stack.push_async_callback(publisher.close)
        return Lane(self._settings, self.signals, self._port(stack), publisher)

    def _port(self, stack: AsyncExitStack) -> OutboxPort:
        port = self._settings.outboxes.async_outbox(self._settings.table)
        stack.push_async_callback(port.close)
        return port

    async def drain(self) -> None:
        async with AsyncExitStack() as stack:
            await self._until_ended([self._spawn(self._empty(self.lane(stack)))])

    async def _empty(self, lane: Lane) -> None:
        while not self.signals.stopping and await lane.round():
            if self.signals.outage is not None:
                raise self.signals.outage

    async def serve(self) -> None:
        capabilities = self._settings.runtime.backend.capabilities
        async with AsyncExitStack() as stack:
            first = self.lane(stack)
            stack.enter_context(subscribe(first.port.table, self._hint))
            lanes = [self._spawn(self._carry(first))]
            if capabilities.lanes != 1:
                # While one lane waits for the database, the other sends.
                lanes.append(self._spawn(self._help(self.lane(stack))))
            self._spawn(self._clean(self._port(stack)))
            if capabilities.notifies:
                self._spawn(self._listen(self._port(stack)))
            await self._until_ended(lanes)

    async def _until_ended(self, lanes: Sequence[asyncio.Task[None]]) -> None:
        """All of ``lanes``. Cancelled, they settle what is on its way before they end."""
        try:
            await self._wait_for(lanes)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait(lanes, timeout=_GRACE)
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    async def _wait_for(self, lanes: Sequence[asyncio.Task[None]]) -> None:
        """Until all lanes have ended; where one fails, the others are told to, and its error is raised."""
        _, rest = await asyncio.wait(lanes, return_when=asyncio.FIRST_EXCEPTION)
        if rest:
            self.stop()
            await asyncio.wait(rest)
        for lane in lanes:
            if not lane.cancelled():
                lane.result()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self._tasks.append(task)
        return task

    def stop(self) -> None:
        """Lease no more; called again, do not wait for what is on its way."""
        if self.signals.stopping:
            for task in self._tasks:
                task.cancel()
        self.signals.stopping = True
        self.signals.woken.set()
        self.signals.crowded.set()

    # -- lanes

    async def _carry(self, lane: Lane) -> None:
        """Until the relay stops: round after round, and ever longer pauses while there is nothing to do."""
        settings, signals = self._settings, self.signals
        store_away = Backoff(f"outbox {lane.port.table}")
        broker_away = Backoff(f"relay to {settings.broker!r}")
        pause = _SOONEST
        while not signals.stopping:
            try:
                worked = await lane.round()
                store_away.worked()
            except (StoreUnavailable, Contention) as error:
                await self._pause(store_away.failed(error), error)
                continue
            if signals.outage is not None:
                await self._pause(broker_away.failed(signals.outage), signals.outage)
            elif worked:
                broker_away.worked()
                pause = _SOONEST
            elif await self._sleep(pause):
                pause = _SOONEST
            else:
                pause = min(pause * _SLOWER, settings.poll)

    async def _help(self, lane: Lane) -> None:
        """Carry, too, while there is more than one lane can carry."""
        signals = self.signals
        idle = 0
        while not signals.stopping:
            await signals.crowded.wait()
            try:
                helped = not signals.outage and not signals.stopping and await lane.round(pages=1)
            except (StoreUnavailable, Contention):  # the first lane sees to it
                helped = False
            idle = 0 if helped else min(idle + 1, 6)
            if idle:  # it may all be of one line, which the other lane has
                signals.crowded.clear()
                await asyncio.sleep(0.01 * 2**idle)

    async def _pause(self, seconds: float, why: Exception) -> None:
        self._settings.runtime.emit("relay_paused", seconds=seconds, detail=str(why))
        deadline = self.loop.time() + seconds
        while not self.signals.stopping and (left := deadline - self.loop.time()) > 0:
            await self._sleep(left)

    # -- waking up

    def _hint(self) -> None:
        """A sender in this process has written something, and will soon commit it. From any thread."""
        if self._sleeping:
            self._sleeping = False
            self.loop.call_soon_threadsafe(self.signals.woken.set)

    async def _sleep(self, seconds: float) -> bool:
        """Until somebody has something to say, or ``seconds`` have passed; whether somebody had."""
        self._sleeping = True
        try:
            async with asyncio.timeout(seconds):
                await self.signals.woken.wait()
            return True
        except TimeoutError:
            return False
        finally:
            self._sleeping = False
            self.signals.woken.clear()

    async def _listen(self, port: OutboxPort) -> None:
        while True:
            try:
                if await port.wait(30.0):
                    self.signals.woken.set()
            except Exception as error:  # a hint: looking goes on without it
                log.debug("no wake-ups for outbox %s: %s", port.table, error)
                await asyncio.sleep(1.0)

    # -- upkeep

    async def _clean(self, port: OutboxPort) -> None:
        runtime, totals = self._settings.runtime, self._settings.totals
        while True:
            pause = _CLEAN_EVERY
            try:
                cleaned = await port.clean(CLEANED)
                totals.cleaned += cleaned.published + cleaned.inbox
                if cleaned.more:
                    pause = 0.0
                elif runtime.hooks:
                    runtime.emit("swept", detail=f"outbox {port.table}: {totals.cleaned} deleted so far")
            except Exception as error:  # F37: never in silence, and never the end of it
                log.warning("effectonce could not clean up outbox %s: %s", port.table, error)
                runtime.emit("sweep_failed", detail=f"outbox {port.table}: {error}")
            await asyncio.sleep(pause)
