"""`RelayRun`: one run of a relay. Its pumps, what wakes them, and the clean-up beside them.

All tasks are on one event loop and share the `RelayState`. Each pump, the clean-up and the listener have connections
of their own. At the end the pumps settle what they have sent; then every task is cancelled, and then the connections
are closed, so that none is closed under a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from effectonce.contracts import Contention, OutboxPort
from effectonce.core.backoff import Backoff
from effectonce.core.cancellation import finish_despite_cancellation
from effectonce.core.failure_log import log_failed_attempt
from effectonce.errors import StoreUnavailable
from effectonce.outbox.notifications import subscribe

from .pump import RelayPump
from .settings import RelaySettings, RelayState, require_outboxes

log = logging.getLogger("effectonce")

MAX_ROWS_PER_STATEMENT: Final = 1_000  # of a clean-up or an unpark
_MIN_POLL_S: Final = 0.005  # the pause after a round with rows
_POLL_GROWTH: Final = 1.5  # an empty round lengthens the pause by this factor, up to ``poll``
_CLEANUP_INTERVAL_S: Final = 10.0
_CANCEL_GRACE_S: Final = 5.0  # a cancelled relay may take this long to settle what it has sent
_NOTIFY_WAIT_S: Final = 30.0
_NOTIFY_RETRY_S: Final = 1.0
_HELPER_PAUSE_S: Final = 0.01  # the pause of the second pump, doubled by each round without rows
_HELPER_MAX_DOUBLINGS: Final = 6


class RelayRun:
    """One `serve` or one `drain` of a relay. Belongs to the running event loop."""

    def __init__(self, settings: RelaySettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.state = RelayState()
        self._settings = settings
        self._tasks: list[asyncio.Task[None]] = []

    def _open_pump(self, stack: AsyncExitStack) -> RelayPump:
        publisher = self._settings.broker_backend.publisher()
        stack.push_async_callback(publisher.close)
        return RelayPump(self._settings, self.state, self._open_port(stack), publisher)

    def _open_port(self, stack: AsyncExitStack) -> OutboxPort:
        port = require_outboxes(self._settings.store).async_outbox(self._settings.table)
        stack.push_async_callback(port.close)
        return port

    async def drain(self) -> None:
        """Run one pump until no row is due. Raises `BrokerUnavailable` in an outage."""
        stack = AsyncExitStack()
        try:
            await self._supervise([self._spawn(self._pump_until_empty(self._open_pump(stack)))])
        finally:
            await finish_despite_cancellation(self._close(stack))

    async def _pump_until_empty(self, pump: RelayPump) -> None:
        while not self.state.stopping and await pump.run_round():
            if self.state.outage is not None:
                raise self.state.outage

    async def serve(self) -> None:
        """Run everything until `stop` is called, or a pump fails."""
        capabilities = self._settings.runtime.backend.capabilities
        stack = AsyncExitStack()
        try:
            first = self._open_pump(stack)
            stack.enter_context(subscribe(first.port.table, self._wake))
            pumps = [self._spawn(self._pump_until_stopped(first))]
            if capabilities.connections != "one":
                # While one pump waits for the database, the other publishes.
                pumps.append(self._spawn(self._help_when_crowded(self._open_pump(stack))))
            self._spawn(self._clean_up(self._open_port(stack)))
            if capabilities.notifies:
                self._spawn(self._listen(self._open_port(stack)))
            await self._supervise(pumps)
        finally:
            await finish_despite_cancellation(self._close(stack))

    async def _supervise(self, pumps: Sequence[asyncio.Task[None]]) -> None:
        """Wait until all pumps have ended. When one fails, stop the others and raise its error. On cancellation they
        first settle what they have sent; a second one does not wait."""
        try:
            _, running = await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
            if running:
                self.stop()
                await asyncio.wait(running)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait(pumps, timeout=_CANCEL_GRACE_S)
            raise
        for pump in pumps:
            if not pump.cancelled():
                pump.result()

    async def _close(self, stack: AsyncExitStack) -> None:
        """End every task, and then close the connections that they use."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await stack.aclose()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(coroutine)
        self._tasks.append(task)
        return task

    def stop(self) -> None:
        """Lease no more rows and end after the current round. A second call cancels the current round, too."""
        if self.state.stopping:
            for task in self._tasks:
                task.cancel()
        self.state.stopping = True
        self.state.rows_expected.set()
        self.state.crowded.set()

    # -- pumps

    async def _pump_until_stopped(self, pump: RelayPump) -> None:
        """Run round after round until the relay stops, with growing pauses while there are no rows."""
        settings, state = self._settings, self.state
        store_backoff = Backoff(f"outbox {pump.port.table}")
        broker_backoff = Backoff(f"relay to {settings.broker_backend!r}")
        pause = _MIN_POLL_S
        while not state.stopping:
            try:
                had_rows = await pump.run_round()
                if store_backoff.failures:
                    pause = _MIN_POLL_S  # rows may have come while it was away, and their notifications are lost
                store_backoff.record_success()
            except (StoreUnavailable, Contention) as error:
                await self._pause(store_backoff.record_failure(error), error)
                continue
            if state.outage is not None:
                await self._pause(broker_backoff.record_failure(state.outage), state.outage)
            elif had_rows:
                broker_backoff.record_success()
                pause = _MIN_POLL_S
            elif await self._sleep(pause):
                pause = _MIN_POLL_S
            else:
                pause = min(pause * _POLL_GROWTH, settings.poll_s)

    async def _help_when_crowded(self, pump: RelayPump) -> None:
        """Run rounds of the second pump while ``crowded`` is set: there are more rows than the first can publish."""
        state = self.state
        idle_rounds = 0
        while not state.stopping:
            await state.crowded.wait()
            try:
                helped = not state.outage and not state.stopping and await pump.run_round(pages=1)
            except (StoreUnavailable, Contention):  # the first pump reports it and waits
                helped = False
            idle_rounds = 0 if helped else min(idle_rounds + 1, _HELPER_MAX_DOUBLINGS)
            if idle_rounds:  # no rows for it: they may all belong to one line, which the first pump has leased
                state.crowded.clear()
                await asyncio.sleep(_HELPER_PAUSE_S * 2**idle_rounds)

    async def _pause(self, seconds: float, reason: Exception) -> None:
        self._settings.runtime.emit("relay_paused", seconds=seconds, detail=str(reason))
        deadline = self.loop.time() + seconds
        while not self.state.stopping and (seconds_left := deadline - self.loop.time()) > 0:
            await self._sleep(seconds_left)

    # -- waking up

    def _wake(self) -> None:
        """A sender in this process has written a row, and will soon commit: end the pump's sleep. Called from any
        thread."""
        self.loop.call_soon_threadsafe(self.state.rows_expected.set)

    async def _sleep(self, seconds: float) -> bool:
        """Sleep for ``seconds``, or until rows are expected. Returns whether they are."""
        try:
            async with asyncio.timeout(seconds):
                await self.state.rows_expected.wait()
            return True
        except TimeoutError:
            return False
        finally:
            self.state.rows_expected.clear()

    async def _listen(self, port: OutboxPort) -> None:
        """Wake the pump at the senders' notifications. These are hints: where they fail, polling finds the rows."""
        while True:
            try:
                if await port.wait(_NOTIFY_WAIT_S):
                    self.state.rows_expected.set()
            except Exception as error:
                log.debug("no notifications for outbox %s, polling instead: %s", port.table, error)
                await asyncio.sleep(_NOTIFY_RETRY_S)
                self.state.rows_expected.set()  # of rows that came meanwhile it has not heard

    # -- cleaning up

    async def _clean_up(self, port: OutboxPort) -> None:
        """Delete what was kept long enough, a bounded number of rows at a time."""
        runtime, totals = self._settings.runtime, self._settings.totals
        while True:
            pause = _CLEANUP_INTERVAL_S
            try:
                cleaned = await port.clean(MAX_ROWS_PER_STATEMENT)
                totals.cleaned += cleaned.published + cleaned.inbox
                if cleaned.more:
                    pause = 0.0
                elif runtime.hooks:
                    runtime.emit("swept", detail=f"outbox {port.table}: {totals.cleaned} deleted so far")
            except Exception as error:  # F37: a sweeper that fails in silence; this one reports it and continues
                log_failed_attempt({"cleanup": f"of outbox {port.table}"}, error, "is tried again", last=False)
                runtime.emit("sweep_failed", detail=f"outbox {port.table}: {error}")
            await asyncio.sleep(pause)
