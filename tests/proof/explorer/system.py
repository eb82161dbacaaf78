"""What all schedules of one scenario share: the code under test, made once, and how its end is judged.

One system per tool. Before a process gets a turn its engine is put behind the store handle, so that each has its own
connections, heartbeat and waiters, as processes do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from effectonce.errors import InDoubt, PayloadMismatch, PermanentFailure, ResultNotStored, Retryable
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
    """What the handler raises where a schedule says so; the next delivery may succeed."""


class PermanentDecline(Exception):
    """What the handler raises for good, and what a provider says that will never do it."""

    status_code = 402


def word_for(error: BaseException) -> Word:
    """What a worker tells the broker when the guarded call raised: DESIGN section 3."""
    if isinstance(error, ResultNotStored):
        return "ack"
    if isinstance(error, InDoubt):
        return "park"
    if isinstance(error, PermanentFailure | PayloadMismatch | PermanentDecline):
        return "dead"
    return "again"


class Oracle:
    """An oracle that looks at the end only. The guard's own, `GuardOracle`, sees every operation too."""

    def __init__(self) -> None:
        self.histories: dict[str, Any] = {}
        self.blamed: set[bytes] = set()

    def observe(self, op: Any, reply: Any, now: int) -> None: ...

    def swept(self, now: int) -> None: ...

    def acked(self, key: str) -> None: ...

    def dead(self, key: str) -> None: ...

    def changes(self, op: Any, now: int) -> bool:
        return not isinstance(op, Look)

    def decided(self, key: str, state: str, result: bytes | None, now: int) -> None: ...

    def left(self, owners: Collection[bytes]) -> str | None:
        return None

    def recorded(self, key: str) -> bytes | None:
        return None

    def state_key(self, tag: Tag) -> tuple[object, ...]:
        return ()


class SystemUnderTest:
    """See the module."""

    skew = 3600 * SECOND
    """By how much the wall clocks of workers are wrong."""
    pulls = False
    """Its processes fetch messages themselves; nothing is brought to them."""
    remembers = False
    """What its processes do may depend on all that they were told since they began, not only since they were idle."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.simulation: Simulation | None = None
        self.store = Store(nowhere, sweep_every=None)
        self.backend: Any = type(open_backend("memory://"))

    def oracle(self, simulation: Simulation) -> Any:
        """The oracle of one schedule."""
        return Oracle()

    def open(self, simulation: Simulation) -> None:
        """Make what one schedule has beside the store: a database, a provider, a queue."""

    def enter(self, process: Process) -> None:
        """``process`` gets a turn."""
        self.store.use_runtime(process.runtime)

    def start_process(self, simulation: Simulation, process: Process) -> None:
        """``process`` is new."""

    def stop(self, simulation: Simulation, process: Process) -> None:
        """``process`` is told to come to its end in good order."""
        raise NotImplementedError

    def at_rest(self, simulation: Simulation) -> bool:
        """Whether all is over, although processes have timers that never end."""
        return False

    def process_died(self, simulation: Simulation, process: Process) -> None:
        """``process`` was killed: what it was connected to notices."""

    def transport(self, ops: Sequence[Batchable]) -> Transport:
        """What a request to the store with ``ops`` has to wait for."""
        return FREE

    async def work(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        """Handle one delivery, and settle it."""
        raise NotImplementedError

    def finish(self, simulation: Simulation) -> None:
        """Judge what is left when everything has been delivered; into ``world.tally``, for each key, what was lost and
        how often it was doubled."""
        raise NotImplementedError

    def state_key(self, simulation: Simulation, tag: Tag) -> object:
        """What of all this can still decide a verdict: equal where moments are the same."""
        return ()

    def summary(self, simulation: Simulation, key: str) -> tuple[object, ...]:
        """How it ended for ``key``, beside what the broker knows."""
        return ()

    async def settle(
        self,
        simulation: Simulation,
        process: Process,
        delivery: SimulatedDelivery,
        word: Word,
        failure: BaseException | None = None,
    ) -> None:
        """Tell the broker, and end."""
        if word != "again":
            await simulation.ask_broker(process, delivery, word)
        wait = failure.retry_after if isinstance(failure, Retryable) else 1.0
        simulation.end_delivery(process, delivery, 0 if isinstance(failure, asyncio.CancelledError) else wait)

    async def settle_after(
        self, simulation: Simulation, process: Process, delivery: SimulatedDelivery, call: Any
    ) -> Any:
        """Await ``call`` as a worker does, tell the broker what it came to, and give its value."""
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
        delivery.came_to = failure
        simulation.narrate(f"  w{process.slot}: it {'is done' if failure is None else f'raised {failure!r}'}")
        await self.settle(simulation, process, delivery, word, failure)
        return value


def nowhere() -> Any:
    raise AssertionError("a process was given a turn without an runtime")
