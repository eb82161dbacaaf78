"""Group commit: what waits when a round trip returns goes out together in the next.

No timer, so a lone call waits for nothing. One group per lane and colour: `ThreadGroup` for sync callers,
`AsyncGroup` for one event loop, `Direct` for stores whose calls do not block. The rules of a batch are in
`take`, what happens when one fails is in `exchange`; both are shared.
"""

from __future__ import annotations

import asyncio
import copy
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any, Protocol

from msgspec import Struct

from effectonce.contracts import ConnectionLost, Contention, Port
from effectonce.errors import ConfigurationError, StoreUnavailable
from effectonce.record import Answer, Batchable, Claim, Look, Renewal, Reply

MAX_BYTES = 1_000_000
CONTENTION_TRIES = 5
MANY = 32  # from here on a second port pays

Orphaned = Callable[[Claim, Answer], None]


class Group(Protocol):
    """Takes one operation at a time from many callers."""

    def submit(self, op: Batchable) -> Awaitable[Any]:
        """The reply to ``op``; a reply that is an exception is raised."""
        ...


class Entry(Struct, eq=False, gc=False):
    """One operation, the reply to it, and the operations on the same identity that wait behind it."""

    op: Batchable
    future: asyncio.Future[Any] | None = None  # of a task
    behind: list[Entry] | None = None
    reply: Reply | None = None  # of a thread, as all that follows
    gate: threading.Lock | None = None  # what it blocks on
    lead: bool = False  # it is to lead
    gone: bool = False  # it was interrupted and left


def take(queue: deque[Entry], limit: int) -> list[Entry]:
    """The entries that may go out together: no identity twice, sorted, bounded in number and bytes.

    Sorted by identity, since every batch then locks in the same order (unsorted ones deadlock each other). A claim
    whose caller was cancelled is left out. A settlement goes out all the same: the effect has happened, and only
    whoever waits to hear that it was recorded is gone.
    """
    chosen: dict[tuple[str, str], Entry] = {}
    size = 0
    while queue and len(chosen) < limit:
        entry = queue[0]
        op = entry.op
        kind = type(op)
        if kind is Claim or kind is Look:
            if entry.future is not None and entry.future.done():
                queue.popleft()
                continue
        elif kind is not Renewal and op.result is not None:  # type: ignore[union-attr]
            size += len(op.result)  # type: ignore[union-attr]
            if size > MAX_BYTES and chosen:
                break
        queue.popleft()
        identity = (op.scope, op.key)
        first = chosen.get(identity)
        if first is None:
            chosen[identity] = entry
        elif first.behind is None:
            first.behind = [entry]
        else:
            first.behind.append(entry)
    return [chosen[identity] for identity in sorted(chosen)] if len(chosen) > 1 else list(chosen.values())


def pair(entries: list[Entry], replies: Sequence[Reply], queue: deque[Entry]) -> list[tuple[Entry, Reply]]:
    """Who gets which reply. Entries behind one that are not answered by it go back to the queue's front."""
    pairs = list(zip(entries, replies, strict=True))
    again: list[Entry] = []
    for entry, reply in pairs[:]:
        if entry.behind is not None:
            answered, rest = shared(entry, reply)
            entry.behind = None
            pairs.extend((other, reply) for other in answered)
            again.extend(rest)
    queue.extendleft(reversed(again))
    return pairs


def shared(entry: Entry, reply: Reply) -> tuple[list[Entry], list[Entry]]:
    """Of the claims queued behind ``entry``: those that its reply answers as well, and those to send again.

    Whoever was refused was refused for a reason that holds for every claim with the same payload; only a
    grant belongs to one. This is what keeps a thousand duplicates of one key at a handful of round trips.
    """
    op, behind = entry.op, entry.behind or []
    if not isinstance(op, Claim) or not isinstance(reply, Answer) or reply.kind == "claimed":
        return [], behind
    answered: list[Entry] = []
    again: list[Entry] = []
    for other in behind:
        same = (
            isinstance(other.op, Claim)
            and other.op.fingerprints == op.fingerprints
            and other.op.max_attempts == op.max_attempts
            and (op.waiting or not other.op.waiting)
        )
        (answered if same else again).append(other)
    return answered, again


