"""What stands behind a `Store`: its ports, groups, heartbeat and waiters, per process and event loop.

Opened when first needed. A forked child starts with none of it: its parent's connections are kept, unclosed
and unused, since closing them would speak on a socket that the parent still uses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import count, repeat
from typing import Any

from effectonce.contracts import Backend, Clock, Hook, Port
from effectonce.record import Answer, Batchable, Claim, Reply, Settlement

from .drive import drive
from .events import Events
from .group_commit.batches import Group
from .group_commit.tasks import AsyncGroup
from .group_commit.threads import ThreadGroup
from .heartbeat import Heartbeat
from .privacy import Privacy
from .waiting import Signal, TaskSignal, ThreadSignal, Waiters

log = logging.getLogger("effectonce")

Submit = Callable[[Any], Any]  # the reply, or an awaitable of it
Replies = list[Reply] | asyncio.Future[list[Reply]]


class Side:
    """One colour of a store, as the flow sees it: claim, settle, and a signal to wait on.

    ``first`` and ``complete`` are those of `contracts.Short`, where the port has them (and no result is to be hidden).
    """

    __slots__ = ("claim", "complete", "first", "groups", "loop", "settle")

    def __init__(
        self, claim: Submit, settle: Submit, groups: list[Group], loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.claim = claim
        self.settle = settle
        self.groups = groups
        self.loop = loop
        self.first: Callable[..., int] | None = None
        self.complete: Callable[..., bool] | None = None

    def hand_over(self, successor: Callable[[], Side]) -> None:
        """In a forked child: a call that was under way when its handler forked ends here, too, with this side in its
        hands, and must not speak on the connections of the parent."""
        self.first = self.complete = None
        self.claim = lambda op: successor().claim(op)
        self.settle = lambda op: successor().settle(op)

    def signal(self) -> Signal:
        return ThreadSignal() if self.loop is None else TaskSignal(asyncio.get_running_loop())

    def claim_block(self, ops: Sequence[Batchable]) -> Replies:
        """The replies to several claims, in one round trip where the store can. Of event loops only."""
        return _block(self.groups[:1], self.claim, ops)

    def settle_block(self, ops: Sequence[Batchable]) -> Replies:
        """As `claim_block`, for what ends claims."""
        return _block(self.groups[-1:], self.settle, ops)


def _block(groups: Sequence[Group], submit: Submit, ops: Sequence[Batchable]) -> Replies:
    for group in groups:
        assert isinstance(group, AsyncGroup)
        return group.submit_block(ops)
    replies: list[Reply] = []
    for op in ops:
        try:
            replies.append(submit(op))
        except Exception as error:
            replies.append(error)
    return replies


class Engine(Events):
    """See the module."""

    def __init__(
        self,
        backend: Backend,
        *,
        privacy: Privacy | None = None,
        hooks: tuple[Hook, ...] = (),
        sweep_every: float | None = 60.0,
    ) -> None:
        self.backend = backend
        self.privacy = privacy
        super().__init__(hooks)
        self._clock: Clock | None = getattr(backend, "clock", None)  # of stores that have no server to ask
        self.in_process = backend.capabilities.lanes == 0
        self.monotonic: Callable[[], float] = time.monotonic if self._clock is None else self._clock.monotonic
        self._sweep_every = sweep_every
        self._lock = threading.Lock()
        self._fresh()
        _engines.add(self)

    def _fresh(self) -> None:
        capabilities = self.backend.capabilities
        self.waiters = Waiters()
        self.leased: set[Any] = set()  # the runs that hold a lease in this process
        self.random_bits = random.Random(os.urandom(32)).getrandbits  # seeded anew in every process
        #: 16 bytes that no other call has, in all the processes that meet at the store.
        self.new_owner: Callable[[], bytes] = self._random_owner
        if self.in_process and _one_thread_at_a_time():  # which is what makes this counter safe
            self.new_owner = map(struct.Struct("<8sQ").pack, repeat(os.urandom(8)), count()).__next__
        self.heartbeat = Heartbeat(
            self.leased,
            self.backend.sync_port,
            self.monotonic,
            weakly(self._report_sweep),
            self._sweep_every,
            capabilities.batch,
            by_hand=self._clock is not None and self._clock.manual,
        )
        # A store that nobody has any more needs no thread.
        self._finalizer = weakref.finalize(self, self.heartbeat.stop, wait=False)
        self._finalizer.atexit = False
        self.sync: Side | None = None  # what `sync_side` opened
        self.any_loop: Side | None = None  # what `async_side` opened, where one serves all event loops
        self._loops: dict[asyncio.AbstractEventLoop, Side] = {}
        self._last: tuple[asyncio.AbstractEventLoop, Side] | None = None
        self._people: Port | None = None
        self.people_lock = threading.Lock()
        self._listening: threading.Event | None = None  # what ends the listener, where there is one

    def after_fork(self) -> None:
        self._finalizer.detach()
        for run in self.leased:  # they are the parent's: what becomes of them is not for this process to say
            run.protected = False
        if self.sync is not None:
            self.sync.hand_over(self.sync_side)
        _inherited.append((self.sync, self._loops, self._people, self.heartbeat))
        self._lock = threading.Lock()
        renew = getattr(self.backend, "after_fork", None)
        if renew is not None:
            renew()
        self._fresh()

    def now(self) -> int:
        """Microseconds since the epoch, by this process's own clock where the store has a server to ask."""
        return time.time_ns() // 1000 if self._clock is None else self._clock.now()

    def _random_owner(self) -> bytes:
        # The time is mixed in for processes that were resumed from one snapshot, generator and all.
        return (self.random_bits(128) ^ time.time_ns()).to_bytes(16, "little")

    # -- sides

    def sync_side(self) -> Side:
        side = self.sync
        if side is None:
            with self._lock:
                if self.sync is None:
                    self.sync = self._side(self.backend.sync_port, None)
                side = self.sync
        return side

    def async_side(self) -> Side:
        loop = asyncio.get_running_loop()
        last = self._last
        if last is not None and last[0] is loop:
            return last[1]
        with self._lock:
            self._loops = {each: side for each, side in self._loops.items() if not each.is_closed()}
            side = self._loops.get(loop)
            if side is None:
                side = self._loops[loop] = self._side(self.backend.async_port, loop)
            self._last = (loop, side)
            if self.in_process:
                self.any_loop = side
        return side

    def _side(self, open_port: Callable[[], Port], loop: asyncio.AbstractEventLoop | None) -> Side:
        capabilities = self.backend.capabilities
        if self.in_process:
            port: Any = open_port()
            side = Side(port.claim, port.settle, [], loop)
            if _has_short_ways(port):
                side.first, side.complete = port.first, None if self.privacy is not None else port.complete
            return side
        lanes = 2 if capabilities.lanes == 3 else 1
        groups: list[Group] = []
        beside: AsyncGroup | None = None
        for _ in range(1 if loop is None and capabilities.mixes else lanes):
            if loop is None:
                groups.append(ThreadGroup(open_port(), capabilities.batch, self._orphaned_in_thread))
            else:
                ports = [open_port() for _ in range(lanes)]
                beside = AsyncGroup(ports, capabilities.batch, self._orphaned_in_loop, loop, beside)
                groups.append(beside)
        return Side(groups[0].submit, groups[-1].submit, groups, loop)

    def _orphaned_in_thread(self, claim: Claim, answer: Answer) -> None:
        try:
            self.sync_side().settle(release(claim, answer))
        except Exception as error:  # the lease ends by itself
            log.debug("a claim granted to nobody was not released: %s", error)

    def _orphaned_in_loop(self, claim: Claim, answer: Answer) -> None:
        future = asyncio.ensure_future(self.async_side().settle(release(claim, answer)))
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

    # -- events

    def _report_sweep(self, deleted: int, lapsed: int, error: str) -> None:
        if error:
            log.warning("effectonce could not sweep %r: %s", self.backend, error)
        if self.hooks:
            if error:
                self.emit("sweep_failed", detail=error)
            else:
                self.emit("swept", detail=f"deleted {deleted}, in doubt {lapsed}")

    # -- waiting

    def listen(self) -> None:
        """Make sure that settlements by other processes wake our waiters, where the store can tell."""
        if self.backend.capabilities.notifies and self._listening is None:
            with self._lock:
                if self._listening is None:
                    self._listening = end = threading.Event()
                    told = (self.backend, self.waiters, end, weakly(self._deaf))
                    threading.Thread(target=_listen, args=told, name="effectonce-listener", daemon=True).start()

    def _deaf(self, end: threading.Event) -> None:
        if self._listening is end:
            self._listening = None

    def batch_sizes(self) -> list[tuple[str, list[int]]]:
        """By lane, what `Group.sizes` of each of its groups says."""
        sides = [self.sync, *self._loops.values()] if self.sync is not None else list(self._loops.values())
        found = []
        for side in sides:
            names = ("claims", "settlements") if len(side.groups) == 2 else ("both",)
            found += [(name, group.sizes) for name, group in zip(names, side.groups, strict=False)]
        return found

    # -- people and the end

    def people(self) -> Port:
        """The port for `get`, `list` and the rest; to be used under `people_lock`."""
        if self._people is None:
            self._people = self.backend.sync_port()
        return self._people

    def close(self) -> None:
        """Close the sync ports, each when its round trip is over. Whatever is used again opens again."""
        self.heartbeat.stop()
        if self._listening is not None:
            self._listening.set()
            self._listening = None
        with self.people_lock:
            if self._people is not None:
                drive(self._people.close())
        for group in self.sync.groups if self.sync is not None else ():
            drive(group.close())

    async def aclose(self) -> None:
        """Close the ports of the running event loop."""
        side = self._loops.get(asyncio.get_running_loop())
        for group in side.groups if side is not None else ():
            await group.close()


