"""The queue of operations on one event loop, and the tasks that send it to the store in batches."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextvars import Context
from functools import partial
from typing import Generic, TypeVar

from effectonce.contracts import Port
from effectonce.record import Reply

from .batches import BatchSizes, Entry, pair_replies, split_for_resend, take_batch
from .send_batch import send_batch

E = TypeVar("E", bound=Entry)


class TaskQueue(ABC, Generic[E]):
    """One queue, and for each port a task that empties it. A subclass says what happens to the replies.

    - The tasks belong to the queue, never to a caller, so that cancelling a caller does not harm the others. They run
      in an empty context. A port is in ``_idle``, or belongs to one task of ``_tasks``.
    - A task ends when the queue is empty. The next operation starts one again, on the port that was idle last. A second
      task starts only while many operations wait: half of them are then at the store while the loop serves the callers
      of the other half.
    - When a task is cancelled (the loop ends, which cancels all of them), the operations that it has sent return to the
      front of the queue, and another task starts: each operation recognises its repetition.
    """

    def __init__(self, ports: Sequence[Port], limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.sizes = BatchSizes()
        self._limit = limit
        self._loop = loop
        self._ports = ports
        self._queue: deque[E] = deque()
        self._idle = list(reversed(ports))
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself does not keep them alive
        self._paused = False  # no batch is to begin
        self._round_trips = 0  # under way

    @abstractmethod
    def _min_for_second_trip(self) -> int:
        """How many waiting operations are worth a round trip of their own beside the one that is under way."""

    def _take(self) -> list[E]:
        """Take the next batch out of the queue."""
        return take_batch(self._queue, self._limit, self.sizes)

    @abstractmethod
    def _deliver(self, pairs: Sequence[tuple[E, Reply]]) -> None:
        """Hand the replies of one batch over. Raises nothing."""

    def _start_if_due(self) -> None:
        """Start a task where operations wait and none runs, or a second one where enough wait for a round trip beside
        the one that is under way.

        It is asked whenever that may have changed: when an operation is added, when a round trip begins, and when a
        task ends.
        """
        if not self._idle or not self._queue or self._paused:
            return
        if self._tasks and not (self._round_trips and len(self._queue) >= self._min_for_second_trip()):
            return
        if not self._loop.is_closed():
            port = self._idle.pop()
            task = self._loop.create_task(self._empty_queue(port), context=Context())
            self._tasks.add(task)
            # Not in the task itself: one that is cancelled before its first step never runs a line.
            task.add_done_callback(partial(self._finish, port))

    def _finish(self, port: Port, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._idle.append(port)
        self._start_if_due()

    async def _empty_queue(self, port: Port) -> None:
        while not self._paused and self._queue:
            entries = self._take()
            if not entries:
                continue
            self._round_trips += 1
            self._start_if_due()  # for what this batch leaves in the queue
            try:
                replies = await send_batch(port, [entry.op for entry in entries])
            except BaseException:
                self._queue.extendleft(reversed(split_for_resend(entries)))
                raise
            finally:
                self._round_trips -= 1
            self._deliver(pair_replies(entries, replies, self._queue))
            await asyncio.sleep(0)  # the callers that were answered run first, and most come back at once

    async def _wait_for_tasks(self) -> None:
        while self._tasks:
            await asyncio.wait(set(self._tasks))
