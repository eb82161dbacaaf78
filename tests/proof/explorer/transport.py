"""Requests of a process, which stop before and after they are executed, and the ports that send them.

Everything that a worker does to the world (an operation on the store, an effect, an ack) is a `SimulatedRequest`: it is
sent, then executed, then answered, and the scheduler decides when each of these happens, if at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from effectonce.contracts import Capabilities, ConnectionLost, Dialect
from effectonce.errors import StoreUnavailable
from effectonce.record import Batchable, Reply, Resolution, Settlement, SweepResult

if TYPE_CHECKING:
    from .simulation import Process, Simulation

Kind = Literal["store", "effect", "point", "broker", "memo", "sql", "call", "publish"]

CAPABILITIES = Capabilities(name="explored", connections="by_kind", batch=16, notes=True)
#: The statement of the modelled database that completes a record: its parameter is the settlement.
JOIN: Final = "join"


class Transport:
    """What carries a request, and can break: a connection, the way to a provider."""

    #: The request touches nothing that another process reads.
    local = False
    #: When its caller has given it up, the request may still arrive.
    lingers = True

    def is_blocked(self) -> bool:
        """Whether the request has to wait for another transaction, which holds its row."""
        return False

    def awaits_work(self) -> bool:
        """Whether the caller has nothing to do until there is a reply: it waits for work."""
        return False

    def error_when_lost(self, retry: bool) -> Exception:
        """Return the error that the caller gets when the request, or its reply, is lost."""
        return ConnectionLost("reset") if retry else StoreUnavailable("no answer")

    def is_deniable(self) -> bool:
        """Whether the receiver can still decline the request for good."""
        return False

    def deny(self) -> None:
        """Decline the request for good."""

    def rejection(self) -> Exception | None:
        """Return the error that the caller gets when the request is rejected; None: it cannot be."""
        return None

    def give_up(self) -> None:
        """The caller has given the request up, which is still on its way."""


class DelayedRequest(NamedTuple):
    """A request that arrives when its sender has given it up, or is dead."""

    name: str
    ops: Sequence[Batchable]
    apply: Callable[[], Any]
    until: int = 1 << 62  # when it is lost for good


FREE = Transport()


class SimulatedRequest:
    """One request: pending, then executed, then answered, each when the scheduler says so."""

    def __init__(
        self,
        number: int,
        process: Process,
        kind: Kind,
        names: tuple[str, ...],
        apply: Callable[[], Any],
        ops: Sequence[Batchable],
        of: int,
        transport: Transport = FREE,
    ) -> None:
        self.number = number
        self.process = process
        self.kind = kind
        self.names = names  # of the operations in it
        self.name = "+".join(names)
        self.apply = apply
        self.ops = ops
        self.of = of  # the number of the delivery that it belongs to; 0: none
        self.transport = transport
        self.executed = False
        self.reply: Any = None
        self.future: asyncio.Future[Any] = process.loop.create_future()


class SimulatedStorePort:
    """A connection whose every round trip is a request of its process."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self._simulation = simulation
        self._process = process

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        replies: Sequence[Reply] = await self._simulation.ask_store(self._process, batch)
        return replies

    async def close(self) -> None:
        return None


class HeartbeatPort:
    """The connection of the heartbeat and of operators. It answers at once, as the current move has decided."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self._simulation = simulation
        self._process = process

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        return self._simulation.renew(self._process, batch)

    async def sweep(self, limit: int) -> SweepResult:
        return self._simulation.sweep(limit)

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        return self._observe_decision(key, await self._simulation.port.resolve(scope, key, resolution))

    async def forget(self, scope: str, key: str, retention_us: int) -> bool:
        return self._observe_decision(key, await self._simulation.port.forget(scope, key, retention_us))

    def _observe_decision(self, key: str, changed: bool) -> bool:
        if changed:
            self._simulation.oracle.observe_decision(key, "free", None, self._simulation.now())
        return changed

    def __getattr__(self, name: str) -> Any:
        """The other operations of operators: `get`, `list`, `now`."""
        return getattr(self._simulation.port, name)

    async def close(self) -> None:
        return None


class SkewedClock:
    """A worker's clocks: a wall clock that is wrong, and a monotonic one with another start."""

    manual = True

    def __init__(self, simulation: Simulation, skew: int) -> None:
        self._simulation = simulation
        self.skew = skew

    def now(self) -> int:
        return self._simulation.now() + self.skew

    def monotonic(self) -> float:
        return (self._simulation.elapsed + self.skew) / 1e6


class SimulatedStoreBackend:
    """A `contracts.Backend`: the store that all processes share, as one of them reaches it."""

    capabilities = CAPABILITIES

    def __init__(self, simulation: Simulation, process: Process, skew: int) -> None:
        self._simulation = simulation
        self._process = process
        self.clock = SkewedClock(simulation, skew)

    def sync_port(self) -> Any:
        return HeartbeatPort(self._simulation, self._process)

    def async_port(self) -> Any:
        return SimulatedStorePort(self._simulation, self._process)

    def completion(self, op: Settlement) -> tuple[Dialect, Sequence[tuple[str, Sequence[Any]]]]:
        """Complete a record in the modelled database: see `contracts.Joinable`."""
        return "sqlite", [(JOIN, (op,))]

    def schema_sql(self) -> str:
        return ""

    def release(self) -> None:
        """Drop the references to the simulation, since a registry of the interpreter keeps this object."""
        del self._simulation, self._process, self.clock._simulation
