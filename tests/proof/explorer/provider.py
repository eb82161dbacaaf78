"""The modelled outside API: it does what it is told, keeps keys for a while or not at all, and its answers get lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .scenario import LEASE
from .simulation import Process, SimulatedDelivery, Simulation
from .system import PermanentDecline
from .transport import Transport


class TurnedAway(Exception):
    """Too many requests: nothing was done."""

    status_code = 429


class RequestLost:
    """What became of a request that was on its way for too long."""


class ProviderCall(Transport):
    """One request to the provider. Whoever loses it, or its answer, does not know which."""

    def __init__(self, provider: SimulatedProvider, key: str) -> None:
        self._provider = provider
        self._key = key

    def broken(self, retry: bool) -> Exception:
        return TimeoutError("no answer")

    def refused(self) -> Exception:
        return TurnedAway("too many requests")

    def deniable(self) -> bool:
        return not self._provider.knows(self._key)

    def deny(self) -> None:
        self._provider.answers[self._key] = (self._provider.simulation.elapsed, None)


class SimulatedProvider:
    """What it has done, and which keys it remembers. ``window``: for how long; None: it keeps no keys."""

    def __init__(self, simulation: Simulation, window: int | None) -> None:
        self.simulation = simulation
        self.window = window
        self.effects: list[str] = []
        self.answers: dict[str, tuple[int, str | None]] = {}  # by key: when, and what; None: declined

    def knows(self, key: str) -> bool:
        return (
            self.window is not None
            and key in self.answers
            and self.simulation.elapsed < self.answers[key][0] + self.window
        )

    async def call(self, process: Process, delivery: SimulatedDelivery, key: str, what: str) -> str:
        """Do ``what``, once for ``key`` as long as that is kept."""
        outcome: str | None = await self.ask(process, delivery, key, lambda: self._do(key, what))
        if outcome is None:
            raise PermanentDecline("declined")
        return outcome

    async def ask(self, process: Process, delivery: SimulatedDelivery, key: str, apply: Callable[[], Any]) -> Any:
        """What ``apply`` gives, executed at the provider within the time that a request lingers, or not at all."""
        until = self.simulation.elapsed + LEASE

        def arrive() -> Any:
            return apply() if self.simulation.elapsed <= until else RequestLost

        outcome = await self.simulation.ask(
            process, "call", ("call",), arrive, of=delivery.number, transport=ProviderCall(self, key)
        )
        if outcome is RequestLost:
            raise TimeoutError("no answer")
        return outcome

    def _do(self, key: str, what: str) -> str | None:
        if self.knows(key):
            return self.answers[key][1]
        self.effects.append(what)
        self.simulation.narrate(f"    provider: {what}, effect number {self.effects.count(what)}")
        self.answers[key] = (self.simulation.elapsed, f"receipt-{what}")
        return f"receipt-{what}"

    def state_key(self) -> object:
        return tuple(sorted(self.effects)), tuple(sorted(self.answers.items()))


#: How long a provider keeps a key, and how long before its end nothing is sent again: longer than a request lingers.
WINDOW = 140_000_000
MARGIN = LEASE + 10_000_000
