"""How a mutant is made, and registered with the cases that catch it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from effectonce.backends.memory.store import MemoryPort, MemoryStoreBackend
from effectonce.contracts import Capabilities, Port
from effectonce.core.run_sync import run_sync
from effectonce.record import Batchable, Reply

#: The mutants and, for each, the cases that must fail on it.
MUTANTS: list[tuple[type[Mutant], str]] = []


class Defect(Exception):
    """An error that a mutant raises where the memory store raises none."""


class Mutant(MemoryPort):
    """A port with a defect. Subclasses override what they break."""

    capabilities: Capabilities | None = None
    schema: Any = ""

    def row(self, op: Any) -> Any:
        """Return the row of ``op`` as it is stored, expired or not."""
        return self._backend.scopes.get(op.scope, {}).get(op.key)

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        with self._backend.__dict__.setdefault("one_at_a_time", threading.RLock()):
            return [self.apply(op, self._backend.clock.now()) for op in batch]

    def apply(self, op: Any, now: int) -> Any:
        return self.apply_correctly(op, now)

    def apply_correctly(self, op: Any, now: int) -> Any:
        """Apply ``op`` as the memory store does."""
        return run_sync(MemoryPort.run(self, [op]))[0]


class MutantBackend(MemoryStoreBackend):
    """A memory store whose ports have the defect."""

    def __init__(self, port: type[Mutant], clock: Any) -> None:
        super().__init__(clock=clock)
        self.port = port
        self.capabilities = port.capabilities or MemoryStoreBackend.capabilities

    def schema_sql(self) -> str:
        schema: str = self.port.schema
        return schema

    def sync_port(self) -> Port:
        return self.port(self)

    async_port = sync_port


def caught_by(*cases: str) -> Callable[[type[Mutant]], type[Mutant]]:
    """Register the class with the cases that it must fail."""

    def register(mutant: type[Mutant]) -> type[Mutant]:
        MUTANTS.extend((mutant, case) for case in cases)
        return mutant

    return register


def is_live(row: Any, now: int) -> bool:
    return row is not None and not row.is_expired(now)
