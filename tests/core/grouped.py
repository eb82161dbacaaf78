"""The memory store behind the machinery of a networked one: groups, lanes, and round trips that are counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from effectonce.backends.memory.store import MemoryPort, MemoryStoreBackend
from effectonce.record import Batchable, Reply


class GroupedBackend(MemoryStoreBackend):
    """Each round trip takes ``latency`` seconds; ``batches`` keeps what went out in each."""

    def __init__(self, latency: float = 0.001, batch: int = 128) -> None:
        super().__init__()
        self.capabilities = msgspec.structs.replace(MemoryStoreBackend.capabilities, connections="by_kind", batch=batch)
        self.latency = latency
        self.batches: list[Sequence[Batchable]] = []

    @property
    def round_trips(self) -> int:
        return len(self.batches)

    def sync_port(self) -> MemoryPort:
        return _SyncPort(self)

    def async_port(self) -> MemoryPort:
        return _AsyncPort(self)


class _SyncPort(MemoryPort):
    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        backend: GroupedBackend = self._backend  # type: ignore[assignment]
        backend.batches.append(batch)
        replies = await super().run(batch)
        time.sleep(backend.latency)  # noqa: ASYNC251  # a sync port blocks its thread
        return replies


class _AsyncPort(MemoryPort):
    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        backend: GroupedBackend = self._backend  # type: ignore[assignment]
        backend.batches.append(batch)
        replies = await super().run(batch)
        await asyncio.sleep(backend.latency)
        return replies