async def exchange(
    port: Port,
    batch: Sequence[Batchable],
    pause: Callable[[float], Awaitable[None]],
    failed: Exception | None = None,
) -> Sequence[Reply]:
    """The replies to ``batch``, one for each operation; a failure of the whole is a reply of each.

    ``failed``: it was sent once already, and this is what came of it. A lost connection is tried once more: every
    operation recognises its repetition. Contention is tried again, and then operation by operation, as any other
    error is, so that one bad operation harms itself only.
    """
    lost = contended = 0
    while True:
        try:
            if failed is not None:
                earlier, failed = failed, None
                raise earlier
            return await port.run(batch)
        except ConnectionLost as error:
            lost += 1
            if lost > 1:
                return [error] * len(batch)
        except Contention as error:
            contended += 1
            if contended > CONTENTION_TRIES:
                if len(batch) == 1:
                    return [_contended(error)]
                break
            await pause(random.uniform(0, 0.002 * 2**contended))
        except (StoreUnavailable, ConfigurationError) as error:
            return [error] * len(batch)
        except Exception as error:
            if len(batch) == 1:
                return [error]
            break
    return [(await exchange(port, (op,), pause))[0] for op in batch]


def _contended(error: Contention) -> StoreUnavailable:
    wrapped = StoreUnavailable(f"the store could not get its lock: {error}; the operation was not applied")
    wrapped.__cause__ = error
    return wrapped


def own(error: Exception) -> Exception:
    """A copy of an error that several waiters get: raising one object in many places mixes their tracebacks."""
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__ or error
    return twin


# -- threads ------------------------------------------------------------------------------------------------


async def pause_thread(seconds: float) -> None:
    """`exchange`'s pause where there is no event loop."""
    time.sleep(seconds)  # noqa: ASYNC251  # it is driven by a thread that may block


class ThreadGroup:
    """Whoever finds no leader leads: it sends its own operation with all that wait, then hands over.

    While nobody leads the queue is empty. Leadership is handed over *before* replies are delivered, and
    whatever ends a leader, Ctrl-C included, requeues its followers: no thread is left waiting.
    """

    def __init__(self, port: Port, limit: int, orphaned: Orphaned) -> None:
        self._port = port
        self._limit = limit
        self._orphaned = orphaned
        self._lock = threading.Lock()
        self._queue: deque[Entry] = deque()
        self._led = False

    async def submit(self, op: Batchable) -> Any:
        with self._lock:
            alone = not self._led
            if alone:
                self._led = True
            else:
                entry = Entry(op)
                entry.gate = threading.Lock()
                entry.gate.acquire()
                self._queue.append(entry)
        if alone:
            try:
                try:
                    (reply,) = await self._port.run((op,))
                except Exception as error:
                    (reply,) = await exchange(self._port, (op,), pause_thread, error)
            finally:
                self._hand_over()
        else:
            interrupted = self._follow(entry)
            reply = await self._lead(entry) if entry.lead else entry.reply  # type: ignore[assignment]
            if interrupted is not None:
                raise interrupted
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _follow(self, entry: Entry) -> BaseException | None:
        """Block until there is a reply, or until this thread is to lead.

        Interrupted (Ctrl-C), a claim is taken back at once. A settlement goes out first, since the effect has
        happened: the interruption is returned, to be raised after it; a second one does not wait.
        """
        interrupted: BaseException | None = None
        while True:
            try:
                entry.gate.acquire()  # type: ignore[union-attr]
                return interrupted
            except BaseException as error:
                if interrupted is None and not isinstance(entry.op, Claim | Look):
                    interrupted = error
                    continue
                self._leave(entry)
                raise

    def _leave(self, entry: Entry) -> None:
        with self._lock:
            if entry in self._queue:
                self._queue.remove(entry)
            entry.gone = True
            reply = entry.reply
        if entry.lead:
            self._hand_over()
        elif reply is not None:
            self._orphan(entry, reply)

    async def _lead(self, entry: Entry) -> Reply:
        with self._lock:
            self._queue.appendleft(entry)
            entries = take(self._queue, self._limit)
        try:
            replies = await exchange(self._port, [each.op for each in entries], pause_thread)
        except BaseException:
            with self._lock:
                for each in entries:
                    self._queue.extendleft(reversed(each.behind or []))
                    each.behind = None
                    if each is not entry:
                        self._queue.appendleft(each)
            self._hand_over()
            raise
        with self._lock:
            pairs = pair(entries, replies, self._queue)
        self._hand_over()
        with self._lock:
            for other, reply in pairs:
                other.reply = own(reply) if isinstance(reply, Exception) else reply
        for other, reply in pairs:
            if other.gone:
                self._orphan(other, reply)
            elif other is not entry:
                other.gate.release()  # type: ignore[union-attr]
        return entry.reply  # type: ignore[return-value]

    def _hand_over(self) -> None:
        with self._lock:
            if not self._queue:
                self._led = False
                return
            heir = self._queue.popleft()
            heir.lead = True
        heir.gate.release()  # type: ignore[union-attr]

    def _orphan(self, entry: Entry, reply: Reply) -> None:
        if isinstance(entry.op, Claim) and isinstance(reply, Answer) and reply.kind == "claimed":
            self._orphaned(entry.op, reply)


