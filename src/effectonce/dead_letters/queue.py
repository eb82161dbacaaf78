"""Dead letters: what a worker has given up, to be looked at, redriven or purged.

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
from typing import Any, ParamSpec, TypeVar, overload

from msgspec import Struct
from msgspec.structs import replace

from effectonce.broker import Broker
from effectonce.contracts import DeadLetter, DeadLetters, Delivery, Packet
from effectonce.core.guarded_call.run import running
from effectonce.errors import ConfigurationError, EffectOnceError, InvalidOption, show
from effectonce.guard.introspection import is_async
from effectonce.message import BYPASS, REDRIVEN, Message
from effectonce.values.queue_names import require_name
from effectonce.worker.jobs import ATTEMPTS, CAUSE, Cause, Job, read_cause
from effectonce.worker.redrive_preview import Fate
from effectonce.worker.worker import Worker

log = logging.getLogger("effectonce")

P = ParamSpec("P")
R = TypeVar("R")

PAGE = 100

#: A redrive sends these; the others would come back, and are left where they are.
SENT: frozenset[Fate] = frozenset(("execute", "resume", "no-op", "in-progress", "unknown"))
#: And these with ``new_generation``.
REOPENED: frozenset[Fate] = frozenset(("no-op", "failed", "in-doubt"))


class Dead(Struct, frozen=True, kw_only=True):
    """One dead letter: its exact bytes, why it is one, and the message in it as far as it can be read."""

    id: str
    queue: str
    packet: Packet
    cause: Cause
    message: Message[Any] | None = None


class Redrive(Struct, frozen=True, kw_only=True):
    """What a redrive did, or would do, with one dead letter. ``sent``: it is in a queue again, and no longer here."""

    dead: Dead
    fate: Fate
    sent: bool = False
    new_generation: bool = False
    error: str = ""


Select = Callable[[Dead], bool]


class DeadLetterQueue:
    """What was given up on one queue of a worker.

    Given the worker it knows scopes and keys, so that it can say what a redrive would do. Given a broker only, it needs
    ``group=``, the name of the worker. Plain names are sync; those with an ``a`` in front are to be awaited.
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

    # -- looking

    def list(
        self, *, select: Select | None = None, limit: int | None = 100, after: str | None = None
    ) -> Sequence[Dead]:
        """The oldest ``limit`` dead letters that ``select`` takes, or the next behind the one with the id ``after``.
        Nothing is changed."""
        found: Sequence[Dead] = self._run(lambda: self.alist(select=select, limit=limit, after=after))
        return found

    async def alist(
        self, *, select: Select | None = None, limit: int | None = 100, after: str | None = None
    ) -> Sequence[Dead]:
        """`list`, in a running event loop."""
        passed = after is None

        def behind(dead: Dead) -> bool:
            nonlocal passed
            if passed:
                return select is None or select(dead)
            passed = dead.id == after
            return False

        async with _Opened(self) as letters:
            found = [dead async for dead in self._selected(letters, behind, limit)]
        if not passed:
            raise InvalidOption(
                f"the dead letter {show(after)!r} is not there any more (redriven or purged): begin with the first page"
            )
        return found

    def show(self, id: str) -> Dead:
        """The dead letter ``id``; `InvalidOption` where it is not there (any more)."""
        found: Dead = self._run(lambda: self.ashow(id))
        return found

    async def ashow(self, id: str) -> Dead:
        """`show`, in a running event loop."""
        for dead in await self.alist(select=lambda dead: dead.id == id, limit=1):
            return dead
        raise InvalidOption(
            f"queue {self.queue!r} has no dead letter {show(id)!r} (it may have been redriven or purged)"
        )

    def count(self) -> int:
        """How many there are."""
        count: int = self._run(self.acount)
        return count

    async def acount(self) -> int:
        """`count`, in a running event loop."""
        async with _Opened(self) as letters:
            return await letters.count()

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
        """Send dead letters to their queue again, oldest first, and say for each what comes of it.

        A message that is done is acked by its worker: redriving it is a no-op. What would only come back (in doubt,
        failed for good, unreadable) is left here. Nothing is removed before the broker has confirmed its re-publish;
        a message that is in both places meanwhile is handled once.

        - ``select``, ``limit``: which, and how many at most. ``rate``: at most so many a second.
        - ``to``: another queue.
        - ``dry_run``: only say it.
        - ``new_generation``: let also those run again that are done, failed or in doubt, each of them logged. Their
          effects happen again: providers get new keys.
        - ``bypass_effects``: mark them, so that functions under `bypass_external_effects` do nothing.
        - ``on_each``: called after each, with what came of it and how many there are; what it raises ends the redrive
          there.
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
            raise InvalidOption(f"rate={rate!r} is not a number of messages a second")
        if new_generation and self._worker is None:
            raise ConfigurationError("new_generation= needs the worker, which knows where its records are")
        target = require_name(to) if to is not None else self.queue
        report: list[Redrive] = []

        def told(each: Redrive, of: int) -> None:
            report.append(each)
            if on_each is not None:
                on_each(each, of)

        publisher = self._broker.backend.publisher()
        try:
            async with _Opened(self) as letters:
                # Listed before the first is sent: what comes back meanwhile is not taken for another one.
                chosen = [dead async for dead in self._selected(letters, select, limit)]
                for dead in chosen:
                    job, fate, attempts = await self._look(dead, target)
                    anew = new_generation and fate in REOPENED
                    if dry_run or not (anew or fate in SENT):
                        told(Redrive(dead=dead, fate="execute" if anew else fate, new_generation=anew), len(chosen))
                        continue
                    if job is not None:
                        await self._prepare(job, fate, anew)
                    packet = _again(dead, 0 if anew else attempts, bypass_effects)
                    if bypass_effects and (known := getattr(self._envelope, "bypass", None)):
                        packet = replace(packet, headers={**packet.headers, **known})
                    (refused,) = await publisher.publish(target, [packet])
                    if refused is None:
                        await letters.remove([dead.id])
                    told(
                        Redrive(
                            dead=dead,
                            fate="execute" if anew else fate,
                            sent=refused is None,
                            new_generation=anew,
                            error="" if refused is None else show(refused, 300),
                        ),
                        len(chosen),
                    )
                    if rate is not None:
                        await asyncio.sleep(1 / rate)
        finally:
            await publisher.close()
        return report

    async def _look(self, dead: Dead, target: str) -> tuple[Job | None, Fate, int]:
        before = int(dead.packet.headers.get(ATTEMPTS, "0")) + dead.cause.attempts
        if self._worker is None or target not in self._worker.queues:
            return None, "unknown", before
        try:
            job = self._worker.reader(target).read(Delivery(packet=dead.packet, queue=target))
        except Exception:
            return None, "unreadable", before
        return job, *await self._worker.redrive_preview().predict(job)

    async def _prepare(self, job: Job, fate: Fate, anew: bool) -> None:
        assert self._worker is not None
        if not anew:
            await self._worker.redrive_preview().forgive(job)
            return
        scope = job.route.policy.scope
        log.warning("a redrive starts a new generation of scope %s, key %s, which was: %s", scope, show(job.key), fate)
        if await self._worker.redrive_preview().reopen(job, fate):
            self._worker.events.emit("redriven", scope, job.key, detail=f"new generation, was {fate}")

    # -- purging

    def purge(self, *, select: Select | None = None, limit: int | None = None, dry_run: bool = False) -> Sequence[Dead]:
        """Remove dead letters for good, and give what was (or, with ``dry_run``, would be) removed."""
        purged: Sequence[Dead] = self._run(lambda: self.apurge(select=select, limit=limit, dry_run=dry_run))
        return purged

    async def apurge(
        self, *, select: Select | None = None, limit: int | None = None, dry_run: bool = False
    ) -> Sequence[Dead]:
        """`purge`, in a running event loop."""
        async with _Opened(self) as letters:
            chosen = [dead async for dead in self._selected(letters, select, limit)]
            if not dry_run:
                for start in range(0, len(chosen), PAGE):
                    await letters.remove([dead.id for dead in chosen[start : start + PAGE]])
            return chosen

    # -- how

    async def _selected(self, letters: DeadLetters, select: Select | None, limit: int | None) -> AsyncIterator[Dead]:
        taken, cursor = 0, None
        while limit is None or taken < limit:
            page, cursor = await letters.browse(PAGE, cursor)
            for letter in page:
                dead = self._read(letter)
                if select is None or select(dead):
                    yield dead
                    taken += 1
                    if taken == limit:
                        return
            if cursor is None:
                return

    def _read(self, letter: DeadLetter) -> Dead:
        packet = letter.packet
        cause = read_cause(packet.headers) or Cause(why="unknown", text="it was not put here by effectonce")
        try:
            message: Message[Any] | None = self._envelope.decode(replace(packet, headers=_sent(packet)))
        except EffectOnceError:
            message = None
        return Dead(id=letter.id, queue=letter.queue, packet=packet, cause=cause, message=message)

    def _run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return self._broker._run(work)


def _again(dead: Dead, attempts: int, bypass: bool) -> Packet:
    """The packet as it goes out again: the same bytes and id, told from the first by its headers.

    ``attempts`` are counted so far: it gets as many again as a new message does.
    """
    headers = _sent(dead.packet)
    headers[ATTEMPTS] = str(attempts)
    headers[REDRIVEN] = f"{BYPASS if bypass else 'run'}-{os.urandom(6).hex()}"
    return replace(dead.packet, headers=headers)


def _sent(packet: Packet) -> dict[str, str]:
    """The headers that it was sent with."""
    return {name: value for name, value in packet.headers.items() if name != CAUSE}


class _Opened:
    def __init__(self, dlq: DeadLetterQueue) -> None:
        self._letters = dlq._broker.backend.dead_letters(dlq.queue, group=dlq.group)

    async def __aenter__(self) -> DeadLetters:
        return self._letters

    async def __aexit__(self, *_: object) -> None:
        await self._letters.close()


@overload
def bypass_external_effects(
    function: Callable[P, Coroutine[Any, Any, R]],
) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
@overload
def bypass_external_effects(function: Callable[P, R]) -> Callable[P, R | None]: ...
def bypass_external_effects(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which does nothing and gives None where the message is redriven with ``bypass_effects``.

    For effects outside (a mail, a charge) that have happened before, while the handler's own state is to be built
    again: ``bypass_external_effects(send_mail)(order)``, or as a decorator.
    """

    def bypassing() -> bool:
        run = running.get()
        return run is not None and run.active and run.bypassing

    if is_async(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return None if bypassing() else await function(*args, **kwargs)

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return None if bypassing() else function(*args, **kwargs)

    return call
