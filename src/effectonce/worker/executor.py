"""The seam between a queue and the way its handlers run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from .handler_pool import HandlerPool
from .jobs import Job


class Executor(Protocol):
    """Runs the jobs of one queue so that their effects happen once: under leases, or in transactions.

    It decides what becomes of each job, and calls `ack`, `redeliver`, `dead_letter` or `drop` of the `QueueConsumer`.
    """

    @property
    def pools(self) -> Sequence[HandlerPool[Any]]:
        """One per handler."""
        ...

    def enqueue(self, job: Job) -> None:
        """``job`` may start as soon as there is room."""
        ...

    def start(self) -> None:
        """Start what there is room for."""
        ...

    async def stop(self, over: asyncio.Event) -> None:
        """Start nothing more, let what runs end until ``over`` is set, then cancel the rest."""
        ...
