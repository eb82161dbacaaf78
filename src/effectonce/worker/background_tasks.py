"""Work of an executor that no handler waits for. A defect in it stops the worker, and is raised from `serve`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

ReportFailure = Callable[[BaseException], None]
"""Stops the worker, which raises the error from `serve`."""


class BackgroundTasks:
    """The tasks of one executor, on one event loop. ``on_end`` is called after each task.

    They are not cancelled here: each of them settles something, and `wait` lets all of them end.
    """

    def __init__(self, fail: ReportFailure, on_end: Callable[[], None]) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._fail = fail
        self._on_end = on_end

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in a task of its own."""
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._on_end()

    async def wait(self) -> None:
        """Wait until no task is left."""
        while self.tasks:
            await asyncio.wait(tuple(self.tasks))


async def wait_until_either_is_set(one: asyncio.Event, other: asyncio.Event) -> None:
    """Wait until one of the two events is set."""
    tasks = [asyncio.create_task(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
