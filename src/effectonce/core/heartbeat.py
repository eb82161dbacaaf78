"""One thread per store and process that keeps leases alive and sweeps what has ended.

It runs on its own sync port, for sync and async handlers alike, so that a handler that blocks its event loop or holds
the interpreter for long still keeps its lease as far as threads get a turn.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from effectonce.contracts import Port
from effectonce.errors import EffectOnceError
from effectonce.record import Renewal

from .group_commit.exchange import exchange, pause_thread
from .run_sync import run_sync

log = logging.getLogger("effectonce")

SWEEP_BATCH = 500  # records deleted, and moved, in one sweep at most
IDLE_LEASE_US = 3_600_000_000  # where no lease is to be kept, as often as for one of an hour
NEVER_SECONDS = 10 * 365 * 86400.0


class LeasedRun(Protocol):
    """A run whose lease is to be kept."""

    sent_at: float  # when the lease was last asked for, on the monotonic clock
    started_at: float  # when it was granted, there

    @property
    def policy(self) -> LeasePolicy: ...

    def renewal(self) -> Renewal: ...

    def mark_lost(self) -> None: ...


class LeasePolicy(Protocol):
    @property
    def lease(self) -> int: ...

    @property
    def max_run(self) -> float: ...


class Heartbeat:
    """Renews every lease in ``leased`` between a quarter and half of its span.

    A call only adds itself to that set and takes itself out again. The thread starts with the first.
    """

    def __init__(
        self,
        leased: set[Any],
        open_port: Callable[[], Port],
        monotonic: Callable[[], float],
        swept: Callable[[int, int, str], None],
        sweep_every: float | None,
        batch: int,
        *,
        by_hand: bool,
    ) -> None:
        self._leased: set[LeasedRun] = leased
        self._open_port = open_port
        self._monotonic = monotonic
        self._swept = swept
        self._sweep_every = sweep_every
        self._batch = batch
        self._by_hand = by_hand  # under a manual clock nothing happens by itself
        self._shortest = IDLE_LEASE_US
        self._thread: threading.Thread | None = None
        self._nudge = threading.Event()
        self._lock = threading.Lock()
        self._end = threading.Event()

    def cover(self, lease: int) -> None:
        """Beat often enough for ``lease``, in microseconds. The first starts the thread."""
        if lease >= self._shortest and (self._thread is not None or self._by_hand):
            return
        with self._lock:
            if not self._by_hand and (self._thread is None or not self._thread.is_alive()):
                self._end = threading.Event()
                thread = threading.Thread(target=self._run, args=(self._end,), name="effectonce-heartbeat", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the interpreter is ending, or there are too many threads
                    log.warning("no heartbeat: %s; a handler that outlasts its lease may run twice", error)
                    return
                self._thread = thread
            self._shortest = min(self._shortest, lease)
            self._nudge.set()

    def stop(self, wait: bool = True) -> None:
        """End the thread, unless there are leases to keep: closing a store must not take them from a running call."""
        with self._lock:
            # Set before the leases are looked at: a call that comes after this starts the thread again.
            shortest, self._shortest = self._shortest, IDLE_LEASE_US
            if self._leased:
                self._shortest = shortest
                return
            thread, self._thread = self._thread, None
            self._end.set()
            self._nudge.set()
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join(1)

    def _run(self, end: threading.Event) -> None:
        port: Port | None = None
        due = self._next_sweep()
        while not end.is_set():
            self._nudge.wait(min(self._shortest / 4e6, max(0.0, due - self._monotonic())))
            self._nudge.clear()
            if end.is_set():
                break
            try:
                port = port or self._open_port()
                self.beat(port)
                if self._monotonic() >= due:
                    more = self.sweep(port)
                    due = self._monotonic() if more else self._next_sweep()
            except Exception:
                log.exception("the heartbeat failed; it tries again")
                end.wait(0.1)
        if port is not None:
            run_sync(port.close())

    def _next_sweep(self) -> float:
        if self._sweep_every is None:
            return self._monotonic() + NEVER_SECONDS
        return self._monotonic() + self._sweep_every * random.uniform(0.5, 1.5)

    def beat(self, port: Port | None = None) -> None:
        """Renew what is due now. Called by the thread; tests call it by hand."""
        now = self._monotonic()
        due = []
        for run in tuple(self._leased):
            policy = run.policy
            if run.sent_at + policy.lease * 0.25e-6 <= now < run.started_at + policy.max_run:
                due.append(run)
        for start in range(0, len(due), self._batch):
            self._renew(port or self._open_port(), due[start : start + self._batch], now)

    def _renew(self, port: Port, due: Sequence[LeasedRun], now: float) -> None:
        pairs = sorted(((run.renewal(), run) for run in due), key=lambda pair: (pair[0].scope, pair[0].key))
        replies = run_sync(exchange(port, [renewal for renewal, _ in pairs], pause_thread))
        for (_, run), reply in zip(pairs, replies, strict=True):
            if reply is True:
                run.sent_at = now
            elif reply is False and run in self._leased:
                run.mark_lost()
            # An error: the next beat tries again; the run knows from the clock when its lease has ended.

    def sweep(self, port: Port) -> bool:
        """One bounded sweep; True where there is more to do. A failure is reported, never swallowed."""
        try:
            swept = run_sync(port.sweep(SWEEP_BATCH))
        except EffectOnceError as error:
            self._swept(0, 0, str(error))
            return False
        except Exception as error:
            self._swept(0, 0, f"{type(error).__name__}: {error}")
            return False
        self._swept(swept.deleted, swept.lapsed, "")
        return swept.more
