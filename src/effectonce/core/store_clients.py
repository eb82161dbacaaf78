"""How guarded calls reach the store: a client for sync code, and one for each event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from effectonce.contracts import Port
from effectonce.record import Answer, Batchable, Claim, Look, Note, Remember, Settlement

from .group_commit.tasks import AsyncGroup
from .group_commit.threads import ThreadGroup
from .waiting import TaskWakeUp, ThreadWakeUp, WakeUp

G = TypeVar("G", covariant=True)


class ClaimAndSettlement(NamedTuple, Generic[G]):
    """What sends a store's claims, and what sends its settlements. It may be the same object."""

    claims: G
    settlements: G

    def by_label(self) -> tuple[tuple[str, G], ...]:
        """Each of them with its label, for metrics: ``claims``, ``settlements``, or ``both``."""
        if self.claims is self.settlements:
            return (("both", self.claims),)
        return ("claims", self.claims), ("settlements", self.settlements)

    def distinct(self) -> tuple[G, ...]:
        return (self.claims,) if self.claims is self.settlements else self


class StoreClient(Protocol):
    """How a guarded call reaches the store. The coroutines of a client for sync code never suspend."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that it serves; None: sync code."""

    @property
    def groups(self) -> ClaimAndSettlement[ThreadGroup] | ClaimAndSettlement[AsyncGroup] | None:
        """The groups that coalesce its operations; None: each goes out by itself."""

    async def claim(self, op: Claim | Look) -> Answer:
        """The answer. A caller that is cancelled before it has the answer holds no claim."""

    async def settle(self, op: Settlement | Note | Remember) -> bool:
        """Whether it was applied. It goes to the store even if the caller is cancelled meanwhile."""

    def new_wake_up(self) -> WakeUp:
        """A new wake-up for one caller, which waits for another delivery of its key."""


class LocalClient:
    """For a store in this process: each operation goes straight to the port."""

    groups: Final = None

    def __init__(self, port: Port, loop: asyncio.AbstractEventLoop | None) -> None:
        self._port = port
        self.loop = loop

    async def claim(self, op: Batchable) -> Any:
        (reply,) = await self._port.run((op,))
        if isinstance(reply, Exception):
            raise reply
        return reply

    settle = claim

    def new_wake_up(self) -> WakeUp:
        return ThreadWakeUp() if self.loop is None else TaskWakeUp(self.loop)


class ThreadClient:
    """For sync code, on any thread."""

    loop: Final = None

    def __init__(self, open_groups: Callable[[], ClaimAndSettlement[ThreadGroup]]) -> None:
        # Called for every operation: a call that forks must not use the parent's connections when it continues in the
        # child.
        self._open_groups = open_groups

    @property
    def groups(self) -> ClaimAndSettlement[ThreadGroup]:
        return self._open_groups()

    async def claim(self, op: Claim | Look) -> Any:
        return self._open_groups().claims.submit(op)

    async def settle(self, op: Settlement | Note | Remember) -> Any:
        return self._open_groups().settlements.submit(op)

    def new_wake_up(self) -> WakeUp:
        return ThreadWakeUp()


class LoopClient:
    """For the tasks of one event loop."""

    def __init__(self, groups: ClaimAndSettlement[AsyncGroup], loop: asyncio.AbstractEventLoop) -> None:
        self.groups = groups
        self.loop = loop
        self.loop_end: object = None  # what closes the groups at the end of the loop, as long as it is kept

    async def claim(self, op: Claim | Look) -> Any:
        future = self.groups.claims.submit(op)
        try:
            return await future
        except asyncio.CancelledError:
            self._give_back(op, future)
            raise

    def _give_back(self, op: Claim | Look, future: asyncio.Future[Any]) -> None:
        """The caller was cancelled. If its claim was granted at that moment, its work will not start: release it."""
        if isinstance(op, Claim) and future.done() and not future.cancelled() and future.exception() is None:
            answer = future.result()
            if answer.kind == "claimed":
                self.release(op, answer)

    def release(self, claim: Claim, answer: Answer) -> None:
        """Release a granted claim whose caller was cancelled. Does not wait: if it fails, the lease ends by itself."""
        future = self.groups.settlements.submit(release_with_refund(claim, answer))
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def settle(self, op: Settlement | Note | Remember) -> Any:
        return await self.groups.settlements.submit(op)

    def new_wake_up(self) -> WakeUp:
        return TaskWakeUp(self.loop)


def release_with_refund(claim: Claim, answer: Answer) -> Settlement:
    """The settlement that gives a grant back whose work never started, so that it does not count as an attempt."""
    return Settlement(claim.scope, claim.key, claim.owner, answer.token, "free", claim.retention_us, refund=True)
