"""Group commit for a worker: the tasks live as long as the worker does, and replies go to callbacks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final

from effectonce.contracts import Port
from effectonce.errors import StoreUnavailable
from effectonce.record import Batchable, Reply

from .batches import BatchSizes, Entry, pair_replies, split_for_resend, take_batch
from .send_batch import send_batch

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


class StoreBatcher:
    """Sends the operations of one worker to its store. What waits when a round trip returns goes out in the next one.

    There is one task for each port. A lone operation always goes to the task that was idle last; the other ones join in
    only while many operations wait. A reply may be an exception; the callback decides what that means.

    A task that is cancelled (the loop ends, which cancels all of them) is replaced, until `close`: the worker, which
    ends at the same time, has still to settle what it holds.
    """

    def __init__(self, ports: Sequence[Port], limit: int, fail: Callable[[Exception], None]) -> None:
        """``fail`` is called with what a callback raised."""
        self.sizes = BatchSizes()
        self.closed = False
        self._closing = False
        self.on_batch: list[Callable[[], None]] = []  # each is called after the callbacks of each batch
        self._ports = ports
        self._limit = limit
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._queue: deque[CallbackEntry] = deque()
        self._idle: list[asyncio.Future[None]] = []  # one for each task that waits for work
        self._drained = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        for port in ports:
            self._start(port)

    def submit(self, op: Batchable, callback: Callback, subject: Any) -> None:
        """Send ``op`` with the next batch, and call ``callback`` with ``subject``, ``op`` and the reply."""
        self._queue.append(CallbackEntry(op, callback=callback, subject=subject))
        if self._idle and (len(self._idle) == len(self._ports) or len(self._queue) >= MIN_JOBS_FOR_SECOND_TRIP):
            self._wake()

    def _wake(self) -> None:
        """Let the task that was idle last look at the queue."""
        wakened = self._idle.pop()
        if not wakened.done():  # else it was cancelled: the task that replaces it looks at the queue
            wakened.set_result(None)

    def _start(self, port: Port) -> None:
        task = self._loop.create_task(self._send_batches(port), context=Context())
        self._tasks.add(task)
        task.add_done_callback(partial(self._replace, port))

    def _replace(self, port: Port, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self.closed and not self._loop.is_closed():
            self._start(port)

    async def _send_batches(self, port: Port) -> None:
        while True:
            while not self._queue:
                await self._wait_for_work()
            self._drained.clear()
            entries = take_batch(self._queue, self._limit, self.sizes)
            if self._idle and len(self._queue) >= MIN_JOBS_FOR_SECOND_TRIP:
                self._wake()
            try:
                replies = await send_batch(port, [entry.op for entry in entries], asyncio.sleep)
            except BaseException:
                self._queue.extendleft(reversed(split_for_resend(entries)))  # sent or not: an operation may be repeated
                raise
            pairs = pair_replies(entries, replies, self._queue)
            if self._closing and isinstance(replies[-1], StoreUnavailable):
                # It is down: each batch that it does not answer would hold up the end of the process for seconds.
                pairs += [(entry, replies[-1]) for entry in self._queue]
                self._queue.clear()
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

    async def _wait_for_work(self) -> None:
        wakened = self._loop.create_future()
        self._idle.append(wakened)
        if len(self._idle) == len(self._ports):
            self._drained.set()
        try:
            await wakened
        finally:
            if wakened in self._idle:
                self._idle.remove(wakened)

    async def close(self) -> None:
        """Send what still waits, unless the store is down; then end the tasks and close the ports."""
        self._closing = True
        while self._queue or len(self._idle) < len(self._ports):
            self._drained.clear()
            await self._drained.wait()
        self.closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for port in self._ports:
            await port.close()
