"""The system under test, which all schedules of one scenario share: our code, made once, and how its end is judged.

There is one per tool. Before a process runs, its runtime is put behind the store handle, so that each has its own
connections, heartbeat and waiters, as processes have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from effectonce.errors import InDoubt, InProgress, PayloadMismatch, PermanentFailure, ResultNotStored, Retryable
from effectonce.record import Batchable, Look
from effectonce.store import Store, open_backend

from .scenario import SECOND, Scenario
from .transport import FREE, Transport

if TYPE_CHECKING:
    from .simulation import Process, SimulatedDelivery, Simulation

Word = Literal["ack", "again", "park", "dead"]
Tag = Callable[[bytes], object]

SCOPE = "explored"


class Transient(Exception):
    """The error that the handler raises where a schedule says so; the next delivery may succeed."""


class PermanentDecline(Exception):
    """The error by which a handler, or a provider, declines for good."""

    status_code = 402


def word_for(error: BaseException) -> Word:
    """Return how a worker settles a delivery whose guarded call raised ``error``: DESIGN section 3."""
    if isinstance(error, ResultNotStored):
        return "ack"
    if isinstance(error, InDoubt):
        return "park"
    if isinstance(error, PermanentFailure | PayloadMismatch | PermanentDecline):
        return "dead"
    return "again"


class Oracle:
    """An oracle that judges the end only. `GuardOracle` observes every operation, too."""

    def __init__(self) -> None:
        self.histories: dict[str, Any] = {}
        self.blamed: set[bytes] = set()

    def observe(self, op: Any, reply: Any, now: int) -> None: ...

    def observe_sweep(self, now: int) -> None: ...

    def observe_ack(self, key: str) -> None: ...

    def observe_dead_letter(self, key: str) -> None: ...

    def would_change(self, op: Any, now: int) -> bool:
        return not isinstance(op, Look)

    def observe_decision(self, key: str, state: str, result: bytes | None, now: int) -> None: ...

    def find_abandoned(self, owners: Collection[bytes]) -> str | None:
        return None

    def first_result(self, key: str) -> bytes | None:
        return None

    def state_key(self, tag: Tag) -> tuple[object, ...]:
        return ()


class SystemUnderTest:
    """The code under test in one scenario. Subclasses say how a tool is used, and judge the end of each schedule."""

    skew = 3600 * SECOND
    """By how much the wall clocks of workers are wrong."""
    pulls = False
    """Its processes fetch messages themselves; the explorer delivers none to them."""
    remembers = False
    """What its processes do may depend on every event since they began, not only on those since they were idle."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.simulation: Simulation | None = None
        self.store = Store(no_runtime, sweep_every=None)
        self.backend: Any = type(open_backend("memory://"))

    def oracle(self, simulation: Simulation) -> Any:
        """Make the oracle of one schedule."""
        return Oracle()

    def open(self, simulation: Simulation) -> None:
        """Make what one schedule needs beside the store: a database, a provider, a queue."""

    def switch_to(self, process: Process) -> None:
        """Put the runtime of ``process``, which runs now, behind the store handle."""
        self.store.use_runtime(process.runtime)

    def start_process(self, simulation: Simulation, process: Process) -> None:
        """Start what runs in a new ``process``."""

    def stop(self, simulation: Simulation, process: Process) -> None:
        """Ask ``process`` to drain and end."""
        raise NotImplementedError

    def at_rest(self, simulation: Simulation) -> bool:
        """Whether the schedule has ended, although processes have timers that never end."""
        return False

    def process_died(self, simulation: Simulation, process: Process) -> None:
        """Break the connections of ``process``, which was killed."""

    def transport(self, ops: Sequence[Batchable]) -> Transport:
        """Return the transport of a request to the store with ``ops``: it knows what the request has to wait for."""
        return FREE

    async def work(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        """Handle one delivery, and settle it."""
        raise NotImplementedError

    def finish(self, simulation: Simulation) -> None:
        """Judge the state when everything has been delivered. Writes into ``simulation.tally``, for each key, whether
        it was lost and how often it was doubled."""
        raise NotImplementedError

    def state_key(self, simulation: Simulation, tag: Tag) -> object:
        """Return what can still decide a verdict: equal for equal states."""
        return ()

    def summary(self, simulation: Simulation, key: str) -> tuple[object, ...]:
        """Return how the schedule ended for ``key``, beside what the broker knows."""
        return ()

    async def settle(
        self,
        simulation: Simulation,
        process: Process,
        delivery: SimulatedDelivery,
        word: Word,
        failure: BaseException | None = None,
    ) -> None:
        """Settle the delivery at the broker, and end it."""
        if word != "again":
            await simulation.ask_broker(process, delivery, word)
        wait = failure.retry_after if isinstance(failure, Retryable) else 1.0
        if isinstance(failure, InProgress) and failure.lease_left is not None:
            wait = failure.lease_left  # the deliveries before the end of the lease would all be answered the same
        simulation.end_delivery(process, delivery, 0 if isinstance(failure, asyncio.CancelledError) else wait)

    async def settle_after(
        self, simulation: Simulation, process: Process, delivery: SimulatedDelivery, call: Any
    ) -> Any:
        """Await ``call`` as a worker does, settle the delivery by how it ended, and return its value."""
        word: Word = "ack"
        failure: BaseException | None = None
        value: Any = None
        try:
            value = await call
        except GeneratorExit:
            raise
        except BaseException as error:
            failure, word = error, word_for(error)
        delivery.inside = False
        delivery.call_error = failure
        simulation.narrate(f"  w{process.slot}: the call {'is done' if failure is None else f'raised {failure!r}'}")
        await self.settle(simulation, process, delivery, word, failure)
        return value


def no_runtime() -> Any:
    raise AssertionError("a process runs without a runtime")
