"""The modelled provider: an outside API that keeps idempotency keys for a while or not at all, and loses replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .scenario import LEASE
from .simulation import Process, SimulatedDelivery, Simulation
from .system import PermanentDecline
from .transport import Transport


class TooManyRequests(Exception):
    """The provider rejects a request, and nothing was done."""

    status_code = 429


class RequestLost:
    """The outcome of a request that was on its way for too long."""


class ProviderCall(Transport):
    """One request to the provider. Its caller cannot tell whether the request was lost or its reply."""

    def __init__(self, provider: SimulatedProvider, key: str) -> None:
        self._provider = provider
        self._key = key

    def error_when_lost(self, retry: bool) -> Exception:
        return TimeoutError("no answer")

    def rejection(self) -> Exception:
        return TooManyRequests("too many requests")

    def is_deniable(self) -> bool:
        return not self._provider.knows(self._key)

    def deny(self) -> None:
        self._provider.answers[self._key] = (self._provider.simulation.elapsed, None)


class SimulatedProvider:
    """A provider: its effects, and the keys that it remembers for ``window``; None: it keeps no keys."""

    def __init__(self, simulation: Simulation, window: int | None) -> None:
        self.simulation = simulation
        self.window = window
        self.effects: list[str] = []
        self.answers: dict[str, tuple[int, str | None]] = {}  # by key: the time, and the receipt; None: declined

    def knows(self, key: str) -> bool:
        return (
            self.window is not None
            and key in self.answers
            and self.simulation.elapsed < self.answers[key][0] + self.window
        )

    async def call(self, process: Process, delivery: SimulatedDelivery, key: str, effect: str) -> str:
        """Have ``effect``, once for ``key`` as long as the provider keeps it."""
        outcome: str | None = await self.ask(process, delivery, key, lambda: self._execute(key, effect))
        if outcome is None:
            raise PermanentDecline("declined")
        return outcome

    async def ask(self, process: Process, delivery: SimulatedDelivery, key: str, apply: Callable[[], Any]) -> Any:
        """Return what ``apply`` returns, executed at the provider while the request lingers, or not at all."""
        until = self.simulation.elapsed + LEASE

        def arrive() -> Any:
            return apply() if self.simulation.elapsed <= until else RequestLost

        outcome = await self.simulation.ask(
            process, "call", ("call",), arrive, of=delivery.number, transport=ProviderCall(self, key)
        )
        if outcome is RequestLost:
            raise TimeoutError("no answer")
        return outcome

    def _execute(self, key: str, effect: str) -> str | None:
        if self.knows(key):
            return self.answers[key][1]
        self.effects.append(effect)
        self.simulation.narrate(f"    provider: {effect}, effect number {self.effects.count(effect)}")
        self.answers[key] = (self.simulation.elapsed, f"receipt-{effect}")
        return f"receipt-{effect}"

    def state_key(self) -> object:
        return tuple(sorted(self.effects)), tuple(sorted(self.answers.items()))


WINDOW = 140_000_000  # how long a provider keeps a key, in microseconds
MARGIN = LEASE + 10_000_000  # before the window ends, nothing is sent again: longer than a request lingers
