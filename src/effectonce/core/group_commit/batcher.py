"""Group commit for a worker: replies go to callbacks.

Nothing is ever cancelled here: who submits decides by the reply what to do with a claim that it no longer wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from effectonce.contracts import Port
from effectonce.errors import StoreUnavailable
from effectonce.record import Batchable, Reply

from .batches import Entry
from .task_queue import TaskQueue

MIN_JOBS_FOR_SECOND_TRIP: Final = 16
"""This many waiting operations are worth a round trip of their own beside the one that is under way. Measured with 100
and 300 jobs at a time: 4 to 64 are equal within the noise; without second trips PostgreSQL loses a fifth."""


Callback = Callable[[Any, Any, Reply], None]
"""Called with the subject that was submitted, the operation, and the reply to it."""


class CallbackEntry(Entry, eq=False, kw_only=True, gc=False):
    """An operation, what is called with its reply, and what that call is about.

    Unlike other entries it is not tracked by the cycle collector: it holds no future, so no error leads back to it.
    """

    callback: Callback
    subject: Any


class StoreBatcher(TaskQueue[CallbackEntry]):
    """Sends the operations of one worker to its store, on one event loop. A reply may be an exception; the callback
    decides what that means. Every operation gets one reply, at the latest from `close`."""

    def __init__(self, ports: Sequence[Port], limit: int, fail: Callable[[Exception], None]) -> None:
        """``fail`` is called with what a callback raised."""
        super().__init__(ports, limit, asyncio.get_running_loop())
        self.on_batch: list[Callable[[], None]] = []  # each is called after the callbacks of each batch
        self.closed = False
        self._closing = False
        self._fail = fail

    def submit(self, op: Batchable, callback: Callback, subject: Any) -> None:
        """Send ``op`` with the next batch, and call ``callback`` with ``subject``, ``op`` and the reply."""
        self._queue.append(CallbackEntry(op, callback=callback, subject=subject))
        self._start_if_due()

    def _min_for_second_trip(self) -> int:
        return MIN_JOBS_FOR_SECOND_TRIP

    def _deliver(self, pairs: Sequence[tuple[CallbackEntry, Reply]]) -> None:
        for entry, reply in pairs:
            try:
                entry.callback(entry.subject, entry.op, reply)
            except Exception as error:
                self._fail(error)
        for after_batch in self.on_batch:
            try:
                after_batch()
            except Exception as error:
                self._fail(error)
        last = pairs[-1][1]
        if self._closing and isinstance(last, StoreUnavailable) and self._queue:
            # It is down: each batch that it does not answer would hold up the end of the process for seconds.
            unsent = [(entry, last) for entry in self._queue]
            self._queue.clear()
            self._deliver(unsent)

    async def close(self) -> None:
        """Send what still waits, unless the store is down; then close the ports."""
        self._closing = True
        await self._wait_for_tasks()
        self.closed = True
        for port in self._ports:
            await port.close()