def _listen(backend: Backend, waiters: Waiters, end: threading.Event, deaf: Callable[[threading.Event], None]) -> None:
    port: Port | None = None
    idle = 0
    while not end.is_set() and idle < 30:
        idle = 0 if waiters.waiting else idle + 1
        try:
            port = port or backend.sync_port()
            for identity in drive(port.changes(1.0)):
                waiters.wake(identity)
        except Exception as error:  # wake-ups are hints: the poll goes on without them
            log.debug("no wake-ups from %r: %s", backend, error)
            end.wait(1.0)
    deaf(end)
    if port is not None:
        drive(port.close())


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """``method``, for a thread that must not keep its object alive."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        found = reference()
        if found is not None:
            found(*args)

    return call


def release(claim: Claim, answer: Answer) -> Settlement:
    """Give back a grant whose work never started: it does not count as an attempt."""
    return Settlement(claim.scope, claim.key, claim.owner, answer.token, "free", claim.retention, refund=True)


def _has_short_ways(port: Any) -> bool:
    """Whether it is a `contracts.Short`. One that changes or wraps what another does with operations has to have short
    ways of its own: those of the other would pass it by."""
    for names in map(vars, type(port).__mro__):
        if "claim" in names or "settle" in names:
            return "first" in names
    return False


def _one_thread_at_a_time() -> bool:
    """Whether this interpreter has its lock: builds of 3.13 and later may be without."""
    asked: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return asked is None or asked()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_inherited: list[Any] = []


def _after_fork() -> None:
    for engine in list(_engines):
        engine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
