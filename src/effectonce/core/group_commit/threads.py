"""Group commit for threads: a thread that finds no leader leads."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from effectonce.contracts import Port
from effectonce.core.run_sync import run_sync
from effectonce.errors import SyncAsyncMismatch
from effectonce.record import Answer, Batchable, Claim, Look, Reply

from .batches import Entry, is_grant, no_sizes, pair_replies, take_batch, unsent_again
from .exchange import copy_error, exchange, pause_thread

FOLLOWER_TIMEOUT_S = 0.1  # after this, a follower checks by itself whether a thread leads
WOKEN_AT_ONCE = 4  # how many of those who are answered a leader wakes itself

#: Lets the threads that can run go first; returns at once where there is none.
_yield_to_others: Final[Callable[[], object]] = getattr(os, "sched_yield", lambda: time.sleep(0))


class ThreadEntry(Entry, eq=False):
    """An operation of a thread, which blocks on ``gate`` until it is woken."""

    reply: Reply | None = None
    gate: threading.Lock | None = None
    gone: bool = False  # its thread was interrupted, and no longer waits for the reply
    answered_together: list[ThreadEntry] | None = None  # those answered by one leader and not woken yet

    def is_abandoned(self) -> bool:
        return self.gone


class ThreadGroup:
    """One queue and one port. The thread that holds the lock ``_lead`` leads, and only the leader uses the port.

    - A leader sends what waits, its own operation with it, until its own is answered. Then it frees the lock, wakes
      the next in the queue to lead, and only then those whom it has answered.
    - A follower is woken by its reply, or to lead. Should a wake-up be lost with a dying leader, it looks by itself
      after a while.
    - Whatever ends a leader (Ctrl-C, an exception that another thread throws into it) frees the lock, which knows whose
      it is. What it leaves unanswered is in ``_sent``, and the next leader sends it again.
    - A thread that is interrupted while it waits takes its claim out of the queue; if the claim was granted meanwhile,
      ``orphaned`` gives the grant back. Its settlement goes out before the interruption is raised.

    A leader that has had company lets the others run before it sends: those whose replies came with the last batch are
    about to ask again, and go out together in one batch instead of two. It never waits, and a lone caller does not
    even yield. A leader wakes a few of those it has answered, and each of them wakes another: woken all at once they
    would only queue for the interpreter's lock, at twice the context switches.
    """

    def __init__(self, port: Port, limit: int, orphaned: Callable[[Claim, Answer], None]) -> None:
        self._port = port
        self._limit = limit
        self._orphaned = orphaned
        lead: Any = threading.RLock()  # which knows whose it is; never taken twice
        self._lead = lead
        self._leads: Callable[[], bool] = lead._is_owned  # whether the calling thread does
        self._queue: deque[ThreadEntry] = deque()
        self._sent: list[ThreadEntry] = []
        self._company = False  # whether the last batch was of several
        self._sizes = no_sizes()
        self._alone = 0  # how many went out by themselves, besides

    @property
    def sizes(self) -> list[int]:
        sizes = self._sizes[:]
        sizes[0] += self._alone
        sizes[1] += self._alone
        return sizes

    def submit(self, op: Batchable) -> Any:
        """The reply itself: the calling thread blocks until it is there.

        A lone caller makes no batch and hands on no reply. That saves a fifth of a claim and its completion on SQLite
        (50 µs of CPU instead of 63, synchronous=NORMAL).
        """
        lead, leads = self._lead, self._leads
        entry = ThreadEntry(op)
        if self._queue or self._sent or self._company or leads():
            return self._submit_among_others(entry)
        try:
            try:
                if lead.acquire(False):  # no other thread is here: no batch to make, no reply to hand on
                    entry.reply = self._send_alone(op)
            finally:
                if leads():
                    lead.release()
        except BaseException:
            try:  # interrupted on its way out, perhaps; in one call, which nothing can come before
                lead.release()
            except RuntimeError:  # no: it is not ours
                pass
            entry.gone = True
            raise
        finally:
            if self._queue:
                self._wake_next_leader()
            if entry.gone:
                self._give_back(entry)
        return self._submit_among_others(entry) if entry.reply is None else _value_of(entry.reply)

    def _send_alone(self, op: Batchable) -> Reply:
        self._alone += 1
        try:
            return run_sync(self._port.run((op,)))[0]
        except Exception as error:
            (reply,) = run_sync(exchange(self._port, (op,), pause_thread, error))
            return reply

    def _submit_among_others(self, entry: ThreadEntry) -> Any:
        lead, leads = self._lead, self._leads
        if leads():
            raise SyncAsyncMismatch(
                "a guarded call was made from a signal handler that interrupted another guarded call; "
                "set a flag there, and make the call from the main program"
            )
        interrupted: BaseException | None = None
        led, answered = False, list[ThreadEntry]()
        try:
            try:
                while entry.reply is None:
                    led = lead.acquire(False)
                    if led:
                        self._lead_until_answered(entry, answered)
                    elif entry.gate is None:  # before it waits it looks again: who has stopped leading did not see it
                        entry.gate = threading.Lock()
                        entry.gate.acquire()
                        self._queue.append(entry)
                    else:
                        interrupted = self._follow(entry, entry.gate) or interrupted
            finally:
                if leads():
                    lead.release()
        except BaseException:
            try:
                lead.release()
            except RuntimeError:
                pass
            entry.gone = True
            raise
        finally:
            if led:  # the next one leads before those who have their reply are woken: they want to run at once
                if self._queue:
                    self._wake_next_leader()
                for _ in range(min(WOKEN_AT_ONCE, len(answered))):
                    self._wake_one(answered)
            if entry.answered_together:
                self._wake_one(entry.answered_together)
            if entry.gone:
                self._give_back(entry)
        if interrupted is not None:
            raise interrupted
        return _value_of(entry.reply)

    def _lead_until_answered(self, entry: ThreadEntry, answered: list[ThreadEntry]) -> None:
        """Send batches until ``entry`` is answered. The others that are answered go to ``answered``, to be woken."""
        queue = self._queue
        if queue or self._company:
            _yield_to_others()
        self._company = bool(queue)
        while entry.reply is None:
            if self._sent:  # a leader died over these; every operation recognises its repetition
                again = unsent_again(self._sent)
                queue.extendleft(other for other in reversed(again) if other.reply is None and other is not entry)
                self._sent = []
            if not queue or (queue[0] is not entry and entry not in queue):
                queue.append(entry)
            self._sent = entries = take_batch(queue, self._limit, self._sizes)
            replies = run_sync(exchange(self._port, [other.op for other in entries], pause_thread))
            for other, reply in pair_replies(entries, replies, queue):
                if other is not entry:
                    other.answered_together = answered
                other.reply = copy_error(reply) if isinstance(reply, Exception) else reply
                if other is not entry:  # not before its reply: one that times out just now wakes one of those in there
                    answered.append(other)
            self._sent = []

    def _wake_one(self, answered: list[ThreadEntry]) -> None:
        """Wake one of ``answered``, if any is left. Each of them comes here in its turn, so that none is forgotten."""
        while answered:
            try:
                entry = answered.pop()
            except IndexError:  # another was quicker
                return
            if not entry.gone:
                if entry.gate is not None:
                    _open(entry.gate)
                return
            self._give_back(entry)

    def _wake_next_leader(self) -> None:
        for entry in tuple(self._queue):
            if not entry.gone and entry.gate is not None:
                _open(entry.gate)
                return

    def _follow(self, entry: ThreadEntry, gate: threading.Lock) -> BaseException | None:
        """Block until there is a reply, or perhaps no leader any more.

        Interrupted, a claim is taken back at once. A settlement goes out first, because the effect has happened: the
        interruption is returned, to be raised after it.
        """
        try:
            gate.acquire(timeout=FOLLOWER_TIMEOUT_S)
        except BaseException as error:
            if isinstance(entry.op, Claim | Look):
                raise
            return error
        return None

    def _give_back(self, entry: ThreadEntry) -> None:
        if is_grant(entry.op, entry.reply):
            self._orphaned(entry.op, entry.reply)  # type: ignore[arg-type]

    async def close(self) -> None:
        if self._leads():
            return  # from a signal handler, in the middle of a round trip of this very thread
        try:
            with self._lead:
                await self._port.close()
        finally:
            self._wake_next_leader()


def _value_of(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply


def _open(gate: threading.Lock) -> None:
    try:
        gate.release()
    except RuntimeError:  # it is open already
        pass
