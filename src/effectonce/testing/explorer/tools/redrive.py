"""`DeadLetterQueue.redrive`: nothing leaves the dead letters before its re-publish is confirmed; what is done stays so.

An operator redrives, as often as it takes; the workers beside handle what comes back, each under the guard, whose
whole oracle watches. There are three letters: one whose attempts were used up (``k0``), one that is done (``k1``), and
one that is in doubt (``k2``), which a plain redrive leaves where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effectonce.broker import Broker as Handle
from effectonce.contracts import BrokerCapabilities, DeadLetter, Packet
from effectonce.dlq import DeadLetterQueue
from effectonce.errors import BrokerUnavailable
from effectonce.message import Message
from effectonce.record import Answer, Claim, Settlement
from effectonce.store import Store
from effectonce.testing.explorer.broker import Broker
from effectonce.testing.explorer.scenario import LEASE, RETENTION, Scenario
from effectonce.testing.explorer.stage import SCOPE, nowhere
from effectonce.testing.explorer.wire import Ties
from effectonce.testing.explorer.workers import GuardStage
from effectonce.testing.explorer.world import Delivery, Process, World
from effectonce.worker import Worker
from effectonce.worker.jobs import Cause

from .outbox import Publishing, Refusal

QUEUE = "orders"
OPERATOR = "redrive"


class RedriveStage(GuardStage):
    """``options``: those of `DeadLetterQueue.redrive`. The naive arm ``remove-first`` sends after it removed."""

    capabilities = BrokerCapabilities(name="modelled", batch=16)

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._behind = Store(nowhere, sweep_every=None)
        handle = Handle(self)  # type: ignore[arg-type]
        worker = Worker(handle, store=self._behind)

        @worker.handler(QUEUE, scope=SCOPE, fingerprint=False, lease=LEASE / 1e6, retention=RETENTION / 1e6)
        async def handle_order(message: Message[Any]) -> None:
            raise AssertionError("the guard beside handles it")

        self.queue = DeadLetterQueue(worker, QUEUE)
        self.encode = handle.envelope.encode

    def open(self, world: World) -> None:
        world.broker = Broker(0, 0)
        world.broker.send(OPERATOR)
        self.commands = 0
        self.letters: dict[str, Packet] = {}
        for number in range(3):
            key = f"k{number}"
            packet = self.encode(Message(data=key, type="paid", id=key, key=key), QUEUE)
            headers = {**packet.headers, **Cause(why="attempts-exhausted", attempts=1).header()}
            self.letters[str(number)] = Packet(body=packet.body, headers=headers, id=packet.id)
            self._was(world, key, ("free", "done", "in_doubt")[number])

    def _was(self, world: World, key: str, state: Any) -> None:
        """The record of ``key`` is left as ``state`` by an attempt before."""
        owner = key.encode().ljust(16)
        (reply,) = world.apply([Claim(SCOPE, key, owner, LEASE, RETENTION)])
        assert isinstance(reply, Answer)
        grant = world.ledger.grant(key, owner, reply.token)
        world.ledger.started(key, grant, world.now())
        if state == "done":
            world.ledger.effect(key, grant)
        result = f'1"charge-{key}-1"'.encode() if state == "done" else None
        world.apply([Settlement(SCOPE, key, owner, reply.token, state, RETENTION, result=result)])

    def enter(self, process: Process) -> None:
        super().enter(process)
        self._behind._live = process.runtime

    # -- the broker, as `DeadLetterQueue` sees it

    def publisher(self) -> Letters:
        return self.dead_letters(QUEUE, group="")

    def dead_letters(self, queue: str, *, group: str) -> Letters:
        assert self.world is not None
        return Letters(self, self.world, *self.world.whose())

    # -- work

    async def work(self, world: World, process: Process, delivery: Delivery) -> None:
        if delivery.entry.key != OPERATOR:
            await super().work(world, process, delivery)
            return
        self.commands += 1
        call = self._remove_first(world) if self.scenario.naive else self.queue.aredrive(**self.scenario.options)
        failure: BaseException | None = None
        report: Sequence[Any] = ()
        try:
            report = await call
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
        delivery.inside = False
        if failure is None and not any(each.error for each in report):
            delivery.entry.settle(delivery.number, "acked")
        world.tell(f"  w{process.slot}: the redrive {'is done' if failure is None else f'raised {failure!r}'}")
        world.ended(process, delivery, 1.0)

    async def _remove_first(self, world: World) -> Sequence[Any]:
        letters = self.dead_letters(QUEUE, group="")
        for letter in (await letters.browse(100))[0]:
            await letters.remove([letter.id])
            await letters.publish(QUEUE, [letter.packet])
        return ()

    def finish(self, world: World) -> None:
        operator = world.broker.entries.pop(0)
        if operator.state != "acked":
            world.fail("wedged", "the redrive comes to no end")
        left = {packet.id for packet in self.letters.values()}
        anew = bool(self.scenario.options.get("new_generation"))
        expected = set() if anew or self.scenario.naive else {"k2"}
        queued = {entry.key for entry in world.broker.entries}
        for key in ("k0", "k1", "k2"):
            lost = key not in left and key not in queued
            if lost:
                world.fail("lost", f"{key}: it is neither in the dead letters nor in the queue")
            if key in left and key not in expected:
                world.fail("wedged", f"{key}: it is still among the dead letters")
            world.tally[key] = (lost, 0)
        most = 1 + (self.commands if anew else 0)
        effects = world.ledger.book("k1").effects
        if effects > most and not world.faults:
            world.fail("doubled", f"k1: its effect happened {effects} times in {self.commands} redrives")
        if world.violation is None and not self.scenario.naive:
            faults, world.faults = world.faults, max(1, world.faults)  # k1 has had its effect before
            super().finish(world)
            world.faults = faults
            for key, (lost, _) in world.tally.items():
                world.tally[key] = (lost, 0)  # what mode L repeats is the guard's affair, and was judged by its rules

    def standing(self, world: World, tag: Any) -> object:
        return tuple(self.letters), min(self.commands, 2)


class Letters:
    """`contracts.Publisher` and `contracts.DeadLetters` of one process."""

    def __init__(self, stage: RedriveStage, world: World, process: Process, delivery: Delivery) -> None:
        self._stage = stage
        self._world = world
        self._process = process
        self._of = delivery.number

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        def arrive() -> None:
            for packet in packets:
                self._world.broker.send(packet.id)

        try:
            await self._ask("publish", "publish", arrive, Publishing())
        except Refusal as error:
            return [error for _ in packets]
        return [None] * len(packets)

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        letters = self._stage.letters

        def page() -> list[DeadLetter]:
            return [DeadLetter(id=id, packet=packet, queue=QUEUE) for id, packet in letters.items()]

        return await self._ask("publish", "browse", page, Reading()), None

    async def remove(self, ids: Sequence[str]) -> int:
        letters = self._stage.letters
        return await self._ask(  # type: ignore[no-any-return]
            "publish", "remove", lambda: sum(letters.pop(id, None) is not None for id in ids), Removing()
        )

    async def _ask(self, kind: Any, name: str, apply: Any, ties: Ties) -> Any:
        return await self._world.ask(self._process, kind, (name,), apply, of=self._of, ties=ties)

    async def close(self) -> None: ...


class Removing(Ties):
    def broken(self, retry: bool) -> Exception:
        return BrokerUnavailable("no answer")


class Reading(Removing):
    local = True
    lingers = False
