"""One thread per store and process that keeps leases alive, releases what was granted to callers that are gone, and
sweeps what has ended.

It runs on a sync port of its own, for sync and async handlers alike. So a handler that blocks its event loop keeps its
lease, too. It cannot keep a lease for a process that is stopped, or has lost its store: then the lease ends, and the
run learns it from the clock (`Run.lease_lost`).
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from effectonce.contracts import Port
from effectonce.record import Claim

from .group_commit.send_batch import send_from_thread
from .run_sync import run_sync
from .unanswered_claims import UnansweredClaims

if TYPE_CHECKING:
    from .guarded_call.run import StoreRun

log = logging.getLogger("effectonce")

SWEEP_BATCH = 500  # the most records that one sweep deletes, and the most that it moves to in doubt
MAX_BEAT_LEASE_US = 3_600_000_000
"""The thread beats at least as often as for a lease of an hour; after a shorter lease as often as for that, until
`Heartbeat.stop`."""
RENEW_AFTER_PART = 0.25  # of the lease; the thread looks that often
UNANSWERED_RETRY_S = 1.0  # how often a store that does not answer is asked about claims that it did not answer
NEVER_S = 10 * 365 * 86400.0


class Heartbeat:
    """Renews the lease of every run in ``leased``, when a quarter to half of it has passed.

    A guarded call only adds its run to that set, calls `cover`, and removes the run when it ends; each is one step on a
    set, so no lock is needed for it. The thread starts with the first call. ``report_sweep`` is called after each sweep
    with the numbers of deleted and of lapsed records, and an error. ``manual``: a test moves the clock, so there is no
    thread; it calls `beat` and `sweep` itself.
    """

    def __init__(
        self,
        leased: set[StoreRun],
        open_port: Callable[[], Port],
        monotonic: Callable[[], float],
        report_sweep: Callable[[int, int, Exception | None], None],
        sweep_every: float | None,
        batch: int,
        *,
        manual: bool,
    ) -> None:
        self._leased = leased
        self._open_port = open_port
        self._monotonic = monotonic
        self._report_sweep = report_sweep
        self._sweep_every = sweep_every
        self._batch = batch
        self._manual = manual
        self._unanswered = UnansweredClaims(monotonic)
        #: The shortest lease that the thread beats often enough for. Infinite while it does not run, or is being
        #: stopped: then every `cover` takes the lock.
        self._shortest_lease_us = math.inf
        # What starts and ends the thread is changed under the lock: `cover` and `stop` come from any thread.
        self._thread: threading.Thread | None = None
        self._wake_up = threading.Event()
        self._lock = threading.Lock()
        self._end = threading.Event()

    def cover(self, lease_us: int) -> None:
        """Beat often enough for a lease of ``lease_us`` microseconds. The first call starts the thread."""
        if lease_us >= self._shortest_lease_us:
            return
        with self._lock:
            if not self._manual and (self._thread is None or not self._thread.is_alive()):
                self._end = threading.Event()
                thread = threading.Thread(target=self._run, args=(self._end,), name="effectonce-heartbeat", daemon=True)
                try:
                    thread.start()  # it may begin with the old pause: the wake-up below corrects that
                except RuntimeError as error:  # the interpreter is ending, or there are too many threads
                    log.warning("no heartbeat: %s; a handler that outlasts its lease may run twice", error)
                    return
                self._thread = thread
            self._shortest_lease_us = min(self._shortest_lease_us, lease_us, MAX_BEAT_LEASE_US)
            self._wake_up.set()

    def release_later(self, claim: Claim) -> None:
        """Release ``claim`` if it was granted: the store did not answer it, or its release. Its caller will not repeat
        it."""
        self._unanswered.add(claim)
        self.cover(claim.lease_us)
        self._wake_up.set()

    def stop(self, wait: bool = True) -> None:
        """End the thread, unless a run holds a lease: closing a store must not take the lease from a running call."""
        with self._lock:
            # Reset before the leases are looked at: then a call that begins from here on starts the thread again.
            shortest, self._shortest_lease_us = self._shortest_lease_us, math.inf
            if self._leased:
                self._shortest_lease_us = shortest
                self._wake_up.set()  # it may have looked while there was no shortest lease
                return
            thread, self._thread = self._thread, None
            self._end.set()
            self._wake_up.set()
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join(1)

    def _run(self, end: threading.Event) -> None:
        port: Port | None = None
        due = self._next_sweep()
        while not end.is_set():
            pause = min(self._shortest_lease_us / 1e6 * RENEW_AFTER_PART, max(0.0, due - self._monotonic()))
            self._wake_up.wait(min(pause, UNANSWERED_RETRY_S) if self._unanswered else pause)
            self._wake_up.clear()
            if end.is_set():
                break
            try:
                port = port or self._open_port()
                self.beat(port)
                self._unanswered.release(port)
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
            return self._monotonic() + NEVER_S
        return self._monotonic() + self._sweep_every * random.uniform(0.5, 1.5)

    def beat(self, port: Port | None = None) -> None:
        """Renew every lease that is due now."""
        now = self._monotonic()
        due = []
        for run in tuple(self._leased):
            policy = run.policy
            renew_at = run.lease_requested_at + policy.lease_us / 1e6 * RENEW_AFTER_PART
            # After ``max_run`` the lease is left to end. In a `process_deadline` that is NEVER_RENEWED.
            if renew_at <= now < run.started_at + policy.max_run_s:
                due.append(run)
        for start in range(0, len(due), self._batch):
            self._renew(port or self._open_port(), due[start : start + self._batch], now)

    def _renew(self, port: Port, due: Sequence[StoreRun], requested_at: float) -> None:
        """Renew the leases of ``due``. ``requested_at`` was read before the request is sent: a lease counts from when
        it was asked for. Read behind the reply, it would let this process believe in a lease that has ended."""
        pairs = sorted(((run.renewal(), run) for run in due), key=lambda pair: (pair[0].scope, pair[0].key))
        replies = send_from_thread(port, [renewal for renewal, _ in pairs])
        for (_, run), reply in zip(pairs, replies, strict=True):
            if reply is True:
                run.lease_requested_at = requested_at
            elif reply is False and run in self._leased:
                run.mark_lease_lost()
            # After an error the next beat tries again. The run sees from the clock when its lease has ended.

    def sweep(self, port: Port) -> bool:
        """Sweep once, and report the result or the error. Returns whether there is more to sweep."""
        try:
            swept = run_sync(port.sweep(SWEEP_BATCH))
        except Exception as error:
            self._report_sweep(0, 0, error)
            return False
        self._report_sweep(swept.deleted, swept.lapsed, None)
        return swept.more
