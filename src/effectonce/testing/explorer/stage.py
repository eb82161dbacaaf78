"""What all schedules of one scenario share: the code under test, made once, and how its end is judged.

One stage per tool. Before a process gets a turn its runtime is put behind the store handle, so that each has its own
connections, heartbeat and waiters, as processes do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from effectonce.core.retry import Retry
from effectonce.errors import InDoubt, PayloadMismatch, PermanentFailure, ResultNotStored, Retryable
from effectonce.record import Batchable, Look
from effectonce.store import Store, open_backend

from .scenario import SECOND, Scenario
from .wire import FREE, Ties

if TYPE_CHECKING:
    from .world import Delivery, Process, World

Word = Literal["ack", "again", "park", "dead"]
Tag = Callable[[bytes], object]

SCOPE = "explored"


class Transient(Exception):
    """What the handler raises where a schedule says so; the next delivery may succeed."""


class Declined(Exception):
    """What the handler raises for good, and what a provider says that will never do it."""

    status_code = 402


def word_for(error: BaseException) -> Word:
    """What a worker tells the broker when the guarded call raised: DESIGN section 3."""
    if isinstance(error, ResultNotStored):
        return "ack"
    if isinstance(error, InDoubt):
        return "park"
    if isinstance(error, PermanentFailure | PayloadMismatch | Declined):
        return "dead"
    return "again"


class Witness:
    """An oracle that looks at the end only. The guard's own, `Ledger`, sees every operation too."""

    def __init__(self) -> None:
        self.books: dict[str, Any] = {}
        self.blamed: set[bytes] = set()

    def saw(self, op: Any, reply: Any, now: int) -> None: ...

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

    def standing(self, tag: Tag) -> tuple[object, ...]:
        return ()


class Steady(Retry):
    """A `Retry` that leaves nothing to chance: it waits for as long as it may."""

    def after(self, error: BaseException, attempt: int, uniform: Any = None) -> float | None:
        return super().after(error, attempt, lambda low, high: high)


class Stage:
    """See the module."""

    skew = 3600 * SECOND
    """By how much the wall clocks of workers are wrong."""
    pulls = False
    """Its processes fetch messages themselves; nothing is brought to them."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world: World | None = None
        self.store = Store(nowhere, sweep_every=None)
        self.backend: Any = type(open_backend("memory://"))

    def ledger(self, world: World) -> Any:
        """The oracle of one schedule."""
        return Witness()

    def open(self, world: World) -> None:
        """Make what one schedule has beside the store: a database, a provider, a queue."""

    def enter(self, process: Process) -> None:
        """``process`` gets a turn."""
        self.store._live = process.runtime

    def born(self, world: World, process: Process) -> None:
        """``process`` is new."""

    def stop(self, world: World, process: Process) -> None:
        """``process`` is told to come to its end in good order."""
        raise NotImplementedError

    def at_rest(self, world: World) -> bool:
        """Whether all is over, although processes have timers that never end."""
        return False

    def died(self, world: World, process: Process) -> None:
        """``process`` was killed: what it was connected to notices."""

    def ties(self, ops: Sequence[Batchable]) -> Ties:
        """What a request to the store with ``ops`` has to wait for."""
        return FREE

    async def work(self, world: World, process: Process, delivery: Delivery) -> None:
        """Handle one delivery, and settle it."""
        raise NotImplementedError

    def finish(self, world: World) -> None:
        """Judge what is left when everything has been delivered; into ``world.tally``, for each key, what was lost and
        how often it was doubled."""
        raise NotImplementedError

    def standing(self, world: World, tag: Tag) -> object:
        """What of all this can still decide a verdict: equal where moments are the same."""
        return ()

    def summary(self, world: World, key: str) -> tuple[object, ...]:
        """How it ended for ``key``, beside what the broker knows."""
        return ()

    async def settle(
        self, world: World, process: Process, delivery: Delivery, word: Word, failure: BaseException | None = None
    ) -> None:
        """Tell the broker, and end."""
        if word != "again":
            await world.ask_broker(process, delivery, word)
        wait = failure.retry_after if isinstance(failure, Retryable) else 1.0
        world.ended(process, delivery, 0 if isinstance(failure, asyncio.CancelledError) else wait)

    async def settled(self, world: World, process: Process, delivery: Delivery, call: Any) -> Any:
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
        world.tell(f"  w{process.slot}: it {'is done' if failure is None else f'raised {failure!r}'}")
        await self.settle(world, process, delivery, word, failure)
        return value


def nowhere() -> Any:
    raise AssertionError("a process was given a turn without an runtime")
