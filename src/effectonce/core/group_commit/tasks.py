"""Group commit for the tasks of one event loop. Only tasks of that loop may use a group: it has no lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from effectonce.contracts import Port
from effectonce.record import Answer, Batchable, Claim, Note, Reply

from .batches import Entry, is_grant, take_batch
from .send_batch import copy_error
from .task_queue import TaskQueue

#: This many waiting operations are worth a round trip of their own beside the one that is under way. Measured on Redis
#: with 60 to 100 tasks: 8 loses a fifth of the rate against 32, and more than 32 gains nothing.
MIN_CALLS_FOR_SECOND_TRIP = 32
#: The same while the neighbouring group has nothing under way: otherwise the store idles whenever the loop is busy.
MIN_CALLS_FOR_SECOND_TRIP_IF_NEIGHBOUR_IDLE = 16


class TaskEntry(Entry, eq=False, kw_only=True):
    """An operation of a task, and the future that gets its reply."""

    future: asyncio.Future[Any]


class AsyncGroup(TaskQueue[TaskEntry]):
    """Answers each caller with a future.

    When a caller is cancelled, its future is done. A claim that is still queued is dropped; one that was sent and is
    granted is given back by ``give_back_grant``. A settlement goes out all the same.

    The ``neighbour``, where there is one, is the group that sends the loop's other kinds of operations. While it has no
    round trip under way, fewer operations are enough for a second one here: otherwise the store idles whenever the loop
    is busy.
    """

    def __init__(
        self,
        ports: Sequence[Port],
        limit: int,
        give_back_grant: Callable[[Claim, Answer], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(ports, limit, loop)
        self._give_back_grant = give_back_grant
        self.neighbour: AsyncGroup | None = None

    def submit(self, op: Batchable) -> asyncio.Future[Any]:
        """Send ``op`` with the next batch. The future gets the reply, or the error that stands for it."""
        future = self._loop.create_future()
        self._queue.append(TaskEntry(op, future=future))
        self._start_if_due()
        return future

    def _deliver(self, pairs: Sequence[tuple[TaskEntry, Reply]]) -> None:
        for entry, reply in pairs:
            if entry.future.done():
                if is_grant(entry.op, reply):
                    self._give_back_grant(entry.op, reply)  # type: ignore[arg-type]
            elif isinstance(reply, Exception):
                entry.future.set_exception(copy_error(reply))
            else:
                entry.future.set_result(reply)

    def _min_for_second_trip(self) -> int:
        if self.neighbour is not None and self.neighbour._round_trips:
            return MIN_CALLS_FOR_SECOND_TRIP
        return MIN_CALLS_FOR_SECOND_TRIP_IF_NEIGHBOUR_IDLE

    def _take(self) -> list[TaskEntry]:
        """Take all that waits, or half of it if the other port can send the other half meanwhile."""
        size = len(self._queue)
        if len(self._ports) > 1:
            min_half = MIN_CALLS_FOR_SECOND_TRIP
            if isinstance(self._queue[0].op, Note) and not self._round_trips:
                # A caller that writes a note soon submits its next one. In a single batch, all callers would wait for
                # the store together, and then the store for all of them. In halves, one half runs while the other
                # waits.
                min_half = self._min_for_second_trip()
            if size >= 2 * min_half:
                size //= 2
        return take_batch(self._queue, min(size, self._limit), self.sizes, lambda entry: entry.future.done())

    async def close(self) -> None:
        """Close the ports when the round trips under way are over. What waits goes out later: the ports open again."""
        self._paused = True
        try:
            await self._wait_for_tasks()
            for port in self._ports:
                await port.close()
        finally:
            self._paused = False
            self._start_if_due()
