"""Where handlers run: slots, which outlive messages, instead of a task for each.

A slot runs what is ready, one after another, for as long as the handlers do not suspend; the next slot is woken only
when one does. So a batch of handlers that never wait runs in one task, and those that do run beside each other, up to
the handler's ``concurrency``. Each message has a context of its own, as it would in a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from effectonce.core.guarded_call.run import Run, running
from effectonce.handlers import LAZY, refuse_lazy

from .jobs import Job
from .routes import Route

log = logging.getLogger("effectonce")

#: Seconds after which a slot lets the event loop serve others, though its handlers never wait.
TURN = 0.01
#: Seconds that a handler which was cancelled has to end. One that does not is left behind.
GRACE = 5.0


class Work(Protocol):
    """What a slot runs: a job, or several in one."""

    @property
    def run(self) -> Run | None:
        """What `current()` gives while it runs."""
        ...


W = TypeVar("W", bound=Work)


def is_failure(error: BaseException) -> bool:
    """Whether ``error`` is what a handler came to. A cancellation is where nobody has cancelled this task: the handler
    has awaited something that was, or it runs in a thread."""
    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return True
        return task is None or not task.cancelling()
    return isinstance(error, Exception)


class Slots(Generic[W]):
    """The slots of one handler, and what waits for them."""

    def __init__(
        self,
        route: Route,
        function: Callable[[W], Any],
        ended: Callable[[W], None],
        raised: Callable[[W, BaseException], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.route = route
        self._function = function
        self.waiting: deque[Job] = deque()  # in hand, not claimed
        self.ready: deque[W] = deque()  # claimed, not started
        self.taken = 0  # claimed or about to be, and not ended
        self.ends = 0  # how many have ended, ever
        self.turn = TURN
        self._ahead = 0
        self._ended = ended
        self._raised = raised
        self._loop = loop
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = None if route.is_async else Threads(route.concurrency, route.name)
        self._closed = False

    @property
    def room(self) -> int:
        """How many more may be claimed: as many as can start at once, and some ahead."""
        return self.route.concurrency + self._ahead - self.taken

    def answered(self, ended: int) -> None:
        """``ended``: how many have ended while a claim was under way.

        Four times as many are claimed ahead: what is under way in two blocks, and as much again, to be ready. So a slot
        that becomes free does not wait for the store; and where handlers take long, next to nothing is claimed that
        does not start at once.
        """
        self._ahead = min(max(4 * ended, self._ahead * 3 // 4), self.route.concurrency)

    def wake(self) -> None:
        """Let one more slot look at what is ready."""
        if self._idle:
            self._idle.pop().set_result(None)
        elif len(self._tasks) < self.route.concurrency and not self._closed:
            task = self._loop.create_task(self._slot(), name=f"effectonce {self.route.name}")
            self._tasks.add(task)
            task.add_done_callback(self._slot_ended)

    def _slot_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self.ready:  # it was cancelled, by its handler or with its loop: others go on
            self.wake()

    async def _slot(self) -> None:
        ready, function = self.ready, self._function
        task = asyncio.current_task()
        assert task is not None
        while not self._closed:
            turn = perf_counter() + self.turn
            while ready:
                work = ready.popleft()
                running.set(work.run)
                context = copy_context()
                error: BaseException | None = None
                try:
                    if self._threads is not None:
                        error = await self._in_thread(work, context)
                    else:
                        coroutine = context.run(function, work)
                        pending = context.run(coroutine.send, None)
                        if ready:
                            self.wake()
                        await _resumed(coroutine, context, pending)
                except StopIteration:  # of the coroutine, which ended without ever waiting
                    pass
                except BaseException as raised:
                    error = raised
                self.taken -= 1
                self.ends += 1
                if error is None:
                    self._ended(work)
                else:
                    self._raised(work, error)
                if self._closed or task.cancelling():
                    return
                if perf_counter() > turn:
                    await asyncio.sleep(0)
                    turn = perf_counter() + self.turn
            future = self._loop.create_future()
            self._idle.append(future)
            await future

    async def _in_thread(self, work: W, context: Context) -> BaseException | None:
        assert self._threads is not None
        done = self._threads.submit(self._loop, context, self._function, work)
        if self.ready:
            self.wake()
        error, value = await done
        if type(value) in LAZY or hasattr(value, "__await__"):
            refuse_lazy(self.route.function, value)
        return error  # not raised: inside a coroutine a StopIteration would become something else

    async def close(self) -> None:
        """Cancel what still runs, and wait a while until it has ended.

        A thread cannot be cancelled, and a task may not heed it. It keeps its lease, and its success is recorded if the
        process lives that long; until then its next delivery finds it in progress.
        """
        self._closed = True
        for idle in self._idle:
            idle.set_result(None)
        if self._threads is not None:
            self._threads.close()
        elif self._tasks:
            for task in tuple(self._tasks):
                task.cancel()
            _, deaf = await asyncio.wait(tuple(self._tasks), timeout=GRACE)
            if deaf:
                log.warning("%d runs of %s do not end, though they were cancelled", len(deaf), self.route.name)


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, Any], context: Context, pending: Any) -> Generator[Any, Any, Any]:
    """The rest of a coroutine that has been started in ``context`` and waits for ``pending``."""
    try:
        while True:
            try:
                sent = yield pending
            except BaseException as error:
                pending = context.run(coroutine.throw, error)
            else:
                pending = context.run(coroutine.send, sent)
    except StopIteration as stop:
        return stop.value


class Threads:
    """Daemon threads for sync handlers: one that never returns must not keep the process from ending."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._work: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def submit(
        self, loop: asyncio.AbstractEventLoop, context: Context, function: Callable[[Any], Any], work: Any
    ) -> asyncio.Future[tuple[BaseException | None, Any]]:
        """What ``function`` raised, and what it returned. (A future cannot hold a StopIteration.)"""
        future: asyncio.Future[tuple[BaseException | None, Any]] = loop.create_future()
        self._busy += 1
        if self._busy > len(self._threads) < self._limit:
            thread = threading.Thread(target=self._run, name=f"effectonce {self._name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._work.put((loop, future, context, function, work))
        return future

    def _run(self) -> None:
        while (given := self._work.get()) is not None:
            loop, future, context, function, work = given
            outcome: tuple[BaseException | None, Any]
            try:
                outcome = (None, context.run(function, work))
            except BaseException as error:
                outcome = (error, None)
            try:
                loop.call_soon_threadsafe(self._deliver, future, outcome)
            except RuntimeError:  # the loop has ended: the delivery was given back
                return
            del given, future, context, work, outcome  # nothing of it is kept until the next comes

    def _deliver(self, future: asyncio.Future[Any], outcome: tuple[BaseException | None, Any]) -> None:
        self._busy -= 1
        if not future.done():
            future.set_result(outcome)

    def close(self) -> None:
        for _ in self._threads:
            self._work.put(None)
