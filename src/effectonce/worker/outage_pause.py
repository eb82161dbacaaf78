"""Waiting while a server is away: with growing pauses, so that a worker does not ask it without end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from effectonce.core.backoff import Backoff
from effectonce.core.cancellation import is_being_cancelled
from effectonce.errors import BrokerUnavailable, StoreUnavailable


class Pause:
    """Leaves a server alone for a while after each failure; longer each time until it answers.

    ``active``: between `begin` and the end of the pause; nothing may be sent. ``waits_for_answer``: from `begin` until
    the server has answered, which may be several pauses later. Runs on one event loop.
    """

    def __init__(self, server: str, resume: Callable[[], None]) -> None:
        """``server`` is its name in the log; ``resume`` is called at the end of each pause."""
        self.active = False
        self.waits_for_answer = False
        self._backoff = Backoff(server)
        self._resume = resume
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, error: BaseException) -> None:
        """The server did not answer. Does nothing during a pause."""
        if not self.active:
            self.active = self.waits_for_answer = True
            self._timer = self._loop.call_later(self._backoff.record_failure(error), self._end)

    def _end(self) -> None:
        self.active = False
        self._resume()

    def close(self) -> None:
        """End a pause for good, without resuming."""
        if self._timer is not None:
            self._timer.cancel()

    def server_answered(self) -> None:
        """Let the next pause be a short one again. An answer that comes during a pause does not count."""
        if self.waits_for_answer and not self.active:
            self.waits_for_answer = False
            self._backoff.record_success()


async def wait_until_up(what: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Repeat ``work`` until the server behind it answers."""
    backoff = Backoff(what)
    while True:
        try:
            await work()
            return backoff.record_success()
        except (BrokerUnavailable, StoreUnavailable, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():  # else the driver's own work was
                raise
            pause = backoff.record_failure(error)
        await asyncio.sleep(pause)
