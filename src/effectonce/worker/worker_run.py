"""`WorkerRun`: one `serve` of a worker, from its checks to its end.

The end has an order. Companions are told to stop, and end while the consumers drain. The batchers are closed after the
consumers, whose last settlements go through them. Companions that still run are awaited, and cancelled when the drain
is over.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from effectonce.core.cancellation import finish_despite_cancellation
from effectonce.core.group_commit.batcher import StoreBatcher
from effectonce.core.store_clients import ClaimAndSettlement

from .queue_consumer import QueueConsumer

log = logging.getLogger("effectonce")


class Companion(Protocol):
    """Something that runs beside the handlers until it is stopped, like a relay."""

    def serve(self) -> Coroutine[Any, Any, Any]: ...

    def stop(self) -> Any: ...


class WorkerRun:
    """What lives only while a worker serves: its consumers, its batchers, its companions, and how it is to end.

    It belongs to the running event loop. Only `stop` may be called from other threads. Whatever fails, `serve` closes
    what was opened: messages that stay with an open consumer would reach no other.
    """

    def __init__(self, name: str, companions: Sequence[Companion], drain_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        #: One for each queue, once the checks have passed.
        self.consumers: list[QueueConsumer] = []
        #: What sends claims and settlements to the store; None: the worker has no store.
        self.batchers: ClaimAndSettlement[StoreBatcher] | None = None
        self.failure: BaseException | None = None
        self._name = name
        self._companions = companions
        self._drain_s = drain_s
        self._stopping = asyncio.Event()
        self._drain_ended = asyncio.Event()  # set: handlers that still run are cancelled; set once, and never cleared

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Receive no more, and let what runs end within ``drain`` seconds. Called again: do not wait."""
        self.loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._drain_ended.set()
        else:
            self._stopping.set()
            self.loop.call_later(self._drain_s, self._drain_ended.set)

    def fail(self, error: BaseException) -> None:
        """Drain because of ``error``, which only a restart can fix."""
        if self.failure is None:
            self.failure = error
            log.error("worker %s stops: %s", self._name, error)
            if not self._stopping.is_set():
                self._stop()

    async def serve(
        self, check: Callable[[], Coroutine[Any, Any, None]], open_consumers: Callable[[], list[QueueConsumer]]
    ) -> None:
        """Wait for ``check`` to pass, then consume until `stop`; raise the `failure` where there is one."""
        await self._finish_unless_stopped(check())
        if self.stopping:
            return
        companion_tasks: list[asyncio.Task[None]] = []
        try:
            self.consumers = open_consumers()
            companion_tasks += [self._spawn(companion.serve()) for companion in self._companions]
            for consumer in self.consumers:
                consumer.start()
            log.info("worker %s consumes %s", self._name, ", ".join(consumer.queue for consumer in self.consumers))
            await self._stopping.wait()
        except BaseException:
            self._drain_ended.set()  # a cancelled `serve` does not wait for handlers
            raise
        finally:
            await finish_despite_cancellation(self._close(companion_tasks), self._drain_ended.set)
        if self.failure is not None:
            raise self.failure

    async def _finish_unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``, which may wait for a server that is away; `stop` ends it."""
        working = self.loop.create_task(work)
        stopped = self.loop.create_task(self._stopping.wait())
        try:
            await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            working.cancel()  # does nothing to one that has ended
            await finish_despite_cancellation(asyncio.wait([working, stopped]))
        if not working.cancelled():
            working.result()

    def _spawn(self, companion_work: Awaitable[Any]) -> asyncio.Task[None]:
        """Run what a companion does in a task, whose failure ends the worker."""

        async def run() -> None:
            try:
                await companion_work
            except Exception as error:
                self.fail(error)

        return self.loop.create_task(run())

    async def _close(self, companion_tasks: list[asyncio.Task[None]]) -> None:
        """End everything, in the order of the module."""
        for companion in self._companions:
            try:
                stopping = companion.stop()
            except Exception as error:  # the others are to stop all the same
                self.fail(error)
            else:
                if inspect.isawaitable(stopping):
                    companion_tasks.append(self._spawn(stopping))
        await asyncio.gather(*(consumer.close(self._drain_ended) for consumer in self.consumers))
        if self.batchers is not None:
            for batcher in self.batchers.distinct():
                await batcher.close()
        if companion_tasks:
            drain_ended: asyncio.Task[Any] = asyncio.create_task(self._drain_ended.wait())
            while companion_tasks and not drain_ended.done():
                _, running = await asyncio.wait([drain_ended, *companion_tasks], return_when=asyncio.FIRST_COMPLETED)
                companion_tasks = [task for task in companion_tasks if task in running]
            for task in (drain_ended, *companion_tasks):
                task.cancel()
            await asyncio.wait([drain_ended, *companion_tasks])
        log.info("worker %s has stopped", self._name)
