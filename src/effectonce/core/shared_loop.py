"""The one event loop of this process on which sync code runs async code.

A pooled async client (asyncpg, async SQLAlchemy, aiohttp) belongs to the event loop that opened it, and fails in any
other. With a loop per call, the second call of a sweeper, a Lambda handler or a doctor breaks the user's pool. So all
such calls share one loop, on a thread of its own. The thread starts with the first call, and the loop is closed when
the program ends. A forked child starts with a loop of its own.

`Worker.run` and `Relay.run` need the main thread, where signals arrive: they `drive` the same loop from there, and its
own thread rests meanwhile.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from effectonce.errors import SyncAsyncMismatch

from .run_sync import refuse_in_event_loop

CLOSE_AT_EXIT_S: Final = 2.0
"""The longest that the end of a program waits for the tasks that it left on the loop."""

SIGNAL_CHECK_S: Final = 0.5
"""How often a waiting caller looks for signals: one that the system gave to another thread does not wake it."""

IN_EVENT_LOOP: Final = "a sync call inside a running event loop would block it; await the async form instead"

T = TypeVar("T")


class SharedLoop:
    """An event loop that is driven by a thread of its own, or for a time by a caller of `drive`.

    ``_lock`` guards who drives it: ``_loop``, ``_thread`` and ``_driven``. Nothing waits for the loop while it has the
    lock, except `drive` for the end of the thread's present step.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._driven = False  # by a caller of `drive`
        self._closing = False
        #: Awaited on the loop before it is closed.
        self.before_close: list[Callable[[], Awaitable[None]]] = []

    def run(self, work: Coroutine[Any, Any, T], refusal: str = IN_EVENT_LOOP) -> T:
        """Run ``work`` on the loop, and wait for its end. An exception in this thread (Ctrl-C) cancels it first.

        Raises `SyncAsyncMismatch` with ``refusal`` where an event loop is running.
        """
        _refuse_in_event_loop(work, refusal)
        ended = threading.Event()
        task: asyncio.Task[T]

        def start() -> None:
            nonlocal task
            task = loop.create_task(work)
            task.add_done_callback(end)

        def end(_: asyncio.Task[T]) -> None:
            if not self._closing:  # else a daemon thread is waiting, which ends with the program
                ended.set()

        with self._lock:
            loop = self._open()
            if not self._driven:
                self._start_thread(loop)
            loop.call_soon_threadsafe(start)
        try:
            while not ended.wait(SIGNAL_CHECK_S):
                pass
        except BaseException:
            loop.call_soon_threadsafe(lambda: task.cancel())  # `start` comes before it
            ended.wait()
            raise
        return task.result()

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end on the calling thread, which runs everything else on the loop meanwhile."""
        _refuse_in_event_loop(work, "run() inside a running event loop would block it; await serve() instead")
        with self._lock:
            if self._driven:
                work.close()
                raise SyncAsyncMismatch(
                    "two calls of run() in one process: worker.add(relay) runs both in one, or await their serve()"
                )
            self._driven = True
            loop = self._open()
            self._stop_thread(loop, timeout=None)
        try:
            task = loop.create_task(work)
            try:
                return loop.run_until_complete(task)
            finally:
                if not task.done():  # Ctrl-C, or an exit from another task
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        loop.run_until_complete(task)
        finally:
            with self._lock:
                if self._loop is loop:  # else this is a forked child, which leaves the parent's loop alone
                    self._driven = False
                    self._start_thread(loop)  # for what others have started on the loop

    @property
    def is_open(self) -> bool:
        """Whether sync code has run anything on it yet."""
        return self._loop is not None

    def _open(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop

    def _start_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_thread, args=(loop,), name="effectonce-loop", daemon=True)
            self._thread.start()

    def _run_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._thread is threading.current_thread():
            with suppress(SystemExit, KeyboardInterrupt):  # from one task, whose caller gets it; the others continue
                loop.run_forever()

    def _stop_thread(self, loop: asyncio.AbstractEventLoop, timeout: float | None) -> bool:
        """Stop the loop's own thread, not its tasks. Returns whether it has ended."""

        def stop() -> None:
            self._thread = None
            loop.stop()

        thread = self._thread
        if thread is not None:
            loop.call_soon_threadsafe(stop)
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def close(self, timeout: float) -> None:
        """Cancel what runs on the loop, and close it. What takes longer than ``timeout`` seconds is left as it is.

        Without it, drivers print long warnings about open connections when the program ends.
        """
        loop = self._loop
        if loop is None or self._driven or not self._stop_thread(loop, timeout):
            return
        self._loop = None
        self._closing = True
        with suppress(Exception):
            loop.run_until_complete(self._end_tasks(timeout))
        loop.close()
        self._closing = False

    async def _end_tasks(self, timeout: float) -> None:
        for callback in self.before_close:
            with suppress(Exception):
                await asyncio.wait_for(callback(), timeout)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        await asyncio.get_running_loop().shutdown_asyncgens()

    def after_fork(self) -> None:
        """Start afresh. The parent's loop is kept: its garbage collection would write to shared sockets."""
        _inherited.append((self._loop, self._thread))
        self._lock = threading.Lock()
        self._loop = self._thread = None
        self._driven = False


def _refuse_in_event_loop(work: Coroutine[Any, Any, Any], reason: str) -> None:
    try:
        refuse_in_event_loop(reason)
    except SyncAsyncMismatch:
        work.close()
        raise


shared_loop: Final = SharedLoop()
_inherited: list[Any] = []  # from the parent process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared_loop.after_fork)


@atexit.register
def _close_at_exit() -> None:
    shared_loop.close(CLOSE_AT_EXIT_S)
