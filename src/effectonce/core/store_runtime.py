"""What stands behind a `Store`: its connections, group commit, heartbeat and waiters, per process and event loop.

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
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from effectonce.contracts import Backend, Clock, Hook, Port
from effectonce.record import Answer, Batchable, Claim, Look, Note, Remember, Settlement

from .events import Events
from .group_commit.batcher import StoreBatcher
from .group_commit.batches import Group
from .group_commit.tasks import AsyncGroup
from .group_commit.threads import ThreadGroup
from .heartbeat import Heartbeat
from .privacy import Privacy
from .run_sync import run_sync
from .waiting import Signal, TaskSignal, ThreadSignal, Waiters

log = logging.getLogger("effectonce")

LISTEN_SECONDS: Final = 1.0  # how long the listener waits for the next change
IDLE_LISTENER_ROUNDS: Final = 30  # after so many of these without a waiter, the listener ends


class StoreClient(Protocol):
    """How a guarded call reaches the store. The coroutines of a client for sync code never suspend."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that it serves; None: sync code."""
        ...

    @property
    def groups(self) -> Sequence[Group]:
        """Where its operations are coalesced: nowhere, in one group, or in one for claims and one for settlements."""
        ...

    async def claim(self, op: Claim | Look) -> Answer:
        """The answer. A caller that is cancelled before it has the answer holds no claim."""
        ...

    async def settle(self, op: Settlement | Note | Remember) -> bool:
        """Whether it was applied. It goes to the store even if the caller is cancelled meanwhile."""
        ...

    def signal(self) -> Signal:
        """What a caller that waits for another delivery is woken by."""
        ...


class LocalClient:
    """For a store in this process: each operation goes straight to the port."""

    groups: Final[Sequence[Group]] = ()

    def __init__(self, port: Port, loop: asyncio.AbstractEventLoop | None) -> None:
        self._port = port
        self.loop = loop

    async def claim(self, op: Batchable) -> Any:
        (reply,) = await self._port.run((op,))
        if isinstance(reply, Exception):
            raise reply
        return reply

    settle = claim

    def signal(self) -> Signal:
        return ThreadSignal() if self.loop is None else TaskSignal(self.loop)


class ThreadClient:
    """For sync code. It asks the runtime for its groups each time: a call that forks must not use the parent's
    connections when it continues in the child."""

    loop: Final = None

    def __init__(self, open_groups: Callable[[], Sequence[ThreadGroup]]) -> None:
        self._open_groups = open_groups

    @property
    def groups(self) -> Sequence[Group]:
        return self._open_groups()

    async def claim(self, op: Claim | Look) -> Any:
        return self._open_groups()[0].submit(op)

    async def settle(self, op: Settlement | Note | Remember) -> Any:
        return self._open_groups()[-1].submit(op)

    def signal(self) -> Signal:
        return ThreadSignal()


class LoopClient:
    """For one event loop."""

    def __init__(self, claims: AsyncGroup, settlements: AsyncGroup, loop: asyncio.AbstractEventLoop) -> None:
        self._claims = claims
        self._settlements = settlements
        self.loop = loop
        self.groups: Sequence[Group] = (claims,) if claims is settlements else (claims, settlements)

    async def claim(self, op: Claim | Look) -> Any:
        future = self._claims.submit(op)
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
        """Release a granted claim whose caller is gone, without waiting: otherwise its lease ends by itself."""
        future = self._settlements.submit(release(claim, answer))
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def settle(self, op: Settlement | Note | Remember) -> Any:
        return await self._settlements.submit(op)

    def signal(self) -> Signal:
        return TaskSignal(self.loop)


def release(claim: Claim, answer: Answer) -> Settlement:
    """Give back a grant whose work never started: it does not count as an attempt."""
    return Settlement(
        scope=claim.scope,
        key=claim.key,
        owner=claim.owner,
        token=answer.token,
        state="free",
        retention=claim.retention,
        refund=True,
    )


