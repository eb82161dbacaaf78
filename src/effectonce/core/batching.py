"""Group commit: what waits when a round trip returns goes out together in the next.

No timer, so a lone call waits for nothing. One group per lane and colour: `AsyncGroup` for one event loop, here;
`ThreadGroup` for sync callers, in `thread_group`. Which operations may go out together is in `take`, who gets which
reply in `pair`, what happens when a batch fails in `exchange`; both use all of them.
"""

from __future__ import annotations

import asyncio
import copy
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Protocol

from msgspec import Struct

from effectonce.contracts import ConnectionLost, Contention, Port
from effectonce.errors import ConfigurationError, StoreUnavailable
from effectonce.record import Answer, Batchable, Claim, Look, Note, Renewal, Reply, Settlement

MAX_BYTES = 1_000_000
CONTENTION_TRIES = 5
MANY = 32  # from here on a second port pays
FEW = 16  # and from here on where the store would else be idle whenever the loop is not

Orphaned = Callable[[Claim, Answer], None]


class Group(Protocol):
    """Takes one operation at a time from many callers."""

    @property
    def sizes(self) -> list[int]:
        """How many operations went out, and behind that, how many batches of 1, of 2 to 3, of 4 to 7 and so on."""
        ...

    def submit(self, op: Batchable) -> Any:
        """The reply to ``op``, or of event loops an awaitable of it; a reply that is an exception is raised."""
        ...

    async def close(self) -> None:
        """Close the ports when the round trip in flight is over. They open again if they are used again."""
        ...


class Entry(Struct, eq=False):
    """One operation, the reply to it, and the operations on the same identity that wait behind it.

    The cycle collector sees it: an error keeps the frames that it has passed, those an entry, and that the error.
    """

    op: Batchable
    future: asyncio.Future[Any] | None = None  # of a task
    behind: list[Entry] | None = None
    reply: Reply | None = None  # of a thread, as all that follows
    gate: threading.Lock | None = None  # what it blocks on
    gone: bool = False  # it was interrupted, and nobody waits for the reply any more
    others: list[Entry] | None = None  # who was answered with it; each leaves as it is woken


class Block(Struct, eq=False):
    """Operations that were submitted together, and their replies; the future is done when none is missing."""

    ops: Sequence[Batchable]
    replies: list[Reply]
    missing: int
    future: asyncio.Future[list[Reply]]


class Part(Struct, eq=False):
    """Of a block, what may go out together, sorted as in `take`, and its places in the block."""

    block: Block
    places: list[int]
    ops: list[Batchable]


def parts(block: Block, limit: int) -> Iterator[Part]:
    """``block`` in as few parts as may be: in each no identity twice, and bounded in number and bytes."""
    ops = block.ops
    rest: Sequence[int] = range(len(ops))
    while rest:
        chosen: dict[tuple[str, str], int] = {}
        left: list[int] = []
        size = 0
        for at in rest:
            op = ops[at]
            identity = (op.scope, op.key)
            if identity in chosen or len(chosen) == limit or size > MAX_BYTES:
                left.append(at)
                continue
            chosen[identity] = at
            if type(op) is Settlement and op.result is not None:
                size += len(op.result)
        places = [chosen[identity] for identity in sorted(chosen)]
        yield Part(block, places, [ops[at] for at in places])
        rest = left


def tally(sizes: list[int], size: int) -> None:
    """Count a batch of ``size``; see `Group.sizes`."""
    sizes[0] += size
    sizes[size.bit_length()] += 1


def no_sizes() -> list[int]:
    return [0] * 17  # no store takes more than 65,535 operations at once


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
            if entry.gone or (entry.future is not None and entry.future.done()):
                queue.popleft()
                continue
            carried = op.note if kind is Claim else None  # type: ignore[union-attr]
        elif kind is Renewal:
            carried = None
        else:
            carried = op.note if kind is Note else op.result  # type: ignore[union-attr]
        if carried is not None:
            size += len(carried)
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
    if len(replies) != len(entries):
        wrong = RuntimeError(f"the port gave {len(replies)} replies to {len(entries)} operations")
        return [(each, wrong) for entry in entries for each in (entry, *(entry.behind or ()))]
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
    replies: list[Reply] = []
    for op in batch:
        replies += await exchange(port, (op,), pause)
        if isinstance(replies[-1], StoreUnavailable):  # it is down: do not ask it for each of the rest
            replies += [replies[-1]] * (len(batch) - len(replies))
            break
    return replies


