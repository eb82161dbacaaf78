"""Group commit for threads: whoever finds no leader leads. See `batching`, which has what both colours share."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from effectonce.contracts import Port
from effectonce.errors import WrongColour
from effectonce.record import Answer, Batchable, Claim, Look

from .batching import Entry, Orphaned, exchange, no_sizes, own, pair, pause_thread, take, tally

PATIENCE = 0.1  # seconds after which a follower looks whether somebody still leads


class ThreadGroup:
    """Whoever gets the lock leads: it sends what waits, its own operation with it, until that is answered.

    Whatever ends a leader (Ctrl-C, an exception that another thread throws into it) frees the lock. What it leaves
    unanswered is in ``_sent``, and the next one sends it again. A follower is woken by its reply, or to lead; should a
    wake-up be lost with a dying leader, it looks by itself after a while.
    """

    def __init__(self, port: Port, limit: int, orphaned: Orphaned) -> None:
        self._port = port
        self._limit = limit
        self._orphaned = orphaned
        self._lead = threading.Lock()
        self._leading: Entry | None = None  # who leads
        self._leader: threading.Thread | None = None  # in which thread
        self._healing = threading.Lock()
        self._queue: deque[Entry] = deque()
        self._sent: list[Entry] = []
        self.sizes = no_sizes()

    async def submit(self, op: Batchable) -> Any:
        entry = Entry(op)
        interrupted: BaseException | None = None
        lead, held = self._lead, False
        answered: list[Entry] = []
        try:
            while entry.reply is None:
                held = lead.acquire(False)
                if held:
                    if entry.reply is None:  # else it was answered just now
                        self._leader, self._leading = threading.current_thread(), entry
                        await self._answer(entry, answered)
                    break
                if self._leading is not None and self._leader is threading.current_thread():
                    raise WrongColour(
                        "a guarded call was made in the middle of another one's store access, from a signal handler; "
                        "set a flag there, and make the call from the main program"
                    )
                if entry.gate is None:
                    self._queue.append(entry)
                interrupted = self._follow(entry) or interrupted
                lead = self._lead
        except BaseException:
            entry.gone = True
            raise
        finally:
            if held:  # the next one leads before those who have their reply are woken: they want to run at once
                if self._leading is entry:
                    self._leading = None
                lead.release()
                if self._queue:
                    self._wake_heir()
                for each in answered:
                    self._wake(each)
            if entry.gone:
                self._orphan(entry)
        if interrupted is not None:
            raise interrupted
        if isinstance(entry.reply, Exception):
            raise entry.reply
        return entry.reply

    async def _answer(self, entry: Entry, answered: list[Entry]) -> None:
        """Lead until ``entry`` is answered; ``answered`` are the others that are, and that are to be woken."""
        queue = self._queue
        if not queue and not self._sent:  # nobody else is here: no batch to make, no reply to hand on
            sizes = self.sizes
            sizes[0] += 1
            sizes[1] += 1
            try:
                (entry.reply,) = await self._port.run((entry.op,))
            except Exception as error:
                (entry.reply,) = await exchange(self._port, (entry.op,), pause_thread, error)
            return
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
            tally(self.sizes, len(entries))
            replies = await exchange(self._port, [each.op for each in entries], pause_thread)
            for each, reply in pair(entries, replies, queue):
                each.reply = own(reply) if isinstance(reply, Exception) else reply
                if each is not entry:
                    answered.append(each)
            self._sent = []

    def _wake(self, entry: Entry) -> None:
        if entry.gone:
            self._orphan(entry)
        elif entry.gate is not None:
            _open(entry.gate)

    def _wake_heir(self) -> None:
        for entry in tuple(self._queue):
            if not entry.gone and entry.gate is not None:
                _open(entry.gate)
                return

    def _follow(self, entry: Entry) -> BaseException | None:
        """Block until there is a reply, or nobody leads.

        Interrupted, a claim is taken back at once. A settlement goes out first, since the effect has happened: the
        interruption is returned, to be raised after it.
        """
        gate = entry.gate
        if gate is None:
            gate = threading.Lock()
            gate.acquire()
            entry.gate = gate
        try:
            if entry.reply is None and self._lead.locked() and not gate.acquire(timeout=PATIENCE):
                self._heal(entry)
        except BaseException as error:
            if isinstance(entry.op, Claim | Look):
                raise
            return error
        return None

    def _heal(self, entry: Entry) -> None:
        """A lock that is held while nobody leads, for as long as two looks take, is of a thread that was interrupted
        on its way into or out of the lead: make another."""
        lead, leader = self._lead, self._leading
        if not lead.locked() or (leader is not None and not leader.gone and leader.reply is None):
            entry.suspects = None
        elif entry.suspects is not lead:
            entry.suspects = lead
        else:
            with self._healing:
                if self._lead is lead:
                    self._lead = threading.Lock()

    def _orphan(self, entry: Entry) -> None:
        if isinstance(entry.op, Claim) and isinstance(entry.reply, Answer) and entry.reply.kind == "claimed":
            self._orphaned(entry.op, entry.reply)

    async def close(self) -> None:
        if self._leading is not None and self._leader is threading.current_thread():
            return  # from a signal handler, in the middle of a round trip of this very thread
        me = Entry(Look("", ""))
        lead = self._lead
        while not lead.acquire(timeout=PATIENCE):
            self._heal(me)
            lead = self._lead
        try:
            self._leader, self._leading = threading.current_thread(), me
            await self._port.close()
        finally:
            self._leading = None
            lead.release()
            self._wake_heir()


def _open(gate: threading.Lock) -> None:
    try:
        gate.release()
    except RuntimeError:  # it is open already
        pass
