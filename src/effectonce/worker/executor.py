"""`Executor`: the seam between a queue's consumer and what runs its jobs: under leases, or in transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from .handler_pool import HandlerPool
from .jobs import Job


class Executor(Protocol):
    """Runs the jobs of one queue so that their effects happen once.

    All of it runs on the event loop of the `QueueConsumer`. The executor decides how each job that it was given ends,
    and tells the consumer so once, by `ack`, `ack_batched`, `redeliver`, `dead_letter` or `drop`, or by a method that
    calls one of these. It acks a job only when its record or its transaction is committed. Jobs that are undecided
    when `stop` returns are given back by the consumer.
    """

    @property
    def pools(self) -> Sequence[HandlerPool[Any]]:
        """One per handler."""

    def enqueue(self, job: Job) -> None:
        """``job`` may start as soon as there is room. `start` follows."""

    def start(self) -> None:
        """Start what there is room for."""

    def on_suspect_left(self, job: Job) -> None:
        """``job``, a suspect, is settled or given back."""

    async def stop(self, drain_ended: asyncio.Event) -> None:
        """Start nothing more, let what runs end until ``drain_ended`` is set, then cancel the rest."""
