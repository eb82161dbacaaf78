"""What goes on beside the handlers, without a task that waits for it. A defect in it ends the worker, aloud."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from effectonce.core.store_runtime import Replies
from effectonce.record import Reply

Fail = Callable[[BaseException], None]


class Chores:
    """Tasks and callbacks of one discipline. ``ended`` is called after each task."""

    def __init__(self, fail: Fail, ended: Callable[[], None]) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._fail = fail
        self._ended = ended

    def when(self, replies: Replies, then: Callable[[list[Reply]], None]) -> None:
        """Call ``then`` with the replies when they are there."""

        def call(future: asyncio.Future[list[Reply]]) -> None:
            if not future.cancelled():
                try:
                    then(future.result())
                except Exception as error:
                    self._fail(error)

        if isinstance(replies, list):
            then(replies)
        else:
            replies.add_done_callback(call)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in a task of its own."""
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._ended()

    async def finished(self) -> None:
        """Wait until no task is left."""
        while self.tasks:
            await asyncio.wait(tuple(self.tasks))


async def either(one: asyncio.Event, other: asyncio.Event) -> None:
    """Wait until one of them is set."""
    tasks = [asyncio.create_task(each.wait()) for each in (one, other)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
