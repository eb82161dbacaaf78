"""A memory store that fails on demand, before or after an operation is applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import effectonce as eo
from effectonce.backends.memory.store import MemoryPort, MemoryStoreBackend
from effectonce.contracts import Capabilities
from effectonce.record import Batchable, Reply
from effectonce.testing import ManualClock

Fault = Callable[[Batchable], Exception | None]


def fine(op: Batchable) -> None:
    return None


def down(op: Batchable) -> Exception:
    return eo.StoreUnavailable("the store does not answer")


class FaultyPort(MemoryPort):
    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        return [await self._run_one(op) for op in batch]

    async def _run_one(self, op: Batchable) -> Reply:
        faulty: FaultyBackend = self._backend  # type: ignore[assignment]
        error = faulty.before(op)
        if error is None:
            (reply,) = await super().run([op])
            error = faulty.after(op)
        if error is not None:
            raise error
        return reply


class FaultyBackend(MemoryStoreBackend):
    """``before`` and ``after`` return the error to raise before or after an operation is applied, or None."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.before: Fault = fine
        self.after: Fault = fine

    def sync_port(self) -> FaultyPort:
        return FaultyPort(self)

    async_port = sync_port


class GroupedBackend(FaultyBackend):
    """A `FaultyBackend` whose operations are grouped, as those of a server are."""

    capabilities = Capabilities(name="grouped memory", connections="by_kind", durable=False, shared=False)
