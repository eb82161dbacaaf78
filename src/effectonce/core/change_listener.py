"""`ChangeListener`: wakes the waiters of this process when another process settles the record that they wait for."""

from __future__ import annotations

import logging
import threading
from typing import Final

from effectonce.contracts import Backend, Port

from .run_sync import run_sync
from .waiting import Waiters

log = logging.getLogger("effectonce")

LISTEN_SECONDS: Final = 1.0  # how long one round waits for the next change
MAX_IDLE_ROUNDS: Final = 30  # after so many rounds without a waiter, the thread ends


class ChangeListener:
    """A thread that reads the store's changes on a port of its own. It ends when no call has waited for a while.

    Without it waiters only wake up later: each polls the store, too. Any thread may call `start` and `stop`. The thread
    closes its port itself, and opens a new one when it is started again.
    """

    def __init__(self, backend: Backend, waiters: Waiters) -> None:
        self._backend = backend
        self._waiters = waiters
        self._lock = threading.Lock()
        self._stop_event: threading.Event | None = None  # ends the running thread; None: no thread runs

    @property
    def is_running(self) -> bool:
        return self._stop_event is not None

    def start(self) -> None:
        """Start the thread, unless it runs already or the store does not report changes."""
        if self._backend.capabilities.notifies and not self.is_running:
            with self._lock:
                if not self.is_running:
                    stop = threading.Event()
                    thread = threading.Thread(target=self._run, args=(stop,), name="effectonce-listener", daemon=True)
                    self._stop_event = stop  # before the thread runs: it resets this when it ends
                    try:
                        thread.start()
                    except RuntimeError as error:  # the interpreter is ending, or there are too many threads
                        log.debug("no notifications from %r, polling instead: %s", self._backend, error)
                        self._stop_event = None

    def stop(self) -> None:
        if self._stop_event is not None:
            self._stop_event.set()
            self._stop_event = None

    def _run(self, stop: threading.Event) -> None:
        port: Port | None = None
        idle_rounds = 0
        while not stop.is_set() and idle_rounds < MAX_IDLE_ROUNDS:
            idle_rounds = 0 if self._waiters.waiting else idle_rounds + 1
            try:
                port = port or self._backend.sync_port()
                for identity in run_sync(port.changes(LISTEN_SECONDS)):
                    self._waiters.wake(identity)
            except Exception as error:
                log.debug("no notifications from %r, polling instead: %s", self._backend, error)
                stop.wait(LISTEN_SECONDS)
        if self._stop_event is stop:  # else it was stopped, and perhaps started again since
            self._stop_event = None
        if port is not None:
            run_sync(port.close())
