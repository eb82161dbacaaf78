"""What a mutant is made with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from effectonce.backends.memory.store import MemoryPort, MemoryStoreBackend
from effectonce.contracts import Capabilities, Port
from effectonce.core.run_sync import run_sync
from effectonce.record import (
    Batchable,
    Reply,
)

#: The mutants and, for each, the cases that must fail on it.
MUTANTS: list[tuple[type[Mutant], str]] = []


class Defect(Exception):
    """What a mutant raises of its own."""


class Mutant(MemoryPort):
    """A port with a defect. Subclasses override what they break."""

    capabilities: Capabilities | None = None
    schema: Any = ""

    def row(self, op: Any) -> Any:
        """The row as it is stored, expired or not."""
        return self._backend.scopes.get(op.scope, {}).get(op.key)

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        with self._backend.__dict__.setdefault("one_at_a_time", threading.RLock()):
            return [self.apply(op, self._backend.clock.now()) for op in batch]

    def apply(self, op: Any, now: int) -> Any:
        return self.correct(op, now)

    def correct(self, op: Any, now: int) -> Any:
        """What the memory store does."""
        return run_sync(MemoryPort.run(self, [op]))[0]


class MutantBackend(MemoryStoreBackend):
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


def fails(*cases: str) -> Callable[[type[Mutant]], type[Mutant]]:
    def register(mutant: type[Mutant]) -> type[Mutant]:
        MUTANTS.extend((mutant, case) for case in cases)
        return mutant

    return register


def live(row: Any, now: int) -> bool:
    return row is not None and not row.is_expired(now)
