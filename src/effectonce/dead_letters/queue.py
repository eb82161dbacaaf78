"""The dead letters of a worker's queue: list, show, redrive and purge them.

dlq = eo.DeadLetterQueue(worker, "orders")
for dead in dlq.list(): print(dead.cause.why, dead.message)
dlq.redrive(select=lambda dead: dead.cause.why == "attempts-exhausted", limit=100, dry_run=True)
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from effectonce.broker import Broker
from effectonce.contracts import DeadLetter, DeadLetters, Delivery, Packet
from effectonce.errors import ConfigurationError, EffectOnceError, InvalidOption, show
from effectonce.message import BYPASS, REDRIVEN, Message
from effectonce.values.queue_names import require_name
from effectonce.worker.jobs import ATTEMPTS, CAUSE, Cause, Job, read_cause
from effectonce.worker.redrive_preview import Fate
from effectonce.worker.worker import Worker

log = logging.getLogger("effectonce")

#: How many dead letters are read or removed at once.
PAGE_SIZE = 100

#: A redrive publishes dead letters with these fates. The others would come back, and are left where they are.
PUBLISHED_FATES: frozenset[Fate] = frozenset(("execute", "resume", "no-op", "in-progress", "unknown"))
#: With ``new_generation`` it publishes these, too.
REOPENED_FATES: frozenset[Fate] = frozenset(("no-op", "failed", "in-doubt"))


class DeadLetterDetails(Struct, frozen=True, kw_only=True):
    """One dead letter: its exact bytes, its cause, and the message in it; None where that cannot be decoded."""

    id: str
    queue: str
    packet: Packet
    cause: Cause
    message: Message[Any] | None = None

    @property
    def key(self) -> str:
        """The key of the message; "" where it is not known."""
        return self.cause.key or (self.message.key if self.message is not None else "")


class Redrive(Struct, frozen=True, kw_only=True):
    """What a redrive did, or would do, with one dead letter. ``sent``: it is in a queue again, no longer here."""

    dead: DeadLetterDetails
    fate: Fate
    sent: bool = False
    new_generation: bool = False
    error: str = ""


Select = Callable[[DeadLetterDetails], bool]


class DeadLetterQueue:
    """The dead letters of one queue of a worker.

    With the worker it knows scopes and keys, so that it can predict what a redrive would do. With a broker only, it
    needs ``group=``, the name of the worker. Plain names are sync; those with an ``a`` in front are async.
    """

    def __init__(self, source: Worker | Broker, queue: str, *, group: str | None = None) -> None:
        self._worker = source if isinstance(source, Worker) else None
        self._broker = source.broker if isinstance(source, Worker) else source
        if self._worker is not None and queue not in self._worker.queues:
            known = ", ".join(self._worker.queues) or "none"
            raise InvalidOption(f"{self._worker!r} has no handler for queue {show(queue)!r}; its queues are: {known}")
        name = group or (self._worker.name if self._worker is not None else None)
        if name is None:
            raise ConfigurationError("dead letters belong to a group of consumers: give the worker, or group= its name")
        self.queue = require_name(queue)
        self.group = require_name(name, "group")
        self._envelope = source.envelope

    # -- listing

    def list(
        self, *, select: Select | None = None, limit: int | None = 100, after: str | None = None
    ) -> Sequence[DeadLetterDetails]:
        """The oldest ``limit`` dead letters that ``select`` accepts, or the next ones behind the id ``after``."""
        listed: Sequence[DeadLetterDetails] = self._run(lambda: self.alist(select=select, limit=limit, after=after))
        return listed

    async def alist(
        self, *, select: Select | None = None, limit: int | None = 100, after: str | None = None
    ) -> Sequence[DeadLetterDetails]:
        """`list`, in a running event loop."""
        after_found = after is None

        def select_after(dead: DeadLetterDetails) -> bool:
            nonlocal after_found
            if after_found:
                return select is None or select(dead)
            after_found = dead.id == after
            return False

        async with self._open() as dead_letters:
            listed = [dead async for dead in self._iterate(dead_letters, select_after, limit)]
        if not after_found:
            raise InvalidOption(
                f"the dead letter {show(after)!r} was redriven or purged meanwhile; begin with the first page"
            )
        return listed

    def show(self, id: str) -> DeadLetterDetails:
        """The dead letter ``id``; `InvalidOption` where there is none of that id."""
        dead: DeadLetterDetails = self._run(lambda: self.ashow(id))
        return dead

    async def ashow(self, id: str) -> DeadLetterDetails:
        """`show`, in a running event loop."""
        for dead in await self.alist(select=lambda dead: dead.id == id, limit=1):
            return dead
        raise InvalidOption(
            f"queue {self.queue!r} has no dead letter {show(id)!r} (it may have been redriven or purged)"
        )

    def count(self) -> int:
        """How many dead letters there are."""
        count: int = self._run(self.acount)
        return count

    async def acount(self) -> int:
        """`count`, in a running event loop."""
        async with self._open() as dead_letters:
            return await dead_letters.count()

    # -- redriving

    def redrive(
        self,
        *,
        select: Select | None = None,
        limit: int | None = None,
        rate: float | None = None,
        to: str | None = None,
        dry_run: bool = False,
        new_generation: bool = False,
        bypass_effects: bool = False,
        on_each: Callable[[Redrive, int], Any] | None = None,
    ) -> Sequence[Redrive]:
        """Publish dead letters to their queue again, oldest first, and report for each what came of it.

        A message that is done is acked by its worker: redriving it is a no-op. Messages that would only come back (in
        doubt, failed for good, unreadable) are left here. A dead letter is removed only after the broker has confirmed
        its re-publish; a message that is in both places meanwhile is handled once.

        - ``select``, ``limit``: which ones, and how many at most. ``rate``: at most so many a second.
        - ``to``: another queue.
        - ``dry_run``: only report.
        - ``new_generation``: also run those again that are done, failed or in doubt, each of them logged. Their effects
          happen again: providers get new keys.
        - ``bypass_effects``: mark them, so that functions under `bypass_external_effects` do nothing.
        - ``on_each``: called after each, with its `Redrive` and the total; an exception of it ends the redrive there.
        """
        report: Sequence[Redrive] = self._run(
            lambda: self.aredrive(
                select=select,
                limit=limit,
                rate=rate,
                to=to,
                dry_run=dry_run,
                new_generation=new_generation,
                bypass_effects=bypass_effects,
                on_each=on_each,
            )
        )
        return report

    async def aredrive(
        self,
        *,
        select: Select | None = None,
        limit: int | None = None,
        rate: float | None = None,
        to: str | None = None,
        dry_run: bool = False,
        new_generation: bool = False,
        bypass_effects: bool = False,
        on_each: Callable[[Redrive, int], Any] | None = None,
    ) -> Sequence[Redrive]:
        """`redrive`, in a running event loop."""
        if rate is not None and not rate > 0:
            raise InvalidOption(f"rate={rate!r} is not a number of messages a second; use a positive number")
        if new_generation and self._worker is None:
            raise ConfigurationError(
                "new_generation= needs the worker, which knows its records; give DeadLetterQueue the worker"
            )
        target = require_name(to) if to is not None else self.queue
        report: list[Redrive] = []

        publisher = self._broker.backend.publisher()
        try:
            async with self._open() as dead_letters:
                # Listed before the first is published: one that comes back meanwhile is not redriven twice.
                chosen = [dead async for dead in self._iterate(dead_letters, select, limit)]
                for dead in chosen:
                    job, fate, attempts = await self._predict(dead, target)
                    reopens = new_generation and fate in REOPENED_FATES
                    redrive = Redrive(dead=dead, fate="execute" if reopens else fate, new_generation=reopens)
                    publishes = not dry_run and (reopens or fate in PUBLISHED_FATES)
                    if publishes:
                        if job is not None:
                            await self._prepare_record(job, fate, reopens)
                        packet = _make_redriven_packet(dead, 0 if reopens else attempts, bypass_effects)
                        if bypass_effects and (own_mark := getattr(self._envelope, "bypass", None)):
                            packet = replace(packet, headers={**packet.headers, **own_mark})
                        (error,) = await publisher.publish(target, [packet])
                        if error is None:
                            await dead_letters.remove([dead.id])
                        redrive = replace(redrive, sent=error is None, error="" if error is None else show(error, 300))
                    report.append(redrive)
                    if on_each is not None:
                        on_each(redrive, len(chosen))
                    if publishes and rate is not None:
                        await asyncio.sleep(1 / rate)
        finally:
            await publisher.close()
        return report

    async def _predict(self, dead: DeadLetterDetails, target: str) -> tuple[Job | None, Fate, int]:
        """The job that ``dead`` would be in ``target``, its fate there, and the attempts so far."""
        attempts = int(dead.packet.headers.get(ATTEMPTS, "0")) + dead.cause.attempts
        if self._worker is None or target not in self._worker.queues:
            return None, "unknown", attempts
        try:
            job = self._worker.reader(target).read(Delivery(packet=dead.packet, queue=target))
        except Exception:
            return None, "unreadable", attempts
        return job, *await self._worker.redrive_preview().predict(job)

    async def _prepare_record(self, job: Job, fate: Fate, reopens: bool) -> None:
        """Let the record of ``job`` be claimed again: with new attempts, or as a new generation."""
        assert self._worker is not None
        if not reopens:
            await self._worker.redrive_preview().forgive(job)
            return
        scope = job.route.policy.scope
        log.warning("a redrive starts a new generation of scope %s, key %s, which was: %s", scope, show(job.key), fate)
        if await self._worker.redrive_preview().reopen(job, fate):
            self._worker.events.emit("redriven", scope, job.key, detail=f"new generation, was {fate}")

    # -- purging

    def purge(
        self, *, select: Select | None = None, limit: int | None = None, dry_run: bool = False
    ) -> Sequence[DeadLetterDetails]:
        """Remove dead letters for good. Returns those that were (or, with ``dry_run``, would be) removed."""
        purged: Sequence[DeadLetterDetails] = self._run(
            lambda: self.apurge(select=select, limit=limit, dry_run=dry_run)
        )
        return purged

    async def apurge(
        self, *, select: Select | None = None, limit: int | None = None, dry_run: bool = False
    ) -> Sequence[DeadLetterDetails]:
        """`purge`, in a running event loop."""
        async with self._open() as dead_letters:
            chosen = [dead async for dead in self._iterate(dead_letters, select, limit)]
            if not dry_run:
                for start in range(0, len(chosen), PAGE_SIZE):
                    await dead_letters.remove([dead.id for dead in chosen[start : start + PAGE_SIZE]])
            return chosen

    # -- reading

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[DeadLetters]:
        dead_letters = self._broker.backend.dead_letters(self.queue, group=self.group)
        try:
            yield dead_letters
        finally:
            await dead_letters.close()

    async def _iterate(
        self, dead_letters: DeadLetters, select: Select | None, limit: int | None
    ) -> AsyncIterator[DeadLetterDetails]:
        taken, cursor = 0, None
        while limit is None or taken < limit:
            page, cursor = await dead_letters.browse(PAGE_SIZE, cursor)
            for dead_letter in page:
                dead = self._decode(dead_letter)
                if select is None or select(dead):
                    yield dead
                    taken += 1
                    if taken == limit:
                        return
            if cursor is None:
                return

    def _decode(self, dead_letter: DeadLetter) -> DeadLetterDetails:
        packet = dead_letter.packet
        cause = read_cause(packet.headers) or Cause(why="unknown", text="it was not put here by effectonce")
        try:
            message: Message[Any] | None = self._envelope.decode(replace(packet, headers=_published_headers(packet)))
        except EffectOnceError:
            message = None
        return DeadLetterDetails(
            id=dead_letter.id, queue=dead_letter.queue, packet=packet, cause=cause, message=message
        )

    def _run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return self._broker._run(work)


def _make_redriven_packet(dead: DeadLetterDetails, attempts: int, bypass: bool) -> Packet:
    """The packet that is published again: with the same bytes and id, and marked as redriven by its headers.

    ``attempts`` are those so far: the message gets as many again as a new one.
    """
    headers = _published_headers(dead.packet)
    headers[ATTEMPTS] = str(attempts)
    headers[REDRIVEN] = f"{BYPASS if bypass else 'run'}-{os.urandom(6).hex()}"
    return replace(dead.packet, headers=headers)


def _published_headers(packet: Packet) -> dict[str, str]:
    """The headers that the packet was first published with."""
    return {name: value for name, value in packet.headers.items() if name != CAUSE}