class StoreRuntime(Events):
    """See the module."""

    def __init__(
        self,
        backend: Backend,
        *,
        privacy: Privacy | None = None,
        hooks: tuple[Hook, ...] = (),
        sweep_every: float | None = 60.0,
    ) -> None:
        super().__init__(hooks)
        self.backend = backend
        self.privacy = privacy
        self._clock: Clock | None = getattr(backend, "clock", None)  # of stores that have no server to ask
        #: The clock that leases are kept by, in seconds.
        self.monotonic: Callable[[], float] = time.monotonic if self._clock is None else self._clock.monotonic
        self._sweep_every = sweep_every
        self._lock = threading.Lock()
        self._start_fresh()
        _runtimes.add(self)

    def _start_fresh(self) -> None:
        self.waiters = Waiters()
        self.leased_runs: set[Any] = set()  # the runs that hold a lease in this process
        self._random_bits = random.Random(os.urandom(32)).getrandbits  # seeded anew in every process
        self.heartbeat = Heartbeat(
            self.leased_runs,
            self.backend.sync_port,
            self.monotonic,
            call_weakly(self._report_sweep),
            self._sweep_every,
            self.backend.capabilities.batch,
            by_hand=self._clock is not None and self._clock.manual,
        )
        # When the store is garbage-collected, its thread ends.
        self._finalizer = weakref.finalize(self, self.heartbeat.stop, wait=False)
        self._finalizer.atexit = False
        self._sync_client: StoreClient | None = None
        self._thread_groups: list[ThreadGroup] = []
        self._loop_clients: dict[asyncio.AbstractEventLoop, StoreClient] = {}
        self._batcher_pairs: list[tuple[StoreBatcher, StoreBatcher]] = []  # of workers: for claims, and for settlements
        self._admin_port: Port | None = None
        self.admin_lock = threading.Lock()
        self._listener_end: threading.Event | None = None  # what ends the listener, where there is one

    def after_fork(self) -> None:
        self._finalizer.detach()
        for run in self.leased_runs:  # they are the parent's: only the parent settles them
            run.protected = False
        parents = (self._thread_groups, self._loop_clients, self._batcher_pairs, self._admin_port, self.heartbeat)
        _inherited.append(parents)
        self._lock = threading.Lock()
        renew = getattr(self.backend, "after_fork", None)
        if renew is not None:
            renew()
        self._start_fresh()

    # -- clocks and owners

    def now(self) -> int:
        """Microseconds since the epoch, by this process's own clock where the store has a server to ask."""
        return time.time_ns() // 1000 if self._clock is None else self._clock.now()

    def new_owner(self) -> bytes:
        """16 bytes that no other call has, in all the processes that meet at the store."""
        # The time is mixed in for processes that were resumed from one snapshot, generator and all.
        return (self._random_bits(128) ^ time.time_ns()).to_bytes(16, "little")

    # -- clients

    def sync_client(self) -> StoreClient:
        """The client for sync code, on any thread."""
        client = self._sync_client
        if client is None:  # not under the lock once it is there: a signal's handler may come by here
            with self._lock:
                if self._sync_client is None:
                    self._sync_client = self._new_sync_client()
                client = self._sync_client
        return client

    def _new_sync_client(self) -> StoreClient:
        if self.backend.capabilities.lanes == 0:
            return LocalClient(self.backend.sync_port(), None)
        return ThreadClient(self._open_thread_groups)

    def _open_thread_groups(self) -> Sequence[ThreadGroup]:
        groups = self._thread_groups
        if not groups:
            with self._lock:
                if not self._thread_groups:
                    self._thread_groups = self._new_thread_groups()
                groups = self._thread_groups
        return groups

    def _new_thread_groups(self) -> list[ThreadGroup]:
        capabilities = self.backend.capabilities
        # Threads share a lane where the store mixes: each lane more is another leader to wake.
        lanes = 2 if capabilities.lanes == 3 and not capabilities.mixes else 1
        return [
            ThreadGroup(self.backend.sync_port(), capabilities.batch, self._release_from_thread) for _ in range(lanes)
        ]

    def _release_from_thread(self, claim: Claim, answer: Answer) -> None:
        try:
            self._open_thread_groups()[-1].submit(release(claim, answer))
        except Exception as error:  # the lease ends by itself
            log.debug("an orphaned claim was not released: %s", error)

    def async_client(self) -> StoreClient:
        """The client for the running event loop."""
        loop = asyncio.get_running_loop()
        client = self._loop_clients.get(loop)
        if client is None:
            with self._lock:
                client = self._new_loop_client(loop)
                open_loops = {known: client for known, client in self._loop_clients.items() if not known.is_closed()}
                self._loop_clients = {**open_loops, loop: client}
        return client

    def _new_loop_client(self, loop: asyncio.AbstractEventLoop) -> StoreClient:
        capabilities = self.backend.capabilities
        if capabilities.lanes == 0:
            return LocalClient(self.backend.async_port(), loop)
        claims = self._new_loop_group(loop, None)
        settlements = self._new_loop_group(loop, claims) if capabilities.lanes == 3 else claims
        return LoopClient(claims, settlements, loop)

    def _new_loop_group(self, loop: asyncio.AbstractEventLoop, beside: AsyncGroup | None) -> AsyncGroup:
        capabilities = self.backend.capabilities
        ports = [self.backend.async_port() for _ in range(2 if capabilities.lanes == 3 else 1)]
        return AsyncGroup(ports, capabilities.batch, self._release_from_loop, loop, beside)

    def open_batchers(self, fail: Callable[[Exception], None]) -> tuple[StoreBatcher, StoreBatcher]:
        """Open what sends a worker's claims and its settlements: one and the same where the store takes both in one
        round trip. For the running event loop, until they are closed; see `StoreBatcher`."""
        capabilities = self.backend.capabilities

        def open_batcher() -> StoreBatcher:
            ports = [self.backend.async_port() for _ in range(2 if capabilities.lanes == 3 else 1)]
            return StoreBatcher(ports, capabilities.batch, fail)

        claims = settlements = open_batcher()
        if capabilities.lanes == 3 and not capabilities.mixes:
            settlements = open_batcher()
        self._batcher_pairs = [pair for pair in self._batcher_pairs if not pair[0].closed] + [(claims, settlements)]
        return claims, settlements

    def _release_from_loop(self, claim: Claim, answer: Answer) -> None:
        client = self.async_client()
        assert isinstance(client, LoopClient)
        client.release(claim, answer)

    def batch_sizes(self) -> list[tuple[str, list[int]]]:
        """By lane, what `Group.sizes` of each of its groups says."""
        sizes: list[tuple[str, list[int]]] = []
        clients = [client.groups for client in self._loop_clients.values()]
        lanes: list[Sequence[Group | StoreBatcher]] = [self._thread_groups, *clients, *self._batcher_pairs]
        for groups in lanes:
            if len(groups) == 2 and groups[0] is not groups[1]:
                sizes += [("claims", groups[0].sizes), ("settlements", groups[1].sizes)]
            elif groups:
                sizes.append(("both", groups[0].sizes))
        return sizes

    # -- events

    def _report_sweep(self, deleted: int, lapsed: int, error: str) -> None:
        if error:
            log.warning("effectonce could not sweep %r: %s", self.backend, error)
            self.emit("sweep_failed", detail=error)
        else:
            self.emit("swept", detail=f"deleted {deleted}, in doubt {lapsed}")

    # -- waiting

    def listen_for_changes(self) -> None:
        """Make sure that settlements by other processes wake our waiters, where the store reports them."""
        if self.backend.capabilities.notifies and self._listener_end is None:
            with self._lock:
                if self._listener_end is None:
                    self._listener_end = end = threading.Event()
                    args = (self.backend, self.waiters, end, call_weakly(self._listener_ended))
                    threading.Thread(target=_listen, args=args, name="effectonce-listener", daemon=True).start()

    def _listener_ended(self, end: threading.Event) -> None:
        if self._listener_end is end:
            self._listener_end = None

    # -- operators, and the end

    def admin_port(self) -> Port:
        """The port for `get`, `list` and the rest; to be used under `admin_lock`."""
        if self._admin_port is None:
            self._admin_port = self.backend.sync_port()
        return self._admin_port

    def close(self) -> None:
        """Close the sync ports, each when its round trip is over. Whatever is used again opens again."""
        self.heartbeat.stop()
        if self._listener_end is not None:
            self._listener_end.set()
            self._listener_end = None
        with self.admin_lock:
            if self._admin_port is not None:
                run_sync(self._admin_port.close())
        for group in self._thread_groups:
            run_sync(group.close())

    async def aclose(self) -> None:
        """Close the ports of the running event loop."""
        client = self._loop_clients.get(asyncio.get_running_loop())
        for group in client.groups if client is not None else ():
            await group.close()


