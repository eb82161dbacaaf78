"""Group commit for the tasks of one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any

from effectonce.contracts import Port
from effectonce.errors import StoreUnavailable
from effectonce.record import Answer, Batchable, Claim, Note, Reply

from .batches import BatchSizes, Entry, is_grant, pair_replies, split_for_resend, take_batch
from .send_batch import copy_error, send_batch

#: This many waiting operations are worth a round trip of their own beside the one that is under way. Measured on Redis
#: with 60 to 100 tasks: 8 loses a fifth of the rate against 32, and more than 32 gains nothing.
MIN_CALLS_FOR_SECOND_TRIP = 32
#: The same while the neighbouring group has nothing under way: otherwise the store idles whenever the loop is busy.
MIN_CALLS_FOR_SECOND_TRIP_IF_NEIGHBOUR_IDLE = 16


class TaskEntry(Entry, eq=False, kw_only=True):
    """An operation of a task, and the future that gets its reply."""

    future: asyncio.Future[Any]

    def is_abandoned(self) -> bool:
        return self.future.done()


class AsyncGroup:
    """One queue, and for each port a task that empties it.

    - The tasks belong to the group, never to a caller, so that cancelling a caller does not harm the others. They run
      in an empty context. A port is in ``_idle``, or belongs to one task of ``_tasks``.
    - A task ends when the queue is empty. `submit` starts one if none runs. A second task starts only while many
      operations wait: half of them are then at the store while the loop serves the callers of the other half. Fewer are
      enough while the ``neighbour`` has no round trip under way.
    - When a caller is cancelled, its future is done. A claim that is still queued is dropped; one that was sent and is
      granted is given back by ``orphaned``. A settlement goes out all the same.
    - When a task is cancelled (the loop ends), the operations that it has sent return to the front of the queue, and
      another task starts if callers still wait. Any other exception of a task is the reply to what it has sent.
    """

    def __init__(
        self,
        ports: Sequence[Port],
        limit: int,
        orphaned: Callable[[Claim, Answer], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._limit = limit
        self._orphaned = orphaned
        self._loop = loop
        self._ports = ports
        self._queue: deque[TaskEntry] = deque()
        self._idle = list(reversed(ports))
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself does not keep them alive
        self._closing = False
        self._round_trips = 0  # under way
        #: The group that sends the loop's other kinds of operations, if there is one.
        self.neighbour: AsyncGroup | None = None
        self.sizes = BatchSizes()

    def submit(self, op: Batchable) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._queue.append(TaskEntry(op, future=future))
        self._start_if_due()
        return future

    def _give_back(self, op: Batchable, reply: Reply | None) -> None:
        if is_grant(op, reply):
            self._orphaned(op, reply)  # type: ignore[arg-type]

    async def close(self) -> None:
        self._closing = True
        try:
            while self._tasks:
                await asyncio.wait(set(self._tasks))
            for port in self._ports:
                await port.close()
        finally:
            self._closing = False
            self._start_if_due()

    # -- the tasks

    def _start_if_due(self) -> None:
        """Start a task where operations wait and none runs, or a second one where enough wait for a round trip beside
        the one that is under way.

        It is asked whenever that may have changed: after a `submit`, when a round trip begins, and when a task ends.
        """
        if not self._queue or not self._idle or self._closing or self._loop.is_closed():
            return
        no_task_runs = len(self._idle) == len(self._ports)
        if no_task_runs or (self._round_trips and len(self._queue) >= self._min_calls_for_second_trip()):
            self._start()

    def _min_calls_for_second_trip(self) -> int:
        if self.neighbour is not None and self.neighbour._round_trips:
            return MIN_CALLS_FOR_SECOND_TRIP
        return MIN_CALLS_FOR_SECOND_TRIP_IF_NEIGHBOUR_IDLE

    def _start(self) -> None:
        port = self._idle.pop()
        task = self._loop.create_task(self._empty_queue(port), context=Context())
        self._tasks.add(task)
        # Not in the task itself: one that is cancelled before its first step never runs a line.
        task.add_done_callback(partial(self._finish, port))

    def _finish(self, port: Port, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._idle.append(port)
        if not task.cancelled():
            task.exception()  # marks it as retrieved; the callers have got it as their reply
        self._start_if_due()  # callers that the task answered may have submitted again by now

    async def _empty_queue(self, port: Port) -> None:
        entries: list[TaskEntry] = []
        try:
            while not self._closing and self._queue:
                entries = self._take()
                if not entries:
                    continue
                replies = await self._send_batch(port, [entry.op for entry in entries])
                for entry, reply in pair_replies(entries, replies, self._queue):
                    self._deliver(entry, reply)
                entries = []
        except BaseException as error:
            unanswered = split_for_resend(entries)
            if isinstance(error, asyncio.CancelledError):
                self._queue.extendleft(reversed(unanswered))
            else:
                failure = error if isinstance(error, Exception) else StoreUnavailable(f"the loop was ended: {error!r}")
                for entry in unanswered:
                    self._deliver(entry, failure)
            raise

    async def _send_batch(self, port: Port, batch: Sequence[Batchable]) -> Sequence[Reply]:
        self._round_trips += 1
        self._start_if_due()  # for what this batch leaves in the queue
        try:
            return await send_batch(port, batch, asyncio.sleep)
        finally:
            self._round_trips -= 1

    def _take(self) -> list[TaskEntry]:
        return take_batch(self._queue, min(self._batch_size(), self._limit), self.sizes)

    def _batch_size(self) -> int:
        """All that waits, or half of it if the other port can send the other half meanwhile."""
        waiting = len(self._queue)
        if len(self._ports) == 1:
            return waiting
        min_half = MIN_CALLS_FOR_SECOND_TRIP
        if isinstance(self._queue[0].op, Note) and not self._round_trips:
            # A caller that writes a note soon submits its next one. In a single batch, all callers would wait for the
            # store together, and then the store for all of them. In halves, one half runs while the other waits.
            min_half = self._min_calls_for_second_trip()
        return waiting if waiting < 2 * min_half else waiting // 2

    def _deliver(self, entry: TaskEntry, reply: Reply) -> None:
        if entry.future.done():
            self._give_back(entry.op, reply)
        elif isinstance(reply, Exception):
            entry.future.set_exception(copy_error(reply))
        else:
            entry.future.set_result(reply)
