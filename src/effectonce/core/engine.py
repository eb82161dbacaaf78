"""What stands behind a `Store`: its ports, groups, heartbeat and waiters, per process and event loop.

Opened when first needed. A forked child starts with none of it: its parent's connections are kept, unclosed
and unused, since closing them would speak on a socket that the parent still uses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from effectonce.contracts import Backend, Clock, Event, Hook, Port
from effectonce.errors import StoreUnavailable
from effectonce.record import Answer, Claim, Settlement

from .batching import AsyncGroup, Group, ThreadGroup
from .drive import drive
from .heartbeat import Heartbeat
from .privacy import Privacy
from .waiting import Signal, TaskSignal, ThreadSignal, Waiters

log = logging.getLogger("effectonce")

Submit = Callable[[Any], Any]  # the reply, or an awaitable of it


class Side:
    """One colour of a store, as the flow sees it: claim, settle, and a signal to wait on."""

    __slots__ = ("claim", "loop", "ports", "settle")

    def __init__(
        self, claim: Submit, settle: Submit, ports: list[Port], loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.claim = claim
        self.settle = settle
        self.ports = ports
        self.loop = loop

    def signal(self) -> Signal:
        return ThreadSignal() if self.loop is None else TaskSignal(self.loop)


class Engine:
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
        self.hooks = hooks
        self._clock: Clock | None = getattr(backend, "clock", None)  # of stores that have no server to ask
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
        self.heartbeat = Heartbeat(
            self.leased,
            self.backend.sync_port,
            self.monotonic,
            self._report_sweep,
            self._sweep_every,
            capabilities.batch,
            by_hand=self._clock is not None and self._clock.manual,
        )
        self.sync: Side | None = None  # what `sync_side` opened
        self._loops: dict[asyncio.AbstractEventLoop, Side] = {}
        self._last: tuple[asyncio.AbstractEventLoop, Side] | None = None
        self._people: Port | None = None
        self.people_lock = threading.Lock()
        self._listener: threading.Thread | None = None

    def after_fork(self) -> None:
        _inherited.append((self.sync, self._loops, self._people, self.heartbeat))
        self._lock = threading.Lock()
        self._fresh()

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
        return side

    def _side(self, open_port: Callable[[], Port], loop: asyncio.AbstractEventLoop | None) -> Side:
        capabilities = self.backend.capabilities
        if capabilities.lanes == 0:
            port: Any = open_port()
            return Side(port.claim, port.settle, [port], loop)
        groups: list[Group] = []
        ports: list[Port] = []
        for _ in range(2 if capabilities.lanes == 3 else 1):
            if loop is None:
                own = [open_port()]
                groups.append(ThreadGroup(own[0], capabilities.batch, self._orphaned_in_thread))
            else:
                own = [open_port() for _ in range(2 if capabilities.lanes == 3 else 1)]
                groups.append(AsyncGroup(own, capabilities.batch, self._orphaned_in_loop, loop))
            ports += own
        return Side(groups[0].submit, groups[-1].submit, ports, loop)

    def _orphaned_in_thread(self, claim: Claim, answer: Answer) -> None:
        try:
            drive(self.sync_side().settle(release(claim, answer)))
        except Exception as error:  # the lease ends by itself
            log.debug("a claim granted to nobody was not released: %s", error)

    def _orphaned_in_loop(self, claim: Claim, answer: Answer) -> None:
        future = asyncio.ensure_future(self.async_side().settle(release(claim, answer)))
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

    # -- events

    def emit(
        self, kind: Any, scope: str = "", key: str = "", attempt: int = 0, token: int = 0, seconds: float = 0.0,
        detail: str = "",
    ) -> None:  # fmt: skip
        """Tell every hook. A hook that raises is logged and otherwise ignored: telemetry never changes an outcome."""
        event = Event(kind, scope, key, attempt, token, seconds, detail)
        for hook in self.hooks:
            try:
                hook(event)
            except Exception:
                log.exception("an effectonce hook raised on %s", kind)

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
        if self.backend.capabilities.notifies and self._listener is None:
            with self._lock:
                if self._listener is None:
                    self._listener = threading.Thread(
                        target=self._listen, args=(self.waiters,), name="effectonce-listener", daemon=True
                    )
                    self._listener.start()

    def _listen(self, waiters: Waiters) -> None:
        port = self.backend.sync_port()
        idle = 0
        while self.waiters is waiters and idle < 30:
            idle = 0 if waiters.waiting else idle + 1
            try:
                for identity in drive(port.changes(1.0)):
                    waiters.wake(identity)
            except Exception as error:  # wake-ups are hints: the poll goes on without them
                log.debug("no wake-ups from %r: %s", self.backend, error)
                time.sleep(1.0)
        with self._lock:
            if self.waiters is waiters:
                self._listener = None
        drive(port.close())

    # -- people and the end

    def people(self) -> Port:
        """The port for `get`, `list` and the rest; held under `people_lock` while it is used."""
        if self._people is None:
            self._people = self.backend.sync_port()
        return self._people

    async def close(self, *, here: asyncio.AbstractEventLoop | None = None) -> None:
        """Close what this colour may close: sync ports, and the async ports of the loop ``here``."""
        with self._lock:
            sync, self.sync = self.sync, None
            people, self._people = self._people, None
            side = self._loops.pop(here, None) if here is not None else None
            self._last = None
            waiters, self.waiters = self.waiters, Waiters()
        del waiters
        self.heartbeat.stop()
        for port in (*(sync.ports if sync else ()), *((people,) if people else ())):
            drive(port.close())
        if side is not None:
            for port in side.ports:
                try:
                    await port.close()
                except StoreUnavailable as error:
                    log.debug("closing %r: %s", self.backend, error)


def release(claim: Claim, answer: Answer) -> Settlement:
    """Give back a grant whose work never started: it does not count as an attempt."""
    return Settlement(claim.scope, claim.key, claim.owner, answer.token, "free", claim.retention, refund=True)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_inherited: list[Any] = []


def _after_fork() -> None:
    for engine in list(_engines):
        engine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