def _listen(backend: Backend, waiters: Waiters, end: threading.Event, ended: Callable[[threading.Event], None]) -> None:
    port: Port | None = None
    idle_rounds = 0
    while not end.is_set() and idle_rounds < IDLE_LISTENER_ROUNDS:
        idle_rounds = 0 if waiters.waiting else idle_rounds + 1
        try:
            port = port or backend.sync_port()
            for identity in run_sync(port.changes(LISTEN_SECONDS)):
                waiters.wake(identity)
        except Exception as error:  # wake-ups are hints: waiters poll without them
            log.debug("no wake-ups from %r: %s", backend, error)
            end.wait(LISTEN_SECONDS)
    ended(end)
    if port is not None:
        run_sync(port.close())


def call_weakly(method: Callable[..., None]) -> Callable[..., None]:
    """``method``, for a thread that must not keep its object alive."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(*args)

    return call


_runtimes: weakref.WeakSet[StoreRuntime] = weakref.WeakSet()
_inherited: list[Any] = []


def _after_fork() -> None:
    """Let every store drop what belongs to its parent process. One that fails does not keep the others from it."""
    for runtime in list(_runtimes):
        try:
            runtime.after_fork()
        except Exception:
            log.warning("a store could not be renewed in a forked process; open another one there", exc_info=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
