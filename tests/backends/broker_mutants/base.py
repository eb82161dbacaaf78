"""What a mutant is made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from effectonce.backends.memory.broker import MemoryBrokerBackend, MemoryConsumer, MemoryDeadLetters, MemoryPublisher
from effectonce.testing import ManualClock

#: The mutants and, for each, the cases that must fail on it.
MUTANTS: list[tuple[type[Mutant], str]] = []


class Defect(Exception):
    """What a mutant raises of its own."""


class Mutant(MemoryBrokerBackend):
    """A broker with a defect. Subclasses name what they break."""

    publishing: type[MemoryPublisher] = MemoryPublisher
    consuming: type[MemoryConsumer] = MemoryConsumer
    dead: type[MemoryDeadLetters] = MemoryDeadLetters

    def __init__(self) -> None:
        super().__init__(clock=ManualClock())

    def publisher(self) -> Any:
        return self.publishing(self)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Any:
        return self.consuming(self, queue, group, prefetch)

    def dead_letters(self, queue: str, *, group: str) -> Any:
        return self.dead(self, queue, group)


def fails(*cases: str) -> Callable[[type[Any]], type[Any]]:
    """The class is a mutant, or a part of one, and fails these."""

    def register(broken: type[Any]) -> type[Any]:
        mutant = broken
        if not issubclass(broken, Mutant):
            part = {MemoryPublisher: "publishing", MemoryConsumer: "consuming", MemoryDeadLetters: "dead"}
            name = next(part[base] for base in broken.__mro__ if base in part)
            mutant = type(broken.__name__, (Mutant,), {name: broken, "__doc__": broken.__doc__})
        MUTANTS.extend((mutant, case) for case in cases)
        return broken

    return register
