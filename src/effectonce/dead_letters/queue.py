"""The dead letters of a worker's queue: list, show, redrive and purge them.

dlq = eo.DeadLetterQueue(worker, "orders")
for dead in dlq.list(): print(dead.cause.why, dead.message)
dlq.redrive(select=lambda dead: dead.cause.why == "attempts-exhausted", limit=100, dry_run=True)
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from effectonce.broker import Broker
from effectonce.contracts import DeadLetter, DeadLetters, Delivery, Packet
from effectonce.errors import ConfigurationError, EffectOnceError, InvalidOption, show
from effectonce.message import BYPASS_PREFIX, CAUSE_HEADER, REDRIVEN_HEADER, Message
from effectonce.values.queue_names import require_name
from effectonce.worker.dead_letter_cause import Cause, read_cause
from effectonce.worker.jobs import USED_ATTEMPTS_HEADER, Job, read_used_attempts
from effectonce.worker.redrive_records import Fate
from effectonce.worker.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("effectonce")

PAGE_SIZE: Final = 100
"""How many dead letters are read or removed at once."""
PUBLISHED_FATES: Final[frozenset[Fate]] = frozenset(("execute", "resume", "no-op", "in-progress", "unknown"))
"""A redrive publishes dead letters with these fates. The others would become dead letters again, and are left."""
REOPENED_FATES: Final[frozenset[Fate]] = frozenset(("no-op", "failed", "in-doubt"))
"""With ``new_generation``, a redrive publishes these, too."""


class DeadLetterDetails(Struct, frozen=True, kw_only=True):
    """One dead letter: its exact bytes, its cause, and the message in it, or None if that cannot be decoded."""

    id: str
    queue: str
    packet: Packet
    cause: Cause
    message: Message[Any] | None = None

    @property
    def key(self) -> str:
        """The key of the message; "" if it is not known."""
        return self.cause.key or (self.message.key if self.message is not None else "")


class Redrive(Struct, frozen=True, kw_only=True):
    """The redrive of one dead letter, done or predicted. ``sent``: it was published, and is no longer a dead letter."""

    dead: DeadLetterDetails
    fate: Fate
    sent: bool = False
    new_generation: bool = False
    error: str = ""

    @property
    def was_in_doubt(self) -> bool:
        """Whether the message would run, and its last attempt ended in doubt: not its own record is in doubt, but an
        intent, a saga or a guard that its handler calls. Until that is decided, it becomes a dead letter again."""
        return self.fate in ("execute", "resume") and not self.new_generation and self.dead.cause.why == "in-doubt"


Select = Callable[[DeadLetterDetails], bool]


def make_blocking(
    method: Callable[Concatenate[DeadLetterQueue, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[DeadLetterQueue, P], T]:
    """Make the sync form of an async method. It runs on the event loop of the `Broker`."""

    @functools.wraps(method)
    def run(self: DeadLetterQueue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.broker.run_blocking(lambda: method(self, *args, **kwargs))

    return run


class DeadLetterQueue:
    """The dead letters of one queue of a worker.

    Give it the worker, whose scopes and keys it needs to predict what a redrive would do. With a broker only, it needs
    ``group=``, the name of the worker. Each method has two forms with the same arguments: `alist` in a running event
    loop, and `list` anywhere else.
    """

    def __init__(self, source: Worker | Broker, queue: str, *, group: str | None = None) -> None:
        self._worker = source if isinstance(source, Worker) else None
        self.broker = source.broker if isinstance(source, Worker) else source
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

    async def alist(
        self, *, select: Select | None = None, limit: int | None = 100, after: str | None = None
    ) -> Sequence[DeadLetterDetails]:
        """List the oldest ``limit`` dead letters that ``select`` accepts, or the next ones behind the id ``after``."""
        async with self._open() as dead_letters:
            return await self._choose(dead_letters, select, limit, after)

    list = make_blocking(alist)
    """The sync form of `alist`."""

    async def ashow(self, id: str) -> DeadLetterDetails:
        """Return the dead letter ``id``. Raises `InvalidOption` if there is none with that id."""
        for dead in await self.alist(select=lambda dead: dead.id == id, limit=1):
            return dead
        raise InvalidOption(
            f"queue {self.queue!r} has no dead letter {show(id)!r} (it may have been redriven or purged)"
        )

    show = make_blocking(ashow)
    """The sync form of `ashow`."""

    async def acount(self) -> int:
        """Count the dead letters."""
        async with self._open() as dead_letters:
            return await dead_letters.count()

    count = make_blocking(acount)
    """The sync form of `acount`."""

    # -- redriving

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
        """Publish dead letters to their queue again, oldest first, and report the result of each.

        If a message is done, its worker acks it: redriving it is a no-op. Messages that would only become dead letters
        again (in doubt, failed for good, unreadable) are left here. A dead letter is removed only after the broker has
        confirmed its re-publish. If it is in both places meanwhile, it is still handled once.

        - ``select``, ``limit``: which ones, and how many at most. ``rate``: the most in a second.
        - ``to``: another queue.
        - ``dry_run``: only report.
        - ``new_generation``: also run messages again that are done, failed or in doubt. Each is logged. Their effects
          happen again: providers get new keys.
        - ``bypass_effects``: mark the messages, so that functions under `bypass_external_effects` do nothing.
        - ``on_each``: called after each message with its `Redrive` and the total. If it raises, the redrive ends there.
        """
        if rate is not None and not rate > 0:
            raise InvalidOption(f"rate={rate!r} is not a number of messages a second; use a positive number")
        if new_generation and self._worker is None:
            raise ConfigurationError(
                "new_generation= needs the worker, which knows its records; give DeadLetterQueue the worker"
            )
        target = require_name(to) if to is not None else self.queue
        report: list[Redrive] = []
        publisher = self.broker.backend.publisher()
        try:
            async with self._open() as dead_letters:
                # List all before publishing the first: a message that fails again meanwhile is not redriven twice.
                chosen = await self._choose(dead_letters, select, limit)
                for dead in chosen:
                    job, fate, attempts = await self._predict(dead, target)
                    reopens = new_generation and fate in REOPENED_FATES
                    redrive = Redrive(dead=dead, fate="execute" if reopens else fate, new_generation=reopens)
                    publishes = not dry_run and (reopens or fate in PUBLISHED_FATES)
                    if publishes:
                        if job is not None:
                            await self._prepare_record(job, fate, reopens)
                        packet = self._make_redriven_packet(dead, 0 if reopens else attempts, bypass_effects)
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

    redrive = make_blocking(aredrive)
    """The sync form of `aredrive`."""

    async def _predict(self, dead: DeadLetterDetails, target: str) -> tuple[Job | None, Fate, int]:
        """Predict the redrive of ``dead`` to ``target``: its job there, its fate, and the attempts so far."""
        attempts = read_used_attempts(dead.packet.headers) + dead.cause.attempts
        if self._worker is None or target not in self._worker.queues:
            return None, "unknown", attempts
        try:
            job = self._worker.reader(target).read(Delivery(packet=dead.packet, queue=target))
        except Exception:
            return None, "unreadable", attempts
        return job, *await self._worker.redrive_records().predict(job)

    async def _prepare_record(self, job: Job, fate: Fate, reopens: bool) -> None:
        """Change the record of ``job`` so that it can be claimed again: with new attempts, or as a new generation."""
        assert self._worker is not None
        if not reopens:
            await self._worker.redrive_records().reset_crash_count(job)
            return
        scope = job.route.policy.scope
        log.warning("a redrive starts a new generation of scope %s, key %s, which was: %s", scope, show(job.key), fate)
        if await self._worker.redrive_records().reopen(job, fate):
            self._worker.events.emit("redriven", scope, job.key, detail=f"new generation, was {fate}")

    def _make_redriven_packet(self, dead: DeadLetterDetails, attempts: int, bypass: bool) -> Packet:
        """Make the packet to publish again: the same bytes and id, with headers that mark it as redriven.

        ``attempts``: how often it was tried so far. The count continues, and the message gets as many further attempts
        as a new one.
        """
        headers = _published_headers(dead.packet)
        headers[USED_ATTEMPTS_HEADER] = str(attempts)
        headers[REDRIVEN_HEADER] = f"{BYPASS_PREFIX if bypass else 'run'}-{os.urandom(6).hex()}"
        if bypass:
            headers |= getattr(self._envelope, "bypass", None) or {}  # the same mark in the envelope's own format
        return replace(dead.packet, headers=headers)

    # -- purging

    async def apurge(
        self, *, select: Select | None = None, limit: int | None = None, dry_run: bool = False
    ) -> Sequence[DeadLetterDetails]:
        """Delete dead letters. Returns those that were deleted (or, with ``dry_run``, would be)."""
        async with self._open() as dead_letters:
            chosen = await self._choose(dead_letters, select, limit)
            if not dry_run:
                for start in range(0, len(chosen), PAGE_SIZE):
                    await dead_letters.remove([dead.id for dead in chosen[start : start + PAGE_SIZE]])
            return chosen

    purge = make_blocking(apurge)
    """The sync form of `apurge`."""

    # -- reading

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[DeadLetters]:
        dead_letters = self.broker.backend.dead_letters(self.queue, group=self.group)
        try:
            yield dead_letters
        finally:
            await dead_letters.close()

    async def _choose(
        self, dead_letters: DeadLetters, select: Select | None, limit: int | None, after: str | None = None
    ) -> Sequence[DeadLetterDetails]:
        """Read the oldest ``limit`` dead letters that ``select`` accepts, behind the id ``after`` if there is one."""
        chosen: list[DeadLetterDetails] = []
        cursor, reached = None, after is None
        while limit is None or len(chosen) < limit:
            page, cursor = await dead_letters.browse(PAGE_SIZE, cursor)
            for dead_letter in page:
                if not reached:
                    reached = dead_letter.id == after
                    continue
                dead = self._decode(dead_letter)
                if select is None or select(dead):
                    chosen.append(dead)
                    if len(chosen) == limit:
                        break
            if cursor is None:
                break
        if not reached:
            raise InvalidOption(
                f"the dead letter {show(after)!r} was redriven or purged meanwhile; begin with the first page"
            )
        return chosen

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


def _published_headers(packet: Packet) -> dict[str, str]:
    """Return the headers that the packet was first published with."""
    return {name: value for name, value in packet.headers.items() if name != CAUSE_HEADER}