# -- event loops --------------------------------------------------------------------------------------------


class AsyncGroup:
    """The queue of one event loop, emptied by tasks of its own, one for each port.

    The tasks are never a caller's, so that cancelling a caller harms nobody else, and run in an empty context. The
    second port is used only while many wait: half of them are then with the store while the loop serves the others.
    A caller that is cancelled takes its claim out of the queue, or, if it was granted, has it given back.
    """

    def __init__(self, ports: Sequence[Port], limit: int, orphaned: Orphaned, loop: asyncio.AbstractEventLoop) -> None:
        self._limit = limit
        self._orphaned = orphaned
        self._loop = loop
        self._queue: deque[Entry] = deque()
        self._idle = list(reversed(ports))
        self._spare = len(ports) - 1  # how many ports are idle while one works
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, op: Batchable) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._queue.append(Entry(op, future))
        if not self._tasks:
            self._start()
        return future

    def _start(self) -> None:
        port = self._idle.pop()
        task = self._loop.create_task(self._drain(port), context=Context())
        self._tasks.add(task)

    async def _drain(self, port: Port) -> None:
        entries: list[Entry] = []
        try:
            while entries := self._next():
                if len(self._queue) >= MANY and self._idle:
                    self._start()
                replies = await exchange(port, [entry.op for entry in entries], asyncio.sleep)
                for entry, reply in pair(entries, replies, self._queue):
                    self._deliver(entry, reply)
        except BaseException:
            # Only the loop's end does this: whoever still waits must not wait for ever.
            error = StoreUnavailable("the event loop that carried this operation was shut down")
            for entry in [*entries, *self._queue]:
                for each in (entry, *(entry.behind or ())):
                    if each.future is not None and not each.future.done():
                        each.future.set_exception(own(error))
            self._queue.clear()
            raise
        finally:
            self._idle.append(port)
            self._tasks.discard(asyncio.current_task())

    def _next(self) -> list[Entry]:
        queue = self._queue
        while queue:
            waiting = len(queue)
            share = waiting // 2 if self._spare and waiting >= 2 * MANY else waiting
            entries = take(queue, min(share, self._limit))
            if entries:
                return entries
        return []

    def _deliver(self, entry: Entry, reply: Reply) -> None:
        future: asyncio.Future[Any] = entry.future  # type: ignore[assignment]
        if future.done():
            if isinstance(entry.op, Claim) and isinstance(reply, Answer) and reply.kind == "claimed":
                self._orphaned(entry.op, reply)
        elif isinstance(reply, Exception):
            future.set_exception(own(reply))
        else:
            future.set_result(reply)
