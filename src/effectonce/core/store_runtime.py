"""Everything behind a `Store` in one process: its clients and their connections, the heartbeat, and the waiters.

Each part is opened when it is first needed. A forked child opens its own: it keeps its parent's connections without
using or closing them, since closing one would send bytes on a socket that the parent still uses.

Any thread may call this. ``_lock`` guards the opening of each part. What is open is read without the lock: a signal
handler that reads it may interrupt the very thread that holds the lock. Therefore collections that other threads
iterate over are replaced, never changed. The exception is ``leased_runs``, a set, which changes by single steps.
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
from functools import partial
from typing import TYPE_CHECKING, Any

from effectonce.contracts import Backend, Clock, Hook, Port
from effectonce.errors import EffectOnceError
from effectonce.record import Answer, Claim

from .change_listener import ChangeListener
from .events import Events
from .failure_log import log_failed_attempt
from .group_commit.batcher import StoreBatcher
from .group_commit.batches import BatchSizes
from .group_commit.tasks import AsyncGroup
from .group_commit.threads import ThreadGroup
from .heartbeat import Heartbeat
from .loop_end import call_at_loop_end
from .privacy import Privacy
from .run_sync import run_sync
from .store_clients import ClaimAndSettlement, LocalClient, LoopClient, StoreClient, ThreadClient, release_with_refund
from .waiting import Waiters

if TYPE_CHECKING:
    from .guarded_call.run import StoreRun

log = logging.getLogger("effectonce")


class StoreRuntime(Events):
    """Owned by a `Store`. It emits events itself, as `Events`."""

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
        self.change_listener = ChangeListener(self.backend, self.waiters)
        self.leased_runs: set[StoreRun] = set()  # the runs that hold a lease in this process
        self._random_bits = random.Random(os.urandom(32)).getrandbits  # seeded in every process
        self.heartbeat = Heartbeat(
            self.leased_runs,
            self.backend.sync_port,
            self.monotonic,
            call_weakly(self._report_sweep),
            self._sweep_every,
            self.backend.capabilities.batch,
            manual=self._clock is not None and self._clock.manual,
        )
        # When the store is garbage-collected, its thread ends.
        self._finalizer = weakref.finalize(self, self.heartbeat.stop, wait=False)
        self._finalizer.atexit = False
        self._sync_client: StoreClient | None = None
        self._thread_groups: ClaimAndSettlement[ThreadGroup] | None = None
        self._loop_clients: dict[asyncio.AbstractEventLoop, StoreClient] = {}
        self._batchers: list[ClaimAndSettlement[StoreBatcher]] = []  # one pair for each worker
        self._admin_port: Port | None = None
        self.admin_lock = threading.Lock()

    def after_fork(self) -> None:
        """Start afresh in a forked child, which has this thread only. Claims that were held stay the parent's."""
        self._finalizer.detach()
        for run in self.leased_runs:  # only the parent settles them
            run.protected = False
        _inherited.append((self._thread_groups, self._loop_clients, self._batchers, self._admin_port, self.heartbeat))
        self._lock = threading.Lock()
        renew = getattr(self.backend, "after_fork", None)
        if renew is not None:
            renew()
        self._start_fresh()

    # -- clocks and owners

    def now(self) -> int:
        """Microseconds since the epoch, without asking a server: by this machine's clock if the store has a server."""
        return time.time_ns() // 1000 if self._clock is None else self._clock.now()

    def new_owner(self) -> bytes:
        """16 bytes that no other call has, in all the processes that meet at the store."""
        # The time is mixed in for processes that were resumed from one snapshot, generator and all.
        return (self._random_bits(128) ^ time.time_ns()).to_bytes(16, "little")

    # -- clients

    def sync_client(self) -> StoreClient:
        """The client for sync code, on any thread."""
        client = self._sync_client
        if client is None:  # else take no lock: a signal handler may call this while its own thread holds it
            with self._lock:
                client = self._sync_client = self._sync_client or self._new_sync_client()
        return client

    def _new_sync_client(self) -> StoreClient:
        if self.backend.capabilities.connections == "none":
            return LocalClient(self.backend.sync_port(), None)
        return ThreadClient(self._open_thread_groups)

    def _open_thread_groups(self) -> ClaimAndSettlement[ThreadGroup]:
        groups = self._thread_groups
        if groups is None:
            with self._lock:
                groups = self._thread_groups = self._thread_groups or self._new_thread_groups()
        return groups

    def _new_thread_groups(self) -> ClaimAndSettlement[ThreadGroup]:
        capabilities = self.backend.capabilities

        def new_group() -> ThreadGroup:
            return ThreadGroup(self.backend.sync_port(), capabilities.batch, self._release_from_thread)

        claims = new_group()
        # Threads share a group where batches may be mixed: each further group is another leader to wake.
        apart = capabilities.connections == "by_kind" and not capabilities.mixed_batches
        return ClaimAndSettlement(claims, new_group() if apart else claims)

    def _release_from_thread(self, claim: Claim, answer: Answer) -> None:
        try:
            self._open_thread_groups().settlements.submit(release_with_refund(claim, answer))
        except Exception as error:  # the lease ends by itself
            log.debug("an orphaned claim was not released: %s", error)

    def async_client(self) -> StoreClient:
        """The client for the running event loop."""
        loop = asyncio.get_running_loop()
        client = self._loop_clients.get(loop)
        if client is None:
            with self._lock:
                client = self._new_loop_client(loop)  # only this loop's thread makes one for it
                others = {other: theirs for other, theirs in self._loop_clients.items() if not other.is_closed()}
                self._loop_clients = {**others, loop: client}
        return client

    def _new_loop_client(self, loop: asyncio.AbstractEventLoop) -> StoreClient:
        capabilities = self.backend.capabilities
        if capabilities.connections == "none":
            return LocalClient(self.backend.async_port(), loop)

        def new_group() -> AsyncGroup:
            return AsyncGroup(self._new_async_ports(), capabilities.batch, self._release_from_loop, loop)

        claims = settlements = new_group()
        if capabilities.connections == "by_kind":
            settlements = new_group()
            claims.neighbour, settlements.neighbour = settlements, claims
        client = LoopClient(ClaimAndSettlement(claims, settlements), loop)
        client.loop_end = call_at_loop_end(partial(_close_groups, client.groups))
        return client

    def _new_async_ports(self) -> list[Port]:
        """The ports of one group or batcher. With two, half of its operations are at the store while the loop serves
        the callers of the other half."""
        count = 2 if self.backend.capabilities.connections == "by_kind" else 1
        return [self.backend.async_port() for _ in range(count)]

    def open_batchers(self, fail: Callable[[Exception], None]) -> ClaimAndSettlement[StoreBatcher]:
        """Open what sends a worker's operations, for the running event loop, until the worker closes it.

        ``fail`` is called with an exception of a callback; see `StoreBatcher`.
        """
        capabilities = self.backend.capabilities
        claims = settlements = StoreBatcher(self._new_async_ports(), capabilities.batch, fail)
        if capabilities.connections == "by_kind" and not capabilities.mixed_batches:
            settlements = StoreBatcher(self._new_async_ports(), capabilities.batch, fail)
        batchers = ClaimAndSettlement(claims, settlements)
        self._batchers = [*(others for others in self._batchers if not others.claims.closed), batchers]
        return batchers

    def _release_from_loop(self, claim: Claim, answer: Answer) -> None:
        client = self.async_client()
        assert isinstance(client, LoopClient)
        client.release(claim, answer)

    def batch_sizes(self) -> list[tuple[str, BatchSizes]]:
        """The batch sizes of every group and batcher, each after its label: see `ClaimAndSettlement.by_label`."""
        clients = [client.groups for client in self._loop_clients.values()]
        senders: list[ClaimAndSettlement[Any] | None] = [self._thread_groups, *clients, *self._batchers]
        return [(label, group.sizes) for sender in filter(None, senders) for label, group in sender.by_label()]

    # -- events

    def _report_sweep(self, deleted: int, lapsed: int, error: Exception | None) -> None:
        if error is not None:
            log_failed_attempt({"sweep": f"of {self.backend!r}"}, error, "is tried again", last=False)
            own = isinstance(error, EffectOnceError)
            self.emit("sweep_failed", detail=str(error) if own else f"{type(error).__name__}: {error}")
        else:
            self.emit("swept", detail=f"deleted {deleted}, in doubt {lapsed}")

    # -- operators, and the end

    def admin_port(self) -> Port:
        """The port for `get`, `list` and the rest; to be used under `admin_lock`."""
        if self._admin_port is None:
            self._admin_port = self.backend.sync_port()
        return self._admin_port

    def close(self) -> None:
        """Close the sync ports, each when its round trip is over. A port opens again if it is used again."""
        self.heartbeat.stop()
        self.change_listener.stop()
        with self.admin_lock:
            if self._admin_port is not None:
                run_sync(self._admin_port.close())
        if self._thread_groups is not None:
            for group in self._thread_groups.distinct():
                run_sync(group.close())

    async def aclose(self) -> None:
        """Close the ports of the running event loop."""
        client = self._loop_clients.get(asyncio.get_running_loop())
        if isinstance(client, LoopClient):
            await _close_groups(client.groups)


async def _close_groups(groups: ClaimAndSettlement[AsyncGroup]) -> None:
    for group in groups.distinct():
        await group.close()


def call_weakly(method: Callable[..., None]) -> Callable[..., None]:
    """``method``, for a thread that must not keep its object alive."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(*args)

    return call


_runtimes: weakref.WeakSet[StoreRuntime] = weakref.WeakSet()
_inherited: list[Any] = []  # from the parent process: kept here, because garbage collection would close it


def _after_fork() -> None:
    """Make every store of a forked child start afresh. One that fails does not stop the others."""
    for runtime in list(_runtimes):
        try:
            runtime.after_fork()
        except Exception:
            log.warning("a store could not be renewed in a forked process; open another one there", exc_info=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
