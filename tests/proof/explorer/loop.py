"""An event loop without a clock and without a selector: it runs ready callbacks only when the explorer cranks it.

A process of the model is one of these with real `asyncio` tasks on it, so that the guard, its group commit and its
waiting run as they do in production: cancelled by `Task.cancel`, woken by futures, one callback after another.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any

# asyncio takes any object with the methods that it calls on a loop; its types do not say so.
_Future: Any = asyncio.Future
_Task: Any = asyncio.Task
_set_running_loop: Any = asyncio._set_running_loop


class Timer:
    """A callback that is due at some time, unless it is cancelled. Times are rounded up to whole microseconds."""

    __slots__ = ("_loop", "call", "due")

    def __init__(self, loop: SimulatedLoop, due: float, call: Callable[[], Any]) -> None:
        self._loop = loop
        self.due = math.ceil(due * 1e6 - 1e-3) / 1e6
        self.call = call

    def cancel(self) -> None:
        if self in self._loop.timers:
            self._loop.timers.remove(self)


class SimulatedLoop:
    """One process's loop. It runs only in `crank` and `fire`; that of a killed process never runs again."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.time = monotonic
        self.closed = False
        self.timers: list[Timer] = []
        self.unhandled_errors: list[str] = []  # as asyncio would have logged them
        self._tasks: deque[tuple[asyncio.Task[Any], Context]] = deque()
        self.run_in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]] | None = None  # for `to_thread`
        self._ready: deque[tuple[Callable[..., Any], tuple[Any, ...], Context | None]] = deque()

    def crank(self, limit: int = 1_000_000) -> None:
        """Run what is ready, and what that makes ready, until nothing is; at most ``limit`` callbacks."""
        outer = asyncio._get_running_loop()
        _set_running_loop(self)
        ready = self._ready
        try:
            while ready and limit:
                limit -= 1
                callback, args, context = ready.popleft()
                if context is None:
                    callback(*args)
                else:
                    context.run(callback, *args)
        finally:
            _set_running_loop(outer)

    def next_due(self) -> float | None:
        """Return when the next timer is due, or None."""
        return min((timer.due for timer in self.timers), default=None)

    def fire(self) -> None:
        """Run the timers that are due now."""
        now = self.time() + 1e-9
        for timer in [timer for timer in self.timers if timer.due <= now]:
            self.timers.remove(timer)
            self._ready.append((timer.call, (), None))
        self.crank()

    def close(self) -> None:
        """Unwind the tasks that wait, after the verdict: until then a killed process is only marked ``closed``."""
        self.closed = True
        outer = asyncio._get_running_loop()
        _set_running_loop(self)
        try:
            while self._tasks:  # a task that is unwound may start others
                task, context = self._tasks.popleft()
                if not task.done():
                    _unwind(task.get_coro(), context)
        finally:
            _set_running_loop(outer)
        self._ready.clear()
        self.timers.clear()

    # -- the methods that asyncio calls

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> None:
        self._ready.append((callback, args, context))

    call_soon_threadsafe = call_soon

    def call_at(self, due: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Timer:
        own = copy_context() if context is None else context
        timer = Timer(self, due, lambda: own.run(callback, *args))
        self.timers.append(timer)
        return timer

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Timer:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = _Future(loop=self)
        return future

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        own = copy_context() if context is None else context
        task: asyncio.Task[Any] = _Task(coro, loop=self, name=name, context=own)
        self._tasks.append((task, own))
        return task

    def run_in_executor(self, executor: None, call: Callable[[], Any]) -> asyncio.Task[Any]:
        """Run ``call`` for `asyncio.to_thread`: in one step, as a request of the process."""
        assert self.run_in_thread is not None
        return self.create_task(self.run_in_thread(call))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.closed:
            self.unhandled_errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.closed

    def is_closed(self) -> bool:
        return self.closed


def _unwind(coro: Any, context: Context) -> None:
    """Close a coroutine, however often it awaits something in a ``finally``."""
    for _ in range(20):
        try:
            context.run(coro.close)
            return
        except RuntimeError:  # it has awaited something instead
            pass
        except Exception:  # it has sent a request to a simulation that has ended
            return
