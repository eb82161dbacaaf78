"""Group commit for threads: whoever finds no leader leads. See `batching`, which has what both colours share."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from effectonce.contracts import Lone, Port
from effectonce.errors import SyncAsyncMismatch
from effectonce.record import Answer, Batchable, Claim, Look, Reply

from .batching import Entry, Orphaned, exchange, no_sizes, own, pair, pause_thread, take, tally
from .run_sync import run_sync

PATIENCE = 0.1  # seconds after which a follower looks by itself
ABREAST = 4  # how many a leader wakes at once

#: Lets the threads that can run go first; returns at once where there is none.
_after_you: Final[Callable[[], object]] = getattr(os, "sched_yield", lambda: time.sleep(0))


class ThreadGroup:
    """Whoever gets the lock leads: it sends what waits, its own operation with it, until that is answered.

    Whatever ends a leader (Ctrl-C, an exception that another thread throws into it) frees the lock, which knows whose
    it is. What it leaves unanswered is in ``_sent``, and the next one sends it again. A follower is woken by its reply,
    or to lead; should a wake-up be lost with a dying leader, it looks by itself after a while.

    A leader that has had company lets the others run before it sends: those whose replies came with the last batch are
    about to ask again, and go out together in one batch instead of two. It waits for nobody, and a lone caller does not
    even yield. Of those who have their reply it wakes a few, of whom each wakes another before it goes its way: woken
    all at once they would only queue for the interpreter's lock, at twice the context switches.
    """

    def __init__(self, port: Port, limit: int, orphaned: Orphaned) -> None:
        self._port = port
        self._run_one = _lone(port)
        self._limit = limit
        self._orphaned = orphaned
        lead: Any = threading.RLock()  # which knows whose it is; never taken twice
        self._lead = lead
        self._leads: Callable[[], bool] = lead._is_owned  # whether the calling thread does
        self._queue: deque[Entry] = deque()
        self._sent: list[Entry] = []
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
        """The reply itself: who asks blocks until it is there."""
        lead, leads = self._lead, self._leads
        entry = Entry(op)
        if self._queue or self._sent or self._company or leads():
            return self._among_others(entry)
        try:
            try:
                if lead.acquire(False):  # nobody else is here: no batch to make, no reply to hand on
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
                self._wake_heir()
            if entry.gone:
                self._orphan(entry)
        return self._among_others(entry) if entry.reply is None else _given(entry.reply)

    def _send_alone(self, op: Batchable) -> Reply:
        self._alone += 1
        try:
            return self._run_one(op)
        except Exception as error:
            (reply,) = run_sync(exchange(self._port, (op,), pause_thread, error))
            return reply

    def _among_others(self, entry: Entry) -> Any:
        lead, leads = self._lead, self._leads
        if leads():
            raise SyncAsyncMismatch(
                "a guarded call was made in the middle of another one's store access, from a signal handler; "
                "set a flag there, and make the call from the main program"
            )
        interrupted: BaseException | None = None
        led, answered = False, list[Entry]()
        try:
            try:
                while entry.reply is None:
                    led = lead.acquire(False)
                    if led:
                        self._answer(entry, answered)
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
                    self._wake_heir()
                for _ in range(min(ABREAST, len(answered))):
                    self._wake_next(answered)
            if entry.others:
                self._wake_next(entry.others)
            if entry.gone:
                self._orphan(entry)
        if interrupted is not None:
            raise interrupted
        return _given(entry.reply)

    def _answer(self, entry: Entry, answered: list[Entry]) -> None:
        """Lead until ``entry`` is answered; ``answered`` are the others that are, and that are to be woken."""
        queue = self._queue
        if queue or self._company:
            _after_you()
        self._company = bool(queue)
        while entry.reply is None:
            if self._sent:  # a leader died over these; every operation recognises its repetition
                again = [each for sent in self._sent for each in (sent, *(sent.behind or ()))]
                for each in again:
                    each.behind = None
                queue.extendleft(each for each in reversed(again) if each.reply is None and each is not entry)
                self._sent = []
            if not queue or (queue[0] is not entry and entry not in queue):
                queue.append(entry)
            self._sent = entries = take(queue, self._limit)
            tally(self._sizes, len(entries))
            replies = run_sync(exchange(self._port, [each.op for each in entries], pause_thread))
            for each, reply in pair(entries, replies, queue):
                if each is not entry:
                    each.others = answered
                each.reply = own(reply) if isinstance(reply, Exception) else reply
                if each is not entry:  # not before its reply: who times out just now wakes one of those in there
                    answered.append(each)
            self._sent = []

    def _wake_next(self, answered: list[Entry]) -> None:
        """One of ``answered``, if any is left. Each of them comes here in its turn, so that none is forgotten."""
        while answered:
            try:
                entry = answered.pop()
            except IndexError:  # another was quicker
                return
            if not entry.gone:
                if entry.gate is not None:
                    _open(entry.gate)
                return
            self._orphan(entry)

    def _wake_heir(self) -> None:
        for entry in tuple(self._queue):
            if not entry.gone and entry.gate is not None:
                _open(entry.gate)
                return

    def _follow(self, entry: Entry, gate: threading.Lock) -> BaseException | None:
        """Block until there is a reply, or perhaps nobody leads.

        Interrupted, a claim is taken back at once. A settlement goes out first, since the effect has happened: the
        interruption is returned, to be raised after it.
        """
        try:
            gate.acquire(timeout=PATIENCE)
        except BaseException as error:
            if isinstance(entry.op, Claim | Look):
                raise
            return error
        return None

    def _orphan(self, entry: Entry) -> None:
        if isinstance(entry.op, Claim) and isinstance(entry.reply, Answer) and entry.reply.kind == "claimed":
            self._orphaned(entry.op, entry.reply)

    async def close(self) -> None:
        if self._leads():
            return  # from a signal handler, in the middle of a round trip of this very thread
        try:
            with self._lead:
                await self._port.close()
        finally:
            self._wake_heir()


def _given(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply


def _lone(port: Port) -> Callable[[Batchable], Reply]:
    """How ``port`` takes one operation: by `Lone.run_one`, but only by one that came with its `run`. Whoever wraps a
    port, or puts another `run` over the one that it had, has to see all that is sent."""
    for place in (port, *type(port).__mro__):
        names = getattr(place, "__dict__", ())
        if "run" in names:
            if "run_one" in names and isinstance(port, Lone):
                return port.run_one
            break
    return lambda op: run_sync(port.run((op,)))[0]


def _open(gate: threading.Lock) -> None:
    try:
        gate.release()
    except RuntimeError:  # it is open already
        pass