def _contended(error: Contention) -> StoreUnavailable:
    wrapped = StoreUnavailable(f"the store could not get its lock: {error}; the operation was not applied")
    wrapped.__cause__ = error
    return wrapped


def own(error: Exception) -> Exception:
    """A copy of an error that several waiters get: raising one object in many places mixes their tracebacks."""
    try:
        twin = copy.copy(error)
    except Exception:  # an exception with a constructor of its own, which copy does not know how to call
        return error
    twin.__cause__ = error.__cause__ or error
    return twin


async def pause_thread(seconds: float) -> None:
    """`exchange`'s pause where there is no event loop."""
    time.sleep(seconds)  # noqa: ASYNC251  # it is driven by a thread that may block


class AsyncGroup:
    """The queue of one event loop, emptied by tasks of its own, one for each port.

    The tasks are never a caller's, so that cancelling a caller harms nobody else, and run in an empty context. The
    second port is used only while many wait: half of them are then with the store while the loop serves the others.
    Fewer will do while the group ``beside`` this one, which takes the loop's other operations, has nothing under way:
    else the two of them see to that. A caller that is cancelled takes its claim out of the queue, or, if it was
    granted, has it given back. A block of operations has one future, and goes out by itself.
    """

    def __init__(
        self,
        ports: Sequence[Port],
        limit: int,
        orphaned: Orphaned,
        loop: asyncio.AbstractEventLoop,
        beside: AsyncGroup | None = None,
    ) -> None:
        self._limit = limit
        self._orphaned = orphaned
        self._loop = loop
        self._ports = ports
        self._queue: deque[Entry] = deque()
        self._blocks: deque[Part] = deque()
        self._idle = list(reversed(ports))
        self._tasks: set[asyncio.Task[None]] = set()  # referred to, so that they are not collected
        self._closing = False
        self._under_way = 0  # round trips
        self._beside = beside
        if beside is not None:
            beside._beside = self
        self.sizes = no_sizes()

    def submit(self, op: Batchable) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        queue, idle = self._queue, self._idle
        queue.append(Entry(op, future))
        if (
            idle
            and not self._closing
            and (len(idle) == len(self._ports) or (self._under_way and len(queue) >= self._enough()))
        ):
            self._start()
        return future

    def _enough(self) -> int:
        """How many are worth a round trip of their own while another of this group is under way."""
        return MANY if self._beside is not None and self._beside._under_way else FEW

    def submit_block(self, ops: Sequence[Batchable]) -> asyncio.Future[list[Reply]]:
        """The replies to ``ops``, in their order, when all are there. A reply may be an exception: none is raised."""
        future: asyncio.Future[list[Reply]] = self._loop.create_future()
        if not ops:
            future.set_result([])
            return future
        block = Block(ops, [False] * len(ops), len(ops), future)
        self._blocks.extend(parts(block, self._limit))
        future.add_done_callback(partial(self._abandoned, block))
        if self._idle and not self._closing and (len(ops) >= MANY or len(self._idle) == len(self._ports)):
            self._start()
        return future

    def _abandoned(self, block: Block, future: asyncio.Future[list[Reply]]) -> None:
        """What a block was granted before its caller was cancelled is given back; `_deliver_part` sees to the rest."""
        if future.cancelled():
            for op, reply in zip(block.ops, block.replies, strict=True):
                self._orphan(op, reply)

    def _orphan(self, op: Batchable, reply: Reply) -> None:
        if isinstance(op, Claim) and isinstance(reply, Answer) and reply.kind == "claimed":
            self._orphaned(op, reply)

    def _start(self) -> None:
        port = self._idle.pop()
        task = self._loop.create_task(self._drain(port), context=Context())
        self._tasks.add(task)
        # Not in the task itself: one that is cancelled before its first step never runs a line.
        task.add_done_callback(partial(self._ended, port))

    def _ended(self, port: Port, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._idle.append(port)
        if not task.cancelled():
            task.exception()  # whoever waited has been told
        # Those whom it answered have come back by now. They need not wait for what the other port has under way.
        waiting = self._queue or self._blocks
        due = len(self._idle) == len(self._ports) or len(self._queue) >= self._enough()
        if waiting and due and not self._closing and not self._loop.is_closed():
            self._start()

    async def _drain(self, port: Port) -> None:
        entries: list[Entry] = []
        try:
            while not self._closing and (self._blocks or self._queue):
                if self._blocks:
                    await self._send_part(port, self._blocks.popleft())
                entries = self._next()
                if not entries:
                    continue
                if self._idle and len(self._queue) >= self._enough():
                    self._start()
                replies = await self._exchange(port, [entry.op for entry in entries])
                for entry, reply in pair(entries, replies, self._queue):
                    self._deliver(entry, reply)
                entries = []
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                # The loop ends. Whoever still waits, to release what it held, gets another task.
                for entry in reversed(entries):
                    self._queue.extendleft(reversed(entry.behind or ()))
                    entry.behind = None
                    self._queue.appendleft(entry)
                raise
            told = error if isinstance(error, Exception) else StoreUnavailable(f"the store access was ended: {error!r}")
            for entry in entries:
                for each in (entry, *(entry.behind or ())):
                    self._deliver(each, told)
            if not isinstance(error, Exception | asyncio.CancelledError):
                raise

    async def _exchange(self, port: Port, batch: Sequence[Batchable]) -> Sequence[Reply]:
        tally(self.sizes, len(batch))
        self._under_way += 1
        try:
            return await exchange(port, batch, asyncio.sleep)
        finally:
            self._under_way -= 1

    async def close(self) -> None:
        self._closing = True
        try:
            while self._tasks:
                await asyncio.wait(set(self._tasks))
            for port in self._ports:
                await port.close()
        finally:
            self._closing = False
            if (self._queue or self._blocks) and len(self._idle) == len(self._ports):
                self._start()

    async def _send_part(self, port: Port, part: Part) -> None:
        """A turn for one part of a block. Whatever ends this task, those who wait for it hear, or it is sent again."""
        block = part.block
        if block.future.done() and isinstance(part.ops[0], Claim | Look):
            return  # whoever asked has been cancelled
        if self._blocks and self._idle:
            self._start()
        try:
            replies = await self._exchange(port, part.ops)
            if len(replies) != len(part.ops):
                replies = [RuntimeError(f"the port gave {len(replies)} replies to {len(part.ops)} operations")]
                replies *= len(part.ops)
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                self._blocks.appendleft(part)  # the loop ends; each operation recognises its repetition
                raise
            told = error if isinstance(error, Exception) else StoreUnavailable(f"the store access was ended: {error!r}")
            self._deliver_part(part, [told] * len(part.ops))
            raise
        self._deliver_part(part, replies)

    def _deliver_part(self, part: Part, replies: Sequence[Reply]) -> None:
        block = part.block
        if block.future.done():
            for op, reply in zip(part.ops, replies, strict=True):
                self._orphan(op, reply)
            return
        collected = block.replies
        for at, reply in zip(part.places, replies, strict=True):
            collected[at] = own(reply) if isinstance(reply, Exception) else reply
        block.missing -= len(replies)
        if not block.missing:
            block.future.set_result(collected)

    def _next(self) -> list[Entry]:
        queue = self._queue
        while queue:
            waiting = len(queue)
            # Whoever writes a note comes back with the next. Callers that do so in step would wait for the store all
            # at once, and then it for them: in halves they do not.
            in_step = type(queue[0].op) is Note and not self._under_way
            half = self._enough() if in_step else MANY
            share = waiting // 2 if len(self._ports) > 1 and waiting >= 2 * half else waiting
            entries = take(queue, min(share, self._limit))
            if entries:
                return entries
        return []

    def _deliver(self, entry: Entry, reply: Reply) -> None:
        future: asyncio.Future[Any] = entry.future  # type: ignore[assignment]
        if future.done():
            self._orphan(entry.op, reply)
        elif isinstance(reply, Exception):
            future.set_exception(own(reply))
        else:
            future.set_result(reply)
