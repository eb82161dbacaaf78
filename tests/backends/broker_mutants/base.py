"""How a mutant is made, and registered with the cases that catch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from effectonce.backends.memory.broker import MemoryBrokerBackend, MemoryConsumer, MemoryDeadLetters, MemoryPublisher
from effectonce.testing import ManualClock

#: The mutants and, for each, the cases that must fail on it.
MUTANTS: list[tuple[type[Mutant], str]] = []


class Defect(Exception):
    """An error that a mutant raises where the memory broker raises none."""


class Mutant(MemoryBrokerBackend):
    """A broker with a defect. Subclasses name what they break."""

    publisher_type: type[MemoryPublisher] = MemoryPublisher
    consumer_type: type[MemoryConsumer] = MemoryConsumer
    dead_letters_type: type[MemoryDeadLetters] = MemoryDeadLetters

    def __init__(self) -> None:
        super().__init__(clock=ManualClock())

    def publisher(self) -> Any:
        return self.publisher_type(self)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Any:
        return self.consumer_type(self, queue, group, prefetch)

    def dead_letters(self, queue: str, *, group: str) -> Any:
        return self.dead_letters_type(self, queue, group)


def caught_by(*cases: str) -> Callable[[type[Any]], type[Any]]:
    """Register the class, which is a mutant or a part of one, with the cases that it must fail."""

    def register(broken: type[Any]) -> type[Any]:
        mutant = broken
        if not issubclass(broken, Mutant):
            parts = {
                MemoryPublisher: "publisher_type",
                MemoryConsumer: "consumer_type",
                MemoryDeadLetters: "dead_letters_type",
            }
            name = next(parts[base] for base in broken.__mro__ if base in parts)
            mutant = type(broken.__name__, (Mutant,), {name: broken, "__doc__": broken.__doc__})
        MUTANTS.extend((mutant, case) for case in cases)
        return broken

    return register
