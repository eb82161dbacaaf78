"""SQLite for an event loop: its calls block, so each connection has a thread of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .connection import SQLiteConnection

T = TypeVar("T")


class ThreadedConnection:
    """A connection whose work runs on one thread, which starts with the first piece of work.

    Work that is cancelled before its turn does not run. Work that is under way when its caller is cancelled is finished
    on the thread, and the next work waits for it there: so no work finds the connection in the middle of other work.
    """

    def __init__(self, connection: SQLiteConnection) -> None:
        self._connection = connection
        self._executor: ThreadPoolExecutor | None = None

    async def execute(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        return await self.run_on_thread(lambda: self._connection.execute(work))

    async def transaction(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        return await self.run_on_thread(lambda: self._connection.transaction(work))

    async def run_on_thread(self, call: Callable[[], T]) -> T:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "effectonce-sqlite")
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def close(self) -> None:
        """Close the connection when the work under way has ended, and end the thread."""
        executor = self._executor
        if executor is None:  # nothing was opened
            return
        try:
            await self.run_on_thread(self._connection.close)
        finally:
            self._executor = None
            executor.shutdown(wait=False)
