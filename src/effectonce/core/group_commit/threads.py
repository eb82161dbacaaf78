"""Group commit for threads: one of the waiting threads sends what all of them wait for.

A thread that calls `ThreadGroup.submit` takes part in one of three ways:

- *Leader*: it holds ``_leader_lock``. Only the leader uses the port and ``_sent``. It sends what is queued, its own
  operation included, batch after batch until its own is answered. Then it releases the lock, wakes the first thread of
  the queue to lead, and after that the threads that it has answered.
- *Follower*: another thread leads. Its operation is in the queue, and it blocks on the ``gate`` of its entry. It is
  woken when its operation is answered, or when it must lead. In case the wake-up was lost with a leader that was
  killed, it also looks by itself every `FOLLOWER_TIMEOUT_S`.
- *Lone caller*: a leader that finds no other thread here. It sends its operation without making a batch.

An operation (`ThreadEntry`) is in one of four states:

- *queued*: in ``_queue``, or behind another operation on the same identity (``behind``).
- *sent*: in ``_sent``, the batch of the leader. If an exception ends the leader there, the next leader sends the batch
  again, which is safe: every operation recognises its repetition.
- *answered*: ``reply`` is set, which is final. Its thread may still have to be woken.
- *abandoned*: an exception ended its thread, which no longer waits. A claim or look that was not sent yet stays unsent.
  If the claim was granted, the grant is given back (``give_back_grant``).

An exception may strike at any line here: Ctrl-C, or a worker's time limit that another thread throws. So every way out
of `submit` releases the lock (in two places, since two exceptions may come at once), and only then wakes the next
leader, which would find the lock taken otherwise. An interrupted follower first waits until its settlement has been
sent, because the effect has happened, and raises the exception then.

Two measures save context switches. A leader whose last batch had several operations yields once before it sends: the
threads that were answered then are about to submit again, and come into this batch. And it wakes only
`MAX_WOKEN_BY_LEADER` of the threads that it has answered; each of those wakes another one. Woken all at once, they
would only queue for the interpreter's lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from effectonce.contracts import Port
from effectonce.core.run_sync import pause_thread, run_sync
from effectonce.errors import SyncAsyncMismatch
from effectonce.record import Answer, Batchable, Claim, Look, Reply

from .batches import BatchSizes, Entry, is_grant, pair_replies, split_for_resend, take_batch
from .send_batch import copy_error, send_batch

FOLLOWER_TIMEOUT_S = 0.1  # after this, a follower checks by itself whether a thread leads
MAX_WOKEN_BY_LEADER = 4  # of the threads that it has answered

#: Lets the threads that can run go first; returns at once where there is none.
_yield_to_others: Final[Callable[[], object]] = getattr(os, "sched_yield", lambda: time.sleep(0))


class ThreadEntry(Entry, eq=False):
    """An operation of one thread, and where that thread waits."""

    reply: Reply | None = None
    gate: threading.Lock | None = None  # taken while its thread follows; released to wake it
    led: bool = False  # its thread has been the leader
    abandoned: bool = False
    #: The answered threads that still have to be woken. All threads that one leader answered share this list.
    to_wake: list[ThreadEntry] | None = None


class ThreadGroup:
    """One queue and one port for all threads. The module describes the protocol.

    Every thread may append to ``_queue`` and take from it, which are single steps of a deque. What else is changed here
    belongs to the leader, or to the thread of the entry.
    """

    def __init__(self, port: Port, limit: int, give_back_grant: Callable[[Claim, Answer], None]) -> None:
        """``give_back_grant`` is called with each granted claim whose thread no longer waits."""
        self._port = port
        self._limit = limit
        self._give_back_grant = give_back_grant
        leader_lock: Any = threading.RLock()  # never taken twice: an RLock, because it knows its owner
        self._leader_lock = leader_lock
        self._is_leader: Callable[[], bool] = leader_lock._is_owned  # whether the calling thread is
        self._queue: deque[ThreadEntry] = deque()
        self._sent: list[ThreadEntry] = []
        self._had_company = False  # whether the last batch had several operations
        self.sizes = BatchSizes()

    def submit(self, op: Batchable) -> Any:
        """The reply itself: the calling thread blocks until it is there."""
        if self._is_leader():
            raise SyncAsyncMismatch(
                "a guarded call was made from a signal handler that interrupted another guarded call; "
                "set a flag there, and make the call from the main program"
            )
        entry = ThreadEntry(op)
        to_wake: list[ThreadEntry] = []
        try:
            interruption = self._wait_until_answered(entry, to_wake)
        except BaseException:
            try:
                self._leader_lock.release()  # a second exception may have struck before the first release
            except RuntimeError:  # it was released already
                pass
            entry.abandoned = True
            raise
        finally:
            self._wake_others(entry, to_wake)
        if interruption is not None:
            raise interruption
        return _unwrap(entry.reply)

    def _wait_until_answered(self, entry: ThreadEntry, to_wake: list[ThreadEntry]) -> BaseException | None:
        """Lead or follow until ``entry`` has its reply. The others that this thread answers are added to ``to_wake``.
        Returns the exception that interrupted it while its settlement was not sent yet."""
        interruption: BaseException | None = None
        try:
            while entry.reply is None:
                if self._leader_lock.acquire(False):
                    entry.led = True
                    self._lead_until_answered(entry, to_wake)
                elif entry.gate is None:
                    # Queue, then try to lead again: a leader that has just stopped did not see the entry.
                    entry.gate = threading.Lock()
                    entry.gate.acquire()
                    self._queue.append(entry)
                else:
                    interruption = self._wait_at_gate(entry, entry.gate) or interruption
        finally:
            try:
                # At once, without asking first who holds it, and not in a function of ours: at the entry of a Python
                # function, and between two calls, the next exception could strike.
                self._leader_lock.release()
            except RuntimeError:  # this thread does not lead
                pass
        return interruption

    def _wake_others(self, entry: ThreadEntry, to_wake: list[ThreadEntry]) -> None:
        """The thread of ``entry`` leaves, and leads no more: wake the threads that wait for it. ``to_wake``: those that
        it has answered; ``entry.to_wake``: those that were answered together with it, by another leader."""
        if entry.led:  # the next leader is woken first: the answered threads want to run at once
            if self._queue:
                self._wake_next_leader()
            for _ in range(min(MAX_WOKEN_BY_LEADER, len(to_wake))):
                self._wake_one(to_wake)
        if entry.to_wake:
            self._wake_one(entry.to_wake)
        if entry.abandoned:
            self._give_back(entry)

    def _lead_until_answered(self, entry: ThreadEntry, to_wake: list[ThreadEntry]) -> None:
        """Send batches until ``entry`` is answered. The others that are answered are added to ``to_wake``."""
        queue = self._queue
        if not queue and not self._sent and not self._had_company:
            entry.reply = self._send_alone(entry.op)
            return
        if queue or self._had_company:
            _yield_to_others()
        self._had_company = bool(queue)
        while entry.reply is None:
            if self._sent:  # an exception ended a leader while it sent these
                again = split_for_resend(self._sent)
                queue.extendleft(other for other in reversed(again) if other.reply is None and other is not entry)
                self._sent = []
            if not queue or (queue[0] is not entry and entry not in queue):
                queue.append(entry)
            self._sent = entries = take_batch(queue, self._limit, self.sizes, attrgetter("abandoned"))
            replies = run_sync(send_batch(self._port, [other.op for other in entries], pause_thread))
            for other, reply in pair_replies(entries, replies, queue):
                if other is not entry:
                    other.to_wake = to_wake
                other.reply = copy_error(reply) if isinstance(reply, Exception) else reply
                if other is not entry:
                    # Only after its reply is set: a follower that times out at this moment must find it, since it
                    # then wakes one of `to_wake`.
                    to_wake.append(other)
            self._sent = []

    def _send_alone(self, op: Batchable) -> Reply:
        """Send one operation and make no batch. That saves a fifth of a claim and its completion on SQLite (50 µs of
        CPU instead of 63, synchronous=NORMAL)."""
        self.sizes.add(1)
        (reply,) = run_sync(send_batch(self._port, (op,), pause_thread))
        return reply

    def _wait_at_gate(self, entry: ThreadEntry, gate: threading.Lock) -> BaseException | None:
        """Block until the thread is woken or times out.

        An exception that ends the wait is raised at once if the operation is a claim or a look. Otherwise it is
        returned, to be raised when the operation has been sent.
        """
        try:
            gate.acquire(timeout=FOLLOWER_TIMEOUT_S)
        except BaseException as error:
            if isinstance(entry.op, Claim | Look):
                raise
            return error
        return None

    def _wake_one(self, to_wake: list[ThreadEntry]) -> None:
        """Wake one thread of ``to_wake``, if any is left. The thread calls this in its turn, until all are awake."""
        while to_wake:
            try:
                entry = to_wake.pop()
            except IndexError:  # another thread was quicker
                return
            if not entry.abandoned:
                if entry.gate is not None:
                    _open_gate(entry.gate)
                return
            self._give_back(entry)

    def _wake_next_leader(self) -> None:
        for entry in tuple(self._queue):
            if not entry.abandoned and entry.gate is not None:
                _open_gate(entry.gate)
                return

    def _give_back(self, entry: ThreadEntry) -> None:
        if is_grant(entry.op, entry.reply):
            self._give_back_grant(entry.op, entry.reply)  # type: ignore[arg-type]

    async def close(self) -> None:
        """Close the port when the round trip under way is over. It opens again if it is used again."""
        if self._is_leader():
            return  # from a signal handler, in the middle of a round trip of this very thread
        try:
            with self._leader_lock:
                await self._port.close()
        finally:
            self._wake_next_leader()


def _unwrap(reply: Any) -> Any:
    """The reply; one that is an exception is raised."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def _open_gate(gate: threading.Lock) -> None:
    try:
        gate.release()
    except RuntimeError:  # it is open already
        pass
